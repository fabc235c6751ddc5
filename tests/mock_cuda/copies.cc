// Copies and fills, in a stream's order or at once.
#include <cstring>

#include "mock_cuda/world.h"

namespace kolo::test::mock {
namespace {

template <class T = void>
T* at(CUdeviceptr address) {
  return reinterpret_cast<T*>(address);
}

// What a copy uses of device memory, each if it is not 0.
struct Ends {
  CUdeviceptr to = 0, from = 0;
};

// In whole words where they are aligned: a NIC may be writing there.
void read(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  if (reinterpret_cast<std::uintptr_t>(from) % kWord != 0 || bytes % kWord != 0) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (std::size_t at = 0; at < bytes; at += kWord) {
    const auto* const place = reinterpret_cast<const std::uint64_t*>(static_cast<const unsigned char*>(from) + at);
    const std::uint64_t word = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    std::memcpy(static_cast<unsigned char*>(to) + at, &word, kWord);
  }
}

CUresult copy(CUstream handle, void* to, const void* from, std::size_t bytes, const Ends& ends) {
  if (bytes == 0) return CUDA_SUCCESS;
  const std::lock_guard lock(world->mutex);
  const auto stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const int device = stream->device >= 0 ? stream->device : currentDevice();
  if (ends.to != 0 && !mayUse(device, ends.to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (ends.from != 0 && !mayUse(device, ends.from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return submitLocked(*stream, handle, [=]() -> Task {
    return [=] {
      if (bytes == sizeof(std::uint64_t) && reinterpret_cast<std::uintptr_t>(to) % sizeof(std::uint64_t) == 0) {
        // Whole, and after what was done before, as the hardware does it: somebody may be looking.
        std::uint64_t word;
        read(&word, from, sizeof word);
        std::atomic_ref(*static_cast<std::uint64_t*>(to)).store(word, std::memory_order_release);
      } else {
        read(to, from, bytes);
      }
    };
  });
}

CUresult fill(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream handle) {
  if (bytes == 0) return CUDA_SUCCESS;
  const std::lock_guard lock(world->mutex);
  const auto stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!mayUse(stream->device >= 0 ? stream->device : currentDevice(), to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return submitLocked(*stream, handle, [=]() -> Task { return [=] { std::memset(at(to), value, bytes); }; });
}

CUresult mayCopyNow(CUdeviceptr address, std::size_t bytes) {
  if (world->broken != CUDA_SUCCESS) return world->broken;
  const std::lock_guard lock(world->mutex);
  return mayUse(currentDevice(), address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

void addCopies(drivers::CudaDriver& d) {
  d.cuMemcpyHtoD = [](CUdeviceptr to, const void* from, std::size_t bytes) {
    const CUresult result = mayCopyNow(to, bytes);
    if (result == CUDA_SUCCESS && bytes != 0) std::memcpy(at(to), from, bytes);
    return result;
  };
  d.cuMemcpyDtoH = [](void* to, CUdeviceptr from, std::size_t bytes) {
    const CUresult result = mayCopyNow(from, bytes);
    if (result == CUDA_SUCCESS && bytes != 0) std::memcpy(to, at(from), bytes);
    return result;
  };
  d.cuMemcpyHtoDAsync = [](CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    return copy(stream, at(to), from, bytes, {.to = to});
  };
  d.cuMemcpyDtoHAsync = [](void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(stream, to, at(from), bytes, {.from = from});
  };
  d.cuMemcpyDtoDAsync = [](CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(stream, at(to), at(from), bytes, {.to = to, .from = from});
  };
  d.cuMemsetD8Async = fill;
}

}  // namespace kolo::test::mock
