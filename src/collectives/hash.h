// Hashes of what a call says: FNV-1a, by words. The multiplication of a step moves bits up only, so the step ends by
// folding the upper half into the lower one. Otherwise the highest bit of a word would stay in place, and the highest
// bits of two words would cancel each other.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

namespace kolo::collectives {

inline constexpr std::uint64_t kHashOfNothing = 0xcbf29ce484222325u;

constexpr void mix(std::uint64_t& hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x100000001b3u;
  hash ^= hash >> 32;
}

}  // namespace kolo::collectives
