// Slots: staging in the receiver's memory. The sender acquires one, fills it and publishes it; the receiver awaits it,
// empties it and releases it. device/link.h has the numbering.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/host_device.h"
#include "device/link.h"
#include "device/work.h"

namespace kolo::device {

// The counter that says that chunk `number` is there.
KOLO_DEVICE const Counter& tailOf(const Link& link, std::uint64_t number) {
  return link.inbox->signals.tail[number & link.railMask];
}

// Where chunk `number` to the peer lies, and where the one from it does.
KOLO_DEVICE unsigned char* outSlot(const Work& work, const Link& link, std::uint64_t number) {
  return link.outSlots + number % work.channel.slots * work.channel.slotBytes;
}
KOLO_DEVICE const unsigned char* inSlot(const Work& work, const Link& link, std::uint64_t number) {
  return link.inSlots + number % work.channel.slots * work.channel.slotBytes;
}

// Waits for a free slot at the peer; the caller fills it and publishes. nullptr after a failure.
template <class Team>
KOLO_DEVICE_CALL unsigned char* acquireSlot(Exchange<Team>& exchange, int peer) {
  Team& team = exchange.team();
  const Work& work = exchange.work();
  Link& link = exchange.linkTo(peer);
  team.sync();  // the counters of the last primitive are settled
  const std::uint64_t number = link.sent + 1;
  if (number > link.credited + work.channel.slots) {
    const Counter& head = link.inbox->signals.head;
    if (!team.waitAtLeast(head, number - work.channel.slots, link.peer)) return nullptr;  // [credit]
    if (team.leader()) link.credited = loadAcquire(head);                                 // [credit]
  }
  if (team.failed()) return nullptr;
  return outSlot(work, link, number);
}
// bytes: of the slot that have been filled.
template <class Team>
KOLO_DEVICE_CALL void publishSlot(Exchange<Team>& exchange, int peer, std::uint64_t bytes) {
  Team& team = exchange.team();
  const Work& work = exchange.work();
  team.sync();
  if (!team.leader() || team.failed()) return;
  Link& link = exchange.linkTo(peer);
  const std::uint64_t number = ++link.sent;
  const std::uint32_t rail = static_cast<std::uint32_t>(number) & link.railMask;
  // [chunk] after the team's stores into the slot
  exchange.signal(link, link.outbox->signals.tail[rail], number, {rail, outSlot(work, link, number), bytes});
}

// Waits for the peer's next chunk. nullptr after a failure.
template <class Team>
KOLO_DEVICE_CALL const unsigned char* awaitSlot(Exchange<Team>& exchange, int peer) {
  const Work& work = exchange.work();
  Link& link = exchange.linkTo(peer);
  exchange.team().sync();
  const std::uint64_t number = link.received + 1;
  if (!exchange.team().waitAtLeast(tailOf(link, number), number, link.peer)) return nullptr;  // [chunk]
  return inSlot(work, link, number);
}
// `number` chunks of the peer's have been taken out of their slots. The peer may need to know it for another chunk: of
// this operation, and then this rank is going to wait for that chunk; or of a later one, in which this rank first
// writes its header. Either brings the credit over if it has been kept until then, to go together with something else.
template <class Team>
KOLO_DEVICE void credit(Exchange<Team>& exchange, Link& link, std::uint64_t number) {
  exchange.signal(link, link.outbox->signals.head, number, {.more = More::kLater});  // [credit]
}
template <class Team>
KOLO_DEVICE_CALL void releaseSlot(Exchange<Team>& exchange, int peer) {
  exchange.team().sync();
  if (!exchange.team().leader() || exchange.failed()) return;
  Link& link = exchange.linkTo(peer);
  credit(exchange, link, ++link.received);  // after the team's loads from the slot
}

}  // namespace kolo::device
