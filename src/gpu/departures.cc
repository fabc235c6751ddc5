#include "gpu/departures.h"

#include <map>
#include <string>

#include "links/blob.h"

namespace kolo::gpu {
namespace {

constexpr std::uint64_t kGoodbye = 1;

}  // namespace

Result<std::unique_ptr<Departures>> Departures::make(links::Membership& membership, links::Peers& peers) {
  auto departures = std::make_unique<Departures>();
  departures->peers_ = &peers;
  departures->rank_ = membership.rank;
  departures->keys_.resize(static_cast<std::size_t>(peers.ranks()));
  KOLO_TRY(departures->exchangeKeys(membership));
  return departures;
}

// A rank says by which key its lines are reached with each transport. A peer that writes there takes the key of the
// transport by which it reaches the rank.
Status Departures::exchangeKeys(links::Membership& membership) {
  const auto give = [this](links::BlobWriter& writer) -> Status {
    KOLO_ASSIGN(memory_, memory::PrivateMemory::create(bytes()));
    const koloTransportMemory range{sizeof range, memory_.data(), bytes(), -1, 0, koloMemoryHost};
    for (const auto& device : peers_->devices()) {
      if (!device->isPosted()) continue;
      KOLO_ASSIGN(std::unique_ptr<transport::Memory> registration, device->registerMemory(range));
      KOLO_ASSIGN(const koloTransportKey key, registration->key());
      writer.putText(device->name()).put(key);
      registrations_.push_back(std::move(registration));
    }
    return {};
  };
  links::BlobWriter writer;
  const Status given = give(writer);
  KOLO_TRY(membership.agree(given));
  KOLO_ASSIGN(const std::vector<std::string> blobs, membership.allGather(writer.text()));
  for (std::size_t peer = 0; peer < blobs.size(); ++peer) {
    const links::Peer& there = (*peers_)[static_cast<int>(peer)];
    links::BlobReader reader(blobs[peer]);
    while (there.isPosted() && !reader.truncated() && reader.getText() != there.device->name())
      (void)reader.get<koloTransportKey>();
    if (there.isPosted()) keys_[peer] = reader.get<koloTransportKey>();
  }
  return {};
}

// A word that is put alone, and has no signal behind it, comes in one piece: this thread makes progress itself
// (include/kolo/transport.h).
bool Departures::hasGone(int peer) const {
  for (std::uint32_t rail = 0; rail < (*peers_)[peer].link->rails(); ++rail) {
    if (device::loadAcquire(line(peer).goodbyes[rail]) != kGoodbye) return false;  // [goodbye]
  }
  return true;
}

void Departures::tellKernels(int peer, std::uint64_t what) const {
  device::storeRelease(line(peer).left, what);
}  // [gone]

Status Departures::say(int peer, std::uint32_t rail) {
  const std::uint64_t at = lineAt(rank_) + offsetof(Line, goodbyes) + rail * sizeof(device::Counter);
  return peers_->put(peer, {rail, &kGoodbye, sizeof kGoodbye, nullptr, 0}, keys_[static_cast<std::size_t>(peer)],
                     at);  // [goodbye]
}

}  // namespace kolo::gpu
