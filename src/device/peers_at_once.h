// Staging with several peers in one step of an algorithm: what each needs is waited for side by side, all slots are
// filled or emptied, and then all peers are told at once. A block of a GPU so has one fence for a step, whatever the
// number of peers: threads of one warp release side by side. A team of one thread goes through the peers one after the
// other, and tells each as soon as it can.
//
// peerAt(i) is peer i of `count`; all threads call with the same arguments. A peer has at most one chunk in a step.
#pragma once

#include <cstdint>

#include "device/chunks.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/host_device.h"
#include "device/slots.h"
#include "device/views.h"
#include "device/work.h"

namespace kolo::device {

// ---- by one thread, in spread()

template <class Team>
KOLO_DEVICE void acquireAlone(Exchange<Team>& exchange, Link& link) {
  const std::uint64_t slots = exchange.work().channel.slots, number = link.sent + 1;
  if (number <= link.credited + slots) return;
  const Counter& head = link.inbox->signals.head;
  if (exchange.team().waitAlone(head, number - slots, link.peer)) link.credited = loadAcquire(head);  // [credit]
}
template <class Team>
KOLO_DEVICE void awaitAlone(Exchange<Team>& exchange, const Link& link) {
  const std::uint64_t number = link.received + 1;
  exchange.team().waitAlone(tailOf(link, number), number, link.peer);  // [chunk]
}
// Behind fenceStores().
template <class Team>
KOLO_DEVICE void publishFenced(Exchange<Team>& exchange, Link& link, std::uint64_t bytes) {
  const std::uint64_t number = ++link.sent;
  const std::uint32_t rail = static_cast<std::uint32_t>(number) & link.railMask;
  exchange.signalFenced(link, link.outbox->signals.tail[rail], number,
                        {rail, outSlot(exchange.work(), link, number), bytes});  // [chunk] the team's stores into it
}
template <class Team>
KOLO_DEVICE void releaseFenced(Exchange<Team>& exchange, Link& link) {
  exchange.signalFenced(link, link.outbox->signals.head, ++link.received,
                        {.more = More::kLater});  // [credit] after the team's loads from the slot
}

// The peer's next chunk, which has come.
template <class Team>
KOLO_DEVICE const unsigned char* filled(const Exchange<Team>& exchange, int peer) {
  const Link& link = exchange.linkTo(peer);
  return inSlot(exchange.work(), link, link.received + 1);
}
// The slot for the next chunk to the peer, which is free.
template <class Team>
KOLO_DEVICE unsigned char* acquired(const Exchange<Team>& exchange, int peer) {
  const Link& link = exchange.linkTo(peer);
  return outSlot(exchange.work(), link, link.sent + 1);
}

// ---- by all threads

// After the team's stores into slots and loads out of them: tell(link, i) for each peer, behind one fence.
template <class Team, class PeerAt, class Tell>
KOLO_DEVICE void tellAll(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const Tell& tell) {
  exchange.team().sync();
  exchange.team().spread(count, [&](int i) {
    if (exchange.failed()) return;
    fenceStores();
    tell(exchange.linkTo(peerAt(i)), i);
  });
}

// Each peer gets pieceFor(peer), this rank's contribution to what it folds; nothing, where that is empty.
template <class Team, class PeerAt, class PieceFor>
KOLO_DEVICE void sendToAll(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const PieceFor& pieceFor) {
  if constexpr (Exchange<Team>::kIsOneThread) {
    for (int i = 0; i < count; ++i) send(exchange, peerAt(i), pieceFor(peerAt(i)));
    return;
  } else {
    Team& team = exchange.team();
    team.sync();  // the counters of the last primitive are settled
    team.spread(count, [&](int i) {
      if (pieceFor(peerAt(i)).bytes != 0) acquireAlone(exchange, exchange.linkTo(peerAt(i)));
    });
    KOLO_ROLLED
    for (int i = 0; i < count && !exchange.failed(); ++i) {
      const ConstPiece piece = pieceFor(peerAt(i));
      if (piece.bytes != 0) contribute(exchange, acquired(exchange, peerAt(i)), piece);
    }
    tellAll(exchange, count, peerAt, [&](Link& link, int i) {
      const std::uint64_t bytes = pieceFor(peerAt(i)).bytes;
      if (bytes != 0) publishFenced(exchange, link, bytes);
    });
  }
}

// Each peer's chunk into pieceFrom(peer), which is empty where it sends none.
template <class Team, class PeerAt, class PieceFrom>
KOLO_DEVICE void recvFromAll(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const PieceFrom& pieceFrom) {
  if constexpr (Exchange<Team>::kIsOneThread) {
    for (int i = 0; i < count; ++i) recv(exchange, peerAt(i), pieceFrom(peerAt(i)));
    return;
  } else {
    Team& team = exchange.team();
    team.sync();
    team.spread(count, [&](int i) {
      if (pieceFrom(peerAt(i)).bytes != 0) awaitAlone(exchange, exchange.linkTo(peerAt(i)));
    });
    KOLO_ROLLED
    for (int i = 0; i < count && !exchange.failed(); ++i) {
      const Piece piece = pieceFrom(peerAt(i));
      if (piece.bytes != 0)
        move(exchange, piece.data, filled(exchange, peerAt(i)), piece.bytes, exchange.work().streaming);
    }
    tellAll(exchange, count, peerAt, [&](Link& link, int i) {
      if (pieceFrom(peerAt(i)).bytes != 0) releaseFenced(exchange, link);
    });
  }
}

}  // namespace kolo::device
