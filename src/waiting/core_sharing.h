// Whether this rank's core is also that of others who take turns on it as it does: ranks of this job, mostly, more of
// them than there are cores, whether they say that they are on this host or, in containers, on hosts of their own. Told
// by how long a yield takes.
//
// Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kolo::waiting {

class CoreSharing {
 public:
  // A yield took so long.
  void yielded(std::int64_t ns) {
    alone_ = ns < kAloneNs ? std::min(alone_ + 1, kEnoughAlone) : 0;
    if (ns >= kSliceNs) {
      score_ = 0;
    } else {
      score_ = std::clamp(score_ + (ns >= kTurnNs ? 1 : -1), 0, kMostScore);
    }
  }
  // The last yields say so. To yield then costs no more than what the others do next, which this rank waits for anyway.
  bool isLikely() const { return score_ >= kEnough; }
  // The last yields found nobody else there, each of them.
  bool isUnlikely() const { return alone_ == kEnoughAlone; }
  // Who comes to the core is not noticed for a while.
  void sleeps() { alone_ = 0; }

 private:
  // Nobody else was there: 0.2 to 0.6 us. Two switches and another rank's look at its peers: from 1.8 us on without a
  // system call, else 3 us and more.
  static constexpr std::int64_t kAloneNs = 1'000, kTurnNs = 2'000;
  // Somebody took all that the scheduler allows at a time, 0.7 ms or more: who computes gives nothing back for what it
  // is left.
  static constexpr std::int64_t kSliceNs = 500'000;
  static constexpr int kEnough = 4, kMostScore = 8, kEnoughAlone = 8;
  int score_ = 0, alone_ = 0;
};

}  // namespace kolo::waiting
