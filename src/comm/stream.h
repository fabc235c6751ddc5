// A thread that runs tasks in the order given: a koloStream, or a worker of a communicator. Events are places in it.
//
// Thread safety: all functions, from any thread but the stream's own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"

namespace kolo::comm {

// A place in a stream, which is reached once.
class Moment {
 public:
  bool isReached() const;
  void wait() const;
  void reach();

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool isReached_ = false;
};

// What stands for places in streams, one after the other: a koloEvent.
class Event {
 public:
  // The next place, not reached yet.
  std::shared_ptr<Moment> renew();
  // The last one; nullptr: never recorded.
  std::shared_ptr<const Moment> moment() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Moment> moment_;
};

class Stream {
 public:
  Stream();
  ~Stream();  // waits for all tasks

  void enqueue(std::function<Status()> task);
  // Waits for all that was enqueued; the first error since the last call.
  Status synchronize();
  // koloInProgress while tasks are left.
  Status query();
  // The thread goes on with what is enqueued from now on when the event has been reached.
  void waitFor(std::shared_ptr<const Moment> moment);
  // Reached when all that was enqueued before is done.
  void mark(std::shared_ptr<Moment> moment);
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
