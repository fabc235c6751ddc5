// Communicators on mocked GPUs: what only a mock can be told (several devices, few blocks, calls that fail), and what
// is refused.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "drivers/cuda/devices.h"
#include "gpu/support.h"
#include "support/items.h"

namespace kolo::test {

TEST_CASE("the devices of this machine are listed", "[mock]") {
  const MockScene scene({.devices = 3});
  const auto devices = drivers::cudaDevices();
  REQUIRE(devices.ok());
  REQUIRE(devices.value().size() == 3);
  CHECK(devices.value()[1].name == "Mock GPU");
  CHECK(devices.value()[1].pciBusId == "0000:01:00.0");
  CHECK(devices.value()[2].major == 9);
}

TEST_CASE("S1.9 S2.6 S4.2 S4.10 ranks on GPUs make groups alone, find them by name, and vote", "[mock]") {
  const MockScene scene({.devices = 2, .multiprocessors = 64});
  Ranks ranks({0, 1, 0});
  ranks.run([&](Self& self) {
    std::uint64_t any = 0, all = 0;
    EXPECT_OK(self, koloVote(std::uint64_t{6} << self.rank, &any, &all, self.comm));
    EXPECT(self, any == 30);
    EXPECT(self, all == 0);
    if (self.rank == 1) return;
    const int list[] = {2, 0};
    koloComm_t group = nullptr, same = nullptr;
    EXPECT_OK(self, koloCommCreateGroup(self.comm, list, 2, "g", &group, nullptr));
    EXPECT_OK(self, koloCommCreateGroup(self.comm, list, 2, "g", &same, nullptr));
    EXPECT(self, group == same);
    koloComm_t found = nullptr;
    EXPECT_OK(self, koloCommByName("g", &found));
    EXPECT(self, found == group);
    int places[] = {-9, -9, -9}, members[] = {-9, -9};
    const int all3[] = {0, 1, 2}, both[] = {0, 1};
    EXPECT_OK(self, koloCommTranslateRanks(self.comm, all3, 3, found, places));
    EXPECT(self, (std::vector(places, places + 3) == std::vector{1, KOLO_RANK_NONE, 0}));
    EXPECT_OK(self, koloCommTranslateRanks(found, both, 2, self.comm, members));
    EXPECT(self, (std::vector(members, members + 2) == std::vector{2, 0}));
    DeviceBuffer buffer(10, 0);
    const CudaStream stream(0);
    std::fill(buffer.data(), buffer.data() + 10, self.rank);
    EXPECT_OK(self, koloBroadcast(buffer.data(), buffer.data(), 10, koloInt32, 0, found, stream.get()));
    stream.synchronize();
    EXPECT(self, buffer.data()[9] == 2);
    EXPECT_OK(self, koloVote(self.rank == 0 ? 5 : 4, &any, &all, group));
    EXPECT(self, any == 5);
    EXPECT(self, all == 4);
    EXPECT_OK(self, koloCommDestroy(same));
    EXPECT_OK(self, koloCommDestroy(group));
  });
}

// An allocate function that notes in its context that it was called, and has no memory.
void* noteCall(void* context, koloDataType_t, int, const std::size_t*) {
  *static_cast<bool*>(context) = true;
  return nullptr;
}

TEST_CASE("S4.5 an axis that the ranks on GPUs do not divide is an error on all, with axis, length and ranks",
          "[mock]") {
  const MockScene scene({.multiprocessors = 6});
  Ranks ranks({0, 0, 0});
  const std::uint64_t before = MockCuda::launches();
  ranks.run([&](Self& self) {
    const std::size_t shape[] = {4, 3};
    const koloArray_t array{2, shape, nullptr};
    const DeviceBuffer data(12), result(12);
    const CudaStream stream;
    data->fill(self.rank);
    result->fill(0);
    ranks.together();
    bool isAsked = false;
    EXPECT_CODE(self, koloInvalidArgument,
                koloScatterArray(data.data(), &array, koloInt32, 0, noteCall, &isAsked, 1, self.comm, stream.get()));
    EXPECT(self, messageHas("axis 0 has length 4, which 3 ranks do not divide"));
    EXPECT(self, !isAsked);
    koloItem_t items[] = {intItem(data.data(), result.data(), 1), intItem(data.data(), result.data() + 3, 0)};
    items[1].sendarray = &array;
    EXPECT_CODE(self, koloInvalidArgument, koloReduceScatterList(items, 2, koloSum, self.comm, stream.get()));
    EXPECT(self, messageHas("item 1: axis 0 of sendarray has the length 4, which 3 ranks do not divide"));
    items[1].axis = 1;  // of length 3
    EXPECT_OK(self, koloReduceScatterList(items, 2, koloSum, self.comm, stream.get()));
    stream.synchronize();
    EXPECT(self, result->read(0, 7) == std::vector<int>({3, 0, 0, 3, 3, 3, 3}));
  });
  CHECK(MockCuda::launches() - before == 3);
}

TEST_CASE("ranks on devices of their own, and on one, reduce what their GPUs hold", "[mock]") {
  const std::vector<int> devices = GENERATE(std::vector<int>{0}, std::vector<int>{0, 1}, std::vector<int>{0, 0, 1});
  const MockScene scene({.devices = 2, .multiprocessors = 8});
  Ranks ranks(devices);
  const int n = static_cast<int>(devices.size());
  constexpr std::size_t kCount = 50'000;
  ranks.run([&](Self& self) {
    const int device = devices[static_cast<std::size_t>(self.rank)];
    DeviceBuffer send(kCount, device), recv(kCount, device);
    const CudaStream stream(device);
    for (std::size_t i = 0; i < kCount; ++i) send.data()[i] = static_cast<int>(i) + self.rank;
    EXPECT_OK(self, koloAllReduce(send.data(), recv.data(), kCount, koloInt32, koloSum, self.comm, stream.get()));
    stream.synchronize();
    bool right = true;
    for (std::size_t i = 0; i < kCount; ++i)
      right = right && recv.data()[i] == n * static_cast<int>(i) + n * (n - 1) / 2;
    EXPECT(self, right);
  });
}

TEST_CASE("a group is one launch, however long, and its results are those of its parts", "[mock]") {
  const MockScene scene({.multiprocessors = 4});
  Ranks ranks({0, 0});
  const int operations = GENERATE(1, 3, 8, 9, 40);
  const std::uint64_t before = MockCuda::launches();
  ranks.run([&](Self& self) {
    DeviceBuffer send(100), recv(static_cast<std::size_t>(operations) * 100);
    const CudaStream stream;
    for (int i = 0; i < 100; ++i) send.data()[i] = i * (self.rank + 1);
    EXPECT_OK(self, koloGroupStart());
    for (int i = 0; i < operations; ++i) {
      const std::size_t count = 10 + static_cast<std::size_t>(i);
      EXPECT_OK(self, koloAllReduce(send.data(), recv.data() + 100 * i, count, koloInt32,
                                    i % 2 == 0 ? koloSum : koloMax, self.comm, stream.get()));
    }
    EXPECT_OK(self, koloGroupEnd());
    stream.synchronize();
    bool right = true;
    for (int i = 0; i < operations; ++i) {
      for (int j = 0; j < 10 + i; ++j) right = right && recv.data()[100 * i + j] == (i % 2 == 0 ? 3 * j : 2 * j);
    }
    EXPECT(self, right);
  });
  CHECK(MockCuda::launches() - before == 2);
}

TEST_CASE("what does not belong on a GPU is refused before anything is launched", "[mock]") {
  const MockScene scene({.devices = 2, .multiprocessors = 2});
  Ranks ranks({0, 0});
  const std::uint64_t before = MockCuda::launches();
  DeviceBuffer mine(4), elsewhere(4, 1);
  int host = 0;
  CHECK(koloAllReduce(&host, mine.data(), 1, koloInt32, koloSum, ranks[0], nullptr) == koloInvalidPointer);
  CHECK(messageHas("sendbuf"));
  CHECK(messageHas("host memory: expected memory of device 0"));
  CHECK(koloAllReduce(mine.data(), elsewhere.data(), 1, koloInt32, koloSum, ranks[0], nullptr) == koloInvalidPointer);
  CHECK(messageHas("memory of device 1: expected memory of device 0"));
  CHECK(koloAllReduce(mine.data(), mine.data(), 1, koloInt32, koloSum, ranks[0], nullptr) == koloInvalidUsage);
  CHECK(messageHas("expected a stream of each rank's own"));
  const size_t counts[] = {1, 1};
  int pair[2] = {};
  CHECK(koloAllGatherv(mine.data(), pair, counts, nullptr, koloInt32, ranks[0], nullptr) == koloInvalidPointer);
  CHECK(koloAllToAllv(pair, counts, nullptr, mine.data(), counts, nullptr, koloInt32, ranks[0], nullptr) ==
        koloInvalidPointer);
  CHECK(koloGatherv(pair, 1, nullptr, nullptr, nullptr, koloInt32, 1, ranks[0], nullptr) == koloInvalidPointer);
  const CudaStream stream, foreign(1);
  CHECK(koloAllReduce(mine.data(), mine.data(), 1, koloInt32, koloSum, ranks[0], foreign.get()) == koloInvalidArgument);
  CHECK(messageHas("the stream belongs to a context of device 1"));
  // Requests are the host's, wherever the buffers lie.
  koloRequest_t request = nullptr;
  koloWindow_t window = nullptr;
  const auto isRefused = [](koloResult_t result) { return result == koloUnsupported && messageHas("is on GPUs"); };
  CHECK(isRefused(koloIallReduce(&host, &host, 1, koloInt32, koloSum, ranks[0], &request)));
  CHECK(isRefused(koloIsend(mine.data(), 1, koloInt32, 1, 0, ranks[0], &request)));
  CHECK(isRefused(koloIwindowRegister(ranks[0], mine.data(), 4, &window, &request)));
  REQUIRE(koloGroupStart() == koloSuccess);
  CHECK(koloAllReduce(mine.data(), mine.data(), 1, koloInt32, koloSum, ranks[0], stream.get()) == koloSuccess);
  CHECK(isRefused(koloIgroupEnd(&request)));
  // A vote would wait.
  std::uint64_t any = 7, all = 7;
  CHECK(koloSetMayWait(0) == koloSuccess);
  CHECK(koloVote(1, &any, &all, ranks[0]) == koloInProgress);
  CHECK(koloSetMayWait(1) == koloSuccess);
  CHECK((any == 7 && all == 7));
  CHECK(koloSendTag(mine.data(), 1, koloInt32, 1, 7, ranks[0], stream.get()) == koloUnsupported);
  CHECK(koloRecvTag(mine.data(), 1, koloInt32, KOLO_ANY_SOURCE, 0, nullptr, ranks[0], stream.get()) == koloUnsupported);
  CHECK(messageHas("match in their order"));
  CHECK(koloSend(mine.data(), 1, koloInt32, 0, ranks[0], stream.get()) == koloInvalidUsage);
  CHECK(messageHas("to itself"));
  CHECK(koloSend(&host, 1, koloInt32, 1, ranks[0], stream.get()) == koloInvalidPointer);
  koloRedOp_t op = koloSum;
  REQUIRE(koloRedOpCreate(
              &op, [](void*, const void*, size_t, koloDataType_t, void*) {}, 1, nullptr, ranks[0]) == koloSuccess);
  CHECK(koloAllReduce(mine.data(), mine.data(), 1, koloInt32, op, ranks[0], stream.get()) == koloUnsupported);
  CHECK(messageHas("function of the host's"));
  CHECK(MockCuda::launches() == before);
  // And the communicator goes on.
  ranks.run([&](Self& self) {
    DeviceBuffer value(1);
    const CudaStream stream;
    value.data()[0] = self.rank;
    EXPECT_OK(self, koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, self.comm, stream.get()));
    stream.synchronize();
    EXPECT(self, value.data()[0] == 1);
  });
}

TEST_CASE("a device that is not there, too few blocks, or ranks that mix memories: an error on every rank", "[mock]") {
  struct Bad {
    std::vector<int> devices;
    int multiprocessors;
    const char* text;
  };
  for (const Bad& bad : {Bad{{0, 7}, 4, "device is 7, expected 0..0"}, Bad{{0, 0, 0}, 2, "too few for the 3 ranks"},
                         Bad{{0, -1}, 4, "host memory"}}) {
    INFO(bad.text);
    const MockScene scene({.multiprocessors = bad.multiprocessors});
    Ranks ranks(bad.devices, {.mayFail = true});
    bool said = false;
    for (std::size_t rank = 0; rank < bad.devices.size(); ++rank) {
      CHECK(ranks.results[rank] != koloSuccess);
      INFO(ranks.messages[rank]);
      said = said || ranks.messages[rank].find(bad.text) != std::string::npos;
    }
    CHECK(said);
  }
}

TEST_CASE("each driver call that fails is an error with its name, and everything is given back", "[mock]") {
  for (const char* function :
       {"cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuMemAlloc", "cuMemHostAlloc", "cuEventCreate"}) {
    INFO(function);
    const MockScene scene;
    MockCuda::failFrom(function);
    Ranks ranks({0, 0}, {.mayFail = true});
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(ranks.results[static_cast<std::size_t>(rank)] != koloSuccess);
      CHECK(ranks.messages[static_cast<std::size_t>(rank)].find(function) != std::string::npos);
    }
    MockCuda::failFrom("");
  }
}

TEST_CASE("a device for which there are no kernels: the error says what to build with", "[mock]") {
  const MockScene scene;
  MockCuda::failFrom("cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU);
  const Ranks ranks({0, 0}, {.mayFail = true});
  MockCuda::failFrom("");
  for (const std::string& message : ranks.messages) {
    INFO(message);
    CHECK(message.find("no kernels for device 0: build Kolo") != std::string::npos);
    CHECK(message.find("-Dgpu_architectures=90 (cuModuleLoadData") != std::string::npos);
  }
}

TEST_CASE("links are proven by kernels alone, and so are the kernels", "[mock]") {
  const MockScene scene({.devices = 2});
  MockCuda::failFrom("cuMemcpyDtoHAsync");
  { const Ranks ranks({0, 1}); }
  MockCuda::failFrom("cuMemsetD8Async");
  const Ranks others({0, 1}, {.mayFail = true});
  for (const std::string& message : others.messages) {
    INFO(message);
    CHECK(message.find("cuMemsetD8Async") != std::string::npos);
    CHECK(message.find("the kernels do not run") == std::string::npos);
  }
  MockCuda::failFrom("");
}

TEST_CASE(
    "ranks whose devices have no direct way go through the host's memory, also where the way is broken in silence",
    "[mock]") {
  const bool broken = GENERATE(false, true);
  const bool byName = GENERATE(false, true);
  const MockScene scene({.devices = 2, .peersReach = broken, .peersBroken = broken});
  std::unique_ptr<Ranks> ranks;
  const std::string said = writtenBy([&] {
    ranks = std::make_unique<Ranks>(std::vector<int>{0, 1, 0}, RanksOptions{.transports = byName ? "shm" : ""});
  });
  CHECK((said.find("(PCIe access control, ACS, or an IOMMU between them?)") != std::string::npos) ==
        (broken && !byName));
  ranks->run([&](Self& self) {
    DeviceBuffer value(30'000, self.rank % 2);
    const CudaStream stream(self.rank % 2);
    for (int i = 0; i < 30'000; ++i) value.data()[i] = i + self.rank;
    EXPECT_OK(self, koloAllReduce(value.data(), value.data(), 30'000, koloInt32, koloSum, self.comm, stream.get()));
    stream.synchronize();
    bool right = true;
    for (int i = 0; i < 30'000; ++i) right = right && value.data()[i] == 3 * i + 3;
    EXPECT(self, right);
  });
}

TEST_CASE("a launch that fails ends the communicator on all ranks", "[mock]") {
  const MockScene scene;
  Ranks ranks({0, 0});
  DeviceBuffer value(1);
  const CudaStream stream;
  MockCuda::failFrom("cuLaunchKernelEx");
  CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream.get()) == koloSystemError);
  CHECK(messageHas("cuLaunchKernel"));
  MockCuda::failFrom("");
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(errorHeard(ranks[rank]) == koloSystemError);
    CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[rank], stream.get()) ==
          koloSystemError);
    CHECK(messageHas("rank 0 could not launch operation 1"));
  }
}

TEST_CASE("an asynchronous error of the device is told with the operation it belongs to", "[mock]") {
  const MockScene scene;
  Ranks ranks({0, 0});
  ranks.run([&](Self& self) {
    DeviceBuffer value(1);
    const CudaStream stream;
    EXPECT_OK(self, koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, self.comm, stream.get()));
    stream.synchronize();
  });
  koloResult_t result = koloInternalError;
  REQUIRE(koloCommGetAsyncError(ranks[0], &result) == koloSuccess);
  CHECK(result == koloSuccess);
  MockCuda::breakDevice(CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(koloCommGetAsyncError(ranks[0], &result) == koloSuccess);
  CHECK(result == koloSystemError);
  CHECK(std::string(koloGetLastError(ranks[0])).find("in or before all_reduce (operation 1") != std::string::npos);
}

TEST_CASE("a window is taken away when the kernels that use it have ended", "[mock]") {
  const MockScene scene({.devices = 2});
  Ranks ranks({0, 1});
  ranks.run([&](Self& self) {
    constexpr std::size_t kInts = 200'000;
    void* memory = nullptr;
    EXPECT_OK(self, koloMemAllocOn(&memory, kInts * sizeof(int), self.rank));
    const DeviceInts values(self.rank, memory, kInts);
    values.fill(self.rank + 1);
    const CudaStream stream(self.rank);
    for (int i = 0; i < 20; ++i) {
      koloWindow_t window = nullptr;
      EXPECT_OK(self, koloWindowRegister(self.comm, memory, kInts * sizeof(int), &window));
      EXPECT_OK(self, koloAllReduce(memory, memory, kInts, koloInt32, koloMax, self.comm, stream.get()));
      EXPECT_OK(self, koloWindowDeregister(self.comm, window));  // the peers' mappings with it
    }
    stream.synchronize();
    EXPECT(self, values.read(kInts - 1) == 2);
    EXPECT_OK(self, koloMemFree(memory));
  });
}

TEST_CASE("a device whose streams cannot ring launches everything, and says why there is no resident kernel",
          "[mock]") {
  const MockScene scene({.multiprocessors = 12, .blockThreads = 2, .streamMemoryOps = false});
  std::unique_ptr<Ranks> ranks;
  const std::string said =
      writtenBy([&] { ranks = std::make_unique<Ranks>(oneDevice(2), RanksOptions{.resident = true}); });
  CHECK(said.find("no resident kernel: device 0 has no 64-bit memory operations in streams") != std::string::npos);
  const std::uint64_t before = MockCuda::launches();
  ranks->run([](Self& self) {
    DeviceBuffer value(1);
    const CudaStream stream;
    value->write(1);
    for (int i = 0; i < 3; ++i) {
      EXPECT_OK(self, koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, self.comm, stream.get()));
      stream.synchronize();
    }
    EXPECT(self, value->read(0) == 8);
  });
  CHECK(MockCuda::launches() - before == 6);
}

TEST_CASE("where a launch returns when its kernel has ended, ranks launch everything, and say why", "[mock]") {
  const MockScene scene({.multiprocessors = 12, .blockThreads = 2, .blockingLaunches = true});
  std::unique_ptr<Ranks> ranks;
  const std::string said =
      writtenBy([&] { ranks = std::make_unique<Ranks>(oneDevice(2), RanksOptions{.resident = 2}); });
  CHECK(said.find("no resident kernel: a launch returns only when its kernel has ended (CUDA_LAUNCH_BLOCKING") !=
        std::string::npos);
  const std::uint64_t before = MockCuda::launches();
  ranks->run([](Self& self) {
    const DeviceBuffer value(1);
    const CudaStream stream;
    value->write(1);
    for (int i = 0; i < 3; ++i) {
      EXPECT_OK(self, koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, self.comm, stream.get()));
    }
    stream.synchronize();
    EXPECT(self, value->read(0) == 8);
  });
  CHECK(MockCuda::launches() - before == 6);
}

TEST_CASE("ranks that share a device are told that kernels are loaded lazily, once", "[mock]") {
  const MockScene scene({.lazyLoading = true});
  const std::string alone = writtenBy([] { const Ranks ranks(oneDevice(1)); });
  CHECK(alone.find("CUDA_MODULE_LOADING") == std::string::npos);
  const std::string said = writtenBy([] {
    for (int i = 0; i < 2; ++i) const Ranks ranks(oneDevice(2));
  });
  const std::size_t first = said.find("set CUDA_MODULE_LOADING to EAGER");
  CHECK(first != std::string::npos);
  CHECK(said.find("CUDA_MODULE_LOADING", first + 10) == std::string::npos);
}

TEST_CASE("ranks that share a device are told that streams have fewer queues than there could be, once", "[mock]") {
  const auto saidWith = [](unsigned connections) {
    const MockScene scene({.connections = connections});
    return writtenBy([] {
      for (const int ranks : {1, 2, 2}) const Ranks made(oneDevice(ranks));
    });
  };
  CHECK(saidWith(32).find("CUDA_DEVICE_MAX_CONNECTIONS") == std::string::npos);
  const std::string said = saidWith(8);
  const std::size_t first = said.find("8 queues of the hardware");
  CHECK(first != std::string::npos);
  CHECK(said.find("queues of the hardware", first + 10) == std::string::npos);
}

TEST_CASE("a stream of Kolo's is refused where one of CUDA's is expected", "[mock]") {
  const MockScene scene;
  Ranks ranks({0});
  DeviceBuffer value(1);
  koloStream_t stream = nullptr;
  REQUIRE(koloStreamCreate(&stream) == koloSuccess);
  CHECK(koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream) == koloInvalidHandle);
  CHECK(messageHas("expected a cudaStream_t"));
  const koloArray_t one{0, nullptr, nullptr};
  CHECK(koloBroadcastArray(value.data(), &one, koloInt32, nullptr, nullptr, 0, ranks[0], stream) == koloInvalidHandle);
  CHECK(messageHas("expected a cudaStream_t"));
  CHECK(koloStreamDestroy(stream) == koloSuccess);
}

TEST_CASE("memory of a device is refused by a communicator on the host", "[mock]") {
  const MockScene scene;
  koloUniqueId id;
  REQUIRE(koloGetUniqueId(&id) == koloSuccess);
  koloComm_t comm = nullptr;
  REQUIRE(koloCommInitRank(&comm, 1, id, 0) == koloSuccess);
  {
    DeviceBuffer value(4);
    int host = 3;
    CHECK(koloAllReduce(value.data(), &host, 1, koloInt32, koloSum, comm, nullptr) == koloInvalidPointer);
    CHECK(messageHas("memory of CUDA device 0: expected host memory"));
    CHECK(koloSend(value.data(), 1, koloInt32, 0, comm, nullptr) == koloInvalidPointer);
    CHECK(koloAllReduce(&host, &host, 1, koloInt32, koloSum, comm, nullptr) == koloSuccess);
  }
  CHECK(koloCommDestroy(comm) == koloSuccess);
}

// The device string is all in which the communicators differ: in the configuration, or in the environment.
TEST_CASE("S4.8 S4.9 the backend is chosen by the kind of device, in the configuration or by KOLO_DEVICE", "[mock]") {
  const MockScene scene({.devices = 2, .multiprocessors = 8});
  const bool isInEnvironment = GENERATE(false, true);
  for (const char* const text : {"cpu0", "gpu1", "cuda", "xpu1"}) {
    int device = -9;
    REQUIRE(koloDeviceParse(text, &device, nullptr) == koloSuccess);
    const bool isOnHost = device == KOLO_HOST;
    CHECK(isOnHost == (std::string(text) == "cpu0"));
    const SettingsScope environment({std::pair{"KOLO_DEVICE", std::string(isInEnvironment ? text : "")}});
    koloConfig_t config = defaultConfig();
    if (!isInEnvironment) config.device = device;
    koloComm_t comm = nullptr;
    INFO(text << (isInEnvironment ? " in the environment" : ""));
    REQUIRE(koloCommInitAll(&comm, 1, &config) == koloSuccess);
    const std::uint64_t before = MockCuda::launches();
    {
      const int place = isOnHost ? 0 : device;
      DeviceBuffer onDevice(4, place), result(4, place);
      const CudaStream stream(place);
      int host[4] = {1, 2, 3, 4}, sums[4] = {};
      onDevice->fill(7);
      const koloStream_t where = isOnHost ? nullptr : stream.get();
      const koloResult_t ofHost = koloAllReduce(host, sums, 4, koloInt32, koloSum, comm, where);
      const koloResult_t ofDevice = koloAllReduce(onDevice.data(), result.data(), 4, koloInt32, koloSum, comm, where);
      if (!isOnHost) stream.synchronize();
      CHECK((ofHost == koloSuccess) == isOnHost);
      CHECK((ofDevice == koloSuccess) == !isOnHost);
      if (isOnHost) CHECK(sums[3] == 4);
      else CHECK(result->read(3) == 7);
    }
    CHECK((MockCuda::launches() == before) == isOnHost);
    CHECK(koloCommDestroy(comm) == koloSuccess);
  }
}

TEST_CASE("S4.8 a device string chooses the GPU that a rank's memory is on, and the stream that its operations wait in",
          "[mock]") {
  const MockScene scene({.devices = 2, .multiprocessors = 8});
  std::vector<int> devices(2, -9), numbers(2, -9);
  REQUIRE(koloDeviceParse("gpu1:2", &devices[0], &numbers[0]) == koloSuccess);
  REQUIRE(koloDeviceParse("cuda0:1", &devices[1], &numbers[1]) == koloSuccess);
  Ranks ranks(devices);
  ranks.run([&](Self& self) {
    const auto own = static_cast<std::size_t>(self.rank);
    const int device = devices[own];
    const DeviceBuffer mine(100, device), elsewhere(100, 1 - device);
    const CudaStream streams[] = {CudaStream(device), CudaStream(device), CudaStream(device)};
    const auto isWaiting = [&](const CudaStream& stream) {
      const CurrentDevice current(device);
      return driver().cuStreamQuery(stream.raw()) == CUDA_ERROR_NOT_READY;
    };
    const auto addUp = [&](int* values) {
      return koloAllReduce(values, values, 100, koloInt32, koloSum, self.comm, streams[numbers[own]].get());
    };
    mine->fill(self.rank + 1);
    EXPECT(self, addUp(elsewhere.data()) == koloInvalidPointer);
    EXPECT(self, messageHas(("expected memory of device " + std::to_string(device)).c_str()));
    ranks.together();
    if (self.rank == 0) {
      EXPECT_OK(self, addUp(mine.data()));
      // The other rank has not come.
      for (int i = 0; i < 3; ++i) EXPECT(self, isWaiting(streams[i]) == (i == numbers[own]));
    }
    ranks.together();
    if (self.rank == 1) EXPECT_OK(self, addUp(mine.data()));
    streams[numbers[own]].synchronize();
    EXPECT(self, mine->read(99) == 3);
  });
}

TEST_CASE("communicators share a device's blocks, until there are none left", "[mock]") {
  const MockScene scene({.multiprocessors = 132});
  std::vector<std::unique_ptr<Ranks>> all;
  for (int i = 0; i < 64; ++i) {
    all.push_back(std::make_unique<Ranks>(std::vector<int>{0, 0}, RanksOptions{.mayFail = true}));
    if (all.back()->results[0] != koloSuccess) break;
  }
  INFO(all.size());
  CHECK(all.size() > 8);
  CHECK(all.back()->results[0] == koloUnsupported);
  CHECK(all.back()->messages[1].find("KOLO_GPU_CHANNELS") != std::string::npos);
  all.erase(all.begin());
  Ranks again({0, 0});  // of what the first one has given back
}

// Whether communicators of the ranks on device 0 that wish for so many blocks each can be made one after the other
// while all live.
bool fitsOnDevice(const std::vector<std::vector<int>>& communicators, const std::string& wish) {
  const SettingsScope settings({std::pair{"KOLO_GPU_CHANNELS", wish}});
  std::vector<std::unique_ptr<Ranks>> all;
  for (const std::vector<int>& devices : communicators) {
    all.push_back(std::make_unique<Ranks>(devices, RanksOptions{.mayFail = true}));
    if (all.back()->results[0] != koloSuccess) return false;
  }
  return true;
}

TEST_CASE("a communicator takes as many of a device's blocks as it is told, if they are free", "[mock]") {
  const MockScene scene({.multiprocessors = 132});
  const std::vector<int> one{0}, four{0, 0, 0, 0};
  CHECK(fitsOnDevice({four, one}, "32"));
  CHECK_FALSE(fitsOnDevice({four, one}, "33"));  // four times 33 is all
  // Also of a device that is not empty: three times 44.
  CHECK(fitsOnDevice({one, one, one}, "44"));
  CHECK_FALSE(fitsOnDevice({one, one, one, one}, "44"));
  CHECK(fitsOnDevice({four, four, four, four}, "8"));
}

}  // namespace kolo::test
