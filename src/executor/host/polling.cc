#include "executor/host/polling.h"

#include <algorithm>
#include <chrono>

namespace kolo::executor {
namespace {

constexpr int kRoundNs = 20'000;
constexpr int kPollsWithoutPause = 20'000;  // of about a nanosecond
constexpr int kPollsWithoutACore = 50;
constexpr double kLongestPauseNs = 35;

double measurePauseNs() {
  constexpr int kRepeats = 5, kPauses = 64;
  double least = 1e9;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kPauses; ++i) pause();
    const std::chrono::duration<double, std::nano> all = std::chrono::steady_clock::now() - begin;
    least = std::min(least, all.count() / kPauses);
  }
  return least;
}

}  // namespace

double pauseNs() {
  static const double measured = measurePauseNs();
  return measured;
}

Polling Polling::make(bool everyRankHasACore) {
  Polling polling;
  polling.pauses = everyRankHasACore && pauseNs() <= kLongestPauseNs;
  if (!everyRankHasACore) {
    polling.polls = kPollsWithoutACore;
  } else if (!polling.pauses) {
    polling.polls = kPollsWithoutPause;
  } else {
    polling.polls = static_cast<int>(kRoundNs / std::max(pauseNs(), 1.0));
  }
  return polling;
}

}  // namespace kolo::executor
