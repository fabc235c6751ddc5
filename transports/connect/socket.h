// A file descriptor that belongs to this process alone: closed with its owner, and at once in a forked child. A child
// that kept its parent's connections open would hide the parent's death from the peers.
//
// Thread safety: different sockets from any thread.
#pragma once

#include <utility>

namespace kolo::connect {

// Changes in a forked child: what was made under another number belongs to the parent.
unsigned forkGeneration();

class Socket {
 public:
  Socket() = default;
  // Takes it over; negative: none.
  explicit Socket(int fd);
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close();

 private:
  int fd_ = -1;
  unsigned generation_ = 0;
};

bool isOutOfFiles(int errnum);

}  // namespace kolo::connect
