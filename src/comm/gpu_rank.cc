#include "comm/gpu_rank.h"

#if KOLO_HAVE_CUDA

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/log.h"
#include "comm/blob.h"
#include "comm/departures.h"
#include "comm/gpu_direct.h"
#include "comm/proxy.h"
#include "comm/trials.h"
#include "comm/windows.h"
#include "executor/cuda/engine.h"
#include "transport/registry.h"

namespace kolo::comm {
namespace {

namespace cuda = executor::cuda;

// Of a rank with a device for itself: as many as fill its links. Ranks that share a device need more to fill its
// memory's bandwidth.
constexpr int kMostChannels = 32, kMostChannelsShared = 64;
constexpr int kMostMessageChannels = 8;
constexpr int kLargeDevice = 64;                                     // blocks
constexpr std::uint64_t kMostArenaBytes = std::uint64_t{512} << 20;  // however many ranks there are

// What the planner begins with, until there are measured tables: microseconds from a store to its being seen, and GB/s.
constexpr double kHopOnDeviceUs = 1, kHopBetweenDevicesUs = 2, kHopThroughHostUs = 3;
constexpr double kLinkGBps = 200, kHostGBps = 20, kBlockGBps = 40;
constexpr double kUnknownMemoryGBps = 1000, kUnknownCacheBytes = 32 << 20;

// What a rank tells the others before anything is made.
struct Hello {
  unsigned char processId[16];
  CUuuid device;
  std::int32_t ordinal;
  std::int32_t isSharedByProcesses;
  double memoryGBps;
  double cacheBytes;        // L2
  std::int32_t freeBlocks;  // before any rank of this communicator has taken some

  bool isInProcess(const Hello& other) const { return std::memcmp(processId, other.processId, sizeof processId) == 0; }
  bool isOnDevice(const Hello& other) const { return std::memcmp(&device, &other.device, sizeof device) == 0; }
};

// Host memory as the GPUs see it, for as long as the object lives. REQUIRES: a context for the end of it; the device's
// own lives on.
class Pinned {
 public:
  static Result<Pinned> make(std::shared_ptr<cuda::Gpu> gpu, void* memory, std::uint64_t bytes) {
    const cuda::Gpu::Current current(*gpu);
    Pinned pinned;
    KOLO_CUDA(gpu->driver(), cuMemHostRegister,
              (memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    pinned.gpu_ = std::move(gpu);
    pinned.memory_ = memory;
    return pinned;
  }
  Pinned() = default;
  Pinned(Pinned&& other) noexcept : gpu_(std::move(other.gpu_)), memory_(std::exchange(other.memory_, nullptr)) {}
  Pinned& operator=(Pinned&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Pinned() {
    if (memory_ == nullptr) return;
    const cuda::Gpu::Current current(*gpu_);
    (void)gpu_->driver().cuMemHostUnregister(memory_);
  }

 private:
  std::shared_ptr<cuda::Gpu> gpu_;
  void* memory_ = nullptr;
};

Result<unsigned char*> deviceAddress(const cuda::Gpu& gpu, void* memory) {
  const cuda::Gpu::Current current(gpu);
  CUdeviceptr address = 0;
  KOLO_CUDA(gpu.driver(), cuMemHostGetDevicePointer, (&address, memory, 0));
  return reinterpret_cast<unsigned char*>(address);
}

class CudaRank final : public GpuRank {
 public:
  ~CudaRank() override {
    proxy_.reset();
    const bool mayRunUnseen = engine_ != nullptr && engine_->mayRunUnseen();
    engine_.reset();
    if (mayRunUnseen) {
      gpu_->keep(std::make_shared<Reached>(Reached{std::move(arena_), std::move(direct_), std::move(gpuDirect_),
                                                   std::move(hostArena_), std::move(throughHost_),
                                                   std::move(departures_), std::move(pinned_)}));
    }
    if (hasResidentStream_) gpu_->giveBackResidentStream();
    if (gpu_ != nullptr) gpu_->giveBack(taken_.exchange(0));
  }

  static Result<std::unique_ptr<GpuRank>> make(Membership& membership, const Wishes& wishes) {
    auto rank = std::unique_ptr<CudaRank>(new CudaRank(membership, wishes));
    KOLO_TRY(rank->greet());
    const cuda::Gpu::Visit visit(*rank->gpu_);  // for all the steps that follow
    KOLO_TRY(rank->takeBlocks());
    KOLO_TRY(rank->connectArenas());
    KOLO_TRY(rank->proveLinks());
    KOLO_TRY(rank->connectThroughHost());
    KOLO_TRY(rank->findLeaders());
    KOLO_TRY(rank->makeEngine());
    rank->startProxy();
    return std::unique_ptr<GpuRank>(std::move(rank));
  }

  Peers& peers() const override { return *direct_; }
  planner::Machine machine() const override {
    int crowd = 1;  // ranks on the fullest device
    for (const Hello& one : all_)
      crowd = std::max(crowd, count([&](const Hello& other) { return other.isOnDevice(one); }));
    const bool several = count([&](const Hello& one) { return !one.isOnDevice(mine()); }) > 0;
    double memory = mine().memoryGBps, cache = mine().cacheBytes;
    for (const Hello& one : all_) {
      memory = std::min(memory, one.memoryGBps);
      cache = std::min(cache, one.cacheBytes);
    }
    planner::Machine machine;
    machine.ranks = machine.cores = membership_.ranks();  // no rank waits for another's turn
    machine.mapped = std::all_of(leaders_.begin(), leaders_.end(), [](int leader) { return leader == 0; });
    machine.hopUs = mapsHost_ ? kHopThroughHostUs : several ? kHopBetweenDevicesUs : kHopOnDeviceUs;
    machine.memoryGBps = mapsHost_ ? kHostGBps : several ? std::min(memory / crowd, kLinkGBps) : memory / crowd;
    machine.cacheGBps = several || mapsHost_ ? machine.memoryGBps : 2 * memory / crowd;
    machine.cacheBytes = cache;
    machine.slotBytes = layout_.slotBytes;
    machine.channels = layout_.channels;
    machine.blockGBps = kBlockGBps;
    return machine;
  }
  std::string transportNames() const override {
    std::string names = direct_->transportNames();
    if (throughHost_ != nullptr)
      names = names == "self" ? throughHost_->transportNames() : names + "+" + throughHost_->transportNames();
    return names;
  }
  const std::vector<int>& leaders() const override { return leaders_; }
  Status setHosts(const device::Hosts& hosts) override { return engine_->setHosts(hosts); }
  Status setOrder(const std::vector<int>& ranks) override { return engine_->setOrder(ranks); }
  const int* order() const override { return engine_->order(); }
  const device::Hosts* hosts() const override { return engine_->hosts(); }
  int messageChannels() const override { return layout_.messageChannels; }
  Status setWindow(int rank, std::uint32_t index, const device::WindowPart& part) override {
    return engine_->setWindow(rank, index, part);
  }
  Status reserveScratch(std::uint64_t bytes) override { return engine_->reserveScratch(bytes); }

  Status checkBuffer(const char* name, const void* buffer, std::uint64_t bytes) const override {
    if (bytes == 0 || buffer == nullptr) return {};
    KOLO_ASSIGN(const cuda::Gpu::Allocation allocation, gpu_->allocationAt(buffer));
    if (allocation.type != CU_MEMORYTYPE_DEVICE && allocation.type != CU_MEMORYTYPE_UNIFIED) {
      return error(koloInvalidPointer,
                   "{} is {}, host memory: expected memory of device {}, which this communicator uses", name,
                   fmt::ptr(buffer), gpu_->ordinal());
    }
    if (allocation.type == CU_MEMORYTYPE_DEVICE && allocation.ordinal != gpu_->ordinal()) {
      return error(koloInvalidPointer,
                   "{} is {}, memory of device {}: expected memory of device {}, which this communicator uses", name,
                   fmt::ptr(buffer), allocation.ordinal, gpu_->ordinal());
    }
    return {};
  }

  std::uint64_t allocationId(const void* address) const override {
    const Result<cuda::Gpu::Allocation> allocation = gpu_->allocationAt(address);
    return allocation.ok() ? allocation.value().id : 0;
  }

  Status checkStream(void* stream) const override { return engine_->checkStream(static_cast<CUstream>(stream)); }
  Status enqueue(std::span<device::Work> works, std::uint32_t messages, int timeoutMs, void* stream) override {
    return engine_->enqueue(works, messages, static_cast<std::uint64_t>(timeoutMs) * 1'000'000u,
                            static_cast<CUstream>(stream));
  }
  std::optional<device::Fault> fault() const override {
    const std::optional<device::Fault> ofKernels = engine_->fault();
    return ofKernels.has_value() || proxy_ == nullptr ? ofKernels : proxy_->fault();
  }
  Status lossOf(int peer) const override { return proxy_ != nullptr ? proxy_->lossOf(peer) : Status(); }
  Status broken() const override { return engine_->broken(); }
  // Its kernels end, and nothing is launched any more: others may have the blocks, a communicator of the survivors
  // above all.
  void stop() override {
    engine_->stop();
    if (proxy_ != nullptr) proxy_->stop();
    gpu_->giveBack(taken_.exchange(0));
  }
  void leave() override {
    const cuda::Gpu::Visit visit(*gpu_);
    (void)engine_->drain();
    for (int peer = 0; peer < membership_.ranks(); ++peer) {
      if (peer == membership_.rank || isPosted(peer)) continue;
      const std::uint64_t place = layout_.partAt(membership_.rank) + layout_.leftIn();
      if ((*direct_)[peer].link != nullptr) {
        const std::uint64_t gone = device::kPeerLeft;
        (void)gpu_->upload(reinterpret_cast<CUdeviceptr>((*direct_)[peer].arena + place), &gone,
                           sizeof gone);  // [gone]
      } else {
        device::storeRelease(*reinterpret_cast<device::Counter*>((*throughHost_)[peer].arena + place),
                             device::kPeerLeft);  // [gone]
      }
    }
    if (proxy_ != nullptr) proxy_->finish(membership_.initTimeoutMs);
  }
  void close(bool failed) override {
    if (proxy_ != nullptr) proxy_->end();  // until then its thread asks this object for it, of a loss
    proxy_.reset();
    if (failed && throughHost_ != nullptr) throughHost_->abandon();
  }
  Status drain() override { return engine_->drain(); }
  void release(std::shared_ptr<const void> used) override {
    if (engine_->mayRunUnseen()) gpu_->keep(std::move(used));
  }

 protected:
  const void* enter() const override { return gpu_->enter(); }
  void exit(const void* before) const override { gpu_->leave(static_cast<const cuda::Gpu*>(before)); }

 private:
  CudaRank(Membership& membership, const Wishes& wishes) : membership_(membership), wishes_(wishes) {}

  const Hello& mine() const { return all_[static_cast<std::size_t>(membership_.rank)]; }
  template <class Predicate>
  int count(Predicate&& predicate) const {
    return static_cast<int>(std::count_if(all_.begin(), all_.end(), predicate));
  }
  // Ranks whose kernels run beside this rank's on its device, itself included.
  int sharing() const {
    return count([&](const Hello& one) {
      return one.isOnDevice(mine()) && (one.isInProcess(mine()) || mine().isSharedByProcesses != 0);
    });
  }

  Status greet() {
    Result<std::shared_ptr<cuda::Gpu>> gpu = cuda::Gpu::open(wishes_.device);
    KOLO_TRY(membership_.agree(gpu.status()));
    gpu_ = gpu.take();
    Hello hello{};
    std::copy_n(transport::identity().processId, sizeof hello.processId, hello.processId);
    hello.device = gpu_->uuid();
    hello.ordinal = gpu_->ordinal();
    hello.isSharedByProcesses = gpu_->isSharedByProcesses() ? 1 : 0;
    hello.freeBlocks = gpu_->freeBlocks();
    hello.memoryGBps = gpu_->memoryGBps() > 0 ? gpu_->memoryGBps() : kUnknownMemoryGBps;
    hello.cacheBytes = gpu_->cacheBytes() > 0 ? gpu_->cacheBytes() : kUnknownCacheBytes;
    BlobWriter writer;
    writer.put(hello);
    KOLO_ASSIGN(const std::vector<std::string> blobs, membership_.allGather(writer.text()));
    for (const std::string& blob : blobs) all_.push_back(BlobReader(blob).get<Hello>());
    return {};
  }

  // This rank's share of the blocks that are free on its device. Some are left for communicators to come, which would
  // otherwise have none: most of a device that is empty, an eighth of what is left of one that is not. Who says how
  // many blocks a communicator is to use may have all that are free.
  int fairShare() const {
    const int all = gpu_->residentBlocks();
    int free = mine().freeBlocks;
    for (const Hello& one : all_) {
      if (one.isOnDevice(mine())) free = std::min(free, one.freeBlocks);
    }
    const bool mayTakeAll = wishes_.mostChannels > 0 || all < kLargeDevice;
    const int usable = mayTakeAll ? free : free == all ? (free - 16) * 3 / 4 : free / 8;
    return std::max(1, usable / sharing());
  }

  Status takeBlocks() {
    const int resident = wishes_.resident ? cuda::kResidentBlocks : 0;
    const int most = wishes_.mostChannels > 0 ? wishes_.mostChannels
                     : sharing() > 1          ? kMostChannelsShared
                                              : kMostChannels;
    taken_ = gpu_->take(std::min(std::max(fairShare(), 1 + resident), most + resident));
    BlobWriter writer;
    writer.put(taken_.load());
    KOLO_ASSIGN(const std::vector<std::string> blobs, membership_.allGather(writer.text()));
    int least = taken_;
    std::size_t poorest = static_cast<std::size_t>(membership_.rank);
    for (std::size_t i = 0; i < blobs.size(); ++i) {
      const int theirs = BlobReader(blobs[i]).get<int>();
      if (theirs < least) poorest = i;
      least = std::min(least, theirs);
    }
    layout_.ranks = membership_.ranks();
    layout_.channels = least - resident;
    if (layout_.channels < 1) {
      return error(
          koloUnsupported,
          "device {} of rank {} holds {} blocks at once, those of other communicators included, too few for the "
          "{} ranks that share it; expected fewer communicators or ranks, or fewer channels for each "
          "(KOLO_GPU_CHANNELS)",
          all_[poorest].ordinal, poorest, gpu_->residentBlocks(), sharing());
    }
    layout_.messageChannels = std::min(layout_.channels, kMostMessageChannels);
    layout_.shrinkTo(kMostArenaBytes);
    gpu_->giveBack(taken_ - layout_.channels - resident);
    taken_ = layout_.channels + resident;
    return {};
  }

  Result<Given> makeArena() {
    KOLO_ASSIGN(memory::DeviceMemory created, memory::DeviceMemory::create(gpu_->ordinal(), layout_.bytes(), true));
    arena_ = std::make_shared<memory::DeviceMemory>(std::move(created));
    KOLO_TRY(gpu_->clear(reinterpret_cast<CUdeviceptr>(arena_->as<void>()), layout_.bytes()));
    return Given::of(arena_);
  }

  Status connectArenas() {
    KOLO_ASSIGN(direct_,
                Peers::connect(membership_, makeArena(), {.name = "gpu", .device = gpu_->ordinal(), .mayMiss = true},
                               wishes_.transports, fmt::format("{} channels", layout_.channels)));
    return {};
  }

  Status proveLinks() {
    KOLO_ASSIGN(reached_, Trials(membership_, *gpu_, layout_).proveMapped(*direct_));
    allDirect_ = std::all_of(reached_.begin(), reached_.end(),
                             [](const std::string& row) { return row.find('0') == std::string::npos; });
    return {};
  }

  // ---- the way through pinned memory of the host, for pairs without a direct one: mapped by both, or posted from
  // mirror to arena. Where NICs reach the GPU's memory (comm/gpu_direct.h), mirror and arena of a posted link are there

  // Of the host; pinned only if somebody writes there, and then as long as any rank of this process holds it.
  struct HostArena {
    std::shared_ptr<const void> memory;
    Pinned pinned;
  };
  Result<Given> makeHostArena() {
    KOLO_ASSIGN(Given given, Given::ofNewHostMemory(layout_.bytes()));
    hostArena_ = std::make_shared<HostArena>(HostArena{given.owner, {}});
    given.owner = hostArena_;
    return given;
  }

  Status connectThroughHost() {
    if (allDirect_) return {};
    gpuDirect_ = std::make_unique<GpuDirect>(arena_, [&gpu = *gpu_](const memory::DeviceMemory& memory) {
      return gpu.clear(reinterpret_cast<CUdeviceptr>(memory.as<void>()), memory.bytes());
    });
    KOLO_TRY(connectThroughHost(gpuDirect_.get()));
    KOLO_ASSIGN(const std::string problem, provePosted());
    if (problem.empty()) return {};
    if (gpuDirect_->isForced())
      return error(koloUnsupported, "KOLO_GPUDIRECT is {}, but {}; expected auto or off", gpuDirect_->wish(), problem);
    log::warn("rank {} goes without GPUDirect: {}", membership_.rank, problem);
    pinned_.clear();
    departures_.reset();
    throughHost_.reset();
    return connectThroughHost(nullptr);
  }

  // Once more, without: if what seemed to work does not.
  Status connectThroughHost(const GpuDirect* gpuDirect) {
    Peers::Purpose purpose{.name = "pinned",
                           .partAt = layout_.partAt(membership_.rank),
                           .partBytes = layout_.partBytes(),
                           .gpuDirect = gpuDirect,
                           .nearNics = wishes_.nearNics};
    for (int peer = 0; peer < membership_.ranks(); ++peer) purpose.without.push_back((*direct_)[peer].link != nullptr);
    KOLO_ASSIGN(throughHost_, Peers::connect(membership_, makeHostArena(), purpose, wishes_.transports, ""));
    KOLO_TRY(learnInboxes());
    tellWays();
    KOLO_ASSIGN(departures_, Departures::make(membership_, *throughHost_));
    return membership_.agree(pinAll());
  }

  // Each rank says which peers it writes to in their GPUs' memory, and out of its own: by which transport a peer writes
  // here, and so where, only the peer knows.
  Status learnInboxes() {
    std::string row;
    for (int peer = 0; peer < membership_.ranks(); ++peer) {
      const Peer& there = (*throughHost_)[peer];
      row += static_cast<char>((there.isArenaOnDevice ? kIntoDevice : 0) | (there.mirror.isOnDevice ? kFromDevice : 0));
    }
    KOLO_ASSIGN(const std::vector<std::string> rows, membership_.allGather(row));
    inboxes_.clear();
    for (const std::string& theirs : rows) inboxes_ += theirs[static_cast<std::size_t>(membership_.rank)];
    usesGpuDirect_ = std::any_of(rows.begin(), rows.end(), [](const std::string& theirs) {
      return theirs.find_first_not_of('\0') != std::string::npos;
    });
    return {};
  }
  bool receivesOnDevice(int peer) const { return (inboxes_[static_cast<std::size_t>(peer)] & kIntoDevice) != 0; }

  // What does not work of it, "" if all does.
  Result<std::string> provePosted() {
    if (!usesGpuDirect_) return std::string();
    std::vector<Trials::Inbox> inboxes(inboxes_.size());
    for (int peer = 0; peer < membership_.ranks(); ++peer) {
      if (!isPosted(peer) || inboxes_[static_cast<std::size_t>(peer)] == 0) continue;
      const bool isOnDevice = receivesOnDevice(peer);
      unsigned char* const arena = isOnDevice ? direct_->arena() : throughHost_->arena();
      inboxes[static_cast<std::size_t>(peer)] = {arena + layout_.partAt(peer), isOnDevice};
    }
    return Trials(membership_, *gpu_, layout_).provePosted(*throughHost_, inboxes);
  }
  bool sendsFromDevice(int peer) const { return (*throughHost_)[peer].mirror.isOnDevice; }

  // "1, 3": the ranks that are not reached directly and of which `predicate` holds.
  template <class Predicate>
  std::string listOf(Predicate&& predicate) const {
    std::string list;
    for (int peer = 0; peer < membership_.ranks(); ++peer) {
      if (peer == membership_.rank || (*direct_)[peer].link != nullptr || !predicate(peer)) continue;
      list += fmt::format("{}{}", list.empty() ? "" : ", ", peer);
    }
    return list;
  }

  // Between hosts it cannot be otherwise; on one, something may be wrong with the machine.
  void tellWays() const {
    const auto tell = [&](const char* verb, const char* where, const std::string& list) {
      if (!list.empty()) log::info("rank {} {} {}, by posted links: rank {}", membership_.rank, verb, where, list);
    };
    constexpr const char* kOnDevice = "its GPU's memory (GPUDirect)";
    constexpr const char* kOnHost = "pinned memory of the host";
    tell("sends from", kOnDevice, listOf([&](int peer) { return isPosted(peer) && sendsFromDevice(peer); }));
    tell("sends from", kOnHost, listOf([&](int peer) { return isPosted(peer) && !sendsFromDevice(peer); }));
    tell("receives in", kOnDevice, listOf([&](int peer) { return isPosted(peer) && receivesOnDevice(peer); }));
    tell("receives in", kOnHost, listOf([&](int peer) { return isPosted(peer) && !receivesOnDevice(peer); }));
    const std::string indirect = listOf([&](int peer) { return !isPosted(peer); });
    if (indirect.empty() || direct_->devices().empty()) return;  // the latter: it was asked for
    const std::string& why = (*direct_)[std::stoi(indirect)].unreached.message();
    log::warn("rank {} reaches the GPU of rank {} through the host's memory only: {}", membership_.rank, indirect, why);
  }

  bool isPosted(int peer) const { return throughHost_ != nullptr && (*throughHost_)[peer].isPosted(); }
  bool posts() const {
    for (int peer = 0; peer < membership_.ranks(); ++peer) {
      if (isPosted(peer)) return true;
    }
    return false;
  }

  Status pin(void* memory, std::uint64_t bytes) {
    KOLO_ASSIGN(Pinned pinned, Pinned::make(gpu_, memory, bytes));
    pinned_.push_back(std::move(pinned));
    return {};
  }

  // What this rank's kernels use of the host's memory. Another process's arena is another mapping, which is pinned for
  // itself; one of this process is pinned by its rank. What is posted is read out of its mirror.
  Status pinAll() {
    const std::string arena = listOf([&](int peer) { return !isPosted(peer) || !receivesOnDevice(peer); });
    if (!arena.empty()) {
      KOLO_ASSIGN(hostArena_->pinned, Pinned::make(gpu_, throughHost_->arena(), layout_.bytes()));
    }
    KOLO_TRY(pin(departures_->lines(), departures_->bytes()));
    for (int peer = 0; peer < membership_.ranks(); ++peer) {
      const Peer& there = (*throughHost_)[peer];
      if (there.link == nullptr) continue;
      if (there.isPosted() && !sendsFromDevice(peer)) KOLO_TRY(pin(there.mirror.data, layout_.partBytes()));
      if (!there.isPosted() && !all_[static_cast<std::size_t>(peer)].isInProcess(mine()))
        KOLO_TRY(pin(there.arena, layout_.bytes()));
    }
    return {};
  }

  // Links that map memory make hosts of the ranks, whatever memory it is.
  Status findLeaders() {
    leaders_.assign(all_.size(), 0);
    if (allDirect_) return {};
    int leader = membership_.rank;
    for (int peer = membership_.rank - 1; peer >= 0; --peer) {
      if (!isPosted(peer)) leader = peer;
    }
    BlobWriter writer;
    writer.put(leader);
    KOLO_ASSIGN(const std::vector<std::string> blobs, membership_.allGather(writer.text()));
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) leaders_[rank] = BlobReader(blobs[rank]).get<int>();
    for (std::size_t rank = 0; rank < leaders_.size(); ++rank) {
      for (std::size_t peer = 0; peer < rank; ++peer) {
        mapsHost_ = mapsHost_ || (leaders_[rank] == leaders_[peer] && reached_[rank][peer] == '0');
      }
    }
    return {};
  }

  Result<cuda::Engine::Pair> pairWith(int peer) const {
    const std::uint64_t theirPart = layout_.partAt(peer), myPart = layout_.partAt(membership_.rank);
    cuda::Engine::Pair pair;
    if ((*direct_)[peer].link != nullptr) {
      pair.mine = direct_->arena() + theirPart;
      pair.theirs = (*direct_)[peer].arena + myPart;
      pair.left = pair.mine + layout_.leftIn();
      return pair;
    }
    pair.isPosted = isPosted(peer);
    pair.rails = (*throughHost_)[peer].link->rails();
    pair.mine = direct_->arena();
    if (!pair.isPosted || !receivesOnDevice(peer)) {
      KOLO_ASSIGN(pair.mine, deviceAddress(*gpu_, throughHost_->arena()));
    }
    pair.mine += theirPart;
    pair.theirs = pair.isPosted ? throughHost_->partAt(peer) : (*throughHost_)[peer].arena;
    if (!pair.isPosted || !sendsFromDevice(peer)) {
      KOLO_ASSIGN(pair.theirs, deviceAddress(*gpu_, pair.theirs));
    }
    if (pair.isPosted) {
      KOLO_ASSIGN(unsigned char* const lines, deviceAddress(*gpu_, departures_->lines()));
      pair.left = lines + Departures::lineAt(peer);
    } else {
      pair.theirs += myPart;
      pair.left = pair.mine + layout_.leftIn();
    }
    return pair;
  }

  // "": the stream of the resident kernel has been taken.
  std::string whyNotResident(bool sharesContext) {
    if (gpu_->launchesBlock()) {
      return "a launch returns only when its kernel has ended (CUDA_LAUNCH_BLOCKING is set, or a tool has kernels run "
             "one after the other)";
    }
    if (!gpu_->canRing()) return fmt::format("device {} has no 64-bit memory operations in streams", gpu_->ordinal());
    if (sharesContext && drivers::streamQueues() < 16) {
      return "CUDA was initialised with CUDA_DEVICE_MAX_CONNECTIONS below 16 (8 by default), and the streams of ranks "
             "that share a device would "
             "hold each other up; set it to 32";
    }
    hasResidentStream_ = gpu_->takeResidentStream();
    if (hasResidentStream_) return "";
    return fmt::format(
        "the resident kernels of other ranks and communicators of this process, with the streams that wait for them, "
        "have the {} queues "
        "of device {} (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default, 32 at most); expected fewer of them",
        drivers::streamQueues(), gpu_->ordinal());
  }

  // Once for the process.
  void tellOfLazyLoading() const {
    static std::atomic<bool> told{false};
    CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
    if (gpu_->driver().cuModuleGetLoadingMode(&mode) != CUDA_SUCCESS || mode != CU_MODULE_LAZY_LOADING ||
        told.exchange(true))
      return;
    log::warn(
        "ranks of this process share device {}, and CUDA loads kernels lazily: the first launch of one of the "
        "program's own waits for all "
        "kernels that run, which may wait for what its thread does next; set CUDA_MODULE_LOADING to EAGER",
        gpu_->ordinal());
  }

  // Once for the process.
  void tellOfQueues() const {
    static std::atomic<bool> told{false};
    if (drivers::streamQueues() >= drivers::kMostQueues || told.exchange(true)) return;
    log::warn(
        "ranks of this process share device {}, where all streams have {} queues of the hardware: what stands in one "
        "waits for what came "
        "before it, of other streams too, and the kernels of ranks wait for each other; set "
        "CUDA_DEVICE_MAX_CONNECTIONS to {}",
        gpu_->ordinal(), drivers::streamQueues(), drivers::kMostQueues);
  }

  // Nobody goes on, or back, before all have taken hold of all arenas: agree() sees to that.
  Status makeEngine() {
    const bool sharesContext =
        count([&](const Hello& one) { return one.isOnDevice(mine()) && one.isInProcess(mine()); }) > 1;
    const std::string hindrance = wishes_.resident != 0 ? whyNotResident(sharesContext) : "";
    const bool resident = wishes_.resident != 0 && hindrance.empty();
    if (!hindrance.empty())
      log::warn("rank {} launches its operations, and has no resident kernel: {}", membership_.rank, hindrance);
    if (sharesContext) {
      tellOfLazyLoading();
      tellOfQueues();
    }
    cuda::Engine::Setup setup{.rank = membership_.rank,
                              .ranks = membership_.ranks(),
                              .layout = layout_,
                              .windows = Windows::kMost,
                              .sharesContext = sharesContext,
                              .resident = resident,
                              .residentFollows = wishes_.resident == 2,
                              .idleNs = wishes_.idleNs,
                              .beforeLaunch = {}};
    if (posts()) setup.beforeLaunch = [this](unsigned blocks, bool again) { proxy_->expect(blocks, again); };
    Result<std::unique_ptr<cuda::Engine>> engine = cuda::Engine::create(gpu_, setup);
    Status status = engine.status();
    std::vector<cuda::Engine::Pair> pairs(static_cast<std::size_t>(membership_.ranks()));
    for (int peer = 0; peer < membership_.ranks() && status.ok(); ++peer) {
      if (peer == membership_.rank) continue;
      Result<cuda::Engine::Pair> pair = pairWith(peer);
      status = pair.status();
      if (status.ok()) pairs[static_cast<std::size_t>(peer)] = pair.value();
    }
    if (status.ok()) {
      engine_ = engine.take();
      status = engine_->connect(pairs);
    }
    return membership_.agree(status);
  }

  void startProxy() {
    if (!posts()) return;
    Proxy::Setup setup{.peers = throughHost_.get(),
                       .rings = engine_->rings(),
                       .departures = departures_.get(),
                       .kernelsGaveUp = [this] { return engine_->fault().has_value(); },
                       .onFault = wishes_.onFault};
    proxy_ = std::make_unique<Proxy>(std::move(setup));
  }

  // The members of the same names, all that this rank's kernels use but for the engine's own: what goes last comes
  // first. What is pinned holds the Gpu, which then lives as long as the process.
  struct Reached {
    std::shared_ptr<memory::DeviceMemory> arena;
    std::unique_ptr<Peers> direct;
    std::unique_ptr<GpuDirect> gpuDirect;
    std::shared_ptr<HostArena> hostArena;
    std::unique_ptr<Peers> throughHost;
    std::unique_ptr<Departures> departures;
    std::vector<Pinned> pinned;
  };

  Membership& membership_;
  const Wishes wishes_;
  std::shared_ptr<cuda::Gpu> gpu_;
  std::vector<Hello> all_;
  std::atomic<int> taken_{0};  // blocks of the device
  cuda::ArenaLayout layout_;
  std::shared_ptr<memory::DeviceMemory> arena_;
  std::unique_ptr<Peers> direct_;
  std::vector<std::string> reached_;  // by rank, '0' or '1' for each peer: whether directly
  bool allDirect_ = false;
  std::unique_ptr<GpuDirect> gpuDirect_;
  std::shared_ptr<HostArena> hostArena_;
  std::unique_ptr<Peers> throughHost_;  // where there are pairs without a direct way
  static constexpr char kIntoDevice = 1, kFromDevice = 2;
  std::string inboxes_;         // by rank: whether it writes into this one's GPU's memory, and out of its own
  bool usesGpuDirect_ = false;  // any pair of ranks
  std::unique_ptr<Departures> departures_;
  std::vector<Pinned> pinned_;  // arenas of other processes, mirrors, departures
  std::vector<int> leaders_;
  bool mapsHost_ = false;  // some pair maps memory of the host, because nothing better reaches it
  bool hasResidentStream_ = false;
  std::unique_ptr<cuda::Engine> engine_;
  std::unique_ptr<Proxy> proxy_;  // where links are posted
};

}  // namespace

Result<std::unique_ptr<GpuRank>> GpuRank::connect(Membership& membership, const Wishes& wishes) {
  return CudaRank::make(membership, wishes);
}

}  // namespace kolo::comm

#else

namespace kolo::comm {

Result<std::unique_ptr<GpuRank>> GpuRank::connect(Membership&, const Wishes& wishes) {
  return error(koloUnsupported, "device is {}: this library was built without CUDA; expected -1, host memory",
               wishes.device);
}

}  // namespace kolo::comm

#endif
