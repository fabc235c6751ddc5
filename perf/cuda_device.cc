#include "perf/cuda_device.h"

#include "drivers/cuda/driver.h"
#include "perf/failure.h"

namespace kolo::perf {
namespace {

const drivers::CudaDriver& driver() {
  const kolo::Result<const drivers::CudaDriver*> found = drivers::cuda();
  if (!found.ok()) fail("--gpus: {}", found.status().message());
  return *found.value();
}

void check(CUresult result, const char* function) {
  if (result != CUDA_SUCCESS) fail("{}", drivers::cudaError(driver(), result, function).message());
}

CUdeviceptr address(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal) {
    check(driver().cuDeviceGet(&device_, ordinal), "cuDeviceGet");
    check(driver().cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
    check(driver().cuCtxPushCurrent(context_), "cuCtxPushCurrent");
    // Kernels of ranks on one device wait for each other: not in a stream that waits for other streams.
    check(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  ~CudaDevice() override {
    if (isFailing()) return;
    (void)driver().cuStreamDestroy(stream_);
    (void)driver().cuCtxPopCurrent(nullptr);
    (void)driver().cuDevicePrimaryCtxRelease(device_);
  }

  int ordinal() const override { return ordinal_; }
  koloStream_t stream() const override { return reinterpret_cast<koloStream_t>(stream_); }
  void synchronize() const override { check(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

  std::byte* allocate(size_t bytes) const override {
    CUdeviceptr memory = 0;
    check(driver().cuMemAlloc(&memory, bytes), "cuMemAlloc");
    return reinterpret_cast<std::byte*>(memory);
  }
  void free(std::byte* memory) const override { (void)driver().cuMemFree(address(memory)); }

  void clear(std::byte* at, size_t bytes) const override {
    check(driver().cuMemsetD8Async(address(at), 0, bytes, stream_), "cuMemsetD8Async");
    synchronize();
  }
  void copyToHost(std::byte* to, const std::byte* from, size_t bytes) const override {
    check(driver().cuMemcpyDtoHAsync(to, address(from), bytes, stream_), "cuMemcpyDtoHAsync");
    synchronize();
  }
  void copyToDevice(std::byte* to, const std::byte* from, size_t bytes) const override {
    check(driver().cuMemcpyHtoDAsync(address(to), from, bytes, stream_), "cuMemcpyHtoDAsync");
    synchronize();
  }

 private:
  int ordinal_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Device> openCudaDevice(int ordinal) { return std::make_unique<CudaDevice>(ordinal); }

}  // namespace kolo::perf
