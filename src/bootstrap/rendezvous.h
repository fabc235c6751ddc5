// What join() and rendezvous() tell each other.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <kolo/kolo.h>

#include <string>

#include "base/status.h"
#include "bootstrap/wire.h"

namespace kolo::bootstrap {

// The host name that the addresses in this id come from, if it came from rendezvous() with a root that is named so;
// else empty.
std::string rootNameOf(const koloUniqueId& id, int rank);

// An attempt to join with this id is over. If the id came from rendezvous(): rank 0 takes its file away, and after a
// success the rank's next rendezvous of that job name is the next job. After a failure ranks that have not come yet are
// still to find the hub, and be told why. Returns how the attempt ended, and of one that waited in vain for ranks that
// were to come by the file, why they may not have found it.
Status finishRendezvous(const koloUniqueId& id, const Secret& secret, int rank, Status joined);

}  // namespace kolo::bootstrap
