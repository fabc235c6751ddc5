#include "gpu/gpu_rank.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/caller.h"
#include "base/log.h"
#include "drivers/cuda/devices.h"
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
constexpr int kAssemblyMs = 20 * 60'000;  // for a driver that assembles the kernels, beside KOLO_INIT_TIMEOUT_MS
constexpr std::uint64_t kMostArenaBytes = std::uint64_t{512} << 20;  // however many ranks there are

// All that kernels use but for the engine's own: what goes last comes first. What is pinned holds the Gpu, which then
// lives as long as the process.
struct Reached {
  std::shared_ptr<memory::DeviceMemory> arena;
  std::unique_ptr<links::Peers> direct;
  std::unique_ptr<GpuHostPath> hostPath;
};

// Two settings of CUDA slow down ranks of one process that share a device. Users are told of each once.

void warnOfLazyLoading(const executor::cuda::Gpu& gpu) {
  static std::atomic<bool> told{false};
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  if (gpu.driver().cuModuleGetLoadingMode(&mode) != CUDA_SUCCESS || mode != CU_MODULE_LAZY_LOADING ||
      told.exchange(true))
    return;
  log::warn(
      "ranks of this process share device {}, and CUDA loads kernels lazily: the first launch of one of the "
      "program's own waits for all "
      "kernels that run, which may wait for what its thread does next; set CUDA_MODULE_LOADING to EAGER",
      gpu.ordinal());
}

void warnOfQueues(const executor::cuda::Gpu& gpu) {
  static std::atomic<bool> told{false};
  if (drivers::streamQueues() >= drivers::kMostQueues || told.exchange(true)) return;
  log::warn(
      "ranks of this process share device {}, where all streams have {} queues of the hardware: what stands in one "
      "waits for what came "
      "before it, of other streams too, and the kernels of ranks wait for each other; set "
      "CUDA_DEVICE_MAX_CONNECTIONS to {}",
      gpu.ordinal(), drivers::streamQueues(), drivers::kMostQueues);
}

}  // namespace

GpuRank::~GpuRank() {
  proxy_.reset();
  const bool mayRunUnseen = engine_ != nullptr && engine_->mayRunUnseen();
  engine_.reset();
  if (mayRunUnseen) {
    gpu_->keep(std::make_shared<Reached>(Reached{std::move(arena_), std::move(direct_), std::move(hostPath_)}));
  }
  if (hasResidentStream_) gpu_->giveBackResidentStream();
  if (gpu_ != nullptr) gpu_->giveBack(taken_.exchange(0));
}

Result<std::unique_ptr<GpuRank>> GpuRank::connect(links::Membership& membership, const Wishes& wishes) {
  std::unique_ptr<GpuRank> rank(new GpuRank(membership, wishes));
  KOLO_TRY(rank->greet());
  const cuda::Gpu::Visit visit(*rank->gpu_);  // for all the steps that follow
  KOLO_TRY(rank->takeBlocks());
  KOLO_TRY(rank->connectArenas());
  KOLO_TRY(rank->proveLinks());
  KOLO_TRY(rank->connectThroughHost());
  KOLO_TRY(rank->findLeaders());
  KOLO_TRY(rank->makeEngine());
  rank->startProxy();
  return rank;
}

planner::Machine GpuRank::machine() const {
  planner::Machine machine = census_->machine(mapsHost_);
  machine.ranks = machine.cores = membership_.ranks();  // no rank waits for another's turn
  machine.mapped = std::all_of(leaders_.begin(), leaders_.end(), [](int leader) { return leader == 0; });
  machine.slotBytes = layout_.slotBytes;
  machine.packetBytes = machine.mapped ? layout_.kPacketBytes : 0;
  machine.channels = layout_.channels;
  return machine;
}

std::string GpuRank::transportNames() const {
  std::string names = direct_->transportNames();
  if (hostPath_ == nullptr) return names;
  const std::string through = hostPath_->peers().transportNames();
  return names == "self" ? through : names + "+" + through;
}

Status GpuRank::checkBuffer(const char* name, const void* buffer, std::uint64_t bytes) const {
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

std::uint64_t GpuRank::allocationId(const void* address) const {
  const Result<cuda::Gpu::Allocation> allocation = gpu_->allocationAt(address);
  return allocation.ok() ? allocation.value().id : 0;
}

std::optional<device::Fault> GpuRank::fault() const {
  const std::optional<device::Fault> ofKernels = engine_->fault();
  return ofKernels.has_value() || proxy_ == nullptr ? ofKernels : proxy_->fault();
}

void GpuRank::stop() {
  engine_->stop();
  if (proxy_ != nullptr) proxy_->stop();
  gpu_->giveBack(taken_.exchange(0));
}

void GpuRank::leave() {
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

void GpuRank::close(bool failed) {
  if (proxy_ != nullptr) proxy_->end();  // until then its thread asks this object for it, of a loss
  proxy_.reset();
  if (failed && hostPath_ != nullptr) hostPath_->peers().abandon();
}

void GpuRank::release(std::shared_ptr<const void> used) {
  if (engine_->mayRunUnseen()) gpu_->keep(std::move(used));
}

Status GpuRank::greet() {
  Result<std::shared_ptr<cuda::Gpu>> gpu = cuda::Gpu::open(wishes_.device);
  KOLO_ASSIGN(const bool anyAssembles, membership_.agreeWhether(gpu.status(), gpu.ok() && gpu.value()->mustAssemble()));
  gpu_ = gpu.take();
  if (anyAssembles) {
    const int usualMs = std::exchange(membership_.initTimeoutMs, membership_.initTimeoutMs + kAssemblyMs);
    const Status mine = [&] {
      const WhileLent lent;  // other threads go on with the parent meanwhile, as they do while this one waits for ranks
      return gpu_->assemble();
    }();
    const Status agreed = membership_.agree(mine);
    membership_.initTimeoutMs = usualMs;
    KOLO_TRY(agreed);
  }
  KOLO_ASSIGN(census_, GpuCensus::take(membership_, *gpu_));
  return {};
}

Status GpuRank::takeBlocks() {
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
    return error(koloUnsupported,
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

Result<links::Given> GpuRank::makeArena() {
  KOLO_ASSIGN(memory::DeviceMemory created, memory::DeviceMemory::create(gpu_->ordinal(), layout_.bytes(), true));
  arena_ = std::make_shared<memory::DeviceMemory>(std::move(created));
  KOLO_TRY(gpu_->clear(reinterpret_cast<CUdeviceptr>(arena_->as<void>()), layout_.bytes()));
  return links::Given::of(arena_, layout_.bytes());
}

Status GpuRank::connectArenas() {
  KOLO_ASSIGN(direct_, links::Peers::connect(membership_, makeArena(),
                                             {.name = "gpu", .device = gpu_->ordinal(), .mayMiss = true},
                                             wishes_.transports, fmt::format("{} channels", layout_.channels)));
  return {};
}

Status GpuRank::proveLinks() {
  KOLO_ASSIGN(reached_, Trials(membership_, *gpu_, layout_).proveMapped(*direct_));
  allDirect_ = std::all_of(reached_.begin(), reached_.end(),
                           [](const std::string& row) { return row.find('0') == std::string::npos; });
  return {};
}

Status GpuRank::connectThroughHost() {
  if (allDirect_) return {};
  KOLO_ASSIGN(hostPath_, GpuHostPath::make(membership_, gpu_, layout_, *census_, *direct_,
                                           {arena_, wishes_.transports, wishes_.nearNics}));
  return {};
}

// Links that map memory make hosts of the ranks, whatever memory it is.
Status GpuRank::findLeaders() {
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
Result<cuda::Engine::Pair> GpuRank::pairWith(int peer) const {
  if ((*direct_)[peer].link == nullptr) return hostPath_->pairWith(peer);
  cuda::Engine::Pair pair;
  pair.mine = direct_->arena() + layout_.partAt(peer);
  pair.theirs = (*direct_)[peer].arena + layout_.partAt(membership_.rank);
  pair.left = pair.mine + layout_.leftIn();
  return pair;
}

// "": the stream of the resident kernel has been taken.
std::string GpuRank::whyNotResident(bool sharesContext) {
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
Status GpuRank::makeEngine() {
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

void GpuRank::startProxy() {
  if (!posts()) return;
  Proxy::Setup setup{.peers = &hostPath_->peers(),
                     .rings = engine_->rings(),
                     .departures = &hostPath_->departures(),
                     .kernelsGaveUp = [this] { return engine_->fault().has_value(); },
                     .onFault = wishes_.onFault};
  proxy_ = std::make_unique<Proxy>(std::move(setup));
}

}  // namespace kolo::gpu
