// A nonblocking collective that Kolo carries out: a request of Kolo's, and what is to be done when it is over.
//
// Thread safety: one thread at a time for each object, any thread.
#pragma once

#include <kolo/kolo.h>

#include <string>

namespace kolo::mpi {

// How a collective is called on Kolo: by the function that waits, or by the one that starts a request.
class Call {
 public:
  Call() = default;  // waits
  explicit Call(koloRequest_t* request) : request_(request) {}

  // arguments: what both functions have before their last parameter.
  template <class Waiting, class Starting, class... Arguments>
  koloResult_t operator()(Waiting* waiting, Starting* starting, Arguments... arguments) const {
    return request_ == nullptr ? waiting(arguments..., nullptr) : starting(arguments..., request_);
  }

 private:
  koloRequest_t* request_ = nullptr;
};

class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;  // REQUIRES: it is over, or was not started

  // Once, in the call, in the order of the calls on the communicator. Waits for nobody. onlyGives: this rank gets
  // nothing from others, so that it may do its part at once: then others find it whatever this rank does next. An error
  // is one of the arguments, and nothing was started.
  koloResult_t start(bool onlyGives);

  // After start(). Whether it is over; nobody needs to ask for that to happen.
  bool isOver();
  // Returns when it is over, which may be this thread's work.
  void wait();

  // When it is over: how, and in words.
  koloResult_t result() const { return result_; }
  const std::string& message() const { return message_; }
  // When it has succeeded: puts what arrived where the program wants it, in a thread of the program's that is in a call
  // of MPI's. Throws MpiError.
  virtual void store() = 0;

 private:
  virtual koloResult_t run(const Call& call) = 0;
  void end(koloResult_t result);

  koloRequest_t request_ = nullptr;  // nullptr: it is over
  koloResult_t result_ = koloSuccess;
  std::string message_;
};

// In the place of a buffer that this rank has not, or that is used as it is.
struct Nothing {
  void store() const {}
  void outliveTheCall() {}
};

}  // namespace kolo::mpi
