// From samples to figures, and how many samples to take.
//
// Thread safety: free functions without state, from any thread.
#pragma once

#include <cstddef>
#include <vector>

namespace kolo::perf {

struct Summary {
  double min = 0;
  double median = 0;
  double p99 = 0;  // the smallest sample that at least 99 of 100 samples do not exceed
  double max = 0;
};

// REQUIRES: samples not empty
Summary summarize(std::vector<double> samples);

// perRank holds `samples` values of rank 0, then of rank 1, ...; the result is the largest over the ranks for each
// sample.
std::vector<double> slowestRank(const std::vector<double>& perRank, size_t ranks, size_t samples);

// A sample is the time of `batch` calls back to back, divided by batch.
struct Schedule {
  size_t batch = 1;
  size_t samples = 1;
};

// A batch lasts at least so long, so that neither the timer nor the unequal start of the ranks is seen in it; on a GPU,
// nor the wait for its stream.
constexpr double kBatchUs = 20.0;
constexpr double kGpuBatchUs = 1000.0;
constexpr size_t kMaxBatch = 256;
// What one size may take where the caller gave no number of iterations, and the fewest and most samples then.
constexpr double kBudgetUs = 150e3;
constexpr size_t kMinSamples = 5;
constexpr size_t kMaxSamples = 2000;
// The most where the caller did: more calls make longer batches, for the samples of all ranks are kept until the
// figures are made.
constexpr size_t kMostSamples = 10'000;

// callUs: an estimate of one call. iterations: the calls asked for, or 0 to let the budget decide. With iterations
// given, batch * samples is the largest multiple of batch that does not exceed it, and at least 1.
Schedule scheduleFor(double callUs, size_t iterations, double batchUs = kBatchUs);

}  // namespace kolo::perf
