// Which ranks are on one host, as far as memory goes: those that reach each other by mapped links.
#pragma once

#include <vector>

#include "device/work.h"
#include "planner/planner.h"

namespace kolo::comm {

struct Hosts {
  std::vector<int> ranks, across;   // behind the pointers of
  device::Hosts shape;              // for algorithms; only where all hosts have equally many ranks

  Hosts() = default;
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  // leaders: of each rank, the least rank of its host. Says in `machine` what it has found.
  void arrange(const std::vector<int>& leaders, int rank, planner::Machine& machine);
};

}  // namespace kolo::comm
