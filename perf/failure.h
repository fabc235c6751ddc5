// How kolo-perf reports what it cannot go on from: an exception that carries the whole message, caught in main.
//
// Thread safety: free functions, from any thread.
#pragma once

#include <fmt/format.h>

#include <exception>
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

// Whether a failure is on its way to main. Then nothing of a GPU is given back: that could wait for a kernel that waits
// for other ranks.
inline bool isFailing() { return std::uncaught_exceptions() > 0; }

// What this rank has to say is only that another one failed, which says it better itself.
class Consequence : public Failure {
 public:
  using Failure::Failure;
};

// Throws Failure with the library's own words unless result is koloSuccess.
// comm: whose error it is; nullptr: the calling thread's last one.
inline void check(koloResult_t result, const char* what, koloComm_t comm = nullptr) {
  if (result == koloSuccess) [[likely]]
    return;
  const std::string message = fmt::format("{}: {}: {}", what, koloGetErrorString(result), koloGetLastError(comm));
  if (result == koloRemoteError) throw Consequence(message);
  throw Failure(message);
}

}  // namespace kolo::perf
