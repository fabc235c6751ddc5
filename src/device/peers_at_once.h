// Staging with several peers in one step of an algorithm: what each needs is waited for side by side, all slots are
// filled or emptied, and then all peers are told at once. So a block of a GPU has one fence for a step, whatever the
// number of peers: the threads of a warp, each of which tells a peer, go through the fence together. A team of one
// thread goes through the peers one after the other, and tells each as soon as it can.
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

// After the team's stores into slots and loads out of them: tell(link, i) for each peer, behind one fence.
template <class Team, class PeerAt, class Tell>
KOLO_DEVICE void tellAll(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const Tell& tell) {
  exchange.team().sync();
  exchange.team().spread(count, [&](int i) {
    if (exchange.failed()) return;
    fenceStores();  // [chunk], [credit]: by each thread, for the stores behind it are its own
    tell(exchange.linkTo(peerAt(i)), i);
  });
}

// After the team's loads out of slots: the chunk of each peer for which took(peer) holds has been taken. Where nobody
// needs credits there is no fence: the next header of this rank, which shows the same, has one of its own.
template <class Team, class PeerAt, class Took>
KOLO_DEVICE void releaseAll(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const Took& took) {
  exchange.team().sync();
  exchange.team().spread(count, [&](int i) {
    if (exchange.failed() || !took(peerAt(i))) return;
    if (exchange.givesCredits()) fenceStores();  // [credit]: by each thread, for the stores behind it are its own
    release(exchange, exchange.linkTo(peerAt(i)));
  });
}

// Fills the next slot at each peer with pieceFor(peer), as in sendToAll(). By a team of several threads.
template <class Team, class PeerAt, class PieceFor>
KOLO_DEVICE void fillAll(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const PieceFor& pieceFor) {
  Team& team = exchange.team();
  team.sync();  // the counters of the last primitive are settled
  team.spread(count, [&](int i) {
    if (pieceFor(peerAt(i)).bytes != 0) acquireAlone(exchange, exchange.linkTo(peerAt(i)));
  });
  KOLO_ROLLED
  for (int i = 0; i < count && !exchange.failed(); ++i) {
    const ConstPiece piece(pieceFor(peerAt(i)));
    if (piece.bytes != 0) contribute(exchange, freeSlot(exchange, peerAt(i)), piece);
  }
}

// Each peer gets pieceFor(peer), this rank's contribution to what it folds; nothing, where that is empty.
template <class Team, class PeerAt, class PieceFor>
KOLO_DEVICE void sendToAll(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const PieceFor& pieceFor) {
  if constexpr (Exchange<Team>::kIsOneThread) {
    for (int i = 0; i < count; ++i) send(exchange, peerAt(i), pieceFor(peerAt(i)));
  } else {
    fillAll(exchange, count, peerAt, pieceFor);
    tellAll(exchange, count, peerAt, [&](Link& link, int i) {
      const std::uint64_t bytes = pieceFor(peerAt(i)).bytes;
      if (bytes != 0) publish(exchange, link, bytes);
    });
  }
}

// Opens the operation towards each peer, as announce() does, with its first chunk: pieceFor(peer), as in sendToAll().
// The header tells of the chunk, so that there is one fence for both, and the peer waits once. By a posted link the
// chunk has a signal of its own, behind the header. opening: kSends, or kOwes.
template <class Team, class PeerAt, class PieceFor>
KOLO_DEVICE void openToAll(Exchange<Team>& exchange, Opening opening, int count, const PeerAt& peerAt,
                           const PieceFor& pieceFor) {
  Team& team = exchange.team();
  if (!settleAll(exchange, kMaxOwed - 1)) return;
  const auto put = [&](int peer) {
    const std::uint64_t bytes = pieceFor(peer).bytes;
    Link& link = exchange.linkTo(peer);
    const bool isBehind = bytes != 0 && link.isPosted;
    announceAlone(exchange, peer, nullptr, 0, bytes != 0 && !isBehind);
    if (isBehind) publish(exchange, link, bytes);
  };
  if constexpr (Exchange<Team>::kIsOneThread) {
    for (int i = 0; i < count; ++i) {
      const ConstPiece piece(pieceFor(peerAt(i)));
      if (piece.bytes != 0 && openLink(exchange, exchange.linkTo(peerAt(i)))) {
        unsigned char* const slot = acquireSlot(exchange, peerAt(i));
        if (slot == nullptr) return;
        contribute(exchange, slot, piece);
      }
      put(peerAt(i));
    }
  } else {
    fillAll(exchange, count, peerAt, pieceFor);
    team.sync();
    team.spread(count, [&](int i) {
      if (!exchange.failed()) put(peerAt(i));
    });
  }
  if (opening != Opening::kOwes) return;
  for (int i = 0; i < count; ++i) owe(exchange, peerAt(i));
  team.sync();  // all see what is owed: meetRest() may be next
}

// Each peer's chunk into pieceFrom(peer), which is empty where it sends none.
template <class Team, class PeerAt, class PieceFrom>
KOLO_DEVICE void recvFromAll(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const PieceFrom& pieceFrom) {
  if constexpr (Exchange<Team>::kIsOneThread) {
    for (int i = 0; i < count; ++i) recv(exchange, peerAt(i), pieceFrom(peerAt(i)));
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
        move(exchange, piece.data, filledSlot(exchange, peerAt(i)), piece.bytes, exchange.work().streaming);
    }
    releaseAll(exchange, count, peerAt, [&](int peer) { return pieceFrom(peer).bytes != 0; });
  }
}

}  // namespace kolo::device
