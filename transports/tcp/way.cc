#include "way.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "../common/why.h"
#include "network/silence.h"

namespace kolo::tcp {
namespace {

// Of one rail in one call, so that the others have their turn.
constexpr std::size_t kMostTakenAtOnce = std::size_t{8} << 20;
// After a payload of so many bytes another one is likely: less of it passes the scratch, which costs a copy.
constexpr std::size_t kLarge = 16384;
constexpr std::size_t kScratchThen = 4096;

ssize_t receiveInto(int fd, std::span<unsigned char> room, std::span<unsigned char> scratch) {
  iovec parts[2] = {{room.data(), room.size()}, {scratch.data(), scratch.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  for (;;) {
    const ssize_t got =
        room.empty() ? recv(fd, scratch.data(), scratch.size(), MSG_DONTWAIT) : recvmsg(fd, &message, MSG_DONTWAIT);
    if (got >= 0 || errno != EINTR) return got;
  }
}

}  // namespace

// Payloads are received where they belong; headers, and what comes with them, by way of the scratch.
bool Way::receive(Rail& rail, Scratch& scratch, std::string* wrong) {
  std::size_t taken = 0;
  while (!rail.hasEnded && taken < kMostTakenAtOnce) {
    std::span<unsigned char> room = rail.parser.room();
    room = room.first(std::min(room.size(), kMostTakenAtOnce));
    const bool isDirect = rail.parser.lastBytes() >= kLarge && !rail.parser.decrypts();
    const std::span<unsigned char> rest(scratch.data(), isDirect ? kScratchThen : scratch.size());
    const ssize_t got = receiveInto(rail.socket.fd(), room, rest);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      rail.hasEnded = true;
      if (got < 0 && why.empty()) why = common::ErrorText(errno).text;
      if (!rail.parser.isBetweenFrames() && why.empty()) why = "in the middle of a frame";
      break;
    }
    taken += static_cast<std::size_t>(got);
    const std::size_t direct = std::min(static_cast<std::size_t>(got), room.size());
    const char* problem = direct > 0 ? rail.parser.filled(direct) : nullptr;
    if (problem == nullptr) problem = rail.parser.feed(rest.data(), static_cast<std::size_t>(got) - direct);
    if (problem != nullptr) {
      *wrong = problem;
      break;
    }
    if (static_cast<std::size_t>(got) < room.size() + rest.size()) break;  // there was no more
  }
  return taken > 0;
}

bool Way::hasEnded() const {
  return std::all_of(rails.begin(), rails.end(), [](const auto& rail) { return rail->hasEnded; });
}

bool Way::isStale() const {
  return std::any_of(rails.begin(), rails.end(), [](const auto& rail) { return network::hasEnded(rail->socket.fd()); });
}

void Way::abandon() {
  for (const auto& rail : rails) rail->sender.abandon();
}

// Closing while bytes arrive that nobody takes would reset the connection, and what is on its way to the peer would be
// lost: they are thrown away.
std::uint64_t Way::drain(Scratch& scratch) {
  std::uint64_t left = 0;
  for (const auto& rail : rails) {
    if (isBroken || rail->hasEnded) continue;
    const int fd = rail->socket.fd();
    rail->sender.flush(fd);
    if (rail->sender.broken() != 0) continue;
    while (recv(fd, scratch.data(), scratch.size(), MSG_DONTWAIT) > 0) {
    }
    if (isClosed(rail->socket) || isSilent(rail->socket, silenceMs)) continue;
    int unacknowledged = 0;
    (void)ioctl(fd, SIOCOUTQ, &unacknowledged);
    left += rail->sender.size();
    const int ofEnd = rail->isHalfClosed ? 1 : 0;  // the end counts as one
    if (unacknowledged > ofEnd) left += static_cast<std::uint64_t>(unacknowledged);
    if (rail->sender.isEmpty() && !std::exchange(rail->isHalfClosed, true)) (void)shutdown(fd, SHUT_WR);
  }
  return left;
}

void prepare(const network::Socket& socket, int silenceMs) {
  const int yes = 1;
  (void)setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  // Not limitSilence(): a peer that lives may take nothing for a while, because it computes.
  network::watchForSilence(socket.fd(), silenceMs);
}

bool isSilent(const network::Socket& socket, int silenceMs) {
  constexpr std::uint32_t kTries = 3;
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  return info.tcpi_last_ack_recv >= static_cast<std::uint32_t>(silenceMs) &&
         std::max(info.tcpi_retransmits, info.tcpi_probes) >= kTries;
}

bool isClosed(const network::Socket& socket) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  return getsockopt(socket.fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && info.tcpi_state == TCP_CLOSE;
}

}  // namespace kolo::tcp
