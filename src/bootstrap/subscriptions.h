// Which keys this rank listens to, whom it tells of failures, and who answers questions: the local half of
// Control::subscribe.
//
// The hub knows families of keys only: it sends a report of a failure to all ranks that are subscribed to its family.
// So a communicator that was split from another one on its host, and is in the same family, begins and ends without the
// hub, and without the reactor. A report may come before this rank has subscribed to its key; it is kept until then.
//
// Thread safety: all functions, from any thread. Callbacks run with the lock held, so none runs when remove() has
// returned; a callback may call any function here. The caller of a function here must hold no lock that a callback
// takes.
//
// Invariants: of one key at most kMaxFailuresPerKey reports are kept, and each rank's first about itself; and those of
// at most kMaxFailedKeys keys, and kMaxFailureBytes of their texts.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bootstrap/control.h"

namespace kolo::bootstrap {

constexpr std::size_t kMaxFailedKeys = 1024;
constexpr std::size_t kMaxFailuresPerKey = 16;
constexpr std::size_t kMaxFailureBytes = 64u << 20;  // of the reports of all keys but the last one

class Subscriptions {
 public:
  using Callback = std::function<void(const Failure&)>;
  using Responder = std::function<std::string(int asker, std::string_view question)>;

  // Delivers what has happened before at once, on the calling thread. True: the key is the first of its family, of
  // which the hub is to be told. The callback throws nothing.
  bool add(std::uint64_t key, std::uint64_t family, std::vector<int> members, Callback callback, Responder responder);
  // The key's family, if the key was the last of it.
  std::optional<std::uint64_t> remove(std::uint64_t key);
  // Whether some key of the family is subscribed to.
  bool has(std::uint64_t family) const;
  void clear();

  // A rank has died: tells all subscriptions that have it as a member, once. Or it is silent, which is no death, and
  // not told to those that come later. This and reported() may be called again after they have found no memory.
  void died(const Failure& failure);
  // isKept: until this rank subscribes to the key, if it has not.
  void reported(std::uint64_t key, const Failure& failure, bool isKept);
  // Empty: nobody here answers for the key.
  std::string answer(std::uint64_t key, int asker, std::string_view question) const;

 private:
  struct Subscription {
    std::uint64_t family;
    std::vector<int> members;  // sorted
    std::shared_ptr<const Callback> callback;
    std::shared_ptr<const Responder> responder;
  };
  struct Early {
    std::uint64_t key;
    std::vector<Failure> reports;
  };
  static bool isOneMore(const std::vector<Failure>& reports, const Failure& failure);
  std::deque<Early>::iterator earlyOf(std::uint64_t key);
  void deliver(std::uint64_t key, const Failure& failure);

  mutable std::recursive_mutex mutex_;
  std::map<std::uint64_t, Subscription> byKey_;
  std::unordered_map<std::uint64_t, int> keysOf_;  // by family; 0: there was no memory for the first
  std::map<int, Failure> deaths_;
  void forgetEarly(const std::deque<Early>::iterator& early);
  std::deque<Early> early_;  // for keys that are not subscribed to, oldest first
  std::size_t earlyBytes_ = 0;
};

}  // namespace kolo::bootstrap
