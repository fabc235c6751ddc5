// What ranks tell each other of where they are, and what a communicator derives from that on all ranks alike.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "links/peers.h"
#include "planner/network.h"
#include "topology/topology.h"

namespace kolo::links {

struct Surroundings {
  bool allMapped = true;
  std::vector<topology::Place> places;   // of each rank; the host is the least rank whose memory it reaches
  std::vector<planner::Uplink> uplinks;  // of each rank
  int cores = 1;                         // that the ranks share
  std::uint64_t singleCopyBytes = 0;
  bool readsPeers = true, writesPeers = true;  // ordinary memory of all peers
  bool waitsLonger = false;
};

// What a rank says of its surroundings: its core set, and what reaches its peers.
std::string tellSurroundings(const Peers& peers);
// What follows from what all ranks have said. Each rank may be bound to cores of its own, so it takes all answers to
// know how many cores there are.
Surroundings hearSurroundings(const std::vector<std::string>& told);

// Whether the kernel lets others of this user at this process's memory. Costs a system call.
bool isDumpable();

}  // namespace kolo::links
