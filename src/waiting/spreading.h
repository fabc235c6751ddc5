// Ranks that share cores, evenly on them. The scheduler balances only a tenth of a second after the ranks have come out
// of their last sleep, which is longer than many programs run between two: until then, of four ranks on two cores,
// three may have taken turns on one. Each rank says where it runs, and one that waits where more are than elsewhere
// goes there, and stays free to be moved again.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace kolo::waiting {

class Spreading {
 public:
  // Whether it is time to look where all are. Rarely after the first times: then the scheduler has its own view, which
  // may be a better one.
  bool isDue(std::int64_t nowNs) {
    if (nowNs < nextNs_) return false;
    nextNs_ = nowNs + intervalNs_;
    intervalNs_ = std::min(2 * intervalNs_, kMostNs);
    return true;
  }

  // Where a rank should go: of the hardware threads in `allowed`, ascending, one with at least two ranks fewer than its
  // own; -1: it stays. Of those on one thread only the last goes, so that not all do. threadOf: of each rank, -1:
  // unknown, and then all stay.
  static int target(std::span<const int> threadOf, int rank, std::span<const int> allowed) {
    if (std::find(threadOf.begin(), threadOf.end(), -1) != threadOf.end()) return -1;
    const int own = threadOf[static_cast<std::size_t>(rank)];
    const auto after = threadOf.subspan(static_cast<std::size_t>(rank) + 1);
    if (std::find(after.begin(), after.end(), own) != after.end()) return -1;
    const auto ranksOn = [&](int thread) { return std::count(threadOf.begin(), threadOf.end(), thread); };
    const auto best =
        std::min_element(allowed.begin(), allowed.end(), [&](int a, int b) { return ranksOn(a) < ranksOn(b); });
    return best != allowed.end() && ranksOn(*best) + 2 <= ranksOn(own) ? *best : -1;
  }

 private:
  static constexpr std::int64_t kMostNs = 64'000'000;
  std::int64_t intervalNs_ = 1'000'000;
  std::int64_t nextNs_ = 0;
};

}  // namespace kolo::waiting
