// How a host thread polls for what another core writes.
#pragma once

namespace kolo::executor {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What a pause takes on this processor, in nanoseconds; measured once in the life of the process.
double pauseNs();

struct Polling {
  int polls = 1;  // in a round, before it lets others run
  // Between two polls. A pause leaves the pipeline to a sibling thread and keeps speculative loads of the polled line
  // from being in flight when it changes: an exchange of two lines took 48 ns instead of 66 between threads of a core
  // and 230 instead of 280 between cores (Zen 5). But where a pause is as long as the hop itself (Skylake: 140 cycles),
  // the message waits for it.
  bool pauses = false;

  // With a core for each rank a wait polls for some tens of microseconds before it lets others run; without, whoever is
  // waited for may need this very core. polls: the user's wish, or less than 0.
  static Polling make(bool everyRankHasACore, int polls);

  // Whether `arrived` became true within a round.
  template <class Arrived>
  bool until(Arrived arrived) const {
    for (int i = 0; i < polls; ++i) {
      if (arrived()) return true;
      if (pauses) pause();
    }
    return false;
  }
};

}  // namespace kolo::executor
