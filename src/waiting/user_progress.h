// A function of the user's that is called while a thread waits.
//
// Thread safety: set() under the communicator's turn; the others from any thread, for a thread may wait for another
// one's turn.
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
    function_ = function;
    isGiven_.store(function != nullptr, std::memory_order_relaxed);
    context_ = context;
  }
  bool isGiven() const { return isGiven_.load(std::memory_order_relaxed); }
  // Calls the function, if there is one and the calling thread is the user's, which may use what others must not:
  // whether it was so.
  bool make() const {
    if (caller.isLibrarys) return false;
    std::unique_lock lock(mutex_);
    const koloProgressFunction_t function = function_;
    void* const context = context_;
    lock.unlock();
    if (function == nullptr) return false;
    const InUserFunction inside;
    callUsers(function, context);
    return true;
  }

 private:
  mutable std::mutex mutex_;
  koloProgressFunction_t function_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> isGiven_{false};
};

}  // namespace kolo::waiting
