#include "mpi/packing.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <mutex>

namespace kolo::mpi {
namespace {

void check(int code) {
  if (code != MPI_SUCCESS) throw MpiError{code};
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

// Elements whose datatype has absolute addresses begin at MPI_BOTTOM, which MPICH takes in messages but refuses to pack
// from or into. They are described from another address, by a datatype that is moved by as much.
class FromAnAddress {
 public:
  FromAnAddress(unsigned char* elements, MPI_Datatype datatype) : elements(elements), datatype(datatype) {
    if (elements != MPI_BOTTOM) return;
    static unsigned char somewhere;
    const int one = 1;
    const MPI_Aint back = -reinterpret_cast<MPI_Aint>(&somewhere);
    check(PMPI_Type_create_hindexed(1, &one, &back, datatype, &moved_));
    check(PMPI_Type_commit(&moved_));
    this->elements = &somewhere;
    this->datatype = moved_;
  }
  ~FromAnAddress() {
    if (moved_ != MPI_DATATYPE_NULL) PMPI_Type_free(&moved_);
  }
  FromAnAddress(const FromAnAddress&) = delete;
  FromAnAddress& operator=(const FromAnAddress&) = delete;

  unsigned char* elements;
  MPI_Datatype datatype;

 private:
  MPI_Datatype moved_ = MPI_DATATYPE_NULL;
};

enum class Direction { kPack, kUnpack };

void transfer(Direction direction, const Elements& its, unsigned char* elements, std::size_t bytes,
              unsigned char* packed) {
  const bool packs = direction == Direction::kPack;
  if (bytes == 0) return;
  if (its.form.isRun) {
    std::memcpy(packs ? packed : elements, packs ? elements : packed, bytes);
    return;
  }
  const FromAnAddress from(elements, its.datatype);
  const std::size_t size = its.form.size;
#if MPI_VERSION >= 4
  if (hasLargeCounts()) {
    const auto length = static_cast<MPI_Count>(bytes), count = static_cast<MPI_Count>(bytes / size);
    MPI_Count position = 0;
    return check(packs ? PMPI_Pack_c(from.elements, count, from.datatype, packed, length, &position, its.comm)
                       : PMPI_Unpack_c(packed, length, &position, from.elements, count, from.datatype, its.comm));
  }
#endif
  // In pieces whose bytes an int can count, if no element is longer.
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const std::size_t most = std::max<std::size_t>(1, kMost / size) * size;
  for (std::size_t done = 0; done < bytes; done += most) {
    unsigned char* const first = from.elements + static_cast<MPI_Aint>(done / size) * its.form.extent;
    if (size > INT_MAX) {
      const Bytes one(size);
      if (packs) sendToSelf(first, from.datatype, packed + done, one.datatype());
      else sendToSelf(packed + done, one.datatype(), first, from.datatype);
      continue;
    }
    const int length = static_cast<int>(std::min(most, bytes - done)), count = length / static_cast<int>(size);
    int position = 0;
    check(packs ? PMPI_Pack(first, count, from.datatype, packed + done, length, &position, its.comm)
                : PMPI_Unpack(packed + done, length, &position, first, count, from.datatype, its.comm));
  }
}

}  // namespace

void pack(const Elements& its, const unsigned char* elements, std::size_t bytes, unsigned char* to) {
  transfer(Direction::kPack, its, const_cast<unsigned char*>(elements), bytes, to);
}

void unpack(const Elements& its, const unsigned char* from, std::size_t bytes, unsigned char* elements) {
  transfer(Direction::kUnpack, its, elements, bytes, const_cast<unsigned char*>(from));
}

}  // namespace kolo::mpi
