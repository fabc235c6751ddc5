// Calls of the driver that wait until the device is idle, with the context's lock: freeing memory, and perhaps allocating
// it. Kernels wait for what other ranks launch next, which may be threads of the same process, or even the same thread.
// So no such call may be made by an operation, or by the end of a communicator.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/support.h"

namespace kolo::test {
namespace {

using Settings = std::vector<std::pair<const char*, std::string>>;

koloResult_t addUp(int* value, koloComm_t comm, const CudaStream& stream) {
  return koloAllReduce(value, value, 1, koloInt32, koloSum, comm, stream.get());
}

// More than fit into a kernel's parameters.
void addUpMany(int* values, koloComm_t comm, const CudaStream& stream) {
  CHECK_CODE(koloSuccess, koloGroupStart());
  for (int i = 0; i < 9; ++i) CHECK_CODE(koloSuccess, addUp(values + i, comm, stream));
  CHECK_CODE(koloSuccess, koloGroupEnd());
}

// Memory that lies where the host sees it too, as the mock's does: written without the driver.
void open(const DeviceBuffer& gate) {
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(gate.data())).store(1, std::memory_order_release);
}

void closeWith(const CudaStream& stream, const DeviceBuffer& gate) {
  gate->fill(0);
  const CurrentDevice current(0);
  CUDA_OK(driver().cuStreamWaitValue64(stream.raw(), reinterpret_cast<CUdeviceptr>(gate.data()), 1,
                                       CU_STREAM_WAIT_VALUE_GEQ));
}

}  // namespace

TEST_CASE("the mock of the driver frees memory when its device is idle, and lets nobody call until then",
          "[mock][queues]") {
  const MockScene scene;
  const CudaStream busy, other;
  const DeviceBuffer gate(2);
  auto memory = std::make_unique<DeviceBuffer>(1);
  closeWith(busy, gate);
  std::atomic<int> ended{0};
  std::thread frees([&] {
    memory.reset();
    ++ended;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::thread asks([&] {
    other.synchronize();
    ++ended;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(ended == 0);
  open(gate);
  frees.join();
  asks.join();
}

}  // namespace kolo::test
