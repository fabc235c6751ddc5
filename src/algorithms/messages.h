// The messages of one group between ranks on GPUs, all under way at once: whatever can go on goes on, so that no order
// in which ranks list them can make them wait for each other.
//
// On each directed pair messages match in their order. A message is a header (D4: what it is, and where it may be taken
// from), then its chunks, through slots of its own, apart from those of collectives. One in a window is taken by the
// receiver, which then says so.
//
// Invariants
//  - Every message that is not taken directly sends at least one chunk, an empty one if it has no bytes, and a sender
//    waits for the end of a direct one: so it is at most `slots` messages ahead, fewer than there are header lines.
//  - What a link says of its flows is written by the leader and read by all threads after the next barrier.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/folds.h"
#include "device/message_steps.h"
#include "device/offers.h"
#include "device/peer_memory.h"
#include "device/slots.h"

namespace kolo::algorithms {

template <class Team>
class MessageGroup {
 public:
  // list: the group's messages; links: this channel's; the rest of the work is that of any message of the list.
  KOLO_DEVICE MessageGroup(Team& team, device::Exchange<Team>& exchange, const device::Work* list, std::uint32_t count,
                           int channel)
      : team_(team), exchange_(exchange), work_(exchange.work()), list_(list), count_(count), channel_(channel) {}

  KOLO_DEVICE void run() {
    copyOwn();
    if (team_.leader()) queueAll();
    team_.sync();
    typename Team::WaitState waiting{};
    bool wasGone = false;
    while (!team_.failed()) {
      bool moved = false;
      int waitsFor = -1;
      KOLO_ROLLED
      for (int i = 1; i < work_.ranks && !team_.failed(); ++i) {
        const int peer = device::ringRank(work_.rank, i, work_.ranks);
        const device::Link& link = work_.channel.links[peer];
        const bool sends = link.sending.current != 0, receives = link.receiving.current != 0;
        if (sends || receives) waitsFor = peer;
        if (sends) moved = send(peer) || moved;
        if (receives) moved = receive(peer) || moved;
      }
      if (waitsFor < 0) return;
      if (moved) {
        waiting = {};
        wasGone = false;
      } else {
        team_.pause(waitsFor, waiting);
        // What a peer did before it went is seen in the round after.
        const bool isGone = team_.isAtLeast(*work_.channel.links[waitsFor].marks.left, device::kPeerLeft);  // [gone]
        if (isGone && wasGone) {
          if (team_.leader()) team_.fail(team_.departureOf(waitsFor));
          team_.sync();
        }
        wasGone = isGone;
      }
    }
  }

 private:
  using Flow = device::MessageFlow;

  // This channel's part of a message.
  KOLO_DEVICE device::Range part(const device::Work& message) const {
    return device::alignedPart(message.sendLayout.count, message.channel.count, channel_, message.grain());
  }
  // Whether the receiver takes a message where it is.
  KOLO_DEVICE static bool isRead(const device::WindowRef& ref) {
    return device::pathOf(false, offerOf(ref), device::Offer::kNothing) == device::Path::kPeerReads;
  }
  // Whether it is carried by this channel too.
  KOLO_DEVICE bool isHere(const device::Work& message) const { return channel_ < message.channel.count; }

  // Messages of a rank to itself: a send and a receive in one.
  KOLO_DEVICE void copyOwn() {
    KOLO_ROLLED
    for (std::uint32_t i = 0; i < count_; ++i) {
      const device::Work& message = list_[i];
      if (message.messageEnd.peer != work_.rank || !isHere(message)) continue;
      const device::Range mine = part(message);
      copy(exchange_, message.output(mine), message.input(mine), message.streaming);
    }
  }

  // Leader only. From the last to the first, so that the first of each pair is what remains.
  KOLO_DEVICE void queueAll() {
    KOLO_ROLLED
    for (std::uint32_t i = count_; i > 0; --i) {
      const device::Work& message = list_[i - 1];
      if (message.messageEnd.peer == work_.rank || !isHere(message)) continue;
      device::Link& link = work_.channel.links[message.messageEnd.peer];
      (message.messageEnd.isSend ? link.sending : link.receiving).current = i;
    }
    KOLO_ROLLED
    for (int peer = 0; peer < work_.ranks; ++peer) {
      load(work_.channel.links[peer].sending);
      load(work_.channel.links[peer].receiving);
    }
  }

  // Leader only.
  KOLO_DEVICE void load(Flow& flow) const {
    if (flow.current == 0) return;
    const device::Work& message = list_[flow.current - 1];
    const device::Range mine = part(message);
    flow.from = message.input(mine).data;
    flow.to = message.output(mine).data;
    flow.bytes = message.bytesOf(mine.count);
    flow.done = 0;
    flow.word = message.header.word;
    flow.count = message.header.count;
    flow.ref = message.sendRef;
    if (flow.ref.index != 0) flow.ref.offset += message.bytesOf(mine.begin);
    flow.isOpen = false;
    flow.isDirect = false;
  }

  // Leader only, after a message's last step.
  KOLO_DEVICE void next(Flow& flow) const {
    // One that goes through fewer channels leaves this one out.
    do {
      flow.current = list_[flow.current - 1].messageEnd.next;
    } while (flow.current != 0 && !isHere(list_[flow.current - 1]));
    load(flow);
  }

  // One step of the pair's current message; whether there was one.
  KOLO_DEVICE_CALL bool send(int peer) {
    device::Link& link = work_.channel.links[peer];
    Flow& flow = link.sending;
    if (!flow.isOpen) {
      team_.sync();
      if (team_.leader()) {
        announceMessage(exchange_, peer, flow);
        flow.isDirect = isRead(flow.ref);
        flow.isOpen = true;
      }
      team_.sync();
      return true;
    }
    if (flow.isDirect) {
      if (!isTaken(exchange_, peer)) return false;
      if (team_.leader()) {
        ++link.finished;
        next(flow);
      }
      team_.sync();
      return true;
    }
    if (!hasFreeSlot(exchange_, peer)) return false;
    const device::ConstPiece chunk = flow.nextOut(work_.channel.chunkBytes);
    copy(exchange_, freeSlot(exchange_, peer), chunk.data, chunk.bytes, false);
    publishSlot(exchange_, peer, chunk.bytes);
    advance(flow, chunk.bytes);
    return true;
  }

  KOLO_DEVICE_CALL bool receive(int peer) {
    device::Link& link = work_.channel.links[peer];
    Flow& flow = link.receiving;
    if (!flow.isOpen) {
      if (!hasHeader(exchange_, peer)) return false;
      if (team_.leader()) {
        takeMessageHeader(exchange_, peer, flow);
        flow.isDirect = isRead(link.headers.theirSend);
        flow.isOpen = true;
      }
      team_.sync();
      return true;
    }
    if (flow.isDirect) {
      copy(exchange_, flow.to, sendOf(exchange_, peer, 0, flow.bytes), flow.bytes, work_.streaming);
      sayTaken(exchange_, peer);
      if (team_.leader()) next(flow);
      team_.sync();
      return true;
    }
    if (!hasChunk(exchange_, peer)) return false;
    const device::Piece chunk = flow.nextIn(work_.channel.chunkBytes);
    copy(exchange_, chunk.data, filledSlot(exchange_, peer), chunk.bytes, work_.streaming);
    releaseSlot(exchange_, peer);
    advance(flow, chunk.bytes);
    return true;
  }

  KOLO_DEVICE void advance(Flow& flow, std::uint64_t bytes) {
    team_.sync();  // all have read the flow
    if (team_.leader()) {
      flow.done += bytes;
      if (flow.done == flow.bytes) next(flow);
    }
    team_.sync();
  }

  Team& team_;
  device::Exchange<Team>& exchange_;
  const device::Work& work_;
  const device::Work* list_;
  std::uint32_t count_;
  int channel_;
};

}  // namespace kolo::algorithms
