// Messages over one non-blocking connection, whole or not at all: what the two sides of a handshake have in common.
//
// Thread safety: one thread at a time.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "network/socket.h"

namespace kolo::network {

class Talk {
 public:
  explicit Talk(Socket socket) : socket_(std::move(socket)) {}
  int fd() const { return socket_.fd(); }
  const Socket& socket() const { return socket_; }
  Socket takeSocket() { return std::move(socket_); }

  // Appended to what is to be sent.
  void say(const void* bytes, std::size_t count);
  template <class Message>
  void say(const Message& message) {
    say(&message, sizeof message);
  }
  // True once the kernel has taken everything; false: not yet, or failed().
  bool flush();
  bool isSaying() const { return said_ < out_.size(); }
  // What to poll for.
  short awaits() const { return isSaying() ? POLLOUT : POLLIN; }

  // True once so many bytes are there, in heard(), counted from the last forget(); never reads further. False: not yet,
  // or failed().
  bool hear(std::size_t count);
  const unsigned char* heard() const { return in_.data(); }
  std::string_view heardText() const { return {reinterpret_cast<const char*>(in_.data()), have_}; }
  template <class Message>
  void copyHeard(Message* message) const {
    std::memcpy(message, in_.data(), sizeof *message);
  }
  void forget() {
    in_.clear();
    have_ = 0;
  }

  // The same, waiting: false at the deadline, too, and then failed() is ETIMEDOUT.
  bool flushBy(Clock::time_point deadline);
  bool hearBy(std::size_t count, Clock::time_point deadline);

  // An errno; kEnded: the other side has closed. 0: it works.
  static constexpr int kEnded = -1;
  int failed() const { return failed_; }

 private:
  bool goesOnBy(Clock::time_point deadline);

  Socket socket_;
  std::vector<unsigned char> out_, in_;
  std::size_t said_ = 0, have_ = 0;
  int failed_ = 0;
};

}  // namespace kolo::network
