// Slots: staging in the receiver's memory. The sender acquires one, fills it and publishes it; the receiver awaits it,
// empties it and releases it. device/link.h has the numbering.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/headers.h"
#include "device/host_device.h"
#include "device/link.h"
#include "device/partition.h"
#include "device/work.h"

namespace kolo::device {

// The counter that says that chunk `number` is there.
KOLO_DEVICE const Counter& tailOf(const Link& link, std::uint64_t number) {
  return link.inbox->signals.tail[number & link.railMask];
}

// Whether a header has told of chunk `number`.
KOLO_DEVICE bool isAnnounced(const Link& link, std::uint64_t number) { return number == link.headers.chunk; }

// Where chunk `number` to the peer lies, and where the one from it does.
KOLO_DEVICE unsigned char* outSlot(const Work& work, const Link& link, std::uint64_t number) {
  return link.outSlots + remainder(number, work.channel.slots) * work.channel.slotBytes;
}
KOLO_DEVICE const unsigned char* inSlot(const Work& work, const Link& link, std::uint64_t number) {
  return link.inSlots + remainder(number, work.channel.slots) * work.channel.slotBytes;
}

// ---- by one thread, in spread() or by the leader

// So many chunks of an operation, from a peer, need no credits.
KOLO_DEVICE std::uint32_t mostWithoutCredits(const Work& work) { return work.channel.slots / 2; }

// What shows that the peer has taken chunk `number`, which was put before: that counter is at least so much.
struct Proof {
  const Counter& counter;
  std::uint64_t value;
  std::uint64_t header;  // of which it is the number; 0: it is the head
};
// The first header behind that chunk, if it has been announced here; but head, which comes earlier, if credits were
// given for that operation.
KOLO_DEVICE Proof proofOf(const Work& work, const Link& link, std::uint64_t number) {
  std::uint64_t header = link.headers.announced;
  const auto shows = [&](std::uint64_t one) { return one > link.headers.met && sentBefore(link, one) >= number; };
  if (!shows(header)) return {link.inbox->signals.head, number, 0};
  while (shows(header - 1)) --header;
  const bool isCredited = sentBefore(link, header) - sentBefore(link, header - 1) > mostWithoutCredits(work);
  if (isCredited) return {link.inbox->signals.head, number, 0};
  return {lineOf(link, header).number, header, header};
}
KOLO_DEVICE void takeProof(Link& link, const Proof& proof) {
  if (proof.header != 0) creditUpTo(link, proof.header);
  else link.credited = loadAcquire(proof.counter);  // [credit]
}

// Waits for a free slot at the peer.
template <class Team>
KOLO_DEVICE void acquireAlone(Exchange<Team>& exchange, Link& link) {
  const std::uint64_t slots = exchange.work().channel.slots, number = link.sent + 1;
  if (number <= link.credited + slots) return;
  const Proof proof = proofOf(exchange.work(), link, number - slots);
  if (exchange.team().waitAlone(proof.counter, proof.value, link.peer)) takeProof(link, proof);  // [credit]
}
// Waits for the peer's next chunk.
template <class Team>
KOLO_DEVICE void awaitAlone(Exchange<Team>& exchange, const Link& link) {
  const std::uint64_t number = link.received + 1;
  if (!isAnnounced(link, number)) exchange.team().waitAlone(tailOf(link, number), number, link.peer);  // [chunk]
}
// Tells the peer that its slot has been filled with so many bytes. REQUIRES: fenceStores() by this thread, after a
// barrier since the team's stores into the slot. [chunk] pairs with the peer's acquiring load of the tail: the team's
// stores are before the barrier, the fence and the tail, and the load is before a barrier of the peer's team and its
// loads from the slot.
template <class Team>
KOLO_DEVICE void publish(Exchange<Team>& exchange, Link& link, std::uint64_t bytes) {
  const std::uint64_t number = ++link.sent;
  const std::uint32_t rail = static_cast<std::uint32_t>(number) & link.railMask;
  exchange.signalFenced(link, link.outbox->signals.tail[rail], number,
                        {rail, outSlot(exchange.work(), link, number), bytes});  // [chunk]
}
// The peer's next chunk has been taken out of its slot; a credit says so where chunks need them. The peer may need it
// for another chunk: of this operation, and then this rank is going to wait for that chunk; or of a later one, in which
// this rank first waits or writes its header. Either brings the credit over if it has been kept until then, to go
// together with something else. REQUIRES: fenceStores() by this thread, after a barrier since the team's loads from the
// slots. [credit] pairs with the peer's acquiring load of the head: the loads are before the fence, and that before the
// peer's next stores.
template <class Team>
KOLO_DEVICE void release(Exchange<Team>& exchange, Link& link) {
  const std::uint64_t number = ++link.received;
  if (!exchange.givesCredits()) return;
  exchange.signalFenced(link, link.outbox->signals.head, number, {.more = More::kLater});  // [credit]
}

// ---- by all threads

// The peer's next chunk, which has come, and the slot for the next chunk to the peer, which is free.
template <class Team>
KOLO_DEVICE const unsigned char* filledSlot(const Exchange<Team>& exchange, int peer) {
  const Link& link = exchange.linkTo(peer);
  return inSlot(exchange.work(), link, link.received + 1);
}
template <class Team>
KOLO_DEVICE unsigned char* freeSlot(const Exchange<Team>& exchange, int peer) {
  const Link& link = exchange.linkTo(peer);
  return outSlot(exchange.work(), link, link.sent + 1);
}

// Waits for a free slot at the peer; the caller fills it and publishes. nullptr after a failure. A rank meets its peer
// before it waits for a credit of this operation: two that call different operations would wait for each other's.
template <class Team>
KOLO_DEVICE_CALL unsigned char* acquireSlot(Exchange<Team>& exchange, int peer) {
  Team& team = exchange.team();
  const Work& work = exchange.work();
  Link& link = exchange.linkTo(peer);
  team.sync();  // the counters of the last primitive are settled
  const std::uint64_t number = link.sent + 1;
  const auto hasRoom = [&] { return number <= link.credited + work.channel.slots; };
  const bool isOfThisOne = !hasRoom() && number - work.channel.slots > sentBefore(link, link.headers.announced);
  if (isOfThisOne && isUnmet(link) && !meet(exchange, peer)) return nullptr;
  if (!hasRoom()) {
    const Proof proof = proofOf(work, link, number - work.channel.slots);
    if (!team.waitAtLeast(proof.counter, proof.value, link.peer)) return nullptr;  // [credit]
    if (team.leader()) takeProof(link, proof);
  }
  if (team.failed()) return nullptr;
  return outSlot(work, link, number);
}
// Waits for the peer's next chunk; meets the peer first, if it is unmet. nullptr after a failure.
template <class Team>
KOLO_DEVICE_CALL const unsigned char* awaitSlot(Exchange<Team>& exchange, int peer) {
  const Work& work = exchange.work();
  Link& link = exchange.linkTo(peer);
  exchange.team().sync();
  if (isUnmet(link) && !meet(exchange, peer)) return nullptr;
  const std::uint64_t number = link.received + 1;
  if (!isAnnounced(link, number) && !exchange.team().waitAtLeast(tailOf(link, number), number, link.peer))
    return nullptr;  // [chunk]
  if (exchange.failed()) return nullptr;
  return inSlot(work, link, number);
}
// After the team's stores into slots and loads from them, by the leader alone: tell(), behind one fence.
template <class Team, class Tell>
KOLO_DEVICE void tellAlone(Exchange<Team>& exchange, const Tell& tell) {
  exchange.team().sync();
  if (!exchange.team().leader() || exchange.failed()) return;
  fenceStores();  // [chunk], [credit]
  tell();
}
// bytes: of the slot that have been filled.
template <class Team>
KOLO_DEVICE_CALL void publishSlot(Exchange<Team>& exchange, int peer, std::uint64_t bytes) {
  tellAlone(exchange, [&] { publish(exchange, exchange.linkTo(peer), bytes); });
}
template <class Team>
KOLO_DEVICE_CALL void releaseSlot(Exchange<Team>& exchange, int peer) {
  tellAlone(exchange, [&] { release(exchange, exchange.linkTo(peer)); });
}
// publishSlot() to a peer and releaseSlot() of the same or another one.
template <class Team>
KOLO_DEVICE_CALL void passSlot(Exchange<Team>& exchange, int to, std::uint64_t bytes, int from) {
  tellAlone(exchange, [&] {
    publish(exchange, exchange.linkTo(to), bytes);
    release(exchange, exchange.linkTo(from));
  });
}

}  // namespace kolo::device
