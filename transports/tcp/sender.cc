#include "sender.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kolo::tcp {
namespace {

constexpr std::size_t kMostParts = 64;
// Of one call, so that it does not keep the thread from receiving.
constexpr std::uint64_t kMostAtOnce = std::uint64_t{8} << 20;

std::uint64_t lengthOf(const Frame& frame) { return sizeof frame + frame.bytes; }

// Bytes taken; -1: none now; -2: broken, and errno says why.
ssize_t sendParts(int fd, iovec* parts, std::size_t count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM) return -1;
    if (errno != EINTR) return -2;
  }
}

}  // namespace

Sender::Outcome Sender::put(int fd, const Frame& frame, const void* payload, Load* load) {
  if (broken_ != 0) return Outcome::kBroken;
  if (queue_.size() >= kMostQueued) return Outcome::kFull;
  const bool wasEmpty = queue_.empty();
  queue_.push_back({frame, static_cast<const unsigned char*>(payload), load, 0, false, nullptr});
  ++load->unfinished;
  ++load->queued;
  if (wasEmpty) flush(fd);
  return broken_ != 0 ? Outcome::kBroken : Outcome::kAccepted;
}

void Sender::number(Request& request) {
  if (request.isNumbered) return;
  request.isNumbered = true;
  request.frame.sequence = next_++;
  request.frame.headerCrc = headerCrc(request.frame);
}

bool Sender::flush(int fd) {
  bool hasMoved = false;
  while (!queue_.empty() && broken_ == 0) {
    iovec parts[kMostParts];
    std::size_t count = 0;
    std::uint64_t offered = 0;
    for (Request& request : queue_) {
      if (count + 2 > kMostParts || offered >= kMostAtOnce) break;
      number(request);
      const std::uint64_t ofHeader = std::min<std::uint64_t>(request.sent, sizeof(Frame));
      const std::uint64_t ofPayload = request.sent - ofHeader;
      if (ofHeader < sizeof(Frame)) {
        parts[count++] = {reinterpret_cast<unsigned char*>(&request.frame) + ofHeader, sizeof(Frame) - ofHeader};
        offered += sizeof(Frame) - ofHeader;
      }
      if (ofPayload == request.frame.bytes) continue;
      const std::uint64_t step = std::min(request.frame.bytes - ofPayload, kMostAtOnce);
      parts[count++] = {const_cast<unsigned char*>(request.payload + ofPayload), step};
      offered += step;
      if (ofPayload + step < request.frame.bytes) break;  // the rest of it comes first
    }
    const ssize_t sent = sendParts(fd, parts, count);
    if (sent == -2) broken_ = errno;
    if (sent <= 0) break;
    hasMoved = true;
    consume(static_cast<std::uint64_t>(sent));
    if (static_cast<std::uint64_t>(sent) < offered) break;  // it would take nothing now
  }
  return hasMoved;
}

void Sender::consume(std::uint64_t bytes) {
  while (bytes > 0) {
    Request& first = queue_.front();
    const std::uint64_t step = std::min(bytes, lengthOf(first.frame) - first.sent);
    first.sent += step;
    bytes -= step;
    if (first.sent < lengthOf(first.frame)) return;
    if (first.load != nullptr) {
      --first.load->unfinished;
      --first.load->queued;
    }
    queue_.pop_front();
  }
}

void Sender::release(Load* load) {
  std::uint64_t kept = 0;
  for (Request& request : queue_) {
    if (request.load != load) continue;
    kept += request.frame.bytes;
    if (request.sent == 0 && kept > kMostKept) continue;
    request.copy = std::make_unique<unsigned char[]>(request.frame.bytes);
    if (request.frame.bytes != 0) std::memcpy(request.copy.get(), request.payload, request.frame.bytes);
    request.payload = request.copy.get();
    request.load = nullptr;
  }
  std::erase_if(queue_, [&](const Request& request) { return request.load == load; });
  for (Request& request : queue_) {
    if (request.sent == 0 && std::exchange(request.isNumbered, false)) --next_;  // anew, without gaps
  }
}

void Sender::abandon() {
  for (Request& request : queue_) {
    if (request.load == nullptr) continue;
    --request.load->unfinished;
    --request.load->queued;
  }
  queue_.clear();
}

}  // namespace kolo::tcp
