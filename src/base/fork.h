// What a fork leaves of the library in the child. The child of a process that has something *in use*, such as a
// communicator, or a call that may have a lock, cannot use the library: its calls are refused before they wait for
// anything. Another child begins anew.
//
// Thread safety: all from any thread.
#pragma once

#include <atomic>

#include "base/status.h"

namespace kolo {

// While it lives, the library is in use: a communicator, a member of a job, a call that makes one or needs what the
// process has once.
class InUse {
 public:
  InUse();
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
};

// Whether this process was forked from one in which the library was in use.
bool isForkedInUse();
// koloInvalidUsage, if it was.
Status refuseIfForkedInUse();
// Changes in each forked child: what was made under another number belongs to the parent.
unsigned forkGeneration();

// The process's one object of a kind. It is never destroyed, for threads may run while the process exits. A forked
// child makes its own: a lock of the parent's may be held for ever.
template <class T>
T& ofThisProcess() {
  struct Made {
    T object;
    unsigned generation;
    Made* parents;  // still reachable, so that it counts as no leak
  };
  static constinit std::atomic<Made*> made{nullptr};
  Made* have = made.load(std::memory_order_acquire);  // [made] sees the whole object
  while (have == nullptr || have->generation != forkGeneration()) {
    auto* const fresh = new Made{.object = T(), .generation = forkGeneration(), .parents = have};
    if (made.compare_exchange_strong(have, fresh, std::memory_order_acq_rel)) return fresh->object;  // [made]
    delete fresh;
  }
  return have->object;
}

}  // namespace kolo
