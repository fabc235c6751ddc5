// Primary contexts: the driver resets one when its last holder releases it.
#include <cstdlib>

#include "gpu/support.h"

namespace kolo::test {
namespace {

// Holds the primary context of device 0 and makes it the thread's, as a program does that releases it again.
class ShortLived {
 public:
  ShortLived() {
    CUcontext context = nullptr;
    CUDA_OK(driver().cuDevicePrimaryCtxRetain(&context, 0));
    CUDA_OK(driver().cuCtxPushCurrent(context));
  }
  ~ShortLived() {
    CUDA_OK(driver().cuCtxPopCurrent(nullptr));
    CUDA_OK(driver().cuDevicePrimaryCtxRelease(0));
  }
};

TEST_CASE("what was made in a context goes with its last holder", "[mock]") {
  MockCuda{}.install();
  CUdeviceptr memory = 0;
  void* host = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  {
    const ShortLived context;
    CUDA_OK(driver().cuMemAlloc(&memory, 4));
    CUDA_OK(driver().cuMemHostAlloc(&host, 4, 0));
    CUDA_OK(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA_OK(driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    const ShortLived other;  // one of two holders resets nothing
  }
  {
    const ShortLived context;
    CHECK(driver().cuMemFree(memory) != CUDA_SUCCESS);
    CHECK(driver().cuMemFreeHost(host) != CUDA_SUCCESS);
    std::free(host);  // which a reset leaves mapped: the mock's kernels would end this process, not only the context
    CHECK(driver().cuStreamSynchronize(stream) != CUDA_SUCCESS);
    CHECK(driver().cuEventQuery(event) != CUDA_SUCCESS);
  }
  CHECK(MockCuda::remove().find("device 0 was reset by its last release, with 2 ranges of memory 1 streams 1 events") !=
        std::string::npos);
}

TEST_CASE("a context that nobody holds is no thread's, and cannot be made one's", "[mock]") {
  const MockScene scene({.devices = 2});
  CUcontext context = nullptr;
  CUDA_OK(driver().cuDevicePrimaryCtxRetain(&context, 1));
  CUDA_OK(driver().cuCtxPushCurrent(context));
  CUDA_OK(driver().cuDevicePrimaryCtxRelease(1));
  CUdeviceptr memory = 0;
  CHECK(driver().cuMemAlloc(&memory, 4) == CUDA_ERROR_INVALID_CONTEXT);
  CUDA_OK(driver().cuCtxPopCurrent(nullptr));
  CHECK(driver().cuCtxPushCurrent(context) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(driver().cuDevicePrimaryCtxRelease(1) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("what a test makes on a device outlives the scope that made the device current", "[device]") {
  const DeviceScene scene;
  const DeviceBuffer values(1);
  const CudaStream stream;
  values->write(7);
  CHECK(values->read(0) == 7);
  stream.synchronize();
}

TEST_CASE("memory of koloMemAllocOn keeps its device's context", "[mock]") {
  const MockScene scene;
  void* memory = nullptr;
  REQUIRE_OK(koloMemAllocOn(&memory, 4, 0));
  { const ShortLived context; }
  REQUIRE_OK(koloMemFree(memory));
}

}  // namespace
}  // namespace kolo::test
