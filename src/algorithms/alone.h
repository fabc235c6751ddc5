// A communicator of one rank: the result is its own contribution.
#pragma once

#include "device/exchange.h"
#include "device/folds.h"

namespace kolo::algorithms {

template <class Team>
KOLO_DEVICE_CALL void runAlone(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  if (work.signature.collective == device::Collective::kBarrier) return;
  const device::ConstPiece source = work.input(work.sendLayout.block(0));
  const device::Piece target = work.output(work.recvLayout.block(0));
  if (source.bytes == 0) return;
  void* outputs[] = {target.data};
  const void* inputs[] = {source.data, source.data};
  if (work.fold.yieldsTruth) {
    fold(exchange, outputs, 1, inputs, 2, -1, source.bytes, false, false);  // "x or x": 0 or 1
  } else if (work.fold.scaled) {
    fold(exchange, outputs, 1, inputs, 1, 0, source.bytes, false, false);
  } else {
    copy(exchange, target.data, source.data, source.bytes, work.streaming);
  }
}

}  // namespace kolo::algorithms
