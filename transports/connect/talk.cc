#include "talk.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace kolo::connect {

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

// Four segments; what does not tell its segments' size gets all.
std::size_t Talk::fillingBytes() const {
  int segment = 0;
  socklen_t bytes = sizeof segment;
  if (getsockopt(fd(), IPPROTO_TCP, TCP_MAXSEG, &segment, &bytes) != 0 || segment <= 0) return kMostFilling;
  return std::min(4 * static_cast<std::size_t>(segment), kMostFilling);
}

}  // namespace kolo::connect
