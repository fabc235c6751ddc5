#include "links/arena.h"

#include <algorithm>
#include <cstring>

namespace kolo::links {
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

// Parts do not begin at page boundaries: the same lines of all peers' mailboxes would share a set of the cache.
std::uint64_t ArenaLayout::partAt(int peer) const {
  return roundUp(callAt(ranks), kPage) + partBytes() * static_cast<std::uint64_t>(peer);
}

std::uint64_t ArenaLayout::partBytes() const {
  return sizeof(device::Mailbox) + sizeof(device::MessageLane) + sizeof(Notice) + 3 * std::uint64_t{slots} * slotBytes;
}

ArenaLayout::Part ArenaLayout::part(unsigned char* begin) const {
  const std::uint64_t kind = std::uint64_t{slots} * slotBytes;
  unsigned char* const lane = begin + sizeof(device::Mailbox);
  unsigned char* const notice = lane + sizeof(device::MessageLane);
  unsigned char* const staging = notice + sizeof(Notice);
  return {reinterpret_cast<device::Mailbox*>(begin),
          reinterpret_cast<device::MessageLane*>(lane),
          reinterpret_cast<Notice*>(notice),
          staging,
          staging + kind,
          staging + 2 * kind};
}

void ArenaLayout::clear(unsigned char* arena) const {
  std::memset(arena, 0, callAt(ranks));
  for (int peer = 0; peer < ranks; ++peer) {
    unsigned char* const begin = arena + partAt(peer);
    std::memset(begin, 0, static_cast<std::size_t>(part(begin).slots - begin));
  }
}

std::vector<device::Post> ArenaLayout::requestsFor(const Part& mirror) const {
  std::vector<device::Post> requests;
  const auto announce = [&](const device::Counter& counter, const void* data = nullptr, std::uint64_t bytes = 0) {
    const std::uint64_t value = device::loadAcquire(counter);  // this thread's own; 0: nothing has been written yet
    if (value != 0) requests.push_back({0, data, bytes, &counter, value});
  };
  requests.push_back({0, mirror.slots, 3 * std::uint64_t{slots} * slotBytes, nullptr, 0});
  for (const device::Header& line : mirror.mailbox->header)
    announce(line.number, &line, device::kHeaderBytesBeforeNumber);
  const device::Signals& signals = mirror.mailbox->signals;
  for (const device::Counter& tail : signals.tail) announce(tail);
  announce(signals.head);
  announce(signals.done);
  const device::MessageLane& lane = *mirror.lane;
  for (const device::MessageLine& line : lane.lines)
    announce(line.number, &line.bytes, sizeof line - sizeof line.number);
  for (const device::Counter& chunks : lane.chunks) announce(chunks);
  for (const device::Counter* const counter : {&lane.linesTaken, &lane.eagerTaken, &lane.chunksTaken})
    announce(*counter);
  for (const BoardEntry& entry : mirror.notice->entries) {
    announce(entry.signature);
    announce(entry.count);
    announce(entry.sequence);  // [board]
  }
  for (const device::Counter& left : mirror.notice->left) announce(left);  // [left]
  return requests;
}

}  // namespace kolo::links
