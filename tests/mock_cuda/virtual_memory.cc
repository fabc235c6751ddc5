// Memory, addresses, and the mapping of the ones at the others: what CUDA calls virtual memory management.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

#include "mock_cuda/world.h"

namespace kolo::test::mock {
namespace {

void* pointerOf(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
bool isWhole(std::size_t bytes) { return bytes != 0 && bytes % kGranularity == 0; }

CUresult checkProperties(const CUmemAllocationProp& properties) {
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (properties.location.id < 0 || properties.location.id >= world->properties.devices)
    return CUDA_ERROR_INVALID_DEVICE;
  switch (properties.requestedHandleTypes) {
    case CU_MEM_HANDLE_TYPE_NONE: return CUDA_SUCCESS;
    case CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR:
      return world->properties.sharesByFile ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUmemGenericAllocationHandle addReference(const std::shared_ptr<Physical>& physical) {
  const std::lock_guard lock(world->mutex);
  auto& [held, references] = world->handles[physical->id];
  held = physical;
  ++references;
  return physical->id;
}

std::shared_ptr<Physical> find(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(world->mutex);
  const auto at = world->handles.find(handle);
  return at == world->handles.end() ? nullptr : at->second.first;
}

CUresult granularity(std::size_t* bytes, const CUmemAllocationProp* properties, CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return checkProperties(*properties);
}

CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                unsigned long long) {
  if (!isWhole(bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = checkProperties(*properties); result != CUDA_SUCCESS) return result;
  const bool shareable = properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const auto physical = makePhysical(properties->location.id, bytes, shareable);
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  physical->forNics = properties->allocFlags.gpuDirectRDMACapable != 0;
  *handle = addReference(physical);
  return CUDA_SUCCESS;
}

CUresult release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(world->mutex);
  const auto at = world->handles.find(handle);
  if (at == world->handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--at->second.second == 0) world->handles.erase(at);
  return CUDA_SUCCESS;
}

CUresult retain(CUmemGenericAllocationHandle* handle, void* address) {
  std::shared_ptr<Physical> physical;
  {
    const std::lock_guard lock(world->mutex);
    const auto at = findRange(reinterpret_cast<CUdeviceptr>(address));
    if (at == world->memory.end() || at->second.kind != Kind::kMapped) return CUDA_ERROR_INVALID_VALUE;
    physical = at->second.physical;
  }
  *handle = addReference(physical);
  return CUDA_SUCCESS;
}

CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr, unsigned long long) {
  if (!isWhole(bytes) || (alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  alignment = std::max(alignment, kGranularity);
  const std::size_t spare = bytes + alignment;
  void* const memory = mmap(nullptr, spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<CUdeviceptr>(memory);
  *address = (begin + alignment - 1) / alignment * alignment;
  if (*address > begin) munmap(memory, *address - begin);
  munmap(pointerOf(*address + bytes), begin + spare - (*address + bytes));  // never nothing
  const std::lock_guard lock(world->mutex);
  world->reservations[*address] = bytes;
  return CUDA_SUCCESS;
}

bool isFree(CUdeviceptr address, std::size_t bytes) {
  const auto next = world->memory.lower_bound(address);
  return findRange(address) == world->memory.end() && (next == world->memory.end() || next->first >= address + bytes);
}

CUresult unreserve(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(world->mutex);
  const auto at = world->reservations.find(address);
  if (at == world->reservations.end() || at->second != bytes || !isFree(address, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  munmap(pointerOf(address), bytes);
  world->reservations.erase(at);
  return CUDA_SUCCESS;
}

bool isReserved(CUdeviceptr address, std::size_t bytes) {
  auto at = world->reservations.upper_bound(address);
  if (at == world->reservations.begin()) return false;
  --at;
  return address + bytes <= at->first + at->second;
}

CUresult map(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  const auto physical = find(handle);
  if (physical == nullptr || !isWhole(bytes) || address % kGranularity != 0 || offset != 0 || bytes > physical->bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(world->mutex);
  if (!isReserved(address, bytes) || !isFree(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (mmap(pointerOf(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file, 0) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  world->memory[address] = {.kind = Kind::kMapped, .bytes = bytes, .id = ++world->lastId, .physical = physical};
  return CUDA_SUCCESS;
}

// The mappings that fill the range exactly; empty if they do not.
std::vector<Ranges::iterator> mappings(CUdeviceptr address, std::size_t bytes) {
  std::vector<Ranges::iterator> found;
  const CUdeviceptr end = address + bytes;
  while (address < end) {
    const auto at = world->memory.find(address);
    if (at == world->memory.end() || at->second.kind != Kind::kMapped) return {};
    found.push_back(at);
    address += at->second.bytes;
  }
  if (address != end) return {};
  return found;
}

CUresult unmap(CUdeviceptr address, std::size_t bytes) {
  const std::lock_guard lock(world->mutex);
  const auto found = mappings(address, bytes);
  if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
  mmap(pointerOf(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  for (const auto at : found) world->memory.erase(at);
  return CUDA_SUCCESS;
}

CUresult setAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* descriptions, std::size_t count) {
  const std::lock_guard lock(world->mutex);
  const auto found = mappings(address, bytes);
  if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const CUmemLocation& location = descriptions[i].location;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 || location.id >= world->properties.devices) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (!world->properties.peersReach && location.id != found.front()->second.physical->device)
      return CUDA_ERROR_INVALID_DEVICE;
  }
  for (const auto at : found) {
    std::set<int>& access = at->second.access;
    for (std::size_t i = 0; i < count; ++i) {
      if (descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) access.erase(descriptions[i].location.id);
      else access.insert(descriptions[i].location.id);
    }
    // Host threads play all devices: memory that one of them may use, all can.
    mprotect(pointerOf(at->first), at->second.bytes, access.empty() ? PROT_NONE : PROT_READ | PROT_WRITE);
  }
  return CUDA_SUCCESS;
}

CUresult exportHandle(void* to, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                      unsigned long long) {
  const auto physical = find(handle);
  if (physical == nullptr || !physical->shareable || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  const int file = fcntl(physical->file, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(to) = file;
  return CUDA_SUCCESS;
}

CUresult importHandle(CUmemGenericAllocationHandle* handle, void* from, CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const auto theirs = static_cast<int>(reinterpret_cast<std::intptr_t>(from));
  const auto physical = adoptPhysical(fcntl(theirs, F_DUPFD_CLOEXEC, 0), 0);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = addReference(physical);
  return CUDA_SUCCESS;
}

// A dma-buf is played by the memory's own file, and so must begin where that does. NICs of the mock (mock_verbs) map
// it.
CUresult rangeHandle(void* to, CUdeviceptr address, std::size_t bytes, CUmemRangeHandleType type,
                     unsigned long long flags) {
  constexpr std::size_t kHostPage = 4096;
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || address % kHostPage != 0 || bytes == 0 || bytes % kHostPage != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(world->mutex);
  const auto at = world->memory.find(address);
  if (at == world->memory.end() || !at->second.onDevice() || bytes > at->second.bytes) return CUDA_ERROR_INVALID_VALUE;
  const bool isForNics =
      at->second.kind == Kind::kDevice || (at->second.kind == Kind::kMapped && at->second.physical->forNics);
  if (!world->properties.dmaBuf || flags != 0 || !isForNics) return CUDA_ERROR_NOT_SUPPORTED;
  const int file = fcntl(at->second.physical->file, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(to) = file;
  return CUDA_SUCCESS;
}

}  // namespace

void addVirtualMemory(drivers::CudaDriver& d) {
  d.cuMemGetAllocationGranularity = granularity;
  d.cuMemCreate = create;
  d.cuMemRelease = release;
  d.cuMemRetainAllocationHandle = retain;
  d.cuMemAddressReserve = reserve;
  d.cuMemAddressFree = unreserve;
  d.cuMemMap = map;
  d.cuMemUnmap = unmap;
  d.cuMemSetAccess = setAccess;
  d.cuMemExportToShareableHandle = exportHandle;
  d.cuMemImportFromShareableHandle = importHandle;
  d.cuMemGetHandleForAddressRange = rangeHandle;
}

}  // namespace kolo::test::mock
