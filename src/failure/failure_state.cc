#include "failure/failure_state.h"

#include <algorithm>

#include "base/insist.h"
#include "base/log.h"

namespace kolo::failure {

Status FailureState::status() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

void FailureState::record(const bootstrap::Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (!first_.ok()) return;
  first_ = failure.why;
  stop_.store(1, std::memory_order_release);  // [stop]
  stopRunning_();
}

bool FailureState::isReported(int peer) const {
  const std::lock_guard lock(mutex_);
  return reported_[static_cast<std::size_t>(peer)];
}

void FailureState::hear(const bootstrap::Failure& failure) {
  bootstrap::Failure mine = failure;
  const auto member = std::find(membership_.members.begin(), membership_.members.end(), failure.rank);
  if (failure.why.code() == koloRemoteError && member != membership_.members.end()) {
    const auto at = member - membership_.members.begin();
    const std::lock_guard lock(mutex_);
    reported_[static_cast<std::size_t>(at)] = true;
    if (at != failure.rank)
      mine.why = error(koloRemoteError, "rank {} of communicator {}: {}", at, name_, failure.why.message());
  }
  record(mine);
  log::info("communicator {} has failed on rank {}: {}", name_, membership_.rank, mine.why.message());
}

void FailureState::fail(const bootstrap::Failure& failure) {
  record(failure);
  if (membership_.control == nullptr) return;
  const bool isTold = insist([&] { membership_.control->reportFailure(membership_.key, failure, membership_.family); });
  if (!isTold) log::warn("communicator {}: there is no memory to tell the other ranks of its failure", name_);
}

}  // namespace kolo::failure
