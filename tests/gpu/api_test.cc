#include <catch2/catch.hpp>
#include <kolo/kolo.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "drivers/cuda/devices.h"
#include "drivers/cuda/driver.h"
#include "mock_cuda/cuda_for_tests.h"
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
  explicit CudaStream(int device = 0) {
    const CurrentDevice current(device);
    REQUIRE(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  }
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
  explicit Ranks(const std::vector<int>& devices, int timeoutMs = 20000, const char* transports = "", int resident = 0)
      : comms(devices.size()), results(devices.size()) {
    koloUniqueId id;
    REQUIRE(koloGetUniqueId(&id) == koloSuccess);
    each([&](int rank) {
      koloConfig_t config = onDevice(devices[static_cast<std::size_t>(rank)], timeoutMs);
      config.transports = transports;
      config.resident = resident;
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

// Of a communicator that is to hear of a failure from another rank.
koloResult_t errorHeard(koloComm_t comm) {
  koloResult_t result = koloSuccess;
  for (int i = 0; i < 1000 && result == koloSuccess; ++i) {
    REQUIRE(koloCommGetAsyncError(comm, &result) == koloSuccess);
    if (result == koloSuccess) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return result;
}

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
    const int device = devices[static_cast<std::size_t>(rank)];
    DeviceBuffer send(device, kCount), recv(device, kCount);
    const CudaStream stream(device);
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
  const CudaStream stream, foreign(1);
  CHECK(koloAllReduce(mine.data(), mine.data(), 1, koloInt32, koloSum, ranks[0], foreign.get()) == koloInvalidArgument);
  CHECK(says("the stream belongs to a context of device 1"));
  CHECK(koloSendTag(mine.data(), 1, koloInt32, 1, 7, ranks[0], stream.get()) == koloUnsupported);
  CHECK(koloRecvTag(mine.data(), 1, koloInt32, KOLO_ANY_SOURCE, 0, nullptr, ranks[0], stream.get()) == koloUnsupported);
  CHECK(says("match in their order"));
  CHECK(koloSend(mine.data(), 1, koloInt32, 0, ranks[0], stream.get()) == koloInvalidUsage);
  CHECK(says("to itself"));
  CHECK(koloSend(&host, 1, koloInt32, 1, ranks[0], stream.get()) == koloInvalidPointer);
  koloRedOp_t op = koloSum;
  REQUIRE(koloRedOpCreate(&op, [](void*, const void*, size_t, koloDataType_t, void*) {}, 1, nullptr, ranks[0]) == koloSuccess);
  CHECK(koloAllReduce(mine.data(), mine.data(), 1, koloInt32, op, ranks[0], stream.get()) == koloUnsupported);
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

TEST_CASE("ranks whose devices have no direct way go through the host's memory, also where the way is broken in silence") {
  const bool broken = GENERATE(false, true);
  const bool byName = GENERATE(false, true);
  const Scene scene({.devices = 2, .peersReach = broken, .peersBroken = broken});
  Ranks ranks({0, 1, 0}, 20000, byName ? "shm" : "");
  for (const koloResult_t result : ranks.results) REQUIRE(result == koloSuccess);
  ranks.each([&](int rank) {
    DeviceBuffer value(rank % 2, 30'000);
    const CudaStream stream(rank % 2);
    for (int i = 0; i < 30'000; ++i) value.data()[i] = i + rank;
    CHECK(koloAllReduce(value.data(), value.data(), 30'000, koloInt32, koloSum, ranks[rank], stream.get()) == koloSuccess);
    stream.synchronize();
    bool right = true;
    for (int i = 0; i < 30'000; ++i) right = right && value.data()[i] == 3 * i + 3;
    CHECK(right);
  });
}

TEST_CASE("a launch that fails ends the communicator on all ranks") {
  const Scene scene;
  Ranks ranks({0, 0});
  DeviceBuffer value(0, 1);
  const CudaStream stream;
  MockCuda::failFrom("cuLaunchKernel");
  CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream.get()) == koloSystemError);
  CHECK(says("cuLaunchKernel"));
  MockCuda::failFrom("");
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(errorHeard(ranks[rank]) == koloSystemError);
    CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[rank], stream.get()) == koloSystemError);
    CHECK(says("rank 0 could not launch operation 1"));
  }
}

TEST_CASE("an asynchronous error of the device is told with the operation it belongs to") {
  const Scene scene;
  Ranks ranks({0, 0});
  ranks.each([&](int rank) {
    DeviceBuffer value(0, 1);
    const CudaStream stream;
    CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[rank], stream.get()) == koloSuccess);
    stream.synchronize();
  });
  koloResult_t result = koloInternalError;
  REQUIRE(koloCommGetAsyncError(ranks[0], &result) == koloSuccess);
  CHECK(result == koloSuccess);
  MockCuda::breakDevice(CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(koloCommGetAsyncError(ranks[0], &result) == koloSuccess);
  CHECK(result == koloSystemError);
  CHECK(std::string(koloGetLastError(ranks[0])).find("at or before all_reduce (operation 1") != std::string::npos);
}

// Rank r's message to each rank, itself included, is `count` + peer elements of 1000 r + peer.
void exchangeAll(Ranks& ranks, std::size_t count, bool registered, int rounds) {
  const int n = static_cast<int>(ranks.comms.size());
  ranks.each([&](int rank) {
    const auto size = static_cast<std::size_t>(n) * (count + 16);
    DeviceBuffer send(0, size), recv(0, size);
    const CudaStream stream;
    koloWindow_t window = nullptr;
    if (registered) REQUIRE(koloWindowRegister(ranks[rank], send.data(), size * sizeof(int), &window) == koloSuccess);
    const auto place = [&](int peer) { return static_cast<std::size_t>(peer) * (count + 16); };
    for (int round = 0; round < rounds; ++round) {
      for (int peer = 0; peer < n; ++peer) {
        for (std::size_t i = 0; i < count + 16; ++i) send.data()[place(peer) + i] = 1000 * rank + peer + round;
      }
      // Ranks list their messages in different orders.
      CHECK(koloGroupStart() == koloSuccess);
      for (int i = 0; i < n; ++i) {
        const int to = (rank + i * (rank % 2 == 0 ? 1 : n - 1)) % n, from = (rank * 2 + i) % n;
        CHECK(koloSend(send.data() + place(to), count + static_cast<std::size_t>(to), koloInt32, to, ranks[rank], stream.get()) == koloSuccess);
        CHECK(koloRecv(recv.data() + place(from), count + static_cast<std::size_t>(rank), koloInt32, from, ranks[rank], stream.get()) ==
              koloSuccess);
      }
      CHECK(koloGroupEnd() == koloSuccess);
      stream.synchronize();
      bool right = true;
      for (int peer = 0; peer < n; ++peer) {
        for (std::size_t i = 0; i < count + static_cast<std::size_t>(rank); ++i) {
          right = right && recv.data()[place(peer) + i] == 1000 * peer + rank + round;
        }
      }
      CHECK(right);
    }
    koloResult_t result = koloSuccess;
    CHECK(koloCommGetAsyncError(ranks[rank], &result) == koloSuccess);
    CHECK(result == koloSuccess);
    if (registered) CHECK(koloWindowDeregister(ranks[rank], window) == koloSuccess);
  });
}

TEST_CASE("messages of a group go on side by side, whatever their order and length") {
  const int n = GENERATE(1, 2, 3, 5);
  const std::size_t count = GENERATE(0, 1, 1000, 200'000);
  const bool registered = GENERATE(false, true);
  const Scene scene({.multiprocessors = 3 * n, .blockThreads = 2});
  Ranks ranks(std::vector<int>(static_cast<std::size_t>(n), 0));
  exchangeAll(ranks, count, registered, 2);
}

TEST_CASE("messages match in their order over calls and groups, and may wait for slots") {
  const Scene scene({.multiprocessors = 2});
  Ranks ranks({0, 0});
  constexpr std::size_t kLong = 150'000;   // more than the slots hold
  ranks.each([&](int rank) {
    DeviceBuffer a(0, kLong), b(0, kLong), c(0, kLong);
    const CudaStream stream;
    for (std::size_t i = 0; i < kLong; ++i) {
      a.data()[i] = rank == 0 ? 1 : 0;
      b.data()[i] = rank == 0 ? 2 : 0;
      c.data()[i] = rank == 1 ? 3 : 0;
    }
    if (rank == 0) {
      CHECK(koloSend(a.data(), 10, koloInt32, 1, ranks[0], stream.get()) == koloSuccess);
      CHECK(koloGroupStart() == koloSuccess);
      CHECK(koloSend(b.data(), kLong, koloInt32, 1, ranks[0], stream.get()) == koloSuccess);
      CHECK(koloRecv(c.data(), kLong, koloInt32, 1, ranks[0], stream.get()) == koloSuccess);
      CHECK(koloGroupEnd() == koloSuccess);
    } else {
      CHECK(koloGroupStart() == koloSuccess);
      CHECK(koloRecv(a.data(), 10, koloInt32, 0, ranks[1], stream.get()) == koloSuccess);
      CHECK(koloSend(c.data(), kLong, koloInt32, 0, ranks[1], stream.get()) == koloSuccess);
      CHECK(koloRecv(b.data(), kLong, koloInt32, 0, ranks[1], stream.get()) == koloSuccess);
      CHECK(koloGroupEnd() == koloSuccess);
    }
    // And a collective in one group with messages.
    CHECK(koloGroupStart() == koloSuccess);
    CHECK(koloAllReduce(a.data() + 100, a.data() + 100, 1, koloInt32, koloSum, ranks[rank], stream.get()) == koloSuccess);
    if (rank == 0) CHECK(koloSend(a.data(), 1, koloInt32, 1, ranks[0], stream.get()) == koloSuccess);
    if (rank == 1) CHECK(koloRecv(a.data() + 50, 1, koloInt32, 0, ranks[1], stream.get()) == koloSuccess);
    CHECK(koloGroupEnd() == koloSuccess);
    stream.synchronize();
    CHECK(a.data()[9] == 1);
    CHECK(b.data()[kLong - 1] == 2);
    CHECK(c.data()[kLong - 1] == 3);
    CHECK(a.data()[50] == 1);
    CHECK(a.data()[100] == 1);
  });
}

TEST_CASE("a message whose count differs is told on both ranks") {
  const Scene scene;
  Ranks ranks({0, 0}, 3000);
  ranks.each([&](int rank) {
    DeviceBuffer value(0, 4);
    const CudaStream stream;
    if (rank == 0) CHECK(koloSend(value.data(), 2, koloInt32, 1, ranks[0], stream.get()) == koloSuccess);
    if (rank == 1) CHECK(koloRecv(value.data(), 3, koloInt32, 0, ranks[1], stream.get()) == koloSuccess);
    stream.synchronize();
  });
  koloResult_t result = koloSuccess;
  CHECK(koloCommGetAsyncError(ranks[1], &result) == koloSuccess);
  CHECK(result == koloMismatch);
  INFO(koloGetLastError(ranks[1]));
  CHECK(std::string(koloGetLastError(ranks[1])).find("send_recv(int32, count 2)") != std::string::npos);
  CHECK(errorHeard(ranks[0]) == koloMismatch);   // the sender has long been done
}

TEST_CASE("windows over memory of all kinds, and over what has been freed") {
  const Scene scene({.devices = 2});
  Ranks ranks({0, 1});
  void* pools[2] = {};
  ranks.each([&](int rank) {
    for (const bool own : {true, false}) {
      constexpr std::size_t kBytes = 1 << 20;
      void* memory = nullptr;
      if (own) {
        REQUIRE(koloMemAllocOn(&memory, kBytes, rank) == koloSuccess);
      } else {
        const CurrentDevice current(rank);
        CUdeviceptr pointer = 0;
        REQUIRE(driver().cuMemAlloc(&pointer, kBytes) == CUDA_SUCCESS);
        memory = reinterpret_cast<void*>(pointer);
      }
      koloWindow_t window = nullptr;
      REQUIRE(koloWindowRegister(ranks[rank], memory, kBytes, &window) == koloSuccess);
      int zeroCopy = 0;
      CHECK(koloWindowIsZeroCopy(window, &zeroCopy) == koloSuccess);
      CHECK(zeroCopy == 1);
      const CudaStream stream(rank);
      int* const data = static_cast<int*>(memory);
      for (int i = 0; i < 1000; ++i) data[i] = i * (rank + 1);
      CHECK(koloAllReduce(data, data, 1000, koloInt32, koloSum, ranks[rank], stream.get()) == koloSuccess);
      stream.synchronize();
      CHECK(data[999] == 2997);
      if (own) {
        CHECK(koloMemFree(memory) == koloInvalidUsage);   // a window lies over it
        CHECK(koloWindowDeregister(ranks[rank], window) == koloSuccess);
        CHECK(koloMemFree(memory) == koloSuccess);
      } else {
        const CurrentDevice current(rank);
        REQUIRE(driver().cuMemFree(reinterpret_cast<CUdeviceptr>(memory)) == CUDA_SUCCESS);
        CHECK(koloAllReduce(memory, memory, 10, koloInt32, koloSum, ranks[rank], stream.get()) == koloInvalidPointer);
        CHECK(koloWindowDeregister(ranks[rank], window) == koloSuccess);
      }
    }
    // Memory of a pool is staged where another device is to reach it.
    pools[rank] = reinterpret_cast<void*>(MockCuda::poolMemory(rank, 4096));
    koloWindow_t window = nullptr;
    REQUIRE(koloWindowRegister(ranks[rank], pools[rank], 4096, &window) == koloSuccess);
    int zeroCopy = 1;
    CHECK(koloWindowIsZeroCopy(window, &zeroCopy) == koloSuccess);
    CHECK(zeroCopy == 0);
    const CudaStream stream(rank);
    int* const data = static_cast<int*>(pools[rank]);
    data[0] = rank + 1;
    CHECK(koloAllReduce(data, data, 1, koloInt32, koloSum, ranks[rank], stream.get()) == koloSuccess);
    stream.synchronize();
    CHECK(data[0] == 3);
    CHECK(koloWindowDeregister(ranks[rank], window) == koloSuccess);
    const CurrentDevice current(rank);
    CHECK(driver().cuMemFree(reinterpret_cast<CUdeviceptr>(pools[rank])) == CUDA_SUCCESS);
  });
}

TEST_CASE("memory of a device is refused by a communicator on the host") {
  const Scene scene;
  koloUniqueId id;
  REQUIRE(koloGetUniqueId(&id) == koloSuccess);
  koloComm_t comm = nullptr;
  REQUIRE(koloCommInitRank(&comm, 1, id, 0) == koloSuccess);
  {
    DeviceBuffer value(0, 4);
    int host = 3;
    CHECK(koloAllReduce(value.data(), &host, 1, koloInt32, koloSum, comm, nullptr) == koloInvalidPointer);
    CHECK(says("memory of CUDA device 0: expected host memory"));
    CHECK(koloSend(value.data(), 1, koloInt32, 0, comm, nullptr) == koloInvalidPointer);
    CHECK(koloAllReduce(&host, &host, 1, koloInt32, koloSum, comm, nullptr) == koloSuccess);
  }
  CHECK(koloCommDestroy(comm) == koloSuccess);
}

TEST_CASE("communicators share a device's blocks, until there are none left") {
  const Scene scene({.multiprocessors = 132});
  std::vector<std::unique_ptr<Ranks>> all;
  for (int i = 0; i < 64; ++i) {
    all.push_back(std::make_unique<Ranks>(std::vector<int>{0, 0}));
    if (all.back()->results[0] != koloSuccess) break;
  }
  INFO(all.size());
  CHECK(all.size() > 8);
  CHECK(all.back()->results[0] == koloUnsupported);
  CHECK(all.back()->messages[1].find("KOLO_GPU_CHANNELS") != std::string::npos);
  all.erase(all.begin());
  Ranks again({0, 0});   // what the first one has given back
  CHECK(again.results[0] == koloSuccess);
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

// A graph of what `body` enqueues on the stream.
class Graph {
 public:
  Graph(const CudaStream& stream, const std::function<void()>& body) {
    const CurrentDevice current(0);
    auto* const raw = reinterpret_cast<CUstream>(stream.get());
    REQUIRE(cudaForTests().cuStreamBeginCapture(raw, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    body();
    REQUIRE(cudaForTests().cuStreamEndCapture(raw, &graph_) == CUDA_SUCCESS);
    REQUIRE(cudaForTests().cuGraphInstantiate(&executable_, graph_, 0) == CUDA_SUCCESS);
  }
  ~Graph() {
    const CurrentDevice current(0);
    cudaForTests().cuGraphExecDestroy(executable_);
    cudaForTests().cuGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  void launch(const CudaStream& stream) const {
    const CurrentDevice current(0);
    REQUIRE(cudaForTests().cuGraphLaunch(executable_, reinterpret_cast<CUstream>(stream.get())) == CUDA_SUCCESS);
  }

 private:
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

void exchangeInGraph(Ranks& ranks, int rank, const CudaStream& stream, int operations, DeviceBuffer& data, DeviceBuffer& sums) {
  CHECK(koloGroupStart() == koloSuccess);
  for (int i = 0; i < operations; ++i) {
    CHECK(koloAllReduce(data.data() + i, sums.data() + i, 1, koloInt32, koloSum, ranks[rank], stream.get()) == koloSuccess);
  }
  CHECK(koloSend(data.data(), 1, koloInt32, 1 - rank, ranks[rank], stream.get()) == koloSuccess);
  CHECK(koloRecv(sums.data() + 99, 1, koloInt32, 1 - rank, ranks[rank], stream.get()) == koloSuccess);
  CHECK(koloGroupEnd() == koloSuccess);
}

TEST_CASE("captured operations and groups run on what is there at each replay, beside plain ones on other streams") {
  const int operations = GENERATE(1, 40);
  const int resident = GENERATE(0, 1);
  const Scene scene({.multiprocessors = 16});
  Ranks ranks({0, 0}, 20000, "", resident);
  std::barrier together(2);   // while one thread captures, the others must not wait for the device: that is what `global` means
  ranks.each([&](int rank) {
    DeviceBuffer data(0, 100), sums(0, 100), plain(0, 1);
    const CudaStream stream, other;
    for (int captured = 0; captured < 3; ++captured) {   // graphs come and go; their buffers are used again
      together.arrive_and_wait();
      const Graph graph(stream, [&] { exchangeInGraph(ranks, rank, stream, operations, data, sums); });
      together.arrive_and_wait();
      for (int replay = 0; replay < 4; ++replay) {
        for (int i = 0; i < operations; ++i) data.data()[i] = 10 * replay + i + rank;
        plain.data()[0] = replay + rank;
        graph.launch(stream);
        CHECK(koloAllReduce(plain.data(), plain.data(), 1, koloInt32, koloSum, ranks[rank], other.get()) == koloSuccess);
        stream.synchronize();
        other.synchronize();
        bool right = true;
        for (int i = 0; i < operations; ++i) right = right && sums.data()[i] == 2 * (10 * replay + i) + 1;
        CHECK(right);
        CHECK(sums.data()[99] == 10 * replay + 1 - rank);
        CHECK(plain.data()[0] == 2 * replay + 1);
      }
    }
  });
}

TEST_CASE("a capture may fork: operations of one communicator in two of its streams are one after the other") {
  const Scene scene({.multiprocessors = 8});
  Ranks ranks({0, 0});
  std::barrier together(2);
  ranks.each([&](int rank) {
    DeviceBuffer value(0, 1);
    const CudaStream stream, side;
    CUevent fork = nullptr, join = nullptr;
    {
      const CurrentDevice current(0);
      REQUIRE(driver().cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
      REQUIRE(driver().cuEventCreate(&join, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    }
    together.arrive_and_wait();
    const auto raw = [](const CudaStream& one) { return reinterpret_cast<CUstream>(one.get()); };
    const Graph graph(stream, [&] {
      CHECK(driver().cuEventRecord(fork, raw(stream)) == CUDA_SUCCESS);
      CHECK(driver().cuStreamWaitEvent(raw(side), fork, 0) == CUDA_SUCCESS);
      for (int i = 0; i < 3; ++i) {
        CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[rank], stream.get()) == koloSuccess);
        CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[rank], side.get()) == koloSuccess);
      }
      CHECK(driver().cuEventRecord(join, raw(side)) == CUDA_SUCCESS);
      CHECK(driver().cuStreamWaitEvent(raw(stream), join, 0) == CUDA_SUCCESS);
    });
    together.arrive_and_wait();
    for (int replay = 0; replay < 3; ++replay) {
      value.data()[0] = 1;
      graph.launch(stream);
      stream.synchronize();
      CHECK(value.data()[0] == 64);
    }
    const CurrentDevice current(0);
    CHECK(driver().cuEventDestroy(fork) == CUDA_SUCCESS);
    CHECK(driver().cuEventDestroy(join) == CUDA_SUCCESS);
  });
}

TEST_CASE("a resident kernel serves what is small, retires when nothing comes, and comes back") {
  const int ranksOnDevice = GENERATE(2, 4);
  const Scene scene({.multiprocessors = 10 * ranksOnDevice, .blockThreads = 2});
  Ranks ranks(std::vector<int>(static_cast<std::size_t>(ranksOnDevice), 0), 20000, "", 1);
  const std::uint64_t before = MockCuda::launches();
  std::barrier together(ranksOnDevice);   // who waits for the device waits for the others' operations too
  ranks.each([&](int rank) {
    DeviceBuffer value(0, 300'000);
    const CudaStream streams[2];
    for (int i = 0; i < 60; ++i) {
      const CudaStream& stream = streams[i / 7 % 2];
      // Now and then one that is too large, and a pause longer than the idle time.
      const std::size_t count = i % 10 == 9 ? 300'000 : 100;
      value.data()[count - 1] = rank + i;
      CHECK(koloAllReduce(value.data(), value.data(), count, koloInt32, koloMax, ranks[rank], stream.get()) == koloSuccess);
      if (i % 5 == 4) {
        const CurrentDevice current(0);
        together.arrive_and_wait();
        CHECK(cudaForTests().cuCtxSynchronize() == CUDA_SUCCESS);   // ends, because the kernel retires
        together.arrive_and_wait();
      } else {
        stream.synchronize();
      }
      CHECK(value.data()[count - 1] == ranksOnDevice - 1 + i);
      if (i % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  });
  // 54 small ones, each of which would have been a launch.
  const std::uint64_t launches = (MockCuda::launches() - before) / static_cast<std::uint64_t>(ranksOnDevice);
  INFO(launches);
  CHECK(launches >= 6 + 1);
}

TEST_CASE("a communicator may go while its resident kernel is there, or be aborted while it waits") {
  const Scene scene({.multiprocessors = 20});
  for (const bool aborted : {false, true}) {
    DeviceBuffer values(0, 2);
    const CudaStream streams[2];
    Ranks ranks({0, 0}, 20000, "", 1);
    ranks.each([&](int rank) {
      CHECK(koloAllReduce(values.data() + rank, values.data() + rank, 1, koloInt32, koloSum, ranks[rank], streams[rank].get()) == koloSuccess);
    });
    if (aborted) {
      CHECK(koloAllReduce(values.data(), values.data(), 1, koloInt32, koloSum, ranks[0], streams[0].get()) == koloSuccess);
      CHECK(koloCommAbort(ranks[0]) == koloSuccess);
      ranks.comms[0] = nullptr;
      streams[0].synchronize();
    }
  }
}

}  // namespace kolo::test
