// Threads of the library's own, which leave signals to the program's.
//
// Thread safety: all functions. Those that return no errno throw std::system_error if the system gives no thread.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <cstddef>
#include <exception>
#include <future>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "common/float_mode.h"

namespace kolo {

template <class Thread = std::thread, class Function>
Thread startQuietly(Function&& function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    const sigset_t& mask;
  } const restore{before};
  const UsualFloatMode usual;  // a thread begins with that of the one that starts it
  return Thread([root = std::forward<Function>(function)]<class... Stop>(Stop&&... stop) mutable -> void {
    try {
      root(std::forward<Stop>(stop)...);
    } catch (const std::exception& why) {
      log::message(log::Level::kError, "a thread of the library has ended before its time: {}", why.what());
    }
  });
}

// The same with a name. 0, or the errno for which there is no thread.
template <class Function>
int startQuietly(std::thread& thread, const char* name, Function&& function) {
  try {
    thread = startQuietly(std::forward<Function>(function));
  } catch (const std::system_error& failure) {
    return failure.code().value();
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
  (void)pthread_setname_np(thread.native_handle(), name);
  return 0;
}

// function(i) for each i < count, side by side, in a thread for each. None of them begins before all have a thread:
// they may wait for each other.
template <class Function>
void runSideBySide(std::size_t count, const Function& function) {
  std::promise<bool> begin;
  const std::shared_future<bool> begins = begin.get_future().share();
  std::vector<std::thread> threads;
  threads.reserve(count);
  const auto end = [&](bool areAllThere) {
    begin.set_value(areAllThere);
    for (std::thread& thread : threads) thread.join();
  };
  try {
    for (std::size_t i = 0; i < count; ++i) {
      threads.push_back(startQuietly([&, i] {
        if (begins.get()) function(i);
      }));
    }
  } catch (...) {
    end(false);
    throw;
  }
  end(true);
}

}  // namespace kolo
