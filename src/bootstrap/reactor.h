// The one background thread of the process that serves all control sockets: epoll, timers, and work posted to it.
//
// It starts with the first use and lives as long as the process. At a normal exit, after the last global object of the
// program, it first tries, briefly, to get rid of what is still to be sent (a rank that just left may be relaying the
// last words of others), and is joined. A process that is killed or calls _exit just loses it. A forked child does not
// have it: get() makes another one, or refuses to (base/fork.h).
//
// Thread safety: get, post, call and onReactorThread from any thread; everything else on the reactor thread only.
// Invariants: a Source is alive while one of its functions runs; a Source that was removed gets no further event.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "bootstrap/socket.h"

namespace kolo::bootstrap {

// Something with a socket. Events are hints: a Source finds out by trying, and tolerates that there is nothing to do.
class Source {
 public:
  virtual ~Source() = default;
  virtual void onReadable() = 0;
  virtual void onWritable() = 0;
  // Has output that an exiting process should still try to send.
  virtual bool hasOutput() const = 0;
  // Has something to say to others that are about to come, for which an exiting process should stay for some time.
  virtual bool isAwaited() const { return false; }
  // For an event of it there has been no memory for a second. It ends, and tells those who wait for it; or it lives on,
  // and is asked again. Throws nothing.
  virtual void giveUp() = 0;
  // The process exits, and no event will come any more.
  virtual void onEnd() {}
};

class Reactor {
 public:
  using Task = std::function<void()>;
  using TimerId = std::uint64_t;

  // koloInvalidUsage in a child of a process that used the library at the fork, or while the process exits.
  static Result<Reactor*> get();
  // Null: it has not started, or this is such a child.
  static Reactor* running();

  // Runs the task on the reactor thread, in the order posted. False: the process exits or is such a child; the task is
  // dropped.
  bool post(Task task);
  // Runs the task on the reactor thread and returns when it has run; at once when called there. False as above.
  bool call(const Task& task);
  // Runs the task on this thread, after the event, timer or task that now runs; also while the process exits.
  // REQUIRES: reactor thread
  void later(Task task) { later_.push_back(std::move(task)); }
  bool onReactorThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // A failure to add is the kernel's limit on watches or memory.
  Status add(int fd, std::shared_ptr<Source> source);
  // Readable is watched unless paused, writable only on demand.
  void watch(int fd, bool readable, bool writable);
  void remove(int fd);

  TimerId at(Clock::time_point when, Task task);
  void cancel(TimerId timer);  // unknown ids are ignored

 private:
  Reactor() = default;
  [[gnu::destructor]] static void end();
  Status start();
  void stop();
  void run();
  void runPosted();
  void runLater();
  void runTimers();
  int waitMs() const;
  bool mayStop();
  void serve(int fd, unsigned events);
  void dispatch(int fd, unsigned events);
  void lookEverywhere(int errnum);
  void wake() const;

  Socket epoll_;
  Socket wakeUp_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable ran_;
  std::vector<Task> posted_;    // under mutex_; room for some, so that they need no memory
  bool stopping_ = false;       // under mutex_: nothing is accepted any more
  Clock::time_point stopBy_{};  // under mutex_

  std::vector<Task> running_;  // those that were posted before
  std::vector<Task> later_;
  std::unordered_map<int, std::shared_ptr<Source>> sources_;
  std::map<std::pair<Clock::time_point, TimerId>, Task> timers_;
  std::unordered_map<TimerId, Clock::time_point> timerTimes_;
  TimerId lastTimer_ = 0;
  bool isBlind_ = false;
};

}  // namespace kolo::bootstrap
