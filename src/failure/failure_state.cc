#include "failure/failure_state.h"

#include <algorithm>

#include "base/insist.h"
#include "base/log.h"

namespace kolo::failure {
namespace {

std::vector<int> ranksIn(const std::vector<bool>& set) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < set.size(); ++rank) {
    if (set[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace

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
  first_ = failure.why;
  stop_.store(1, std::memory_order_release);  // [stop]
  stopRunning_();
}

bool FailureState::isReported(int peer) const {
  const std::lock_guard lock(mutex_);
  return reported_[static_cast<std::size_t>(peer)];
}

std::vector<int> FailureState::dead() const {
  const std::lock_guard lock(mutex_);
  return ranksIn(dead_);
}

std::vector<int> FailureState::acknowledge() {
  const std::lock_guard lock(mutex_);
  acknowledged_ = dead_;
  return ranksIn(acknowledged_);
}

std::vector<int> FailureState::acknowledged() const {
  const std::lock_guard lock(mutex_);
  return ranksIn(acknowledged_);
}

void FailureState::hear(const bootstrap::Failure& failure) {
  bootstrap::Failure mine = failure;
  const auto member = std::find(membership_.members.begin(), membership_.members.end(), failure.rank);
  const bool isOfMember = failure.why.code() == koloRemoteError && member != membership_.members.end();
  const int at = static_cast<int>(member - membership_.members.begin());
  if (isOfMember && at != failure.rank)
    mine.why = error(koloRemoteError, "rank {} of communicator {}: {}", at, name_, failure.why.message());
  {
    const std::lock_guard lock(mutex_);  // who sees a death sees the failure, too
    if (isOfMember) reported_[static_cast<std::size_t>(at)] = true;
    if (isOfMember && failure.isDeath) dead_[static_cast<std::size_t>(at)] = true;
    recordLocked(mine);
  }
  if (!failure.isDeath) interrupt_->raise(mine.why);
  log::info("communicator {} has failed on rank {}: {}", name_, membership_.rank, mine.why.message());
}

void FailureState::fail(const bootstrap::Failure& failure) {
  record(failure);
  interrupt_->raise(failure.why);
  if (membership_.control == nullptr) return;
  const bool isTold = insist([&] { membership_.control->reportFailure(membership_.key, failure, membership_.family); });
  if (!isTold) log::warn("communicator {}: there is no memory to tell the other ranks of its failure", name_);
}

}  // namespace kolo::failure
