// Ranks that share a core.
#pragma once

#include <sched.h>

#include <system_error>

namespace kolo::test {

// This thread, and those that it starts meanwhile, have one core.
class OneCore {
 public:
  OneCore() {
    if (sched_getaffinity(0, sizeof before_, &before_) != 0) fail();
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) fail();
  }
  ~OneCore() { sched_setaffinity(0, sizeof before_, &before_); }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;

 private:
  [[noreturn]] static void fail() {
    throw std::system_error(errno, std::generic_category(), "the affinity of this thread");
  }

  cpu_set_t before_;
};

}  // namespace kolo::test
