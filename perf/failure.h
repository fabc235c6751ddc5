// How kolo-perf reports what it cannot go on from: an exception that carries the whole message, caught in main.
//
// Thread safety: free functions, from any thread.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "kolo/kolo.h"

namespace kolo::perf {

class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& message) : std::runtime_error(message) {}
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

// Throws Failure with the library's own words unless result is koloSuccess.
inline void check(koloResult_t result, const char* what) {
  if (result == koloSuccess) [[likely]]
    return;
  fail("{}: {}: {}", what, koloGetErrorString(result), koloGetLastError(nullptr));
}

}  // namespace kolo::perf
