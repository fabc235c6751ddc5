#include "world.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>

#include "base/settings.h"
#include "comm/host_backend.h"
#include "emulated/emulated_executor.h"
#include "support/deadline.h"
#if KOLO_HAVE_CUDA
#include "drivers/cuda/driver.h"
#endif

namespace kolo::tests {
namespace {

thread_local Trace lastTrace;

// Notes what it is given, and has it done by another.
class Recorder final : public executor::Executor {
 public:
  explicit Recorder(unsigned threads) : emulated_(threads != 0 ? executor::makeEmulatedExecutor(threads) : nullptr) {}

  void run(const device::Work& work, const executor::Context& context) override {
    const std::uint64_t before = directOperations(work);
    (emulated_ != nullptr ? *emulated_ : executor::hostExecutor()).run(work, context);
    lastTrace = {true, work.signature.algorithm, directOperations(work) != before, {}};
    if (work.steps.members != nullptr) lastTrace.order.assign(work.steps.members, work.steps.members + work.ranks);
  }

 private:
  // Only where a rank uses another's buffer do the two end by counting, the one `taken` and the other `finished`.
  static std::uint64_t directOperations(const device::Work& work) {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < work.ranks; ++rank)
      sum += work.channel.links[rank].finished + work.channel.links[rank].taken;
    return sum;
  }

  std::unique_ptr<executor::Executor> emulated_;
};

std::unique_ptr<Recorder> recorder;

// Settings of the environment that hold until the end of the scope.
class ScopedSettings {
 public:
  explicit ScopedSettings(const WorldOptions& options) : latePerHost_(options.latePerHost) {
    ::setenv("KOLO_STAGING_BYTES", options.staging.c_str(), 1);
    ::setenv("KOLO_TEST_STREAMING_BYTES", options.streaming.c_str(), 1);
    ::setenv("KOLO_SINGLE_COPY_BYTES", options.singleCopy.c_str(), 1);
    if (options.latePerHost > 0) {
      const bool isLossy = options.losesAfter > 0;
      const char* const plugin = std::getenv(isLossy ? "KOLO_TEST_LOSSY_PLUGIN" : "KOLO_TEST_LATE_PLUGIN");
      REQUIRE(plugin != nullptr);
      ::setenv("KOLO_TRANSPORT_PLUGINS", plugin, 1);
      ::setenv("KOLO_TRANSPORTS", isLossy ? "lossy,shm,tcp" : "late,shm", 1);
      ::setenv("KOLO_TEST_LATE_LOSES", std::to_string(options.losesAfter).c_str(), 1);
      ::setenv("KOLO_TEST_CONNECT_ALL_RANKS", std::to_string(options.connectsAll).c_str(), 1);
      ::setenv("KOLO_TEST_LATE_PER_HOST", std::to_string(options.latePerHost).c_str(), 1);
      if (options.inTurn)
        ::setenv("KOLO_TEST_LATE_HOSTS", std::to_string(options.ranks / options.latePerHost).c_str(), 1);
    }
    if (!options.transports.empty()) ::setenv("KOLO_TRANSPORTS", options.transports.c_str(), 1);
    namesTransports_ = !options.transports.empty();
    settings::reload();
  }
  ~ScopedSettings() {
    if (namesTransports_) ::unsetenv("KOLO_TRANSPORTS");
    ::unsetenv("KOLO_STAGING_BYTES");
    ::unsetenv("KOLO_TEST_STREAMING_BYTES");
    ::unsetenv("KOLO_SINGLE_COPY_BYTES");
    if (latePerHost_ > 0) {
      for (const char* name : {"KOLO_TRANSPORT_PLUGINS", "KOLO_TRANSPORTS", "KOLO_TEST_LATE_PER_HOST",
                               "KOLO_TEST_LATE_HOSTS", "KOLO_TEST_LATE_LOSES", "KOLO_TEST_CONNECT_ALL_RANKS"})
        ::unsetenv(name);
    }
    settings::reload();
  }

 private:
  int latePerHost_;
  bool namesTransports_ = false;
};

constexpr double kOperationsPart = 0.8;  // of the time that a test has left

koloConfig_t configOf(const WorldOptions& options) {
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.timeoutMs = static_cast<int>(test::within(std::chrono::seconds(50), kOperationsPart).count());
  config.reproducible = options.reproducible ? 1 : 0;
  config.device = options.device;
  config.resident = options.resident ? 1 : 0;
  return config;
}

void require(koloResult_t result, const char* what) {
  INFO(what << ": " << koloGetErrorString(result) << ": " << koloGetLastError(nullptr));
  REQUIRE(result == koloSuccess);
}

}  // namespace

World::World(const WorldOptions& options)
    : options_(options), threads_(options.ranks), comms_(static_cast<std::size_t>(options.ranks)) {
  const ScopedSettings scope(options);
  koloConfig_t config = configOf(options);
  if (isMesh()) config.device = KOLO_HOST;  // of the parent, which takes no blocks of the GPU then
  require(koloCommInitAll(comms_.data(), options.ranks, &config), "koloCommInitAll");
  if (isMesh()) makeMesh();
  openStreams();
  openWindows();
}

World::World(World& parent, const std::vector<int>& order, const WorldOptions& options)
    : options_(options), threads_(parent.ranks()), comms_(static_cast<std::size_t>(parent.ranks())) {
  const ScopedSettings scope(options);
  const koloConfig_t config = configOf(options);
  std::vector<int> key(order.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank)
    key[static_cast<std::size_t>(order[rank])] = static_cast<int>(rank);
  std::vector<koloResult_t> results(order.size());
  parent.run([&](int old) {
    const int mine = key[static_cast<std::size_t>(old)];
    koloComm_t* const place = &comms_[static_cast<std::size_t>(mine)];
    results[static_cast<std::size_t>(old)] =
        options.isGroup ? koloCommCreateGroup(parent.comm(old), order.data(), static_cast<int>(order.size()), "turned",
                                              place, &config)
                        : koloCommSplit(parent.comm(old), 0, mine, place, &config);
  });
  for (const koloResult_t result : results) require(result, "koloCommSplit");
  openWindows();
}

void World::makeMesh() {
  const koloConfig_t config = configOf(options_);
  const auto naxes = static_cast<int>(options_.mesh.size());
  std::vector<int> axes(options_.mesh.size());
  std::iota(axes.begin(), axes.end(), 0);
  std::vector<koloResult_t> results(comms_.size());
  run([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const koloComm_t parent = comms_[at];
    results[at] = koloMeshComm(parent, options_.mesh.data(), naxes, axes.data(), naxes, &comms_[at], &config);
    if (results[at] == koloSuccess) results[at] = koloCommDestroy(parent);
  });
  for (const koloResult_t result : results) require(result, "koloMeshComm");
}

void World::openWindows() {
  windows_.resize(comms_.size());
  handles_.resize(comms_.size());
  for (int rank = 0; isOnGpu() && rank < ranks(); ++rank) {
    deviceWindows_.push_back(std::make_unique<DeviceMemory>(options_.device, options_.windowBytes));
  }
  std::vector<koloResult_t> results(comms_.size());
  run([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    void* memory = nullptr;
    results[at] = koloMemAlloc(&memory, options_.windowBytes);
    windows_[at] = static_cast<unsigned char*>(memory);
    const std::size_t bytes = std::min(options_.windowBytes, options_.registeredBytes);
    void* const given = isOnGpu() ? deviceWindow(rank) : memory;
    const bool gives = rank == 0 || !options_.registersFirst;
    if (results[at] == koloSuccess && bytes > 0)
      results[at] = koloWindowRegister(comms_[at], gives ? given : nullptr, gives ? bytes : 0, &handles_[at]);
  });
  for (const koloResult_t result : results) require(result, "koloWindowRegister");
}

#if KOLO_HAVE_CUDA
void World::openStreams() {
  for (int rank = 0; isOnGpu() && rank < ranks(); ++rank) {
    const CurrentDevice current(options_.device);
    CUstream stream = nullptr;
    REQUIRE(drivers::cuda().value()->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    streams_.push_back(reinterpret_cast<koloStream_t>(stream));
  }
}
void World::synchronize(int rank) const {
  if (!isOnGpu()) return;
  const CurrentDevice current(options_.device);
  if (drivers::cuda().value()->cuStreamSynchronize(reinterpret_cast<CUstream>(stream(rank))) == CUDA_SUCCESS) return;
  std::fprintf(stderr, "the stream of rank %d ended with an error\n", rank);
  std::abort();
}
void World::closeStreams() {
  for (const koloStream_t stream : streams_)
    (void)drivers::cuda().value()->cuStreamDestroy(reinterpret_cast<CUstream>(stream));
}
#else
void World::openStreams() {}
void World::synchronize(int) const {}
void World::closeStreams() {}
#endif

World::~World() {
  run([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const bool isDeregistered =
        handles_[at] == nullptr || koloWindowDeregister(comms_[at], handles_[at]) == koloSuccess;
    if (!isDeregistered || koloCommDestroy(comms_[at]) != koloSuccess || koloMemFree(windows_[at]) != koloSuccess) {
      std::fprintf(stderr, "rank %d could not take its communicator down: %s\n", rank, koloGetLastError(nullptr));
      std::abort();
    }
  });
  closeStreams();
}

void World::run(const std::function<void(int)>& body, const std::function<std::string()>& state) {
  const std::chrono::milliseconds limit = test::within(std::chrono::seconds(60 * kSlowdown), 1);
  if (threads_.run(body, limit)) return;
  std::fprintf(stderr, "no end after %.1f s:\n%s\n", static_cast<double>(limit.count()) / 1000,
               state ? state().c_str() : "(no state)");
  std::abort();
}

RankThreads::RankThreads(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) threads_.emplace_back([this, rank] { serve(rank); });
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(mutex_);
    body_ = nullptr;
    ++runs_;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool RankThreads::run(const std::function<void(int)>& body, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  body_ = &body;
  running_ = static_cast<int>(threads_.size());
  ++runs_;
  changed_.notify_all();
  return changed_.wait_for(lock, limit, [this] { return running_ == 0; });
}

void RankThreads::serve(int rank) {
  std::unique_lock lock(mutex_);
  for (int seen = 0;;) {
    changed_.wait(lock, [&] { return runs_ != seen; });
    seen = runs_;
    if (body_ == nullptr) return;
    const std::function<void(int)>& body = *body_;
    lock.unlock();
    body(rank);
    lock.lock();
    if (--running_ == 0) changed_.notify_all();
  }
}

Trace takeTrace() {
  const Trace trace = lastTrace;
  lastTrace = {};
  return trace;
}

UseExecutor::UseExecutor(unsigned threads) {
  recorder = std::make_unique<Recorder>(threads);
  comm::HostBackend::useExecutor(recorder.get());
}

UseExecutor::~UseExecutor() {
  comm::HostBackend::useExecutor(nullptr);
  recorder.reset();
}

}  // namespace kolo::tests
