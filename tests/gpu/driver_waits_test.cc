// Calls of the driver that wait until the device is idle, with the context's lock: freeing memory, and perhaps
// allocating it. Kernels wait for what other ranks launch next, which may be threads of the same process, or even the
// same thread. So no such call may be made by an operation, or by the end of a communicator.
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
  std::atomic<int> asked{0};
  std::atomic<bool> isFree{false}, isOver{false};
  std::thread frees([&] {
    memory.reset();
    isFree = true;
  });
  std::thread asks([&] {
    for (; !isOver; ++asked) {
      other.synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that the other one gets the context's lock
    }
  });
  bool isHeldUp = false;  // who asks, since the other one frees
  for (const auto end = std::chrono::steady_clock::now() + kSoon;
       !isHeldUp && std::chrono::steady_clock::now() < end;) {
    const int before = asked;
    std::this_thread::sleep_for(std::chrono::milliseconds(70));
    isHeldUp = asked == before;
  }
  CHECK(isHeldUp);
  CHECK(!isFree);
  isOver = true;
  open(gate);
  frees.join();
  asks.join();
}

TEST_CASE("a captured communicator may go while kernels of another wait for what the same thread calls next",
          "[mock][queues]") {
  const Settings settings = {{"KOLO_GPU_CHANNELS", "1"}};
  const SettingsScope one(settings);
  const MockScene scene(mockFor(4));
  const DeviceBuffer values(4);
  const CudaStream streams[2];
  values->fill(1);
  Ranks stay(oneDevice(2));
  Ranks go(oneDevice(2));
  for (int rank = 0; rank < 2; ++rank) {
    const Graph graph(streams[rank],
                      [&] { CHECK_CODE(koloSuccess, addUp(values.data() + 2 + rank, go[rank], streams[rank])); });
  }
  CHECK_CODE(koloSuccess, addUp(values.data(), stay[0], streams[0]));
  CHECK(endsSoon([&] {
    for (koloComm_t& comm : go.comms) {
      CHECK_CODE(koloSuccess, koloCommDestroy(comm));
      comm = nullptr;
    }
  }));
  CHECK_CODE(koloSuccess, addUp(values.data() + 1, stay[1], streams[1]));
  for (const CudaStream& stream : streams) stream.synchronize();
  CHECK(values->read(0, 2) == std::vector<int>{2, 2});
}

TEST_CASE("memory that a kernel may still use is not taken away", "[mock]") {
  const Settings settings = {{"KOLO_ALGORITHM", "all_to_all:bruck"}, {"KOLO_GPU_CHANNELS", "1"}};
  const SettingsScope bruck(settings);
  const MockScene scene(mockFor(4));
  const DeviceBuffer data(3), other(3);
  const CudaStream stream;
  const Ranks stays(oneDevice(1));  // and with it the device's own object
  // How many mappings go with a communicator; its rank 0 is the only one that calls, `broken` says that no event is
  // recorded.
  const auto unmapped = [&](bool calls, bool broken) {
    Ranks ranks(oneDevice(3));
    if (broken) MockCuda::failFrom("cuEventRecord");
    if (calls) (void)koloAllToAll(data.data(), other.data(), 1, koloInt32, ranks[0], stream.get());
    MockCuda::failFrom("");
    for (koloComm_t& comm : ranks.comms) CHECK_CODE(koloSuccess, koloCommAbort(std::exchange(comm, nullptr)));
    return MockCuda::calls()["cuMemUnmap"];
  };
  std::uint64_t before = MockCuda::calls()["cuMemUnmap"];
  const std::uint64_t arenas = unmapped(false, false) - before;
  REQUIRE(arenas > 0);
  before = MockCuda::calls()["cuMemUnmap"];
  CHECK(unmapped(true, true) == before);  // nor are the arenas, of which those of the others are written to
}

TEST_CASE("an operation allocates nothing for which the driver may wait", "[mock][queues]") {
  const bool captured = GENERATE(false, true);
  const MockScene scene({.multiprocessors = 8, .blockThreads = 1, .allocationWaits = true});
  constexpr std::size_t kGroups = 40;
  const DeviceBuffer values(18);
  const CudaStream streams[2];
  values->fill(1);
  Ranks ranks(oneDevice(2));
  std::vector<std::unique_ptr<Graph>> graphs[2];
  const auto call = [&](int rank) {
    const auto once = [&] { addUpMany(values.data() + 9 * rank, ranks[rank], streams[rank]); };
    for (std::size_t i = 0; i < kGroups; ++i) {
      if (captured) graphs[rank].push_back(std::make_unique<Graph>(streams[rank], once));
      else once();
    }
  };
  if (captured) {
    CHECK_CODE(koloSuccess, addUp(values.data(), ranks[0], streams[0]));  // waits for the other rank
  }
  CHECK(endsSoon([&] { call(0); }));
  if (captured) CHECK_CODE(koloSuccess, addUp(values.data() + 9, ranks[1], streams[1]));
  call(1);
  for (int rank = 0; rank < 2; ++rank) {
    for (const auto& graph : graphs[rank]) graph->launch(streams[rank]);
  }
  for (const CudaStream& stream : streams) stream.synchronize();
  for (koloComm_t comm : ranks.comms) {
    koloResult_t result = koloSuccess;
    CHECK_CODE(koloSuccess, koloCommGetAsyncError(comm, &result));
    CHECK(result == koloSuccess);
  }
}

TEST_CASE("a rank that waits because it is far ahead is let go when its communicator is aborted", "[mock][queues]") {
  const Settings settings = {{"KOLO_GPU_CHANNELS", "1"}};
  const SettingsScope one(settings);
  const MockScene scene({.multiprocessors = 4, .blockThreads = 1});
  Ranks ranks(oneDevice(1));
  const koloComm_t comm = std::exchange(ranks.comms[0], nullptr);
  const DeviceBuffer value(1), gate(2);
  const CudaStream stream;
  value->write(1);
  closeWith(stream, gate);
  std::atomic<int> calls{0};
  std::atomic<int> result{koloSuccess};
  std::thread caller([&] {
    while (calls < 1000 && result == koloSuccess) {
      result = addUp(value.data(), comm, stream);
      ++calls;
    }
  });
  // It may have a pause before it is that far ahead, on a busy machine.
  const auto end = std::chrono::steady_clock::now() + kSoon;
  for (int before = -1, now = calls; before != now || (now < 3 * 32 && std::chrono::steady_clock::now() < end);
       now = calls) {
    before = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  CHECK(calls >= 3 * 32);
  CHECK(calls < 4 * 32);  // three entries of the driver's queue each, of 1,024
  std::thread aborter([&] { (void)koloCommAbort(comm); });
  CHECK(endsSoon([&] { caller.join(); }));
  CHECK(result == koloAborted);
  open(gate);  // the kernels that were launched are waited for
  aborter.join();
  stream.synchronize();
}

}  // namespace kolo::test
