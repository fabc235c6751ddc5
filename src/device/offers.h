// The facts of an operation from which path.h decides: what headers say of buffers, and what this rank has. "Input" and
// "output" mean one block here: the whole buffer where it is not divided, else the block that the two ranks exchange.
// This holds for the peer's buffers and for this rank's own.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/host_device.h"
#include "device/link.h"
#include "device/path.h"
#include "device/segments.h"
#include "device/work.h"

namespace kolo::device {

// ---- what this rank's header says

// Of a list: where the segments are, in the place of the input, and their id in that of the output. A block begins at
// one logical address on all ranks.
KOLO_DEVICE WindowRef listOffered(const Work& work, std::uint64_t what) {
  return {isOffered(work.sharing.input) ? what : 0, 0};
}
KOLO_DEVICE WindowRef placeOffered(const Work& work, Offer offer, const WindowRef& ref, const unsigned char* buffer,
                                   const Range& part) {
  if (!isOffered(offer) || work.bytesOf(part.count) < work.header.pairsFromBytes) return {};
  const std::uint64_t begin = work.bytesOf(part.begin);
  if (offer == Offer::kWindow) return {ref.offset + begin, ref.index};
  return {reinterpret_cast<std::uint64_t>(buffer) + begin, 0};
}
KOLO_DEVICE WindowRef offeredInput(const Work& work, int peer) {
  if (work.sharing.input == Offer::kInSlots) return {0, kInSlots};
  if (work.segments != nullptr) return listOffered(work, reinterpret_cast<std::uint64_t>(work.segments));
  return placeOffered(work, work.sharing.input, work.sendRef, work.send, work.partTo(peer));
}
KOLO_DEVICE WindowRef offeredOutput(const Work& work, int peer) {
  if (work.segments != nullptr) return listOffered(work, work.segments->id);
  return placeOffered(work, work.sharing.output, work.recvRef, work.recv, work.partFrom(peer));
}

// ---- what the peers' headers say, and this rank's own; after meet(peer)

template <class Team>
KOLO_DEVICE WindowRef sendRefOf(const Exchange<Team>& exchange, int peer) {
  return peer == exchange.work().rank ? offeredInput(exchange.work(), peer) : exchange.linkTo(peer).headers.theirSend;
}
template <class Team>
KOLO_DEVICE WindowRef recvRefOf(const Exchange<Team>& exchange, int peer) {
  return peer == exchange.work().rank ? offeredOutput(exchange.work(), peer) : exchange.linkTo(peer).headers.theirRecv;
}

// ---- the facts of a block

// Whether a block may be written by its giver: to the root of a gather, but not into a list of the root's.
KOLO_DEVICE bool mayBeWritten(const Work& work, std::uint64_t bytes) {
  return work.signature.collective == Collective::kGather && work.segments == nullptr &&
         work.direct != Algorithm::kCount && bytes >= work.header.pairsFromBytes;
}
// From this rank to a peer. After meet(peer), unless goesThroughSlots(): then nothing of its header matters.
template <class Team>
KOLO_DEVICE_CALL Path pathTo(const Exchange<Team>& exchange, int peer) {
  const Work& work = exchange.work();
  const std::uint64_t bytes = exchange.pieceTo(peer).bytes;
  const bool mayOffer = work.blocksMayBeDirect() && bytes >= work.header.pairsFromBytes;
  return pathOf(work.fitsHeader(bytes), mayOffer ? work.sharing.input : Offer::kNothing,
                mayBeWritten(work, bytes) ? offerOf(exchange.linkTo(peer).headers.theirRecv) : Offer::kNothing);
}
// From a peer to this rank. After meet(peer). Only the giver knows from which length on it offers a block.
template <class Team>
KOLO_DEVICE_CALL Path pathFrom(const Exchange<Team>& exchange, int peer) {
  const Work& work = exchange.work();
  const std::uint64_t bytes = exchange.pieceFrom(peer).bytes;
  return pathOf(work.fitsHeader(bytes),
                work.blocksMayBeDirect() ? offerOf(exchange.linkTo(peer).headers.theirSend) : Offer::kNothing,
                mayBeWritten(work, bytes) ? work.sharing.output : Offer::kNothing);
}

// ---- the facts of an operation

// Whether all ranks exchange headers before data, or with them: Meeting::kAll in the catalogue, which is not included
// here because a change of a cost would compile all kernels anew. A unit test compares the two.
KOLO_DEVICE bool meetsAll(Algorithm algorithm) {
  return algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kPairwise;
}

// Whether what this rank gives goes through slots whatever the headers say: its own buffers rule out the other ways.
// Of the blocks of an all-to-all that have paths of their own, those that do go first. Of operations with a root this
// is asked of a rank that only gives, and by one_shot.
KOLO_DEVICE bool goesThroughSlots(const Work& work) {
  const Collective collective = work.signature.collective;
  const bool isForced = work.direct == Algorithm::kCount || !isOffered(work.sharing.input);
  if (isIn(collective, kGivesAndTakes))
    return meetsAll(work.signature.algorithm) && (isForced || work.header.pairsFromBytes != 0);
  if (work.signature.algorithm != Algorithm::kOneShot || !onlyGives(work)) return false;
  if (collective != Collective::kGather) return isForced;
  // The root of a gather may offer a place, whatever this rank offers.
  const std::uint64_t bytes = work.bytesOf(work.partTo(work.root).count);
  return mayBeWritten(work, bytes) ? work.sharing.input == Offer::kInSlots
                                   : isForced || bytes < work.header.pairsFromBytes;
}

// Whether an operation goes in packets: all ranks know so without a header. The slots are for what the packets' movers
// do not know: lists, scaled inputs, and blocks whose length only the pair knows.
KOLO_DEVICE bool fitsPackets(const Work& work) {
  const bool isPossible = work.channel.packetBytes != 0 && work.ranks <= kMostFolded &&
                          work.direct == Algorithm::kCount &&
                          hasPacketForm(work.signature.algorithm, work.signature.collective) &&
                          work.segments == nullptr && !work.fold.scaled && work.header.pairsFromBytes == 0;
  if (!isPossible) return false;
  if (work.signature.algorithm == Algorithm::kTwoShot) {  // slices, of which the first is the longest
    const int slices = work.signature.collective == Collective::kBroadcast ? work.ranks - 1 : work.ranks;
    const Range first = alignedPart(work.sendLayout.block(0).count, slices, 0, work.grain());
    return work.bytesOf(first.count) <= work.channel.packetBytes;
  }
  const auto fits = [&](const Layout& layout, bool isDivided) {
    const int blocks = isDivided && layout.counts != nullptr ? work.ranks : 1;
    for (int i = 0; i < blocks; ++i) {
      if (work.bytesOf(layout.block(i).count) > work.channel.packetBytes) return false;
    }
    return true;
  };
  return fits(work.sendLayout, isIn(work.signature.collective, kSendsBlocks)) &&
         fits(work.recvLayout, isIn(work.signature.collective, kReceivesBlocks));
}

KOLO_DEVICE Opening openingOf(const Work& work) {
  const bool isBarrier = work.signature.collective == Collective::kBarrier;
  return openingOf({.fitsPackets = fitsPackets(work),
                    .meets = work.direct != Algorithm::kCount || (meetsAll(work.signature.algorithm) && !isBarrier),
                    .goesThroughSlots = goesThroughSlots(work),
                    .gets = !onlyGives(work),
                    .defersChecks = defersChecks(work.sharing.start)});
}

// REQUIRES: opened so.
template <class Team>
KOLO_DEVICE_CALL Course courseOf(const Exchange<Team>& exchange, Opening opening) {
  const Work& work = exchange.work();
  const Collective collective = work.signature.collective;
  if (opening != Opening::kMeets || work.direct == Algorithm::kCount) return courseOf({});  // no header says anything
  const bool isAllReduce = collective == Collective::kAllReduce;
  CourseFacts facts{.hasRoot = isIn(collective, kMeetsRootOnly),
                    .readsPeers = work.sharing.readsPeers,
                    .writesPeers = work.sharing.writesPeers && isAllReduce,
                    .isTwoShot = work.direct == Algorithm::kTwoShot};
  if (facts.hasRoot) {
    (collective == Collective::kGather ? facts.outputs : facts.inputs) =
        offerOf(collective == Collective::kGather ? recvRefOf(exchange, work.root) : sendRefOf(exchange, work.root));
    return courseOf(facts);
  }
  facts.inputs = facts.outputs = Offer::kWindow;
  for (int rank = 0; rank < work.ranks; ++rank) {
    facts.inputs = leastOf(facts.inputs, offerOf(sendRefOf(exchange, rank)));
    if (isAllReduce || (collective == Collective::kReduce && rank == work.root))
      facts.outputs = leastOf(facts.outputs, offerOf(recvRefOf(exchange, rank)));
  }
  return courseOf(facts);
}

}  // namespace kolo::device
