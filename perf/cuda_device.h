// The devices of device.h that are CUDA's. A build without the CUDA toolkit has no_cuda_device.cc for it, which has
// none.
#pragma once

#include <memory>

#include "perf/device.h"

namespace kolo::perf {

std::unique_ptr<Device> openCudaDevice(int ordinal);

}  // namespace kolo::perf
