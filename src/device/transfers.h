// Blocks that have a path of their own: what both ranks of a pair know of one, handed to device/path.h.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/host_device.h"
#include "device/offers.h"
#include "device/path.h"
#include "device/views.h"
#include "device/work.h"

namespace kolo::device {

// One block: where it lies here, and its path.
struct Transfer {
  Piece piece;
  Path path;
};

// Whether what goes to the root is written into its buffer, if that may be.
KOLO_DEVICE bool mayBeWrittenToRoot(const Work& work, const Piece& piece) {
  return work.signature.collective == Collective::kGather && work.direct != Algorithm::kCount &&
         piece.bytes >= work.pairsFromBytes;
}

// The peer's output is looked at only where this rank may have to write there, for otherwise the peer need not have
// been met.
template <class Team>
KOLO_DEVICE Path pathTo(const Exchange<Team>& exchange, int peer, const Piece& piece) {
  const Work& work = exchange.work();
  const bool mayBeWritten = mayBeWrittenToRoot(work, piece);
  return pathOf({.fitsHeader = work.fitsHeader(piece.bytes),
                 .hasOwnPath = blocksHaveOwnPaths(work),
                 .isStagedEarly = stagesEarly(work),
                 .mayBeWritten = mayBeWritten,
                 .outputIsOffered = mayBeWritten && recvIsWritable(exchange, peer),
                 .inputIsOffered = isGiven(offeredInput(work, peer))});
}
template <class Team>
KOLO_DEVICE Path pathFrom(const Exchange<Team>& exchange, int peer, const Piece& piece) {
  const Work& work = exchange.work();
  return pathOf({.fitsHeader = work.fitsHeader(piece.bytes),
                 .hasOwnPath = blocksHaveOwnPaths(work),
                 .isStagedEarly = isStagedEarly(exchange, peer),
                 .mayBeWritten = mayBeWrittenToRoot(work, piece),
                 .outputIsOffered = isGiven(offeredOutput(work, peer)),
                 .inputIsOffered = sendIsReadable(exchange, peer)});
}

// From this rank to a peer. After meet(peer), if this rank may have to write there.
template <class Team>
KOLO_DEVICE Transfer transferTo(const Exchange<Team>& exchange, int peer) {
  const Piece piece = exchange.pieceTo(peer);
  return {piece, pathTo(exchange, peer, piece)};
}
// From a peer to this rank. After meet(peer).
template <class Team>
KOLO_DEVICE Transfer transferFrom(const Exchange<Team>& exchange, int peer) {
  const Piece piece = exchange.pieceFrom(peer);
  return {piece, pathFrom(exchange, peer, piece)};
}

// What came with headers, from those peers of which transferFrom() says so.
template <class Team>
KOLO_DEVICE void takeFromHeaders(Exchange<Team>& exchange) {
  exchange.team().spread(exchange.work().ranks - 1, [&](int i) {
    const int peer = exchange.peerAt(i);
    const Piece to = exchange.pieceFrom(peer);
    if (exchange.work().fitsHeader(to.bytes)) copyLine(exchange, to, headerOf(exchange, peer).payload);
  });
}
// What came with one. REQUIRES: transferFrom(peer) is `to`, by its header.
template <class Team>
KOLO_DEVICE void takeFromHeader(Exchange<Team>& exchange, int peer, const Piece& to) {
  exchange.team().spread(1, [&](int) { copyLine(exchange, to, headerOf(exchange, peer).payload); });
}

}  // namespace kolo::device
