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
#include "device/packets.h"
#include "device/peer_memory.h"
#include "device/peers_at_once.h"
#include "device/slots.h"

namespace kolo::algorithms {

// All inputs in rank order, folded: outputs of all-reduce, reduce (root) and reduce-scatter.
// The part of the buffers that one rank folds is [block.begin, block.begin + block.count) of its input.
template <class Team>
KOLO_DEVICE_CALL void oneShotFold(device::Exchange<Team>& exchange, device::Opening opening) {
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
  const auto peerAt = [&](int i) { return exchange.peerAt(i); };
  const auto pieceFor = [&](std::uint64_t c) {
    return [&, c](int peer) {
      return toAll || peer == work.root ? device::ConstPiece(work.input(chunkFor(peer, c))) : device::ConstPiece{};
    };
  };
  exchange.expectAtMost(exchange.bytesOf(inputFor(work.rank).count));
  const bool opens = postsWithData(opening);
  if (opens) openToAll(exchange, opening, n - 1, peerAt, pieceFor(0));
  for (std::uint64_t c = 0; c * step < longest && !exchange.failed(); ++c) {
    if (c != 0 || !opens) sendToAll(exchange, n - 1, peerAt, pieceFor(c));
    if (!meetRest(exchange)) return;
    const device::Range mine = chunkFor(work.rank, c);
    if (!folds || mine.count == 0) continue;
    const void** const inputs = exchange.team().lists().inputs;
    exchange.team().sync();
    exchange.team().spread(n, [&](int rank) {
      if (rank != work.rank) awaitAlone(exchange, exchange.linkTo(rank));
      inputs[rank] = rank == work.rank ? work.input(mine).data : filledSlot(exchange, rank);
    });
    void* outputs[] = {work.output({mine.begin - inputFor(work.rank).begin, mine.count}).data};
    fold(exchange, outputs, 1, inputs, n, work.rank, exchange.bytesOf(mine.count), true, work.streaming);
    releaseAll(exchange, n - 1, peerAt, [](int) { return true; });
  }
  meetRest(exchange);  // where there was nothing to fold
}

// The same in packets.
template <class Team>
KOLO_DEVICE_CALL void packetFold(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const bool toAll = work.signature.collective != device::Collective::kReduce;
  const bool folds = toAll || work.rank == work.root;
  const device::ConstPiece own = work.input(work.partTo(work.rank));
  const auto pieceFor = [&](int peer) {
    return toAll || peer == work.root ? device::ConstPiece(work.input(work.partTo(peer))) : device::ConstPiece{};
  };
  const auto pieceFrom = [&](int peer) { return device::Piece{unpackedFrom(exchange, peer), folds ? own.bytes : 0}; };
  const auto peerAt = [&](int i) { return exchange.peerAt(i); };
  if (!exchangePackets(exchange, work.ranks - 1, peerAt, pieceFor, pieceFrom)) return;
  if (folds && own.bytes != 0) foldUnpacked(exchange, own, work.output({0, work.partTo(work.rank).count}).data);
}

// The blocks of a collective that only moves data, in packets.
template <class Team>
KOLO_DEVICE_CALL void packetMove(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const bool meetsRoot = device::isIn(work.signature.collective, device::kMeetsRootOnly);
  const bool isRoot = meetsRoot && work.rank == work.root, isLeaf = meetsRoot && !isRoot;
  const auto peerAt = [&](int i) { return isLeaf ? work.root : exchange.peerAt(i); };
  const auto pieceFor = [&](int peer) {
    return gives(work, work.rank, peer) ? device::ConstPiece(exchange.pieceTo(peer)) : device::ConstPiece{};
  };
  const auto pieceFrom = [&](int peer) {
    return gives(work, peer, work.rank) ? exchange.pieceFrom(peer) : device::Piece{};
  };
  if (!exchangePackets(exchange, isLeaf ? 1 : work.ranks - 1, peerAt, pieceFor, pieceFrom)) return;
  if (!isLeaf) copyOwn(exchange);
}

// What the root of a broadcast puts into a peer's buffer while the peer takes the rest: the first 1/n, if the root has
// nothing else to do (in place), and can write there. Both know it.
template <class Team>
KOLO_DEVICE std::uint64_t pushedBytes(const device::Exchange<Team>& exchange, int peer) {
  const device::Work& work = exchange.work();
  if (work.signature.collective != device::Collective::kBroadcast || work.segments != nullptr) return 0;
  const device::WindowRef send = sendRefOf(exchange, work.root), recv = recvRefOf(exchange, work.root);
  const bool isInPlace = send.index == recv.index && send.offset == recv.offset;
  if (!device::isPushed(offerOf(send), isInPlace, offerOf(recvRefOf(exchange, peer)))) return 0;
  return exchange.bytesOf(device::alignedPart(work.outputCount(), work.ranks, 0, work.grain()).count);
}

// Broadcast, scatter and gather: the block between the root and a peer, or this rank and the root; of one that goes
// through slots, from byte `begin` on.
template <class Team>
KOLO_DEVICE void moveBlock(device::Exchange<Team>& exchange, int peer, bool gives, std::uint64_t begin) {
  using device::Path;
  const Path path = gives ? pathTo(exchange, peer) : pathFrom(exchange, peer);
  const device::Piece block = gives ? exchange.pieceTo(peer) : exchange.pieceFrom(peer);
  const bool isRead = path == Path::kPeerReads;
  const std::uint64_t pushed = isRead ? pushedBytes(exchange, gives ? peer : exchange.work().rank) : 0;
  if (path == Path::kStaged) {
    if (begin == block.bytes) return;
    const auto at = [&](int) { return block.after(begin); };
    sendAndRecv(exchange, peer, gives ? 1 : 0, at, peer, gives ? 0 : 1, at);
  } else if (gives && (path == Path::kPeerWrites || pushed != 0)) {
    put(exchange, peer, 0, isRead ? device::ConstPiece(block).first(pushed) : block);
    sayFinished(exchange, peer, false);
  } else if (!gives && isRead) {
    take(exchange, block.after(pushed), peer, pushed);
    sayFinished(exchange, peer, true);
  }
}
// Whether the peer says when it is done with this rank's buffer, which it reads or writes.
template <class Team>
KOLO_DEVICE bool isTouchedBy(const device::Exchange<Team>& exchange, int peer, bool gives) {
  using device::Path;
  if (gives) return pathTo(exchange, peer) == Path::kPeerReads;
  const Path path = pathFrom(exchange, peer);
  return path == Path::kPeerWrites || (path == Path::kPeerReads && pushedBytes(exchange, exchange.work().rank) != 0);
}
// Each block by its own path, all at once.
template <class Team>
KOLO_DEVICE_CALL void moveFromOrToRoot(device::Exchange<Team>& exchange, device::Opening opening) {
  const device::Work& work = exchange.work();
  const bool isRoot = work.rank == work.root;
  const bool gives = device::isIn(work.signature.collective, device::kFromRoot) == isRoot;
  const int peers = isRoot ? work.ranks - 1 : 1;
  const auto peerAt = [&](int i) { return isRoot ? exchange.peerAt(i) : work.root; };
  const bool opens = postsWithData(opening);
  if (!gives) expectLongest(exchange, peers, peerAt);
  bool isTouched = false;
  // What goes to all peers at once, or comes from them: the first chunks with the headers; else, by the threads of a
  // block, blocks that fit into a slot each. A team of one thread takes each block by itself.
  const auto atOnce = [&](int peer) {
    const device::Piece block = gives ? exchange.pieceTo(peer) : exchange.pieceFrom(peer);
    const bool isStaged = (gives ? pathTo(exchange, peer) : pathFrom(exchange, peer)) == device::Path::kStaged;
    const bool isShort = block.bytes <= work.channel.chunkBytes;
    if (!isStaged || !(opens || (isShort && !device::Exchange<Team>::kIsOneThread))) return device::Piece{};
    return isShort ? block : device::Piece{block.data, work.channel.chunkBytes};
  };
  if (opens) {
    openToAll(exchange, opening, peers, peerAt, atOnce);
  } else if (!device::Exchange<Team>::kIsOneThread) {
    if (gives) sendToAll(exchange, peers, peerAt, atOnce);
    else recvFromAll(exchange, peers, peerAt, atOnce);
  }
  if (isRoot) copyOwn(exchange);
  for (int i = 0; i < peers; ++i) {
    moveBlock(exchange, peerAt(i), gives, atOnce(peerAt(i)).bytes);
    isTouched = isTouched || isTouchedBy(exchange, peerAt(i), gives);
  }
  if (!gives) takeFromHeaders(exchange, peers, peerAt);
  if (!isTouched) return;
  awaitFinished(exchange,
                [&](int peer) { return (isRoot || peer == work.root) && isTouchedBy(exchange, peer, gives); });
}

// REQUIRES: opened as `opening` says.
template <class Team>
KOLO_DEVICE_CALL void runOneShotStaged(device::Exchange<Team>& exchange, device::Opening opening) {
  const device::Collective collective = exchange.work().signature.collective;
  if constexpr (Team::kPackets) {
    if (opening == device::Opening::kInPackets)
      return device::isIn(collective, device::kReducing) ? packetFold(exchange) : packetMove(exchange);
  }
  if (device::isIn(collective, device::kReducing)) return oneShotFold(exchange, opening);
  if (device::isIn(collective, device::kMeetsRootOnly)) return moveFromOrToRoot(exchange, opening);
  // In place, what a block is exchanged for must have its own place: only the order of pairwise does that.
  runPairwise(exchange, opening);
}

}  // namespace kolo::algorithms
