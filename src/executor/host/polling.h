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
  // from being in flight when it changes, so that the line comes sooner. But on processors where a pause is as long as
  // the way of a line between two cores, the message waits for it.
  bool pauses = false;

  // With a core for each rank, a wait polls for a while before it lets others run. Without, the rank that is waited for
  // may need this very core.
  static Polling make(bool everyRankHasACore);

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
