#include "perf/exchange.h"

#include <algorithm>
#include <numeric>

#include "perf/failure.h"

namespace kolo::perf {
namespace {

size_t countOf(koloComm_t comm) {
  int count = 0;
  check(koloCommCount(comm, &count), "koloCommCount");
  return static_cast<size_t>(count);
}

}  // namespace

Exchange::Exchange(koloComm_t comm, const Device& device)
    : comm_(comm), device_(device), ranks_(countOf(comm)), own_(device.allocate(kPiece * sizeof(double))),
      all_(device.allocate(ranks_ * kPiece * sizeof(double))) {}

Exchange::~Exchange() {
  if (isFailing()) return;
  device_.free(own_);
  device_.free(all_);
}

void Exchange::finish() {
  device_.synchronize();
  koloResult_t result = koloSuccess;
  check(koloCommGetAsyncError(comm_, &result), "koloCommGetAsyncError");
  check(result, "after the stream's end", comm_);
}

void Exchange::barrier() {
  check(koloBarrier(comm_, device_.stream()), "koloBarrier");
  finish();
}

std::vector<double> Exchange::gather(const std::vector<double>& own) {
  std::vector<double> all(ranks_ * own.size()), piece(ranks_ * std::min(own.size(), kPiece));
  for (size_t begin = 0; begin < own.size(); begin += kPiece) {
    const size_t count = std::min(kPiece, own.size() - begin);
    device_.copyToDevice(own_, reinterpret_cast<const std::byte*>(own.data() + begin), count * sizeof(double));
    check(koloAllGather(own_, all_, count, koloFloat64, comm_, device_.stream()), "koloAllGather of samples");
    finish();
    device_.copyToHost(reinterpret_cast<std::byte*>(piece.data()), all_, ranks_ * count * sizeof(double));
    for (size_t rank = 0; rank < ranks_; ++rank) {
      std::copy_n(piece.data() + rank * count, count, all.data() + rank * own.size() + begin);
    }
  }
  return all;
}

double Exchange::greatest(double own) {
  const std::vector<double> all = gather({own});
  return *std::max_element(all.begin(), all.end());
}

double Exchange::sum(double own) {
  const std::vector<double> all = gather({own});
  return std::accumulate(all.begin(), all.end(), 0.0);
}

}  // namespace kolo::perf
