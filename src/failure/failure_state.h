// Whether a communicator has failed, why, and which of its ranks have died or been reported by others.
//
// Thread safety: all functions, from any thread. Failures of other ranks arrive on the control plane's reactor thread.
// Invariants: the first failure stays; isSet() is true from the moment when status() is an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bootstrap/control.h"
#include "links/membership.h"

namespace kolo::failure {

class FailureState {
 public:
  // membership and name (of the communicator) outlive this object. stop: called once, when the communicator fails, by
  // the thread that records the failure: what runs must end.
  FailureState(const links::Membership& membership, const std::string& name, std::function<void()> stop)
      : membership_(membership), name_(name), stopRunning_(std::move(stop)),
        reported_(static_cast<std::size_t>(membership.ranks())), dead_(reported_.size()), givenUp_(reported_.size()) {}

  // Costs a load: operations ask before they begin, and while they wait.
  bool isSet() const { return stop_.load(std::memory_order_acquire) != 0; }  // [stop]
  // The failure that ended the communicator, or success.
  Status status() const;
  // Why this rank counts as dead on the other ranks; success: it does not, as far as it knows.
  Status ownDeath() const;
  // Records the failure and tells all ranks. The first one counts.
  void fail(const bootstrap::Failure& failure);
  // Records what the control plane says of another rank, or of this one.
  void hear(const bootstrap::Failure& failure);
  // This rank takes part in no agreement or shrink any more. Tells all ranks: their calls that need this one end.
  void giveUp(const Status& why);
  // Records that a rank does not.
  void hearGivenUp(const bootstrap::Failure& failure);
  // Raised when a rank tells a failure, which ends the exchanges of the communicator's key; not by a death.
  const std::shared_ptr<bootstrap::Interrupt>& interrupt() const { return interrupt_; }
  // Raised by the first failure, a death too: for calls that need all ranks.
  const std::shared_ptr<bootstrap::Interrupt>& failureInterrupt() const { return failureInterrupt_; }
  // Raised when this rank aborts the communicator.
  const std::shared_ptr<bootstrap::Interrupt>& abortInterrupt() const { return abortInterrupt_; }
  // An interrupt that is raised when one of `ranks`, of which this is one, gives the communicator up, or has before.
  // The next call replaces it. Under the communicator's turn.
  std::shared_ptr<bootstrap::Interrupt> interruptFor(std::vector<int> ranks);
  // Whether the peer has died, or somebody could not go on because of it.
  bool isReported(int peer) const;
  // The ranks that have died, in ascending order.
  std::vector<int> dead() const;
  // The same, and notes that the program is told of them.
  std::vector<int> acknowledge();
  // Of how many it has been told.
  int acknowledged() const;

 private:
  void record(const bootstrap::Failure& failure);
  void recordLocked(const bootstrap::Failure& failure);
  void tell(std::uint64_t key, const bootstrap::Failure& failure) const;

  const links::Membership& membership_;
  const std::string& name_;
  const std::function<void()> stopRunning_;
  const std::shared_ptr<bootstrap::Interrupt> interrupt_ = std::make_shared<bootstrap::Interrupt>();
  const std::shared_ptr<bootstrap::Interrupt> failureInterrupt_ = std::make_shared<bootstrap::Interrupt>();
  const std::shared_ptr<bootstrap::Interrupt> abortInterrupt_ = std::make_shared<bootstrap::Interrupt>();
  std::atomic<std::uint32_t> stop_{0};
  mutable std::mutex mutex_;  // of what follows
  Status first_, ownDeath_;
  std::vector<bool> reported_, dead_;  // by rank
  int acknowledged_ = 0;
  std::vector<Status> givenUp_;                     // by rank: why; success: it has not given up
  std::vector<int> awaited_;                        // ranks of interruptFor()
  std::shared_ptr<bootstrap::Interrupt> awaiting_;  // what it gave last
};

}  // namespace kolo::failure
