// Chunks through slots: the verbs that rings and trees are made of. 0 bytes: nothing happens, on either side.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/folds.h"
#include "device/host_device.h"
#include "device/pieces.h"
#include "device/slots.h"
#include "device/views.h"
#include "device/work.h"

namespace kolo::device {

// The peer gets this rank's contribution: src, with its scale applied.
template <class Team>
KOLO_DEVICE_CALL void send(Exchange<Team>& exchange, int peer, ConstPiece src) {
  if (src.bytes == 0) return;
  if (unsigned char* slot = acquireSlot(exchange, peer)) {
    contribute(exchange, slot, src);
    publishSlot(exchange, peer, src.bytes);
  }
}
// As send, of data that is a result already.
template <class Team>
KOLO_DEVICE_CALL void forward(Exchange<Team>& exchange, int peer, ConstPiece src) {
  if (src.bytes == 0) return;
  if (unsigned char* slot = acquireSlot(exchange, peer)) {
    move(exchange, slot, src.data, src.bytes, false);
    publishSlot(exchange, peer, src.bytes);
  }
}
template <class Team>
KOLO_DEVICE_CALL void recv(Exchange<Team>& exchange, int peer, Piece dst) {
  if (dst.bytes == 0) return;
  if (const unsigned char* slot = awaitSlot(exchange, peer)) {
    move(exchange, dst.data, slot, dst.bytes, exchange.work().streaming);
    releaseSlot(exchange, peer);
  }
}
// dst and the next rank get what the previous one sent.
template <class Team>
KOLO_DEVICE_CALL void recvForward(Exchange<Team>& exchange, int from, int to, Piece dst) {
  if (dst.bytes == 0) return;
  const unsigned char* slot = awaitSlot(exchange, from);
  unsigned char* next = slot != nullptr ? acquireSlot(exchange, to) : nullptr;
  if (next == nullptr) return;
  void* outputs[] = {next, dst.data};
  const void* inputs[] = {slot};
  fold(exchange, outputs, 2, inputs, 1, -1, dst.bytes, false, false);
  passSlot(exchange, to, dst.bytes, from);
}
// The next rank gets the previous one's partial result, of `before` ranks, with this rank's contribution folded in.
template <class Team>
KOLO_DEVICE_CALL void recvReduceSend(Exchange<Team>& exchange, int from, int to, ConstPiece own, int before) {
  if (own.bytes == 0) return;
  const unsigned char* slot = awaitSlot(exchange, from);
  unsigned char* next = slot != nullptr ? acquireSlot(exchange, to) : nullptr;
  if (next == nullptr) return;
  void* outputs[] = {next};
  foldOwn(exchange, outputs, 1, slot, before, own, false);
  passSlot(exchange, to, own.bytes, from);
}
// dst gets the finished result; the previous rank has sent the partial result of all others.
template <class Team>
KOLO_DEVICE_CALL void recvReduce(Exchange<Team>& exchange, int from, Piece dst, ConstPiece own) {
  if (own.bytes == 0) return;
  if (const unsigned char* slot = awaitSlot(exchange, from)) {
    void* outputs[] = {dst.data};
    foldOwn(exchange, outputs, 1, slot, exchange.work().ranks - 1, own, exchange.work().streaming);
    releaseSlot(exchange, from);
  }
}
// dst and the next rank get the finished result; the previous rank has sent the partial result of all others.
template <class Team>
KOLO_DEVICE_CALL void recvReduceForward(Exchange<Team>& exchange, int from, int to, Piece dst, ConstPiece own) {
  if (own.bytes == 0) return;
  const unsigned char* slot = awaitSlot(exchange, from);
  unsigned char* next = slot != nullptr ? acquireSlot(exchange, to) : nullptr;
  if (next == nullptr) return;
  void* outputs[] = {dst.data, next};
  foldOwn(exchange, outputs, 2, slot, exchange.work().ranks - 1, own, false);
  passSlot(exchange, to, own.bytes, from);
}

// One slot's worth; false when there was nothing left.
template <class Team, class At>
KOLO_DEVICE bool sendSome(Exchange<Team>& exchange, int peer, PieceStream<At>& stream) {
  if (!stream.skipEmpty()) return false;
  unsigned char* slot = acquireSlot(exchange, peer);
  if (slot == nullptr) return false;
  std::uint64_t filled = 0;
  stream.takeChunk(exchange.work().channel.chunkBytes,
                   [&](std::uint64_t place, unsigned char* data, std::uint64_t bytes) {
                     move(exchange, slot + place, data, bytes, false);
                     filled = place + bytes;
                   });
  publishSlot(exchange, peer, filled);
  return true;
}
template <class Team, class At>
KOLO_DEVICE bool recvSome(Exchange<Team>& exchange, int peer, PieceStream<At>& stream) {
  if (!stream.skipEmpty()) return false;
  const unsigned char* slot = awaitSlot(exchange, peer);
  if (slot == nullptr) return false;
  stream.takeChunk(exchange.work().channel.chunkBytes,
                   [&](std::uint64_t place, unsigned char* data, std::uint64_t bytes) {
                     move(exchange, data, slot + place, bytes, exchange.work().streaming);
                   });
  releaseSlot(exchange, peer);
  return true;
}

// Sends `out` and receives `in`, both or either, slot by slot in turn. Peers may be equal. Pieces are packed: a slot
// carries as many as fit, so both sides must list the same bytes in the same order. outAt(i) and inAt(i) give piece i.
// A byte of `out` is read before the byte of `in` at the same position of the stream is written. Sending is some chunks
// ahead of receiving (Channel::chunksAtOnce): a wire that has a latency is kept busy, and with one more slot than these
// nobody waits for a slot that is not emptied.
template <class Team, class OutAt, class InAt>
KOLO_DEVICE void sendAndRecv(Exchange<Team>& exchange, int to, int outPieces, OutAt outAt, int from, int inPieces,
                             InAt inAt) {
  PieceStream<OutAt> out(outPieces, outAt);
  PieceStream<InAt> in(inPieces, inAt);
  bool sending = true, receiving = true;
  for (std::uint32_t turn = 1; sending || receiving; turn += turn < exchange.work().channel.chunksAtOnce ? 1 : 0) {
    if (sending) sending = sendSome(exchange, to, out);
    if (receiving && turn == exchange.work().channel.chunksAtOnce) receiving = recvSome(exchange, from, in);
  }
  exchange.team().sync();
}

}  // namespace kolo::device
