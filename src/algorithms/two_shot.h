// two-shot through staging: blocks small enough to stay in the caches go through the slots; inside each block every
// rank reduces one slice from all inputs and hands it to all. The zero-copy form is in direct.h. A barrier has no data:
// all tell a root, which tells all.
#pragma once

#include "algorithms/direct.h"
#include "device/chunks.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/peers_at_once.h"
#include "device/slots.h"

namespace kolo::algorithms {

// Slice `rank` of the block, from all ranks, into the outputs: this rank's and, through their slots, the peers'.
template <class Team>
KOLO_DEVICE_CALL void twoShotReduceSlice(device::Exchange<Team>& exchange, device::Range slice, int firstTo,
                                         int lastTo) {
  const device::Work& work = exchange.work();
  device::FoldLists& lists = exchange.team().lists();
  const auto peerAt = [&](int i) { return exchange.peerAt(i); };
  const auto isTo = [&](int rank) { return firstTo <= rank && rank < lastTo; };
  exchange.team().sync();
  exchange.team().spread(work.ranks, [&](int rank) {
    const bool isOwn = rank == work.rank;
    if (!isOwn) awaitAlone(exchange, exchange.linkTo(rank));
    lists.inputs[rank] = isOwn ? work.input(slice).data : filledSlot(exchange, rank);
    if (!isTo(rank)) return;
    if (!isOwn) acquireAlone(exchange, exchange.linkTo(rank));
    lists.outputs[rank - firstTo] = isOwn ? work.output(slice).data : freeSlot(exchange, rank);
  });
  fold(exchange, lists.outputs, lastTo - firstTo, lists.inputs, work.ranks, work.rank, exchange.bytesOf(slice.count),
       true, false);
  tellAll(exchange, work.ranks - 1, peerAt, [&](device::Link& link, int i) {
    if (isTo(peerAt(i))) publish(exchange, link, exchange.bytesOf(slice.count));
    release(exchange, link);
  });
}

// All-reduce and reduce. REQUIRES: opened as `opening` says.
template <class Team>
KOLO_DEVICE_CALL void runTwoShotStaged(device::Exchange<Team>& exchange, device::Opening opening) {
  const device::Work& work = exchange.work();
  const int n = work.ranks;
  const bool toRoot = work.signature.collective == device::Collective::kReduce;
  const int firstTo = toRoot ? work.root : 0, lastTo = toRoot ? work.root + 1 : n;
  const std::uint64_t total = work.sendLayout.block(0).count;
  const std::uint64_t step = exchange.chunkElements() * static_cast<std::uint64_t>(n);
  const auto peerAt = [&](int i) { return exchange.peerAt(i); };
  const auto before = [&](int i) { return device::ringRank(work.rank, -i - 1, n); };
  exchange.expectAtMost((total > step ? work.channel.slots : 2) * std::uint64_t{work.channel.chunkBytes});
  bool opens = postsWithData(opening);

  for (std::uint64_t begin = 0; (opens || begin < total) && !exchange.failed(); begin += step) {
    const std::uint64_t count = total - begin < step ? total - begin : step;
    const auto slice = [&](int rank) {
      device::Range part = device::alignedPart(count, n, rank, exchange.work().grain());
      return device::Range{begin + part.begin, part.count};
    };
    const auto pieceFor = [&](int peer) { return device::ConstPiece(work.input(slice(peer))); };
    if (opens) openToAll(exchange, opening, n - 1, peerAt, pieceFor);
    else sendToAll(exchange, n - 1, peerAt, pieceFor);
    opens = false;
    if (!meetRest(exchange)) return;
    if (slice(work.rank).count != 0) twoShotReduceSlice(exchange, slice(work.rank), firstTo, lastTo);
    if (!toRoot || work.rank == work.root)
      recvFromAll(exchange, n - 1, before, [&](int peer) { return work.output(slice(peer)); });
  }
}

// The ranks other than the root meet each other. REQUIRES: they have met the root.
template <class Team>
KOLO_DEVICE_CALL bool meetBesidesRoot(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const auto visit = [&](auto action) {
    for (int i = 0; i < work.ranks - 1 && work.rank != work.root; ++i) {
      if (exchange.peerAt(i) != work.root) action(exchange.peerAt(i));
    }
  };
  bool good = true;
  visit([&](int peer) { announce(exchange, peer); });
  visit([&](int peer) { good = good && meet(exchange, peer); });
  return good;
}

// Broadcast as scatter and all-gather of slices: the root sends each byte once. REQUIRES: met all, or the root alone,
// and the root all.
template <class Team>
KOLO_DEVICE_CALL void runTwoShotBroadcast(device::Exchange<Team>& exchange, bool met) {
  const device::Work& work = exchange.work();
  const int n = work.ranks;
  const bool isRoot = work.rank == work.root;
  if (!met && !meetBesidesRoot(exchange)) return;
  const std::uint64_t total = work.recvLayout.block(0).count;
  const std::uint64_t step = exchange.chunkElements() * static_cast<std::uint64_t>(n - 1);
  // Slices go to the n - 1 ranks after the root.
  const auto slice = [&](int rank, std::uint64_t begin, std::uint64_t count) {
    const int at = device::ringRank(rank, -work.root - 1, n);
    device::Range part = device::alignedPart(count, n - 1, at, exchange.work().grain());
    return device::Range{begin + part.begin, part.count};
  };
  const auto peerAt = [&](int i) { return exchange.peerAt(i); };
  const auto before = [&](int i) { return device::ringRank(work.rank, -i - 1, n); };
  if (isRoot) copy(exchange, work.output({0, total}), work.input({0, total}), work.streaming);

  for (std::uint64_t begin = 0; begin < total && !exchange.failed(); begin += step) {
    const std::uint64_t count = total - begin < step ? total - begin : step;
    if (isRoot) {
      sendToAll(exchange, n - 1, peerAt,
                [&](int peer) { return device::ConstPiece(work.input(slice(peer, begin, count))); });
      continue;
    }
    const device::Range mine = slice(work.rank, begin, count);
    recv(exchange, work.root, work.output(mine));
    exchange.team().sync();
    sendToAll(exchange, n - 1, peerAt, [&](int peer) {
      return peer != work.root ? device::ConstPiece(work.output(mine)) : device::ConstPiece{};
    });
    recvFromAll(exchange, n - 1, before,
                [&](int peer) { return peer != work.root ? work.output(slice(peer, begin, count)) : device::Piece{}; });
  }
}

// Header lines only. The root goes on first.
template <class Team>
KOLO_DEVICE_CALL void runTwoShotBarrier(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  if (work.rank == work.root) {
    if (meetAll(exchange)) announceAll(exchange);
  } else {
    announce(exchange, work.root);
    meet(exchange, work.root);
  }
}

template <class Team>
KOLO_DEVICE_CALL void runTwoShot(device::Exchange<Team>& exchange, device::Opening opening, bool met) {
  switch (exchange.work().signature.collective) {
    case device::Collective::kBroadcast: runTwoShotBroadcast(exchange, met); break;
    case device::Collective::kBarrier: runTwoShotBarrier(exchange); break;
    default: runTwoShotStaged(exchange, opening); break;
  }
}

}  // namespace kolo::algorithms
