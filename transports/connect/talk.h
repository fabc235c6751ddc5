// Messages over one non-blocking connection, whole or not at all: what the two sides of a hello have in common.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstring>
#include <vector>

#include "socket.h"
#include "wire.h"

namespace kolo::connect {

class Talk {
 public:
  explicit Talk(Socket socket) : socket_(std::move(socket)) {}
  int fd() const { return socket_.fd(); }
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

  // True once so many bytes are there, in heard(), counted from the last forget(); never reads further. False: not yet,
  // or failed().
  bool hear(std::size_t count);
  const unsigned char* heard() const { return in_.data(); }
  template <class Message>
  void copyHeard(Message* message) const {
    std::memcpy(message, in_.data(), sizeof *message);
  }
  void forget() {
    in_.clear();
    have_ = 0;
  }

  // An errno; kEnded: the other side has closed. 0: it works.
  static constexpr int kEnded = -1;
  int failed() const { return failed_; }

  // Bytes of filling that try this connection's largest segments.
  std::size_t fillingBytes() const;

 private:
  Socket socket_;
  std::vector<unsigned char> out_, in_;
  std::size_t said_ = 0, have_ = 0;
  int failed_ = 0;
};

}  // namespace kolo::connect
