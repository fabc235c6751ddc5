// Averages of 8- and 16-bit floats that are made of several folds. Between the folds a partial result is stored in the
// datatype, where the sum might be too large: so it is stored as a share, the sum divided by the smallest power of two
// that is not below the number of ranks in it. A share is no larger than the largest input, and as a power of two
// changes the exponent alone, results are those that sums would give, but where shares are subnormal: these are rounded
// to the smallest step of the type. (The mean itself would be rounded in each fold.)
//
// Thread safety: pure functions.
#pragma once

#include "device/reduce_args.h"
#include "device/types.h"
#include "device/work.h"

namespace kolo::device {

// Of what a fold is made.
struct FoldParts {
  const float* weights = nullptr;  // of each input, by shareOf(); null: 1
  int ranks = 1;                   // in all inputs together
};

// The weight of the partial result of so many ranks of a work, beside that of one rank's input: 1 unless it is a share.
KOLO_DEVICE float shareOf(const Work& work, int ranks) {
  if (work.fold.inputRanks == 0) return 1;
  const auto each = static_cast<float>(work.fold.inputRanks);  // exact, as there are at most 2^20 ranks
  return powerAtLeast(each * static_cast<float>(ranks)) / powerAtLeast(each);
}

// Changes a fold of sums to one of shares, where a work stores those. last: all ranks of the work are in the fold.
KOLO_DEVICE void foldShares(const Work& work, bool last, const FoldParts& parts, ReduceArgs& args) {
  if (work.fold.inputRanks == 0) return;
  args.weights = parts.weights;
  if (args.divisor > 1) {
    args.unit = 1 / powerAtLeast(static_cast<float>(work.fold.inputRanks));
  } else {
    args.divisor = static_cast<std::uint32_t>(shareOf(work, last ? work.ranks : parts.ranks));
  }
}

}  // namespace kolo::device
