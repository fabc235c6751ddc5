// Bruck: ceil(log2 n) steps for any n, for short blocks (Bruck et al., "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", 1997).
#pragma once

#include "device/chunks.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"

namespace kolo::algorithms {

// In step k (1, 2, 4, ...) data goes to rank - k and comes from rank + k (all-gather), or the reverse (all-to-all). A
// pair may meet in two steps (n - k = k'); it exchanges one header all the same.
template <class Visit>
KOLO_DEVICE void eachBruckPeer(const device::Work& work, Visit visit) {
  const int n = work.ranks;
  for (int d = 1; d < n; ++d) {
    const bool forth = (d & (d - 1)) == 0, back = ((n - d) & (n - d - 1)) == 0;
    if (forth || back) visit(device::ringRank(work.rank, d, n));
  }
}

// Rank r holds blocks r, r + 1, ... of everybody; each step doubles their number. Blocks go straight to their final
// place.
template <class Team>
KOLO_DEVICE_CALL void bruckAllGather(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const int n = work.ranks;
  const auto piece = [&](int rank) { return work.output(work.recvLayout.block(device::ringRank(rank, 0, n))); };
  copy(exchange, piece(work.rank), work.input({0, work.recvLayout.block(work.rank).count}), false);
  exchange.team().sync();
  for (int k = 1; k < n; k *= 2) {
    const int blocks = k < n - k ? k : n - k;
    sendAndRecv(
        exchange, device::ringRank(work.rank, -k, n), blocks, [&](int i) { return piece(work.rank + i); },
        device::ringRank(work.rank, k, n), blocks, [&](int i) { return piece(work.rank + k + i); });
  }
}

// scratch[i] first holds the block for rank + i. In step k all blocks whose i has bit k travel k ranks onward; after
// the last step scratch[i] holds what rank - i has for this rank.
template <class Team>
KOLO_DEVICE_CALL void bruckAllToAll(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const int n = work.ranks;
  const std::uint64_t count = work.sendLayout.block(0).count;  // equally long
  const auto at = [&](int i) { return work.scratchElements().at({count * static_cast<std::uint64_t>(i), count}); };
  for (int i = 0; i < n; ++i) {
    copy(exchange, at(i), work.input(work.sendLayout.block(device::ringRank(work.rank, i, n))), false);
  }
  exchange.team().sync();
  for (int k = 1; k < n; k *= 2) {
    // The j-th index with bit k set is found by putting a 1 into bit k of j.
    const auto piece = [&](int j) { return at(((j & ~(k - 1)) << 1) | k | (j & (k - 1))); };
    int blocks = 0;
    for (int i = k; i < n; ++i) blocks += (i & k) != 0 ? 1 : 0;
    sendAndRecv(exchange, device::ringRank(work.rank, k, n), blocks, piece, device::ringRank(work.rank, -k, n), blocks,
                piece);
  }
  for (int i = 0; i < n; ++i) {
    copy(exchange, work.output(work.recvLayout.block(device::ringRank(work.rank, -i, n))), at(i), false);
  }
}

template <class Team>
KOLO_DEVICE_CALL void runBruck(device::Exchange<Team>& exchange, bool met) {
  const device::Work& work = exchange.work();
  const auto eachPeer = [&](auto visit) { eachBruckPeer(work, visit); };
  runWith(exchange, met, eachPeer, [&] {
    if (work.signature.collective == device::Collective::kAllGather) {
      bruckAllGather(exchange);
    } else {
      bruckAllToAll(exchange);
    }
  });
}

}  // namespace kolo::algorithms
