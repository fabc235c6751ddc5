// A rank's wait, as its progress function (koloCommSetProgress) sees it.
#pragma once

#include <chrono>

namespace kolo::test {

class KnownWait {
 public:
  // For the progress function to call. True once: when the rank has waited for some time, and has said that it waits to
  // the ranks that ask why nothing goes on. It says so between two calls of the progress function.
  bool becomesKnown() {
    const auto now = std::chrono::steady_clock::now();
    if (begun_ == std::chrono::steady_clock::time_point{}) begun_ = now;
    return now - begun_ > std::chrono::milliseconds(100) && ++calls_ == 2;
  }

 private:
  std::chrono::steady_clock::time_point begun_{};
  int calls_ = 0;  // after that time
};

}  // namespace kolo::test
