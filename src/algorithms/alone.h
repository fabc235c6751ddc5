// A communicator of one rank: the result is its own contribution.
#pragma once

#include "device/exchange.h"
#include "device/folds.h"

namespace kolo::algorithms {

template <class Team>
KOLO_DEVICE_CALL void runAlone(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  if (work.signature.collective == device::Collective::kBarrier) return;
  const device::Range from = work.sendLayout.block(0), to = work.recvLayout.block(0);
  const unsigned char* const source = work.send + exchange.bytesOf(from.begin);
  unsigned char* const target = work.recv + exchange.bytesOf(to.begin);
  const std::uint64_t bytes = exchange.bytesOf(from.count);
  if (bytes == 0) return;
  void* outputs[] = {target};
  const void* inputs[] = {source, source};
  if (work.yieldsTruth) {
    fold(exchange, outputs, 1, inputs, 2, -1, bytes, false, false);  // "x or x": 0 or 1
  } else if (work.scaled) {
    fold(exchange, outputs, 1, inputs, 1, 0, bytes, false, false);
  } else {
    copy(exchange, target, source, bytes, work.streaming);
  }
}

}  // namespace kolo::algorithms
