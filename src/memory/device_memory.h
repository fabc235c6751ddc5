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

// What a NIC may do with memory of a device, as the device's driver says.
struct RdmaAbilities {
  bool dmaBuf = false;        // its memory can be given to other drivers as a dma-buf
  bool peerMemory = false;    // a kernel module can let NICs register it by its address
  bool ordersWrites = false;  // its kernels see what a NIC writes in the order in which it was written
};
Result<RdmaAbilities> rdmaAbilities(int device);

// A file of the kernel's, open as long as the object lives.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  File& operator=(File&&) = delete;
  ~File();
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Owns the memory, and keeps the device's primary context. Movable; not copyable.
class DeviceMemory {
 public:
  // Not zeroed, aligned to 256 bytes at least. shareable: by the virtual memory API, with a handle that other processes
  // can be given, where the device has that, and such that NICs can reach it; bytes are then rounded up to its
  // granularity (2 MiB).
  static Result<DeviceMemory> create(int device, std::uint64_t bytes, bool shareable);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = static_cast<DeviceMemory&&>(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  // What the device still executes with it must have ended: synchronize() sees to that, for all that the device
  // executes.
  ~DeviceMemory();
  Status synchronize() const;
  // All of it as a dma-buf, which begins where the memory does. Others that have taken hold of it keep the device's
  // pages, not the addresses.
  Result<File> dmaBuf() const;

  int device() const { return device_; }
  template <class T = unsigned char>
  T* as() const {
    return reinterpret_cast<T*>(address_);
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  const drivers::CudaDriver* driver_ = nullptr;
  int device_ = -1;
  std::uint64_t address_ = 0;
  std::uint64_t bytes_ = 0;
  bool mapped_ = false;  // by the virtual memory API
};

}  // namespace kolo::memory
