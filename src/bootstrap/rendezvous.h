// What join() and rendezvous() tell each other.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <kolo/kolo.h>

#include <string>

namespace kolo::bootstrap {

// An attempt to join with this id is over. If the id came from rendezvous(): rank 0 takes its file away, and after a
// success the rank's next rendezvous of that job name is the next job.
void finishRendezvous(const koloUniqueId& id, int rank, bool joined);

}  // namespace kolo::bootstrap
