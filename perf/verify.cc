#include "perf/verify.h"

#include <algorithm>
#include <cstring>

#include "common/collectives.h"
#include "perf/failure.h"
#include "perf/names.h"
#include "perf/patterns.h"

namespace kolo::perf {
namespace {

// What memory holds that the collective is not to write. As a float it is an odd number, as a bool it is illegal.
constexpr int kPoison = 0xa5;

struct Area {
  std::byte* begin;
  size_t bytes;
};

Area guarded(const Area& area) { return {area.begin - kGuardBytes, area.bytes + 2 * kGuardBytes}; }

size_t countUnpoisoned(const std::byte* at, size_t bytes) {
  return bytes - static_cast<size_t>(std::count(at, at + bytes, static_cast<std::byte>(kPoison)));
}

class Verification {
 public:
  Verification(const Operation& operation, const Shape& shape, Ranks ranks, const Buffers& buffers)
      : operation_(operation), shape_(shape), ranks_(ranks), at_(place(operation, shape, ranks, buffers)),
        elementBytes_(koloDataTypeSize(operation.datatype)), reduces_(rowOf(operation.collective).folds),
        seed_(shape.bytes * 31 + static_cast<size_t>(operation.collective)),
        written_(at_.inPlace ? Area{buffers.recv(), shape.bytes} : Area{at_.recv, at_.recvElements * elementBytes_}),
        writtenView_(buffers.device(), guarded(written_).begin, guarded(written_).bytes),
        sentView_(buffers.device(), at_.send, at_.sendElements * elementBytes_) {}

  const Placement& placement() const { return at_; }

  void prepare() const {
    std::memset(writtenView_.of(guarded(written_).begin), kPoison, guarded(written_).bytes);
    writtenView_.upload();
    fill(sentView_.of(at_.send), at_.sendElements, elementBytes_, sentBy(ranks_.self),
         0);  // in place over some of the poison
    sentView_.upload();
  }

  size_t wrong() const {
    writtenView_.download();
    size_t count = countUnpoisoned(writtenView_.of(guarded(written_).begin), kGuardBytes) +
                   countUnpoisoned(writtenView_.of(written_.begin + written_.bytes), kGuardBytes);
    if (!at_.inPlace) {
      sentView_.download();
      count += countWrong(sentView_.of(at_.send), at_.sendElements, operation_.datatype, sentBy(ranks_.self), 0,
                          Compare::kBytes);
    }
    return at_.recvElements > 0 ? count + wrongResult() : count;
  }

 private:
  Table sentBy(int rank) const {
    if (reduces_) return operandTable(operation_.datatype, operation_.op, rank, ranks_.count, seed_);
    return movedTable(operation_.datatype, rank, seed_);
  }

  size_t wrongIn(size_t block, size_t elements, const Table& expected, size_t phase) const {
    return countWrong(writtenView_.of(at_.recv) + block * shape_.count * elementBytes_, elements, operation_.datatype,
                      expected, phase, reduces_ ? Compare::kNumbers : Compare::kBytes);
  }

  // The block of every rank, each of which starts at `phase` of that rank's pattern.
  size_t wrongBlocks(size_t phase) const {
    size_t count = 0;
    for (int rank = 0; rank < ranks_.count; ++rank) {
      count += wrongIn(static_cast<size_t>(rank), shape_.count, sentBy(rank), phase);
    }
    return count;
  }

  size_t wrongResult() const {
    const CollectiveRow& row = rowOf(operation_.collective);
    const size_t own = static_cast<size_t>(ranks_.self) * shape_.count;
    const size_t phase = row.sends == CollectiveRow::Blocks::kEach ? own : 0;
    if (row.receives == CollectiveRow::Blocks::kEach) return wrongBlocks(phase);
    const int giver = row.isRooted() ? operation_.root : (ranks_.self + ranks_.count - 1) % ranks_.count;
    return wrongIn(0, shape_.count, row.folds ? folded() : sentBy(giver), phase);
  }

  Table folded() const { return foldedTable(operation_.datatype, operation_.op, ranks_.count, seed_); }

  Operation operation_;
  Shape shape_;
  Ranks ranks_;
  Placement at_;
  size_t elementBytes_;
  bool reduces_;
  size_t seed_;
  // In place the collective may write anywhere in the shared memory, unless the interface keeps the rest; out of place
  // only what it receives.
  Area written_;
  HostView writtenView_, sentView_;
};

}  // namespace

size_t runVerified(const Operation& operation, const Shape& shape, Ranks ranks, const Buffers& buffers, koloComm_t comm,
                   Exchange& exchange) {
  if (operation.collective == koloCollectiveBarrier) return 0;
  const Verification verification(operation, shape, ranks, buffers);
  verification.prepare();
  // Zero-copy peers read and write these buffers as soon as they enter; nobody may enter before all have filled theirs.
  exchange.barrier();
  check(runOnce(operation, shape, verification.placement(), ranks, comm, buffers.device().stream()),
        koloCollectiveName(operation.collective));
  exchange.finish();
  return verification.wrong();
}

}  // namespace kolo::perf
