// pairwise: every rank trades a block with every other, in n rounds; in round i rank r trades with rank (i - r) mod n,
// so that in every round the ranks form pairs (one is alone). As both blocks of a trade in an all-to-all have the same
// place in their buffers, it works in place. Where only pairs know how much they trade, each also decides for itself
// which way a block goes.
#pragma once

#include "device/chunks.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/peer_memory.h"
#include "device/transfers.h"

namespace kolo::algorithms {

// A block from where it is; its owner may have it back.
template <class Team>
KOLO_DEVICE_CALL void takeAll(device::Exchange<Team>& exchange, int peer) {
  take(exchange, exchange.pieceFrom(peer), peer, 0);
  sayFinished(exchange, peer, true);
}

// Takes the blocks that are not sent, and waits until this rank's have been taken. REQUIRES: met all.
template <class Team>
KOLO_DEVICE_CALL void tradeDirectly(device::Exchange<Team>& exchange) {
  using device::Path;
  const device::Work& work = exchange.work();
  for (int i = 0; i < work.ranks - 1 && !exchange.failed(); ++i) {
    const int peer = exchange.peerAt(i);
    if (transferFrom(exchange, peer).path == Path::kPeerReads) takeAll(exchange, peer);
  }
  awaitFinished(exchange, [&](int peer) { return transferTo(exchange, peer).path == Path::kPeerReads; });
}

// All-to-all, and all-gather. REQUIRES: announced to all.
// Blocks that fit into the slots are all sent before the first is awaited: then a rank waits for all others once, and
// not for each in its turn, which is what counts where ranks share cores.
template <class Team>
KOLO_DEVICE_CALL void runPairwise(device::Exchange<Team>& exchange) {
  using device::Path;
  const device::Work& work = exchange.work();
  const int n = work.ranks;
  copyOwn(exchange);
  const auto with = [&](int peer, bool sends, bool receives) {
    sendAndRecv(
        exchange, peer, sends && transferTo(exchange, peer).path == Path::kStaged ? 1 : 0,
        [&](int) { return exchange.pieceTo(peer); }, peer,
        receives && transferFrom(exchange, peer).path == Path::kStaged ? 1 : 0,
        [&](int) { return exchange.pieceFrom(peer); });
  };
  bool fits = true;
  for (int i = 0; i < n - 1; ++i) {
    const auto out = transferTo(exchange, exchange.peerAt(i));
    fits = fits && (out.path != Path::kStaged || out.piece.bytes <= std::uint64_t{work.slots} * work.chunkBytes);
  }
  if (!fits && !meetRest(exchange)) return;
  for (int round = 0; round < n; ++round) {
    const int peer = device::ringRank(round, -work.rank, n);
    if (peer != work.rank) with(peer, true, !fits);
  }
  if (fits && !meetRest(exchange)) return;
  for (int round = 0; round < n && fits; ++round) {
    const int peer = device::ringRank(round, -work.rank, n);
    if (peer != work.rank) with(peer, false, true);
  }
  if (work.pairsFromBytes == 0) return;
  takeFromHeaders(exchange);
  tradeDirectly(exchange);
}

}  // namespace kolo::algorithms
