#include "mock_cuda/device_memory.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#if KOLO_HAVE_CUDA
#include "drivers/cuda/driver.h"
#endif

namespace kolo::test {

#if KOLO_HAVE_CUDA

namespace {

const drivers::CudaDriver& driver() { return *drivers::cuda().value(); }

void require(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s\n", drivers::cudaError(driver(), result, what).message().c_str());
  std::abort();
}

CUdeviceptr address(const unsigned char* data) { return reinterpret_cast<CUdeviceptr>(data); }

// What the process holds, by device. Never destroyed: threads may outlive statics.
struct Contexts {
  std::mutex mutex;
  std::map<int, CUcontext> of;
};
Contexts& held() {
  static auto* const instance = new Contexts;
  return *instance;
}

struct ToFree {
  std::mutex mutex;
  int scopes = 0;
  std::vector<std::pair<int, unsigned char*>> memory;  // and whose it is
};
ToFree& toFree() {
  static auto* const instance = new ToFree;
  return *instance;
}

void freeNow(int device, const unsigned char* data) {
  const CurrentDevice current(device);
  require(driver().cuMemFree(address(data)), "cuMemFree");
}

CUcontext contextOf(int device) {
  const std::lock_guard lock(held().mutex);
  const auto [at, isNew] = held().of.try_emplace(device, nullptr);
  if (isNew) require(driver().cuDevicePrimaryCtxRetain(&at->second, device), "cuDevicePrimaryCtxRetain");
  return at->second;
}

}  // namespace

CurrentDevice::CurrentDevice(int device) { require(driver().cuCtxPushCurrent(contextOf(device)), "cuCtxPushCurrent"); }

CurrentDevice::~CurrentDevice() { require(driver().cuCtxPopCurrent(nullptr), "cuCtxPopCurrent"); }

void holdContext(int device) {
  const std::lock_guard lock(held().mutex);
  const auto [at, isNew] = held().of.try_emplace(device, nullptr);
  if (isNew && driver().cuDevicePrimaryCtxRetain(&at->second, device) != CUDA_SUCCESS) held().of.erase(at);
}

void releaseContexts() {
  const std::lock_guard lock(held().mutex);
  for (const auto& [device, context] : held().of) {
    require(driver().cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
  }
  held().of.clear();
}

DeviceMemory::DeviceMemory(int device, std::size_t bytes) : device_(device) {
  const CurrentDevice current(device);
  CUdeviceptr pointer = 0;
  require(driver().cuMemAlloc(&pointer, bytes), "cuMemAlloc");
  data_ = reinterpret_cast<unsigned char*>(pointer);
}

DeviceMemory::~DeviceMemory() {
  {
    const std::lock_guard lock(toFree().mutex);
    if (toFree().scopes > 0) {
      toFree().memory.emplace_back(device_, data_);
      return;
    }
  }
  freeNow(device_, data_);
}

FreeingLater::FreeingLater() {
  const std::lock_guard lock(toFree().mutex);
  ++toFree().scopes;
}

FreeingLater::~FreeingLater() {
  std::vector<std::pair<int, unsigned char*>> memory;
  {
    const std::lock_guard lock(toFree().mutex);
    if (--toFree().scopes == 0) memory.swap(toFree().memory);
  }
  for (const auto& [device, data] : memory) freeNow(device, data);
}

void upload(int device, unsigned char* to, const unsigned char* from, std::size_t bytes) {
  const CurrentDevice current(device);
  require(driver().cuMemcpyHtoD(address(to), from, bytes), "cuMemcpyHtoD");
  require(driver().cuStreamSynchronize(nullptr), "cuStreamSynchronize");  // the copy may still be on its way
}

void download(int device, unsigned char* to, const unsigned char* from, std::size_t bytes) {
  const CurrentDevice current(device);
  require(driver().cuMemcpyDtoH(to, address(from), bytes), "cuMemcpyDtoH");
}

#else

CurrentDevice::CurrentDevice(int) {}
CurrentDevice::~CurrentDevice() = default;
void holdContext(int) {}
void releaseContexts() {}
DeviceMemory::DeviceMemory(int device, std::size_t) : device_(device) { std::abort(); }
DeviceMemory::~DeviceMemory() = default;
FreeingLater::FreeingLater() = default;
FreeingLater::~FreeingLater() {}
void upload(int, unsigned char*, const unsigned char*, std::size_t) {}
void download(int, unsigned char*, const unsigned char*, std::size_t) {}

#endif

}  // namespace kolo::test
