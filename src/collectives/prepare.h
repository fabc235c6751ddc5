// Turns an operation into an executor's Work: the layout of its buffers, its algorithm, its chunks, and how its blocks
// are copied.
//
// Thread safety: under the communicator's turn.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "algorithms/catalogue.h"
#include "collectives/choices.h"
#include "collectives/copy_policy.h"
#include "collectives/operation.h"
#include "device/path.h"
#include "device/work.h"
#include "executor/context.h"

namespace kolo::executor::cuda {
struct Table;
}

namespace kolo::collectives {

inline constexpr Call kNoCall{.collective = device::Collective::kCount};

// An operation that is ready to run, as often as it is called.
struct Prepared {
  Call call = kNoCall;   // the call that finds it again, with counts or a list's words; kNoCall: none does
  std::size_t hash = 0;  // of these
  device::Work work;
  device::Sharing sharing;  // the most that a call offers
  executor::Context context;
  std::uint64_t scratchBytes = 0;                              // for the algorithm, in all channels
  std::uint64_t edgesEnd = 0;                                  // on the host: that, and a list's edges
  bool mayStageEarly = false;                                  // as CopyPolicy says
  bool isStagedAnyway = false;                                 // such a block went through slots at first
  device::Algorithm behindRoot = device::Algorithm::kCount;    // of a barrier, as in planner::Choice
  device::Algorithm behindOthers = device::Algorithm::kCount;  // of one that follows anything else
  // What `work` and `context` point to.
  std::shared_ptr<const VectorCounts> counts;
  std::shared_ptr<const CustomReduction> custom;
  std::shared_ptr<const List> list;
  std::shared_ptr<const LaidOut> laidOut;        // the list
  std::shared_ptr<executor::cuda::Table> table;  // the same for a GPU, after a launch
  executor::UserReduction user;

  bool is(const Call& given) const { return call == given; }
  bool is(const Call& given, const CountArrays& arrays) const { return call == given && counts->are(arrays); }
  bool is(const Words& said) const { return call != kNoCall && list != nullptr && list->said == said; }
};

// What all operations of a communicator share. The pointers' targets live as long as it does.
struct Site {
  int rank = 0;
  int ranks = 1;
  const planner::Machine* machine = nullptr;
  CopyPolicy copies;
  device::Link* links = nullptr;  // [ranks]
  device::Fault* fault = nullptr;
  std::uint32_t slots = 0, slotBytes = 0;
  std::uint64_t mostChunkBytes = 0;  // of a message between ranks that know its length
  std::uint64_t streamingBytes = 0;  // results from this size on bypass the caches
  // The ring's order of the ranks, host by host; empty: in rank order. members: the same, for an executor.
  const std::vector<int>* order = nullptr;
  const int* members = nullptr;
  // As an executor reads them, by algorithms::GridOf; null: there is none.
  const device::Grid* grids[static_cast<int>(algorithms::GridOf::kCount)] = {};
  bool pairsChooseInGather = false;  // each block of a one_shot gather has its own path
  executor::Context context;         // what no operation changes
  // Where a range of memory lies in the windows; index 0: in none that peers can use.
  std::function<device::WindowRef(const void* buffer, std::uint64_t bytes)> findWindow;
  std::function<bool()> hasWindows;           // the same on all ranks
  std::function<bool()> hasAbandonedWindows;  // others may still use a window this rank gave up
};

// prepared: new, or an old one to be overwritten.
void prepare(const Site& site, Choices& choices, const Operation& operation, Prepared& prepared);
// Why an operation that folds in rank order cannot be done among so many ranks.
Status checkFold(const Operation& operation, const Choices& choices, int ranks);

// Numbers the ranks host by host, so that a ring leaves each host once, if the algorithm uses neighbours and
// consecutive ranks are on different hosts. Call it again after a change of work.signature.algorithm.
void followOrder(const Site& site, device::Work& work);

// Bytes of a rank's whole input.
std::uint64_t inputBytes(const Operation& operation, int ranks);

}  // namespace kolo::collectives
