// Which ranks are on one host, as far as memory goes: those that reach each other by mapped links; in which order rings
// go; and which NICs are for whom.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "links/grid.h"
#include "links/peers.h"
#include "planner/planner.h"
#include "topology/topology.h"

namespace kolo::links {

// What ranks that share memory have in common: the kernel, and a network, in which they hand it over.
struct HostKey {
  unsigned char hostId[16];
  std::uint64_t network;
  bool operator==(const HostKey& other) const {
    return std::memcmp(hostId, other.hostId, sizeof hostId) == 0 && network == other.network;
  }
};
HostKey hostKey();

// The NICs near this rank, for koloTransportHost: ranks of a host to which the same are nearest begin with different
// ones. Collective. Sets membership.isOneHost. koloInvalidEnvironment: the ranks are on several hosts, and the
// user has set no secret (bootstrap/job_secret.h). poolBytes: for which this rank has room (links/pool.h), and then the
// least that some rank has.
Result<std::string> nearNics(Membership& membership, std::uint64_t& poolBytes);

struct Hosts {
  Grid grid;  // hosts, and the places on them; only where all hosts have equally many ranks
  std::vector<int>
      order;  // of the ranks along a ring, host by host, by topology::ringOrder; empty: as they are numbered

  // places: of each rank, by the least rank of its host. Says in `machine` what it has found.
  void arrange(const std::vector<topology::Place>& places, int rank, planner::Machine& machine);
};

}  // namespace kolo::links
