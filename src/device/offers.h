// What headers say of buffers: what this rank offers its peers, and what they have offered it. What is called a peer's
// input or output is the part that concerns this rank: all of a buffer that is not divided, else its own block,
// wherever that lies. Of its own buffers, too, this rank sees the part that concerns itself.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/host_device.h"
#include "device/link.h"
#include "device/path.h"
#include "device/segments.h"
#include "device/work.h"

namespace kolo::device {

// ---- this rank's own

// What a header says about the part of a buffer that concerns the peer. REQUIRES: something is offered.
KOLO_DEVICE WindowRef placeOffered(const Work& work, Offer offer, const WindowRef& ref, const unsigned char* buffer,
                                   const Range& part) {
  if (work.bytesOf(part.count) < work.pairsFromBytes) return {};
  const std::uint64_t begin = work.bytesOf(part.begin);
  if (offer == Offer::kWindow) return {ref.offset + begin, ref.index};
  return {reinterpret_cast<std::uint64_t>(buffer) + begin, 0};
}
// Of a list: where the segments are, in the place of the input, and their id in that of the output. A block begins at
// one logical address on all ranks.
KOLO_DEVICE WindowRef listOffered(const Work& work, std::uint64_t what) {
  return {work.sharing.input != Offer::kNothing ? what : 0, 0};
}

KOLO_DEVICE WindowRef offeredInput(const Work& work, int peer) {
  if (work.segments != nullptr) return listOffered(work, reinterpret_cast<std::uint64_t>(work.segments));
  if (work.sharing.input == Offer::kNothing) return {};
  return placeOffered(work, work.sharing.input, work.sendRef, work.send, work.partTo(peer));
}
KOLO_DEVICE WindowRef offeredOutput(const Work& work, int peer) {
  if (work.segments != nullptr) return listOffered(work, work.segments->id);
  if (work.sharing.output == Offer::kNothing) return {};
  return placeOffered(work, work.sharing.output, work.recvRef, work.recv, work.partFrom(peer));
}
KOLO_DEVICE bool stagesEarly(const Work& work) { return work.sharing.start == Start::kStagesEarly; }

// ---- the peers'; after meet(peer)

template <class Team>
KOLO_DEVICE bool isStagedEarly(const Exchange<Team>& exchange, int peer) {
  return exchange.linkTo(peer).theirRecv.index == kStagedEarly;
}
template <class Team>
KOLO_DEVICE WindowRef sendRefOf(const Exchange<Team>& exchange, int peer) {
  return peer == exchange.work().rank ? offeredInput(exchange.work(), peer) : exchange.linkTo(peer).theirSend;
}
template <class Team>
KOLO_DEVICE WindowRef recvRefOf(const Exchange<Team>& exchange, int peer) {
  return peer == exchange.work().rank ? offeredOutput(exchange.work(), peer) : exchange.linkTo(peer).theirRecv;
}
template <class Team>
KOLO_DEVICE bool sendIsShared(const Exchange<Team>& exchange, int peer) {
  return sendRefOf(exchange, peer).index != 0;
}
template <class Team>
KOLO_DEVICE bool recvIsShared(const Exchange<Team>& exchange, int peer) {
  return recvRefOf(exchange, peer).index != 0;
}
// Whether the peer's input may be taken, by whatever way.
template <class Team>
KOLO_DEVICE bool sendIsReadable(const Exchange<Team>& exchange, int peer) {
  return isGiven(sendRefOf(exchange, peer));
}
// Whether something may be put into the peer's output, by whatever way.
template <class Team>
KOLO_DEVICE bool recvIsWritable(const Exchange<Team>& exchange, int peer) {
  if (exchange.work().segments != nullptr && !exchange.work().sharing.writesPeers) return false;
  return isGiven(recvRefOf(exchange, peer));
}
// Whether the peer's input is its output.
template <class Team>
KOLO_DEVICE bool isInPlace(const Exchange<Team>& exchange, int peer) {
  const WindowRef send = sendRefOf(exchange, peer), recv = recvRefOf(exchange, peer);
  return send.index == recv.index && send.offset == recv.offset;
}

}  // namespace kolo::device
