// Sockets of the control plane: where they listen, the addresses of names, connecting with a deadline.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "network/place.h"
#include "network/socket.h"

namespace kolo::bootstrap {

using network::Address;
using network::Clock;
using network::millisecondsUntil;
using network::Place;
using network::Socket;

// What the listener binds to, and where others can reach it, best first.
struct LocalAddresses {
  bool any = true;  // all interfaces; false: only reachable.front()
  std::vector<Place> reachable;
};
// Those of all interfaces.
LocalAddresses allAddresses();
LocalAddresses onlyAt(const Address& address);
// Follows KOLO_INTERFACE: an interface, an address, or "any". Otherwise `only`, if it is given, and else all.
Result<LocalAddresses> localAddresses(const std::optional<Address>& only);
// At which only this host reaches it, if it has one.
std::optional<Address> loopbackHere();

// The addresses of a host. koloUnreachable, with the name and the resolver's reason, or that it has not answered by the
// deadline.
Result<std::vector<Address>> lookUp(const std::string& host, Clock::time_point deadline);
// The result of lookUp(). A name that does not resolve is asked for again until the deadline, for it may come late.
Result<std::vector<Address>> resolve(const std::string& host, Clock::time_point deadline);

// Port 0: one of KOLO_PORT_RANGE, or the kernel chooses. Dual-stack where IPv6 exists.
Result<Socket> listenOn(const LocalAddresses& local, std::uint16_t port, std::uint16_t& chosen);

// errno is 0 on success, ETIMEDOUT at the deadline. The socket is non-blocking and tuned.
Socket connectTo(const Address& address, std::uint16_t port, Clock::time_point deadline, int& errnum);

// The address at the other end, for messages.
std::string peerOf(int fd);
// At this end of a connection, or at the other one; nothing: it leads to this very host.
std::optional<Address> ownAddressOf(int fd);
std::optional<Address> peerAddressOf(int fd);

// No delay; a host that is silent for KOLO_SILENCE_MS is noticed.
void tune(int fd);

}  // namespace kolo::bootstrap
