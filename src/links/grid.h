// The ranks of a communicator as a grid: hosts and the places on them, or a mesh.
#pragma once

#include <vector>

#include "device/work.h"
#include "planner/planner.h"
#include "topology/topology.h"

namespace kolo::links {

struct Grid {
  std::vector<int> ranks, members;       // behind the pointers of
  std::vector<device::RankGroup> lines;  // these, which are behind
  device::Grid shape;                    // this, for algorithms

  Grid() = default;
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  // lengths: of the axes. inOrder: all ranks, in row-major order.
  void arrange(const std::vector<int>& lengths, std::vector<int> inOrder, int rank);
  // A mesh of the ranks in the order of their numbers. lengths: empty: the communicator is no mesh. places: of each
  // rank, as Hosts::arrange() has them. Says in `machine` what it has found.
  void arrangeMesh(const std::vector<int>& lengths, const std::vector<topology::Place>& places, int rank,
                   planner::Machine& machine);
};

}  // namespace kolo::links
