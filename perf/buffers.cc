#include "perf/buffers.h"

#include "perf/failure.h"

namespace kolo::perf {

std::string_view bufferKindName(BufferKind kind) { return kind == BufferKind::kRegistered ? "registered" : "plain"; }

Buffers::Buffers(koloComm_t comm, const Device& device, BufferKind kind, size_t capacity)
    : comm_(comm), device_(device), kind_(kind), capacity_(capacity), send_(allocate()), recv_(allocate()) {}

Buffers::~Buffers() {
  if (isFailing()) return;
  release(send_);
  release(recv_);
}

Buffers::Area Buffers::allocate() {
  const size_t bytes = kFront + capacity_ + kGuardBytes;
  void* memory = nullptr;
  Area area;
  if (kind_ == BufferKind::kRegistered) {
    check(koloMemAllocOn(&memory, bytes, device_.ordinal()), "koloMemAllocOn");
  } else {
    memory = device_.allocate(bytes);
  }
  area.memory = static_cast<std::byte*>(memory);
  // Touched here, so that no page fault is measured and the pages lie near this rank's core.
  device_.clear(area.memory, bytes);
  if (kind_ == BufferKind::kRegistered) {
    check(koloWindowRegister(comm_, memory, bytes, &area.window), "koloWindowRegister");
  }
  return area;
}

// What cannot be released is left to the process's end.
void Buffers::release(Area& area) {
  if (kind_ == BufferKind::kPlain) {
    device_.free(area.memory);
  } else if (koloWindowDeregister(comm_, area.window) == koloSuccess) {
    (void)koloMemFree(area.memory);
  }
}

}  // namespace kolo::perf
