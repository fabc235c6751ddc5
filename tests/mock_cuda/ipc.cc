// Memory of other processes by what CUDA calls its legacy IPC.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "mock_cuda/world.h"

namespace kolo::test::mock {
namespace {

struct Handle {
  int process = 0;
  int file = -1;  // there
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;  // there: whether the file is still the one that was meant
};
static_assert(sizeof(Handle) <= sizeof(CUipcMemHandle));

// Of the beginning of an allocation, as the driver's documentation has it.
CUresult get(CUipcMemHandle* handle, CUdeviceptr pointer) {
  const std::lock_guard lock(world->mutex);
  const auto at = world->memory.find(pointer);
  if (at == world->memory.end() || at->second.kind != Kind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  const Range& range = at->second;
  const Handle own{.process = getpid(), .file = range.physical->file, .bytes = range.bytes, .id = range.id};
  *handle = {};
  std::memcpy(handle, &own, sizeof own);
  return CUDA_SUCCESS;
}

// A handle that is open already is the same address once more.
CUresult openImported(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned flags) {
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (currentDevice() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  Handle theirs;
  std::memcpy(static_cast<void*>(&theirs), &handle, sizeof theirs);
  if (theirs.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(world->mutex);
  const std::pair<int, std::uint64_t> origin{theirs.process, theirs.id};
  for (auto& [address, range] : world->memory) {
    if (range.kind != Kind::kImported || range.origin != origin) continue;
    ++range.uses;
    *pointer = address;
    return CUDA_SUCCESS;
  }
  const std::string path = "/proc/" + std::to_string(theirs.process) + "/fd/" + std::to_string(theirs.file);
  const auto physical = adoptPhysical(::open(path.c_str(), O_RDWR | O_CLOEXEC), theirs.id);
  if (physical == nullptr || theirs.bytes == 0 || theirs.bytes > physical->bytes) return CUDA_ERROR_INVALID_HANDLE;
  void* const memory = mmap(nullptr, physical->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, physical->file, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = reinterpret_cast<CUdeviceptr>(memory);
  world->memory[*pointer] = {.kind = Kind::kImported,
                             .bytes = theirs.bytes,
                             .id = physical->id,
                             .physical = physical,
                             .origin = origin,
                             .uses = 1,
                             .context = currentDevice()};
  return CUDA_SUCCESS;
}

CUresult closeImported(CUdeviceptr pointer) {
  const std::lock_guard lock(world->mutex);
  const auto at = world->memory.find(pointer);
  if (at == world->memory.end() || at->second.kind != Kind::kImported) return CUDA_ERROR_INVALID_VALUE;
  if (--at->second.uses != 0) return CUDA_SUCCESS;
  munmap(reinterpret_cast<void*>(pointer), at->second.physical->bytes);
  world->memory.erase(at);
  return CUDA_SUCCESS;
}

}  // namespace

void addIpc(drivers::CudaDriver& d) {
  d.cuIpcGetMemHandle = get;
  d.cuIpcOpenMemHandle = openImported;
  d.cuIpcCloseMemHandle = closeImported;
}

}  // namespace kolo::test::mock
