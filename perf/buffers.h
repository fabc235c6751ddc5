// The memory that is measured: one send and one receive buffer of a rank, registered or plain.
//
// Thread safety: a Buffers belongs to one rank's thread; construction and destruction are collective over its
// communicator.
#pragma once

#include <cstddef>
#include <string_view>

#include "kolo/kolo.h"
#include "perf/device.h"

namespace kolo::perf {

enum class BufferKind {
  kRegistered,  // koloMemAllocOn and koloWindowRegister
  kPlain        // ordinary memory that the library knows nothing of
};

std::string_view bufferKindName(BufferKind kind);  // "registered", "plain"

// Bytes that belong to us before and after each buffer, to see writes that go astray.
constexpr size_t kGuardBytes = 64;

class Buffers {
 public:
  // capacity: bytes of each of the two, in the device's memory. Touches all of it, on the calling thread. Throws
  // Failure.
  Buffers(koloComm_t comm, const Device& device, BufferKind kind, size_t capacity);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  BufferKind kind() const { return kind_; }
  const Device& device() const { return device_; }
  size_t capacity() const { return capacity_; }
  // On the device; page-aligned, with kGuardBytes of writable memory before the first and after the last byte.
  std::byte* send() const { return send_.memory + kFront; }
  std::byte* recv() const { return recv_.memory + kFront; }

 private:
  static constexpr size_t kFront = 4096;  // one page, so that the buffer itself starts on one

  struct Area {
    std::byte* memory = nullptr;
    koloWindow_t window = nullptr;
  };
  Area allocate();
  void release(Area& area);

  koloComm_t comm_;
  const Device& device_;
  BufferKind kind_;
  size_t capacity_;
  Area send_;
  Area recv_;
};

}  // namespace kolo::perf
