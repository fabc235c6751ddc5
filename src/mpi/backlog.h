// The nonblocking collectives of one communicator, from the call until they are over on this rank.
//
// They are executed one after the other, in the order of the calls, which MPI wants to be the same on all ranks,
// blocking collectives included. So nothing that is executed waits for a rank that is to execute something else first;
// and that a collective waits for those before it is no harm, as every rank that has called it has called those.
//
// Who executes them: one in which this rank only gives, and need not wait for anybody, is executed in the call, so that
// its data are there when others ask for them. A thread of the program's that has to wait for one of them anyway does
// so at once, which costs no more than a blocking call. Whatever nobody has waited for after a moment, a thread of the
// backlog's executes: the program may be calculating, or in a call of the MPI's that waits for what a peer does only
// after the collective; no such program may hang. That thread calls nothing of the MPI's that needs MPI_THREAD_MULTIPLE
// where the program did not ask for it (Task::run).
//
// While the program uses it, the thread looks from time to time; so a call need not wake it, which would cost more than
// a short collective. It looks the more seldom the longer the program's threads leave nothing to it, for each look
// costs the thread on whose core it is as much as some collectives; but for what it has seen once it soon looks again,
// and takes it over if nobody has begun with it.
//
// Thread safety: all functions, but for the destructor.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "mpi/task.h"

namespace kolo::mpi {

// A collective in a backlog, and after it the next. REQUIRES: exists until it is over.
class Pending {
 public:
  bool isOver() const { return isOver_.load(std::memory_order_acquire); }  // [over] before its results are read

  // When it is over. In the MPI's error codes and in words.
  int code() const { return code_; }
  const std::string& message() const { return message_; }

 protected:
  Pending() = default;
  ~Pending() = default;
  // REQUIRES: in no backlog.
  void renew(std::unique_ptr<Task> task) {
    task_ = std::move(task);
    code_ = 0;
    message_.clear();
    isOver_.store(false, std::memory_order_relaxed);  // who may ask knows of it from this thread
  }

  std::unique_ptr<Task> task_;
  int code_ = 0;  // MPI_SUCCESS
  std::string message_;

 private:
  // Whether it is over now, as it is but where it has to wait for other ranks, and may not.
  bool execute();
  bool executeWithoutWaiting();
  friend class Backlog;

  std::atomic<bool> isOver_{false};
};

class Backlog {
 public:
  // sharesCores: there are more ranks than cores, so a while may pass in which the program's thread could do nothing.
  // Throws std::system_error where there can be no thread.
  explicit Backlog(bool sharesCores);
  // Waits until everything is over.
  ~Backlog();
  Backlog(const Backlog&) = delete;
  Backlog& operator=(const Backlog&) = delete;

  // In a thread of the program's.
  void add(Pending& pending);
  // Returns when it is over, which may be the caller's work. In a thread of the program's.
  void waitFor(const Pending& pending);
  // The same for all that was added.
  void drain();
  // Whether nothing is left of it, by whoever.
  bool isIdle();
  // Lets the backlog's thread begin at once with what nobody has begun: for who asks again and again, but does not
  // wait.
  void hurry();

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Interval = std::chrono::microseconds;
  static constexpr Interval kLook{
      100};  // until the thread looks again for what it has seen, and at first between any two looks
  static constexpr Interval kLookSharingCores{1000};
  static constexpr Interval kLongestLook{
      1600};                          // between two looks when there was nothing for it to execute for a while
  static constexpr int kLooks = 100;  // that find nothing; then it sleeps until it is woken
  static constexpr std::chrono::microseconds kNap{
      50};  // of who waits for another thread's execution, and makes progress between

  void executeFirst(Lock& lock);
  bool executeAtOnce(Pending& pending);
  void waitForOthers(Lock& lock);
  void work();

  const Interval look_;
  std::mutex mutex_;
  std::condition_variable added_, over_;
  std::deque<Pending*> waiting_;
  std::uint64_t begun_ = 0;   // how many have been executed, or are being
  bool isExecuting_ = false;  // the last of these, by somebody
  bool isAsleep_ = false;     // the thread needs to be woken
  bool isHurried_ = false;    // it shall not wait for others to come first
  bool isStopping_ = false;
  std::atomic<std::size_t> left_{0};  // not over
  std::thread thread_;
};

}  // namespace kolo::mpi
