// A lock leaning towards one thread: its owner enters and leaves with plain loads and stores; everybody else first
// takes the bias away, which costs a system call. (Biased locking as in Dice, Moir and Scherer, "Quickly Reacquirable
// Locks", 2003.) Atomic read-modify-writes cost more than the rest of a small operation: they also wait until the
// stores before them, into a line that a peer polls, have crossed to the other core.
//
// A Bias excludes nobody by itself: it is a part of comm/turn.h, and of the handle table, whose memory it must lie in,
// because a thread may ask it about an object that is being destroyed.
//
// Thread safety: all functions.
#pragma once

#include <atomic>
#include <cstdint>

namespace kolo {

class Bias {
 public:
  // Enters if the calling thread has the bias, and is not inside of this or another one; leave() must follow, by the
  // same thread.
  bool enter() {
    Thread* const self = thisThread;
    if (self == nullptr || owner_.load(std::memory_order_relaxed) != self) return false;
    if (self->inside.load(std::memory_order_relaxed) != nullptr) return false;
    self->inside.store(this, std::memory_order_relaxed);
    // Between the store and the load the compiler's order is enough: the thread that takes the bias away makes every
    // thread of the process pass a full barrier after changing owner_. So either the change is seen here, or `inside`
    // is seen there. [bias]
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (owner_.load(std::memory_order_relaxed) == self) return true;
    leave();
    return false;
  }
  void leave() { thisThread->inside.store(nullptr, std::memory_order_release); }  // [left] all that was done inside
  // Whether the calling thread, which is inside, still has the bias: nobody has asked for it.
  bool isKept() const { return owner_.load(std::memory_order_relaxed) == thisThread; }

  // Whether the thread that had the bias last has left, so that what it did inside is visible. REQUIRES: revoke() was
  // called since the bias was given, and the caller has seen that call.
  bool isLeft() const {
    const Thread* const last = last_.load(std::memory_order_relaxed);
    return last == nullptr || last->inside.load(std::memory_order_acquire) != this;  // [left]
  }

  // Gives the bias to the calling thread, unless somebody has it. REQUIRES: nobody else is in what the bias protects,
  // not even the thread that had it last; the caller looks afterwards for threads that came meanwhile without having
  // seen this (comm/turn.h).
  void give();

  // Nobody has the bias afterwards. The thread that had it may still be inside.
  void revoke() {
    if (owner_.load(std::memory_order_seq_cst) != nullptr) revokeNow();
  }

  // Whether this system offers the barrier that revoke() needs, and the log is not at its debug level; otherwise give()
  // must not be called.
  static bool isPossible();

 private:
  // One for each thread that was ever given a bias; only it writes here, so a thread that comes late to a bias it has
  // lost cannot disturb the next owner. Never freed: the next thread uses it again, and with it what the dead one had.
  struct alignas(128) Thread {
    std::atomic<const Bias*> inside{nullptr};
  };
  struct Threads;

  void revokeNow();

  [[gnu::tls_model("initial-exec")]] static thread_local constinit Thread* thisThread;
  static Thread revoking;  // stands for an owner while one is being revoked

  std::atomic<Thread*> owner_{nullptr};
  std::atomic<Thread*> last_{nullptr};  // changes in give() only
};

}  // namespace kolo
