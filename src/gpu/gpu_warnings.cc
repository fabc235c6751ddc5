#include "gpu/gpu_warnings.h"

#include <atomic>

#include "base/log.h"
#include "drivers/cuda/devices.h"

namespace kolo::gpu {

void warnOfLazyLoading(const executor::cuda::Gpu& gpu) {
  static std::atomic<bool> told{false};
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  if (gpu.driver().cuModuleGetLoadingMode(&mode) != CUDA_SUCCESS || mode != CU_MODULE_LAZY_LOADING ||
      told.exchange(true))
    return;
  log::warn(
      "ranks of this process share device {}, and CUDA loads kernels lazily: the first launch of one of the "
      "program's own waits for all "
      "kernels that run, which may wait for what its thread does next; set CUDA_MODULE_LOADING to EAGER",
      gpu.ordinal());
}

void warnOfQueues(const executor::cuda::Gpu& gpu) {
  static std::atomic<bool> told{false};
  if (drivers::streamQueues() >= drivers::kMostQueues || told.exchange(true)) return;
  log::warn(
      "ranks of this process share device {}, where all streams have {} queues of the hardware: what stands in one "
      "waits for what came "
      "before it, of other streams too, and the kernels of ranks wait for each other; set "
      "CUDA_DEVICE_MAX_CONNECTIONS to {}",
      gpu.ordinal(), drivers::streamQueues(), drivers::kMostQueues);
}

}  // namespace kolo::gpu
