// An acceptor and a background thread that serves it, from the first user in the process to the last.
//
// Thread safety: all functions, from any thread.
// Invariants: the thread never blocks but in poll. The owner's functions are called with state_ held. A forked child
// has a server of its own (ofThisProcess): its parent's is not used there.
#pragma once

#include <mutex>
#include <thread>

#include "network/acceptor.h"

namespace kolo::network {

class Server : protected Acceptor::Owner {
 protected:
  // The name of the thread; time: of a stranger, from connecting to its proof.
  Server(const char* name, std::chrono::milliseconds time) : name_(name), acceptor_(*this, time) {}
  ~Server() = default;

  // Starts the thread if it does not run: 0, or an errno. Each success is paired with one release(), the last of which
  // ends the thread.
  int acquire();
  void release();

  // Makes the listening socket: 0, or an errno.
  virtual int listen(Socket& listener) = 0;
  // What else is to be done now; when next, if nothing comes before.
  virtual Clock::time_point attend(Clock::time_point /*now*/) { return Clock::time_point::max(); }
  // Nobody is served any more.
  virtual void end() {}

  std::mutex state_;  // of the owner, and of the acceptor

 private:
  int start();
  void close();
  void serve();

  const char* const name_;
  std::mutex lifecycle_;  // starting and ending the thread; before state_
  int users_ = 0;
  std::thread thread_;
  Acceptor acceptor_;
  Socket wake_;  // an eventfd, written once, to end the thread
};

}  // namespace kolo::network
