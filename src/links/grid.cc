#include "links/grid.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace kolo::links {

void Grid::arrange(const std::vector<int>& lengths, std::vector<int> inOrder, int rank) {
  ranks = std::move(inOrder);
  members.reserve(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), 0)));
  const auto at = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  auto stride = static_cast<int>(ranks.size());
  for (const int length : lengths) {
    stride /= length;
    const int place = at / stride % length;
    lines.push_back({members.data() + members.size(), length, place});
    for (int i = 0, next = at - place * stride; i < length; ++i, next += stride)
      members.push_back(ranks[static_cast<std::size_t>(next)]);
  }
  shape = {static_cast<int>(lengths.size()), lines.data(), ranks.data()};
}

void Grid::arrangeMesh(const std::vector<int>& lengths, const std::vector<topology::Place>& places, int rank,
                       planner::Machine& machine) {
  if (lengths.empty()) return;
  std::vector<int> inOrder(places.size());
  std::iota(inOrder.begin(), inOrder.end(), 0);
  auto stride = static_cast<int>(places.size());
  for (const int length : lengths) {
    stride /= length;
    std::map<int, std::set<int>> hostsOf;  // by the first rank of a line
    std::size_t most = 1;
    for (const int each : inOrder) {
      std::set<int>& hosts = hostsOf[each - each / stride % length * stride];
      hosts.insert(places[static_cast<std::size_t>(each)].host);
      most = std::max(most, hosts.size());
    }
    machine.mesh.push_back({length, static_cast<int>(most)});
  }
  arrange(lengths, std::move(inOrder), rank);
}

}  // namespace kolo::links
