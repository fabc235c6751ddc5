// Which ranks are on one host, as far as memory goes: those that reach each other by mapped links; and in which order rings go.
#pragma once

#include <vector>

#include "device/work.h"
#include "planner/planner.h"
#include "topology/topology.h"

namespace kolo::comm {

struct Hosts {
  std::vector<int> ranks, across;   // behind the pointers of
  device::Hosts shape;              // for algorithms; only where all hosts have equally many ranks
  std::vector<int> order;           // of the ranks along a ring, host by host, by topology::ringOrder; empty: as they are numbered

  Hosts() = default;
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  // places: of each rank, by the least rank of its host. Says in `machine` what it has found.
  void arrange(const std::vector<topology::Place>& places, int rank, planner::Machine& machine);
};

}  // namespace kolo::comm
