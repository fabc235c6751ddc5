// One operation from its description: the place where an algorithm's number becomes its text (executeStaged). What else
// is known of an algorithm stands in catalogue.h. Instantiated once for each executor.
#pragma once

#include "algorithms/alone.h"
#include "algorithms/bruck.h"
#include "algorithms/direct.h"
#include "algorithms/double_tree.h"
#include "algorithms/hierarchical.h"
#include "algorithms/line.h"
#include "algorithms/one_shot.h"
#include "algorithms/pairwise.h"
#include "algorithms/recursive.h"
#include "algorithms/ring.h"
#include "algorithms/tree.h"
#include "algorithms/two_shot.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/offers.h"

namespace kolo::algorithms {

// Whether all ranks exchange headers before data, or with them: Meeting::kAll in the catalogue, which is not included
// here because a change of a cost would compile all kernels anew. A unit test compares the two.
KOLO_DEVICE bool meetsAll(device::Algorithm algorithm) {
  using device::Algorithm;
  return algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kPairwise;
}

// Whether this rank knows, before it has met anybody, that its data goes through the slots: its own buffers rule out
// the other ways, which need those of all. Then it sends at once and meets the others when it needs what they sent: one
// wait instead of two, which counts most where ranks share cores.
KOLO_DEVICE bool sendsBeforeMeeting(const device::Work& work) {
  using device::Algorithm;
  using device::Collective;
  const Collective collective = work.signature.collective;
  if (device::isIn(collective, device::kMeetsRootOnly)) return false;
  const bool reduces = collective == Collective::kAllReduce;
  const bool fits = meetsAll(work.signature.algorithm) && device::isIn(collective, device::kGivesAndTakes);
  if (work.pairsFromBytes != 0 && collective == Collective::kAllToAll) return true;  // pairs see to the rest themselves
  if (!fits || work.readsPeers) return false;
  if (work.direct == Algorithm::kCount || work.scaled) return true;
  const bool shared = work.shareable && work.sendRef.index != 0 && (!reduces || work.recvRef.index != 0);
  return !shared;
}

// Everybody (in broadcast, gather and scatter: everybody and the root) announces and meets, or leaves the meeting for
// later.
template <class Team>
KOLO_DEVICE_CALL bool meetEverybody(device::Exchange<Team>& exchange, bool later) {
  const device::Work& work = exchange.work();
  if (device::isIn(work.signature.collective, device::kMeetsRootOnly) && work.rank != work.root) {
    announce(exchange, work.root);
    if (!later) return meet(exchange, work.root);
    owe(exchange, work.root);
    return !exchange.failed();
  }
  announceAll(exchange);
  if (copiesOwnBlockFirst(work)) copyOwn(exchange);
  if (!later) return meetAll(exchange);
  for (int i = 1; i < work.ranks; ++i) owe(exchange, device::ringRank(work.rank, i, work.ranks));
  return !exchange.failed();
}

// The zero-copy form if all buffers lie in windows, or the single-copy form if the inputs can be read where they are:
// all ranks see from the same headers which it is. With a root, and where pairs decide, each block goes its way. False:
// nothing was done. REQUIRES: met.
template <class Team>
KOLO_DEVICE_CALL bool executeDirect(device::Exchange<Team>& exchange) {
  const device::Work& work = exchange.work();
  if (device::isIn(work.signature.collective, device::kMeetsRootOnly)) {
    const bool gather = work.signature.collective == device::Collective::kGather;
    const bool isDirect =
        work.pairsFromBytes != 0 || (gather ? recvIsShared(exchange, work.root) : sendIsReadable(exchange, work.root));
    if (!isDirect) return false;
    moveFromOrToRoot(exchange);
    return true;
  }
  const bool areShared = everyBufferIsShared(exchange);
  if (!areShared && !everyInputIsReadable(exchange)) return false;
  runDirect(exchange, areShared);
  return true;
}

template <class Team>
KOLO_DEVICE_CALL void executeStaged(device::Exchange<Team>& exchange, bool met) {
  using device::Algorithm;
  switch (exchange.work().signature.algorithm) {
    case Algorithm::kLine: runLine(exchange); break;
    case Algorithm::kOneShot: runOneShotStaged(exchange); break;
    case Algorithm::kTwoShot: runTwoShot(exchange, met); break;
    case Algorithm::kPairwise: runPairwise(exchange); break;
    case Algorithm::kRing: runRing(exchange, false, met); break;
    case Algorithm::kBiring: runRing(exchange, true, met); break;
    case Algorithm::kRecursive: runRecursive(exchange, met); break;
    case Algorithm::kBruck: runBruck(exchange, met); break;
    case Algorithm::kTree: runTree(exchange, met); break;
    case Algorithm::kDoubleTree: runDoubleTree(exchange, met); break;
    case Algorithm::kHierarchical:  // of steps: execute()
    case Algorithm::kCount: break;
  }
}

// One that is not made of steps, or one of those: a call of its own, for a GPU has no stack for functions that call
// themselves.
template <class Team>
KOLO_DEVICE_CALL void executeStep(Team& team, const device::Work& work) {
  using device::Algorithm;
  device::Exchange<Team> exchange(team, work);
  const Algorithm algorithm = work.signature.algorithm;
  if (work.ranks == 1) {
    runAlone(exchange);
    team.sync();
    return;
  }
  if (algorithm == Algorithm::kLine && work.direct == Algorithm::kCount) {
    runLine(exchange);
    team.sync();
    return;
  }
  const bool needsAll = work.signature.collective != device::Collective::kBarrier &&
                        (work.direct != Algorithm::kCount || meetsAll(algorithm));
  if (sendsBeforeMeeting(work)) {
    announceAll(exchange);
    team.sync();
    executeStaged(exchange, true);
    team.sync();
    return;
  }
  const bool later = work.mayOwe && givesThroughStaging(work);
  const bool good = !needsAll || meetEverybody(exchange, later);
  const bool isGiven = later && givesByHeader(work);
  const bool isDirect = good && !later && work.direct != Algorithm::kCount && executeDirect(exchange);
  if (good && !isGiven && !isDirect)
    executeStaged(exchange, needsAll && !device::isIn(work.signature.collective, device::kMeetsRootOnly));
  team.sync();
}

// All threads of the team call it with the same description.
template <class Team>
KOLO_DEVICE void execute(Team& team, const device::Work& work) {
  if constexpr (Team::kPosts) {
    if (work.signature.algorithm == device::Algorithm::kHierarchical) {
      device::Exchange<Team> exchange(team, work);
      runHierarchical(exchange);
      team.sync();
      return;
    }
  }
  executeStep(team, work);
}

}  // namespace kolo::algorithms
