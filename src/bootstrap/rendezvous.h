// What join() and rendezvous() tell each other.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <kolo/kolo.h>

#include <optional>
#include <string>

#include "base/status.h"
#include "bootstrap/dial.h"
#include "bootstrap/published.h"
#include "bootstrap/socket.h"
#include "bootstrap/wire.h"

namespace kolo::bootstrap {

// Where the user or the launcher said that rank 0 listens, if the id came from rendezvous() with a root; else empty.
Root rootOf(const koloUniqueId& id, int rank);

// Of a rank that cannot even reach the hub, where ranks meet by a file: it leaves word in another one, and waits for a
// moment until rank 0 has taken that.
void leaveWord(const koloUniqueId& id, int rank, const Status& why, int timeoutMs);
// For rank 0, while it waits for the others: what one of them has left. Each word once.
std::optional<PublishedFailure> takeWord(const koloUniqueId& id, int rank);

// How long this rank, which cannot go on, tries to say so to the others: up to `limit`, and no longer than joining may
// take. The log says that, too.
Clock::duration timeToTell(const Status& why, int rank, Clock::duration limit, int timeoutMs);

// An attempt to join with this id is over. If the id came from rendezvous(): rank 0 takes its file away, and after a
// success the rank's next rendezvous of that job name is the next job. After a failure ranks that have not come yet are
// still to find the hub, and be told why. Returns how the attempt ended, and of one that waited in vain for ranks that
// were to come by the file, why they may not have found it.
Status finishRendezvous(const koloUniqueId& id, const Secret& secret, int rank, Status joined);

}  // namespace kolo::bootstrap
