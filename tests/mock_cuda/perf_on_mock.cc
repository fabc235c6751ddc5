// Makes kolo-perf, whose other files it is linked with, measure the mocked GPUs: two devices, on which all ranks of two
// may be resident. With KOLO_TEST_SPOILED=BYTES a byte of all copies to the host of more than so many is wrong.
#include <cstdlib>

#include "drivers/cuda/driver.h"
#include "mock_cuda/mock_cuda.h"

namespace {

const kolo::drivers::CudaDriver* mocked = nullptr;
std::size_t spoiledAbove = 0;

CUresult copySpoiled(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  const CUresult result = mocked->cuMemcpyDtoHAsync(to, from, bytes, stream);
  if (bytes <= spoiledAbove || mocked->cuStreamSynchronize(stream) != CUDA_SUCCESS) return result;
  static_cast<unsigned char*>(to)[bytes / 2] ^= 1;
  return result;
}

// Before main(), in each of the processes that kolo-perf starts.
[[maybe_unused]] const bool installed = [] {
  kolo::test::MockCuda{.devices = 2, .multiprocessors = 16, .blockThreads = 1}.install();
  const char* const above = std::getenv("KOLO_TEST_SPOILED");
  if (above == nullptr) return true;
  spoiledAbove = std::strtoull(above, nullptr, 10);
  mocked = kolo::drivers::cuda().value();
  static kolo::drivers::CudaDriver spoiling = *mocked;
  spoiling.cuMemcpyDtoHAsync = copySpoiled;
  kolo::drivers::setCuda(&spoiling);
  return true;
}();

}  // namespace
