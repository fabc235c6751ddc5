// The rank's side of connecting: tries the id's addresses, and proves and checks the secret.
//
// Thread safety: all functions, from any thread; they block, on the calling thread.
#pragma once

#include <algorithm>
#include <string>

#include "bootstrap/interrupt.h"
#include "bootstrap/unique_id.h"

namespace kolo::bootstrap {

struct Dialled {
  Socket socket;
  Session session;
  std::string where;  // the hub's address and port
};

// Where something else has the root's port rank 0 listens at the next one that is free, and the other ranks look at all
// of these.
constexpr int kRootPorts = 5;
inline int lastRootPort(int port) { return std::min(port + kRootPorts - 1, 65535); }

// Where rank 0 was said to listen, for an id with an explicit root.
struct Root {
  std::string text;  // "host:5000"
  std::string from;  // the variable that says so
  std::string name;  // the host name that the addresses are of; empty: the root is a literal address
};

// koloUnreachable (address:port and why, for every address), koloMismatch (protocol versions, both printed),
// koloSystemError (this process's own system refuses it sockets or connections). A host
// that is out of reach, and a connection that times out or is closed in the handshake, is tried until the deadline.
// Refused connections are retried for about 2 s. If the root was named by the user, refused connections and connections
// to something else than Kolo are retried until the deadline: rank 0 may begin to listen there later. A root's name is
// looked up again, for it may mean another host soon.
Result<Dialled> dial(const IdContents& id, Clock::time_point deadline, const Root& root = {},
                     const Interrupt* interrupt = nullptr);

// Sends one frame, on the calling thread. False: it could not be sent by the deadline.
bool tell(Dialled& dialled, std::string_view frame, Clock::time_point deadline);

// Whether the hub of this id answers at one of its addresses.
bool answers(const IdContents& id, Clock::time_point deadline);

}  // namespace kolo::bootstrap
