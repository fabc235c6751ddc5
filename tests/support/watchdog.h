// A bound on the time of every test case, and of its rounds (seed.h), so that a hang says where it is instead of
// waiting for somebody to notice. Linking watchdog.cc is enough: it listens to Catch. place() tells it where a thread
// is.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <chrono>

namespace kolo::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
// Sanitizers make everything slower; what they multiply is the time that a test may take, not what it asserts.
inline constexpr int kSlowness = kSanitized ? 5 : 1;

// Where this thread is. `where` must live for ever (a literal). rank -1: no rank.
void place(const char* where, int rank = -1);
// For tests that need longer than the usual bound; counted from now.
void extendDeadline(std::chrono::seconds deadline);

#define KOLO_TEXT_(x) #x
#define KOLO_TEXT(x) KOLO_TEXT_(x)
#define KOLO_HERE __FILE__ ":" KOLO_TEXT(__LINE__)

}  // namespace kolo::test
