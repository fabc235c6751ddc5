// What only tests call of the CUDA driver: the mock's while that is installed, the machine's otherwise, so that one
// test runs on both.
//
// Thread safety: all functions.
#pragma once

#include <cuda.h>

namespace kolo::test {

// As in drivers/cuda/driver.h, names are the driver's, and cuda.h makes the current version of each out of them.
#define KOLO_CUDA_TEST_FUNCTIONS(X) \
  X(cuStreamBeginCapture)           \
  X(cuLaunchKernel)                 \
  X(cuMemGetInfo)                   \
  X(cuStreamEndCapture) X(cuGraphInstantiate) X(cuGraphLaunch) X(cuGraphExecDestroy) X(cuGraphDestroy)

struct CudaForTests {
#define KOLO_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  KOLO_CUDA_TEST_FUNCTIONS(KOLO_CUDA_MEMBER)
#undef KOLO_CUDA_MEMBER
};

// Ends the process if there is neither.
const CudaForTests& cudaForTests();

}  // namespace kolo::test
