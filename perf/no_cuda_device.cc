#include "perf/cuda_device.h"
#include "perf/failure.h"

namespace kolo::perf {

std::unique_ptr<Device> openCudaDevice(int ordinal) {
  fail("--gpus {}: kolo-perf was built without the CUDA toolkit", ordinal);
}

}  // namespace kolo::perf
