// Zero-copy forms, for when all buffers lie in windows: every rank takes what it needs straight from the peers' memory
// and the work is divided evenly. One-shot: each output is computed where it is needed. Two-shot: each rank computes one slice
// and writes it to all, which moves the least memory that an all-reduce can (2 n S in all). Those that only take also serve
// ordinary buffers, where a transport can read them.
#pragma once

#include "device/exchange.h"

namespace kolo::algorithms {

inline constexpr int kMaxDirectRanks = 64;

// Every rank decides this alike, from all headers. REQUIRES: met all.
template <class Team>
KOLO_DEVICE_CALL bool everyBufferIsShared(device::Exchange<Team>& exchange) {
  using device::Collective;
  const device::Work& work = exchange.work();
  if (work.scaled) return false;
  for (int rank = 0; rank < work.ranks; ++rank) {
    const bool isRoot = rank == work.root;
    bool good = true;
    switch (work.signature.collective) {
      case Collective::kAllReduce: good = exchange.sendIsShared(rank) && exchange.recvIsShared(rank); break;
      case Collective::kReduce: good = exchange.sendIsShared(rank) && (!isRoot || exchange.recvIsShared(rank)); break;
      default: good = exchange.sendIsShared(rank); break;
    }
    if (!good) return false;
  }
  return true;
}

// Likewise: whether all that the others have to give can be taken, from windows or not.
template <class Team>
KOLO_DEVICE_CALL bool everyInputIsReadable(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  if (!work.readsPeers) return false;
  for (int rank = 0; rank < work.ranks; ++rank) {
    if (!exchange.sendIsReadable(rank)) return false;
  }
  return true;
}

// Folds elements [range) of all ranks' inputs, in rank order, into the outputs of ranks [first, last).
template <class Team>
KOLO_DEVICE_CALL void directFold(device::Exchange<Team>& exchange, device::Range range, int first, int last) {
  const device::Work& work = exchange.work();
  const void* inputs[kMaxDirectRanks];
  void* outputs[kMaxDirectRanks];
  // Long ranges go in blocks, so that the inputs of many ranks are not all streamed through a host's cache at once.
  const std::uint64_t step = Team::kFoldBytes / work.elementBytes;
  for (std::uint64_t at = 0; at < range.count && !exchange.failed(); at += step) {
    const std::uint64_t count = range.count - at < step ? range.count - at : step;
    for (int rank = 0; rank < work.ranks; ++rank) {
      inputs[rank] = exchange.sendOf(rank) + exchange.bytesOf(range.begin + at);
    }
    for (int rank = first; rank < last; ++rank) {
      outputs[rank - first] = exchange.recvOf(rank) + exchange.bytesOf(range.begin + at);
    }
    exchange.fold(outputs, last - first, inputs, work.ranks, -1, exchange.bytesOf(count), true, work.streaming);
  }
}

// All-reduce and reduce: slice `rank` of the result, to all or to the root.
template <class Team>
KOLO_DEVICE_CALL void directTwoShot(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const device::Range slice =
      device::alignedPart(work.recvLayout.block(0).count, work.ranks, work.rank, exchange.work().grain());
  if (work.signature.collective == device::Collective::kReduce) {
    directFold(exchange, slice, work.root, work.root + 1);
  } else {
    directFold(exchange, slice, 0, work.ranks);
  }
}

// Whether a rank copies its own block while it waits for the others' headers, whatever way the other blocks will go.
KOLO_DEVICE bool copiesOwnBlockFirst(const device::Work& work) {
  using device::Collective;
  return work.readsPeers && (work.signature.collective == Collective::kAllGather || work.signature.collective == Collective::kAllToAll);
}

// What every rank has for this one into the block of the output that is for it; this rank's own last, if that is not done yet.
template <class Team>
KOLO_DEVICE_CALL void directTake(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  for (int i = 1; i < work.ranks; ++i) {
    const int from = device::ringRank(work.rank, i, work.ranks);
    const device::Piece to = exchange.pieceFrom(from);
    exchange.take(to.data, from, 0, to.bytes);
  }
  if (!copiesOwnBlockFirst(work)) exchange.copyOwn();
}

// REQUIRES: met all peers; all buffers are shared, or all inputs readable, and the collective is one that only takes.
template <class Team>
KOLO_DEVICE_CALL void runDirect(device::Exchange<Team>& exchange, device::Algorithm algorithm) {
  using device::Collective;
  const device::Work& work = exchange.work();
  const std::uint64_t length = work.recvLayout.block(0).count;
  switch (work.signature.collective) {
    case Collective::kAllReduce:
      if (algorithm == device::Algorithm::kTwoShot) {
        directTwoShot(exchange);
      } else {
        directFold(exchange, {0, length}, work.rank, work.rank + 1);
      }
      break;
    case Collective::kReduce:
      if (algorithm == device::Algorithm::kTwoShot) {
        directTwoShot(exchange);
      } else if (work.rank == work.root) {
        directFold(exchange, {0, length}, work.rank, work.rank + 1);
      }
      break;
    case Collective::kReduceScatter: directFold(exchange, {0, work.partTo(work.rank).count}, work.rank, work.rank + 1); break;
    case Collective::kAllGather:
    case Collective::kAllToAll: directTake(exchange); break;
    default: break;
  }
  exchange.finishAll();
}

}  // namespace kolo::algorithms
