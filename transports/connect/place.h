// Places: the IP addresses at which a process may be reached, and which of them to try first. Reading this machine's is
// one function; choosing among them is pure, so that tests make up whole machines.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kolo::connect {

// What an interface is made of, worst first. A bridge that no hardware is part of (of containers, of virtual machines)
// has the same address on many hosts, and mostly leads nowhere.
enum class Made : std::uint8_t { kBridge = 0, kVirtual = 1, kHardware = 2 };

struct Place {
  bool isV6 = false;
  bool isLoopback = false;
  Made made = Made::kVirtual;
  std::uint8_t speed = 0;          // speedClass
  std::uint8_t prefix = 0;         // bits of the address that name the network
  unsigned char address[16] = {};  // 4 bytes of it if not isV6
  // Of an own place; these do not travel.
  std::string interface;
  std::int64_t megabits = 0;  // a second, one way; 0: unknown
  std::uint8_t distance = 0;  // 0, or where the interface stands among those near this rank, best first
};

// Larger is faster: twice the speed is one more. 0: unknown.
std::uint8_t speedClass(std::int64_t megabitsPerSecond);

// Addresses of the interfaces that are up and running, without link-local ones of IPv6, which mean nothing on another
// host. 0, or an errno.
int ownPlaces(std::vector<Place>* places);

// Sets the distances: nearNics as in koloTransportHost; an interface that is not in the list is farther than all that
// are.
void measureDistances(std::vector<Place>& own, std::string_view nearNics);

bool sameAddress(const Place& a, const Place& b);
bool sameNetwork(const Place& a, const Place& b);  // by the shorter prefix
std::string toText(const Place& place);
// The text of an address; false if it is none.
bool parseAddress(std::string_view text, Place* place);
// For connect(2).
socklen_t toSocketAddress(const Place& place, std::uint16_t port, sockaddr_storage* to);
Place fromSocketAddress(const sockaddr_storage& from);

// The places to be told to the peers, best first. setting: as KOLO_TCP_INTERFACES: interfaces or addresses in order of
// preference, separated by commas; ^ before the first: all but these; empty: hardware before others, then the faster,
// then the nearer. If a name is not found: empty, and *problem says so.
std::vector<Place> choosePlaces(const std::vector<Place>& own, std::string_view setting, std::string* problem);

// The peer's places in the order in which to try them. Loopback only if both are in one network namespace of one kernel
// (isSameHost), and then first; otherwise without those that are this host's own: what listens there is not the peer.
// Given order first (isOrdered: the peer's user has said so), else no bridges, the own networks, hardware, the faster.
std::vector<Place> orderPlaces(const std::vector<Place>& theirs, const std::vector<Place>& own, bool isSameHost,
                               bool isOrdered);

// As many as fit, best first, in a form that travels: the number packed.
std::size_t packPlaces(const std::vector<Place>& places, std::span<unsigned char> to);
bool unpackPlaces(std::span<const unsigned char> from, std::vector<Place>* places);

}  // namespace kolo::connect
