// Drivers that are older than the toolkit of the build, or know less than others.
#include <string>
#include <vector>

#include "drivers/cuda/devices.h"
#include "executor/cuda/gpu.h"
#include "gpu/support.h"

namespace kolo::test {
namespace {

constexpr int kCuda122 = 12020;

// The ranks add ones up: at once, and by a graph that is launched twice.
void addOnes(Ranks& ranks) {
  ranks.run([&](Self& self) {
    const DeviceBuffer plain(1000), captured(1);
    const CudaStream stream;
    plain->fill(1);
    captured->write(1);
    EXPECT_OK(self, koloAllReduce(plain.data(), plain.data(), 1000, koloInt32, koloSum, self.comm, stream.get()));
    ranks.together();
    const Graph graph(stream, [&] {
      for (int i = 0; i < 2; ++i) {
        EXPECT_OK(self,
                  koloAllReduce(captured.data(), captured.data(), 1, koloInt32, koloSum, self.comm, stream.get()));
      }
    });
    ranks.together();
    for (int replay = 0; replay < 2; ++replay) graph.launch(stream);
    stream.synchronize();
    EXPECT(self, plain->read() == std::vector<int>(1000, self.ranks));
    EXPECT(self, captured->read(0) == self.ranks * self.ranks * self.ranks * self.ranks);
  });
}

CUresult eleven(int* version) {
  *version = 11080;
  return CUDA_SUCCESS;
}
CUresult twelve(int* version) {
  *version = kCuda122;
  return CUDA_SUCCESS;
}
CUresult findsNoLaunch(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* found) {
  const bool isThere = name != std::string("cuLaunchKernelEx");
  *function = isThere ? reinterpret_cast<void*>(&eleven) : nullptr;
  *found = isThere ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  return CUDA_SUCCESS;
}

}  // namespace

TEST_CASE("ranks use a driver of CUDA 12.2, with graphs and resident kernels too", "[mock]") {
  const int resident = GENERATE(0, 1);
  MockCuda older = mockFor(2, resident != 0);
  older.version = kCuda122;
  const MockScene scene(older);
  CHECK(driver().version == kCuda122);
  Ranks ranks(oneDevice(2), {.resident = resident});
  addOnes(ranks);
}

TEST_CASE("a driver that is too old is an error that says which one is expected", "[mock]") {
  const std::string expected = "expected one of CUDA 12.2 or newer (NVIDIA's 535 or newer)";
  const Result<drivers::CudaDriver> old = drivers::cudaFunctions(eleven, findsNoLaunch),
                                    silent = drivers::cudaFunctions(nullptr, nullptr),
                                    hidden = drivers::cudaFunctions(twelve, nullptr),
                                    whole = drivers::cudaFunctions(twelve, findsNoLaunch);
  CHECK(old.status().code() == koloUnsupported);
  CHECK(old.status().message() == "no CUDA device: the driver is of CUDA 11.8, which is too old; " + expected);
  CHECK(silent.status().message() == "no CUDA device: libcuda.so.1 does not tell its version (error 500)");
  CHECK(hidden.status().message() == "no CUDA device: the driver, of CUDA 12.2, lacks cuGetProcAddress_v2");
  CHECK(whole.status().message() == "no CUDA device: the driver, of CUDA 12.2, lacks cuLaunchKernelEx");
}

TEST_CASE("kernels that are too new for the driver: the error names both versions", "[mock]") {
  const bool isPtx = GENERATE(false, true);
  MockCuda properties;
  properties.version = isPtx ? CUDA_VERSION : kCuda122;
  const MockScene scene(properties);
  MockCuda::failFrom("cuModuleLoadData", isPtx ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_ERROR_INVALID_IMAGE);
  const Ranks ranks({0, 0}, {.mayFail = true});
  MockCuda::failFrom("");
  for (const std::string& message : ranks.messages) {
    INFO(message);
    CHECK(message.find("no kernels for device 0: build Kolo") != std::string::npos);
    CHECK((message.find("the driver: it is of CUDA " + drivers::cudaVersionText(properties.version) +
                        ", and the toolkit") != std::string::npos) == (isPtx || CUDA_VERSION >= 13000));
  }
}

TEST_CASE("a driver that refuses to launch in a domain of memory synchronisation gets launches without one", "[mock]") {
  MockCuda refusing = mockFor(2);
  refusing.launchesInDomains = false;
  const MockScene scene(refusing);
  Ranks ranks(oneDevice(2));
  addOnes(ranks);
  CHECK(MockCuda::remoteLaunches() == 0);
}

TEST_CASE("a device that tells neither its name nor its clocks is used all the same", "[mock]") {
  MockCuda silent = mockFor(2);
  silent.describesItself = false;
  const MockScene scene(silent);
  const auto devices = drivers::cudaDevices();
  REQUIRE(devices.ok());
  REQUIRE(devices.value().size() == 1);
  CHECK(devices.value()[0].name == "device 0");
  CHECK(devices.value()[0].pciBusId == "device 0");
  CHECK(devices.value()[0].memoryBytes == 0);
  Ranks ranks(oneDevice(2));
  addOnes(ranks);
}

// The ranks join within four seconds or are late; the driver takes five.
TEST_CASE("ranks wait for another one whose driver assembles the kernels", "[mock]") {
  const SettingsScope settings({std::pair{"KOLO_INIT_TIMEOUT_MS", std::string("4000")}});
  const bool sharesDevice = GENERATE(false, true);
  const MockScene scene({.devices = 2,
                         .multiprocessors = 4,
                         .blockThreads = 2,
                         .assembledDevice = 1,
                         .assembly = std::chrono::seconds(5)});
  Ranks ranks(sharesDevice ? std::vector{1, 1} : std::vector{0, 1});
  ranks.run([&](Self& self) {
    const int device = sharesDevice ? 1 : self.rank;
    const DeviceBuffer value(1, device);
    const CudaStream stream(device);
    value->write(1);
    EXPECT_OK(self, koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, self.comm, stream.get()));
    stream.synchronize();
    EXPECT(self, value->read(0) == 2);
  });
}

TEST_CASE("where the driver does not tell whether there is MPS, processes share a device's blocks", "[mock]") {
  const bool isOlder = GENERATE(false, true);
  MockCuda properties;
  if (isOlder) properties.version = kCuda122;
  const MockScene scene(properties);
  const Result<std::shared_ptr<executor::cuda::Gpu>> gpu = executor::cuda::Gpu::open(0);
  REQUIRE(gpu.ok());
  CHECK(gpu.value()->isSharedByProcesses() == isOlder);
}

}  // namespace kolo::test
