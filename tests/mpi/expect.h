// Which rank of how many a test's process is, and how the test ends where something does not hold.
#pragma once

#include <string>

#include "its_own.h"

namespace kolo::test {

inline int rank = 0, ranks = 0;

inline void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "rank %d: expected that %s\n", rank, what.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

}  // namespace kolo::test
