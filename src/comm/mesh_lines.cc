#include "comm/mesh_lines.h"

#include <algorithm>
#include <set>

#include "comm/mesh.h"

namespace kolo::comm {
namespace {

// On how many hosts the ranks of a line along the axis are, on the line with most.
int hostsAlong(const Mesh& mesh, int axis, const std::vector<topology::Place>& places) {
  std::size_t most = 1;
  for (int rank = 0; rank < static_cast<int>(places.size()); ++rank) {
    const std::vector<int> line = mesh.along({axis}, rank);
    if (line.front() != rank) continue;  // each line once
    std::set<int> hosts;
    for (const int member : line) hosts.insert(places[static_cast<std::size_t>(member)].host);
    most = std::max(most, hosts.size());
  }
  return static_cast<int>(most);
}

}  // namespace

void MeshLines::arrange(const std::vector<int>& lengths, const std::vector<topology::Place>& places, int rank,
                        planner::Machine& machine) {
  const auto axes = static_cast<int>(lengths.size());
  if (axes == 0) return;
  const Mesh mesh = Mesh::make(lengths.data(), axes, static_cast<int>(places.size())).value();
  for (int axis = 0; axis < axes; ++axis) {
    const std::vector<int> line = mesh.along({axis}, rank);
    const auto at = static_cast<int>(std::find(line.begin(), line.end(), rank) - line.begin());
    groups.push_back({nullptr, static_cast<int>(line.size()), at});
    members.insert(members.end(), line.begin(), line.end());
    machine.mesh.push_back({static_cast<int>(line.size()), hostsAlong(mesh, axis, places)});
  }
  const int* next = members.data();
  for (device::RankGroup& group : groups) {
    group.members = next;
    next += group.ranks;
  }
  shape = {axes, groups.data()};
}

}  // namespace kolo::comm
