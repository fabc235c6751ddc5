#include "bootstrap/channel.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/insist.h"

namespace kolo::bootstrap {
namespace {

constexpr std::size_t kReadBytes = 64u << 10;
constexpr int kReadsPerEvent = 16;  // then others have a turn
constexpr std::size_t kSealAheadBytes =
    32u << 10;  // ciphertext made before the socket is tried; of each connection of a hub

}  // namespace

std::array<std::uint64_t, kFrameKinds>& Channel::sent() {
  static constinit std::array<std::uint64_t, kFrameKinds> bytes{};
  return bytes;
}

Status Channel::start(Callbacks callbacks) {
  Status added = reactor_.add(socket_.fd(), shared_from_this());
  if (added.ok()) callbacks_ = std::move(callbacks);  // they may hold this object, which lasts until close() then
  return added;
}

void Channel::send(SharedFrame frame) {
  if (!socket_.valid() || closing_) return;
  queue_.push_back({std::move(frame), nullptr});
  hasGrown(queue_.back().frame->size());
}

void Channel::sendLater(LaterFrame frame) {
  if (*frame != nullptr) return send(*frame);
  if (socket_.valid() && !closing_) queue_.push_back({nullptr, std::move(frame)});
}

void Channel::sendAhead(SharedFrame frame) {
  if (!socket_.valid() || closing_) return;
  const std::size_t bytes = frame->size();
  const auto isUnknown = [](const Queued& each) { return each.known() == nullptr; };
  queue_.insert(std::find_if(queue_.begin(), queue_.end(), isUnknown), {std::move(frame), nullptr});
  hasGrown(bytes);
}

void Channel::resume(const LaterFrame& frame) {
  if (socket_.valid()) hasGrown((*frame)->size());
}

void Channel::hasGrown(std::size_t bytes) {
  queuedBytes_ += bytes;
  if (queuedBytes_ > kMaxQueuedBytes) {
    // Through the loop: a caller that sends to many must not see the list of members change under it.
    reactor_.post([self = shared_from_this()] { self->fail("it does not read what is sent to it"); });
    return;
  }
  if (!wantsWritable_) {
    wantsWritable_ = true;
    reactor_.watch(socket_.fd(), !closing_, true);
  }
}

void Channel::push() {
  if (socket_.valid()) flush();
}

bool Channel::hasArrived() const {
  int under = 0;
  return !socket_.valid() || (!hasOutput() && (::ioctl(socket_.fd(), SIOCOUTQ, &under) != 0 || under == 0));
}

void Channel::close() {
  if (!socket_.valid()) return;
  reactor_.remove(socket_.fd());
  socket_.close();
  queue_.clear();
  sealed_.clear();
  sealedSent_ = 0;
  // Not cleared here: one of them may be running, and their captures would go under its feet.
  (void)insist([&] { reactor_.later([self = shared_from_this()] { self->callbacks_ = {}; }); });
}

void Channel::closeWhenSent() {
  if (!socket_.valid()) return;
  closing_ = true;
  reactor_.watch(socket_.fd(), false, true);
}

void Channel::fail(std::string_view why) {
  if (!socket_.valid()) return;
  const bool tell = !closing_;
  close();
  if (tell) (void)insist([&] { callbacks_.onClosed(why); });
}

void Channel::onReadable() {
  static constinit std::array<char, kReadBytes>
      room{};  // of the reactor's thread; one for all channels: a hub has many
  for (int i = 0; i < kReadsPerEvent && socket_.valid(); ++i) {
    const ssize_t got = ::recv(socket_.fd(), room.data(), room.size(), 0);
    const int errnum = errno;
    if (got == 0) return fail(isSilent_ ? "connection lost: its host does not answer" : "connection closed");
    if (got < 0) {
      if (errnum == EINTR) continue;
      if (errnum == EAGAIN || errnum == EWOULDBLOCK) return;
      // A reset is how the kernel closes the socket of a process that died with bytes unread.
      if (errnum == ECONNRESET) return fail("connection closed");
      isSilent_ = true;
      char text[128];
      return fail(error(koloRemoteError, "connection lost: {}", strerror_r(errnum, text, sizeof text)).message());
    }
    if (closing_) {
      input_.clear();
    } else {
      try {
        input_.append(room.data(), static_cast<std::size_t>(got));
        parse();
      } catch (const std::bad_alloc&) {
        return fail("this process has no memory for what it sent");
      }
    }
    if (input_.empty()) input_.shrink_to_fit();
    if (static_cast<std::size_t>(got) < kReadBytes) return;
  }
}

void Channel::parse() {
  std::size_t at = 0;
  std::string plain;
  while (socket_.valid() && !closing_ && input_.size() - at >= kLengthBytes) {
    const std::string_view length = std::string_view(input_).substr(at, kLengthBytes);
    const std::size_t bytes = Session::cipherBytes(length);
    if (bytes == 0) return fail("it sent a frame of an impossible length");
    if (input_.size() - at - kLengthBytes < bytes) break;
    if (!session_.open(length, std::string_view(input_).substr(at + kLengthBytes, bytes), plain)) {
      return fail("it sent a frame that is not authentic");
    }
    at += kLengthBytes + bytes;
    if (!callbacks_.onFrame(plain)) return fail("it sent a malformed frame");
  }
  input_.erase(0, at);
}

void Channel::onWritable() { flush(); }

void Channel::flush() {
  while (socket_.valid()) {
    while (!queue_.empty() && queue_.front().known() != nullptr && sealed_.size() < kSealAheadBytes) {
      const SharedFrame next = queue_.front().known();
      const std::size_t before = sealed_.size();
      session_.seal(*next, sealed_);  // or there is no memory, and nothing has happened
      sent()[static_cast<unsigned char>(next->front()) % kFrameKinds] += sealed_.size() - before;
      queuedBytes_ -= next->size();
      queue_.pop_front();
    }
    if (sealed_.empty()) break;
    const ssize_t sent = ::send(socket_.fd(), sealed_.data() + sealedSent_, sealed_.size() - sealedSent_, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (closing_) return close();
      // The reading side finds the end, and before it whatever the peer said last.
      isSilent_ = errno != EPIPE && errno != ECONNRESET;
      queue_.clear();
      sealed_.clear();
      sealedSent_ = 0;
      break;
    }
    sealedSent_ += static_cast<std::size_t>(sent);
    taken_ += static_cast<std::uint64_t>(sent);
    if (sealedSent_ == sealed_.size()) {
      std::string().swap(sealed_);  // gives its memory back, as neither clear() nor assigning does
      sealedSent_ = 0;
    }
  }
  if (!socket_.valid()) return;
  if (closing_ && queue_.empty()) return close();
  wantsWritable_ = false;
  reactor_.watch(socket_.fd(), !closing_, false);
}

}  // namespace kolo::bootstrap
