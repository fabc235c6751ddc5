// The GPUs of this machine, for whoever wants to know of them without knowing CUDA.
//
// Thread safety: all functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace kolo::drivers {

struct CudaDevice {
  int ordinal = 0;
  std::string name;
  std::string pciBusId;
  int major = 0, minor = 0;          // compute capability
  int multiprocessors = 0;
  std::uint64_t memoryBytes = 0;
};

// In the driver's order. Why there are none: the build has no CUDA, the driver is not installed, it sees no device, ...
Result<std::vector<CudaDevice>> cudaDevices();

}  // namespace kolo::drivers
