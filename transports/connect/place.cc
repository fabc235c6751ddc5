#include "place.h"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

namespace kolo::connect {
namespace {

std::size_t addressBytes(const Place& place) { return place.isV6 ? 16 : 4; }

// The words of a comma-separated list, without blanks.
std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> found;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t first = word.find_first_not_of(" \t");
    if (first == std::string_view::npos) continue;
    found.push_back(word.substr(first, word.find_last_not_of(" \t") - first + 1));
  }
  return found;
}

bool isNamed(const Place& place, std::string_view word) {
  if (place.interface == word) return true;
  Place address;
  return parseAddress(word, &address) && sameAddress(place, address);
}

std::string listOf(const std::vector<Place>& places) {
  std::string text;
  for (const Place& place : places) text += (text.empty() ? "" : ", ") + place.interface + " " + toText(place);
  return text.empty() ? "none" : text;
}

// Smaller is better.
auto rankOf(const Place& place) {
  return std::tuple(place.isLoopback, 2 - static_cast<int>(place.made), 255 - place.speed, place.isV6, place.distance);
}

constexpr unsigned char kIsV6 = 0x80, kIsLoopback = 0x40, kMadeMask = 0x03;
constexpr std::size_t kPackedHead = 3;

}  // namespace

std::uint8_t speedClass(std::int64_t megabitsPerSecond) {
  return megabitsPerSecond <= 0
             ? 0
             : static_cast<std::uint8_t>(std::bit_width(static_cast<std::uint64_t>(megabitsPerSecond)));
}

void measureDistances(std::vector<Place>& own, std::string_view nearNics) {
  const std::vector<std::string_view> near = words(nearNics);
  for (Place& place : own) {
    const std::string_view name =
        std::string_view(place.interface).substr(0, place.interface.find(':'));  // eth0:1 is of eth0
    const auto at = std::find(near.begin(), near.end(), name) - near.begin();
    place.distance = static_cast<std::uint8_t>(std::min<std::ptrdiff_t>(at, 255));
  }
}

bool sameAddress(const Place& a, const Place& b) {
  return a.isV6 == b.isV6 && std::memcmp(a.address, b.address, addressBytes(a)) == 0;
}

bool sameNetwork(const Place& a, const Place& b) {
  const unsigned prefix = std::min<unsigned>(std::min(a.prefix, b.prefix), 8 * static_cast<unsigned>(addressBytes(a)));
  if (a.isV6 != b.isV6 || prefix == 0) return false;
  if (std::memcmp(a.address, b.address, prefix / 8) != 0) return false;
  const unsigned rest = prefix % 8;
  const auto mask = static_cast<unsigned char>(0xff00u >> rest);
  return rest == 0 || ((a.address[prefix / 8] ^ b.address[prefix / 8]) & mask) == 0;
}

std::string toText(const Place& place) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(place.isV6 ? AF_INET6 : AF_INET, place.address, text, sizeof text);
  return text;
}

bool parseAddress(std::string_view text, Place* place) {
  const std::string terminated(text);
  *place = {};
  if (inet_pton(AF_INET, terminated.c_str(), place->address) == 1) return true;
  place->isV6 = true;
  return inet_pton(AF_INET6, terminated.c_str(), place->address) == 1;
}

socklen_t toSocketAddress(const Place& place, std::uint16_t port, sockaddr_storage* to) {
  *to = {};
  if (place.isV6) {
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(to);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    std::memcpy(&v6->sin6_addr, place.address, 16);
    return sizeof *v6;
  }
  auto* const v4 = reinterpret_cast<sockaddr_in*>(to);
  v4->sin_family = AF_INET;
  v4->sin_port = htons(port);
  std::memcpy(&v4->sin_addr, place.address, 4);
  return sizeof *v4;
}

Place fromSocketAddress(const sockaddr_storage& from) {
  Place place;
  if (from.ss_family == AF_INET) {
    std::memcpy(place.address, &reinterpret_cast<const sockaddr_in&>(from).sin_addr, 4);
    return place;
  }
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
  place.isV6 = !IN6_IS_ADDR_V4MAPPED(&v6);  // what came to a socket of both kinds by IPv4
  std::memcpy(place.address, v6.s6_addr + (place.isV6 ? 0 : 12), addressBytes(place));
  return place;
}

std::vector<Place> choosePlaces(const std::vector<Place>& own, std::string_view setting, std::string* problem) {
  const bool isAllBut =
      setting.find_first_not_of(" \t") != std::string_view::npos && setting[setting.find_first_not_of(" \t")] == '^';
  if (isAllBut) setting.remove_prefix(setting.find('^') + 1);
  const std::vector<std::string_view> wanted = words(setting);
  std::vector<Place> chosen;
  if (wanted.empty() || isAllBut) {
    std::copy_if(own.begin(), own.end(), std::back_inserter(chosen), [&](const Place& place) {
      return std::none_of(wanted.begin(), wanted.end(), [&](std::string_view word) { return isNamed(place, word); });
    });
    std::stable_sort(chosen.begin(), chosen.end(),
                     [](const Place& a, const Place& b) { return rankOf(a) < rankOf(b); });
    if (chosen.empty()) *problem = "no network interface is left; those that are up: " + listOf(own);
    return chosen;
  }
  for (const std::string_view word : wanted) {
    const std::size_t before = chosen.size();
    std::copy_if(own.begin(), own.end(), std::back_inserter(chosen),
                 [&](const Place& place) { return isNamed(place, word); });
    if (chosen.size() != before) continue;
    *problem = "no network interface that is up has the name or address \"" + std::string(word) +
               "\"; there are: " + listOf(own);
    return {};
  }
  return chosen;
}

std::vector<Place> orderPlaces(const std::vector<Place>& theirs, const std::vector<Place>& own, bool isSameHost,
                               bool isOrdered) {
  std::vector<Place> order;
  std::copy_if(theirs.begin(), theirs.end(), std::back_inserter(order), [&](const Place& place) {
    if (isSameHost) return true;
    return !place.isLoopback &&
           std::none_of(own.begin(), own.end(), [&](const Place& o) { return sameAddress(o, place); });
  });
  if (isOrdered) return order;
  const auto rank = [&](const Place& place) {
    Made made = place.made;
    bool isNear = false;
    for (const Place& o : own) {
      if (!sameNetwork(o, place) || o.isLoopback) continue;
      isNear = true;
      made = std::min(made, o.made);  // a bridge of containers on either side
    }
    return std::tuple(!place.isLoopback, made == Made::kBridge, !isNear, rankOf(place));
  };
  std::stable_sort(order.begin(), order.end(), [&](const Place& a, const Place& b) { return rank(a) < rank(b); });
  return order;
}

std::size_t packPlaces(const std::vector<Place>& places, std::span<unsigned char> to) {
  std::size_t at = 1, count = 0;
  for (const Place& place : places) {
    const std::size_t bytes = kPackedHead + addressBytes(place);
    if (at + bytes > to.size() || count == 255) break;
    to[at] = static_cast<unsigned char>((place.isV6 ? kIsV6 : 0) | (place.isLoopback ? kIsLoopback : 0) |
                                        static_cast<unsigned char>(place.made));
    to[at + 1] = place.speed;
    to[at + 2] = place.prefix;
    std::memcpy(&to[at + kPackedHead], place.address, addressBytes(place));
    at += bytes;
    ++count;
  }
  to[0] = static_cast<unsigned char>(count);
  return count;
}

bool unpackPlaces(std::span<const unsigned char> from, std::vector<Place>* places) {
  places->clear();
  if (from.empty()) return false;
  std::size_t at = 1;
  for (std::size_t count = from[0]; count > 0; --count) {
    if (at + kPackedHead > from.size()) return false;
    Place place;
    place.isV6 = (from[at] & kIsV6) != 0;
    place.isLoopback = (from[at] & kIsLoopback) != 0;
    place.made = static_cast<Made>(from[at] & kMadeMask);
    place.speed = from[at + 1];
    place.prefix = from[at + 2];
    const std::size_t bytes = addressBytes(place);
    at += kPackedHead;
    if (at + bytes > from.size() || place.prefix > 8 * bytes) return false;
    std::memcpy(place.address, &from[at], bytes);
    at += bytes;
    places->push_back(std::move(place));
  }
  return true;
}

}  // namespace kolo::connect
