#include "comm/peers.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/log.h"
#include "comm/blob.h"

namespace kolo::comm {
namespace {

// Arenas of this process's ranks by communicator and rank, so that ranks that are threads of one process keep each
// other's arena alive as processes do by their mappings.
struct Holdings {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<memory::SharedMemory>> arenas;
};
Holdings& holdings() {
  static auto* const instance = new Holdings;
  return *instance;
}

std::string holdingKey(const Membership& membership, int rank) {
  return fmt::format("{}/{}/{}", membership.control->derivedSecret("holding"), membership.key, rank);
}

}  // namespace

Result<std::vector<std::string>> Membership::allGather(std::string_view mine) {
  return control->allGather(key, ++gathers, members, rank, mine, initTimeoutMs);
}

Status Membership::agree(const Status& mine) {
  BlobWriter writer;
  writer.put(static_cast<std::int32_t>(mine.code())).putText(mine.message());
  KOLO_ASSIGN(const std::vector<std::string> verdicts, allGather(writer.text()));
  if (!mine.ok()) return mine;
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    BlobReader reader(verdicts[i]);
    const auto code = static_cast<koloResult_t>(reader.get<std::int32_t>());
    if (code != koloSuccess) return error(code, "on rank {}: {}", i, reader.getText());
  }
  return {};
}

Peers::~Peers() {
  Holdings& all = holdings();
  const std::lock_guard lock(all.mutex);
  all.arenas.erase(holding_);
}

Status Peers::openDevices(Membership& membership, const std::string& transports) {
  KOLO_ASSIGN(const std::vector<transport::Entry> entries, transport::list(transports));
  koloTransportHost host{};
  host.size = sizeof host;
  std::memcpy(host.processId, transport::identity().processId, sizeof host.processId);
  std::memcpy(host.hostId, transport::identity().hostId, sizeof host.hostId);
  const std::string secret = membership.control->derivedSecret(fmt::format("communicator {}", membership.key));
  std::memcpy(host.communicator, secret.data(), std::min(secret.size(), sizeof host.communicator));
  host.rank = membership.rank;
  host.ranks = membership.ranks();
  host.timeoutMs = membership.initTimeoutMs;
  for (const transport::Entry& entry : entries) {
    if (!entry.works) {
      log::info("transport {} does not work here: {}", entry.table->name, entry.why);
      continue;
    }
    Result<std::shared_ptr<transport::Device>> device = transport::Device::open(entry.table, host);
    if (!device.ok()) {
      log::warn("transport {} is left out: {}", entry.table->name, device.status().message());
      continue;
    }
    devices_.push_back(device.take());
  }
  return {};
}

// For each peer the first transport, in this rank's order of preference, that both sides have and that reaches it.
Status Peers::openLinks(const Membership& membership, const std::vector<std::string>& blobs) {
  for (int rank = 0; rank < membership.ranks(); ++rank) {
    if (rank == membership.rank) continue;
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    BlobReader reader(blobs[static_cast<std::size_t>(rank)]);
    reader.getText();
    std::map<std::string, std::pair<koloTransportBlob, koloTransportBlob>> offers;
    for (auto left = reader.get<std::uint32_t>(); left > 0 && !reader.truncated(); --left) {
      const std::string name = reader.getText();
      const auto address = reader.get<koloTransportBlob>();
      offers[name] = {address, reader.get<koloTransportBlob>()};
    }
    std::string reasons;
    for (const auto& device : devices_) {
      const auto offer = offers.find(device->name());
      if (offer == offers.end()) continue;
      auto link = device->openLink(offer->second.first, offer->second.second);
      if (link.ok()) {
        peer.device = device;
        peer.address = offer->second.first;
        peer.link = link.take();
        break;
      }
      reasons += "; " + link.status().message();
    }
    if (peer.link == nullptr) {
      return error(koloUnreachable, "rank {} cannot be reached from rank {} by any transport that both have{}", rank,
                   membership.rank, reasons.empty() ? std::string("; there is none") : reasons);
    }
    peer.arena = peer.link->mapped();
    const std::lock_guard lock(holdings().mutex);
    const auto held = holdings().arenas.find(holdingKey(membership, rank));
    if (held != holdings().arenas.end()) peer.held = held->second;
  }
  return {};
}

Result<std::unique_ptr<Peers>> Peers::connect(Membership& membership, const ArenaLayout& layout,
                                              const std::string& transports, const std::string& settingsText) {
  auto peers = std::make_unique<Peers>();
  peers->peers_.resize(static_cast<std::size_t>(membership.ranks()));
  Status local = peers->openDevices(membership, transports);
  if (local.ok()) {
    Result<memory::SharedMemory> arena = memory::SharedMemory::create(layout.bytes(), "kolo-arena");
    if (arena.ok()) {
      peers->arena_ = std::make_shared<memory::SharedMemory>(arena.take());
    } else {
      local = arena.status();
    }
  }
  BlobWriter offer;
  offer.putText(settingsText);
  BlobWriter devices;
  std::uint32_t offered = 0;
  for (const auto& device : peers->devices_) {
    if (!local.ok()) break;
    auto registration = device->registerMemory({sizeof(koloTransportMemory), peers->arena(), peers->arena_->bytes(),
                                                peers->arena_->fd(), 0});
    if (!registration.ok()) {
      log::warn("transport {} cannot share staging memory: {}", device->name(), registration.status().message());
      continue;
    }
    devices.putText(device->name()).put(device->address()).put(registration.value()->descriptor());
    peers->registrations_.push_back(registration.take());
    ++offered;
  }
  offer.put(offered);
  if (local.ok()) {
    peers->holding_ = holdingKey(membership, membership.rank);
    const std::lock_guard lock(holdings().mutex);
    holdings().arenas[peers->holding_] = peers->arena_;
  }
  KOLO_ASSIGN(const std::vector<std::string> blobs, membership.allGather(offer.text() + devices.text()));
  for (std::size_t rank = 0; rank < blobs.size() && local.ok(); ++rank) {
    const std::string theirs = BlobReader(blobs[rank]).getText();
    if (theirs != settingsText) {
      local = error(koloMismatch, "settings differ: rank {} has {}, rank {} has {}", membership.rank, settingsText, rank,
                    theirs);
    }
  }
  if (local.ok()) local = peers->openLinks(membership, blobs);
  KOLO_TRY(membership.agree(local));
  return peers;
}

std::string Peers::transportNames() const {
  std::string names;
  for (const auto& device : devices_) {
    const bool used = std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.device == device; });
    if (!used) continue;
    if (!names.empty()) names += '+';
    names += device->name();
  }
  return names.empty() ? "self" : names;
}

}  // namespace kolo::comm
