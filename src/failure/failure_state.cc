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
  recordLocked(failure);
}

// REQUIRES: mutex_.
void FailureState::recordLocked(const bootstrap::Failure& failure) {
  if (!first_.ok()) return;
  first_ = failure.why;
  stop_.store(1, std::memory_order_release);  // [stop]
  stopRunning_();
  failureInterrupt_->raise(failure.why);
}

bool FailureState::isReported(int peer) const {
  const std::lock_guard lock(mutex_);
  return reported_[static_cast<std::size_t>(peer)];
}

std::vector<int> FailureState::dead() const {
  const std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < dead_.size(); ++rank) {
    if (dead_[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

Status FailureState::ownDeath() const {
  const std::lock_guard lock(mutex_);
  return ownDeath_;
}

std::vector<int> FailureState::acknowledge() {
  std::vector<int> ranks = dead();
  const std::lock_guard lock(mutex_);
  acknowledged_ = std::max(acknowledged_, static_cast<int>(ranks.size()));  // another thread may know of more
  return ranks;
}

int FailureState::acknowledged() const {
  const std::lock_guard lock(mutex_);
  return acknowledged_;
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
    if (isOfMember && failure.isDeath && at == membership_.rank) ownDeath_ = failure.why;
    recordLocked(mine);
  }
  if (!failure.isDeath) interrupt_->raise(mine.why);
  log::info("communicator {} has failed on rank {}: {}", name_, membership_.rank, mine.why.message());
}

void FailureState::fail(const bootstrap::Failure& failure) {
  record(failure);
  interrupt_->raise(failure.why);
  tell(membership_.key, failure);
}

void FailureState::tell(std::uint64_t key, const bootstrap::Failure& failure) const {
  if (membership_.control == nullptr) return;
  const bool isTold = insist([&] { membership_.control->reportFailure(key, failure, membership_.hubsKey()); });
  if (!isTold) log::warn("communicator {}: there is no memory to tell the other ranks of its failure", name_);
}

void FailureState::giveUp(const Status& why) {
  bootstrap::Failure mine(why, membership_.jobRank(membership_.rank));
  mine.reporter = mine.rank;
  hearGivenUp(mine);
  tell(membership_.keyOfGivingUp(), mine);
}

void FailureState::hearGivenUp(const bootstrap::Failure& failure) {
  const auto member = std::find(membership_.members.begin(), membership_.members.end(), failure.rank);
  if (member == membership_.members.end() || failure.reporter != failure.rank) return;  // nobody says so of another
  const auto at = static_cast<int>(member - membership_.members.begin());
  const std::lock_guard lock(mutex_);
  Status& why = givenUp_[static_cast<std::size_t>(at)];
  if (why.ok()) why = failure.why;
  if (std::find(awaited_.begin(), awaited_.end(), at) != awaited_.end()) awaiting_->raise(why);
}

std::shared_ptr<bootstrap::Interrupt> FailureState::interruptFor(std::vector<int> ranks) {
  auto made = std::make_shared<bootstrap::Interrupt>();
  const std::lock_guard lock(mutex_);
  for (const int rank : ranks) {
    if (const Status& why = givenUp_[static_cast<std::size_t>(rank)]; !why.ok()) made->raise(why);
  }
  awaited_ = std::move(ranks);
  awaiting_ = made;
  return made;
}

}  // namespace kolo::failure
