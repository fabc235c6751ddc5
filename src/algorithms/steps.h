// Algorithms of several steps, as data. A step is a collective among the ranks of one line of a grid (device::Grid), by
// an algorithm of its own. in_steps.h carries the steps out, and planner/network.h says what they cost.
//
// Over a grid of hosts: inside hosts, over mapped links, and between hosts, over posted ones, where each rank speaks
// with those that have its place on the other hosts. So all ranks, and the NICs near them, carry a share. (The manner
// of MPI-3 era multi-leader collectives: Kandalla et al., "Designing multi-leader-based Allgather algorithms for
// multi-core clusters", 2009.)
//
// Over a mesh, by rings: n ranks take 2 (d - 1) steps of a ring for each axis of d ranks instead of the 2 (n - 1) of
// one ring, and each rank sends and receives as many bytes as there. (Mikami et al., "Massively Distributed SGD:
// ImageNet/ResNet-50 Training in a Flash", 2018: the 2D-torus all-reduce.)
#pragma once

#include "device/work.h"

namespace kolo::algorithms {

// Along which axes of the grid a step goes, one after the other.
enum class Along : std::uint8_t {
  kFirst,
  kInwards,  // from the last axis to the second
  kOutwards  // from the second axis to the last
};

// What a step sends, or gets. The first step sends from the rank's input; later steps send from its output.
enum class Part : std::uint8_t {
  kWhole,  // all of the buffer
  kSlice,  // the elements that the line's ranks have in common: a rank's share of each axis behind this one
  kShare,  // this rank's share of the slice, or its block of those for the line
  kLine,   // the blocks for the ranks of the line
  kAside   // scratch memory: what a step gets for each line, and a later step sends in one piece for each line
};

struct Step {
  device::Collective collective = device::Collective::kCount;
  Along along = Along::kFirst;
  Part send = Part::kWhole, recv = Part::kWhole;
  bool onlyWithRoot = false;                         // only the line with the root takes part
  bool eachLine = false;                             // once for each line along the last axis, whose blocks it moves
  bool yields = false;                               // what it folds is the result, not a partial one
  device::Algorithm by = device::Algorithm::kCount;  // kCount: the axis's algorithm
};

struct StepList {
  int count = 0;
  Step steps[3];
};

// Longer broadcasts are cut into slices.
inline constexpr std::uint64_t kShortBytes = 32768;

// bytes: of a broadcast. REQUIRES: two axes, but for an all-reduce.
KOLO_DEVICE constexpr StepList stepsOf(device::Collective collective, std::uint64_t bytes) {
  using enum device::Collective;
  switch (collective) {
    case kAllReduce:  // each rank has its line's sum of its share, then the sum of all, then all shares
      return {3,
              {{kReduceScatter, Along::kInwards, Part::kSlice, Part::kShare},
               {kAllReduce, Along::kFirst, Part::kSlice, Part::kSlice, false, false, true},
               {kAllGather, Along::kOutwards, Part::kShare, Part::kSlice}}};
    case kAllGather:  // the blocks of the ranks with this place, then line by line those of the others
      return {2,
              {{kAllGather, Along::kFirst, Part::kWhole, Part::kLine},
               {kAllGather, Along::kOutwards, Part::kShare, Part::kLine, false, true}}};
    case kReduceScatter:  // for each line the sums of this one's ranks. REQUIRES: equal blocks
      return {2,
              {{kReduceScatter, Along::kInwards, Part::kLine, Part::kAside, false, true},
               {kReduceScatter, Along::kFirst, Part::kAside, Part::kWhole, false, false, true}}};
    case kAllToAll:  // what this line's ranks have for the others with this place. REQUIRES: equal blocks; lines in
                     // rows
      return {2,
              {{kAllToAll, Along::kInwards, Part::kLine, Part::kAside, false, true},
               {kAllToAll, Along::kFirst, Part::kAside, Part::kWhole}}};
    case kBroadcast:
      if (bytes <= kShortBytes) {
        return {2,
                {{kBroadcast, Along::kFirst, Part::kWhole, Part::kWhole, true},
                 {kBroadcast, Along::kOutwards, Part::kWhole, Part::kWhole}}};
      }
      return {3,  // the root's line cuts it into shares, and every line gathers them
              {{kScatter, Along::kInwards, Part::kSlice, Part::kShare, true, false, false, device::Algorithm::kOneShot},
               {kBroadcast, Along::kFirst, Part::kSlice, Part::kSlice},
               {kAllGather, Along::kOutwards, Part::kShare, Part::kSlice}}};
    default: return {};
  }
}

// Calls function(step, axis) for each step along each of its axes, in their order.
template <class Function>
KOLO_DEVICE constexpr void forEachStep(const StepList& list, int axes, Function&& function) {
  for (int i = 0; i < list.count; ++i) {
    const Step& step = list.steps[i];
    const int count = step.along == Along::kFirst ? 1 : axes - 1;
    for (int at = 0; at < count; ++at) {
      function(step, step.along == Along::kFirst ? 0 : step.along == Along::kOutwards ? at + 1 : count - at);
    }
  }
}

KOLO_DEVICE constexpr bool usesSlices(const Step& step) {
  return step.send == Part::kSlice || step.recv == Part::kSlice;
}

// Blocks in scratch memory for a line of so many ranks.
KOLO_DEVICE constexpr int blocksAside(const Step& step, int ranksInLine) {
  return step.collective == device::Collective::kAllToAll ? ranksInLine : 1;
}

}  // namespace kolo::algorithms
