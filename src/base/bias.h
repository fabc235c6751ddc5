// A lock leaning towards one thread: its owner enters and leaves with plain loads and stores; everybody else first takes the
// bias away, which costs a system call. (Biased locking as in Dice, Moir and Scherer, "Quickly Reacquirable Locks", 2003.)
// Atomic read-modify-writes cost more than the rest of a small operation: they also wait until the stores before them,
// into a line that a peer polls, have crossed to the other core.
//
// A Bias excludes nobody by itself: it is a part of comm/turn.h, and of the handle table, whose memory it must lie in, because
// a thread may ask it about an object that is being destroyed.
//
// Thread safety: all functions.
#pragma once

#include <atomic>
#include <cstdint>

namespace kolo {

class Bias {
 public:
  // Enters if the calling thread has the bias; leave() must follow. Not reentrant.
  bool enter() {
    const std::uint64_t self = thisThread();
    if (owner_.load(std::memory_order_relaxed) != self) return false;
    inside_.store(1, std::memory_order_relaxed);
    // Between the store and the load the compiler's order is enough: whoever takes the bias away makes every thread of the
    // process pass a full barrier after changing owner_. So either the change is seen here, or inside_ is seen there. [bias]
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (owner_.load(std::memory_order_relaxed) == self) return true;
    leave();
    return false;
  }
  void leave() { inside_.store(0, std::memory_order_release); }   // [left] all that was done inside

  // The owner is not inside, and what it did there is visible. Meaningful after revoke().
  bool isLeft() const { return inside_.load(std::memory_order_acquire) == 0; }   // [left]

  // Gives the bias to the calling thread, unless somebody has it. REQUIRES: the caller makes sure that nobody else is in what the
  // bias protects, and afterwards looks for those who came meanwhile without having seen this (comm/turn.h).
  void give() {
    std::uint64_t nobody = kNobody;
    owner_.compare_exchange_strong(nobody, thisThread(), std::memory_order_seq_cst);
  }

  // Nobody has the bias afterwards. Who had it may still be inside.
  void revoke() {
    if (owner_.load(std::memory_order_seq_cst) != kNobody) revokeNow();
  }

  // Whether this system offers the barrier that revoke() needs; without it give() must not be called.
  static bool isPossible();

 private:
  static constexpr std::uint64_t kNobody = 0, kRevoking = 1;

  // A number of its own for each thread that ever asks.
  static std::uint64_t thisThread() { return number != 0 ? number : nextNumber(); }
  static std::uint64_t nextNumber();
  void revokeNow();

  [[gnu::tls_model("initial-exec")]] static thread_local constinit std::uint64_t number;

  std::atomic<std::uint64_t> owner_{kNobody};
  std::atomic<std::uint32_t> inside_{0};
};

}  // namespace kolo
