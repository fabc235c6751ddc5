#include "failure/failure_state.h"

#include <algorithm>

#include "base/log.h"

namespace kolo::failure {

Status FailureState::status() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

void FailureState::record(const bootstrap::Failure& failure) {
  const std::lock_guard lock(mutex_);
  recordLocked(failure);
}

// REQUIRES: mutex_.
void FailureState::recordLocked(const bootstrap::Failure& failure) {
  if (!first_.ok()) return;
  first_ = Status(failure.code, failure.message);
  stop_.store(1, std::memory_order_release);  // [stop]
  stopRunning_();
}

bool FailureState::isReported(int peer) const {
  const std::lock_guard lock(mutex_);
  return reported_.count(peer) != 0;
}

std::vector<int> FailureState::dead() const {
  const std::lock_guard lock(mutex_);
  return {dead_.begin(), dead_.end()};
}

void FailureState::hear(const bootstrap::Failure& failure) {
  bootstrap::Failure mine = failure;
  const auto member = std::find(membership_.members.begin(), membership_.members.end(), failure.rank);
  const bool isOfMember = failure.code == koloRemoteError && member != membership_.members.end();
  const int at = static_cast<int>(member - membership_.members.begin());
  if (isOfMember && at != failure.rank)
    mine.message = fmt::format("rank {} of communicator {}: {}", at, name_, failure.message);
  {
    const std::lock_guard lock(mutex_);  // who sees a death sees the failure, too
    if (isOfMember) reported_.insert(at);
    if (isOfMember && failure.isDeath) dead_.insert(at);
    recordLocked(mine);
  }
  log::info("communicator {} has failed on rank {}: {}", name_, membership_.rank, mine.message);
}

void FailureState::fail(const bootstrap::Failure& failure) {
  record(failure);
  if (membership_.control != nullptr) membership_.control->reportFailure(membership_.key, failure, membership_.family);
}

}  // namespace kolo::failure
