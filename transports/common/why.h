// How every transport here says what went wrong, and keeps what is thrown inside.
//
// Thread safety: pure functions and plain data.
#pragma once

#include <kolo/transport.h>

#include <cstddef>
#include <new>

namespace kolo::common {

// Where a function's one line of explanation goes.
struct Why {
  char* text;
  std::size_t bytes;
  // Writes the line and returns the code.
  __attribute__((format(printf, 3, 4))) int fail(int code, const char* format, ...) const;
};

// strerror, of threads; of a limit that was reached, what it is and how to raise it.
struct ErrorText {
  explicit ErrorText(int errnum);
  char room[128];
  const char* text;
};

// What may throw inside is an allocation; nothing is thrown through the table.
template <class Function>
int guard(const Why& why, Function&& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return why.fail(KOLO_TRANSPORT_ERROR, "out of memory");
  }
}

}  // namespace kolo::common
