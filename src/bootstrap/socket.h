// Sockets of the control plane: ownership, addresses, connecting with a deadline.
//
// A process forked from this one must not keep the control sockets open: the peers notice the death of a rank by its
// socket closing, and a copy in a child would hide it. Every Socket is therefore in a registry whose members are closed
// in the child of each fork.
//
// Thread safety: all functions, from any thread; one Socket object belongs to one thread at a time.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "network/place.h"

namespace kolo::bootstrap {

using Clock = std::chrono::steady_clock;
using network::Address;
using network::Place;

// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() { close(); }

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

// What the listener binds to, and where others can reach it, best first.
struct LocalAddresses {
  bool any = true;  // all interfaces; false: only reachable.front()
  std::vector<Place> reachable;
};
// Those of all interfaces.
LocalAddresses allAddresses();
// Follows KOLO_INTERFACE, an interface or an address; otherwise all.
Result<LocalAddresses> localAddresses();

// The addresses of a host. koloUnreachable, with the name and the resolver's reason, or that it has not answered by the
// deadline.
Result<std::vector<Address>> lookUp(const std::string& host, Clock::time_point deadline);
// The result of lookUp(). A name that does not resolve is asked for again until the deadline, for it may come late.
Result<std::vector<Address>> resolve(const std::string& host, Clock::time_point deadline);

// Port 0: one of KOLO_PORT_RANGE, or the kernel chooses. Dual-stack where IPv6 exists.
Result<Socket> listenOn(const LocalAddresses& local, std::uint16_t port, std::uint16_t& chosen);

// errno is 0 on success, ETIMEDOUT at the deadline. The socket is non-blocking and tuned.
Socket connectTo(const Address& address, std::uint16_t port, Clock::time_point deadline, int& errnum);

// No delay; a host that is silent for KOLO_SILENCE_MS is noticed.
void tune(int fd);

// Milliseconds until the deadline for poll(), rounded up, at least 0.
int millisecondsUntil(Clock::time_point deadline);

}  // namespace kolo::bootstrap
