// Memory of a CUDA device. Behind koloMemAllocOn and behind what a rank on a GPU gives to its peers.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace kolo::drivers {
struct CudaDriver;
}

namespace kolo::memory {

// Owns the memory, and keeps the device's primary context. Movable; not copyable.
class DeviceMemory {
 public:
  // Not zeroed, aligned to 256 bytes at least. shareable: by the virtual memory API, with a handle that other processes can be given,
  // where the device has that; bytes are then rounded up to its granularity (2 MiB).
  static Result<DeviceMemory> create(int device, std::uint64_t bytes, bool shareable);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = static_cast<DeviceMemory&&>(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  // What the device still executes with it must have ended: synchronize() sees to that, for all that the device executes.
  ~DeviceMemory();
  Status synchronize() const;

  template <class T = unsigned char>
  T* as() const { return reinterpret_cast<T*>(address_); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  const drivers::CudaDriver* driver_ = nullptr;
  int device_ = -1;
  std::uint64_t address_ = 0;
  std::uint64_t bytes_ = 0;
  bool mapped_ = false;   // by the virtual memory API
};

}  // namespace kolo::memory
