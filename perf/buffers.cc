#include "perf/buffers.h"

#include <cstdlib>
#include <cstring>

#include "perf/failure.h"

namespace kolo::perf {

std::string_view bufferKindName(BufferKind kind) { return kind == BufferKind::kRegistered ? "registered" : "plain"; }

Buffers::Buffers(koloComm_t comm, BufferKind kind, size_t capacity)
    : comm_(comm), kind_(kind), capacity_(capacity), send_(allocate()), recv_(allocate()) {}

Buffers::~Buffers() {
  release(send_);
  release(recv_);
}

Buffers::Area Buffers::allocate() {
  const size_t bytes = kFront + capacity_ + kGuardBytes;
  void* memory = nullptr;
  Area area;
  if (kind_ == BufferKind::kRegistered) {
    check(koloMemAlloc(&memory, bytes), "koloMemAlloc");
  } else if (posix_memalign(&memory, kFront, bytes) != 0) {
    fail("no memory for a buffer of {} bytes", bytes);
  }
  // Touched here, so that no page fault is measured and the pages lie near this rank's core.
  std::memset(memory, 0, bytes);
  area.memory = static_cast<std::byte*>(memory);
  if (kind_ == BufferKind::kRegistered) {
    check(koloWindowRegister(comm_, memory, bytes, &area.window), "koloWindowRegister");
  }
  return area;
}

// Runs during unwinding too, when the communicator may have failed: what cannot be released is left to the process's
// end.
void Buffers::release(Area& area) {
  if (kind_ == BufferKind::kPlain) {
    std::free(area.memory);
  } else if (koloWindowDeregister(comm_, area.window) == koloSuccess) {
    (void)koloMemFree(area.memory);
  }
}

}  // namespace kolo::perf
