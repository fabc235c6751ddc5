// Threads for a communicator's part of groups over several communicators.
//
// Groups that end at the same time have a thread each: a thread that they shared could come to a later part before an
// earlier one, for which the later one waits.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/stream.h"

namespace kolo::comm {

class Workers {
 public:
  // Goes back when its part is done. Throws std::system_error if the system gives no thread.
  std::unique_ptr<Stream> borrow() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      idle_.reserve(made_ + 1);  // what comes back needs no memory
      auto worker = std::make_unique<Stream>();
      ++made_;
      return worker;
    }
    std::unique_ptr<Stream> worker = std::move(idle_.back());
    idle_.pop_back();
    return worker;
  }
  void giveBack(std::unique_ptr<Stream> worker) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(worker));
  }
  // Ends them.
  void end() { idle_.clear(); }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> idle_;
  std::size_t made_ = 0;
};

}  // namespace kolo::comm
