// Cases for communicators along several axes of a mesh, for worlds of any kind.
#pragma once

#include <cstdint>

#include "batch.h"

namespace kolo::tests {

// The all-reduce by every algorithm along the axes: counts that the axes do not divide, that are less than the ranks,
// and 0; averages of small types, and reductions with a scalar of each rank; and two cases at random.
void addAlongAxes(Batch& batch, int ranks);
// A test's number for Rounds.
int meshNumber(int test, const std::vector<int>& mesh);
int ranksOf(const std::vector<int>& mesh);

}  // namespace kolo::tests
