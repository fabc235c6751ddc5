#include "bench.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <vector>

namespace kolo::contract {
namespace {

using Clock = std::chrono::steady_clock;
// What iperf3 gives to one call.
constexpr std::size_t kStep = 128 << 10;

double since(Clock::time_point begun) { return std::chrono::duration<double>(Clock::now() - begun).count(); }

void awaitWord(const PostedEnd& end, std::uint64_t value) {
  const std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(end.rank->data(end.inbox) + 64));
  while (word.load(std::memory_order_acquire) < value) end.rank->progress(end.peer, 0);
}

// Non-blocking and spinning, as the transport does.
void sendRaw(int socket, const unsigned char* from, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(socket, from, std::min(bytes, kStep), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return;
    if (sent > 0) from += sent, bytes -= static_cast<std::size_t>(sent);
  }
}

void receiveRaw(int socket, unsigned char* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = recv(socket, to, std::min(bytes, kStep), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return;
    if (got > 0) to += got, bytes -= static_cast<std::size_t>(got);
  }
}

double pingRaw(int socket, std::uint64_t rounds, std::size_t bytes, std::size_t answer, bool begins) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  std::vector<unsigned char> out(begins ? bytes : answer, 1), in(begins ? answer : bytes, 1);
  const auto begun = Clock::now();
  for (std::uint64_t round = 0; round < rounds; ++round) {
    if (begins) sendRaw(socket, out.data(), out.size());
    receiveRaw(socket, in.data(), in.size());
    if (!begins) sendRaw(socket, out.data(), out.size());
  }
  const double seconds = since(begun);
  ::close(socket);
  return seconds;
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

double benchPosted(const PostedEnd& end, std::uint64_t rounds, std::size_t bytes, std::size_t answer, bool begins) {
  PutOptions put{.memory = end.outbox, .bytes = begins ? bytes : answer, .to = kSignals, .signalTo = 64};
  const auto begun = Clock::now();
  for (put.signal = 1; put.signal <= rounds; ++put.signal) {
    if (begins) (void)putAll(end, put);
    awaitWord(end, put.signal);
    if (!begins) (void)putAll(end, put);
  }
  const double seconds = since(begun);
  (void)settle(end);
  return seconds;
}

int listenRaw(std::uint16_t* port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t bytes = sizeof address;
  bind(listener, reinterpret_cast<sockaddr*>(&address), bytes);
  listen(listener, 1);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes);
  *port = ntohs(address.sin_port);
  return listener;
}

double serveRaw(int listener, std::uint64_t rounds, std::size_t bytes, std::size_t answer) {
  const int socket = accept(listener, nullptr, nullptr);
  ::close(listener);
  return pingRaw(socket, rounds, bytes, answer, false);
}

double benchRaw(std::uint16_t port, std::uint64_t rounds, std::size_t bytes, std::size_t answer) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return -1;
  return pingRaw(socket, rounds, bytes, answer, true);
}

}  // namespace kolo::contract
