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
        reported_(static_cast<std::size_t>(membership.ranks())), dead_(reported_.size()),
        acknowledged_(reported_.size()) {}

  // Costs a load: operations ask before they begin, and while they wait.
  bool isSet() const { return stop_.load(std::memory_order_acquire) != 0; }  // [stop]
  // The failure that ended the communicator, or success.
  Status status() const;
  // Records the failure and tells all ranks. The first one counts.
  void fail(const bootstrap::Failure& failure);
  // Records what the control plane says of another rank, or of this one.
  void hear(const bootstrap::Failure& failure);
  // Raised when a rank tells a failure, which ends the exchanges of the communicator's key; not by a death.
  const std::shared_ptr<bootstrap::Interrupt>& interrupt() const { return interrupt_; }
  // Raised when this rank gives the communicator up, which ends the exchanges of calls that a failed one allows.
  const std::shared_ptr<bootstrap::Interrupt>& abortInterrupt() const { return abortInterrupt_; }
  // Whether the peer has died, or somebody could not go on because of it.
  bool isReported(int peer) const;
  // The ranks that have died, in ascending order.
  std::vector<int> dead() const;
  // The same, and notes that the program is told of them.
  std::vector<int> acknowledge();
  // Those of which it has been told.
  std::vector<int> acknowledged() const;

 private:
  void record(const bootstrap::Failure& failure);
  void recordLocked(const bootstrap::Failure& failure);

  const links::Membership& membership_;
  const std::string& name_;
  const std::function<void()> stopRunning_;
  const std::shared_ptr<bootstrap::Interrupt> interrupt_ = std::make_shared<bootstrap::Interrupt>();
  const std::shared_ptr<bootstrap::Interrupt> abortInterrupt_ = std::make_shared<bootstrap::Interrupt>();
  std::atomic<std::uint32_t> stop_{0};
  mutable std::mutex mutex_;  // of what follows
  Status first_;
  std::vector<bool> reported_, dead_, acknowledged_;  // by rank
};

}  // namespace kolo::failure
