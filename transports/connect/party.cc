#include "party.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "network/silence.h"

namespace kolo::connect {
namespace {

// Which network stack this process sees. What it says is a hint: every way is proven.
void nameNetwork(const koloTransportHost& host, Id* network) {
  const std::string name = network::stackName({reinterpret_cast<const char*>(host.hostId), sizeof host.hostId});
  crypto_generichash(*network, sizeof *network, reinterpret_cast<const unsigned char*>(name.data()), name.size(),
                     nullptr, 0);
}

// One stream of TCP fills what is slower; the steps are of 25 and of 100 Gbit/s.
unsigned char railsFor(const std::vector<Place>& places) {
  std::uint8_t fastest = 0;
  for (const Place& place : places) {
    if (place.made == Made::kHardware) fastest = std::max(fastest, place.speed);
  }
  return fastest >= network::speedClass(100000) ? 4 : fastest >= network::speedClass(25000) ? 2 : 1;
}

bool isOneHost(const koloTransportHost& host) {
  constexpr std::size_t kEnd = offsetof(koloTransportHost, isOneHost) + sizeof host.isOneHost;
  return host.size >= kEnd && host.isOneHost != 0;
}

int publish(const koloTransportHost& host, const Wishes& wishes, Party* party, const Why& why) {
  if (const int errnum = network::ownPlaces(&party->own); errnum != 0) {
    return why.fail(KOLO_TRANSPORT_ERROR, "listing the network interfaces: %s", ErrorText(errnum).text);
  }
  constexpr std::size_t kEndOfNear = offsetof(koloTransportHost, nearNics) + sizeof host.nearNics;
  if (host.size >= kEndOfNear && host.nearNics != nullptr) network::measureDistances(party->own, host.nearNics);
  std::string problem;
  const std::vector<Place> chosen = network::choosePlaces(party->own, wishes.interfaces, &problem);
  if (chosen.empty()) return why.fail(KOLO_TRANSPORT_ERROR, "%s", problem.c_str());
  party->best = chosen.front();
  Address& address = party->address;
  const auto loopback =
      std::find_if(party->own.begin(), party->own.end(), [](const Place& own) { return own.isLoopback(); });
  const bool isLocal = isOneHost(host) && wishes.interfaces.empty() && loopback != party->own.end();
  const std::vector<Place> told = isLocal ? std::vector<Place>{*loopback} : chosen;
  // At the one address that this, or the user's choice of interfaces, has left, or at all of this host's.
  const bool isOnly = told.size() == 1 && (isLocal || !wishes.interfaces.empty());
  party->only = isOnly ? std::optional(told.front().address()) : std::nullopt;
  const bool hasMore = network::leavesOut(told, network::packPlaces(told, address.places));
  const std::size_t first = wishes.interfaces.find_first_not_of(" \t");
  const bool isOrdered = first != std::string_view::npos && wishes.interfaces[first] != '^';
  address.flags = static_cast<unsigned char>(
      (isOrdered ? Address::kOrdered : 0) | (wishes.rails > 0 ? Address::kRailsGiven : 0) |
      (hasMore ? Address::kHasMore : 0) | (settingOf(host, "KOLO_ENCRYPT") == "1" ? Address::kEncrypts : 0) |
      (crypto_aead_aes256gcm_is_available() != 0 ? Address::kHasAes : 0));
  address.rails = wishes.rails > 0 ? static_cast<unsigned char>(wishes.rails) : railsFor(chosen);
  return KOLO_TRANSPORT_OK;
}

}  // namespace

int openParty(const koloTransportHost& host, const Wishes& wishes, Callee* callee, Party* party, const Why& why) {
  if (const int code = openMember(host, wishes.purpose, party, why); code != KOLO_TRANSPORT_OK) return code;
  party->silenceMs = silenceOf(host);
  Address& address = party->address;
  address = {};
  address.version = kVersion;
  address.rank = static_cast<std::uint32_t>(host.rank);
  address.pid = static_cast<std::uint32_t>(party->pid);
  randombytes_buf(address.device, sizeof address.device);
  nameNetwork(host, &address.network);
  if (const int code = publish(host, wishes, party, why); code != KOLO_TRANSPORT_OK) return code;
  if (host.ranks > 1) {
    const bool isLocal = party->only.has_value() && party->only->isLoopback();  // where no firewall matters
    const settings::Ports ports =
        isLocal ? settings::Ports() : settings::parsePorts(wishes.ports).value();  // checked with the other settings
    Listener& listener = Listener::at(party->only);
    const int errnum = listener.add(address.device, {party->key, address.rank, address.flags}, ports, callee);
    if (errnum == EADDRINUSE && !ports.isAny()) {
      return why.fail(KOLO_TRANSPORT_ERROR,
                      "listening for the other ranks: all %d ports of KOLO_PORT_RANGE=%d-%d are in use on this host",
                      ports.count(), ports.first, ports.last);
    }
    if (errnum != 0) {
      return why.fail(KOLO_TRANSPORT_ERROR, "listening for the other ranks: %s", ErrorText(errnum).text);
    }
    party->listener = &listener;
    address.port = listener.port();
  }
  prove(address, party->key);
  return KOLO_TRANSPORT_OK;
}

void closeParty(Party& party) {
  if (Listener* const listener = std::exchange(party.listener, nullptr); listener != nullptr)
    listener->remove(party.address.device);
  sodium_memzero(&party.key, sizeof party.key);
}

int readAddress(const Party& party, const koloTransportBlob& blob, const Why& why, Address* address) {
  if (const int code = readWhole(blob, "address", why, address); code != KOLO_TRANSPORT_OK) return code;
  if (!isProven(*address, party.key)) {
    if (address->version != kVersion) {
      return why.fail(KOLO_TRANSPORT_UNREACHABLE,
                      "the peer speaks version %u of this transport's protocol, this one version %u", address->version,
                      kVersion);
    }
    return failAltered("address", why);
  }
  if (((address->flags ^ party.address.flags) & Address::kEncrypts) != 0) {
    return why.fail(KOLO_TRANSPORT_UNREACHABLE, "KOLO_ENCRYPT is %s on rank %u and %s here; set it alike on all ranks",
                    (address->flags & Address::kEncrypts) != 0 ? "1" : "not set", address->rank,
                    (party.address.flags & Address::kEncrypts) != 0 ? "1" : "not set");
  }
  if (address->rank < static_cast<std::uint32_t>(party.ranks)) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "an address of rank %u in a communicator of %d ranks", address->rank,
                  party.ranks);
}

std::string_view settingOf(const koloTransportHost& host, const char* name) {
  constexpr std::size_t kEnd = offsetof(koloTransportHost, setting) + sizeof host.setting;
  const char* const value = host.size >= kEnd && host.setting != nullptr ? host.setting(name) : nullptr;
  return value != nullptr ? value : "";
}

int silenceOf(const koloTransportHost& host) {
  const std::string text(settingOf(host, "KOLO_SILENCE_MS"));
  return text.empty() ? network::kSilenceMs : std::atoi(text.c_str());
}

const Place* placeOf(const Party& party, const Socket& socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return nullptr;
  const auto here = network::addressOf(reinterpret_cast<const sockaddr*>(&address));
  const auto at =
      std::find_if(party.own.begin(), party.own.end(), [&](const Place& own) { return own.address() == here; });
  return at != party.own.end() ? &*at : nullptr;
}

std::size_t railsBetween(const Address& a, const Address& b) {
  // Through loopback one connection is as fast as several.
  const auto wish = [&](const Address& one) -> std::size_t {
    return (one.flags & Address::kRailsGiven) == 0 && same(a.network, b.network) ? 1 : one.rails;
  };
  return std::clamp<std::size_t>(std::bit_floor(std::min(wish(a), wish(b))), 1, kMostRails);
}

}  // namespace kolo::connect
