// A function of the user's that is called while a thread waits.
//
// Thread safety: set() and isGiven() under the communicator's turn; make() from any thread, for a thread may wait for
// another one's turn.
#pragma once

#include <kolo/kolo.h>

#include <mutex>

#include "base/caller.h"

namespace kolo::waiting {

class UserProgress {
 public:
  void set(koloProgressFunction_t function, void* context) {
    const std::lock_guard lock(mutex_);
    function_ = function;
    context_ = context;
  }
  bool isGiven() const { return function_ != nullptr; }
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
    function(context);
    return true;
  }

 private:
  mutable std::mutex mutex_;
  koloProgressFunction_t function_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace kolo::waiting
