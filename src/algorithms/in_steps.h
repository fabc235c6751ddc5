// Carries out an algorithm of several steps: steps.h has the steps, this the ranks, the ranges and the blocks of each.
#pragma once

#include "algorithms/steps.h"
#include "device/exchange.h"

namespace kolo::algorithms {

template <class Team>
KOLO_DEVICE_CALL void executeStep(Team& team, const device::Work& work);

template <class Team>
class InSteps {
 public:
  // step: where each step is described, in the team's common memory.
  KOLO_DEVICE InSteps(device::Exchange<Team>& exchange, device::Work& step)
      : exchange_(exchange), work_(exchange.work()), grid_(*work_.steps.grid), step_(step) {}

  KOLO_DEVICE void run() {
    const StepList list = stepsOf(work_.signature.collective, work_.bytesOf(work_.recvLayout.block(0).count));
    forEachStep(list, grid_.axes, [&](const Step& step, int axis) {
      const int lines = step.eachLine ? grid_.lines[0].ranks : 1;
      for (int line = 0; line < lines && !exchange_.failed(); ++line) {
        Team& team = exchange_.team();
        if (team.leaderSays(team.leader() && describe(step, axis, line))) executeStep(team, step_);
      }
      if (step.collective == device::Collective::kReduceScatter) folded_ *= grid_.lines[axis].ranks;
      isFirst_ = false;
    });
  }

 private:
  // Where the parts of a step are.
  struct Place {
    device::Range slice;
    device::Layout blocks;  // the shares of the slice, counted from where it begins; or the blocks for the line
    device::Range share;
    device::Range aside;
  };

  // False: this rank has no part in the step, or there is no data. The headers of a step say what the whole is, so that
  // a mismatch is told as one of it. By the leader, when all have ended the last step.
  KOLO_DEVICE_CALL bool describe(const Step& step, int axis, int line) {
    const device::RankGroup& group = grid_.lines[axis];
    const int root = device::isIn(step.collective, device::kRooted) ? rootAlong(axis) : 0;
    if (step.onlyWithRoot && group.members[root] != work_.root) return false;
    const Place at = placeOf(step, axis, line);
    if (usesSlices(step) && at.slice.count == 0) return false;
    step_ = work_;
    step_.signature.collective = step.collective;
    step_.signature.algorithm = axis == 0 ? work_.steps.alongFirst : work_.steps.alongOthers;
    if (step.by != device::Algorithm::kCount) step_.signature.algorithm = step.by;
    step_.signature.vector = false;
    step_.steps = {.members = group.members};
    step_.ranks = group.ranks;
    step_.rank = group.rank;
    step_.root = root;
    step_.direct = device::Algorithm::kCount;
    step_.sharing = {};
    step_.header.countTo = step_.header.countFrom = nullptr;
    describeFold(step);
    describeBuffers(step, at);
    return true;
  }

  // What has been folded before are partial results, each of so many ranks.
  KOLO_DEVICE void describeFold(const Step& step) {
    if (!step.yields) step_.fold.divisor = 1;
    if (folded_ == 1) return;
    step_.fold.scaled = false;
    if (step_.fold.inputRanks != 0) step_.fold.inputRanks = static_cast<std::uint32_t>(folded_);
  }

  KOLO_DEVICE void describeBuffers(const Step& step, const Place& at) {
    const device::Range sent = lay(step.send, at, step_.sendLayout);
    if (step.send == Part::kAside) {
      step_.send = work_.scratchElements().at(sent).data;
      step_.recvLayout = step_.sendLayout;
    } else {
      step_.send = isFirst_ ? work_.input(sent).data : work_.output(sent).data;
    }
    const device::Range got = lay(step.recv, at, step_.recvLayout);
    if (step.recv == Part::kAside) {
      step_.recv = work_.scratchElements().at(got).data;
      step_.recvLayout.count = work_.recvLayout.count;
    } else {
      step_.recv = work_.output(got).data;
    }
  }

  // Where a part is; its blocks are laid out.
  KOLO_DEVICE device::Range lay(Part part, const Place& at, device::Layout& layout) const {
    switch (part) {
      case Part::kWhole: break;
      case Part::kLine: layout.order = at.blocks.order; break;
      case Part::kSlice:
        layout = device::isIn(step_.signature.collective, device::kDivided) ? at.blocks
                                                                            : device::Layout{.count = at.slice.count};
        return at.slice;
      case Part::kShare: layout = {.count = at.share.count}; return at.share;
      case Part::kAside: layout = {.count = at.aside.count}; return at.aside;
    }
    return {};
  }

  KOLO_DEVICE Place placeOf(const Step& step, int axis, int line) const {
    const int lastRanks = grid_.lines[grid_.axes - 1].ranks, place = grid_.lines[axis].rank;
    const std::uint64_t aside = work_.recvLayout.count * static_cast<std::uint64_t>(blocksAside(step, lastRanks));
    Place at;
    at.aside = {aside * static_cast<std::uint64_t>(line), aside};
    if (usesSlices(step)) {
      at.slice = sliceAlong(axis);
      at.blocks = sharesOf(at.slice, axis);
    } else {
      at.blocks = work_.recvLayout;
      at.blocks.order = step.eachLine ? grid_.ranks + std::int64_t{line} * lastRanks : grid_.lines[axis].members;
    }
    if (step.send == Part::kShare || step.recv == Part::kShare) {
      at.share = at.blocks.block(place);
      at.share.begin += at.slice.begin;
    }
    return at;
  }

  // What the steps along the axes behind this one leave to this rank, and to all others of its line.
  KOLO_DEVICE device::Range sliceAlong(int axis) const {
    const bool reduces = device::isIn(work_.signature.collective, device::kReducing);
    device::Range slice{0, (reduces ? work_.sendLayout : work_.recvLayout).block(0).count};
    for (int behind = grid_.axes - 1; behind > axis; --behind) {
      const device::Range share = sharesOf(slice, behind).block(grid_.lines[behind].rank);
      slice = {slice.begin + share.begin, share.count};
    }
    return slice;
  }
  KOLO_DEVICE device::Layout sharesOf(const device::Range& slice, int axis) const {
    return {.count = slice.count, .parts = grid_.lines[axis].ranks, .grain = work_.grain()};
  }

  // The place of the root on its line along an axis.
  KOLO_DEVICE int rootAlong(int axis) const {
    int at = 0;
    while (grid_.ranks[at] != work_.root) ++at;
    for (int behind = grid_.axes - 1; behind > axis; --behind) at /= grid_.lines[behind].ranks;
    return at % grid_.lines[axis].ranks;
  }

  device::Exchange<Team>& exchange_;
  const device::Work& work_;
  const device::Grid& grid_;
  device::Work& step_;
  int folded_ = 1;       // the ranks whose inputs are in each input of the next step
  bool isFirst_ = true;  // the next step
};

template <class Team>
KOLO_APART void executeInSteps(Team& team, const device::Work& work) {
  device::Exchange<Team> exchange(team, work);
  if constexpr (Team::kIsOneThread) {
    device::Work step;
    InSteps<Team>(exchange, step).run();
  } else {
    InSteps<Team>(exchange, team.step()).run();
  }
  team.sync();
}

}  // namespace kolo::algorithms
