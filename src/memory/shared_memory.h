// Memory that other processes on this machine can be given: a memfd mapped shared. Behind koloMemAlloc and behind each
// communicator's staging. Never /dev/shm, so its size does not matter.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/status.h"

namespace kolo::memory {

// Owns the mapping and the file. Movable; not copyable.
class SharedMemory {
 public:
  SharedMemory() = default;
  // Zero-filled, page-aligned, pages taken when touched; bytes are rounded up to whole pages, 0 gives an empty object.
  // name shows in /proc/PID/maps. A file-size limit (RLIMIT_FSIZE) or memory that is not there is koloOutOfMemory with
  // a message.
  // spare: so much further address space follows, which may be larger than the machine's memory, for parts that are cut
  // from it and given back by discard(). Core dumps do not have memory that was made so.
  static Result<SharedMemory> create(std::size_t bytes, const char* name, std::size_t spare = 0);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  unsigned char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_; }
  // Gives the memory of the range's whole pages back: they are zero, for all processes, and taken when they are touched
  // again. True: all of the range is zero. A system that cannot do that keeps them as they are.
  bool discard(std::size_t offset, std::size_t bytes) const;

 private:
  unsigned char* data_ = nullptr;
  std::size_t bytes_ = 0;
  int fd_ = -1;
};

// Zero-filled memory of this process alone, page-aligned; pages are taken when touched.
class PrivateMemory {
 public:
  static Result<PrivateMemory> create(std::size_t bytes);
  PrivateMemory(PrivateMemory&& other) noexcept;
  PrivateMemory& operator=(PrivateMemory&& other) noexcept;
  PrivateMemory() = default;
  ~PrivateMemory();

  unsigned char* data() const { return data_; }

 private:
  unsigned char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// koloMemAlloc, koloMemAllocOn and koloMemFree. Freeing what was not allocated here is koloInvalidPointer, what is held
// koloInvalidUsage.
Result<void*> allocate(std::size_t bytes);
Result<void*> allocateOn(int device, std::size_t bytes);
Status release(void* pointer);

// Keeps the allocate()d block in which an address lies from being released: a window lies over it. Empty for other
// memory.
class Hold {
 public:
  Hold() = default;
  explicit Hold(const void* address);
  Hold(Hold&& other) noexcept : block_(std::exchange(other.block_, 0)) {}
  Hold& operator=(Hold&& other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Hold();

 private:
  std::uintptr_t block_ = 0;  // its address
};

// The file behind a range that lies wholly inside one allocate()d block of host memory.
struct Backing {
  int fd;
  std::uint64_t fdOffset;  // of the range's first byte
};
std::optional<Backing> findBacking(const void* pointer, std::size_t bytes);

}  // namespace kolo::memory
