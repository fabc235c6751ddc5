// Whether others take turns with this rank on its core: mostly ranks of this job, which are more than there are cores.
// They may be on this host, or in containers that count as hosts of their own. It is told by how long a yield takes.
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
    if (ns >= kSliceNs) {
      score_ = 0;
    } else {
      score_ = std::clamp(score_ + (ns >= kTurnNs ? 1 : -1), 0, kMostScore);
    }
  }
  // The last yields say so. To yield then costs no more than what the others do next, which this rank waits for anyway.
  bool isLikely() const { return score_ >= kEnough; }

 private:
  // A yield to nobody is one system call, and well below this limit. A yield to another rank takes two switches between
  // threads and that rank's look at its peers, and is mostly above it.
  static constexpr std::int64_t kTurnNs = 2'000;
  // Another thread took all that the scheduler allows at a time, which is more than this: a thread that computes, and
  // gives back nothing in return for the yield.
  static constexpr std::int64_t kSliceNs = 500'000;
  static constexpr int kEnough = 4, kMostScore = 8;
  int score_ = 0;
};

}  // namespace kolo::waiting
