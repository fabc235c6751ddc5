// A thread that runs tasks in the order given: a koloStream, and each communicator's worker.
//
// Thread safety: all functions, from any thread but the stream's own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/status.h"

namespace kolo::comm {

class Stream {
 public:
  Stream();
  ~Stream();   // waits for all tasks

  void enqueue(std::function<Status()> task);
  // Waits for all that was enqueued; the first error since the last call.
  Status synchronize();
  // koloInProgress while tasks are left.
  Status query();
  bool isOwnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Status()>> tasks_;
  bool busy_ = false;
  bool stopping_ = false;
  Status first_;
  std::thread thread_;
};

}  // namespace kolo::comm
