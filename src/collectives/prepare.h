// From an operation to the description that an executor gets: the layout of its buffers, its algorithm, its chunks, and
// how its blocks are copied.
//
// Thread safety: under the communicator's turn.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

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
  Call call = kNoCall;   // the call that finds it again; kNoCall: none does
  std::size_t hash = 0;  // by which it is found then
  device::Work work;
  device::Sharing sharing;  // the most that a call offers
  executor::Context context;
  std::uint64_t scratchBytes = 0;                            // that the algorithm needs, by all channels together
  std::uint64_t edgesEnd = 0;                                // on the host: of that, and of a list's edges behind it
  bool mayStageEarly = false;                                // as CopyPolicy says
  bool isStagedAnyway = false;                               // such a block: it has gone through slots the first time
  device::Algorithm behindRoot = device::Algorithm::kCount;  // as planner::Choice says; and behind anything else:
  device::Algorithm behindOthers = device::Algorithm::kCount;
  // What `work` and `context` point to.
  std::shared_ptr<const VectorCounts> counts;
  std::shared_ptr<const CustomReduction> custom;
  std::shared_ptr<const List> list;
  std::shared_ptr<const LaidOut> laidOut;        // the list
  std::shared_ptr<executor::cuda::Table> table;  // the same where a GPU reads it, once it has been launched
  executor::UserReduction user;
};

// What all operations of a communicator have in common. Pointers: to what lives as long as the communicator.
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
  // The order of the ranks along a ring, host by host; empty: as they are numbered. members: the same, where an
  // executor reads it.
  const std::vector<int>* order = nullptr;
  const int* members = nullptr;
  const device::Hosts* hosts = nullptr;  // as an executor reads it
  const device::Mesh* mesh = nullptr;    // as an executor reads it; null: the communicator is no mesh
  bool pairsChooseInGather = false;      // the blocks of a one-shot gather go by the path that fits each
  executor::Context context;             // but for what depends on the operation
  // Where a range of memory lies in the windows; index 0: in none that peers can use.
  std::function<device::WindowRef(const void* buffer, std::uint64_t bytes)> findWindow;
  std::function<bool()> hasWindows;           // the same on all ranks
  std::function<bool()> hasAbandonedWindows;  // this rank has windows in which the others may look in vain
};

// REQUIRES: prepared is new, but for what it holds.
void prepare(const Site& site, Choices& choices, const Operation& operation, Prepared& prepared);
// Why an operation that folds in rank order cannot be done among so many ranks.
Status checkFold(const Operation& operation, const Choices& choices, int ranks);

// For algorithms whose ranks talk to neighbours, where ranks that follow each other by number are on different hosts:
// numbers the ranks host by host, so that a ring leaves each host once. Also after a change of
// work.signature.algorithm.
void followOrder(const Site& site, device::Work& work);

// Bytes of a rank's whole input.
std::uint64_t inputBytes(const Operation& operation, int ranks);

}  // namespace kolo::collectives
