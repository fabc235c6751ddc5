#include "perf/statistics.h"

#include <algorithm>
#include <cmath>

namespace kolo::perf {

Summary summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  const double median = n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
  const size_t p99 = (n * 99 + 99) / 100 - 1;  // nearest rank: ceil(0.99 n), counted from 1
  return {.min = samples.front(), .median = median, .p99 = samples[p99], .max = samples.back()};
}

std::vector<double> slowestRank(const std::vector<double>& perRank, size_t ranks, size_t samples) {
  std::vector<double> slowest(perRank.begin(), perRank.begin() + static_cast<std::ptrdiff_t>(samples));
  for (size_t rank = 1; rank < ranks; ++rank) {
    for (size_t i = 0; i < samples; ++i) slowest[i] = std::max(slowest[i], perRank[rank * samples + i]);
  }
  return slowest;
}

Schedule scheduleFor(double callUs, size_t iterations, double batchUs) {
  const double us = std::max(callUs, 1e-3);
  Schedule schedule;
  schedule.batch = std::clamp<size_t>(static_cast<size_t>(std::ceil(std::min(batchUs / us, 1e6))), 1, kMaxBatch);
  if (iterations > 0) {
    schedule.batch = std::clamp(schedule.batch, (iterations + kMostSamples - 1) / kMostSamples, iterations);
    schedule.samples = iterations / schedule.batch;
    return schedule;
  }
  const double fit = kBudgetUs / (us * static_cast<double>(schedule.batch));
  schedule.samples =
      static_cast<size_t>(std::clamp(fit, static_cast<double>(kMinSamples), static_cast<double>(kMaxSamples)));
  return schedule;
}

}  // namespace kolo::perf
