// Operations of one communicator run one after the other, in the order in which they were issued, whatever thread or
// stream runs them.
//
// Thread safety: take() and the rest from any thread. wait(t) and done(t) once for each t that take() gave.
#pragma once

#include <atomic>
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
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    changed_.wait(lock, [&] { return served_.load(std::memory_order_seq_cst) == place; });  // [turn]
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }

  void done(std::uint64_t place) {
    // Sequentially consistent with waiters_: either this store is seen by the waiter, or the waiter is seen here.
    served_.store(place + 1, std::memory_order_seq_cst);  // [turn] what the operation wrote is visible to the next
    if (waiters_.load(std::memory_order_seq_cst) == 0) return;
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  // Returns when everything issued so far is done.
  inline void drain();

 private:
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
