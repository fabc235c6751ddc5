// Functions of the user's that are called while a thread waits: one that makes progress which others may wait for, and
// one that only watches, and costs the wait no sleep.
//
// Thread safety: set() and setWatch() under the communicator's turn; the others from any thread, for a thread may wait
// for another one's turn.
#pragma once

#include <kolo/kolo.h>

#include <atomic>
#include <mutex>

#include "base/caller.h"

namespace kolo::waiting {

class UserProgress {
 public:
  void set(koloProgressFunction_t function, void* context) {
    const std::lock_guard lock(mutex_);
    progress_ = {function, context};
    isGiven_.store(function != nullptr, std::memory_order_relaxed);
  }
  void setWatch(koloProgressFunction_t function, void* context) {
    const std::lock_guard lock(mutex_);
    watch_ = {function, context};
  }
  // Whether there is one that makes progress.
  bool isGiven() const { return isGiven_.load(std::memory_order_relaxed); }
  // Calls the functions, if the calling thread is the user's, which may use what others must not: whether one of them
  // makes progress.
  bool make() const {
    if (caller.isLibrarys) return false;
    std::unique_lock lock(mutex_);
    const Given watch = watch_, progress = progress_;
    lock.unlock();
    watch.call();
    return progress.call();
  }

 private:
  struct Given {
    koloProgressFunction_t function = nullptr;
    void* context = nullptr;

    bool call() const {
      if (function == nullptr) return false;
      const InUserFunction inside;
      callUsers(function, context);
      return true;
    }
  };

  mutable std::mutex mutex_;
  Given progress_, watch_;
  std::atomic<bool> isGiven_{false};
};

}  // namespace kolo::waiting
