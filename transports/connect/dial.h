// Finds a way to a peer: tries the places where it may be, the best first and the next ones soon after, and takes the
// first that is proven.
//
// Thread safety: all functions, from any thread.
#pragma once

#include "attempt.h"

namespace kolo::connect {

struct Dialled {
  Decision decision = Decision::kHave;
  std::vector<Socket> rails;  // if kTaken
  Key key;                    // of the first of them
  Place place;
};

// OK: the peer has decided; unless kTaken, it has a way already or makes one. UNREACHABLE: each place that was tried is
// in the explanation. Takes until the deadline at most.
int dial(const Party& self, const Address& peer, Clock::time_point deadline, const Why& why, Dialled* dialled);

// The peer has said that it makes the connection, and the time is over. ERROR, with this process's own part in that: it
// may have refused the peer for want of file descriptors.
int failUncalled(const Party& self, const Why& why, std::uint32_t peer);

}  // namespace kolo::connect
