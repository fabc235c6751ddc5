#include "driver_probe.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "executor/cuda/resident.h"
#include "measure_ranks.h"
#include "mock_cuda/cuda_for_tests.h"

extern "C" const unsigned char koloKernels[];  // the image that the library loads

namespace kolo::test {
namespace {

using executor::cuda::ChannelState;
using executor::cuda::Control;
using executor::cuda::LaunchParams;
using executor::cuda::Resident;
using executor::cuda::ServeParams;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRuns(100), kBegins(5);
constexpr std::size_t kBytes = 4 << 20;

double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

// The library's kernels, loaded once more.
class Kernels {
 public:
  Kernels() {
    check(driver().cuModuleLoadData(&module_, koloKernels), "cuModuleLoadData");
    check(driver().cuModuleGetFunction(&runBlocks_, module_, "koloRunBlocks"), "cuModuleGetFunction");
    check(driver().cuModuleGetFunction(&moveLine_, module_, "koloMoveLine"), "cuModuleGetFunction");
  }
  ~Kernels() { unload(); }
  Kernels(const Kernels&) = delete;
  void unload() {
    if (module_ != nullptr) check(driver().cuModuleUnload(module_), "cuModuleUnload");
    module_ = nullptr;
  }

  CUresult run(const LaunchParams& none, const ServeParams& serve, CUstream stream) const {
    void* arguments[] = {const_cast<LaunchParams*>(&none), const_cast<ServeParams*>(&serve)};
    return cudaForTests().cuLaunchKernel(runBlocks_, 1, 1, 1, executor::cuda::kBlockThreads, 1, 1, 0, stream, arguments,
                                         nullptr);
  }
  // A line, onto the one behind it.
  CUresult moveLine(unsigned char* at, CUstream stream) const {
    unsigned char* to = at + 64;
    void* arguments[] = {&to, &at};
    return cudaForTests().cuLaunchKernel(moveLine_, 1, 1, 1, executor::cuda::kLineWords, 1, 1, 0, stream, arguments,
                                         nullptr);
  }

 private:
  CUmodule module_ = nullptr;
  CUfunction runBlocks_ = nullptr, moveLine_ = nullptr;
};

class Probe {
 public:
  explicit Probe(int device) : current_(device) {
    void* memory = nullptr;
    check(driver().cuMemHostAlloc(&memory, sizeof(Shared), CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    shared_ = new (memory) Shared{};
    for (CUstream* stream : {&spins_, &other_}) {
      check(driver().cuStreamCreate(stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    check(kernels_.moveLine(shared_->lines, other_), "cuLaunchKernel");  // loads what is loaded lazily
    device::storeRelease(shared_->control.quit, 1);
    spin();
    stop();
  }
  ~Probe() {
    for (const CUstream stream : {spins_, other_}) check(driver().cuStreamDestroy(stream), "cuStreamDestroy");
    check(driver().cuMemFreeHost(shared_), "cuMemFreeHost");
  }
  Probe(const Probe&) = delete;

  int device() const { return current_.device; }
  CUstream other() const { return other_; }
  unsigned char* lines() const { return shared_->lines; }

  ProbedCall time(const char* name, const std::function<CUresult()>& call) {
    spin();
    std::this_thread::sleep_for(kBegins);
    Clock::duration others{};
    std::thread launches([&] {
      const Current current(device());
      std::this_thread::sleep_for(kBegins);
      const Clock::time_point begin = Clock::now();
      check(kernels_.moveLine(shared_->lines, other_), "cuLaunchKernel");
      others = Clock::now() - begin;
    });
    const Clock::time_point begin = Clock::now();
    check(call(), name);
    const Clock::duration took = Clock::now() - begin;
    const bool hasEnded = device::loadAcquire(shared_->control.asleep) == instance_;  // [asleep]
    launches.join();
    stop();
    return {name, microseconds(took), hasEnded && took > kRuns / 2, hasEnded && others > kRuns / 2};
  }

 private:
  // The device's context, for the thread.
  struct Current {
    explicit Current(int number) : device(number), scope(number) {}
    int device;
    CurrentDevice scope;
  };
  struct Shared {
    Control control;
    ChannelState channel;
    Resident resident;
    alignas(64) unsigned char lines[128];
  };

  // The resident kernel, to which nothing is given.
  void spin() {
    const ServeParams serve{.control = &shared_->control,
                            .channels = &shared_->channel,
                            .resident = &shared_->resident,
                            .places = nullptr,
                            .instance = ++instance_,
                            .first = 1,
                            .idleNs = static_cast<std::uint64_t>(std::chrono::nanoseconds(kRuns).count())};
    LaunchParams none{};
    none.control = &shared_->control;
    check(kernels_.run(none, serve, spins_), "cuLaunchKernel");
  }
  void stop() {
    device::storeRelease(shared_->control.quit, 1);  // [quit]
    for (const CUstream stream : {spins_, other_}) check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
    device::storeRelease(shared_->control.quit, 0);
  }

  const Current current_;
  const Kernels kernels_;
  Shared* shared_ = nullptr;
  CUstream spins_ = nullptr, other_ = nullptr;
  std::uint64_t instance_ = 0;
};

using Tell = std::function<void(const ProbedCall&)>;

void probeMemory(Probe& probe, const Tell& tell) {
  CUdeviceptr memory = 0;
  void* pinned = nullptr;
  tell(probe.time("cuMemAlloc", [&] { return driver().cuMemAlloc(&memory, kBytes); }));
  tell(probe.time("cuMemFree", [&] { return driver().cuMemFree(memory); }));
  tell(
      probe.time("cuMemHostAlloc", [&] { return driver().cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_PORTABLE); }));
  tell(probe.time("cuMemFreeHost", [&] { return driver().cuMemFreeHost(pinned); }));
  void* const ordinary = std::aligned_alloc(4096, kBytes);
  tell(probe.time("cuMemHostRegister",
                  [&] { return driver().cuMemHostRegister(ordinary, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP); }));
  tell(probe.time("cuMemHostUnregister", [&] { return driver().cuMemHostUnregister(ordinary); }));
  std::free(ordinary);
}

// As src/memory/device_memory.cc has it.
void probeMappings(Probe& probe, const Tell& tell) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = probe.device()};
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  std::size_t bytes = 0;
  check(driver().cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity");
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  tell(probe.time("cuMemCreate", [&] { return driver().cuMemCreate(&handle, bytes, &properties, 0); }));
  tell(probe.time("cuMemAddressReserve", [&] { return driver().cuMemAddressReserve(&address, bytes, 0, 0, 0); }));
  tell(probe.time("cuMemMap", [&] { return driver().cuMemMap(address, bytes, 0, handle, 0); }));
  tell(probe.time("cuMemSetAccess", [&] { return driver().cuMemSetAccess(address, bytes, &access, 1); }));
  tell(probe.time("cuMemUnmap", [&] { return driver().cuMemUnmap(address, bytes); }));
  tell(probe.time("cuMemAddressFree", [&] { return driver().cuMemAddressFree(address, bytes); }));
  tell(probe.time("cuMemRelease", [&] { return driver().cuMemRelease(handle); }));
}

void probeObjects(Probe& probe, const Tell& tell) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  tell(probe.time("cuStreamCreate", [&] { return driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); }));
  tell(probe.time("cuStreamDestroy", [&] { return driver().cuStreamDestroy(stream); }));
  tell(probe.time("cuEventCreate", [&] { return driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING); }));
  tell(probe.time("cuEventDestroy", [&] { return driver().cuEventDestroy(event); }));
}

void probeCopies(Probe& probe, const Tell& tell) {
  CUdeviceptr memory = 0;
  check(driver().cuMemAlloc(&memory, kBytes), "cuMemAlloc");
  const std::vector<unsigned char> ordinary(kBytes);
  const auto upload = [&] { return driver().cuMemcpyHtoDAsync(memory, ordinary.data(), kBytes, probe.other()); };
  tell(probe.time("cuMemsetD8Async", [&] { return driver().cuMemsetD8Async(memory, 0, kBytes, probe.other()); }));
  tell(probe.time("cuMemcpyHtoDAsync from ordinary memory", upload));
  tell(
      probe.time("cuStreamSynchronize of an idle stream", [&] { return driver().cuStreamSynchronize(probe.other()); }));
  check(driver().cuMemFree(memory), "cuMemFree");
}

void probeModules(Probe& probe, const Tell& tell) {
  std::unique_ptr<Kernels> again;
  tell(probe.time("cuModuleLoadData", [&] {
    again = std::make_unique<Kernels>();
    return CUDA_SUCCESS;
  }));
  tell(probe.time("the first launch of a kernel", [&] { return again->moveLine(probe.lines(), probe.other()); }));
  tell(probe.time("cuModuleUnload", [&] {
    again->unload();
    return CUDA_SUCCESS;
  }));
}

}  // namespace

void probeDriver(int device, const Tell& tell) {
  Probe probe(device);
  probeMemory(probe, tell);
  probeMappings(probe, tell);
  probeObjects(probe, tell);
  probeCopies(probe, tell);
  probeModules(probe, tell);
}

}  // namespace kolo::test
