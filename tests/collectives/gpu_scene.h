// A GPU for the ranks of a test: mocked, unless KOLO_TEST_GPU says which device to use.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "mock_cuda/mock_cuda.h"
#include "world.h"

namespace kolo::tests {

inline constexpr int kResidentBlocks = 4;  // of each rank, beside those of its channels

inline bool isMocked() { return std::getenv("KOLO_TEST_GPU") == nullptr; }

// A GPU on which `blocks` blocks are resident for each of `ranks` ranks, if it is mocked.
struct Gpu {
  Gpu(int ranks, int blocks, unsigned blockThreads, bool resident = false) {
    options.ranks = ranks;
    options.device = isMocked() ? 0 : std::atoi(std::getenv("KOLO_TEST_GPU"));
    options.resident = resident;
    if (resident) blocks += kResidentBlocks;
    if (isMocked()) test::MockCuda{.multiprocessors = ranks * blocks, .blockThreads = blockThreads}.install();
  }
  ~Gpu() {
    if (isMocked()) CHECK(test::MockCuda::remove() == "");
  }
  WorldOptions options;
};

}  // namespace kolo::tests
