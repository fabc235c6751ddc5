#include "comm/hosts.h"

#include <algorithm>
#include <map>

namespace kolo::comm {

void Hosts::arrange(const std::vector<topology::Place>& places, int rank, planner::Machine& machine) {
  order = topology::ringOrder(places);
  if (std::is_sorted(order.begin(), order.end())) order.clear();
  std::map<int, std::vector<int>> byLeader;
  for (std::size_t i = 0; i < places.size(); ++i) byLeader[places[i].host].push_back(static_cast<int>(i));
  const std::size_t perHost = byLeader.begin()->second.size();
  machine.hosts = static_cast<int>(byLeader.size());
  machine.perHost = 0;
  const bool equal = std::all_of(byLeader.begin(), byLeader.end(), [&](const auto& host) { return host.second.size() == perHost; });
  if (!equal) return;
  machine.perHost = static_cast<int>(perHost);
  for (const auto& [leader, members] : byLeader) ranks.insert(ranks.end(), members.begin(), members.end());
  machine.hostsInRows = std::is_sorted(ranks.begin(), ranks.end());
  const auto at = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  for (std::size_t i = at % perHost; i < ranks.size(); i += perHost) across.push_back(ranks[i]);
  shape = {machine.hosts, machine.perHost, static_cast<int>(at / perHost), static_cast<int>(at % perHost), ranks.data(), across.data()};
}

}  // namespace kolo::comm
