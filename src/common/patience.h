// How a thread that looks again and again for what others do leaves the core between two looks. It yields at first.
// Then it sleeps, for a 64th of the time that it has waited, and 4 ms at most: a long wait takes about 1% of a core,
// and what ends it is noticed at most that much later.
//
// Thread safety: one thread at a time.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "common/clock.h"

namespace kolo {

inline constexpr std::int64_t kLeastNapNs = 50'000, kMostNapNs = 4'000'000;

// Of a thread that has waited for so long.
inline std::int64_t napNs(std::int64_t waitedNs) { return std::clamp(waitedNs / 64, kLeastNapNs, kMostNapNs); }

// mostNs: of a thread that others may need soon.
inline void nap(std::int64_t waitedNs, std::int64_t mostNs = kMostNapNs) {
  const timespec time{0, std::min(napNs(waitedNs), mostNs)};
  nanosleep(&time, nullptr);
}

// One wait.
class Patience {
 public:
  explicit Patience(std::int64_t mostNs = kMostNapNs) : mostNs_(mostNs) {}

  void rest() {
    if (++rounds_ < kYields) {
      sched_yield();
      return;
    }
    const std::int64_t now = nowNs();
    if (sinceNs_ == 0) sinceNs_ = now;
    nap(now - sinceNs_, mostNs_);
  }
  // It has not slept yet.
  bool yields() const { return rounds_ < kYields; }
  // Every other time, instead() takes the place of that if it is true.
  template <class Instead>
  void restOr(const Instead& instead) {
    if (rounds_ % 2 == 0 || !instead()) return rest();
    ++rounds_;
  }

 private:
  static constexpr int kYields = 100;
  std::int64_t mostNs_;
  std::int64_t sinceNs_ = 0;
  int rounds_ = 0;
};

}  // namespace kolo
