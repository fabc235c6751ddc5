// pairwise: all-to-all in n rounds; in round i rank r trades blocks with rank (i - r) mod n, so that in every round the
// ranks form pairs (one is alone). As both blocks of a trade have the same place in their buffers, it works in place.
#pragma once

#include "device/exchange.h"

namespace kolo::algorithms {

// REQUIRES: met all.
template <class Team>
void runPairwise(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  for (int round = 0; round < work.ranks; ++round) {
    const int peer = device::ringRank(round, -work.rank, work.ranks);
    const device::Range out = work.sendLayout.block(peer), in = work.recvLayout.block(peer);
    const unsigned char* source = work.send + exchange.bytesOf(out.begin);
    unsigned char* target = work.recv + exchange.bytesOf(in.begin);
    if (peer == work.rank) {
      exchange.copy(target, source, exchange.bytesOf(out.count), work.streaming);
      continue;
    }
    exchange.exchange(
        peer, 1, [&](int) { return device::Piece{const_cast<unsigned char*>(source), exchange.bytesOf(out.count)}; },
        peer, 1, [&](int) { return device::Piece{target, exchange.bytesOf(in.count)}; });
  }
}

}  // namespace kolo::algorithms
