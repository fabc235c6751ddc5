// Descriptors that keep clear of a program's standard streams. Where these are closed, as in daemons, the system gives
// their numbers to what is opened next, and what the program or the library prints would go into a socket.
//
// Thread safety: all functions, from any thread. Headers alone, for transports too.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace kolo {

inline bool isStandard(int fd) { return fd >= STDIN_FILENO && fd <= STDERR_FILENO; }

// Takes the descriptor over: the same one, or one for the same file with a higher number (close-on-exec); negative as
// it was, or with errno where there is no other number.
inline int clearOfStandard(int fd) {
  if (!isStandard(fd)) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int errnum = errno;
  ::close(fd);
  errno = errnum;
  return moved;
}

// While it lives, what other libraries open is clear of the standard streams, too: those that are closed stand for a
// path that can neither be read nor written, so that the program meets the errors that it would meet otherwise.
class StandardStreamsHeld {
 public:
  StandardStreamsHeld() {
    for (int& held : held_) {
      if (isStandard(held = ::open("/", O_PATH | O_CLOEXEC))) continue;
      if (held >= 0) ::close(held);
      held = -1;
      break;
    }
  }
  ~StandardStreamsHeld() {
    for (const int held : held_) {
      if (held >= 0) ::close(held);
    }
  }
  StandardStreamsHeld(const StandardStreamsHeld&) = delete;
  StandardStreamsHeld& operator=(const StandardStreamsHeld&) = delete;

 private:
  std::array<int, 3> held_ = {-1, -1, -1};
};

}  // namespace kolo
