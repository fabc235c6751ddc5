// Hashes of what a call says: FNV-1a, by words. Its multiplication only moves bits up, so after it the upper half is
// folded into the lower one: else a word's highest bit would stay where it is, and two words' would cancel.
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
