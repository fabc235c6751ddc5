#include "mock_cuda/device_memory.h"

#include <cstdio>
#include <cstdlib>

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

}  // namespace

CurrentDevice::CurrentDevice(int device) : device_(device) {
  CUcontext context = nullptr;
  require(driver().cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  require(driver().cuCtxPushCurrent(context), "cuCtxPushCurrent");
}

CurrentDevice::~CurrentDevice() {
  require(driver().cuCtxPopCurrent(nullptr), "cuCtxPopCurrent");
  require(driver().cuDevicePrimaryCtxRelease(device_), "cuDevicePrimaryCtxRelease");
}

DeviceMemory::DeviceMemory(int device, std::size_t bytes) : device_(device) {
  const CurrentDevice current(device);
  CUdeviceptr pointer = 0;
  require(driver().cuMemAlloc(&pointer, bytes), "cuMemAlloc");
  data_ = reinterpret_cast<unsigned char*>(pointer);
}

DeviceMemory::~DeviceMemory() {
  const CurrentDevice current(device_);
  require(driver().cuMemFree(address(data_)), "cuMemFree");
}

void upload(int device, unsigned char* to, const unsigned char* from, std::size_t bytes) {
  const CurrentDevice current(device);
  require(driver().cuMemcpyHtoD(address(to), from, bytes), "cuMemcpyHtoD");
  require(driver().cuStreamSynchronize(nullptr), "cuStreamSynchronize");   // the copy may still be on its way
}

void download(int device, unsigned char* to, const unsigned char* from, std::size_t bytes) {
  const CurrentDevice current(device);
  require(driver().cuMemcpyDtoH(to, address(from), bytes), "cuMemcpyDtoH");
}

#else

CurrentDevice::CurrentDevice(int device) : device_(device) {}
CurrentDevice::~CurrentDevice() = default;
DeviceMemory::DeviceMemory(int device, std::size_t) : device_(device) { std::abort(); }
DeviceMemory::~DeviceMemory() = default;
void upload(int, unsigned char*, const unsigned char*, std::size_t) {}
void download(int, unsigned char*, const unsigned char*, std::size_t) {}

#endif

}  // namespace kolo::test
