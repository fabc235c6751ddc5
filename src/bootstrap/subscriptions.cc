#include "bootstrap/subscriptions.h"

#include <algorithm>

namespace kolo::bootstrap {

bool Subscriptions::add(std::uint64_t key, std::uint64_t family, std::vector<int> members, Callback callback,
                        Responder responder) {
  std::sort(members.begin(), members.end());
  const std::lock_guard lock(mutex_);
  const auto shared = std::make_shared<const Callback>(std::move(callback));
  (void)remove(key);
  byKey_[key] = {family, members, shared, std::make_shared<const Responder>(std::move(responder))};
  const bool isFirst = ++keysOf_[family] == 1;
  for (const auto& [rank, failure] :
       std::map<int, Failure>(deaths_)) {  // copied, since a callback may subscribe to others
    if (std::binary_search(members.begin(), members.end(), rank)) (*shared)(failure);
  }
  if (const auto node = early_.extract(key); !node.empty()) {
    std::erase(earlyKeys_, key);
    for (const Failure& failure : node.mapped()) (*shared)(failure);
  }
  return isFirst;
}

std::optional<std::uint64_t> Subscriptions::remove(std::uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto node = byKey_.extract(key);
  if (node.empty()) return std::nullopt;
  const auto count = keysOf_.find(node.mapped().family);
  if (--count->second != 0) return std::nullopt;
  keysOf_.erase(count);
  return node.mapped().family;
}

bool Subscriptions::has(std::uint64_t family) const {
  const std::lock_guard lock(mutex_);
  return keysOf_.count(family) != 0;
}

void Subscriptions::clear() {
  const std::lock_guard lock(mutex_);
  byKey_.clear();
  keysOf_.clear();
}

void Subscriptions::died(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (!deaths_.emplace(failure.rank, failure).second) return;
  std::vector<std::uint64_t> concerned;  // first, since a callback may change the subscriptions
  for (const auto& [key, subscription] : byKey_) {
    if (std::binary_search(subscription.members.begin(), subscription.members.end(), failure.rank))
      concerned.push_back(key);
  }
  for (const std::uint64_t key : concerned) deliver(key, failure);
}

void Subscriptions::reported(std::uint64_t key, const Failure& failure, bool isKept) {
  const std::lock_guard lock(mutex_);
  if (byKey_.count(key) != 0) return deliver(key, failure);
  if (!isKept) return;
  std::vector<Failure>& early = early_[key];
  if (early.empty()) {
    earlyKeys_.push_back(key);
    if (earlyKeys_.size() > kMaxFailedKeys) {
      early_.erase(earlyKeys_.front());  // another key, for this one stands last
      earlyKeys_.pop_front();
    }
  }
  if (early.size() < kMaxFailuresPerKey) early.push_back(failure);
}

// REQUIRES: the lock
void Subscriptions::deliver(std::uint64_t key, const Failure& failure) {
  const auto found = byKey_.find(key);
  if (found == byKey_.end()) return;
  const std::shared_ptr<const Callback> callback = found->second.callback;
  (*callback)(failure);
}

std::string Subscriptions::answer(std::uint64_t key, int asker, std::string_view question) const {
  const std::lock_guard lock(mutex_);
  const auto found = byKey_.find(key);
  if (found == byKey_.end()) return {};
  const std::shared_ptr<const Responder> responder = found->second.responder;
  return *responder != nullptr ? (*responder)(asker, question) : std::string();
}

}  // namespace kolo::bootstrap
