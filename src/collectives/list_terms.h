// What the ranks have to say alike of a list, as a digest, which the header of every operation carries. In words it is
// List::of().
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "collectives/list.h"

namespace kolo::collectives {

// FNV-1a, by words.
inline void mix(std::uint64_t& hash, std::uint64_t word) { hash = (hash ^ word) * 0x100000001b3u ^ hash >> 29; }

std::uint64_t digestOf(const List& list);

}  // namespace kolo::collectives
