// line: the header line carries the payload. One line each way and nothing else: for tens of bytes, any collective.
#pragma once

#include "device/exchange.h"

namespace kolo::algorithms {

inline constexpr int kMaxLineRanks = 64;   // folded in one go

// The blocks that `from` holds for `to`: what `from` writes into its line to `to`.
inline device::Range lineBlock(const device::Work& work, int from, int to) {
  using device::Collective;
  switch (work.signature.collective) {
    case Collective::kAllReduce: return work.sendLayout.block(0);
    case Collective::kReduce: return to == work.root ? work.sendLayout.block(0) : device::Range{};
    case Collective::kBroadcast: return from == work.root ? work.sendLayout.block(0) : device::Range{};
    case Collective::kAllGather: return {0, work.recvLayout.block(from).count};
    case Collective::kReduceScatter: return work.sendLayout.block(to);
    case Collective::kAllToAll: return work.sendLayout.block(to);
    case Collective::kGather: return to == work.root ? work.sendLayout.block(0) : device::Range{};
    case Collective::kScatter: return from == work.root ? work.sendLayout.block(to) : device::Range{};
    default: return {};
  }
}

// Folds everybody's payload, in rank order.
template <class Team>
void lineFold(device::Exchange<Team>& exchange, const unsigned char* own, std::uint64_t bytes) {
  const device::Work& work = exchange.work();
  const void* inputs[kMaxLineRanks];
  void* outputs[] = {work.recv};
  for (int rank = 0; rank < work.ranks; ++rank) {
    inputs[rank] = rank == work.rank ? static_cast<const void*>(own) : exchange.headerOf(rank).payload;
  }
  exchange.fold(outputs, 1, inputs, work.ranks, work.rank, bytes, true, false);
}

template <class Team>
void runLine(device::Exchange<Team>& exchange) {
  using device::Collective;
  const device::Work& work = exchange.work();
  const auto collective = work.signature.collective;
  const bool rooted = collective == Collective::kReduce || collective == Collective::kBroadcast ||
                      collective == Collective::kGather || collective == Collective::kScatter;
  const bool isRoot = work.rank == work.root;
  unsigned char scaled[device::kHeaderPayloadBytes];

  const auto eachPeer = [&](auto visit) {
    if (rooted && !isRoot) {
      visit(work.root);
      return;
    }
    for (int i = 1; i < work.ranks; ++i) visit(device::ringRank(work.rank, i, work.ranks));
  };

  eachPeer([&](int peer) {
    const device::Range block = lineBlock(work, work.rank, peer);
    const unsigned char* source = work.send + exchange.bytesOf(block.begin);
    const std::uint64_t bytes = exchange.bytesOf(block.count);
    if (work.scale != nullptr && bytes != 0 && exchange.team().leader()) {
      void* output = scaled;
      const void* input = source;
      exchange.team().reduceAlone({&output, 1, &input, 1, block.count, work.scale, 0});
      source = scaled;
    }
    exchange.announce(peer, bytes != 0 ? source : scaled, static_cast<std::uint32_t>(bytes));
  });
  if (work.mayOwe && device::onlyGives(work)) {
    eachPeer([&](int peer) { exchange.owe(peer); });
  } else {
    bool good = true;
    eachPeer([&](int peer) { good = exchange.meet(peer) && good; });
    if (!good) return;
  }

  const device::Range mine = lineBlock(work, work.rank, work.rank);
  const unsigned char* own = work.send + exchange.bytesOf(mine.begin);
  const std::uint64_t bytes = exchange.bytesOf(mine.count);
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
      if (bytes != 0) lineFold(exchange, own, bytes);
      break;
    case Collective::kReduce:
      if (isRoot && bytes != 0) lineFold(exchange, own, bytes);
      break;
    case Collective::kBroadcast:
    case Collective::kScatter: {
      const std::uint64_t length = exchange.bytesOf(work.recvLayout.block(0).count);
      exchange.copy(work.recv, isRoot ? own : exchange.headerOf(work.root).payload, length, false);
      break;
    }
    case Collective::kAllGather:
    case Collective::kAllToAll:
    case Collective::kGather:
      if (collective == Collective::kGather && !isRoot) break;
      for (int rank = 0; rank < work.ranks; ++rank) {
        const device::Range block = work.recvLayout.block(rank);
        exchange.copy(work.recv + exchange.bytesOf(block.begin),
                      rank == work.rank ? own : exchange.headerOf(rank).payload, exchange.bytesOf(block.count), false);
      }
      break;
    default: break;   // a barrier is over
  }
}

}  // namespace kolo::algorithms
