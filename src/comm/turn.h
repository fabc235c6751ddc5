// Operations of one communicator run one after the other, in the order in which they were issued, whatever thread or
// stream runs them.
//
// Thread safety: take() and the rest from any thread. wait(t) and done(t) once for each t that take() gave.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace kolo::comm {

class Turn {
 public:
  // The next place in the order.
  std::uint64_t take() { return issued_.fetch_add(1, std::memory_order_relaxed); }

  // Returns when all before `place` are done.
  void wait(std::uint64_t place) {
    if (served_.load(std::memory_order_acquire) == place) return;  // [turn]
    std::unique_lock lock(mutex_);
    waiters_.fetch_add(1, std::memory_order_relaxed);
    // done() may miss a waiter that comes at the same moment, so nobody sleeps for long without looking.
    while (!changed_.wait_for(lock, kLook, [&] { return served_.load(std::memory_order_acquire) == place; })) {  // [turn]
    }
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }

  void done(std::uint64_t place) {
    served_.store(place + 1, std::memory_order_release);  // [turn] what the operation wrote is visible to the next
    // Not sequentially consistent: a fence would wait until the operation's last stores have reached the other core.
    if (waiters_.load(std::memory_order_relaxed) == 0) return;
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  // Returns when everything issued so far is done.
  inline void drain();

 private:
  static constexpr std::chrono::milliseconds kLook{1};

  std::atomic<std::uint64_t> issued_{0};
  std::atomic<std::uint64_t> served_{0};
  std::atomic<std::uint32_t> waiters_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// The time in which a place in the order is served: waits for it, and is done at the end of the scope, however it is left.
class InTurn {
 public:
  InTurn(Turn& turn, std::uint64_t place) : turn_(turn), place_(place) { turn_.wait(place_); }
  explicit InTurn(Turn& turn) : InTurn(turn, turn.take()) {}
  ~InTurn() { turn_.done(place_); }
  InTurn(const InTurn&) = delete;
  InTurn& operator=(const InTurn&) = delete;

 private:
  Turn& turn_;
  const std::uint64_t place_;
};

inline void Turn::drain() { const InTurn last(*this); }

}  // namespace kolo::comm
