// The operations of a communicator that are ready to run again: programs call the same ones on the same buffers again
// and again.
//
// Thread safety: under the communicator's turn, outdate() from any thread. Invariants: those used last are kept, kMost
// at most, with lists of mostListBytes at most, or one alone; a Prepared stays where it is in memory, and only make()
// changes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

#include "collectives/prepare.h"

namespace kolo::collectives {

class PreparedOperations {
 public:
  static constexpr std::size_t kMost = 1024;

  PreparedOperations(int rank, int ranks, std::uint64_t mostListBytes = kMostKeptBytes);

  // The operation recalled or made last.
  Prepared& current() { return *current_; }
  const Prepared& current() const { return *current_; }

  // Whether this call is ready; it is then the current one. No operation with a reduction that a user made is.
  bool recall(const Call& call) { return !isOutdated() && (current_->call == call || find(call)); }
  bool recall(const Call& call, const CountArrays& counts) {
    return !isOutdated() && ((current_->call == call && current_->counts->are(counts)) || find(call, counts));
  }

  bool recall(const Operation& operation) {
    return operation.counts != nullptr ? recall(operation, operation.counts->arrays())
                                       : recall(static_cast<const Call&>(operation));
  }

  // One to be prepared, which is then the current one: in the place of the one used longest ago, where there are kMost.
  Prepared& make();
  // The current one is recalled by this call from now on.
  void remember(const Operation& operation);
  // No operation is recalled any more. current() stays.
  void forget();
  // From any thread: no operation that was made before is recalled any more. A call that comes after this is prepared
  // anew.
  void outdate() { isOutdated_.store(true, std::memory_order_release); }  // [outdated]

 private:
  using Place = std::list<Prepared>::iterator;

  bool find(const Call& call);
  bool find(const Call& call, const CountArrays& counts);
  template <class Condition>
  bool findIf(std::size_t hash, Condition condition);
  std::size_t hash(const Call& call, const CountArrays& counts) const;
  void drop(Place place);
  bool isOutdated() const { return isOutdated_.load(std::memory_order_relaxed); }

  const int rank_;
  const std::size_t ranks_;
  std::list<Prepared> known_;  // in index_; the one used last comes first
  const std::uint64_t mostListBytes_;
  std::uint64_t listBytes_ = 0;  // of known_
  std::list<Prepared> idle_;     // no call recalls them; the current one may be among them
  std::unordered_multimap<std::size_t, Place> index_;
  Place current_;
  std::atomic<bool> isOutdated_{false};  // known_, which make() then forgets
};

}  // namespace kolo::collectives
