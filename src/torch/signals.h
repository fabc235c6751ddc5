// Python's signals, for threads that wait without Python's lock.
//
// Python runs the handlers of signals in its main thread alone, between two steps of the program. A thread that waits
// in C++ makes no steps, so it looks for signals itself: not before it has waited for a tenth of a second, and then
// every tenth of a second.
//
// Thread safety: all functions.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace kolo::pytorch::signals {

// For threads that wait, again and again. Runs the handlers of signals that have come, if the calling thread is
// Python's main thread. What one of them has raised, "KeyboardInterrupt" say, or "". The thread has to give up then, as
// far as it can, and endWait() throws it.
std::string look();

namespace detail {
// Of the calling thread.
struct Wait {
  std::int64_t lookAtNs = 0;             // 0: it does not wait
  std::exception_ptr* raised = nullptr;  // a handler has; to be thrown
};
[[gnu::tls_model("initial-exec")]] extern thread_local constinit Wait wait;
[[noreturn]] void throwRaised();
}  // namespace detail

// After everything that may have waited, whatever came of it. Throws what a handler has raised.
inline void endWait() {
  detail::wait.lookAtNs = 0;
  if (detail::wait.raised != nullptr) [[unlikely]]
    detail::throwRaised();
}
// Where nothing may be thrown: Python prints what a handler has raised.
void endWaitQuietly();

}  // namespace kolo::pytorch::signals
