// What a communicator's operations are planned and prepared with, and those that are ready to run again.
//
// Thread safety: under the communicator's turn, but for describe(), outdate(), and what choices() says of itself, which
// any thread may call.
// Invariant: an operation that recall() finds was prepared with the windows and the wishes of now.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "collectives/choices.h"
#include "collectives/prepare.h"
#include "collectives/prepared_operations.h"
#include "comm/operation.h"
#include "comm/parts.h"
#include "planner/planner.h"

namespace kolo::comm {

class Planning {
 public:
  Planning(int rank, int ranks, bool reproducible) : choices_(machine_, reproducible), operations_(rank, ranks) {
    machine_.ranks = ranks;
  }

  planner::Machine& machine() { return machine_; }
  Hosts& hosts() { return hosts_; }
  Grid& mesh() { return mesh_; }
  collectives::Choices& choices() { return choices_; }
  collectives::Site& site() { return site_; }
  collectives::PreparedOperations& operations() { return operations_; }

  // Whether this is one of the last operations again, for which everything has been checked and prepared; if so,
  // Backend::runAgain() runs it. said: as PreparedOperations::recall() has it.
  template <class... Said>
  bool recall(const Said&... said) {
    return recallsCalls_ && operations_.recall(said...);
  }
  // From now on recall() finds nothing: what was checked of a call may have changed, such as where its buffers lie.
  void checkEachCall() { recallsCalls_ = false; }
  bool recallsCalls() const { return recallsCalls_; }
  // The operation that recall() has found.
  Operation recalled() const { return {operations_.current().call, {}, operations_.current().counts}; }
  // The windows have changed, or nothing runs any more.
  void forget() { operations_.forget(); }
  // Does what forget() does, for a thread without the turn: from the next operation on that is called after this.
  void outdate() { operations_.outdate(); }

  // The user's overrides.
  Status setWishes(std::string_view text) {
    KOLO_TRY(choices_.set(text));
    forget();
    return {};
  }
  // transports: as Backend::transportNames() says.
  koloPlan_t describe(const planner::Query& query, const std::string& transports) const;

 private:
  planner::Machine machine_;
  Hosts hosts_;
  Grid mesh_;
  collectives::Choices choices_;  // refers to the machine
  collectives::Site site_;
  collectives::PreparedOperations operations_;
  bool recallsCalls_ = true;
};

}  // namespace kolo::comm
