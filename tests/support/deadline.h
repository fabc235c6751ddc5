// How long a test may wait for what should have happened.
//
// Thread safety: all functions.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

namespace kolo::test {

// `usual`, cut so that it is over when this part of what is left has gone: where KOLO_TEST_END says (in seconds since
// 1970) when the tests of this process have to end, because who runs them will kill it soon after. A watchdog takes all
// that is left, an operation less than that: so the operation's error comes first, which says most.
inline std::chrono::milliseconds within(std::chrono::milliseconds usual, double part) {
  const char* const end = std::getenv("KOLO_TEST_END");
  if (end == nullptr) return usual;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::chrono::duration<double> left = std::chrono::seconds(std::atoll(end)) - now;
  const auto allowed = std::chrono::duration_cast<std::chrono::milliseconds>(left * part);
  return std::clamp(allowed, std::min(usual, std::chrono::milliseconds(1)), usual);
}

// What tools/run_suites.py takes for lateness: empty where `took` is below `limit`.
inline std::string lateness(std::chrono::nanoseconds took, std::chrono::nanoseconds limit) {
  const auto ms = [](std::chrono::nanoseconds time) { return std::to_string(time.count() / 1'000'000) + " ms"; };
  return took < limit ? "" : "ran out of time: took " + ms(took) + ", expected less than " + ms(limit);
}

}  // namespace kolo::test

// A limit says what would be a hang, not what is fast: a busy machine is within it.
#define CHECK_TOOK(limit, took) \
  if (const std::string koloLate = ::kolo::test::lateness(took, limit); !koloLate.empty()) FAIL_CHECK(koloLate)
#define CHECK_WITHIN(limit, begin) CHECK_TOOK(limit, std::chrono::steady_clock::now() - (begin))
