// The operations of a communicator that are ready to run again: programs call the same ones on the same buffers again
// and again.
//
// Thread safety: under the communicator's turn, outdate() and listOf() from any thread. Invariants: those used last are
// kept, kMost at most, with lists of mostListBytes at most, or one alone; a Prepared stays where it is in memory, and
// only make() changes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
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

  // Whether this call is ready; it is then the current one. No operation with a reduction that a user made is. said:
  // the call; of a v-variant, its count arrays too; over a list, all that its caller said (list_calls.h).
  template <class... Said>
  bool recall(const Said&... said) {
    return !isOutdated() && (current_->is(said...) || find(said...));
  }
  bool recall(const Operation& operation);
  // The list of a call over one that is ready; null: it is not.
  std::shared_ptr<const List> listOf(const Words& said) const;

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
  using Index = std::unordered_multimap<std::size_t, Place>;

  template <class... Said>
  bool find(const Said&... said);
  template <class... Said>
  Index::const_iterator search(const Said&... said) const;  // its end: there is none
  std::size_t hash(const Call& call) const;
  std::size_t hash(const Call& call, const CountArrays& counts) const;
  std::size_t hash(const Words& said) const;
  void drop(Place place);
  bool isOutdated() const { return isOutdated_.load(std::memory_order_relaxed); }

  const int rank_;
  const std::size_t ranks_;
  std::list<Prepared> known_;  // in index_; the one used last comes first
  const std::uint64_t mostListBytes_;
  std::uint64_t listBytes_ = 0;  // of known_
  std::list<Prepared> idle_;     // no call recalls them; the current one may be among them
  mutable std::mutex mutex_;     // for changes of index_, and what threads without the turn read in it
  Index index_;
  Place current_;
  std::atomic<bool> isOutdated_{false};  // known_, which make() then forgets
};

}  // namespace kolo::collectives
