// pairwise: every rank trades a block with every other, in n rounds; in round i rank r trades with rank (i - r) mod n, so that in
// every round the ranks form pairs (one is alone). As both blocks of a trade in an all-to-all have the same place in their
// buffers, it works in place.
#pragma once

#include "device/exchange.h"

namespace kolo::algorithms {

// REQUIRES: announced to all.
// outAt(peer) to every peer, inAt(peer) from it. Blocks that fit into the slots are all sent before the first is awaited: then
// a rank waits for all others once, and not for each in its turn, which is what counts where ranks share cores.
template <class Team, class OutAt, class InAt>
KOLO_DEVICE_CALL void trade(device::Exchange<Team>& exchange, OutAt outAt, InAt inAt) {
  const device::Work& work = exchange.work();
  const int n = work.ranks;
  const auto with = [&](int peer, bool sends, bool receives) {
    exchange.exchange(peer, sends ? 1 : 0, [&](int) { return outAt(peer); }, peer, receives ? 1 : 0,
                      [&](int) { return inAt(peer); });
  };
  bool fits = true;
  for (int i = 1; i < n; ++i) {
    const std::uint64_t bytes = outAt(device::ringRank(work.rank, i, n)).bytes;
    fits = fits && bytes <= std::uint64_t{work.slots} * work.chunkBytes;
  }
  if (!fits && !exchange.meetRest()) return;
  for (int round = 0; round < n; ++round) {
    const int peer = device::ringRank(round, -work.rank, n);
    if (peer != work.rank) with(peer, true, !fits);
  }
  if (fits && !exchange.meetRest()) return;
  for (int round = 0; round < n && fits; ++round) {
    const int peer = device::ringRank(round, -work.rank, n);
    if (peer != work.rank) with(peer, false, true);
  }
}

// REQUIRES: announced to all.
template <class Team>
KOLO_DEVICE_CALL void runPairwise(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const auto outAt = [&](int peer) {
    const device::Range block = work.sendLayout.block(peer);
    return device::Piece{const_cast<unsigned char*>(work.send) + exchange.bytesOf(block.begin), exchange.bytesOf(block.count)};
  };
  const auto inAt = [&](int peer) {
    const device::Range block = work.recvLayout.block(peer);
    return device::Piece{work.recv + exchange.bytesOf(block.begin), exchange.bytesOf(block.count)};
  };
  exchange.copy(inAt(work.rank).data, outAt(work.rank).data, outAt(work.rank).bytes, work.streaming);
  trade(exchange, outAt, inAt);
}

}  // namespace kolo::algorithms
