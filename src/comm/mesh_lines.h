// The lines of ranks along the axes of a communicator that is a mesh, as algorithms and the planner see them.
#pragma once

#include <vector>

#include "device/work.h"
#include "planner/planner.h"
#include "topology/topology.h"

namespace kolo::comm {

struct MeshLines {
  std::vector<int> members;               // of the lines in which this rank is, one line after the other; behind
  std::vector<device::RankGroup> groups;  // these, by axis, which are behind
  device::Mesh shape;                     // this, for algorithms

  MeshLines() = default;
  MeshLines(const MeshLines&) = delete;
  MeshLines& operator=(const MeshLines&) = delete;

  // lengths: of the axes, whose ranks are in row-major order; empty: the communicator is no mesh. places: of each rank,
  // as links::Hosts::arrange() has them. Says in `machine` what it has found.
  void arrange(const std::vector<int>& lengths, const std::vector<topology::Place>& places, int rank,
               planner::Machine& machine);
};

}  // namespace kolo::comm
