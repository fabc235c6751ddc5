#include "mpi/scan.h"

#include <algorithm>
#include <cstring>

#include "common/float_mode.h"
#include "mpi/packing.h"

namespace kolo::mpi {

// inout = in op inout, in the mode in which Kolo folds everywhere else. The MPI counts in an int.
void Scan::fold(const void* in, void* inout) const {
  const UsualFloatMode usual;
  constexpr MPI_Count kMost = 1 << 30;
  for (MPI_Count done = 0; done < count_; done += kMost) {
    const std::size_t offset = static_cast<std::size_t>(done) * extent_;
    const int code =
        PMPI_Reduce_local(static_cast<const unsigned char*>(in) + offset, static_cast<unsigned char*>(inout) + offset,
                          static_cast<int>(std::min(kMost, count_ - done)), datatype_, op_);
    if (code != MPI_SUCCESS) throw MpiError{code};
  }
}

// To the rank that is so much higher, and from the one that is so much lower, where there are such.
koloResult_t Scan::shift(const void* send, void* recv, int distance) const {
  const int rank = session_.rank();
  koloResult_t result = koloGroupStart();
  if (result != koloSuccess) return result;
  if (rank + distance < session_.ranks())
    (void)koloSend(send, bytes(), koloUint8, rank + distance, session_.kolo(), nullptr);
  if (rank >= distance) (void)koloRecv(recv, bytes(), koloUint8, rank - distance, session_.kolo(), nullptr);
  return koloGroupEnd();  // with the first error
}

// By recursive doubling (Hillis and Steele, "Data parallel algorithms", 1986): after the step of distance d, `acc` is
// the fold of the 2d ranks that end with this one, and what arrives next that of the ranks before those. Operands stay
// in the order of the ranks.
koloResult_t Scan::passUpwards() const {
  const std::size_t bytes = this->bytes();
  if (bytes == 0) return koloSuccess;

  const auto arriving = std::make_unique_for_overwrite<unsigned char[]>(bytes);
  const auto copy = std::make_unique_for_overwrite<unsigned char[]>(isInclusive_ ? 0 : bytes);
  void* const acc = isInclusive_ ? recvbuf_ : copy.get();
  if (acc != input_) std::memcpy(acc, input_, bytes);
  for (int distance = 1; distance < session_.ranks(); distance *= 2) {
    const koloResult_t result = shift(acc, arriving.get(), distance);
    if (result != koloSuccess) return result;
    if (session_.rank() < distance) continue;
    fold(arriving.get(), acc);
    if (isInclusive_) continue;
    if (distance == 1) {
      std::memcpy(recvbuf_, arriving.get(), bytes);
    } else {
      fold(arriving.get(), recvbuf_);
    }
  }
  return koloSuccess;
}

koloResult_t Scan::collect(const Call& call) {
  inputs_ = std::make_unique_for_overwrite<unsigned char[]>(bytes() * static_cast<std::size_t>(session_.ranks()));
  return call(koloAllGather, koloIallGather, input_, inputs_.get(), bytes(), koloUint8, session_.kolo());
}

void Scan::store() const {
  const int last = session_.rank() - (isInclusive_ ? 0 : 1);
  if (inputs_ == nullptr || last < 0 || bytes() == 0) return;
  const auto of = [&](int rank) { return inputs_.get() + bytes() * static_cast<std::size_t>(rank); };
  for (int rank = last - 1; rank >= 0; --rank) fold(of(rank), of(last));
  std::memcpy(recvbuf_, of(last), bytes());
}

}  // namespace kolo::mpi
