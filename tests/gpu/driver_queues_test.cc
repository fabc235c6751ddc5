// What the driver's queues do on real devices: few of them for all streams, of a length at whose end a thread waits
// with the context's lock, and kernels for whose loading everything that runs is waited for. Ranks that are threads of
// a process wait for each other's launches, so none of these may come between them.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/support.h"

namespace kolo::test {
namespace {

using Settings = std::vector<std::pair<const char*, std::string>>;

koloResult_t addUp(const DeviceBuffer& values, std::size_t at, koloComm_t comm, const CudaStream& stream) {
  int* const value = values.data() + at;
  return koloAllReduce(value, value, 1, koloInt32, koloSum, comm, stream.get());
}

bool isIdle(const CudaStream& stream) {
  const CurrentDevice current(0);
  return driver().cuStreamQuery(stream.raw()) == CUDA_SUCCESS;
}

void expectNoError(const Ranks& ranks) {
  for (const koloComm_t comm : ranks.comms) {
    koloResult_t result = koloSuccess;
    CHECK_CODE(koloSuccess, koloCommGetAsyncError(comm, &result));
    INFO(koloGetLastError(comm));
    CHECK(result == koloSuccess);
  }
}

}  // namespace

TEST_CASE("the mock of the driver executes what shares a queue in the order in which it came", "[mock][queues]") {
  const unsigned connections = GENERATE(1, 2, 0);
  const MockScene scene({.connections = connections});
  const CudaStream first, second;
  const DeviceBuffer words(4);
  words->fill(0);
  const auto at = [&](std::size_t place) { return reinterpret_cast<CUdeviceptr>(words.data() + place); };
  CUDA_OK(driver().cuStreamWaitValue64(first.raw(), at(0), 1, CU_STREAM_WAIT_VALUE_GEQ));
  CUDA_OK(driver().cuStreamWriteValue64(second.raw(), at(2), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  if (connections != 1) {
    second.synchronize();
    CHECK(!isIdle(first));
  } else {
    CHECK(!isIdle(second));
  }
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(words.data())).store(1);
  for (const CudaStream* stream : {&second, &first}) stream->synchronize();
  CHECK(words->read(2) == 1);
}

TEST_CASE("the mock of the driver gives a stream the queue that the fewest have, or the next in turn",
          "[mock][queues]") {
  const bool inTurn = GENERATE(false, true);
  const MockScene scene({.connections = 2, .queuesInTurn = inTurn});
  const CudaStream first;
  CudaStream gone;
  gone.destroy();
  const CudaStream last;
  const DeviceBuffer words(2);
  const CurrentDevice current(0);
  const auto word = reinterpret_cast<CUdeviceptr>(words.data());
  words.data()[0] = words.data()[1] = 0;
  CUDA_OK(driver().cuStreamWaitValue64(first.raw(), word, 1, CU_STREAM_WAIT_VALUE_GEQ));
  CUDA_OK(driver().cuStreamWriteValue64(last.raw(), word, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  if (!inTurn) last.synchronize();
  CHECK(isIdle(last) == !inTurn);
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(words.data())).store(1);
  for (const CudaStream* stream : {&first, &last}) stream->synchronize();
}

TEST_CASE("a rank that is far ahead of the others leaves room in the driver's queue", "[mock][queues]") {
  constexpr int kCalls = 600;  // three entries each, where there are 1,024
  const int resident = GENERATE(0, 2);
  const Settings settings = {{"KOLO_GPU_CHANNELS", "1"}};
  const SettingsScope one(settings);
  const MockScene scene({.multiprocessors = 12, .blockThreads = 1, .launchQueue = 1024});
  Ranks ranks(oneDevice(2), {.timeoutMs = 5000 * kSlowness, .resident = resident});
  std::atomic<int> calls{0};
  const auto standsStill = [&] {
    for (int before = -1, now = calls; before != now; now = calls) {
      before = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  };
  ranks.run([&](Self& self) {
    const DeviceBuffer value(1);
    const CudaStream stream;
    value->write(0);
    ranks.together();
    if (self.rank == 1) standsStill();  // rank 0 has called all, or cannot go on
    for (int i = 0; i < kCalls && self.faults.empty(); ++i) {
      EXPECT_OK(self, addUp(value, 0, self.comm, stream));
      if (self.rank == 0) ++calls;
    }
    stream.synchronize();
  });
  expectNoError(ranks);
}

// As many streams as there are queues, if the program has one for each resident kernel.
TEST_CASE("ranks with resident kernels, and a second communicator, do not wait in each other's queues",
          "[mock][queues]") {
  constexpr int kRanks = 8;
  const unsigned connections = GENERATE(16, 32);
  const bool inTurn = GENERATE(false, true);
  const Settings settings = {{"KOLO_GPU_CHANNELS", "1"}};
  const SettingsScope one(settings);
  const MockScene scene(
      {.multiprocessors = 12 * kRanks, .blockThreads = 1, .connections = connections, .queuesInTurn = inTurn});
  const std::vector<CudaStream> streams(connections / 2);  // more than there are ranks, or as many
  const DeviceBuffer values(2 * kRanks);
  values->fill(1);
  const Ranks first(oneDevice(kRanks), {.timeoutMs = 5000 * kSlowness, .resident = 2});
  const Ranks second(oneDevice(kRanks), {.timeoutMs = 5000 * kSlowness, .resident = 2});
  for (int round = 0; round < 2; ++round) {
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      CHECK_CODE(koloSuccess, addUp(values, rank, first[static_cast<int>(rank)], streams[rank]));
      CHECK_CODE(koloSuccess, addUp(values, kRanks + rank, second[static_cast<int>(rank)], streams[rank]));
    }
  }
  for (const CudaStream& stream : streams) stream.synchronize();
  CHECK(values->read() == std::vector<int>(2 * kRanks, kRanks * kRanks));
  expectNoError(first);
  expectNoError(second);
}

TEST_CASE("no kernel is loaded while others wait for what the same thread calls next", "[mock][queues]") {
  const int resident = GENERATE(0, 1);
  const Settings settings = {{"KOLO_GPU_CHANNELS", "1"}};
  const SettingsScope one(settings);
  const MockScene scene({.multiprocessors = 24, .blockThreads = 1, .lazyLoading = true});
  const DeviceBuffer values(8);
  const CudaStream streams[2];
  values->fill(1);
  Ranks ranks(oneDevice(2), {.timeoutMs = 5000 * kSlowness, .resident = resident});
  std::unique_ptr<Ranks> others;
  for (int rank = 0; rank < 2; ++rank) {
    const auto at = static_cast<std::size_t>(4 * rank);
    CHECK_CODE(koloSuccess, addUp(values, at, ranks[rank], streams[rank]));
    if (rank == 0) others = std::make_unique<Ranks>(oneDevice(2), RanksOptions{.timeoutMs = 5000 * kSlowness});
    CHECK_CODE(koloSuccess, koloGroupStart());
    for (std::size_t i = 1; i < 4; ++i) CHECK_CODE(koloSuccess, addUp(values, at + i, ranks[rank], streams[rank]));
    CHECK_CODE(koloSuccess, koloGroupEnd());
  }
  for (const CudaStream& stream : streams) stream.synchronize();
  CHECK(values->read() == std::vector<int>(8, 2));
  expectNoError(ranks);
  expectNoError(*others);
}

}  // namespace kolo::test
