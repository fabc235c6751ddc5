// Sizes as nccl-tests counts them: parsing, sweeping, from bytes to counts, and the factor from algorithm bandwidth to
// bus bandwidth.
//
// Thread safety: free functions without state, from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kolo/kolo.h"

namespace kolo::perf {

// "8", "64K", "1.5M", "2GiB": bytes, in powers of 1024. Throws Failure.
size_t parseBytes(std::string_view text);
// "8 B", "1 KiB", "1.5 MiB".
std::string formatBytes(size_t bytes);

// minBytes, then each time multiplied by factor or, when stepBytes > 0, increased by it, up to maxBytes (inclusive).
// Strictly increasing. Throws Failure unless minBytes <= maxBytes, and factor > 1 or stepBytes > 0, and
// for a list of absurd length.
std::vector<size_t> sweepSizes(size_t minBytes, size_t maxBytes, double factor, size_t stepBytes);

// What one call of a collective moves. Where a buffer holds a block for each rank, the size counts all of them.
struct Shape {
  size_t count;     // the count argument of the call: elements of one block
  size_t blocks;    // the number of ranks where the large buffer holds a block for each, else 1
  size_t elements;  // count * blocks
  size_t bytes;     // of those elements: at most what was asked for, unless that was less than one element a block
};

// A barrier's shape is all zeros but for blocks.
Shape shapeFor(koloCollective_t collective, size_t bytes, size_t elementBytes, int ranks);

// Bus bandwidth over algorithm bandwidth, as in nccl-tests (doc/PERFORMANCE.md there): what makes the figure comparable
// with a link's speed whatever the number of ranks.
double busFactor(koloCollective_t collective, int ranks);

}  // namespace kolo::perf
