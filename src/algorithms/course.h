// The facts from which device/path.h decides how a rank opens an operation, and how its data goes.
#pragma once

#include "algorithms/direct.h"
#include "algorithms/one_shot.h"
#include "device/exchange.h"
#include "device/offers.h"
#include "device/path.h"
#include "device/work.h"

namespace kolo::algorithms {

// Whether all ranks exchange headers before data, or with them: Meeting::kAll in the catalogue, which is not included
// here because a change of a cost would compile all kernels anew. A unit test compares the two.
KOLO_DEVICE bool meetsAll(device::Algorithm algorithm) {
  using device::Algorithm;
  return algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kPairwise;
}

KOLO_DEVICE device::Opening openingOf(const device::Work& work) {
  using device::Collective;
  using device::Offer;
  const Collective collective = work.signature.collective;
  const bool folds = collective == Collective::kAllReduce;
  return device::openingOf({
      .algorithmMeetsAll = meetsAll(work.signature.algorithm),
      .hasDirectForm = work.direct != device::Algorithm::kCount,
      .isBarrier = collective == Collective::kBarrier,
      .endsAtRoot = device::isIn(collective, device::kMeetsRootOnly),
      .givesAndTakes = device::isIn(collective, device::kGivesAndTakes),
      .pairsDecide = work.pairsFromBytes != 0 && collective == Collective::kAllToAll,
      .readsPeers = work.sharing.readsPeers,
      .isScaled = work.scaled,
      .ownBuffersAreShared = work.sharing.input == Offer::kWindow && (!folds || work.sharing.output == Offer::kWindow),
      .givesThroughSlots = givesThroughStaging(work),
      .defersChecks = device::defersChecks(work.sharing.start),
  });
}

// REQUIRES: opened so; met, if that says so.
template <class Team>
KOLO_DEVICE_CALL device::Course courseOf(device::Exchange<Team>& exchange, device::Opening opening) {
  using device::Collective;
  using device::Opening;
  const device::Work& work = exchange.work();
  const Collective collective = work.signature.collective;
  const bool owes = opening == Opening::kOwes;
  device::CourseFacts facts{
      .wentWithHeader = owes && givesByHeader(work),
      .hasDirectForm = opening != Opening::kSends && work.direct != device::Algorithm::kCount,
      .owes = owes,
      .endsAtRoot = device::isIn(collective, device::kMeetsRootOnly),
      .blocksMayDiffer = work.pairsFromBytes != 0 || (collective == Collective::kGather && work.segments != nullptr),
  };
  // What the headers say.
  if (facts.hasDirectForm && !owes) {
    if (facts.endsAtRoot) {
      facts.rootOffers =
          collective == Collective::kGather ? recvIsShared(exchange, work.root) : sendIsReadable(exchange, work.root);
    } else {
      facts.buffersAreShared = everyBufferIsShared(exchange);
      facts.inputsAreReadable = facts.buffersAreShared || goesByAddress(exchange);
    }
  }
  return device::courseOf(facts);
}

}  // namespace kolo::algorithms
