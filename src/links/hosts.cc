#include "links/hosts.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "base/log.h"
#include "bootstrap/job_secret.h"
#include "links/blob.h"

namespace kolo::links {

HostKey hostKey() {
  HostKey key{};
  std::memcpy(key.hostId, transport::hostId().data(), sizeof key.hostId);
  struct stat about {};
  if (stat("/proc/self/ns/net", &about) == 0) key.network = about.st_ino;
  return key;
}

Result<std::string> nearNics(Membership& membership, std::uint64_t& poolBytes) {
  const std::vector<topology::Nic> nics = topology::hasSeveralNics() ? topology::nics() : std::vector<topology::Nic>();
  const topology::Place place = topology::placeOfProcess(0);
  BlobWriter mine;
  mine.put(hostKey()).putText(fmt::format("{}", fmt::join(topology::nicsNear(nics, place, 0), ",")));
  KOLO_ASSIGN(const std::vector<std::string> all,
              membership.allGather(mine.text() + BlobWriter().put(poolBytes).text()));
  const auto before = std::count_if(all.begin(), all.begin() + membership.rank,
                                    [&](const std::string& each) { return each.starts_with(mine.text()); });
  const HostKey own = hostKey();
  bool isOneKernel = true;
  membership.isOneHost = true;
  for (const std::string& each : all) {
    BlobReader reader(each);
    const auto key = reader.get<HostKey>();
    membership.isOneHost = key == own && membership.isOneHost;
    isOneKernel = std::memcmp(key.hostId, own.hostId, sizeof key.hostId) == 0 && isOneKernel;
    (void)reader.getText();
    poolBytes = std::min(poolBytes, reader.get<std::uint64_t>());
  }
  // Launchers do not always say it before.
  if (!isOneKernel) KOLO_TRY(bootstrap::demandSecret("the ranks are on several hosts"));
  const std::string near = fmt::format("{}", fmt::join(topology::nicsNear(nics, place, static_cast<int>(before)), ","));
  log::debug("rank {}: near it are the NICs {}", membership.rank, near.empty() ? "(none)" : near);
  return near;
}

void Hosts::arrange(const std::vector<topology::Place>& places, int rank, planner::Machine& machine) {
  order = topology::ringOrder(places);
  if (std::is_sorted(order.begin(), order.end())) order.clear();
  std::map<int, std::vector<int>> byLeader;
  for (std::size_t i = 0; i < places.size(); ++i) byLeader[places[i].host].push_back(static_cast<int>(i));
  const std::size_t perHost = byLeader.begin()->second.size();
  machine.hosts = static_cast<int>(byLeader.size());
  machine.perHost = 0;
  const bool equal =
      std::all_of(byLeader.begin(), byLeader.end(), [&](const auto& host) { return host.second.size() == perHost; });
  if (!equal) return;
  machine.perHost = static_cast<int>(perHost);
  std::vector<int> ranks;
  for (const auto& [leader, members] : byLeader) ranks.insert(ranks.end(), members.begin(), members.end());
  machine.hostsInRows = std::is_sorted(ranks.begin(), ranks.end());
  grid.arrange({machine.hosts, machine.perHost}, std::move(ranks), rank);
}

}  // namespace kolo::links
