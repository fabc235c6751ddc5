#include "network/talk.h"

#include <sys/socket.h>

#include <cerrno>

namespace kolo::network {

void Talk::say(const void* bytes, std::size_t count) {
  const auto* const from = static_cast<const unsigned char*>(bytes);
  out_.insert(out_.end(), from, from + count);
}

bool Talk::flush() {
  while (said_ < out_.size() && failed_ == 0) {
    const ssize_t sent = send(fd(), out_.data() + said_, out_.size() - said_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      said_ += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      failed_ = errno;
    }
  }
  if (failed_ != 0) return false;
  out_.clear();
  said_ = 0;
  return true;
}

bool Talk::hear(std::size_t count) {
  if (in_.size() < count) in_.resize(count);
  while (have_ < count && failed_ == 0) {
    const ssize_t got = recv(fd(), in_.data() + have_, count - have_, MSG_DONTWAIT);
    if (got > 0) {
      have_ += static_cast<std::size_t>(got);
    } else if (got == 0) {
      failed_ = kEnded;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      failed_ = errno;
    }
  }
  return have_ >= count;
}

// Waits for what the connection needs next. False: it has failed, or the deadline is here.
bool Talk::goesOnBy(Clock::time_point deadline) {
  if (failed_ == 0 && !await(fd(), awaits(), deadline)) failed_ = ETIMEDOUT;
  return failed_ == 0;
}

bool Talk::flushBy(Clock::time_point deadline) {
  while (!flush()) {
    if (!goesOnBy(deadline)) return false;
  }
  return true;
}

bool Talk::hearBy(std::size_t count, Clock::time_point deadline) {
  while (!hear(count)) {
    if (!goesOnBy(deadline)) return false;
  }
  return true;
}

}  // namespace kolo::network
