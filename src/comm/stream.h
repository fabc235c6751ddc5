// A thread that runs tasks in the order given: a koloStream (D11), or a worker of a communicator. Events are places
// in it.
//
// Thread safety: all functions, from any thread but the stream's own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

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

  // Tasks that have all their memory, so that nothing can keep a stream from taking them: a place in a turn that a task
  // is to have is taken between the two.
  struct Task {
    std::function<Status(std::uint64_t place)> run;
    std::uint64_t place = 0;
  };
  using Prepared = std::list<Task>;
  static Prepared prepare(std::function<Status(std::uint64_t place)> run);
  void enqueue(Prepared tasks) noexcept;
  void enqueue(std::function<Status()> task) {
    enqueue(prepare([task = std::move(task)](std::uint64_t) { return task(); }));
  }
  // Waits for all that was enqueued; the first error since the last call.
  Status synchronize();
  // koloInProgress while tasks are left.
  Status query();
  // The thread goes on with what is enqueued from now on when the event has been reached.
  void waitFor(std::shared_ptr<const Moment> moment);
  // Reached when all that was enqueued before is done.
  void mark(std::shared_ptr<Moment> moment);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  Prepared tasks_;
  bool busy_ = false;
  bool stopping_ = false;
  Status first_;
  std::thread thread_;
};

}  // namespace kolo::comm
