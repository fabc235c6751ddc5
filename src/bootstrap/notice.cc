#include "bootstrap/notice.h"

#include <poll.h>
#include <unistd.h>

#include "bootstrap/process_info.h"

namespace kolo::bootstrap {
namespace {

constexpr auto kAnswerTime = std::chrono::seconds(1);  // of a process that listens, and may be stopped
constexpr std::size_t kMostBytes = 4096;

// A packet is read whole, or not at all.
Socket makeSocket() { return Socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

bool isOfThisUser(const Socket& socket) { return processAt(socket.fd()).uid == ::geteuid(); }

}  // namespace

bool giveNotice(const std::string& name, std::string_view words, int readers, Clock::time_point deadline) {
  const Socket listener = makeSocket();
  sockaddr_un address;
  const socklen_t bytes = network::fill(name, address);
  if (!listener.valid() || ::bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      ::listen(listener.fd(), SOMAXCONN) != 0)
    return false;
  while (readers > 0 && Clock::now() < deadline) {
    if (!network::await(listener.fd(), POLLIN, deadline)) continue;
    const Socket reader(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!reader.valid() || !isOfThisUser(reader)) continue;
    if (::send(reader.fd(), words.data(), words.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(words.size())) --readers;
  }
  return true;
}

std::optional<std::string> readNotice(const std::string& name) {
  const Socket socket = makeSocket();
  sockaddr_un address;
  const socklen_t bytes = network::fill(name, address);
  if (!socket.valid() || ::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      !isOfThisUser(socket) || !network::await(socket.fd(), POLLIN, Clock::now() + kAnswerTime))
    return std::nullopt;
  char buffer[kMostBytes];
  const ssize_t got = ::recv(socket.fd(), buffer, sizeof buffer, 0);
  if (got <= 0) return std::nullopt;
  return std::string(buffer, static_cast<std::size_t>(got));
}

}  // namespace kolo::bootstrap
