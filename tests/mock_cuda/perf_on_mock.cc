// Makes kolo-perf, whose other files it is linked with, measure the mocked GPUs: two devices, on which all ranks of two may be resident.
#include "mock_cuda/mock_cuda.h"

namespace {

// Before main(), in each of the processes that kolo-perf starts.
[[maybe_unused]] const bool installed = [] {
  kolo::test::MockCuda{.devices = 2, .multiprocessors = 8, .blockThreads = 1}.install();
  return true;
}();

}  // namespace
