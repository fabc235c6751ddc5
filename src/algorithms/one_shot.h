// one-shot: every rank sends to each peer what that peer's output needs, and each computes its own output from what
// arrives. One step, n (n - 1) messages: for small sizes. For collectives that only move data this is the direct
// exchange.
#pragma once

#include "algorithms/direct.h"
#include "algorithms/line.h"
#include "algorithms/pairwise.h"
#include "device/chunks.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/offers.h"
#include "device/peer_memory.h"
#include "device/slots.h"
#include "device/transfers.h"

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
  const auto inputFor = [&](int rank) { return work.partTo(rank); };
  std::uint64_t longest = 0;
  for (int rank = 0; rank < n; ++rank) longest = inputFor(rank).count > longest ? inputFor(rank).count : longest;

  const std::uint64_t step = exchange.chunkElements();
  const auto chunkFor = [&](int rank, std::uint64_t c) {
    const device::Range whole = inputFor(rank), chunk = device::chunkOf(whole.count, step, c);
    return device::Range{whole.begin + chunk.begin, chunk.count};
  };
  for (std::uint64_t c = 0; c * step < longest && !exchange.failed(); ++c) {
    for (int i = 1; i < n; ++i) {
      const int peer = device::ringRank(work.rank, i, n);
      if (!toAll && peer != work.root) continue;
      send(exchange, peer, work.input(chunkFor(peer, c)));
    }
    if (!meetRest(exchange)) return;
    const device::Range mine = chunkFor(work.rank, c);
    if (!folds || mine.count == 0) continue;
    const void* inputs[kMaxLineRanks];
    for (int rank = 0; rank < n; ++rank) {
      inputs[rank] = rank == work.rank ? work.input(mine).data : awaitSlot(exchange, rank);
    }
    void* outputs[] = {work.output({mine.begin - inputFor(work.rank).begin, mine.count}).data};
    fold(exchange, outputs, 1, inputs, n, work.rank, exchange.bytesOf(mine.count), true, work.streaming);
    for (int i = 1; i < n; ++i) releaseSlot(exchange, device::ringRank(work.rank, i, n));
  }
  meetRest(exchange);  // where there was nothing to fold
}

// Whether this rank knows, before it has met anybody, that it sends one-shot through staging and gets nothing: then it
// need not wait for the others' headers. Others' buffers matter only if its own is offered, or if it is the root's that
// counts.
KOLO_DEVICE bool givesThroughStaging(const device::Work& work) {
  if (work.signature.algorithm != device::Algorithm::kOneShot || !device::onlyGives(work)) return false;
  if (work.direct == device::Algorithm::kCount || device::stagesEarly(work)) return true;
  if (work.signature.collective == device::Collective::kGather && work.segments == nullptr)
    return work.partTo(work.root).count * work.elementBytes < work.pairsFromBytes;
  return work.sharing.input == device::Offer::kNothing;
}

// Whether that goes with its header, and so nothing is left to do once that is written.
KOLO_DEVICE bool givesByHeader(const device::Work& work) {
  const bool givesOneBlock = work.signature.collective == device::Collective::kGather && work.rank != work.root;
  return givesOneBlock && work.fitsHeader(work.partTo(work.root).count * work.elementBytes);
}

// What the root of a broadcast puts into a peer's buffer while the peer takes the rest: the first 1/n, if the root has
// nothing else to do (in place), and can write there. Both know it.
template <class Team>
KOLO_DEVICE std::uint64_t pushedBytes(const device::Exchange<Team>& exchange, int peer) {
  const device::Work& work = exchange.work();
  const int root = work.root;
  if (work.signature.collective != device::Collective::kBroadcast) return 0;
  if (!sendIsReadable(exchange, root) || !isInPlace(exchange, root) || !recvIsWritable(exchange, peer)) return 0;
  return exchange.bytesOf(device::alignedPart(work.outputCount(), work.ranks, 0, work.grain()).count);
}

// Broadcast, scatter and gather: the root's side, and the others'. With the root's buffer in a window (broadcast,
// scatter: or readable), everybody moves its own block, no staging, all at once. Otherwise the root of a gather takes
// blocks that it can read.
template <class Team>
KOLO_DEVICE_CALL void moveAtRoot(device::Exchange<Team>& exchange, bool gives) {
  using device::Path;
  const int peers = exchange.work().ranks - 1;
  const auto transferOf = [&](int peer) { return gives ? transferTo(exchange, peer) : transferFrom(exchange, peer); };
  const Path theirs =
      gives ? Path::kPeerReads : Path::kPeerWrites;  // what the peers do by themselves, and say when they have
  bool awaits = false;
  copyOwn(exchange);
  for (int i = 0; i < peers; ++i) {
    const int peer = exchange.peerAt(i);
    const device::Transfer transfer = transferOf(peer);
    const device::Piece& block = transfer.piece;
    awaits = awaits || transfer.path == theirs;
    const std::uint64_t pushed = gives && transfer.path == Path::kPeerReads ? pushedBytes(exchange, peer) : 0;
    if (transfer.path == Path::kStaged) {
      sendAndRecv(
          exchange, peer, gives ? 1 : 0, [&](int) { return block; }, peer, gives ? 0 : 1, [&](int) { return block; });
    } else if (pushed != 0) {
      put(exchange, peer, 0, device::ConstPiece(block).first(pushed));
      sayFinished(exchange, peer, false);
    } else if (!gives && transfer.path == Path::kPeerReads) {
      takeAll(exchange, peer);
    }
  }
  if (!gives) takeFromHeaders(exchange);
  if (awaits) awaitFinished(exchange, [&](int peer) { return transferOf(peer).path == theirs; });
}
template <class Team>
KOLO_DEVICE_CALL void moveWithRoot(device::Exchange<Team>& exchange, bool gets) {
  using device::Path;
  const int root = exchange.work().root;
  const device::Transfer transfer = gets ? transferFrom(exchange, root) : transferTo(exchange, root);
  const device::Piece& block = transfer.piece;
  if (transfer.path == Path::kStaged) {
    sendAndRecv(
        exchange, root, gets ? 0 : 1, [&](int) { return block; }, root, gets ? 1 : 0, [&](int) { return block; });
  } else if (transfer.path == Path::kInline) {
    if (gets) takeFromHeader(exchange, root, block);
  } else if (transfer.path == Path::kPeerWrites) {
    put(exchange, root, 0, block);
    sayFinished(exchange, root, false);
  } else {
    const std::uint64_t pushed = gets ? pushedBytes(exchange, exchange.work().rank) : 0;
    if (gets) {
      take(exchange, block.after(pushed), root, pushed);
      sayFinished(exchange, root, true);
    }
    awaitFinished(exchange, [&](int peer) { return peer == root && (pushed != 0 || !gets); });
  }
}
template <class Team>
KOLO_DEVICE_CALL void moveFromOrToRoot(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const bool fromRoot = device::isIn(work.signature.collective, device::kFromRoot);
  if (work.rank == work.root) {
    moveAtRoot(exchange, fromRoot);
  } else {
    moveWithRoot(exchange, fromRoot);
  }
}

// REQUIRES: met all, or announced to all if the rank opens with Opening::kSends (broadcast, gather and scatter: the
// root has met all, the others the root, or owe that if givesThroughStaging(), and not givesByHeader()).
template <class Team>
KOLO_DEVICE_CALL void runOneShotStaged(device::Exchange<Team>& exchange) {
  using device::Collective;
  switch (exchange.work().signature.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter: oneShotFold(exchange); break;
    // In place, what a block is exchanged for must have its own place: only the order of pairwise does that.
    case Collective::kAllGather:
    case Collective::kAllToAll: runPairwise(exchange); break;
    case Collective::kBroadcast:
    case Collective::kGather:
    case Collective::kScatter: moveFromOrToRoot(exchange); break;
    case Collective::kBarrier:
    case Collective::kSendRecv:
    case Collective::kCount: break;
  }
}

}  // namespace kolo::algorithms
