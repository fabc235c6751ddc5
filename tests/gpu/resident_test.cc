// Operations that follow each other in a stream and are given to the resident kernel, as a program may ask for
// (resident = 2), and the order in which the kernel says that an operation is done.
#include "executor/cuda/resident.h"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/support.h"

extern "C" const unsigned char koloKernels[];  // the image that the library loads

namespace kolo::test {
namespace {

constexpr MockCuda kForResident{.multiprocessors = 12, .blockThreads = 2};  // for two ranks and their resident kernels

// A page whose first store is noticed: what `watched` was then.
struct Page {
  void* memory = nullptr;
  const device::Counter* watched = nullptr;
  std::uint64_t seen = 0;
  volatile std::sig_atomic_t stores = 0;
};
Page page;

void noticeStore(int, siginfo_t*, void*) {
  page.seen = device::loadRelaxed(*page.watched);
  page.stores = page.stores + 1;
  if (mprotect(page.memory, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), PROT_READ | PROT_WRITE) != 0) std::abort();
}

}  // namespace

TEST_CASE("a resident kernel tells the stream that an operation is done before it tells the host, which is far away",
          "[mock]") {
  using namespace executor::cuda;
  const MockScene scene({.blockThreads = 1});
  const CurrentDevice current(0);
  const CudaStream stream;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  CUDA_OK(driver().cuModuleLoadData(&module, koloKernels));
  CUDA_OK(driver().cuModuleGetFunction(&kernel, module, "koloRunBlocks"));
  const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  page = {};
  page.memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page.memory != MAP_FAILED);
  auto* const control = new (page.memory) Control{};
  device::storeRelaxed(control->quit, 1);
  ChannelState channel{};
  Resident resident{};
  const auto places = std::make_unique<LaunchParams[]>(kResidentPlaces);
  places[1] = LaunchParams{};
  places[1].control = control;
  places[1].channels = &channel;
  device::storeRelaxed(resident.rung, ringOf(1, true));
  page.watched = &resident.done;

  struct sigaction notices = {};
  struct sigaction before = {};
  notices.sa_sigaction = noticeStore;
  notices.sa_flags = SA_SIGINFO;
  REQUIRE(sigaction(SIGSEGV, &notices, &before) == 0);
  REQUIRE(mprotect(page.memory, bytes, PROT_READ) == 0);
  LaunchParams none{};
  none.control = control;
  ServeParams serve{.control = control,
                    .channels = &channel,
                    .resident = &resident,
                    .places = places.get(),
                    .instance = 1,
                    .first = 1,
                    .idleNs = 0};
  void* arguments[] = {&none, &serve};
  CUDA_OK(cudaForTests().cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream.raw(), arguments, nullptr));
  stream.synchronize();
  REQUIRE(sigaction(SIGSEGV, &before, nullptr) == 0);
  CHECK(device::loadRelaxed(resident.done) == 1);
  CHECK(device::loadRelaxed(control->completed) == 1);
  CHECK(page.stores == 1);
  CHECK(page.seen == 1);  // done, when the first store to the host's memory was made
  munmap(page.memory, bytes);
  CUDA_OK(driver().cuModuleUnload(module));
}

TEST_CASE("a resident kernel takes operations that follow each other in a stream, if the program or the user lets it",
          "[mock]") {
  const bool byUser = GENERATE(false, true);
  const std::vector<std::pair<const char*, std::string>> settings = {{"KOLO_TEST_RESIDENT_IDLE_US", "1000000"},
                                                                     {"KOLO_RESIDENT", byUser ? "2" : "0"}};
  const SettingsScope longest(settings);
  const MockScene scene(kForResident);
  Ranks ranks(oneDevice(2), {.resident = byUser ? KOLO_CONFIG_UNDEF_INT : 2});
  const DeviceBuffer values(2);
  const CudaStream streams[2];
  values->fill(1);
  const std::uint64_t before = MockCuda::launches();
  for (int i = 0; i < 20; ++i) {
    for (int rank = 0; rank < 2; ++rank) {
      int* const value = values.data() + rank;
      REQUIRE_OK(koloAllReduce(value, value, 1, koloInt32, koloSum, ranks[rank], streams[rank].get()));
    }
  }
  for (const CudaStream& stream : streams) stream.synchronize();
  CHECK(values->read() == std::vector<int>{1 << 20, 1 << 20});
  CHECK(MockCuda::launches() - before == 2);  // of 40 operations: each rank's resident kernel
}

TEST_CASE("a resident kernel takes as many operations as a rank may be ahead, and those behind a graph that is gone",
          "[mock]") {
  const std::vector<std::pair<const char*, std::string>> settings = {{"KOLO_TEST_RESIDENT_IDLE_US", "1000000"}};
  const SettingsScope longest(settings);
  const MockScene scene(kForResident);
  constexpr int kCalls = 100;
  Ranks ranks(oneDevice(2), {.resident = 2});
  const DeviceBuffer values(2);
  const CudaStream streams[2];
  values->fill(1);
  const auto call = [&](int rank) {
    int* const value = values.data() + rank;
    REQUIRE_OK(koloAllReduce(value, value, 1, koloInt32, koloMax, ranks[rank], streams[rank].get()));
  };
  const auto callAll = [&] {  // how many launches there are in that
    const std::uint64_t before = MockCuda::launches();
    for (int rank = 0; rank < 2; ++rank) {
      for (int i = 0; i < kCalls; ++i) call(rank);
    }
    for (const CudaStream& stream : streams) stream.synchronize();
    return MockCuda::launches() - before;
  };
  CHECK(callAll() == 2);
  {
    std::unique_ptr<Graph> graphs[2];
    for (int rank = 0; rank < 2; ++rank) graphs[rank] = std::make_unique<Graph>(streams[rank], [&] { call(rank); });
    for (int rank = 0; rank < 2; ++rank) graphs[rank]->launch(streams[rank]);
    CHECK(callAll() > 2);  // a replay may stand before, in whatever stream
  }
  const auto end = std::chrono::steady_clock::now() + kSoon;
  std::uint64_t launches = kCalls;
  while (launches > 2 && std::chrono::steady_clock::now() < end)
    launches = callAll();  // the driver says so when it likes
  CHECK(launches <= 2);
}

// A tool may come to a program that runs.
TEST_CASE("an operation is there for its resident kernel before that is launched, for the launch may return late",
          "[mock]") {
  const MockScene scene(kForResident);
  Ranks ranks(oneDevice(2), {.resident = 2});
  MockCuda::blockLaunches(true);
  ranks.run([&](Self& self) {
    const DeviceBuffer value(1);
    const CudaStream stream;
    value->write(1);
    for (int i = 0; i < 5; ++i) {
      EXPECT_OK(self, koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, self.comm, stream.get()));
    }
    stream.synchronize();
    EXPECT(self, value->read(0) == 32);
  });
  CHECK(MockCuda::mostBlocksAtOnce() > 2);  // resident kernels
}

TEST_CASE("a resident kernel's operation comes after what stands before it in its stream, and before what comes later",
          "[device]") {
  const DeviceScene scene(kForResident);
  Ranks ranks(oneDevice(2), {.resident = 2});
  const DeviceBuffer value(2), other(1), copies(2), gate(2);
  const CudaStream stream, otherStream, opener;
  const auto at = [](const DeviceBuffer& buffer, std::size_t place = 0) {
    return reinterpret_cast<CUdeviceptr>(buffer.data() + place);
  };
  const auto call = [&](int rank) {
    const DeviceBuffer& buffer = rank == 0 ? value : other;
    REQUIRE_OK(koloAllReduce(buffer.data(), buffer.data(), 1, koloInt32, koloSum, ranks[rank],
                             (rank == 0 ? stream : otherStream).get()));
  };
  gate->fill(0);
  value->write(1);
  other->write(1);
  const CurrentDevice current(testDevice());
  for (int rank = 0; rank < 2; ++rank) call(rank);
  CUDA_OK(driver().cuStreamWaitValue64(stream.raw(), at(gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
  CUDA_OK(driver().cuMemcpyDtoDAsync(at(copies), at(value), sizeof(int), stream.raw()));
  CUDA_OK(driver().cuMemsetD8Async(at(value), 1, sizeof(int), stream.raw()));
  for (int rank = 0; rank < 2; ++rank) call(rank);
  CUDA_OK(driver().cuMemcpyDtoDAsync(at(copies, 1), at(value), sizeof(int), stream.raw()));
  CUDA_OK(driver().cuMemsetD8Async(at(value), 0, sizeof(int), stream.raw()));
  CUDA_OK(driver().cuStreamWriteValue64(opener.raw(), at(gate), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  stream.synchronize();
  otherStream.synchronize();
  CHECK(copies->read() == std::vector<int>{2, 0x01010101 + 2});
  CHECK(value->read(0) == 0);
  CHECK(other->read(0) == 0x01010101 + 2);
}

}  // namespace kolo::test
