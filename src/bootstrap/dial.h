// The rank's side of connecting: tries the id's addresses, and proves and checks the secret.
//
// Thread safety: all functions, from any thread; they block, on the calling thread.
#pragma once

#include "bootstrap/unique_id.h"

namespace kolo::bootstrap {

struct Dialled {
  Socket socket;
  Session session;
};

// koloUnreachable (address:port and why, for every address), koloMismatch (protocol versions, both printed),
// koloSystemError (this process's own system refuses it sockets or connections). A host
// that is out of reach, and a connection that times out or is closed in the handshake, is tried until the deadline.
// Refused connections are retried for about 2 s, until the deadline if the root was named by the user. rootName: the
// name that the addresses are of, to be asked for again, for it may mean another host soon; empty: there is none.
Result<Dialled> dial(const IdContents& id, Clock::time_point deadline, const std::string& rootName = {});

// Sends one frame, on the calling thread. False: it could not be sent by the deadline.
bool tell(Dialled& dialled, std::string_view frame, Clock::time_point deadline);

// Whether the hub of this id answers at one of its addresses.
bool answers(const IdContents& id, Clock::time_point deadline);

}  // namespace kolo::bootstrap
