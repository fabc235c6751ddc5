// From a fault to words: the error of an operation, or of messages, that a communicator fails with.
//
// Thread safety: under the communicator's turn; on a GPU, one thread at a time.
// Invariant: of() and ofMessages() end with the communicator failed, on all ranks by the same first failure, unless it
// had failed before.
#pragma once

#include <string>

#include "device/work.h"
#include "failure/cause.h"
#include "failure/failure_state.h"
#include "failure/reasons.h"
#include "links/boards.h"
#include "links/membership.h"

namespace kolo::failure {

class Conclusions {
 public:
  // All of them outlive this object.
  struct Setup {
    const links::Membership& membership;
    const std::string& name;  // of the communicator
    bool waits = true;        // a thread waits for operations, and can ask the others why one takes long
    const links::Boards& boards;
    const CauseFinder& causes;
    FailureState& failure;
    Reasons& reasons;
  };
  explicit Conclusions(const Setup& setup) : setup_(setup) {}

  // The error of an operation that a fault has ended.
  Status of(const device::Work& work, const device::Fault& fault);
  // The error of messages that waited in vain; peer -1: for any.
  Status ofMessages(const device::Fault& fault, int peer);
  // What the words are made of, beside the fault.
  Reasons& reasons() { return setup_.reasons; }
  // "all_reduce (operation 7 of communicator world)"
  std::string label(const device::Work& work) const;

 private:
  int rank() const { return setup_.membership.rank; }
  int jobRank(int ofRank) const { return setup_.membership.jobRank(ofRank); }
  bool hearsWhyGivenUp(int peer) const;
  Status endByMismatch(const device::Work& work, const device::Fault& fault);
  Status giveUp(const WaitStep& own);

  const Setup setup_;
};

}  // namespace kolo::failure
