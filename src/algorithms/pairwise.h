// pairwise: every rank trades a block with every other, in n rounds; in round i rank r trades with rank (i - r) mod n,
// so that in every round the ranks form pairs (one is alone). As both blocks of a trade in an all-to-all have the same
// place in their buffers, it works in place. Where only pairs know how much they trade, each also decides for itself
// which way a block goes.
#pragma once

#include "device/chunks.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/offers.h"
#include "device/peer_memory.h"
#include "device/peers_at_once.h"

namespace kolo::algorithms {

// What came with headers, of peers peerAt(0), peerAt(1), ...
template <class Team, class PeerAt>
KOLO_DEVICE void takeFromHeaders(device::Exchange<Team>& exchange, int peers, PeerAt peerAt) {
  exchange.team().spread(peers, [&](int i) {
    const int peer = peerAt(i);
    if (pathFrom(exchange, peer) == device::Path::kInline)
      copyLine(exchange, exchange.pieceFrom(peer), headerOf(exchange, peer).payload);
  });
}

// What comes from each peer is its block.
template <class Team, class PeerAt>
KOLO_DEVICE void expectLongest(device::Exchange<Team>& exchange, int peers, PeerAt peerAt) {
  std::uint64_t longest = 0;
  for (int i = 0; i < peers; ++i) {
    const std::uint64_t bytes = exchange.pieceFrom(peerAt(i)).bytes;
    longest = bytes > longest ? bytes : longest;
  }
  exchange.expectAtMost(longest);
}

// Takes the blocks that are not sent, and waits until this rank's have been taken. REQUIRES: met all.
template <class Team>
KOLO_DEVICE_CALL void tradeDirectly(device::Exchange<Team>& exchange) {
  using device::Path;
  const device::Work& work = exchange.work();
  for (int i = 0; i < work.ranks - 1 && !exchange.failed(); ++i) {
    const int peer = exchange.peerAt(i);
    if (pathFrom(exchange, peer) != Path::kPeerReads) continue;
    take(exchange, exchange.pieceFrom(peer), peer, 0);
    sayFinished(exchange, peer, true);
  }
  awaitFinished(exchange, [&](int peer) { return pathTo(exchange, peer) == Path::kPeerReads; });
}

// All-to-all, and all-gather. REQUIRES: opened as `opening` says.
// Blocks that fit into the slots are all sent before the first is awaited: then a rank waits for all others once, and
// not for each in its turn, which is what counts where ranks share cores. A block of a GPU tells all at once of blocks
// that fit into a slot each.
template <class Team>
KOLO_DEVICE_CALL void runPairwise(device::Exchange<Team>& exchange, device::Opening opening) {
  using device::Path;
  const device::Work& work = exchange.work();
  const int n = work.ranks;
  constexpr bool kAtOnce = !device::Exchange<Team>::kIsOneThread;
  const auto peerAt = [&](int i) { return exchange.peerAt(i); };
  const auto stagedTo = [&](int peer) {
    return pathTo(exchange, peer) == Path::kStaged ? exchange.pieceTo(peer) : device::Piece{};
  };
  const auto stagedFrom = [&](int peer) {
    return pathFrom(exchange, peer) == Path::kStaged ? exchange.pieceFrom(peer) : device::Piece{};
  };
  const auto fit = [&](const auto& staged, std::uint64_t chunks) {
    bool good = true;
    for (int i = 0; i < n - 1; ++i) good = good && staged(peerAt(i)).bytes <= chunks * work.channel.chunkBytes;
    return good;
  };
  const auto with = [&](int peer, bool sends, bool receives) {
    sendAndRecv(
        exchange, peer, sends && pathTo(exchange, peer) == Path::kStaged ? 1 : 0,
        [&](int) { return exchange.pieceTo(peer); }, peer,
        receives && pathFrom(exchange, peer) == Path::kStaged ? 1 : 0, [&](int) { return exchange.pieceFrom(peer); });
  };
  expectLongest(exchange, n - 1, peerAt);
  const bool fits = fit(stagedTo, work.channel.slots), fitOne = fits && fit(stagedTo, 1);
  const bool opens = postsWithData(opening);
  if (opens && !fitOne) announceAll(exchange);
  exchange.team().sync();  // all see what has been announced
  if (!fits && !meetRest(exchange)) return;
  if (opens && fitOne) {
    openToAll(exchange, opening, n - 1, peerAt, stagedTo);
  } else if (kAtOnce && fitOne) {
    sendToAll(exchange, n - 1, peerAt, stagedTo);
  } else {
    for (int round = 0; round < n; ++round) {
      const int peer = device::ringRank(round, -work.rank, n);
      if (peer != work.rank) with(peer, true, !fits);
    }
  }
  copyOwn(exchange);
  if (fits && !meetRest(exchange)) return;
  if (kAtOnce && fits && fit(stagedFrom, 1)) {
    recvFromAll(exchange, n - 1, peerAt, stagedFrom);
  } else {
    for (int round = 0; round < n && fits; ++round) {
      const int peer = device::ringRank(round, -work.rank, n);
      if (peer != work.rank) with(peer, false, true);
    }
  }
  if (work.header.pairsFromBytes == 0) return;
  takeFromHeaders(exchange, n - 1, peerAt);
  tradeDirectly(exchange);
}

}  // namespace kolo::algorithms
