#include <catch2/catch.hpp>
#include <kolo/kolo.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "drivers/cuda/devices.h"
#include "drivers/cuda/driver.h"
#include "mock_cuda/device_memory.h"
#include "mock_cuda/mock_cuda.h"

namespace kolo::test {
namespace {

const drivers::CudaDriver& driver() { return *drivers::cuda().value(); }

bool says(const std::string& text) { return std::string(koloGetLastError(nullptr)).find(text) != std::string::npos; }

// Mocked GPUs, and what a test needs of CUDA.
struct Scene {
  explicit Scene(const MockCuda& mock = {}) { mock.install(); }
  ~Scene() { CHECK(MockCuda::remove() == ""); }
};

class DeviceBuffer {
 public:
  DeviceBuffer(int device, std::size_t ints) : memory_(device, ints * sizeof(int)) {}
  // Which the host may use too, as the mock's.
  int* data() const { return reinterpret_cast<int*>(memory_.data()); }

 private:
  DeviceMemory memory_;
};

class CudaStream {
 public:
  CudaStream() { REQUIRE(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS); }
  ~CudaStream() { driver().cuStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  koloStream_t get() const { return reinterpret_cast<koloStream_t>(stream_); }
  void synchronize() const { driver().cuStreamSynchronize(stream_); }

 private:
  CUstream stream_ = nullptr;
};

koloConfig_t onDevice(int device, int timeoutMs = 20000) {
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.device = device;
  config.timeoutMs = timeoutMs;
  return config;
}

// Ranks that are threads of this process, rank r on device devices[r].
class Ranks {
 public:
  explicit Ranks(const std::vector<int>& devices, int timeoutMs = 20000) : comms(devices.size()), results(devices.size()) {
    koloUniqueId id;
    REQUIRE(koloGetUniqueId(&id) == koloSuccess);
    each([&](int rank) {
      const koloConfig_t config = onDevice(devices[static_cast<std::size_t>(rank)], timeoutMs);
      results[static_cast<std::size_t>(rank)] =
          koloCommInitRankConfig(&comms[static_cast<std::size_t>(rank)], static_cast<int>(comms.size()), id, rank, &config);
      if (results[static_cast<std::size_t>(rank)] != koloSuccess) messages[static_cast<std::size_t>(rank)] = koloGetLastError(nullptr);
    });
  }
  ~Ranks() {
    each([&](int rank) {
      if (comms[static_cast<std::size_t>(rank)] != nullptr) (void)koloCommDestroy(comms[static_cast<std::size_t>(rank)]);
    });
  }
  void each(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(comms.size()); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }
  koloComm_t operator[](int rank) const { return comms[static_cast<std::size_t>(rank)]; }

  std::vector<koloComm_t> comms;
  std::vector<koloResult_t> results;
  std::vector<std::string> messages = std::vector<std::string>(8);
};

}  // namespace

TEST_CASE("the devices of this machine are listed") {
  const Scene scene({.devices = 3});
  const auto devices = drivers::cudaDevices();
  REQUIRE(devices.ok());
  REQUIRE(devices.value().size() == 3);
  CHECK(devices.value()[1].name == "Mock GPU");
  CHECK(devices.value()[1].pciBusId == "0000:01:00.0");
  CHECK(devices.value()[2].major == 9);
}

TEST_CASE("ranks on devices of their own, and on one, reduce what their GPUs hold") {
  const std::vector<int> devices = GENERATE(std::vector<int>{0}, std::vector<int>{0, 1}, std::vector<int>{0, 0, 1});
  const Scene scene({.devices = 2, .multiprocessors = 8});
  Ranks ranks(devices);
  for (const koloResult_t result : ranks.results) REQUIRE(result == koloSuccess);
  const int n = static_cast<int>(devices.size());
  constexpr std::size_t kCount = 50'000;
  ranks.each([&](int rank) {
    DeviceBuffer send(devices[static_cast<std::size_t>(rank)], kCount), recv(devices[static_cast<std::size_t>(rank)], kCount);
    const CudaStream stream;
    for (std::size_t i = 0; i < kCount; ++i) send.data()[i] = static_cast<int>(i) + rank;
    CHECK(koloAllReduce(send.data(), recv.data(), kCount, koloInt32, koloSum, ranks[rank], stream.get()) == koloSuccess);
    stream.synchronize();
    bool right = true;
    for (std::size_t i = 0; i < kCount; ++i) right = right && recv.data()[i] == n * static_cast<int>(i) + n * (n - 1) / 2;
    CHECK(right);
  });
}

TEST_CASE("a group is one launch, however long, and its results are those of its parts") {
  const Scene scene({.multiprocessors = 4});
  Ranks ranks({0, 0});
  const int operations = GENERATE(1, 3, 8, 9, 40);
  const std::uint64_t before = MockCuda::launches();
  ranks.each([&](int rank) {
    DeviceBuffer send(0, 100), recv(0, static_cast<std::size_t>(operations) * 100);
    const CudaStream stream;
    for (int i = 0; i < 100; ++i) send.data()[i] = i * (rank + 1);
    CHECK(koloGroupStart() == koloSuccess);
    for (int i = 0; i < operations; ++i) {
      const std::size_t count = 10 + static_cast<std::size_t>(i);
      CHECK(koloAllReduce(send.data(), recv.data() + 100 * i, count, koloInt32, i % 2 == 0 ? koloSum : koloMax, ranks[rank],
                          stream.get()) == koloSuccess);
    }
    CHECK(koloGroupEnd() == koloSuccess);
    stream.synchronize();
    bool right = true;
    for (int i = 0; i < operations; ++i) {
      for (int j = 0; j < 10 + i; ++j) right = right && recv.data()[100 * i + j] == (i % 2 == 0 ? 3 * j : 2 * j);
    }
    CHECK(right);
  });
  CHECK(MockCuda::launches() - before == 2);
}

TEST_CASE("operations on several streams of one communicator run in the order of their calls") {
  const Scene scene({.multiprocessors = 2});
  Ranks ranks({0, 0});
  ranks.each([&](int rank) {
    DeviceBuffer value(0, 4);
    const CudaStream streams[3];
    value.data()[0] = 1;
    for (int i = 0; i < 12; ++i) {
      CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[rank], streams[i % 3].get()) == koloSuccess);
    }
    for (const CudaStream& stream : streams) stream.synchronize();
    CHECK(value.data()[0] == 1 << 12);
  });
}

TEST_CASE("what does not belong on a GPU is refused before anything is launched") {
  const Scene scene({.devices = 2, .multiprocessors = 2});
  Ranks ranks({0, 0});
  const std::uint64_t before = MockCuda::launches();
  DeviceBuffer mine(0, 4), elsewhere(1, 4);
  int host = 0;
  CHECK(koloAllReduce(&host, mine.data(), 1, koloInt32, koloSum, ranks[0], nullptr) == koloInvalidPointer);
  CHECK(says("sendbuf"));
  CHECK(says("host memory: expected memory of device 0"));
  CHECK(koloAllReduce(mine.data(), elsewhere.data(), 1, koloInt32, koloSum, ranks[0], nullptr) == koloInvalidPointer);
  CHECK(says("memory of device 1: expected memory of device 0"));
  CHECK(koloAllReduce(mine.data(), mine.data(), 1, koloInt32, koloSum, ranks[0], nullptr) == koloInvalidUsage);
  CHECK(says("expected a stream of each rank's own"));
  const size_t counts[] = {1, 1};
  int pair[2] = {};
  CHECK(koloAllGatherv(mine.data(), pair, counts, nullptr, koloInt32, ranks[0], nullptr) == koloInvalidPointer);
  CHECK(koloAllToAllv(pair, counts, nullptr, mine.data(), counts, nullptr, koloInt32, ranks[0], nullptr) == koloInvalidPointer);
  CHECK(koloGatherv(pair, 1, nullptr, nullptr, nullptr, koloInt32, 1, ranks[0], nullptr) == koloInvalidPointer);
  CHECK(koloSend(mine.data(), 1, koloInt32, 1, ranks[0], nullptr) == koloUnsupported);
  koloRedOp_t op = koloSum;
  REQUIRE(koloRedOpCreate(&op, [](void*, const void*, size_t, koloDataType_t, void*) {}, 1, nullptr, ranks[0]) == koloSuccess);
  CHECK(koloAllReduce(mine.data(), mine.data(), 1, koloInt32, op, ranks[0], nullptr) == koloUnsupported);
  CHECK(says("function of the host's"));
  CHECK(MockCuda::launches() == before);
  // And the communicator goes on.
  ranks.each([&](int rank) {
    DeviceBuffer value(0, 1);
    const CudaStream stream;
    value.data()[0] = rank;
    CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[rank], stream.get()) == koloSuccess);
    stream.synchronize();
    CHECK(value.data()[0] == 1);
  });
}

TEST_CASE("a device that is not there, too few blocks, or ranks that mix memories: an error on every rank") {
  struct Bad {
    std::vector<int> devices;
    int multiprocessors;
    const char* text;
  };
  for (const Bad& bad : {Bad{{0, 7}, 4, "device is 7, expected 0..0"}, Bad{{0, 0, 0}, 2, "too few for the 3 ranks"},
                         Bad{{0, -1}, 4, "host memory"}}) {
    INFO(bad.text);
    const Scene scene({.multiprocessors = bad.multiprocessors});
    Ranks ranks(bad.devices);
    bool said = false;
    for (std::size_t rank = 0; rank < bad.devices.size(); ++rank) {
      CHECK(ranks.results[rank] != koloSuccess);
      INFO(ranks.messages[rank]);
      said = said || ranks.messages[rank].find(bad.text) != std::string::npos;
    }
    CHECK(said);
  }
}

TEST_CASE("each driver call that fails is an error with its name, and everything is given back") {
  for (const char* function : {"cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuMemAlloc", "cuMemHostAlloc", "cuEventCreate"}) {
    INFO(function);
    const Scene scene;
    MockCuda::failFrom(function);
    Ranks ranks({0, 0});
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(ranks.results[static_cast<std::size_t>(rank)] != koloSuccess);
      CHECK(ranks.messages[static_cast<std::size_t>(rank)].find(function) != std::string::npos);
    }
    MockCuda::failFrom("");
  }
}

TEST_CASE("devices that do not reach each other's memory are refused") {
  const Scene scene({.devices = 2, .peersReach = false});
  Ranks ranks({0, 1});
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(ranks.results[static_cast<std::size_t>(rank)] == koloUnsupported);
    CHECK(ranks.messages[static_cast<std::size_t>(rank)].find("cannot reach the memory of device") != std::string::npos);
  }
}

TEST_CASE("a launch that fails is the call's error") {
  const Scene scene;
  Ranks ranks({0, 0});
  DeviceBuffer value(0, 1);
  const CudaStream stream;
  MockCuda::failFrom("cuLaunchKernel");
  CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream.get()) == koloSystemError);
  CHECK(says("cuLaunchKernel"));
  MockCuda::failFrom("");
}

TEST_CASE("a rank that never calls makes the others' kernels give up, and says so asynchronously") {
  const Scene scene;
  Ranks ranks({0, 0}, 200);
  DeviceBuffer value(0, 1);
  const CudaStream stream;
  REQUIRE(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream.get()) == koloSuccess);
  stream.synchronize();   // ends, because the kernel has a deadline
  koloResult_t result = koloSuccess;
  REQUIRE(koloCommGetAsyncError(ranks[0], &result) == koloSuccess);
  CHECK(result == koloTimeout);
  CHECK(std::string(koloGetLastError(ranks[0])).find("rank 0 waited 200 ms for rank 1") != std::string::npos);
  CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream.get()) == koloTimeout);
}

TEST_CASE("koloCommAbort ends a kernel that waits") {
  const Scene scene;
  Ranks ranks({0, 0});
  DeviceBuffer value(0, 1);
  const CudaStream stream;
  REQUIRE(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream.get()) == koloSuccess);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(koloCommAbort(ranks[0]) == koloSuccess);
  ranks.comms[0] = nullptr;
  stream.synchronize();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));   // the deadline is 20 s
}

TEST_CASE("ranks that call different things are told, on all ranks") {
  const Scene scene;
  Ranks ranks({0, 0}, 2000);
  ranks.each([&](int rank) {
    DeviceBuffer value(0, 4);
    const CudaStream stream;
    CHECK(koloAllReduce(value.data(), value.data(), rank == 0 ? 2 : 3, koloInt32, koloSum, ranks[rank], stream.get()) == koloSuccess);
    stream.synchronize();
    koloResult_t result = koloSuccess;
    CHECK(koloCommGetAsyncError(ranks[rank], &result) == koloSuccess);
    CHECK(result == koloMismatch);
    const std::string message = koloGetLastError(ranks[rank]);
    CHECK(message.find("count 2") != std::string::npos);
    CHECK(message.find("count 3") != std::string::npos);
  });
}

}  // namespace kolo::test
