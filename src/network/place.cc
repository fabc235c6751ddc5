#include "network/place.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "base/words.h"

namespace kolo::network {
namespace {

bool isNamed(const Place& place, std::string_view word) {
  return place.interface == word || parseAddress(word) == place.address();
}

// Smaller is better.
auto rankOf(const Place& place) {
  return std::tuple(place.isLoopback(), 2 - static_cast<int>(place.made), 255 - place.speed, place.isV6,
                    place.distance);
}

void sortByRank(std::vector<Place>::iterator begin, std::vector<Place>::iterator end) {
  std::stable_sort(begin, end, [](const Place& a, const Place& b) { return rankOf(a) < rankOf(b); });
}

constexpr unsigned char kIsV6 = 0x80, kMadeMask = 0x03;
constexpr std::size_t kPackedHead = 3;

}  // namespace

std::uint8_t speedClass(std::int64_t megabitsPerSecond) {
  return megabitsPerSecond <= 0
             ? 0
             : static_cast<std::uint8_t>(std::bit_width(static_cast<std::uint64_t>(megabitsPerSecond)));
}

void measureDistances(std::vector<Place>& own, std::string_view nearNics) {
  const std::vector<std::string> near = wordsOf(nearNics);
  for (Place& place : own) {
    const std::string_view name =
        std::string_view(place.interface).substr(0, place.interface.find(':'));  // eth0:1 is of eth0
    const auto at = std::find(near.begin(), near.end(), name) - near.begin();
    place.distance = static_cast<std::uint8_t>(std::min<std::ptrdiff_t>(at, 255));
  }
}

bool sameNetwork(const Place& a, const Place& b) {
  const unsigned prefix = std::min<unsigned>(std::min(a.prefix, b.prefix), 8 * static_cast<unsigned>(a.size()));
  if (a.isV6 != b.isV6 || prefix == 0) return false;
  if (std::memcmp(a.bytes, b.bytes, prefix / 8) != 0) return false;
  const unsigned rest = prefix % 8;
  const auto mask = static_cast<unsigned char>(0xff00u >> rest);
  return rest == 0 || ((a.bytes[prefix / 8] ^ b.bytes[prefix / 8]) & mask) == 0;
}

std::string listOf(const std::vector<Place>& places) {
  std::string text;
  for (const Place& place : places) {
    text += text.empty() ? "" : ", ";
    text += (place.interface.empty() ? "" : place.interface + " ") + place.text();
  }
  return text.empty() ? "none" : text;
}

std::vector<Place> choosePlaces(const std::vector<Place>& own, std::string_view setting, std::string* problem) {
  const bool isAllBut =
      setting.find_first_not_of(" \t") != std::string_view::npos && setting[setting.find_first_not_of(" \t")] == '^';
  if (isAllBut) setting.remove_prefix(setting.find('^') + 1);
  const std::vector<std::string> wanted = wordsOf(setting);
  std::vector<Place> chosen;
  if (wanted.empty() || isAllBut) {
    std::copy_if(own.begin(), own.end(), std::back_inserter(chosen), [&](const Place& place) {
      return std::none_of(wanted.begin(), wanted.end(), [&](std::string_view word) { return isNamed(place, word); });
    });
    sortByRank(chosen.begin(), chosen.end());
    if (chosen.empty()) *problem = "no network interface is left; those that are up: " + listOf(own);
    return chosen;
  }
  for (const std::string_view word : wanted) {
    const auto before = static_cast<std::ptrdiff_t>(chosen.size());
    std::copy_if(own.begin(), own.end(), std::back_inserter(chosen),
                 [&](const Place& place) { return isNamed(place, word); });
    sortByRank(chosen.begin() + before, chosen.end());
    if (chosen.begin() + before != chosen.end()) continue;
    *problem = "no network interface that is up has the name or address \"" + std::string(word) +
               "\"; there are: " + listOf(own);
    return {};
  }
  return chosen;
}

std::vector<Place> orderPlaces(const std::vector<Place>& theirs, const std::vector<Place>& own, bool isSameStack,
                               bool isOrdered) {
  std::vector<Place> order;
  std::copy_if(theirs.begin(), theirs.end(), std::back_inserter(order), [&](const Place& place) {
    if (isSameStack) return true;
    return !place.isLoopback() &&
           std::none_of(own.begin(), own.end(), [&](const Place& o) { return o.address() == place.address(); });
  });
  if (isOrdered) return order;
  const auto rank = [&](const Place& place) {
    Made made = place.made;
    bool isNear = false;
    for (const Place& o : own) {
      if (!sameNetwork(o, place) || o.isLoopback()) continue;
      isNear = true;
      made = std::min(made, o.made);  // a bridge of containers on either side
    }
    return std::tuple(!place.isLoopback(), made == Made::kBridge, !isNear, rankOf(place));
  };
  std::stable_sort(order.begin(), order.end(), [&](const Place& a, const Place& b) { return rank(a) < rank(b); });
  return order;
}

std::string whyNone(const std::vector<Place>& theirs) {
  std::vector<Place> shared;
  std::copy_if(theirs.begin(), theirs.end(), std::back_inserter(shared),
               [](const Place& place) { return !place.isLoopback(); });
  if (shared.empty()) return "has no address that leads to it from another host";
  return "has no address but those that this host has itself, too, as bridges of containers do (" + listOf(shared) +
         ")";
}

bool leavesOut(const std::vector<Place>& places, std::size_t packed) {
  return std::any_of(places.begin() + static_cast<std::ptrdiff_t>(packed), places.end(),
                     [](const Place& place) { return !place.isLoopback(); });
}

std::size_t packPlaces(const std::vector<Place>& places, std::span<unsigned char> to) {
  std::fill(to.begin(), to.end(), static_cast<unsigned char>(0));
  std::size_t at = 1, count = 0;
  for (const Place& place : places) {
    const std::size_t bytes = kPackedHead + place.size();
    if (at + bytes > to.size() || count == 255) break;
    to[at] = static_cast<unsigned char>((place.isV6 ? kIsV6 : 0) | static_cast<unsigned char>(place.made));
    to[at + 1] = place.speed;
    to[at + 2] = place.prefix;
    std::memcpy(&to[at + kPackedHead], place.bytes, place.size());
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
    place.made = static_cast<Made>(from[at] & kMadeMask);
    place.speed = from[at + 1];
    place.prefix = from[at + 2];
    const std::size_t bytes = place.size();
    at += kPackedHead;
    if (at + bytes > from.size() || place.prefix > 8 * bytes) return false;
    std::memcpy(place.bytes, &from[at], bytes);
    at += bytes;
    places->push_back(std::move(place));
  }
  return true;
}

}  // namespace kolo::network
