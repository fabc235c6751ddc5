// What a call does on Kolo, apart from when: a blocking call does it at once, a nonblocking one later, and maybe in another thread.
#pragma once

#include <kolo/kolo.h>

#include <type_traits>
#include <utility>

namespace kolo::mpi {

class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  // The operation on Kolo: in any thread, in the order of the calls on its communicator. It waits for the other ranks, but
  // where koloSetMayWait forbids it: koloInProgress, and nothing was done. It calls
  // nothing of the MPI's, but to calculate (Session::mayCalculateAnywhere).
  virtual koloResult_t run() = 0;
  // Puts what arrived where the program wants it, after a run that succeeded: in a thread of the program's that is in a call of
  // MPI's, as the MPI unpacks it.
  virtual void store() = 0;
  // Whether this rank gets nothing from others, and so may be able to do its part at once.
  virtual bool onlyGives() const = 0;
};

// In the place of a buffer that this rank has not, or that is used as it is.
struct Nothing {
  void store() const {}
  void outliveTheCall() {}
};

// run(from, to), then to.store().
template <class From, class To, class Run>
class TaskOf final : public Task {
  static_assert(!std::is_reference_v<From> && !std::is_reference_v<To> && !std::is_reference_v<Run>, "a task outlives the call");

 public:
  TaskOf(From&& from, To&& to, Run&& run, bool onlyGives)
      : from_(std::move(from)), to_(std::move(to)), run_(std::move(run)), onlyGives_(onlyGives) {
    to_.outliveTheCall();
  }
  koloResult_t run() override { return run_(from_, to_); }
  void store() override { to_.store(); }
  bool onlyGives() const override { return onlyGives_; }

 private:
  From from_;
  To to_;
  Run run_;
  bool onlyGives_;
};

}  // namespace kolo::mpi
