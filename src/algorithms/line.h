// line: the header line carries the payload. One line each way and nothing else: for tens of bytes, any collective.
#pragma once

#include "algorithms/bounds.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"

namespace kolo::algorithms {

// Folds everybody's payload, in rank order.
template <class Team>
KOLO_DEVICE_CALL void lineFold(device::Exchange<Team>& exchange, device::ConstPiece own) {
  const device::Work& work = exchange.work();
  const void** const inputs = exchange.team().lists().inputs;
  void* outputs[] = {work.recv};
  exchange.team().spread(
      work.ranks, [&](int rank) { inputs[rank] = rank == work.rank ? own.data : headerOf(exchange, rank).payload; });
  fold(exchange, outputs, 1, inputs, work.ranks, work.rank, own.bytes, true, false);
}

template <class Team>
KOLO_DEVICE_CALL void runLine(device::Exchange<Team>& exchange) {
  using device::isIn;
  const device::Work& work = exchange.work();
  const device::Collective collective = work.signature.collective;
  const bool gives = !device::onlyGets(work), gets = !device::onlyGives(work);
  // With a root everybody meets it alone; else each meets all, beginning with the next on the ring.
  const bool rootOnly = isIn(collective, device::kRooted) && work.rank != work.root;
  const int peers = rootOnly ? 1 : work.ranks - 1;
  const auto peerAt = [&](int i) { return rootOnly ? work.root : exchange.peerAt(i); };
  const bool blocks = isIn(collective, device::kSendsBlocks);
  const bool hasInput = work.rank == work.root || !isIn(collective, device::kFromRoot);
  const device::Range mine = hasInput ? work.sendLayout.block(blocks ? work.rank : 0) : device::Range{};

  if (!settleAll(exchange, device::kMaxOwed - 1)) return;
  exchange.team().spread(peers, [&](int i) {
    const int peer = peerAt(i);
    unsigned char scaled[device::kHeaderPayloadBytes];
    const device::Range block = !gives ? device::Range{} : blocks ? work.sendLayout.block(peer) : mine;
    device::ConstPiece source = work.input(block);
    if (work.fold.scaled && source.bytes != 0) {
      void* output = scaled;
      const void* input = source.data;
      exchange.team().reduceAlone({&output, 1, &input, 1, block.count, work.fold.scalar, 0});
      source.data = scaled;
    }
    announceAlone(exchange, peer, source.bytes != 0 ? source.data : scaled, static_cast<std::uint32_t>(source.bytes));
  });
  if (device::defersChecks(work.sharing.start) && !gets) {
    for (int i = 0; i < peers; ++i) owe(exchange, peerAt(i));
  } else {
    if (!settleAll(exchange, 0)) return;
    exchange.team().spread(peers, [&](int i) { meetAlone(exchange, peerAt(i)); });
    if (exchange.failed()) return;
  }

  if (!gets && !isIn(collective, device::kFromRoot)) return;  // the root of a broadcast gives to itself too
  const device::ConstPiece own = work.input(mine);
  const auto payloadOf = [&](int rank) { return rank == work.rank ? own.data : headerOf(exchange, rank).payload; };
  if (isIn(collective, device::kReducing)) {
    if (own.bytes != 0) lineFold(exchange, own);
  } else if (isIn(collective, device::kReceivesBlocks)) {
    exchange.team().spread(
        work.ranks, [&](int rank) { copyLine(exchange, work.output(work.recvLayout.block(rank)), payloadOf(rank)); });
  } else if (isIn(collective, device::kFromRoot)) {
    exchange.team().spread(1, [&](int) {
      copyLine(exchange, work.output({0, work.recvLayout.block(0).count}), payloadOf(work.root));
    });
  }
}

}  // namespace kolo::algorithms
