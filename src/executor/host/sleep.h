// A rank that waits for peers which write into its memory sleeps until one of them has.
//
// The rank says so in a word that its peers see. A peer that has written something for the rank looks at that word
// next, and wakes the rank.
//
// Memory order [asleep]: the writer needs no barrier between its store and its look. The rank that is to sleep sets the
// word, makes the writers' threads pass a barrier, and then looks once more for what it waits for. A writer that passes
// the barrier before its look sees the word. One that passes it behind its look has stored before, and the rank finds
// what it stored.
//
// A sandbox may forbid the barrier. The rank may then miss a writer, and wakes when its time is over.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/atomics.h"

namespace kolo::executor {

// A word that is not 0 while its rank sleeps, or is about to. The rank alone sets it; who wakes the rank clears it.
using AsleepWord = device::Counter;

// Whether the rank may sleep now: it has said before that it would, and has looked in vain since. Otherwise it says so
// now, is to look again, and then to ask again.
bool maySleep(AsleepWord& word);
// Until somebody has woken the rank, or for so long.
void sleep(AsleepWord& word, std::int64_t ns);

void wake(AsleepWord& word);
// By who has just written something for the rank.
inline void wakeIfAsleep(AsleepWord& word) {
  std::atomic_signal_fence(std::memory_order_seq_cst);  // [asleep] the compiler, too, keeps the look behind the store
  if (device::loadRelaxed(word) != 0) [[unlikely]]
    wake(word);
}

}  // namespace kolo::executor
