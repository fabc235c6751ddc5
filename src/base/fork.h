// What a fork leaves of the library in the child. The child of a process that has something *in use*, such as a
// communicator, or a call that may have a lock, cannot use the library: its calls are refused before they wait for
// anything. Another child begins anew.
//
// Thread safety: all from any thread.
#pragma once

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
// Called in each child that begins anew: what belongs to the parent is forgotten. It must take no lock that the parent
// may have had. Returns 0, for the initialisation of a constant.
int beginAnewBy(void (*forget)());

}  // namespace kolo
