// The time by which waits are measured.
#pragma once

#include <time.h>

#include <cstdint>

namespace kolo {

// Nanoseconds of the monotonic clock.
inline std::int64_t nowNs() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

}  // namespace kolo
