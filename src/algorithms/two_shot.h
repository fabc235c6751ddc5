// two-shot through staging: blocks small enough to stay in the caches go through the slots; inside each block every
// rank reduces one slice from all inputs and hands it to all. Small operations of a GPU go in packets, in two steps
// likewise. The zero-copy form is in direct.h. A barrier has no data: all tell a root, which tells all.
#pragma once

#include "algorithms/direct.h"
#include "device/chunks.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/packets.h"
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

// The same in packets: the slices of the inputs, and then those of the result.
template <class Team>
KOLO_DEVICE_CALL void packetTwoShot(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const int peers = work.ranks - 1;
  const bool toAll = work.signature.collective == device::Collective::kAllReduce, isRoot = work.rank == work.root;
  const std::uint64_t total = work.sendLayout.block(0).count;
  const auto slice = [&](int rank) { return device::alignedPart(total, work.ranks, rank, work.grain()); };
  const device::ConstPiece own = work.input(slice(work.rank));
  const auto peerAt = [&](int i) { return exchange.peerAt(i); };
  const auto inputFor = [&](int peer) { return device::ConstPiece(work.input(slice(peer))); };
  const auto inputFrom = [&](int peer) { return device::Piece{unpackedFrom(exchange, peer), own.bytes}; };
  if (!exchangePackets(exchange, peers, peerAt, inputFor, inputFrom)) return;

  // What goes to a root alone is folded where the root's own part of it lies.
  unsigned char* const result =
      toAll || isRoot ? work.output(slice(work.rank)).data : unpackedFrom(exchange, work.root);
  if (own.bytes != 0) foldUnpacked(exchange, own, result);
  const auto resultFor = [&](int peer) {
    return device::ConstPiece{result, toAll || peer == work.root ? own.bytes : 0};
  };
  const auto resultFrom = [&](int peer) { return toAll || isRoot ? work.output(slice(peer)) : device::Piece{}; };
  exchangePackets(exchange, peers, peerAt, resultFor, resultFrom);
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

// The same in packets.
template <class Team>
KOLO_DEVICE_CALL void packetTwoShotBroadcast(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const bool isRoot = work.rank == work.root;
  const int slices = work.ranks - 1, mine = device::ringRank(work.rank, -work.root - 1, work.ranks);
  const std::uint64_t total = work.sendLayout.block(0).count;
  // Slice i goes to the i-th rank behind the root.
  const auto rankOf = [&](int i) { return device::ringRank(work.root, i + 1, work.ranks); };
  const auto slice = [&](int rank) {
    return device::alignedPart(total, slices, device::ringRank(rank, -work.root - 1, work.ranks), work.grain());
  };
  const auto outputFrom = [&](int rank) { return work.output(slice(rank)); };
  if (isRoot) {
    const auto inputFor = [&](int peer) { return device::ConstPiece(work.input(slice(peer))); };
    const auto nothing = [](int) { return device::Piece{}; };
    if (!exchangePackets(exchange, slices, rankOf, inputFor, nothing)) return;
    copy(exchange, work.output({0, total}), work.input({0, total}), work.streaming);
    return;
  }
  const device::ConstPiece own(outputFrom(work.rank));
  const auto root = [&](int) { return work.root; };
  const auto nothing = [](int) { return device::ConstPiece{}; };
  const auto fromRoot = [&](int) { return outputFrom(work.rank); };
  if (!exchangePackets(exchange, 1, root, nothing, fromRoot)) return;
  const auto peerAt = [&](int i) { return rankOf(device::ringRank(mine, i + 1, slices)); };
  exchangePackets(
      exchange, slices - 1, peerAt, [&](int) { return own; }, outputFrom);
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
  if constexpr (Team::kPackets) {
    if (opening == device::Opening::kInPackets) {
      if (exchange.work().signature.collective == device::Collective::kBroadcast) packetTwoShotBroadcast(exchange);
      else packetTwoShot(exchange);
      return;
    }
  }
  switch (exchange.work().signature.collective) {
    case device::Collective::kBroadcast: runTwoShotBroadcast(exchange, met); break;
    case device::Collective::kBarrier: runTwoShotBarrier(exchange); break;
    default: runTwoShotStaged(exchange, opening); break;
  }
}

}  // namespace kolo::algorithms
