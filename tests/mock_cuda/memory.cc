// Memory of devices and of the host, and what the driver says about an address.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "mock_cuda/world.h"

namespace kolo::test::mock {
namespace {

constexpr int kUnwritten = 0xa5;  // what nobody has written is not zero
constexpr const char* kFileName = "kolo-mock-gpu%d-%lu";

std::size_t toPages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

CUdeviceptr addressOf(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

CUresult allocate(CUdeviceptr* pointer, std::size_t bytes, int device, Kind kind) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto physical = makePhysical(device, bytes, false);
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  void* const memory = mmap(nullptr, toPages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, physical->file, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = addressOf(memory);
  const std::lock_guard lock(world->mutex);
  world->memory[*pointer] = {.kind = kind,
                             .bytes = bytes,
                             .id = physical->id,
                             .physical = physical,
                             .context = kind == Kind::kDevice ? device : -1};
  return CUDA_SUCCESS;
}

CUresult free(CUdeviceptr pointer) {
  std::unique_lock lock(world->mutex);
  auto at = world->memory.find(pointer);
  if (at == world->memory.end() || (at->second.kind != Kind::kDevice && at->second.kind != Kind::kPool)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (world->properties.freeWaits) {
    const int device = at->second.physical->device;
    lock.unlock();
    occupyDevice(device);
    lock.lock();
    at = world->memory.find(pointer);
    if (at == world->memory.end()) return CUDA_ERROR_INVALID_VALUE;  // freed twice
  }
  munmap(reinterpret_cast<void*>(pointer), toPages(at->second.bytes));
  world->memory.erase(at);
  return CUDA_SUCCESS;
}

CUresult allocateHost(void** pointer, std::size_t bytes, unsigned) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (world->properties.allocationWaits) occupyDevice(currentDevice());
  if (posix_memalign(pointer, 4096, bytes) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(*pointer, kUnwritten, bytes);
  const std::lock_guard lock(world->mutex);
  world->memory[addressOf(*pointer)] = {
      .kind = Kind::kHost, .bytes = bytes, .id = ++world->lastId, .context = currentDevice()};
  return CUDA_SUCCESS;
}

CUresult removeHost(void* pointer, Kind kind, CUresult otherwise) {
  const std::lock_guard lock(world->mutex);
  const auto at = world->memory.find(addressOf(pointer));
  if (at == world->memory.end() || at->second.kind != kind) return otherwise;
  world->memory.erase(at);
  return CUDA_SUCCESS;
}

CUresult freeHost(void* pointer) {
  if (world->properties.freeWaits) occupyDevice(currentDevice());
  const CUresult result = removeHost(pointer, Kind::kHost, CUDA_ERROR_INVALID_VALUE);
  if (result == CUDA_SUCCESS) std::free(pointer);
  return result;
}

CUresult registerHost(void* pointer, std::size_t bytes, unsigned) {
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (world->properties.allocationWaits) occupyDevice(currentDevice());
  const CUdeviceptr begin = addressOf(pointer);
  const std::lock_guard lock(world->mutex);
  auto next = world->memory.lower_bound(begin + bytes);
  if (next != world->memory.begin()) {
    const auto& [address, range] = *--next;
    if (address + range.bytes > begin) {
      return range.kind == Kind::kRegistered ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_INVALID_VALUE;
    }
  }
  world->memory[begin] = {.kind = Kind::kRegistered, .bytes = bytes, .id = ++world->lastId, .context = currentDevice()};
  return CUDA_SUCCESS;
}

CUresult hostPointer(CUdeviceptr* device, void* pointer, unsigned) {
  const std::lock_guard lock(world->mutex);
  const auto at = findRange(addressOf(pointer));
  if (at == world->memory.end() || at->second.onDevice()) return CUDA_ERROR_INVALID_VALUE;
  *device = addressOf(pointer);
  return CUDA_SUCCESS;
}

// Only in a context of the device that has the memory does the real one find it.
CUresult addressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr pointer) {
  if (currentDevice() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(world->mutex);
  const auto at = findRange(pointer);
  if (at == world->memory.end() || !at->second.onDevice() || at->second.physical->device != currentDevice())
    return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = at->first;
  if (bytes != nullptr) *bytes = at->second.bytes;
  return CUDA_SUCCESS;
}

template <class T>
CUresult put(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
  return CUDA_SUCCESS;
}

// `range` is nullptr for what the driver does not know: no error.
CUresult attribute(void* to, CUpointer_attribute which, CUdeviceptr begin, const Range* range) {
  switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<unsigned>(to, range == nullptr ? 0 : range->onDevice() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put<int>(to, range == nullptr    ? CU_DEVICE_INVALID
                          : range->onDevice() ? range->physical->device
                                              : CU_DEVICE_CPU);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put<unsigned long long>(to, range == nullptr ? 0 : range->id);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<bool>(to, range != nullptr && range->kind == Kind::kDevice);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return put<bool>(to, false);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put<CUdeviceptr>(to, range == nullptr ? 0 : begin);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put<std::size_t>(to, range == nullptr ? 0 : range->bytes);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: {
      const bool pool = range != nullptr && range->kind == Kind::kPool;
      return put<CUmemoryPool>(to, pool ? reinterpret_cast<CUmemoryPool>(std::uintptr_t{1}) : nullptr);
    }
    default: return CUDA_ERROR_INVALID_VALUE;  // the mock does not know
  }
}

CUresult attributes(unsigned count, CUpointer_attribute* which, void** data, CUdeviceptr pointer) {
  const std::lock_guard lock(world->mutex);
  const auto at = findRange(pointer);
  const bool known = at != world->memory.end();
  for (unsigned i = 0; i < count; ++i) {
    const CUresult result = attribute(data[i], which[i], known ? at->first : 0, known ? &at->second : nullptr);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace

Physical::~Physical() {
  if (file >= 0) ::close(file);
}

std::shared_ptr<Physical> makePhysical(int device, std::size_t bytes, bool shareable) {
  if (bytes > kDeviceBytes) return nullptr;
  const auto physical = std::make_shared<Physical>();
  physical->bytes = bytes;
  physical->device = device;
  physical->id = ++world->lastId;
  physical->shareable = shareable;
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), kFileName, device, static_cast<unsigned long>(physical->id));
  physical->file = memfd_create(name.data(), MFD_CLOEXEC);
  if (physical->file < 0 || ftruncate(physical->file, static_cast<off_t>(toPages(bytes))) != 0) return nullptr;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, physical->file, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::memset(memory, kUnwritten, bytes);
  munmap(memory, bytes);
  return physical;
}

std::shared_ptr<Physical> adoptPhysical(int file, std::uint64_t id) {
  if (file < 0) return nullptr;
  const auto physical = std::make_shared<Physical>();
  physical->file = file;
  std::array<char, 128> target{};
  if (readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), target.data(), target.size() - 1) < 0) return nullptr;
  unsigned long ownId = 0;
  if (std::sscanf(target.data(), (std::string("/memfd:") + kFileName).c_str(), &physical->device, &ownId) != 2)
    return nullptr;
  struct stat status {};
  if (fstat(file, &status) != 0 || (id != 0 && id != ownId)) return nullptr;
  physical->bytes = static_cast<std::size_t>(status.st_size);
  physical->id = ++world->lastId;
  physical->shareable = true;
  return physical;
}

Ranges::iterator findRange(CUdeviceptr address) {
  auto at = world->memory.upper_bound(address);
  if (at == world->memory.begin()) return world->memory.end();
  --at;
  return address < at->first + at->second.bytes ? at : world->memory.end();
}

int ownerOf(CUdeviceptr address) {
  const auto at = findRange(address);
  return at != world->memory.end() && at->second.onDevice() ? at->second.physical->device : -1;
}

bool mayUse(int device, CUdeviceptr address, std::size_t bytes) {
  const CUdeviceptr end = address + bytes;
  while (address < end) {
    const auto at = findRange(address);
    if (at == world->memory.end()) return false;
    if (at->second.kind == Kind::kMapped && at->second.access.count(device) == 0) return false;
    address = at->first + at->second.bytes;
  }
  return true;
}

void addMemory(drivers::CudaDriver& d) {
  d.cuMemAlloc = [](CUdeviceptr* pointer, std::size_t bytes) {
    const int device = currentDevice();
    if (world->properties.allocationWaits) occupyDevice(device);
    return device < 0 ? CUDA_ERROR_INVALID_CONTEXT : allocate(pointer, bytes, device, Kind::kDevice);
  };
  d.cuMemFree = mock::free;
  d.cuMemGetAddressRange = addressRange;
  d.cuPointerGetAttributes = attributes;
  d.cuMemHostAlloc = allocateHost;
  d.cuMemFreeHost = freeHost;
  d.cuMemHostRegister = registerHost;
  d.cuMemHostUnregister = [](void* pointer) {
    return removeHost(pointer, Kind::kRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  };
  d.cuMemHostGetDevicePointer = hostPointer;
}

// Of a device with so much that no test takes it all.
void addMemoryInfo(CudaForTests& d) {
  d.cuMemGetInfo = [](std::size_t* free, std::size_t* total) {
    if (currentDevice() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    *total = *free = 64 * kDeviceBytes;
    const std::lock_guard lock(world->mutex);
    for (const auto& [address, range] : world->memory) {
      if (range.onDevice() && range.physical->device == currentDevice()) *free -= range.bytes;
    }
    return CUDA_SUCCESS;
  };
}

}  // namespace kolo::test::mock

namespace kolo::test {

CUdeviceptr MockCuda::poolMemory(int device, std::size_t bytes) {
  CUdeviceptr pointer = 0;
  return mock::allocate(&pointer, bytes, device, mock::Kind::kPool) == CUDA_SUCCESS ? pointer : 0;
}

bool MockCuda::mayUse(int device, CUdeviceptr address) {
  const std::lock_guard lock(mock::world->mutex);
  return mock::mayUse(device, address, 1);
}

}  // namespace kolo::test
