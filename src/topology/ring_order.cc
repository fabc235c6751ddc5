#include <array>
#include <cstddef>
#include <numeric>
#include <unordered_map>

#include "topology/topology.h"

namespace kolo::topology {
namespace {

using Groups = std::vector<int>;  // of each rank, dense, numbered by first appearance

// The groups inside `parents` that agree in `value` too.
template <class ValueOf>
Groups refine(const std::vector<Place>& places, const Groups& parents, ValueOf value) {
  std::unordered_map<std::uint64_t, int> numbers;
  Groups groups(places.size());
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto parent = static_cast<std::uint32_t>(parents[rank]);
    const std::uint64_t key = std::uint64_t{parent} << 32 | static_cast<std::uint32_t>(value(places[rank]));
    groups[rank] = numbers.try_emplace(key, static_cast<int>(numbers.size())).first->second;
  }
  return groups;
}

// Reorders by group; ranks of one group keep their order.
void countingSort(std::vector<int>& order, const Groups& groups) {
  std::vector<std::size_t> next(order.size() + 1, 0);
  for (const int group : groups) ++next[static_cast<std::size_t>(group) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<int> sorted(order.size());
  for (const int rank : order) {
    const auto group = static_cast<std::size_t>(groups[static_cast<std::size_t>(rank)]);
    sorted[next[group]++] = rank;
  }
  order.swap(sorted);
}

}  // namespace

std::vector<int> ringOrder(const std::vector<Place>& places) {
  const Groups hosts = refine(places, Groups(places.size(), 0), [](const Place& place) { return place.host; });
  const Groups packages = refine(places, hosts, [](const Place& place) { return place.package; });
  const Groups nodes = refine(places, packages, [](const Place& place) { return place.numa; });
  const Groups cores = refine(places, nodes, [](const Place& place) { return place.core; });

  // Least significant level first: each stable pass keeps the order of the finer levels inside its groups.
  std::vector<int> order(places.size());
  std::iota(order.begin(), order.end(), 0);
  for (const Groups* level : std::array{&cores, &nodes, &packages, &hosts}) countingSort(order, *level);
  return order;
}

}  // namespace kolo::topology
