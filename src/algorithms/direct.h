// Zero-copy forms, for when all buffers lie in windows: every rank takes what it needs straight from the peers' memory
// and the work is divided evenly. One-shot: each output is computed where it is needed. Two-shot: each rank computes
// one slice and writes it to all, which moves the least memory that an all-reduce can (2 n S in all). They also serve
// ordinary buffers: those that only take, and the one-shot reductions, where a transport can read them, two-shot where
// it can write them, too.
#pragma once

#include "algorithms/bounds.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/offers.h"
#include "device/peer_memory.h"

namespace kolo::algorithms {

// Of each peer's input, where it has to be read before it is folded; of all together, which is to stay in a core's
// cache.
KOLO_DEVICE std::uint64_t readAtOnce(int ranks) {
  constexpr std::uint64_t kTogether = 1 << 17, kPage = 1 << 12;
  const std::uint64_t pages = kTogether / static_cast<std::uint64_t>(ranks - 1) / kPage;
  return (pages != 0 ? pages : 1) * kPage;
}
// Scratch memory for that, of a fold. What it puts aside begins behind. readsPeers: peers' memory is read, and not only
// loaded from.
KOLO_DEVICE std::uint64_t bytesReadAside(int ranks, bool readsPeers) {
  return readsPeers ? readAtOnce(ranks) * static_cast<std::uint64_t>(ranks - 1) : 0;
}

// Where all inputs lie in memory from byte `begin` on. The result is how many bytes of each follow there, `most` at
// most. 0: some inputs have to be read first, or so few bytes follow that more of them should be copied at a time. All
// threads call.
template <class Team>
KOLO_DEVICE_CALL std::uint64_t inputsInMemory(device::Exchange<Team>& exchange, std::uint64_t begin,
                                              std::uint64_t most) {
  constexpr std::uint64_t kWorthwhile = 1 << 12;
  const std::uint64_t least = kWorthwhile < most ? kWorthwhile : most;
  std::uint64_t bytes = most;
  for (int rank = 0; rank < exchange.work().ranks && bytes >= least; ++rank) {
    const void* const input = inMemory(exchange, rank, begin, bytes);
    if (exchange.team().leader()) exchange.team().lists().inputs[rank] = input;
  }
  return bytes >= least ? bytes : 0;
}

// Where inputs and outputs lie, if all are in windows. The threads look them up side by side.
template <class Team>
KOLO_DEVICE_CALL void findInWindows(device::Exchange<Team>& exchange, std::uint64_t place, int first, int last,
                                    const device::Piece& result) {
  device::FoldLists& lists = exchange.team().lists();
  exchange.team().spread(exchange.work().ranks, [&](int rank) {
    lists.inputs[rank] = sendOf(exchange, rank, place, result.bytes);
    if (rank < first || rank >= last) return;
    lists.outputs[rank - first] =
        rank == exchange.work().rank ? result.data : recvOf(exchange, rank, place, result.bytes);
  });
}

// Folds elements [range) of all ranks' inputs, in rank order, into the outputs of ranks [first, last); `own`: this
// rank's, or what is put there later. What is not in memory that can be loaded from is brought here before, or put
// there after.
template <class Team>
KOLO_DEVICE_CALL void directFold(device::Exchange<Team>& exchange, device::Range range, int first, int last,
                                 const device::Elements& own) {
  const device::Work& work = exchange.work();
  Team& team = exchange.team();
  device::FoldLists& lists = team.lists();
  const bool areInWindows = work.segments == nullptr && !work.sharing.readsPeers;
  const auto least = [](std::uint64_t a, std::uint64_t b) { return a < b ? a : b; };
  // Long ranges go in blocks, so that the inputs of many ranks are not all streamed through a host's cache at once.
  for (std::uint64_t at = 0, count = 0; at < range.count && !exchange.failed(); at += count) {
    const std::uint64_t place = exchange.bytesOf(range.begin + at), left = exchange.bytesOf(range.count - at);
    const std::uint64_t most = least(left, Team::kFoldBytes);
    const std::uint64_t there = areInWindows ? most : inputsInMemory(exchange, place, most);
    const std::uint64_t room = readAtOnce(work.ranks);  // for each peer's input in scratch
    count = device::quotient(there != 0 ? there : least(left, room), work.elementBytes);
    const device::Piece result = own.at({range.begin + at, count});
    std::uint64_t inScratch = 0;
    for (int rank = 0; rank < work.ranks && there == 0; ++rank) {
      const void* const input = bring(exchange, work.scratchAt(inScratch, result.bytes), rank, place);
      if (team.leader()) lists.inputs[rank] = input;
      if (rank != work.rank) inScratch += room;
    }
    int outputCount = 0;
    if (areInWindows) {
      outputCount = last - first;
      findInWindows(exchange, place, first, last, result);
    }
    for (int rank = first; rank < last && !areInWindows; ++rank) {
      void* const output = rank == work.rank ? result.data : storesAt(exchange, rank, place, result.bytes);
      if (team.leader()) {
        lists.outputs[outputCount] = output;
        lists.isPut[rank] = output == nullptr;  // then own is one of the outputs
      }
      if (output != nullptr) ++outputCount;
    }
    const bool puts = outputCount < last - first;
    team.sync();  // the lists are there
    fold(exchange, lists.outputs, outputCount, lists.inputs, work.ranks, -1, result.bytes, true,
         work.streaming && !puts);
    team.sync();  // and needed no more
    for (int rank = first; rank < last && puts; ++rank) {
      if (lists.isPut[rank]) put(exchange, rank, place, result);
    }
    if (puts) team.sync();  // all know alike whether that has failed
  }
}

// All-reduce and reduce: slice `rank` of the result, to all or to the root.
template <class Team>
KOLO_DEVICE_CALL void directTwoShot(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  const device::Range slice = device::alignedPart(work.outputCount(), work.ranks, work.rank, work.grain());
  if (work.signature.collective == device::Collective::kReduce) {
    directFold(exchange, slice, work.root, work.root + 1, work.outputElements());
  } else {
    directFold(exchange, slice, 0, work.ranks, work.outputElements());
  }
}

// What every rank has for this one into the block of the output that is for it; this rank's own last.
template <class Team>
KOLO_DEVICE_CALL void directTake(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  for (int i = 1; i < work.ranks; ++i) {
    const int from = device::ringRank(work.rank, i, work.ranks);
    take(exchange, exchange.pieceFrom(from), from, 0);
  }
  copyOwn(exchange);
}

// REQUIRES: met all peers; all inputs are offered, and for a two-shot all outputs.
template <class Team>
KOLO_DEVICE_CALL void runDirect(device::Exchange<Team>& exchange, bool isTwoShot) {
  using device::Collective;
  const device::Work& work = exchange.work();
  const Collective collective = work.signature.collective;
  if (collective == Collective::kAllGather || collective == Collective::kAllToAll) {
    directTake(exchange);
    finishAll(exchange);
    return;
  }
  if (isTwoShot && collective != Collective::kReduceScatter) {
    directTwoShot(exchange);
    finishAll(exchange);
    return;
  }
  // One-shot: the output where it is needed. All-reduce in place, of what others read meanwhile, puts it aside until
  // they have.
  const std::uint64_t length =
      collective == Collective::kReduceScatter ? work.partTo(work.rank).count : work.outputCount();
  const bool aside = collective == Collective::kAllReduce && work.isInPlace();
  const device::Elements result =
      aside ? device::Elements{work.scratchAt(bytesReadAside(work.ranks, work.sharing.readsPeers), 0).data,
                               work.elementBytes}
            : work.outputElements();
  if (collective != Collective::kReduce || work.rank == work.root)
    directFold(exchange, {0, length}, work.rank, work.rank + 1, result);
  finishAll(exchange);
  if (aside) copy(exchange, work.output({0, length}), result.at({0, length}), work.streaming);
}

}  // namespace kolo::algorithms
