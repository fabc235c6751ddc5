// Places: the IP addresses at which a process may be reached, and which of them to try first. Both the rendezvous and
// the transports between hosts go by this one rule. Reading this machine's addresses is one function; choosing among
// them is pure, so that tests make up whole machines.
//
// An address counts wherever it is: hosts that tell their routers themselves where they are (BGP) have theirs on the
// loopback interface. Only loopback addresses lead nowhere else.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "network/address.h"

namespace kolo::network {

// What an interface is made of, worst first. A bridge that no hardware is part of (of containers, of virtual machines)
// has the same address on many hosts, and mostly leads nowhere.
enum class Made : std::uint8_t { kBridge = 0, kVirtual = 1, kHardware = 2 };

struct Place : Address {
  Made made = Made::kVirtual;
  std::uint8_t speed = 0;   // speedClass
  std::uint8_t prefix = 0;  // bits of the address that name the network
  // Of an own place; these do not travel.
  std::string interface;
  std::int64_t megabits = 0;  // a second, one way; 0: unknown
  std::uint8_t distance = 0;  // 0, or where the interface stands among those near this rank, best first

  const Address& address() const { return *this; }
};

// Larger is faster: twice the speed is one more. 0: unknown.
std::uint8_t speedClass(std::int64_t megabitsPerSecond);

// Addresses of the interfaces that are up and running, without link-local ones of IPv6, which mean nothing on another
// host. 0, or an errno.
int ownPlaces(std::vector<Place>* places);

// Equal in two processes: they see one network stack, so loopback leads from one to the other. It is made of the
// kernel's id, which it draws at each start, and of the network namespace; the fallback stands for the kernel's id
// where there is no /proc.
std::string stackName(std::string_view fallback);

// Sets the distances: nearNics as in koloTransportHost; an interface that is not in the list is farther than all that
// are.
void measureDistances(std::vector<Place>& own, std::string_view nearNics);

bool sameNetwork(const Place& a, const Place& b);      // by the shorter prefix
std::string listOf(const std::vector<Place>& places);  // "eth0 10.0.0.1, lo 127.0.0.1"

// The places to be told to the peers, best first. setting: as KOLO_TCP_INTERFACES: interfaces or addresses in order of
// preference, separated by commas; ^ before the first: all but these; empty: all. Where the setting gives no order:
// hardware before others, then the faster, then the nearer; loopback last. If a name is not found: empty, and *problem
// says so.
std::vector<Place> choosePlaces(const std::vector<Place>& own, std::string_view setting, std::string* problem);

// The peer's places in the order in which to try them. Loopback only if both see one network stack (isSameStack), and
// then first; otherwise without those that are this host's own: what listens there is not the peer. Given order first
// (isOrdered: the peer's user has said so), else no bridges, the own networks, hardware, the faster.
std::vector<Place> orderPlaces(const std::vector<Place>& theirs, const std::vector<Place>& own, bool isSameStack,
                               bool isOrdered);
// Why orderPlaces() has left none of them: "has no address but ...".
std::string whyNone(const std::vector<Place>& theirs);

// As many as fit, best first, in a form that travels: the number packed. What remains of the room is zero.
std::size_t packPlaces(const std::vector<Place>& places, std::span<unsigned char> to);
bool unpackPlaces(std::span<const unsigned char> from, std::vector<Place>* places);
// Whether some were left out, other than loopback's.
bool leavesOut(const std::vector<Place>& places, std::size_t packed);

}  // namespace kolo::network
