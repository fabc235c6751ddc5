// one-shot: every rank sends to each peer what that peer's output needs, and each computes its own output from what arrives.
// One step, n (n - 1) messages: for small sizes. For collectives that only move data this is the direct exchange.
#pragma once

#include "algorithms/direct.h"
#include "algorithms/line.h"
#include "algorithms/pairwise.h"
#include "device/exchange.h"

namespace kolo::algorithms {

// All inputs in rank order, folded: outputs of all-reduce, reduce (root) and reduce-scatter.
// The part of the buffers that one rank folds is [block.begin, block.begin + block.count) of its input.
template <class Team>
KOLO_DEVICE_CALL void oneShotFold(device::Exchange<Team>& exchange) {
  using device::Collective;
  const device::Work& work = exchange.work();
  const int n = work.ranks;
  const bool toAll = work.signature.collective != Collective::kReduce;
  const bool folds = toAll || work.rank == work.root;
  const auto inputFor = [&](int rank) {
    return work.signature.collective == Collective::kReduceScatter ? work.sendLayout.block(rank)
                                                                   : work.sendLayout.block(0);
  };
  std::uint64_t longest = 0;
  for (int rank = 0; rank < n; ++rank) longest = inputFor(rank).count > longest ? inputFor(rank).count : longest;

  const std::uint64_t step = exchange.chunkElements();
  for (std::uint64_t c = 0; c * step < longest && !exchange.failed(); ++c) {
    for (int i = 1; i < n; ++i) {
      const int peer = device::ringRank(work.rank, i, n);
      if (!toAll && peer != work.root) continue;
      const device::Range chunk = device::chunkOf(inputFor(peer).count, step, c);
      exchange.send(peer, work.send + exchange.bytesOf(inputFor(peer).begin + chunk.begin),
                    exchange.bytesOf(chunk.count));
    }
    if (!exchange.meetRest()) return;
    const device::Range mine = inputFor(work.rank);
    const device::Range chunk = device::chunkOf(mine.count, step, c);
    if (!folds || chunk.count == 0) continue;
    const void* inputs[kMaxLineRanks];
    for (int rank = 0; rank < n; ++rank) {
      inputs[rank] = rank == work.rank ? work.send + exchange.bytesOf(mine.begin + chunk.begin)
                                       : exchange.awaitSlot(rank);
    }
    void* outputs[] = {work.recv + exchange.bytesOf(chunk.begin)};
    exchange.fold(outputs, 1, inputs, n, work.rank, exchange.bytesOf(chunk.count), true, work.streaming);
    for (int i = 1; i < n; ++i) exchange.releaseSlot(device::ringRank(work.rank, i, n));
  }
  exchange.meetRest();   // where there was nothing to fold
}

// Block by block for collectives that only move data: what rank `from` has for rank `to`, as both of them see it.
template <class Team>
KOLO_DEVICE_CALL void oneShotMove(device::Exchange<Team>& exchange) {
  using device::Collective;
  const device::Work& work = exchange.work();
  const int n = work.ranks;
  const bool scattered = work.signature.collective == Collective::kScatter;
  const bool gathered = work.signature.collective != Collective::kBroadcast &&
                        work.signature.collective != Collective::kScatter;
  const bool fromRootOnly = !gathered;
  const bool toRootOnly = work.signature.collective == Collective::kGather;
  const bool sends = !fromRootOnly || work.rank == work.root;
  const bool receives = !toRootOnly || work.rank == work.root;
  const auto outAt = [&](int peer) {
    const device::Range block = work.sendLayout.block(scattered ? peer : 0);
    return device::Piece{const_cast<unsigned char*>(work.send) + exchange.bytesOf(block.begin),
                         exchange.bytesOf(block.count)};
  };
  const auto inAt = [&](int peer) {
    const device::Range block = work.recvLayout.block(gathered ? peer : 0);
    return device::Piece{work.recv + exchange.bytesOf(block.begin), exchange.bytesOf(block.count)};
  };

  if (sends && receives) {
    exchange.copy(inAt(work.rank).data, outAt(work.rank).data, inAt(work.rank).bytes, work.streaming);
  }
  if (fromRootOnly || toRootOnly) {
    for (int i = 1; i < n; ++i) {
      const int peer = device::ringRank(work.rank, i, n);
      const bool sendsTo = sends && (!toRootOnly || peer == work.root) && work.rank != (toRootOnly ? work.root : -1);
      const bool receivesFrom = receives && (!fromRootOnly || peer == work.root) &&
                                work.rank != (fromRootOnly ? work.root : -1);
      exchange.exchange(peer, sendsTo ? 1 : 0, [&](int) { return outAt(peer); }, peer, receivesFrom ? 1 : 0,
                        [&](int) { return inAt(peer); });
    }
    return;
  }
  trade(exchange, outAt, inAt);
}

// Gather and scatter when the root's buffer is in a window (scatter: or can be read): everybody moves its own block, no
// staging, all at once.
template <class Team>
KOLO_DEVICE_CALL void directRooted(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const bool gather = work.signature.collective == device::Collective::kGather;
  const std::uint64_t bytes = exchange.bytesOf(gather ? work.sendLayout.block(0).count : work.recvLayout.block(0).count);
  const device::Layout& blocks = gather ? work.recvLayout : work.sendLayout;   // of the root
  const std::uint64_t place = exchange.bytesOf(blocks.block(work.rank).begin);
  if (gather) {
    exchange.copy(exchange.recvOf(work.root) + place, work.send, bytes, work.streaming);
  } else {
    exchange.take(work.recv, work.root, place, bytes);
  }
  finishAtRoot(exchange);
}

// REQUIRES: met all, or announced to all if sendsBeforeMeeting() (gather and scatter: the root has met all, the others the root).
template <class Team>
KOLO_DEVICE_CALL void runOneShotStaged(device::Exchange<Team>& exchange) {
  using device::Collective;
  switch (exchange.work().signature.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter: oneShotFold(exchange); break;
    // In place, what a block is exchanged for must have its own place: only the order of pairwise does that.
    case Collective::kAllToAll: runPairwise(exchange); break;
    default: oneShotMove(exchange); break;
  }
}

}  // namespace kolo::algorithms
