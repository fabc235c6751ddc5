// Barrier, and the collectives that calculate.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "mpi/accelerated.h"
#include "mpi/operations.h"

namespace kolo::mpi {
namespace {

// Call what is the same on all ranks.
Outcome notCovered() {
  return Outcome::declined("not a predefined operation on a predefined datatype of at most 16 bytes");
}

// MPI_IN_PLACE in the place of sendbuf is a pointer like any other here.
bool areBuffers(const void* sendbuf, const void* recvbuf, MPI_Count count) {
  if (count <= 0) return count == 0;
  return sendbuf != nullptr && recvbuf != nullptr && recvbuf != MPI_IN_PLACE &&
         (sendbuf != recvbuf || kTakesBufferTwice);
}

bool isInPlace(const void* sendbuf, const void* recvbuf) { return sendbuf == MPI_IN_PLACE || sendbuf == recvbuf; }

// inout = in op inout. The MPI counts in an int.
void reduceLocal(const void* in, void* inout, MPI_Count count, std::size_t elementBytes, MPI_Datatype datatype,
                 MPI_Op op) {
  constexpr MPI_Count kMost = 1 << 30;
  for (MPI_Count done = 0; done < count; done += kMost) {
    const std::size_t offset = static_cast<std::size_t>(done) * elementBytes;
    const int code =
        PMPI_Reduce_local(static_cast<const unsigned char*>(in) + offset, static_cast<unsigned char*>(inout) + offset,
                          static_cast<int>(std::min(kMost, count - done)), datatype, op);
    if (code != MPI_SUCCESS) throw MpiError{code};
  }
}

// To the rank that is so much higher, and from the one that is so much lower, where there are such.
koloResult_t shift(const Session& session, const void* send, void* recv, std::size_t bytes, int distance) {
  const int rank = session.rank();
  koloResult_t result = koloGroupStart();
  if (result != koloSuccess) return result;
  if (rank + distance < session.ranks())
    (void)koloSend(send, bytes, koloUint8, rank + distance, session.kolo(), nullptr);
  if (rank >= distance) (void)koloRecv(recv, bytes, koloUint8, rank - distance, session.kolo(), nullptr);
  return koloGroupEnd();  // with the first error
}

// A scan whose result is in recvbuf.
struct Scan {
  const Session& session;
  const void* input;
  void* recvbuf;
  MPI_Count count;
  MPI_Datatype datatype;
  MPI_Op op;
  bool isInclusive;

  std::size_t extent() const { return static_cast<std::size_t>(formOf(datatype).extent); }
  std::size_t bytes() const { return static_cast<std::size_t>(count) * extent(); }
  koloResult_t run() const;
};

// Call recursive doubling (Hillis and Steele, "Data parallel algorithms", 1986): after the step of distance d, `acc` is
// the fold of the 2d ranks that end with this one, and what arrives next that of the ranks before those. Operands stay
// in the order of the ranks.
koloResult_t Scan::run() const {
  const std::size_t bytes = this->bytes();
  if (bytes == 0) return koloSuccess;

  const auto arriving = std::make_unique_for_overwrite<unsigned char[]>(bytes);
  const auto copy = std::make_unique_for_overwrite<unsigned char[]>(isInclusive ? 0 : bytes);
  void* const acc = isInclusive ? recvbuf : copy.get();
  if (acc != input) std::memcpy(acc, input, bytes);
  for (int distance = 1; distance < session.ranks(); distance *= 2) {
    const koloResult_t result = shift(session, acc, arriving.get(), bytes, distance);
    if (result != koloSuccess) return result;
    if (session.rank() < distance) continue;
    reduceLocal(arriving.get(), acc, count, extent(), datatype, op);
    if (isInclusive) continue;
    if (distance == 1) {
      std::memcpy(recvbuf, arriving.get(), bytes);
    } else {
      reduceLocal(arriving.get(), recvbuf, count, extent(), datatype, op);
    }
  }
  return koloSuccess;
}

// The inputs of all ranks, folded when they are there: a scan that is one operation of Kolo's. One by messages would
// need a thread that takes its steps while the program calculates.
class Inputs {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // of all ranks

  explicit Inputs(const Scan& scan)
      : scan_(scan), all_(std::make_unique_for_overwrite<unsigned char[]>(
                         scan.bytes() * static_cast<std::size_t>(scan.session.ranks()))) {}
  unsigned char* data() const { return all_.get(); }
  void outliveTheCall() {}
  void store() const;

 private:
  unsigned char* of(int rank) const { return data() + scan_.bytes() * static_cast<std::size_t>(rank); }

  Scan scan_;
  std::unique_ptr<unsigned char[]> all_;
};

void Inputs::store() const {
  const int last = scan_.session.rank() - (scan_.isInclusive ? 0 : 1);
  if (last < 0 || scan_.bytes() == 0) return;
  for (int rank = last - 1; rank >= 0; --rank) {
    reduceLocal(of(rank), of(last), scan_.count, scan_.extent(), scan_.datatype, scan_.op);
  }
  std::memcpy(scan_.recvbuf, of(last), scan_.bytes());
}

}  // namespace

// Whether Kolo has the reduction, or the MPI calculates for it; in a nonblocking call, in any thread.
bool Accelerated::calculates(MPI_Op op, MPI_Datatype datatype) const {
  return isCovered(op, datatype) && (later_ == nullptr || session_.mayCalculateAnywhere() || isNative(op, datatype));
}

Outcome Accelerated::tryBarrier(MPI_Comm) {
  return carryOut([kolo = kolo_](const Call& call) { return call(koloBarrier, koloIbarrier, kolo); });
}

Outcome Accelerated::tryAllreduce(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                                  MPI_Comm) {
  if (!calculates(op, datatype)) return notCovered();
  if (!areBuffers(sendbuf, recvbuf, count)) return Outcome::refused();
  const void* const input = isInPlace(sendbuf, recvbuf) ? recvbuf : sendbuf;
  return carryOut([=, &session = session_](const Call& call) {
    return session.reduce(op, datatype, [&](const Reduction& its) {
      return call(koloAllReduce, koloIallReduce, input, recvbuf, static_cast<std::size_t>(count), its.datatype, its.op,
                  session.kolo());
    });
  });
}

Outcome Accelerated::tryReduce(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                               int root, MPI_Comm) {
  if (!calculates(op, datatype)) return notCovered();
  const bool isAtRoot = rank_ == root, inPlace = sendbuf == MPI_IN_PLACE;
  const bool isRight = isAtRoot ? areBuffers(sendbuf, recvbuf, count) && (sendbuf != recvbuf || count == 0)
                                : areBuffers(sendbuf, &count, count) && !inPlace;
  if (!isRoot(root) || !isRight) return Outcome::refused();
  const void* const input = inPlace ? recvbuf : sendbuf;
  void* const output = isAtRoot ? recvbuf : nullptr;
  return carryOut(
      [=, &session = session_](const Call& call) {
        return session.reduce(op, datatype, [&](const Reduction& its) {
          return call(koloReduce, koloIreduce, input, output, static_cast<std::size_t>(count), its.datatype, its.op,
                      root, session.kolo());
        });
      },
      !isAtRoot);
}

// In place, MPI takes the input from recvbuf, wants the result at its beginning, and leaves the rest as it was. Kolo
// would put the result where this rank's block of the input is; so it gets memory of its own for that.
Outcome Accelerated::tryReduce_scatter_block(const void* sendbuf, void* recvbuf, MPI_Count recvcount,
                                             MPI_Datatype datatype, MPI_Op op, MPI_Comm) {
  if (!calculates(op, datatype)) return notCovered();
  if (!areBuffers(sendbuf, recvbuf, recvcount)) return Outcome::refused();
  const auto count = static_cast<std::size_t>(recvcount);
  auto scatter = [=, &session = session_](const Call& call, const void* input, void* output) {
    return session.reduce(op, datatype, [&](const Reduction& its) {
      return call(koloReduceScatter, koloIreduceScatter, input, output, count, its.datatype, its.op, session.kolo());
    });
  };
  if (!isInPlace(sendbuf, recvbuf)) {
    return carryOut([=, scatter = std::move(scatter)](const Call& call) { return scatter(call, sendbuf, recvbuf); });
  }
  return carryOut(Nothing(), ownResult(recvbuf, recvcount, datatype),
                  [=, scatter = std::move(scatter)](const Call& call, const Nothing&, const Region& result) {
                    return scatter(call, recvbuf, result.data());
                  });
}

Outcome Accelerated::tryReduce_scatter(const void* sendbuf, void* recvbuf, Numbers recvcounts, MPI_Datatype datatype,
                                       MPI_Op op, MPI_Comm) {
  if (!calculates(op, datatype)) return notCovered();
  if (!areBlocks(recvcounts, recvcounts)) return Outcome::refused();
  std::vector<std::size_t> counts;
  counts.reserve(static_cast<std::size_t>(ranks_));
  std::size_t total = 0;
  for (int i = 0; i < ranks_; ++i) {
    counts.push_back(static_cast<std::size_t>(recvcounts[i]));
    total += counts.back();
  }
  const MPI_Count mine = recvcounts[rank_];
  const bool inPlace = isInPlace(sendbuf, recvbuf);
  if (total != 0 && (sendbuf == nullptr || ((inPlace || mine != 0) && !areBuffers(sendbuf, recvbuf, 1)))) {
    return Outcome::refused();
  }
  auto scatter = [=, counts = std::move(counts), &session = session_](const Call& call, const void* input,
                                                                      void* output) {
    return session.reduce(op, datatype, [&](const Reduction& its) {
      return call(koloReduceScatterv, koloIreduceScatterv, input, output, counts.data(), nullptr, its.datatype, its.op,
                  session.kolo());
    });
  };
  if (!inPlace)
    return carryOut([=, scatter = std::move(scatter)](const Call& call) { return scatter(call, sendbuf, recvbuf); });
  return carryOut(Nothing(), ownResult(recvbuf, mine, datatype),
                  [=, scatter = std::move(scatter)](const Call& call, const Nothing&, const Region& result) {
                    return scatter(call, recvbuf, result.data());
                  });
}

// Memory for numbers that go to recvbuf when all is over, with what pairs have between their parts.
Region Accelerated::ownResult(void* recvbuf, MPI_Count count, MPI_Datatype datatype) const {
  return Region(elements(recvbuf, MPI_BYTE), count * formOf(datatype).extent, true);
}

Outcome Accelerated::tryScan(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                             MPI_Comm) {
  return scan(sendbuf, recvbuf, count, datatype, op, true);
}

Outcome Accelerated::tryExscan(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                               MPI_Comm) {
  return scan(sendbuf, recvbuf, count, datatype, op, false);
}

// The MPI calculates for it in any case: in the call, or when it is completed.
Outcome Accelerated::scan(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                          bool isInclusive) {
  if (!isCovered(op, datatype)) return notCovered();
  if (!areBuffers(sendbuf, recvbuf, count)) return Outcome::refused();
  const void* const input = isInPlace(sendbuf, recvbuf) ? recvbuf : sendbuf;
  const Scan its{session_, input, recvbuf, count, datatype, op, isInclusive};
  if (later_ == nullptr) return carryOut([its](const Call&) { return its.run(); });
  if (its.bytes() > Inputs::kMostBytes / static_cast<std::size_t>(ranks_)) {
    return Outcome::declined("a nonblocking scan of more than 1 MiB of all ranks together");
  }
  return carryOut(Nothing(), Inputs(its), [its](const Call& call, const Nothing&, const Inputs& inputs) {
    return call(koloAllGather, koloIallGather, its.input, inputs.data(), its.bytes(), koloUint8, its.session.kolo());
  });
}

}  // namespace kolo::mpi
