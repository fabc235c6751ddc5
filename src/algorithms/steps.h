// Steps: collectives among parts of the ranks, by algorithms of their own. hierarchical.h and mesh_ring.h make
// collectives of them, one step after the other.
#pragma once

#include "device/exchange.h"

namespace kolo::algorithms {

template <class Team>
KOLO_DEVICE_CALL void executeStep(Team& team, const device::Work& work);

template <class Team>
class Steps {
 public:
  KOLO_DEVICE explicit Steps(device::Exchange<Team>& exchange) : exchange_(exchange), work_(exchange.work()) {}

  // The next step, whose layouts and buffers are those of the whole until the caller changes them. Headers say what the
  // whole is, so that a mismatch is told as one of it. One step at a time is described, in one place: each thread of a
  // GPU has this on its stack.
  KOLO_DEVICE device::Work& describe(device::Collective collective, device::Algorithm algorithm,
                                     const device::RankGroup& group) {
    step_ = work_;
    step_.signature.collective = collective;
    step_.signature.algorithm = algorithm;
    step_.signature.vector = false;
    step_.steps.members = group.members;
    step_.ranks = group.ranks;
    step_.rank = group.rank;
    step_.direct = device::Algorithm::kCount;
    step_.steps.hosts = nullptr;
    step_.steps.mesh = nullptr;
    step_.fold.divisor = 1;
    step_.sharing = {};
    step_.header.countTo = step_.header.countFrom = nullptr;
    return step_;
  }
  // The inputs of the step are partial results already, each of so many ranks.
  KOLO_DEVICE void foldsPartialResults(int ranks) {
    step_.fold.scaled = false;
    if (step_.fold.inputRanks != 0) step_.fold.inputRanks = static_cast<std::uint32_t>(ranks);
  }
  // The outputs of the step are the results.
  KOLO_DEVICE void yieldsResults() { step_.fold.divisor = work_.fold.divisor; }

  KOLO_DEVICE void run() {
    if (!exchange_.failed()) executeStep(exchange_.team(), step_);
  }

 private:
  device::Exchange<Team>& exchange_;
  const device::Work& work_;
  device::Work step_;
};

}  // namespace kolo::algorithms
