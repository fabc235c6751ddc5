#include "links/surroundings.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

#include "base/log.h"
#include "base/settings.h"
#include "links/blob.h"
#include "transport/registry.h"

namespace kolo::links {
namespace {

// From how many bytes on a copy by the kernel out of the peer's ordinary memory is used instead of two through staging.
// On AMD (Zen 5) staging is about as fast, or faster: perf/results/2026-11-21-single-copy-zen5.txt. On Intel a copy by
// the kernel pays from 8 KiB on: perf/results/2026-11-22-single-copy-intel.txt.
constexpr std::uint64_t kSingleCopyBytesOnIntel = 8192;

bool readsAll(const Peers& peers) {
  for (int rank = 0; rank < peers.ranks(); ++rank) {
    if (!peers.isOpen(rank) || peers[rank].isPosted() || peers[rank].link->reads().ok()) continue;
    log::debug("ordinary buffers go through staging: rank {}: {}", rank, peers[rank].link->reads().message());
    return false;
  }
  return true;
}

std::uint64_t ownSingleCopyBytes(const Peers& peers) {
  if (!readsAll(peers)) return UINT64_MAX;
  const std::int64_t wish = settings::integer("KOLO_SINGLE_COPY_BYTES");
  if (wish >= 0) return static_cast<std::uint64_t>(wish);
  return topology::machine().cpuModel.find("Intel") != std::string::npos ? kSingleCopyBytesOnIntel : UINT64_MAX;
}

bool writesAll(const Peers& peers) {
  for (int rank = 0; rank < peers.ranks(); ++rank) {
    if (peers.isOpen(rank) && !peers[rank].isPosted() && !peers[rank].link->writes()) return false;
  }
  return true;
}

// Of the transport that reaches ranks by posted links, or that would: of the first, if there are several. Nothing:
// there is none.
transport::Device::Network networkOf(const Peers& peers) {
  const std::vector<transport::Device*>& posted = peers.postedDevices();
  for (const auto& device : peers.devices()) {
    if (std::find(posted.begin(), posted.end(), device.get()) != posted.end()) return device->network();
  }
  return {};
}

// By what this rank reaches other hosts, for the planner.
void tellUplink(const transport::Device::Network& network, BlobWriter& writer) {
  writer.put(network.messageNs / 1e3).put(network.putNs / 1e3).put(network.mostMegabits / 8e3);
  writer.put(static_cast<std::uint32_t>(network.nics.size()));
  for (const koloTransportNic& nic : network.nics) {
    const auto unknown = static_cast<double>(settings::integer("KOLO_NET_GBITS"));
    writer.putText(nic.name).put(nic.megabits > 0 ? static_cast<double>(nic.megabits) / 8e3 : unknown / 8);
  }
}

planner::Uplink hearUplink(int host, BlobReader& reader) {
  planner::Uplink uplink{.host = host, .nics = {}};
  uplink.hopUs = reader.get<double>();
  uplink.postUs = reader.get<double>();
  uplink.mostGigabytes = reader.get<double>();
  for (auto left = reader.get<std::uint32_t>(); left > 0 && !reader.truncated(); --left) {
    std::string name = reader.getText();
    uplink.nics.push_back({std::move(name), reader.get<double>()});
  }
  return uplink;
}

}  // namespace

bool isDumpable() { return prctl(PR_GET_DUMPABLE) == 1; }

std::string tellSurroundings(const Peers& peers) {
  const topology::Machine& mine = topology::machine();
  BlobWriter writer;
  writer.put(ownSingleCopyBytes(peers));
  const bool readsNothing = settings::integer("KOLO_SINGLE_COPY_BYTES") == INT64_MAX;  // not even tables of lists
  writer.put(static_cast<std::uint8_t>(!readsNothing && readsAll(peers)))
      .put(static_cast<std::uint8_t>(writesAll(peers)));
  writer.put(static_cast<std::uint8_t>(settings::integer("KOLO_SINGLE_COPY_BYTES") >= 0));
  writer.put(topology::placeOfProcess(peers.leader()));
  const std::vector<int> allowed = topology::allowedThreads();
  writer.put(transport::hostId()).put(mine.cpuQuota).put(static_cast<std::uint32_t>(allowed.size()));
  for (const int thread : allowed) writer.put(thread);
  tellUplink(networkOf(peers), writer);
  return writer.text();
}

Surroundings hearSurroundings(const std::vector<std::string>& told) {
  struct Host {
    std::set<int> threads;
    double quota = 0;  // 0: none

    int cores() const {
      const int allowed = static_cast<int>(threads.size());
      return std::max(1, quota > 0 ? std::min(static_cast<int>(quota), allowed) : allowed);
    }
  };
  std::map<std::string, Host> hosts;
  bool isWished = false;  // how many bytes one copy is for
  Surroundings result;
  for (const std::string& blob : told) {
    BlobReader reader(blob);
    result.singleCopyBytes = std::max(result.singleCopyBytes, reader.get<std::uint64_t>());
    result.readsPeers = reader.get<std::uint8_t>() != 0 && result.readsPeers;
    result.writesPeers = reader.get<std::uint8_t>() != 0 && result.writesPeers;
    isWished = reader.get<std::uint8_t>() != 0 || isWished;
    result.places.push_back(reader.get<topology::Place>());
    result.allMapped = result.allMapped && result.places.back().host == 0;
    const auto id = reader.get<std::array<char, 16>>();
    Host& host = hosts[std::string(id.data(), id.size())];
    const auto quota = reader.get<double>();
    if (quota > 0 && (host.quota == 0 || quota < host.quota)) host.quota = quota;
    for (auto left = reader.get<std::uint32_t>(); left > 0 && !reader.truncated(); --left)
      host.threads.insert(reader.get<int>());
    result.uplinks.push_back(hearUplink(result.places.back().host, reader));
  }
  if (!result.allMapped) result.singleCopyBytes = UINT64_MAX;
  result.readsPeers = result.readsPeers && result.allMapped;
  result.cores = std::accumulate(hosts.begin(), hosts.end(), 0,
                                 [](int sum, const auto& host) { return sum + host.second.cores(); });
  result.waitsLonger = result.allMapped && static_cast<int>(told.size()) > result.cores && !isWished;
  return result;
}

}  // namespace kolo::links
