// What the planner has to know of a device, and what its driver's calls cost: each figure is of one thing alone.
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu_probe/probe.h"
#include "measure.h"
#include "measure_ranks.h"
#include "mock_cuda/cuda_for_tests.h"

extern "C" const unsigned char koloProbeKernels[];

namespace kolo::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kThreads = 512;        // of a block, as in the library's launches
constexpr unsigned kProbePattern = 0x3c;  // a byte of all sources: a number of each datatype, and so are its sums

double microseconds(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Memory of the device, or of the host and pinned, which stands in the place of a far peer's.
class ProbeMemory {
 public:
  ProbeMemory(std::size_t bytes, bool onHost) : onHost_(onHost) {
    if (onHost) {
      void* memory = nullptr;
      check(driver().cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
      memory_ = reinterpret_cast<CUdeviceptr>(memory);
      std::memset(memory, 0, bytes);
    } else {
      check(driver().cuMemAlloc(&memory_, bytes), "cuMemAlloc");
    }
  }
  ~ProbeMemory() {
    if (onHost_) check(driver().cuMemFreeHost(reinterpret_cast<void*>(memory_)), "cuMemFreeHost");
    else check(driver().cuMemFree(memory_), "cuMemFree");
  }
  ProbeMemory(const ProbeMemory&) = delete;
  unsigned char* data() const { return reinterpret_cast<unsigned char*>(memory_); }

 private:
  bool onHost_;
  CUdeviceptr memory_ = 0;
};

class MicroProbe {
 public:
  explicit MicroProbe(const Options& options)
      : current_(options.device), quick_(options.quick), times_(sizeof(ProbeTimes) * kMostBlocks, true) {
    check(driver().cuModuleLoadData(&module_, koloProbeKernels), "cuModuleLoadData of the probe");
    check(driver().cuModuleGetFunction(&kernel_, module_, "koloProbe"), "cuModuleGetFunction");
    check(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    int processors = 0;
    check(driver().cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, options.device),
          "cuDeviceGetAttribute");
    processors_ = std::min(processors, kMostBlocks);
    (void)run({.what = Probed::kNothing}, 1);  // the first launch makes what the driver needs
  }
  ~MicroProbe() {
    check(driver().cuStreamDestroy(stream_), "cuStreamDestroy");
    check(driver().cuModuleUnload(module_), "cuModuleUnload");
  }
  MicroProbe(const MicroProbe&) = delete;

  bool quick() const { return quick_; }
  int processors() const { return processors_; }
  CUstream stream() const { return stream_; }

  void enqueue(ProbeParams params, int blocks) const {
    void* arguments[] = {&params};
    check(cudaForTests().cuLaunchKernel(kernel_, static_cast<unsigned>(blocks), 1, 1, kThreads, 1, 1, 0, stream_,
                                        arguments, nullptr),
          "cuLaunchKernel");
  }
  void synchronize() const { check(driver().cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

  // Microseconds from the first block's begin to the last one's end, by the device's clock; the least of some launches.
  double run(ProbeParams params, int blocks) const {
    auto* const times = reinterpret_cast<ProbeTimes*>(times_.data());
    params.times = times;
    std::uint64_t least = ~std::uint64_t{0};
    for (int launch = 0; launch < (quick_ ? 1 : 4); ++launch) {
      if (params.what == Probed::kFlags || params.what == Probed::kPackets) clear(params.memory, 128);
      enqueue(params, blocks);
      synchronize();
      std::uint64_t begin = times[0].begin, end = times[0].end;
      for (int block = 0; block < blocks; ++block) {
        if (times[block].gaveUp != 0) fail("a block had no answer of another");
        begin = std::min(begin, times[block].begin);
        end = std::max(end, times[block].end);
      }
      least = std::min(least, end - begin);
    }
    return static_cast<double>(std::max<std::uint64_t>(least, 1)) / 1e3;  // a clock may tick coarsely
  }

  void clear(unsigned char* memory, std::size_t bytes, unsigned char value = 0) const {
    check(driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), value, bytes, stream_), "cuMemsetD8Async");
    synchronize();
  }

 private:
  static constexpr int kMostBlocks = 256;

  const CurrentDevice current_;
  bool quick_;
  ProbeMemory times_;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  CUstream stream_ = nullptr;
  int processors_ = 0;
};

const char* placeOf(bool onHost) { return onHost ? "host" : "device"; }

// The fence beside none, one and many stores of each thread, to this device's memory and to the host's.
void probeFences(const MicroProbe& probe) {
  const int rounds = probe.quick() ? 3 : 200;
  for (const bool onHost : {false, true}) {
    const ProbeMemory memory(64 * kThreads * device::kPackBytes, onHost), flag(64, onHost);
    for (const int stores : {0, 1, 8, 64}) {
      nowMeasuring("micro: a fence beside " + std::to_string(stores) + " stores");
      ProbeParams params{.what = Probed::kStores,
                         .rounds = rounds,
                         .stores = stores,
                         .memory = memory.data(),
                         .flag = reinterpret_cast<device::Counter*>(flag.data())};
      const double without = probe.run(params, 1) / rounds;
      params.what = Probed::kFence;
      const double with = probe.run(params, 1) / rounds;
      Line("micro")
          .add("what", "fence")
          .add("place", placeOf(onHost))
          .add("stores", stores)
          .add("us", with - without, 3)
          .add("beside_us", without, 3)
          .print();
    }
  }
}

// One way between two blocks.
void probeTurns(const MicroProbe& probe) {
  const int rounds = probe.quick() ? 3 : 1000;
  for (const bool onHost : {false, true}) {
    const ProbeMemory memory(128, onHost);
    for (const Probed what : {Probed::kFlags, Probed::kPackets}) {
      const char* const by = what == Probed::kFlags ? "flag" : "packet";
      nowMeasuring(std::string("micro: turns by ") + by);
      const double us = probe.run({.what = what, .rounds = rounds, .memory = memory.data()}, 2) / rounds / 2;
      Line("micro").add("what", "hop").add("place", placeOf(onHost)).add("by", by).add("us", us, 3).print();
    }
  }
}

// The sum of so many numbers of the pattern, which is exact: their number is a power of two, so the exponent grows.
std::uint32_t sumBits(koloDataType_t datatype, int sources) {
  const auto grown = static_cast<std::uint32_t>(std::bit_width(static_cast<unsigned>(sources)) - 1);
  if (datatype == koloFloat32) return kProbePattern * 0x01010101u + (grown << 23);
  if (datatype == koloBfloat16) return kProbePattern * 0x0101u + (grown << 7);
  return kProbePattern + (grown << 3);
}

struct MoverTable {
  const char* name;
  koloDataType_t datatype;
  std::size_t elementBytes;
};
constexpr std::array kSummed = {MoverTable{"float32", koloFloat32, 4}, MoverTable{"bfloat16", koloBfloat16, 2},
                                MoverTable{"float8e4m3", koloFloat8e4m3, 1}};

// Copies and sums by so many blocks, out of the device's memory, larger than its cache, or out of the host's.
class Movers {
 public:
  Movers(const MicroProbe& probe, bool onHost)
      : probe_(probe), onHost_(onHost), bytes_(probe.quick() ? 64 * kKiB
                                               : onHost      ? 64 * kMiB
                                                             : 264 * kMiB),
        to_(bytes_, false) {
    for (int s = 0; s < (probe.quick() ? 2 : kMostProbeSources); ++s) {
      sources_.push_back(std::make_unique<ProbeMemory>(bytes_, onHost));
      if (onHost) std::memset(sources_.back()->data(), kProbePattern, bytes_);
      else probe.clear(sources_.back()->data(), bytes_, kProbePattern);
    }
  }

  void measure() const {
    const int all = probe_.processors();
    const std::vector<int> grids = probe_.quick() ? std::vector{1, 2} : std::vector{1, 8, all / 4, all / 2, all};
    for (const int blocks : grids) {
      move("copy", kSummed[0], blocks, 1);
      for (const MoverTable& datatype : kSummed) {
        for (int sources = 1; sources <= static_cast<int>(sources_.size()); sources *= 2)
          move("fold", datatype, blocks, sources);
      }
    }
  }

 private:
  void move(const char* what, const MoverTable& datatype, int blocks, int sources) const {
    const bool copies = std::strcmp(what, "copy") == 0;
    nowMeasuring(std::string("micro: ") + what + " of " + datatype.name + " by " + std::to_string(blocks) + " blocks");
    ProbeParams params{.what = copies ? Probed::kCopy : Probed::kFold,
                       .sourceCount = sources,
                       .datatype = datatype.datatype,
                       .to = to_.data(),
                       .bytes = std::min(bytes_ / static_cast<std::size_t>(blocks), kMostOfABlock) / 64 * 64};
    for (int s = 0; s < sources; ++s) params.sources[s] = sources_[static_cast<std::size_t>(s)]->data();
    probe_.clear(to_.data(), bytes_, 0xff);
    const double us = probe_.run(params, blocks);
    const double moved = static_cast<double>(params.bytes) * blocks * (sources + 1);
    Line line("micro");
    line.add("what", what).add("place", placeOf(onHost_)).add("blocks", blocks).add("sources", sources);
    if (!copies) line.add("datatype", datatype.name);
    line.add("us", us, 1).add("gbps", moved / us / 1e3, 2).print();
    expectSum(datatype, params.bytes * static_cast<std::size_t>(blocks), copies ? 1 : sources);
  }

  // At the end of what was written.
  void expectSum(const MoverTable& datatype, std::size_t bytes, int sources) const {
    std::uint32_t found = 0;
    check(driver().cuMemcpyDtoH(&found, reinterpret_cast<CUdeviceptr>(to_.data() + bytes - datatype.elementBytes),
                                datatype.elementBytes),
          "cuMemcpyDtoH");
    if (found != sumBits(datatype.datatype, sources)) fail("the sum is wrong");
  }

  static constexpr std::size_t kMostOfABlock = 128 * kMiB;  // with what is written, more than the device's cache

  const MicroProbe& probe_;
  bool onHost_;
  std::size_t bytes_;
  ProbeMemory to_;
  std::vector<std::unique_ptr<ProbeMemory>> sources_;
};

// What the host takes for a call, and what the device takes for it between kernels: both by launches back to back.
class CallCosts {
 public:
  explicit CallCosts(const MicroProbe& probe) : probe_(probe), memory_(64, false), calls_(probe.quick() ? 5 : 200) {
    check(driver().cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    check(driver().cuEventRecord(event_, probe.stream()), "cuEventRecord");
    probe.clear(memory_.data(), 64);
  }
  ~CallCosts() { check(driver().cuEventDestroy(event_), "cuEventDestroy"); }
  CallCosts(const CallCosts&) = delete;

  void measure() {
    const auto launch = [&] { probe_.enqueue({.what = Probed::kNothing}, 1); };
    const auto address = reinterpret_cast<CUdeviceptr>(memory_.data());
    const CUstream stream = probe_.stream();
    const auto& d = driver();
    nowMeasuring("micro: calls of the driver");
    time("cuLaunchKernel and the kernel", [&] { launch(); });
    time("cuLaunchKernel, waited for", [&] { launch(), probe_.synchronize(); });
    timeGraph(launch);
    const auto behind = [&](const char* name, auto call) {  // a kernel: what it adds to a chain of these
      time(name, [&] { launch(), check(call(), name); });
    };
    behind("kernel, cuEventRecord", [&] { return d.cuEventRecord(event_, stream); });
    behind("kernel, cuStreamWaitEvent", [&] { return d.cuStreamWaitEvent(stream, event_, 0); });
    behind("kernel, cuStreamWriteValue64", [&] { return d.cuStreamWriteValue64(stream, address, 1, 0); });
    behind("kernel, cuStreamWaitValue64",
           [&] { return d.cuStreamWaitValue64(stream, address, 0, CU_STREAM_WAIT_VALUE_GEQ); });
    const auto alone = [&](const char* name, auto call) {  // on an idle stream, so that the time is the host's
      time(name, [&] { check(call(), name); });
    };
    alone("cuEventRecord", [&] { return d.cuEventRecord(event_, stream); });
    alone("cuEventQuery", [&] { return d.cuEventQuery(event_); });
    alone("cuStreamQuery", [&] { return d.cuStreamQuery(stream); });
    unsigned long long id = 0;
    alone("cuStreamGetId", [&] { return d.cuStreamGetId(stream, &id); });
    CUcontext context = nullptr;
    alone("cuStreamGetCtx", [&] { return d.cuStreamGetCtx(stream, &context); });
    alone("cuCtxPushCurrent, cuCtxPopCurrent", [&] {
      const CUresult pushed = d.cuCtxPushCurrent(context);
      CUcontext popped = nullptr;
      return pushed != CUDA_SUCCESS ? pushed : d.cuCtxPopCurrent(&popped);
    });
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    alone("cuStreamGetCaptureInfo",
          [&] { return d.cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, nullptr, nullptr); });
    CUmemorytype type{};
    std::array<CUpointer_attribute, 1> attributes = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    std::array<void*, 1> places = {&type};
    alone("cuPointerGetAttributes",
          [&] { return d.cuPointerGetAttributes(1, attributes.data(), places.data(), address); });
  }

 private:
  // Of one call, enqueued back to back; the best of some rounds.
  void time(const char* name, const std::function<void()>& call) const {
    double least = 0, host = 0;
    for (int round = 0; round < 3; ++round) {
      const Clock::time_point begin = Clock::now();
      for (int i = 0; i < calls_; ++i) call();
      const double enqueued = microseconds(begin) / calls_;
      probe_.synchronize();
      const double us = microseconds(begin) / calls_;
      if (round == 0 || us < least) least = us, host = enqueued;
    }
    Line("micro").add("what", "call").add("call", name).add("us", least, 3).add("host_us", host, 3).print();
  }

  void timeGraph(const std::function<void()>& launch) const {
    constexpr int kKernels = 20;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    const auto& t = cudaForTests();
    check(t.cuStreamBeginCapture(probe_.stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    for (int i = 0; i < kKernels; ++i) launch();
    check(t.cuStreamEndCapture(probe_.stream(), &graph), "cuStreamEndCapture");
    check(t.cuGraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
    check(t.cuGraphLaunch(executable, probe_.stream()), "cuGraphLaunch");  // the first one uploads it
    probe_.synchronize();
    const int launches = std::max(calls_ / kKernels, 1);
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < launches; ++i) check(t.cuGraphLaunch(executable, probe_.stream()), "cuGraphLaunch");
    const double host = microseconds(begin) / launches / kKernels;
    probe_.synchronize();
    Line("micro")
        .add("what", "call")
        .add("call", "kernel of a graph's chain")
        .add("us", microseconds(begin) / launches / kKernels, 3)
        .add("host_us", host, 3)
        .print();
    check(t.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    check(t.cuGraphDestroy(graph), "cuGraphDestroy");
  }

  const MicroProbe& probe_;
  const ProbeMemory memory_;
  int calls_;
  CUevent event_ = nullptr;
};

}  // namespace

void measureMicro(const Options& options) {
  nowMeasuring("micro: loading the probe");
  const MicroProbe probe(options);
  probeFences(probe);
  probeTurns(probe);
  CallCosts(probe).measure();
  for (const bool onHost : {false, true}) Movers(probe, onHost).measure();
}

}  // namespace kolo::test
