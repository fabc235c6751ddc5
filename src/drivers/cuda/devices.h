// The GPUs of this machine, for code that knows nothing of CUDA.
//
// Thread safety: all functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/device_string.h"
#include "base/status.h"

namespace kolo::drivers {

struct CudaDevice {
  int ordinal = 0;
  std::string name;
  std::string pciBusId;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::uint64_t memoryBytes = 0;
};

// For libraries that have none for a device of that architecture, or none at all.
std::string howToHaveKernels(std::string_view architecture = "80,90,100");

// Whether this process uses CUDA already, so that pointers may be a device's. Asked when a communicator is made.
bool usesCuda();
// Whether the range is memory of the host's; if it is a device's, an error in the words of the caller's argument.
// REQUIRES: usesCuda().
Status checkHostMemory(const char* name, const void* buffer, std::uint64_t bytes);

// The CUDA device that is meant, or KOLO_HOST.
int deviceOf(const DeviceString& text);

// In the driver's order. Why there are none: the build has no CUDA, the driver is not installed, it sees no device, ...
Result<std::vector<CudaDevice>> cudaDevices();

}  // namespace kolo::drivers
