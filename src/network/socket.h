// Sockets of this process alone: each is closed with its owner, and at once in a forked child. A child that kept its
// parent's connections open would hide the parent's death from the peers.
//
// Thread safety: all functions, from any thread; one Socket belongs to one thread at a time.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/fork.h"
#include "base/settings.h"
#include "network/address.h"

namespace kolo::network {

using Clock = std::chrono::steady_clock;

class Socket {
 public:
  Socket() = default;
  // Takes it over; negative: none.
  explicit Socket(int fd);
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close();

 private:
  int fd_ = -1;
  unsigned generation_ = 0;
};

// A socket to dial by; where there can be none, an empty one, and errno is set.
Socket socketForDial(int family, int type = SOCK_STREAM);
// Begins to connect it: 0, or an errno. Once it is writable, connected() says what came of that: 0, or an errno.
int startConnecting(const Socket& socket, const Address& to, std::uint16_t port);
int connected(const Socket& socket);
// The lock is held by whoever takes a descriptor to keep, and by an acceptor while its spare descriptor is free to
// refuse a client with: nobody else then takes the spare one, without which later clients would get no answer.
std::unique_lock<std::mutex> lockDescriptors();

// Whether the other end has closed the connection, or it has failed. Not while bytes that came before are still unread.
bool hasEnded(int fd);

bool isOutOfFiles(int errnum);
// How many files this process may have open (RLIMIT_NOFILE); 0: not known.
std::uint64_t fileLimit();
// Raises it to what a job of so many ranks may need, as far as the process may (the hard limit). The caller's own limit
// stays for small jobs.
void raiseFileLimit(int ranks);
// Milliseconds until the deadline for poll(2), rounded up, at least 0.
int millisecondsUntil(Clock::time_point deadline);
// Waits for events of poll(2); false at the deadline.
bool await(int fd, short events, Clock::time_point deadline);
// For connect(2) and bind(2): a name of the kernel's (an abstract socket), which leaves no file behind.
socklen_t fill(std::string_view name, sockaddr_un& address);

struct Listening {
  Socket socket;
  std::uint16_t port = 0;
  int errnum = 0;  // no socket: why
  const char* what = "making a listening socket";
};
// At one address, or at all (null): of IPv4, and of IPv6 where the kernel has it. At the first of the ports that is
// free, beginning with one that depends on the process.
Listening listenAt(const Address* only, const settings::Ports& ports);

}  // namespace kolo::network
