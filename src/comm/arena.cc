#include "comm/arena.h"

#include <algorithm>

namespace kolo::comm {
namespace {

constexpr std::uint64_t roundUp(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }
constexpr std::uint64_t kPage = 4096;

}  // namespace

ArenaLayout ArenaLayout::make(int ranks, std::uint64_t stagingBytes) {
  ArenaLayout layout;
  layout.ranks = ranks;
  // Collectives, eager messages and streams have `slots` slots for each peer.
  const std::uint64_t share = stagingBytes / 3 / static_cast<std::uint64_t>(std::max(1, ranks - 1)) / layout.slots;
  layout.slotBytes = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(share / kPage * kPage, kPage, 1 << 17));
  return layout;
}

std::uint64_t ArenaLayout::mailboxAt(int peer) const {
  return roundUp(sizeof(Board), kPage) + sizeof(device::Mailbox) * static_cast<std::uint64_t>(peer);
}

std::uint64_t ArenaLayout::laneAt(int peer) const {
  return roundUp(mailboxAt(ranks), kPage) + sizeof(device::MessageLane) * static_cast<std::uint64_t>(peer);
}

std::uint64_t ArenaLayout::slotsAt(int peer) const {
  return roundUp(laneAt(ranks), kPage) + std::uint64_t{slots} * slotBytes * static_cast<std::uint64_t>(peer);
}

std::uint64_t ArenaLayout::messageSlotsAt(int peer) const {
  return slotsAt(ranks) + 2 * std::uint64_t{slots} * slotBytes * static_cast<std::uint64_t>(peer);
}

std::uint64_t ArenaLayout::bytes() const { return messageSlotsAt(ranks); }

}  // namespace kolo::comm
