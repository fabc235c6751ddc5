#include "collectives/prepared_operations.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>

#include "collectives/hash.h"

namespace kolo::collectives {
namespace {

void mixCounts(std::uint64_t& hash, const std::size_t* counts, std::size_t ranks) {
  for (std::size_t i = 0; counts != nullptr && i < ranks; ++i) mix(hash, counts[i]);
}

// Calls use() with what finds the operation again.
template <class Use>
auto withSaid(const Operation& operation, Use&& use) {
  const Call& call = operation;
  if (operation.list != nullptr) return use(operation.list->said);
  return operation.counts != nullptr ? use(call, operation.counts->arrays()) : use(call);
}

// Of its list, as its caller gave it and as it is laid out.
std::uint64_t listBytes(const Prepared& prepared) {
  if (prepared.list == nullptr) return 0;
  const LaidOut* const laidOut = prepared.laidOut.get();
  return memoryOf(*prepared.list) + (laidOut != nullptr ? laidOut->memory.size() * sizeof(std::uint64_t) : 0);
}

}  // namespace

PreparedOperations::PreparedOperations(int rank, int ranks, std::uint64_t mostListBytes)
    : rank_(rank), ranks_(static_cast<std::size_t>(ranks)), mostListBytes_(mostListBytes), idle_(1),
      current_(idle_.begin()) {}

std::size_t PreparedOperations::hash(const Call& call) const {
  std::uint64_t hash = kHashOfNothing;
  for (const std::uint64_t word :
       {reinterpret_cast<std::uint64_t>(call.send), reinterpret_cast<std::uint64_t>(call.recv), call.count,
        static_cast<std::uint64_t>(call.collective) | static_cast<std::uint64_t>(call.datatype) << 8 |
            static_cast<std::uint64_t>(call.op) << 16 | static_cast<std::uint64_t>(call.vector) << 63,
        static_cast<std::uint64_t>(call.root)})
    mix(hash, word);
  return hash;
}

// Ranks other than the root give no arrays: theirs are not read.
std::size_t PreparedOperations::hash(const Call& call, const CountArrays& counts) const {
  std::uint64_t result = hash(call);
  if (device::isIn(call.collective, device::kRooted) && call.root != rank_) return result;
  mixCounts(result, counts.sendCounts, ranks_);
  mixCounts(result, counts.recvCounts, ranks_);
  return result;
}

std::size_t PreparedOperations::hash(const Words& said) const {
  std::uint64_t result = kHashOfNothing;
  for (const std::uint64_t word : said) mix(result, word);
  return result;
}

template <class... Said>
PreparedOperations::Index::const_iterator PreparedOperations::search(const Said&... said) const {
  const auto [begin, end] = index_.equal_range(hash(said...));
  const auto found = std::find_if(begin, end, [&](const auto& each) { return each.second->is(said...); });
  return found != end ? found : index_.end();
}

template <class... Said>
bool PreparedOperations::find(const Said&... said) {
  const auto found = search(said...);
  if (found == index_.end()) return false;
  current_ = found->second;
  known_.splice(known_.begin(), known_, current_);
  return true;
}

template bool PreparedOperations::find(const Call&);
template bool PreparedOperations::find(const Call&, const CountArrays&);
template bool PreparedOperations::find(const Words&);

bool PreparedOperations::recall(const Operation& operation) {
  return withSaid(operation, [&](const auto&... said) { return recall(said...); });
}

std::shared_ptr<const List> PreparedOperations::listOf(const Words& said) const {
  const std::lock_guard lock(mutex_);
  const auto found = search(said);
  return found != index_.end() ? found->second->list : nullptr;
}

Prepared& PreparedOperations::make() {
  // [outdated] What another thread did before is seen by what is prepared from here on.
  if (isOutdated() && isOutdated_.exchange(false, std::memory_order_acquire)) forget();
  if (idle_.empty() && known_.size() < kMost) idle_.emplace_front();
  if (idle_.empty()) {
    drop(std::prev(known_.end()));
  }
  current_ = idle_.begin();
  return *current_;
}

void PreparedOperations::remember(const Operation& operation) {
  current_->hash = withSaid(operation, [&](const auto&... said) { return hash(said...); });
  current_->call = operation;
  {
    const std::lock_guard lock(mutex_);
    index_.emplace(current_->hash, current_);
  }
  known_.splice(known_.begin(), idle_, current_);
  listBytes_ += listBytes(*current_);
  while (listBytes_ > mostListBytes_ && known_.size() > 1) drop(std::prev(known_.end()));
}

void PreparedOperations::forget() {
  while (!known_.empty()) drop(known_.begin());
}

// To the end of the idle ones: what has run last may still be asked for.
void PreparedOperations::drop(Place place) {
  const auto [begin, end] = index_.equal_range(place->hash);
  const auto entry = std::find_if(begin, end, [&](const auto& each) { return each.second == place; });
  {
    const std::lock_guard lock(mutex_);
    index_.erase(entry);
  }
  place->call = kNoCall;
  listBytes_ -= listBytes(*place);
  place->table = nullptr;  // memory of a device, which others may want
  if (place != current_) {
    place->list = nullptr;
    place->laidOut = nullptr;
  }
  idle_.splice(idle_.end(), known_, place);
}

}  // namespace kolo::collectives
