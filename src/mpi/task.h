// What a call does on Kolo, apart from when: a blocking call does it at once, a nonblocking one later, and maybe in
// another thread.
#pragma once

#include <kolo/kolo.h>

namespace kolo::mpi {

class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  // The operation on Kolo: in any thread, in the order of the calls on its communicator. It waits for the other ranks,
  // but where koloSetMayWait forbids it: koloInProgress, and nothing was done. It calls nothing of the MPI's, but to
  // calculate (Session::mayCalculateAnywhere).
  virtual koloResult_t run() = 0;
  // Puts what arrived where the program wants it, after a run that succeeded: in a thread of the program's that is in a
  // call of MPI's, as the MPI unpacks it.
  virtual void store() = 0;
  // Whether this rank gets nothing from others, and so may be able to do its part at once. Asked when it is the next
  // one of its communicator.
  virtual bool onlyGives() const = 0;
};

// In the place of a buffer that this rank has not, or that is used as it is.
struct Nothing {
  void store() const {}
  void outliveTheCall() {}
};

}  // namespace kolo::mpi
