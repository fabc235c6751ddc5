// One rank of a communicator, in its part of dialling the others and being dialled by them: its address blob, and its
// place in this process's listener.
//
// Thread safety: as the transport table demands: one party from one thread at a time, different ones concurrently.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "../common/member.h"
#include "listener.h"

namespace kolo::connect {

// As KOLO_SILENCE_MS.
int silenceOf(const koloTransportHost& host);

// A KOLO_... setting as text, which ends with a zero and stays as long as the host does; empty: there is none.
std::string_view settingOf(const koloTransportHost& host, const char* name);

struct Wishes {
  const char* purpose;          // of the transport, for its key
  std::string_view interfaces;  // as KOLO_TCP_INTERFACES
  std::string_view ports;       // as KOLO_PORT_RANGE
  int rails;                    // connections to each peer; 0: by the network's speed
};

struct Party : Member {
  Address address;
  std::vector<Place> own;                // of this host, also those that no peer is told
  Place best;                            // of those that they are told
  int silenceMs;                         // how long a peer's host may be silent
  std::optional<network::Address> only;  // at which it listens; nothing: at all
  Listener* listener = nullptr;          // null: nobody dials it

  // How long a device waits at its end for peers to take what it has sent: longer than for a link, since the peers may
  // be busy with something else.
  int closingMs() const { return 2 * timeoutMs; }
};

// The callee may be called from now on until closeParty().
int openParty(const koloTransportHost& host, const Wishes& wishes, Callee* callee, Party* party, const Why& why);
void closeParty(Party& party);

// A peer's blob, checked: whole, of this version, and proven.
int readAddress(const Party& party, const koloTransportBlob& blob, const Why& why, Address* address);

// The place of this host through which a connection goes; null: unknown.
const Place* placeOf(const Party& party, const Socket& socket);

// Connections between the two, known to both alike.
std::size_t railsBetween(const Address& a, const Address& b);

}  // namespace kolo::connect
