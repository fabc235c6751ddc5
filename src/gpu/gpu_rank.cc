#include "gpu/gpu_rank.h"

#if KOLO_HAVE_CUDA

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "executor/cuda/engine.h"
#include "gpu/gpu_census.h"
#include "gpu/gpu_host_path.h"
#include "gpu/gpu_warnings.h"
#include "gpu/proxy.h"
#include "gpu/trials.h"
#include "links/blob.h"
#include "links/windows.h"
#include "transport/registry.h"

namespace kolo::gpu {
namespace {

namespace cuda = executor::cuda;

// Of a rank with a device for itself: as many as fill its links. Ranks that share a device need more to fill its
// memory's bandwidth.
constexpr int kMostChannels = 32, kMostChannelsShared = 64;
constexpr int kMostMessageChannels = 8;
constexpr std::uint64_t kMostArenaBytes = std::uint64_t{512} << 20;  // however many ranks there are

class CudaRank final : public GpuRank {
 public:
  ~CudaRank() override {
    proxy_.reset();
    const bool mayRunUnseen = engine_ != nullptr && engine_->mayRunUnseen();
    engine_.reset();
    if (mayRunUnseen) {
      gpu_->keep(std::make_shared<Reached>(Reached{std::move(arena_), std::move(direct_), std::move(hostPath_)}));
    }
    if (hasResidentStream_) gpu_->giveBackResidentStream();
    if (gpu_ != nullptr) gpu_->giveBack(taken_.exchange(0));
  }

  static Result<std::unique_ptr<GpuRank>> make(links::Membership& membership, const Wishes& wishes) {
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

  links::Peers& peers() const override { return *direct_; }
  planner::Machine machine() const override {
    planner::Machine machine = census_->machine(mapsHost_);
    machine.ranks = machine.cores = membership_.ranks();  // no rank waits for another's turn
    machine.mapped = std::all_of(leaders_.begin(), leaders_.end(), [](int leader) { return leader == 0; });
    machine.slotBytes = layout_.slotBytes;
    machine.channels = layout_.channels;
    return machine;
  }
  std::string transportNames() const override {
    std::string names = direct_->transportNames();
    if (hostPath_ == nullptr) return names;
    const std::string through = hostPath_->peers().transportNames();
    return names == "self" ? through : names + "+" + through;
  }
  const std::vector<int>& leaders() const override { return leaders_; }
  Status setHosts(const device::Hosts& hosts) override { return engine_->setHosts(hosts); }
  Status setMesh(const device::Mesh& mesh) override { return engine_->setMesh(mesh); }
  const device::Mesh* mesh() const override { return engine_->mesh(); }
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
  Status place(device::Work& work, std::uint64_t edgesAt, Table& table) override {
    return engine_->place(work, edgesAt, table);
  }
  Status enqueue(std::span<device::Work> works, std::uint32_t messages, const std::vector<Table>& tables, int timeoutMs,
                 void* stream) override {
    return engine_->enqueue(works, messages, tables, static_cast<std::uint64_t>(timeoutMs) * 1'000'000u,
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
        device::storeRelease(*reinterpret_cast<device::Counter*>(hostPath_->peers()[peer].arena + place),
                             device::kPeerLeft);  // [gone]
      }
    }
    if (proxy_ != nullptr) proxy_->finish(membership_.initTimeoutMs);
  }
  void close(bool failed) override {
    if (proxy_ != nullptr) proxy_->end();  // until then its thread asks this object for it, of a loss
    proxy_.reset();
    if (failed && hostPath_ != nullptr) hostPath_->peers().abandon();
  }
  Status drain() override { return engine_->drain(); }
  void release(std::shared_ptr<const void> used) override {
    if (engine_->mayRunUnseen()) gpu_->keep(std::move(used));
  }

 protected:
  const void* enter() const override { return gpu_->enter(); }
  void exit(const void* before) const override { gpu_->leave(static_cast<const cuda::Gpu*>(before)); }

 private:
  CudaRank(links::Membership& membership, const Wishes& wishes) : membership_(membership), wishes_(wishes) {}

  Status greet() {
    Result<std::shared_ptr<cuda::Gpu>> gpu = cuda::Gpu::open(wishes_.device);
    KOLO_TRY(membership_.agree(gpu.status()));
    gpu_ = gpu.take();
    KOLO_ASSIGN(census_, GpuCensus::take(membership_, *gpu_));
    return {};
  }

  Status takeBlocks() {
    const int resident = wishes_.resident ? cuda::kResidentBlocks : 0;
    const int most = wishes_.mostChannels > 0 ? wishes_.mostChannels
                     : census_->sharing() > 1 ? kMostChannelsShared
                                              : kMostChannels;
    taken_ = gpu_->take(
        std::min(std::max(census_->fairShare(*gpu_, wishes_.mostChannels > 0), 1 + resident), most + resident));
    links::BlobWriter writer;
    writer.put(taken_.load());
    KOLO_ASSIGN(const std::vector<std::string> blobs, membership_.allGather(writer.text()));
    int least = taken_;
    std::size_t poorest = static_cast<std::size_t>(membership_.rank);
    for (std::size_t i = 0; i < blobs.size(); ++i) {
      const int theirs = links::BlobReader(blobs[i]).get<int>();
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
          (*census_)[static_cast<int>(poorest)].ordinal, poorest, gpu_->residentBlocks(), census_->sharing());
    }
    layout_.messageChannels = std::min(layout_.channels, kMostMessageChannels);
    layout_.shrinkTo(kMostArenaBytes);
    gpu_->giveBack(taken_ - layout_.channels - resident);
    taken_ = layout_.channels + resident;
    return {};
  }

  Result<links::Given> makeArena() {
    KOLO_ASSIGN(memory::DeviceMemory created, memory::DeviceMemory::create(gpu_->ordinal(), layout_.bytes(), true));
    arena_ = std::make_shared<memory::DeviceMemory>(std::move(created));
    KOLO_TRY(gpu_->clear(reinterpret_cast<CUdeviceptr>(arena_->as<void>()), layout_.bytes()));
    return links::Given::of(arena_, layout_.bytes());
  }

  Status connectArenas() {
    KOLO_ASSIGN(direct_, links::Peers::connect(membership_, makeArena(),
                                               {.name = "gpu", .device = gpu_->ordinal(), .mayMiss = true},
                                               wishes_.transports, fmt::format("{} channels", layout_.channels)));
    return {};
  }

  Status proveLinks() {
    KOLO_ASSIGN(reached_, Trials(membership_, *gpu_, layout_).proveMapped(*direct_));
    allDirect_ = std::all_of(reached_.begin(), reached_.end(),
                             [](const std::string& row) { return row.find('0') == std::string::npos; });
    return {};
  }

  Status connectThroughHost() {
    if (allDirect_) return {};
    KOLO_ASSIGN(hostPath_, GpuHostPath::make(membership_, gpu_, layout_, *census_, *direct_,
                                             {arena_, wishes_.transports, wishes_.nearNics}));
    return {};
  }
  bool isPosted(int peer) const { return hostPath_ != nullptr && hostPath_->isPosted(peer); }
  bool posts() const { return hostPath_ != nullptr && hostPath_->posts(); }

  // Links that map memory make hosts of the ranks, whatever memory it is.
  Status findLeaders() {
    leaders_.assign(static_cast<std::size_t>(membership_.ranks()), 0);
    if (allDirect_) return {};
    int leader = membership_.rank;
    for (int peer = membership_.rank - 1; peer >= 0; --peer) {
      if (!isPosted(peer)) leader = peer;
    }
    links::BlobWriter writer;
    writer.put(leader);
    KOLO_ASSIGN(const std::vector<std::string> blobs, membership_.allGather(writer.text()));
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) leaders_[rank] = links::BlobReader(blobs[rank]).get<int>();
    for (std::size_t rank = 0; rank < leaders_.size(); ++rank) {
      for (std::size_t peer = 0; peer < rank; ++peer) {
        mapsHost_ = mapsHost_ || (leaders_[rank] == leaders_[peer] && reached_[rank][peer] == '0');
      }
    }
    return {};
  }

  // Where this rank's kernels and a peer's write.
  Result<cuda::Engine::Pair> pairWith(int peer) const {
    if ((*direct_)[peer].link == nullptr) return hostPath_->pairWith(peer);
    cuda::Engine::Pair pair;
    pair.mine = direct_->arena() + layout_.partAt(peer);
    pair.theirs = (*direct_)[peer].arena + layout_.partAt(membership_.rank);
    pair.left = pair.mine + layout_.leftIn();
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

  // Nobody goes on, or back, before all have taken hold of all arenas: agree() sees to that.
  Status makeEngine() {
    const bool sharesContext = census_->sharingContext() > 1;
    const std::string hindrance = wishes_.resident != 0 ? whyNotResident(sharesContext) : "";
    const bool resident = wishes_.resident != 0 && hindrance.empty();
    if (!hindrance.empty())
      log::warn("rank {} launches its operations, and has no resident kernel: {}", membership_.rank, hindrance);
    if (sharesContext) {
      warnOfLazyLoading(*gpu_);
      warnOfQueues(*gpu_);
    }
    cuda::Engine::Setup setup{.rank = membership_.rank,
                              .ranks = membership_.ranks(),
                              .layout = layout_,
                              .windows = links::Windows::kMost,
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
    Proxy::Setup setup{.peers = &hostPath_->peers(),
                       .rings = engine_->rings(),
                       .departures = &hostPath_->departures(),
                       .kernelsGaveUp = [this] { return engine_->fault().has_value(); },
                       .onFault = wishes_.onFault};
    proxy_ = std::make_unique<Proxy>(std::move(setup));
  }

  // The members of the same names, all that this rank's kernels use but for the engine's own: what goes last comes
  // first. What is pinned holds the Gpu, which then lives as long as the process.
  struct Reached {
    std::shared_ptr<memory::DeviceMemory> arena;
    std::unique_ptr<links::Peers> direct;
    std::unique_ptr<GpuHostPath> hostPath;
  };

  links::Membership& membership_;
  const Wishes wishes_;
  std::shared_ptr<cuda::Gpu> gpu_;
  std::unique_ptr<GpuCensus> census_;
  std::atomic<int> taken_{0};  // blocks of the device
  cuda::ArenaLayout layout_;
  std::shared_ptr<memory::DeviceMemory> arena_;
  std::unique_ptr<links::Peers> direct_;
  std::vector<std::string> reached_;  // by rank, '0' or '1' for each peer: whether directly
  bool allDirect_ = false;
  std::unique_ptr<GpuHostPath> hostPath_;  // where there are pairs without a direct way
  std::vector<int> leaders_;
  bool mapsHost_ = false;  // some pair maps memory of the host, because nothing better reaches it
  bool hasResidentStream_ = false;
  std::unique_ptr<cuda::Engine> engine_;
  std::unique_ptr<Proxy> proxy_;  // where links are posted
};

}  // namespace

Result<std::unique_ptr<GpuRank>> GpuRank::connect(links::Membership& membership, const Wishes& wishes) {
  return CudaRank::make(membership, wishes);
}

}  // namespace kolo::gpu

#else

namespace kolo::gpu {

Result<std::unique_ptr<GpuRank>> GpuRank::connect(links::Membership&, const Wishes& wishes) {
  return error(koloUnsupported, "device is {}: this library was built without CUDA; expected -1, host memory",
               wishes.device);
}

}  // namespace kolo::gpu

#endif
