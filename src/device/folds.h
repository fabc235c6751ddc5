// Copies and reductions of an operation. All data that moves between buffers and slots goes through these: they alone
// know whether a buffer is an address or a list of segments, whether this rank's input has a scale, and what an average
// divides by.
#pragma once

#include <cstdint>

#include "device/copy_short.h"
#include "device/exchange.h"
#include "device/host_device.h"
#include "device/partition.h"
#include "device/segment_moves.h"
#include "device/shares.h"
#include "device/views.h"
#include "device/work.h"

namespace kolo::device {

template <class Team>
KOLO_APART void moveSegments(const Exchange<Team>& exchange, unsigned char* dst, const unsigned char* src,
                             std::uint64_t bytes, bool streaming) {
  SegmentMoves<Team>(exchange.team(), exchange.work()).copy(dst, src, bytes, streaming);
}
template <class Team>
KOLO_APART void foldSegments(const Exchange<Team>& exchange, void* const* outputs, int outputCount,
                             const void* const* inputs, int inputCount, int own, std::uint64_t bytes, bool last,
                             bool streaming, const FoldParts& parts) {
  SegmentMoves<Team>(exchange.team(), exchange.work())
      .fold(outputs, outputCount, inputs, inputCount, own, bytes, last, streaming, parts);
}

// All that is copied between buffers and slots.
template <class Team>
KOLO_DEVICE void move(const Exchange<Team>& exchange, unsigned char* dst, const unsigned char* src, std::uint64_t bytes,
                      bool streaming) {
  if constexpr (Team::kServesLists) {
    if (exchange.work().segments != nullptr) return moveSegments(exchange, dst, src, bytes, streaming);
  }
  exchange.team().copy(dst, src, bytes, streaming);
}
template <class Team>
KOLO_DEVICE void copy(const Exchange<Team>& exchange, unsigned char* dst, const unsigned char* src, std::uint64_t bytes,
                      bool streaming) {
  if (bytes != 0 && dst != src && !exchange.failed()) move(exchange, dst, src, bytes, streaming);
}
// REQUIRES: equally long.
template <class Team>
KOLO_DEVICE void copy(const Exchange<Team>& exchange, const Piece& dst, const ConstPiece& src, bool streaming) {
  copy(exchange, dst.data, src.data, dst.bytes, streaming);
}
// At most a header's payload; by one thread.
template <class Team>
KOLO_DEVICE void copyLine(const Exchange<Team>& exchange, Piece dst, const unsigned char* src) {
  if (dst.data != src && !exchange.failed()) copyShort(dst.data, src, static_cast<std::uint32_t>(dst.bytes));
}
// What this rank has for itself.
template <class Team>
KOLO_DEVICE_CALL void copyOwn(Exchange<Team>& exchange) {
  const int rank = exchange.work().rank;
  const Piece to = exchange.pieceFrom(rank);
  copy(exchange, to, exchange.pieceTo(rank), exchange.work().streaming);
}

// The weight of a partial result in a fold: see device/shares.h.
template <class Team>
KOLO_DEVICE float shareOf(const Exchange<Team>& exchange, int ranks) {
  return shareOf(exchange.work(), ranks);
}

// outputs = fold of inputs in their order; input `own` is this rank's, still without its scale (-1: none is); last: the
// fold is complete, so avg divides; parts: of which partial results it is made, if not of inputs of the work alone.
template <class Team>
KOLO_DEVICE_CALL void fold(const Exchange<Team>& exchange, void* const* outputs, int outputCount,
                           const void* const* inputs, int inputCount, int own, std::uint64_t bytes, bool last,
                           bool streaming, FoldParts parts = {}) {
  if (exchange.failed()) return;
  const Work& work = exchange.work();
  if constexpr (Team::kServesLists) {
    if (work.segments != nullptr) {
      foldSegments(exchange, outputs, outputCount, inputs, inputCount, own, bytes, last, streaming, parts);
      return;
    }
  }
  ReduceArgs args{.dst = outputs,
                  .dstCount = outputCount,
                  .src = inputs,
                  .srcCount = inputCount,
                  .count = quotient(bytes, work.elementBytes),
                  .scale = work.fold.scaled && own >= 0 ? work.fold.scalar : nullptr,
                  .scaledSource = work.fold.scaled ? own : -1,
                  .divisor = last ? work.fold.divisor : 1,
                  .streaming = streaming};
  foldShares(work, last, parts, args);
  exchange.team().reduce(args);
}

// Copy of this rank's input, with its scale applied.
template <class Team>
KOLO_DEVICE_CALL void contribute(const Exchange<Team>& exchange, unsigned char* dst, ConstPiece src) {
  if (!exchange.work().fold.scaled) {
    move(exchange, dst, src.data, src.bytes, false);
    return;
  }
  void* outputs[] = {dst};
  const void* inputs[] = {src.data};
  fold(exchange, outputs, 1, inputs, 1, 0, src.bytes, false, false);
}

// outputs = the partial result of `before` ranks, which lies in a slot, with this rank's contribution folded in.
template <class Team>
KOLO_DEVICE_CALL void foldOwn(const Exchange<Team>& exchange, void* const* outputs, int outputCount,
                              const unsigned char* slot, int before, ConstPiece own, bool streaming) {
  const void* inputs[] = {slot, own.data};
  const float weights[] = {shareOf(exchange, before), 1};
  fold(exchange, outputs, outputCount, inputs, 2, 1, own.bytes, before + 1 == exchange.work().ranks, streaming,
       {weights, before + 1});
}

}  // namespace kolo::device
