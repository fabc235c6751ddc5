#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "driver_probe.h"
#include "executor/cuda/gpu.h"
#include "measure.h"
#include "measure_ranks.h"
#include "memory/device_memory.h"
#include "mock_cuda/cuda_for_tests.h"

namespace kolo::test {
namespace {

double g_copyGbps = 0;

// GB/s (10^9) of bytes read and written by the device's own copy.
double copyBandwidth(std::size_t bytes) {
  using Clock = std::chrono::steady_clock;
  CUdeviceptr from = 0, to = 0;
  check(driver().cuMemAlloc(&from, bytes), "cuMemAlloc");
  check(driver().cuMemAlloc(&to, bytes), "cuMemAlloc");
  CUstream stream = nullptr;
  check(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  double best = 0;
  for (int round = 0; round < 6; ++round) {
    constexpr int kCopies = 8;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kCopies; ++i) check(driver().cuMemcpyDtoDAsync(to, from, bytes, stream), "cuMemcpyDtoDAsync");
    check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, 2.0 * static_cast<double>(bytes) * kCopies / seconds / 1e9);
  }
  check(driver().cuStreamDestroy(stream), "cuStreamDestroy");
  check(driver().cuMemFree(from), "cuMemFree");
  check(driver().cuMemFree(to), "cuMemFree");
  return best;
}

// MiB of the device that are not free.
double takenMib() {
  std::size_t free = 0, total = 0;
  check(cudaForTests().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return static_cast<double>(total - free) / static_cast<double>(kMiB);
}

// Of one step: what it has taken beyond the step before.
class Taking {
 public:
  void step(const char* what) {
    const double now = takenMib();
    Line("memory").add("step", what).add("taken_mib", now - before_, 1).print();
    before_ = now;
  }

 private:
  double before_ = 0;
};

struct NamedAttribute {
  const char* name;
  CUdevice_attribute which;
};
constexpr std::array kAttributes = {
    NamedAttribute{"multiprocessors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    NamedAttribute{"l2_bytes", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
    NamedAttribute{"memory_khz", CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
    NamedAttribute{"memory_bits", CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
    NamedAttribute{"sync_domains", CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT},
    NamedAttribute{"stream_memory_ops_64", CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS},
    NamedAttribute{"multicast", CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED},
    NamedAttribute{"fabric_handles", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED},
    NamedAttribute{"file_handles", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
    NamedAttribute{"mps", CU_DEVICE_ATTRIBUTE_MPS_ENABLED},
};

// What the driver says of the device; -1: it does not tell.
void printAttributes(int device) {
  Line line("attributes");
  line.add("cuda", drivers::cudaVersionText(driver().version));
  for (const NamedAttribute& attribute : kAttributes) {
    int value = -1;
    if (driver().cuDeviceGetAttribute(&value, attribute.which, device) != CUDA_SUCCESS) value = -1;
    line.add(attribute.name, value);
  }
  line.print();
}

}  // namespace

double copyGbps() { return g_copyGbps; }

// Copies too large for any cache; the best is what the others are compared with.
void measureCopy(const Options& options) {
  nowMeasuring("copy");
  const CurrentDevice current(options.device);
  for (const std::size_t bytes :
       options.quick ? std::vector<std::size_t>{kMiB} : std::vector<std::size_t>{256 * kMiB, 1024 * kMiB}) {
    const double gbps = copyBandwidth(bytes);
    g_copyGbps = std::max(g_copyGbps, gbps);
    Line("copy").add("bytes", bytes).add("gbps", gbps, 1).print();
  }
}

// What a process takes of the device: the context alone, then the kernels with the local memory of all threads that may
// run at once, then ranks.
void measureMemory(const Options& options) {
  nowMeasuring("memory");
  const CurrentDevice current(options.device);
  printAttributes(options.device);
  Taking taking;
  taking.step("context");
  const auto gpu = executor::cuda::Gpu::open(options.device);
  if (!gpu.ok()) fail(gpu.status().message());
  taking.step("kernels");
  onThreads({.device = options.device, .ranks = 2}, [&](Rank& rank) {
    const auto step = [&](const char* what) {
      rank.synchronize();
      rank.meeting.wait();
      if (rank.number == 0) taking.step(what);
      rank.meeting.wait();
    };
    step("2 ranks");
    const Buffers buffers(rank, kMiB, false);
    step("2 ranks' buffers of 1 MiB");
    check(koloAllReduce(buffers.send(), buffers.recv(), kMiB / sizeof(float), koloFloat32, koloSum, rank.comm,
                        rank.koloStream()),
          "koloAllReduce");
    step("their first all_reduce");
  });
  taking.step("given back by the ranks");
}

// What a NIC could do with this device's memory, as far as that can be known without one: a piece that is made as
// arenas are is exported. What the driver says that it can do must be possible.
void tryGpuDirect(const Options& options) {
  nowMeasuring("gpudirect");
  const Result<memory::RdmaAbilities> abilities = memory::rdmaAbilities(options.device);
  if (!abilities.ok()) fail(abilities.status().message());
  const Result<memory::DeviceMemory> arena = memory::DeviceMemory::create(options.device, 64 * kMiB, true);
  if (!arena.ok()) fail(arena.status().message());
  const auto begin = std::chrono::steady_clock::now();
  const Result<memory::File> buffer = arena.value().dmaBuf();
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  const off_t bytes =
      buffer.ok() ? lseek(buffer.value().fd(), 0, SEEK_END) : 0;  // the kernel tells a dma-buf's size so
  const memory::RdmaAbilities& can = abilities.value();
  Line("gpudirect")
      .add("dma_buf", can.dmaBuf)
      .add("peer_memory", can.peerMemory)
      .add("orders_writes", can.ordersWrites)
      .add("exported", static_cast<std::size_t>(std::max<off_t>(bytes, 0)))
      .add("export_us", us, 1)
      .add("why", buffer.status().message())
      .print();
  if (!can.dmaBuf || bytes == static_cast<off_t>(arena.value().bytes())) return;
  fail("the driver says that it exports dma-bufs, and does not, or not whole: " + buffer.status().message());
}

void measureWaits(const Options& options) {
  nowMeasuring("waits: calls of the driver beside a kernel that runs");
  probeDriver(options.device, [](const ProbedCall& call) {
    Line("waits")
        .add("call", call.name)
        .add("took_us", call.us, 1)
        .add("waits", call.waits)
        .add("holds_up", call.holdsUp)
        .print();
  });
}

}  // namespace kolo::test
