// Barrier, and the collectives that calculate.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "mpi/accelerated.h"
#include "mpi/operations.h"

namespace kolo::mpi {
namespace {

Outcome notCovered() { return Outcome::declined("not a predefined operation on a predefined datatype of at most 16 bytes"); }
Outcome unusual() { return Outcome::declined("MPI has to judge the arguments"); }

// MPI_IN_PLACE in the place of sendbuf is a pointer like any other here.
bool areBuffers(const void* sendbuf, const void* recvbuf, MPI_Count count) {
  if (count <= 0) return count == 0;
  return sendbuf != nullptr && recvbuf != nullptr && recvbuf != MPI_IN_PLACE && (sendbuf != recvbuf || kTakesBufferTwice);
}

bool isInPlace(const void* sendbuf, const void* recvbuf) { return sendbuf == MPI_IN_PLACE || sendbuf == recvbuf; }

// inout = in op inout. The MPI counts in an int.
void reduceLocal(const void* in, void* inout, MPI_Count count, std::size_t elementBytes, MPI_Datatype datatype, MPI_Op op) {
  constexpr MPI_Count kMost = 1 << 30;
  for (MPI_Count done = 0; done < count; done += kMost) {
    const std::size_t offset = static_cast<std::size_t>(done) * elementBytes;
    const int code = PMPI_Reduce_local(static_cast<const unsigned char*>(in) + offset, static_cast<unsigned char*>(inout) + offset,
                                       static_cast<int>(std::min(kMost, count - done)), datatype, op);
    if (code != MPI_SUCCESS) throw MpiError{code};
  }
}

}  // namespace

Outcome Accelerated::tryBarrier(MPI_Comm) { return koloBarrier(kolo_, nullptr); }

Outcome Accelerated::tryAllreduce(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm) {
  const auto reduction = session_.findReduction(op, datatype);
  if (!reduction) return notCovered();
  if (!areBuffers(sendbuf, recvbuf, count)) return unusual();
  const void* const input = isInPlace(sendbuf, recvbuf) ? recvbuf : sendbuf;
  return koloAllReduce(input, recvbuf, static_cast<std::size_t>(count), reduction->datatype, reduction->op, kolo_, nullptr);
}

Outcome Accelerated::tryReduce(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, int root,
                               MPI_Comm) {
  const auto reduction = session_.findReduction(op, datatype);
  if (!reduction) return notCovered();
  const bool isAtRoot = rank_ == root, inPlace = sendbuf == MPI_IN_PLACE;
  const bool isRight = isAtRoot ? areBuffers(sendbuf, recvbuf, count) && (sendbuf != recvbuf || count == 0)
                                : areBuffers(sendbuf, &count, count) && !inPlace;
  if (!isRoot(root) || !isRight) return unusual();
  return koloReduce(inPlace ? recvbuf : sendbuf, isAtRoot ? recvbuf : nullptr, static_cast<std::size_t>(count),
                    reduction->datatype, reduction->op, root, kolo_, nullptr);
}

// In place, MPI takes the input from recvbuf and wants the result at its beginning, Kolo leaves it at this rank's block.
Outcome Accelerated::tryReduce_scatter_block(const void* sendbuf, void* recvbuf, MPI_Count recvcount, MPI_Datatype datatype, MPI_Op op,
                                             MPI_Comm) {
  const auto reduction = session_.findReduction(op, datatype);
  if (!reduction) return notCovered();
  if (!areBuffers(sendbuf, recvbuf, recvcount)) return unusual();
  const auto count = static_cast<std::size_t>(recvcount);
  if (!isInPlace(sendbuf, recvbuf)) return koloReduceScatter(sendbuf, recvbuf, count, reduction->datatype, reduction->op, kolo_, nullptr);
  const std::size_t bytes = count * koloDataTypeSize(reduction->datatype);
  unsigned char* const mine = static_cast<unsigned char*>(recvbuf) + bytes * static_cast<std::size_t>(rank_);
  const koloResult_t result = koloReduceScatter(recvbuf, mine, count, reduction->datatype, reduction->op, kolo_, nullptr);
  if (result == koloSuccess && bytes != 0) std::memmove(recvbuf, mine, bytes);
  return result;
}

Outcome Accelerated::tryReduce_scatter(const void* sendbuf, void* recvbuf, Numbers recvcounts, MPI_Datatype datatype, MPI_Op op, MPI_Comm) {
  const auto reduction = session_.findReduction(op, datatype);
  if (!reduction) return notCovered();
  if (!areBlocks(recvcounts, recvcounts)) return unusual();
  std::vector<std::size_t> counts;
  std::size_t before = 0, total = 0;
  for (int i = 0; i < ranks_; ++i) {
    counts.push_back(static_cast<std::size_t>(recvcounts[i]));
    total += counts.back();
    if (i < rank_) before += counts.back();
  }
  const std::size_t size = koloDataTypeSize(reduction->datatype), bytes = counts[static_cast<std::size_t>(rank_)] * size;
  const bool inPlace = isInPlace(sendbuf, recvbuf);
  if (total != 0 && (sendbuf == nullptr || ((inPlace || bytes != 0) && !areBuffers(sendbuf, recvbuf, 1)))) return unusual();
  const void* const input = inPlace ? recvbuf : sendbuf;
  unsigned char* const output = static_cast<unsigned char*>(recvbuf) + (inPlace ? before * size : 0);
  const koloResult_t result =
      koloReduceScatterv(input, output, counts.data(), nullptr, reduction->datatype, reduction->op, kolo_, nullptr);
  if (result == koloSuccess && inPlace && bytes != 0) std::memmove(recvbuf, output, bytes);
  return result;
}

Outcome Accelerated::tryScan(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm) {
  return scan(sendbuf, recvbuf, count, datatype, op, true);
}

Outcome Accelerated::tryExscan(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, MPI_Comm) {
  return scan(sendbuf, recvbuf, count, datatype, op, false);
}

// To the rank that is so much higher, and from the one that is so much lower, where there are such.
koloResult_t Accelerated::shift(const void* send, void* recv, std::size_t bytes, int distance) const {
  koloResult_t result = koloGroupStart();
  if (result != koloSuccess) return result;
  if (rank_ + distance < ranks_) (void)koloSend(send, bytes, koloUint8, rank_ + distance, kolo_, nullptr);
  if (rank_ >= distance) (void)koloRecv(recv, bytes, koloUint8, rank_ - distance, kolo_, nullptr);
  return koloGroupEnd();   // with the first error
}

// By recursive doubling (Hillis and Steele, "Data parallel algorithms", 1986): after the step of distance d, `acc` is the fold of the 2d
// ranks that end with this one, and what arrives next that of the ranks before those. Operands stay in the order of the ranks.
Outcome Accelerated::scan(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op, bool isInclusive) {
  if (!isCovered(op, datatype)) return notCovered();
  if (!areBuffers(sendbuf, recvbuf, count)) return unusual();
  const auto extent = static_cast<std::size_t>(formOf(datatype).extent);
  const std::size_t bytes = static_cast<std::size_t>(count) * extent;
  if (bytes == 0) return koloSuccess;

  const auto arriving = std::make_unique_for_overwrite<unsigned char[]>(bytes);
  const auto copy = std::make_unique_for_overwrite<unsigned char[]>(isInclusive ? 0 : bytes);
  void* const acc = isInclusive ? recvbuf : copy.get();
  const void* const input = isInPlace(sendbuf, recvbuf) ? recvbuf : sendbuf;
  if (acc != input) std::memcpy(acc, input, bytes);
  for (int distance = 1; distance < ranks_; distance *= 2) {
    const koloResult_t result = shift(acc, arriving.get(), bytes, distance);
    if (result != koloSuccess) return result;
    if (rank_ < distance) continue;
    reduceLocal(arriving.get(), acc, count, extent, datatype, op);
    if (isInclusive) continue;
    if (distance == 1) {
      std::memcpy(recvbuf, arriving.get(), bytes);
    } else {
      reduceLocal(arriving.get(), recvbuf, count, extent, datatype, op);
    }
  }
  return koloSuccess;
}

}  // namespace kolo::mpi
