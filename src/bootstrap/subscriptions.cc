#include "bootstrap/subscriptions.h"

#include <algorithm>

namespace kolo::bootstrap {

bool Subscriptions::add(std::uint64_t key, std::uint64_t family, std::vector<int> members, Callback callback,
                        Responder responder) {
  std::sort(members.begin(), members.end());
  const std::lock_guard lock(mutex_);
  const auto shared = std::make_shared<const Callback>(std::move(callback));
  (void)remove(key);
  int& keys = keysOf_[family];
  byKey_[key] = {family, members, shared, std::make_shared<const Responder>(std::move(responder))};
  const bool isFirst = ++keys == 1;
  for (const auto& [rank, failure] :
       std::map<int, Failure>(deaths_)) {  // copied, since a callback may subscribe to others
    if (std::binary_search(members.begin(), members.end(), rank)) (*shared)(failure);
  }
  if (const auto early = earlyOf(key); early != early_.end()) {
    const std::vector<Failure> reports = early->reports;
    forgetEarly(early);
    for (const Failure& failure : reports) (*shared)(failure);
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
  const auto keys = keysOf_.find(family);
  return keys != keysOf_.end() && keys->second != 0;
}

void Subscriptions::clear() {
  const std::lock_guard lock(mutex_);
  byKey_.clear();
  keysOf_.clear();
}

void Subscriptions::died(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (deaths_.count(failure.rank) != 0) return;
  std::vector<std::uint64_t> concerned;  // first, since a callback may change the subscriptions
  for (const auto& [key, subscription] : byKey_) {
    if (std::binary_search(subscription.members.begin(), subscription.members.end(), failure.rank))
      concerned.push_back(key);
  }
  if (failure.isDeath) deaths_.emplace(failure.rank, failure);  // from here on nothing needs memory
  for (const std::uint64_t key : concerned) deliver(key, failure);
}

void Subscriptions::reported(std::uint64_t key, const Failure& failure, bool isKept) {
  const std::lock_guard lock(mutex_);
  if (byKey_.count(key) != 0) return deliver(key, failure);
  if (!isKept) return;
  if (const auto early = earlyOf(key); early == early_.end()) {
    early_.push_back({key, {failure}});
  } else if (isOneMore(early->reports, failure)) {
    early->reports.push_back(failure);
  } else {
    return;
  }
  earlyBytes_ += failure.why.message().size();
  while (early_.size() > kMaxFailedKeys || (earlyBytes_ > kMaxFailureBytes && early_.size() > 1))
    forgetEarly(early_.begin());
}

// REQUIRES: the lock
void Subscriptions::forgetEarly(const std::deque<Early>::iterator& early) {
  for (const Failure& each : early->reports) earlyBytes_ -= each.why.message().size();
  early_.erase(early);
}

// Whether the hub tells of it, too, behind the others.
bool Subscriptions::isOneMore(const std::vector<Failure>& reports, const Failure& failure) {
  const auto isOfItself = [](const Failure& each) { return each.rank == each.reporter; };
  const auto count = std::count_if(reports.begin(), reports.end(), [&](const Failure& each) {
    return isOfItself(each) == isOfItself(failure) && (!isOfItself(failure) || each.rank == failure.rank);
  });
  return static_cast<std::size_t>(count) < (isOfItself(failure) ? 1 : kMaxFailuresPerKey);
}

// REQUIRES: the lock
std::deque<Subscriptions::Early>::iterator Subscriptions::earlyOf(std::uint64_t key) {
  return std::find_if(early_.begin(), early_.end(), [key](const Early& each) { return each.key == key; });
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
