// A nonblocking collective that Kolo carries out: a request of Kolo's, and what is to be done when it is over.
//
// Thread safety: one thread at a time for each object, any thread.
#pragma once

#include <kolo/kolo.h>

#include <string>

#include "mpi/order.h"

namespace kolo::mpi {

class Task {
 public:
  explicit Task(Session& session) : order_(session) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { wait(); }

  // To be filled in before start().
  Order& order() { return order_; }
  // Once, in the call, in the order of the calls on the communicator. Waits for nobody. A rank that gets nothing from
  // others does its part at once, if it may: then others find it whatever this rank does next. An error is one of the
  // arguments, and nothing was started.
  koloResult_t start();

  // After start(). Whether it is over; nobody needs to ask for that to happen.
  bool isOver();
  // Returns when it is over, which may be this thread's work.
  void wait();

  // When it is over: how, and in words.
  koloResult_t result() const { return result_; }
  const std::string& message() const { return message_; }
  // When it has succeeded: as Order::store().
  void store() { order_.store(); }

 private:
  void end(koloResult_t result);

  Order order_;
  koloRequest_t request_ = nullptr;  // nullptr: it is over
  koloResult_t result_ = koloSuccess;
  std::string message_;
};

}  // namespace kolo::mpi
