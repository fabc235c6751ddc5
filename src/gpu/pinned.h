// Host memory that GPUs read and write.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "executor/cuda/gpu.h"

namespace kolo::gpu {

// Host memory as the GPUs see it, for as long as the object lives. REQUIRES: a context for the end of it; the device's
// own lives on.
class Pinned {
 public:
  static Result<Pinned> make(std::shared_ptr<executor::cuda::Gpu> gpu, void* memory, std::uint64_t bytes) {
    const executor::cuda::Gpu::Current current(*gpu);
    Pinned pinned;
    KOLO_CUDA(gpu->driver(), cuMemHostRegister,
              (memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    pinned.gpu_ = std::move(gpu);
    pinned.memory_ = memory;
    return pinned;
  }
  Pinned() = default;
  Pinned(Pinned&& other) noexcept : gpu_(std::move(other.gpu_)), memory_(std::exchange(other.memory_, nullptr)) {}
  Pinned& operator=(Pinned&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Pinned() {
    if (memory_ == nullptr) return;
    const executor::cuda::Gpu::Current current(*gpu_);
    (void)gpu_->driver().cuMemHostUnregister(memory_);
  }

 private:
  std::shared_ptr<executor::cuda::Gpu> gpu_;
  void* memory_ = nullptr;
};

// Where a GPU sees host memory that is pinned.
inline Result<unsigned char*> deviceAddress(const executor::cuda::Gpu& gpu, void* memory) {
  const executor::cuda::Gpu::Current current(gpu);
  CUdeviceptr address = 0;
  KOLO_CUDA(gpu.driver(), cuMemHostGetDevicePointer, (&address, memory, 0));
  return reinterpret_cast<unsigned char*>(address);
}

}  // namespace kolo::gpu
