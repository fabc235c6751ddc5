// Whether this rank's core is also that of others who take turns on it as it does: ranks of this job, mostly, more of them than there are
// cores, whether they say that they are on this host or, in containers, on hosts of their own. Told by how long a yield takes.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace kolo::comm {

class CoreSharing {
 public:
  // A yield took so long.
  void yielded(std::int64_t ns) {
    leastNs_ = std::min(leastNs_, ns);
    if (ns >= kSliceNs) {
      score_ = 0;
    } else {
      score_ = std::clamp(score_ + (ns >= turnNs() ? 1 : -1), -kMostScore, kMostScore);
    }
  }
  // The last yields say so. To yield then costs no more than what the others do next, which this rank waits for anyway.
  bool isLikely() const { return score_ >= kEnough; }
  // For some time nobody else has been there.
  bool isUnlikely() const { return score_ == -kMostScore; }

 private:
  // Nobody else was there: 0.2 to 0.6 us. Two switches and another rank's look at its peers: 3 us and more.
  static constexpr std::int64_t kTurnNs = 2'000;
  // A slow machine, an emulated one say, takes longer for a yield to nobody, as one at least of them has shown.
  static constexpr std::int64_t kSlowestNs = 2'500;
  std::int64_t turnNs() const { return leastNs_ <= kSlowestNs ? std::max(kTurnNs, 3 * leastNs_) : kTurnNs; }

  // Somebody took all that the scheduler allows at a time, 0.7 ms or more: who computes gives nothing back for what it is left.
  static constexpr std::int64_t kSliceNs = 500'000;
  static constexpr int kEnough = 4, kMostScore = 8;
  int score_ = 0;
  std::int64_t leastNs_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace kolo::comm
