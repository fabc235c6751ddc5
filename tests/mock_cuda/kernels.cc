// The kernels that the library has, executed by host threads. A new one is a function and a line in kKernels.
#include <sched.h>
#include <time.h>

#include <array>
#include <cstring>
#include <tuple>

#include "emulated/block_reduce.h"
#include "emulated/emulated_team.h"
#include "executor/cuda/block_main.h"
#include "executor/cuda/resident.h"
#include "gpu_probe/probe.h"
#include "mock_cuda/world.h"

namespace kolo::test::mock {
namespace {

using executor::cuda::BlockState;
using executor::cuda::Control;
using executor::cuda::FewParams;
using executor::cuda::LaunchParams;
using executor::cuda::ServeParams;

// What the threads of a block share.
struct SharedBlock {
  explicit SharedBlock(unsigned threads) : threads(threads), barrier(threads) {}
  const unsigned threads;
  executor::BlockBarrier barrier;
  Slices::Grid* sliced = nullptr;  // the grid, if the device goes in time slices
  BlockState state;
};

class MockPlatform {
 public:
  static constexpr bool kPosts = true;
  static constexpr bool kServesLists = false, kReadsLists = false;
  struct WaitState {
    std::uint64_t sinceNs = 0;
  };

  MockPlatform(SharedBlock& block, unsigned thread, const Control& control)
      : block_(block), thread_(thread), control_(control) {}

  unsigned thread() const { return thread_; }
  unsigned threads() const { return block_.threads; }
  device::FoldLists& lists() { return block_.state.lists; }
  device::Work& step() { return block_.state.step; }
  int polls() const { return 16; }
  bool syncOr(bool value) { return block_.barrier.syncOr(thread_, parity_, value); }
  bool claim(device::Counter& counter) { return std::atomic_ref(counter.value).exchange(1) == 0; }
  void setTimeout(std::uint64_t ns) { timeoutNs_ = ns; }

  std::uint64_t nowNs() const {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
  }
  void fence() const { std::atomic_thread_fence(std::memory_order_seq_cst); }
  std::uint64_t add(device::Counter& counter) const {
    return std::atomic_ref(counter.value).fetch_add(1, std::memory_order_acq_rel) + 1;
  }

  // Leaves the core to others, every so often for a moment without wanting it back. Threads that only ever yield kept
  // others of the same core from it for a minute on Linux 6.18, the kernel's own threads among them, with the locks
  // that these held.
  void rest() {
    constexpr timespec kNap{0, 20'000};
    if (++rests_ % kYields != 0) sched_yield();
    else nanosleep(&kNap, nullptr);
  }

  device::Fault keepWaiting(int peer, WaitState& state) {
    if (device::loadAcquire(control_.stop) != 0 || device::loadAcquire(control_.faults) != 0) {  // [stop], [fault]
      return {.kind = device::Fault::kAborted, .peer = peer};
    }
    const std::uint64_t now = nowNs();
    if (state.sinceNs == 0) state.sinceNs = now;
    if (timeoutNs_ != 0 && now - state.sinceNs > timeoutNs_) return {.kind = device::Fault::kTimeout, .peer = peer};
    if (block_.sliced != nullptr) world->slices.wait(*block_.sliced);
    rest();
    return {};
  }
  bool read(int, void*, std::uint64_t, std::uint64_t) { return false; }
  bool write(int, std::uint64_t, const void*, std::uint64_t) { return false; }
  void reduce(const device::BlockIndex& index, const device::Work& work, koloDataType_t datatype,
              const device::ReduceArgs& args) {
    executor::reduceInBlock(index, datatype, work.fold.op, args);
  }

 private:
  static constexpr unsigned kYields = 64;

  SharedBlock& block_;
  unsigned thread_;
  const Control& control_;
  std::uint64_t timeoutNs_ = 0;
  unsigned rests_ = 0;
  unsigned parity_ = 0;
};

// Of the kernel that serves lists too.
class MockListPlatform : public MockPlatform {
 public:
  static constexpr bool kServesLists = true;
  using MockPlatform::MockPlatform;

  void castRows(const device::BlockIndex& index, const device::RowMove& move) {
    executor::castRowsInBlock(index, move);
  }
};

// Calls body(platform, block, shared) on a host thread for each thread of each block.
template <class Platform, class Body>
void eachThread(const Grid& grid, const Control& control, const Body& body) {
  std::vector<std::unique_ptr<SharedBlock>> shared;
  for (unsigned block = 0; block < grid.blocks; ++block)
    shared.push_back(std::make_unique<SharedBlock>(grid.blockThreads));
  Slices::Grid sliced;
  const bool inSlices = world->properties.timeSlices;
  if (inSlices) world->slices.begin(sliced, grid.blocks);
  std::vector<std::thread> threads;
  for (unsigned block = 0; block < grid.blocks; ++block) {
    if (inSlices) shared[block]->sliced = &sliced;
    for (unsigned thread = 0; thread < grid.blockThreads; ++thread) {
      threads.emplace_back([&, block, thread] {
        Platform platform(*shared[block], thread, control);
        body(platform, static_cast<int>(block), *shared[block]);
        if (inSlices && thread == 0) world->slices.endBlock(sliced);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

void runBlocks(const Grid& grid, const LaunchParams& launch, const ServeParams& serve) {
  eachThread<MockPlatform>(grid, *launch.control, [&](MockPlatform& platform, int block, SharedBlock& shared) {
    executor::cuda::runKernel(platform, launch, serve, block, static_cast<int>(grid.blocks), shared.state);
  });
}

void runFew(const Grid& grid, const FewParams& launch) {
  eachThread<MockPlatform>(grid, *launch.control, [&](MockPlatform& platform, int block, SharedBlock& shared) {
    executor::cuda::runBlock(platform, launch, launch.list(), block, shared.state);
  });
}

void runLists(const Grid& grid, const FewParams& launch) {
  eachThread<MockListPlatform>(grid, *launch.control, [&](MockListPlatform& platform, int block, SharedBlock& shared) {
    executor::cuda::runBlock(platform, launch, launch.list(), block, shared.state);
  });
}

constexpr std::uint64_t kUnreadable =
    ~std::uint64_t{0};  // what reads of a broken peer bring, as those of a PCIe device that is gone

void moveLine(const Grid& grid, device::Counter* const& to, const device::Counter* const& from) {
  const auto isBroken = [&](const device::Counter* memory) {
    const std::lock_guard lock(world->mutex);
    const int owner = ownerOf(reinterpret_cast<CUdeviceptr>(memory));
    return world->properties.peersBroken && owner >= 0 && owner != grid.device;
  };
  if (isBroken(to)) return;
  const bool unreadable = isBroken(from);
  for (unsigned word = 0; word < executor::cuda::kLineWords; ++word) {
    if (unreadable) device::storeRelease(to[word], kUnreadable);
    else executor::cuda::moveWord(to, from, word);
  }
}

class MockProbePlatform : public MockPlatform {
 public:
  using MockPlatform::MockPlatform;

  // A packet is whole here because its number is stored last.
  void storePacket(unsigned char* to, device::Pack pack) {
    auto* const words = reinterpret_cast<device::Counter*>(to);
    device::storeRelaxed(words[0], pack.words[0]);
    device::storeRelease(words[1], pack.words[1]);  // [packet]
  }
  device::Pack loadPacket(const unsigned char* from) {
    const auto* const words = reinterpret_cast<const device::Counter*>(from);
    const std::uint64_t number = device::loadAcquire(words[1]);  // [packet]
    return {{device::loadRelaxed(words[0]), number}};
  }
  void reduce(const device::BlockIndex& index, koloDataType_t datatype, const device::ReduceArgs& args) {
    executor::reduceInBlock(index, datatype, device::ReduceOp::kSum, args);
  }
};

void runProbes(const Grid& grid, const ProbeParams& probe) {
  const Control none{};
  eachThread<MockProbePlatform>(
      grid, none, [&](MockProbePlatform& platform, int block, SharedBlock&) { runProbe(platform, probe, block); });
}

// Of a function void(const Grid&, const Parameter&...): its parameters are the kernel's.
template <auto run>
struct Prepared;
template <class... Parameters, void (*run)(const Grid&, const Parameters&...)>
struct Prepared<run> {
  static constexpr std::size_t kBytes = (sizeof(Parameters) + ...);
  static std::function<void(const Grid&)> prepare(void** arguments) {
    return prepareAt(arguments, std::index_sequence_for<Parameters...>());
  }
  template <std::size_t... at>
  static std::function<void(const Grid&)> prepareAt(void** arguments, std::index_sequence<at...>) {
    const auto copies =
        std::make_shared<const std::tuple<Parameters...>>(*static_cast<const Parameters*>(arguments[at])...);
    return [copies](const Grid& grid) { run(grid, std::get<at>(*copies)...); };
  }
};

constexpr std::array kKernels = {
    Kernel{"koloRunFew", Prepared<runFew>::kBytes, Prepared<runFew>::prepare},
    Kernel{"koloRunLists", Prepared<runLists>::kBytes, Prepared<runLists>::prepare},
    Kernel{"koloRunBlocks", Prepared<runBlocks>::kBytes, Prepared<runBlocks>::prepare},
    Kernel{"koloMoveLine", Prepared<moveLine>::kBytes, Prepared<moveLine>::prepare},
    Kernel{"koloProbe", Prepared<runProbes>::kBytes, Prepared<runProbes>::prepare},
};

}  // namespace

const Kernel* findKernel(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) == 0) return &kernel;
  }
  return nullptr;
}

}  // namespace kolo::test::mock
