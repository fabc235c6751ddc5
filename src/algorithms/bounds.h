// Limits of algorithms that their costs, and the code that chooses among them, have to know.
#pragma once

#include <cstdint>

#include "device/reduce_args.h"

namespace kolo::algorithms {

// Algorithms that fold all inputs at once, and the zero-copy forms, have an array with an entry for each rank.
inline constexpr int kMaxLineRanks = device::kMostFolded;
inline constexpr int kMaxDirectRanks = device::kMostFolded;

// Above this many bytes a recursive all-reduce halves instead of doubling.
inline constexpr std::uint64_t kDoublingBytes = 2048;

}  // namespace kolo::algorithms
