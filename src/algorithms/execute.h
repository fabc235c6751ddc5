// One operation from its description: the place where an algorithm's number becomes its text (executeStaged). What else
// is known of an algorithm stands in catalogue.h. Instantiated once for each executor.
#pragma once

#include "algorithms/alone.h"
#include "algorithms/bruck.h"
#include "algorithms/direct.h"
#include "algorithms/double_tree.h"
#include "algorithms/in_steps.h"
#include "algorithms/line.h"
#include "algorithms/one_shot.h"
#include "algorithms/pairwise.h"
#include "algorithms/recursive.h"
#include "algorithms/ring.h"
#include "algorithms/tree.h"
#include "algorithms/two_shot.h"
#include "device/headers.h"
#include "device/offers.h"
#include "device/path.h"

namespace kolo::algorithms {

// Posts headers and awaits them, as the opening says: to and from everybody, or, in broadcast, gather and scatter, only
// the root. A rank that sends first posts them with what it sends. False after a failure.
template <class Team>
KOLO_DEVICE_CALL bool open(device::Exchange<Team>& exchange, device::Opening opening) {
  using device::Opening;
  const device::Work& work = exchange.work();
  if (opening != Opening::kMeets) return true;
  if (device::isIn(work.signature.collective, device::kMeetsRootOnly) && work.rank != work.root) {
    announce(exchange, work.root);
    return meet(exchange, work.root);
  }
  announceAll(exchange);
  return meetAll(exchange);
}

// met: with everybody.
template <class Team>
KOLO_DEVICE_CALL void executeStaged(device::Exchange<Team>& exchange, device::Opening opening, bool met) {
  using device::Algorithm;
  switch (exchange.work().signature.algorithm) {
    case Algorithm::kLine: runLine(exchange); break;
    case Algorithm::kOneShot: runOneShotStaged(exchange, opening); break;
    case Algorithm::kTwoShot: runTwoShot(exchange, opening, met); break;
    case Algorithm::kPairwise: runPairwise(exchange, opening); break;
    case Algorithm::kRing: runRing(exchange, false, met); break;
    case Algorithm::kBiring: runRing(exchange, true, met); break;
    case Algorithm::kRecursive: runRecursive(exchange, met); break;
    case Algorithm::kBruck: runBruck(exchange, met); break;
    case Algorithm::kTree: runTree(exchange, opening, met); break;
    case Algorithm::kDoubleTree: runDoubleTree(exchange, met); break;
    case Algorithm::kHierarchical:
    case Algorithm::kMeshRing:  // of several steps: execute()
    case Algorithm::kCount: break;
  }
}

// One that is not made of steps, or one of those: a call of its own, for a GPU has no stack for functions that call
// themselves.
template <class Team>
KOLO_DEVICE_CALL void executeStep(Team& team, const device::Work& work) {
  using device::Algorithm;
  using device::Course;
  using device::Opening;
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
  const Opening opening = openingOf(work);
  if (!open(exchange, opening)) {
    team.sync();
    return;
  }
  const bool met = opening == Opening::kMeets && !device::isIn(work.signature.collective, device::kMeetsRootOnly);
  const Course course = courseOf(exchange, opening);
  team.took(course);
  switch (course) {
    case Course::kStaged: executeStaged(exchange, opening, met); break;
    case Course::kByBlock: moveFromOrToRoot(exchange, opening); break;
    case Course::kInWindows: runDirect(exchange, work.direct == Algorithm::kTwoShot); break;
    case Course::kByReading: runDirect(exchange, false); break;
    case Course::kByWriting: runDirect(exchange, true); break;
  }
  team.sync();
}

// All threads of the team call it with the same description.
template <class Team>
KOLO_DEVICE void execute(Team& team, const device::Work& work) {
  if (work.steps.grid != nullptr) return executeInSteps(team, work);
  executeStep(team, work);
}

}  // namespace kolo::algorithms
