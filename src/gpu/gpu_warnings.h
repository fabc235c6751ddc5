// What users of GPUs are told of settings of CUDA that would slow them down. Each once for the process.
//
// Thread safety: any thread.
#pragma once

#include "executor/cuda/gpu.h"

namespace kolo::gpu {

// Ranks of this process share the device, and CUDA loads kernels lazily.
void warnOfLazyLoading(const executor::cuda::Gpu& gpu);
// Ranks of this process share the device, whose streams have few queues.
void warnOfQueues(const executor::cuda::Gpu& gpu);

}  // namespace kolo::gpu
