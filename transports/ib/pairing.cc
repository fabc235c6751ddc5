#include "pairing.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "drivers/verbs/verbs.h"

namespace kolo::ib {
namespace {

using drivers::GidType;

bool isMapped(const unsigned char (&gid)[16]) { return std::memcmp(gid, kMappedPrefix, sizeof kMappedPrefix) == 0; }
bool isLinkLocal(const unsigned char (&gid)[16]) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }
bool isEmpty(const unsigned char (&gid)[16]) {
  return std::all_of(std::begin(gid), std::end(gid), [](unsigned char byte) { return byte == 0; });
}

int commonBits(const unsigned char (&a)[16], const unsigned char (&b)[16]) {
  for (int i = 0; i < 16; ++i) {
    if (a[i] != b[i]) return 8 * i + std::countl_zero(static_cast<std::uint8_t>(a[i] ^ b[i]));
  }
  return 128;
}

// -1: they cannot reach each other.
int affinity(const PortAddress& a, const PortAddress& b) {
  if (a.kind != b.kind) return -1;
  const int bits = commonBits(a.gid, b.gid);
  if (a.kind == static_cast<std::uint8_t>(GidType::kInfiniBand)) return bits >= 64 ? 128 : -1;
  const int prefix = std::min(a.prefix, b.prefix);
  if (prefix != 0 && bits >= prefix) return 128;
  return isMapped(a.gid) == isMapped(b.gid) ? bits : -1;
}

int nearness(const PortAddress& a, const PortAddress& b) { return (a.isFar == 0 ? 1 : 0) + (b.isFar == 0 ? 1 : 0); }

}  // namespace

std::vector<PortPair> pairPorts(std::span<const PortAddress> mine, std::span<const PortAddress> theirs,
                                std::uint8_t railsGiven) {
  std::vector<PortPair> pairs;
  std::vector<bool> mineUsed(mine.size()), theirsUsed(theirs.size());
  for (;;) {
    int best = -1;
    PortPair found{};
    for (std::size_t i = 0; i < mine.size(); ++i) {
      for (std::size_t k = 0; k < theirs.size(); ++k) {
        const int common = mineUsed[i] || theirsUsed[k] ? -1 : affinity(mine[i], theirs[k]);
        const int score = common < 0 ? -1 : 4 * common + nearness(mine[i], theirs[k]);
        if (score > best) best = score, found = {static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(k)};
      }
    }
    if (best < 0) break;
    mineUsed[found.mine] = theirsUsed[found.theirs] = true;
    pairs.push_back(found);
  }
  const auto nearnessOf = [&](const PortPair& pair) { return nearness(mine[pair.mine], theirs[pair.theirs]); };
  int nearest = 0;
  for (const PortPair& pair : pairs) nearest = std::max(nearest, nearnessOf(pair));
  std::erase_if(pairs, [&](const PortPair& pair) { return nearnessOf(pair) < nearest; });
  const std::size_t count = pairs.size();
  while (count > 0 && pairs.size() < std::min<std::size_t>(railsGiven, kMostLanes))
    pairs.push_back(pairs[pairs.size() % count]);
  if (pairs.size() > kMostLanes) pairs.resize(kMostLanes);
  return pairs;
}

std::uint32_t megabitsOf(std::uint8_t speed, std::uint8_t width) {
  const auto ofLane = [&]() -> std::uint32_t {
    switch (speed) {
      case 1: return 2500;
      case 2: return 5000;
      case 4:
      case 8: return 10000;
      case 16: return 14000;
      case 32: return 25000;
      case 64: return 50000;
      case 128: return 100000;
      default: return 2500;
    }
  };
  const std::uint32_t lanes = width == 16 ? 2 : width == 8 ? 12 : width == 4 ? 8 : width == 2 ? 4 : 1;
  return ofLane() * lanes;
}

std::uint8_t railsGiven(std::uint8_t mine, std::uint8_t theirs) {
  return mine == 0 || theirs == 0 ? std::max(mine, theirs) : std::min(mine, theirs);
}

std::uint32_t railsFor(std::uint8_t mine, std::uint8_t theirs, std::size_t lanes) {
  const std::uint8_t given = railsGiven(mine, theirs);
  const auto wish = static_cast<std::uint32_t>(given != 0 ? given : lanes);
  return std::bit_floor(std::clamp<std::uint32_t>(wish, 1, kMostLanes));
}

int scoreGid(const unsigned char (&gid)[16], std::uint8_t kind, bool isInfiniBand) {
  const auto type = static_cast<GidType>(kind);
  if (isEmpty(gid)) return 0;
  if (isInfiniBand) return type == GidType::kInfiniBand ? 1 : 0;
  // A link-local address reaches no further than the switch, and says nothing of which network that is.
  if (isLinkLocal(gid)) return 0;
  if (type == GidType::kRoceV2) return isMapped(gid) ? 4 : 3;
  // Version 1 is not routed; a kernel that tells no type is from before version 2.
  if (type == GidType::kRoceV1) return isMapped(gid) ? 2 : 1;
  return 0;
}

std::string toText(const PortAddress& port) {
  if (port.kind == static_cast<std::uint8_t>(GidType::kInfiniBand)) return fmt::format("LID {}", port.lid);
  char text[INET6_ADDRSTRLEN] = {};
  if (isMapped(port.gid)) inet_ntop(AF_INET, port.gid + 12, text, sizeof text);
  else inet_ntop(AF_INET6, port.gid, text, sizeof text);
  return fmt::format("{} (RoCE v{})", text, port.kind == static_cast<std::uint8_t>(GidType::kRoceV1) ? 1 : 2);
}

}  // namespace kolo::ib
