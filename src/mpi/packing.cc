#include "mpi/packing.h"

#include <algorithm>
#include <climits>
#include <mutex>

namespace kolo::mpi {
namespace {

void check(int code) {
  if (code != MPI_SUCCESS) throw MpiError{code};
}

// Calls action(elements, count, offset in the packed bytes) for pieces whose bytes an int can count.
template <class Action>
void inPieces(const Unpacked& all, const Action& action) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const auto most = static_cast<MPI_Count>(std::max<std::size_t>(1, kMost / all.size));
  for (MPI_Count done = 0; done < all.count; done += most) {
    action(all.elements + done * all.extent, static_cast<int>(std::min(most, all.count - done)),
           static_cast<std::size_t>(done) * all.size);
  }
}

// So many bytes as one element.
class Bytes {
 public:
  explicit Bytes(std::size_t size) {
    constexpr std::size_t kPiece = std::size_t{1} << 30;
    const int counts[] = {static_cast<int>(size / kPiece), static_cast<int>(size % kPiece)};
    const MPI_Aint begins[] = {0, static_cast<MPI_Aint>(size / kPiece * kPiece)};
    MPI_Datatype piece = MPI_DATATYPE_NULL;
    check(PMPI_Type_contiguous(static_cast<int>(kPiece), MPI_BYTE, &piece));
    const MPI_Datatype datatypes[] = {piece, MPI_BYTE};
    const int code = PMPI_Type_create_struct(2, counts, begins, datatypes, &datatype_);
    PMPI_Type_free(&piece);
    check(code);
    check(PMPI_Type_commit(&datatype_));
  }
  ~Bytes() { PMPI_Type_free(&datatype_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  MPI_Datatype datatype() const { return datatype_; }

 private:
  MPI_Datatype datatype_ = MPI_DATATYPE_NULL;
};

// MPI 3 counts what it packs in an int. A message has no such bound: an element with more bytes is sent by this process
// to itself, as one element at either end. On a communicator of its own, where the program receives nothing.
void sendToSelf(const void* from, MPI_Datatype sent, void* to, MPI_Datatype received) {
  static std::mutex oneAtATime;
  const std::lock_guard lock(oneAtATime);
  MPI_Comm own = MPI_COMM_NULL;
  check(PMPI_Comm_split(MPI_COMM_SELF, 0, 0, &own));
  const int code = PMPI_Sendrecv(from, 1, sent, 0, 0, to, 1, received, 0, 0, own, MPI_STATUS_IGNORE);
  PMPI_Comm_free(&own);
  check(code);
}

bool fitsAnInt(std::size_t bytes) { return bytes <= INT_MAX; }

// Elements whose datatype has absolute addresses begin at MPI_BOTTOM, which MPICH takes in messages but refuses to pack
// from or into. They are described from another address, by a datatype that is moved by as much.
class FromAnAddress {
 public:
  explicit FromAnAddress(const Unpacked& given) : elements_(given) {
    if (given.elements != MPI_BOTTOM) return;
    static unsigned char somewhere;
    const int one = 1;
    const MPI_Aint back = -reinterpret_cast<MPI_Aint>(&somewhere);
    check(PMPI_Type_create_hindexed(1, &one, &back, given.datatype, &moved_));
    check(PMPI_Type_commit(&moved_));
    elements_.elements = &somewhere;
    elements_.datatype = moved_;
  }
  ~FromAnAddress() {
    if (moved_ != MPI_DATATYPE_NULL) PMPI_Type_free(&moved_);
  }
  FromAnAddress(const FromAnAddress&) = delete;
  FromAnAddress& operator=(const FromAnAddress&) = delete;
  const Unpacked& operator*() const { return elements_; }

 private:
  Unpacked elements_;
  MPI_Datatype moved_ = MPI_DATATYPE_NULL;
};

}  // namespace

void pack(const Unpacked& given, unsigned char* to, MPI_Comm comm) {
  const FromAnAddress placed(given);
  const Unpacked& from = *placed;
#if MPI_VERSION >= 4
  if (hasLargeCounts()) {
    MPI_Count position = 0;
    const MPI_Count length = from.count * static_cast<MPI_Count>(from.size);
    return check(PMPI_Pack_c(from.elements, from.count, from.datatype, to, length, &position, comm));
  }
#endif
  inPieces(from, [&](const unsigned char* elements, int count, std::size_t offset) {
    if (!fitsAnInt(from.size)) return sendToSelf(elements, from.datatype, to + offset, Bytes(from.size).datatype());
    int position = 0;
    const int length = count * static_cast<int>(from.size);
    check(PMPI_Pack(elements, count, from.datatype, to + offset, length, &position, comm));
  });
}

void unpack(const unsigned char* from, const Unpacked& given, MPI_Comm comm) {
  const FromAnAddress placed(given);
  const Unpacked& to = *placed;
#if MPI_VERSION >= 4
  if (hasLargeCounts()) {
    MPI_Count position = 0;
    const MPI_Count length = to.count * static_cast<MPI_Count>(to.size);
    return check(PMPI_Unpack_c(from, length, &position, to.elements, to.count, to.datatype, comm));
  }
#endif
  inPieces(to, [&](unsigned char* elements, int count, std::size_t offset) {
    if (!fitsAnInt(to.size)) return sendToSelf(from + offset, Bytes(to.size).datatype(), elements, to.datatype);
    int position = 0;
    const int length = count * static_cast<int>(to.size);
    check(PMPI_Unpack(from + offset, length, &position, elements, count, to.datatype, comm));
  });
}

}  // namespace kolo::mpi
