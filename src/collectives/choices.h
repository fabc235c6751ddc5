// Which algorithm each operation of a communicator takes: the planner's choices for classes of sizes, and the user's
// overrides.
//
// Thread safety: set() and choose() under the communicator's turn, the other functions from any thread.
#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collectives/operation.h"
#include "planner/planner.h"

namespace kolo::collectives {

class Choices {
 public:
  // machine: read at each choice; lives longer. reproducible: every reduction folds in rank order (D12).
  Choices(const planner::Machine& machine, bool reproducible) : machine_(machine), reproducible_(reproducible) {}

  // Overrides, as koloCommSetAlgorithm takes them.
  Status set(std::string_view overrides);

  // Whether the operation folds all inputs at once, in the order of the ranks.
  bool inOrder(const Operation& operation) const;
  planner::Query queryFor(const Operation& operation) const;
  planner::Choice choose(const Operation& operation, std::uint64_t bytes);

  std::string explain(const planner::Query& query) const;
  // The fields of the plan that the choice decides.
  koloPlan_t describe(const planner::Query& query) const;

 private:
  static constexpr std::size_t kClasses = 66;

  const planner::Machine& machine_;
  const bool reproducible_;
  mutable std::mutex mutex_;  // for threads that ask beside the turn, in which alone overrides change
  std::vector<planner::Wish> overrides_;
  bool tellCallsApart_ = false;
  std::array<std::array<std::optional<planner::Choice>, kClasses>, static_cast<std::size_t>(device::Collective::kCount)>
      chosen_;
};

}  // namespace kolo::collectives
