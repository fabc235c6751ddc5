// Which ports of two ranks belong together, and how many rails that makes. Pure, so that tests make up whole networks.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "wire.h"

namespace kolo::ib {

struct PortPair {
  std::uint8_t mine, theirs;
};

// Lanes between the two, each port at most once if there are no more rails than that: those in the same network first,
// or if that is not known, those whose addresses have most in common; and of these the ones near their ranks. Where
// there is a lane by ports that are near both, the others are left out; else those that are near one. Ports of
// different kinds never reach each other, nor do those of different InfiniBand subnets. Empty: none does.
std::vector<PortPair> pairPorts(std::span<const PortAddress> mine, std::span<const PortAddress> theirs,
                                std::uint8_t railsGiven);

// Of a port, from what verbs says of its speed and width.
std::uint32_t megabitsOf(std::uint8_t speed, std::uint8_t width);

// IPv4 in a gid.
inline constexpr unsigned char kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// What both users wish, 0 being no wish; else as many as there are working lanes. 1, 2 or 4.
std::uint32_t railsFor(std::uint8_t mine, std::uint8_t theirs, std::size_t lanes);
std::uint8_t railsGiven(std::uint8_t mine, std::uint8_t theirs);

// How good an entry of a port's table is; 0: not to be used.
int scoreGid(const unsigned char (&gid)[16], std::uint8_t kind, bool isInfiniBand);

// "10.0.0.1 (RoCE v2)", "LID 7"
std::string toText(const PortAddress& port);

}  // namespace kolo::ib
