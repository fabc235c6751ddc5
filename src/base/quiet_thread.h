// A thread of the library's own, which leaves signals to the program's.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace kolo {

template <class Function>
std::thread startQuietly(Function&& function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    const sigset_t& mask;
  } const restore{before};
  return std::thread(std::forward<Function>(function));
}

}  // namespace kolo
