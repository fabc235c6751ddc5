#include "gpu/gpu_host_path.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "gpu/trials.h"

namespace kolo::gpu {

namespace cuda = executor::cuda;

Result<std::unique_ptr<GpuHostPath>> GpuHostPath::make(links::Membership& membership, std::shared_ptr<cuda::Gpu> gpu,
                                                       const cuda::ArenaLayout& layout, const GpuCensus& census,
                                                       const links::Peers& direct, Setup setup) {
  std::unique_ptr<GpuHostPath> path(
      new GpuHostPath(membership, std::move(gpu), layout, census, direct, std::move(setup)));
  KOLO_TRY(path->connect());
  return path;
}

// "1, 3": the ranks that are not reached directly and of which `predicate` holds.
template <class Predicate>
std::string GpuHostPath::listOf(Predicate&& predicate) const {
  std::string list;
  for (int peer = 0; peer < membership_.ranks(); ++peer) {
    if (peer == membership_.rank || direct_[peer].link != nullptr || !predicate(peer)) continue;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", peer);
  }
  return list;
}

Status GpuHostPath::connect() {
  gpuDirect_ = std::make_unique<links::GpuDirect>(setup_.arena, [&gpu = *gpu_](const memory::DeviceMemory& memory) {
    return gpu.clear(reinterpret_cast<CUdeviceptr>(memory.as<void>()), memory.bytes());
  });
  KOLO_TRY(connectWith(gpuDirect_.get()));
  KOLO_ASSIGN(const std::string problem, provePosted());
  if (problem.empty()) return {};
  if (gpuDirect_->isForced())
    return error(koloUnsupported, "KOLO_GPUDIRECT is {}, but {}; expected auto or off", gpuDirect_->wish(), problem);
  log::warn("rank {} goes without GPUDirect: {}", membership_.rank, problem);
  pinned_.clear();
  departures_.reset();
  throughHost_.reset();
  return connectWith(nullptr);
}

// With GPUDirect; then without it, if what seemed to work does not.
Status GpuHostPath::connectWith(const links::GpuDirect* gpuDirect) {
  links::Peers::Purpose purpose{.name = "pinned",
                                .partAt = layout_.partAt(membership_.rank),
                                .partBytes = layout_.partBytes(),
                                .gpuDirect = gpuDirect,
                                .nearNics = setup_.nearNics};
  for (int peer = 0; peer < membership_.ranks(); ++peer) purpose.without.push_back(direct_[peer].link != nullptr);
  KOLO_ASSIGN(throughHost_, links::Peers::connect(membership_, makeArena(), purpose, setup_.transports, ""));
  KOLO_TRY(learnInboxes());
  tellPaths();
  KOLO_ASSIGN(departures_, Departures::make(membership_, *throughHost_));
  return membership_.agree(pinAll());
}

Result<links::Given> GpuHostPath::makeArena() {
  KOLO_ASSIGN(memory::SharedMemory memory, memory::SharedMemory::create(layout_.bytes(), "kolo-arena"));
  links::Given given = links::Given::of(std::make_shared<memory::SharedMemory>(std::move(memory)), layout_.bytes());
  hostArena_ = std::make_shared<HostArena>(HostArena{given.owner, {}});
  given.owner = hostArena_;
  return given;
}

// Each rank says which peers it writes to in their GPUs' memory, and out of its own: by which transport a peer writes
// here, and so where, only the peer knows.
Status GpuHostPath::learnInboxes() {
  std::string row;
  for (int peer = 0; peer < membership_.ranks(); ++peer) {
    const links::Peer& there = (*throughHost_)[peer];
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

// What does not work of it, "" if all does.
Result<std::string> GpuHostPath::provePosted() {
  if (!usesGpuDirect_) return std::string();
  std::vector<Trials::Inbox> inboxes(inboxes_.size());
  for (int peer = 0; peer < membership_.ranks(); ++peer) {
    if (!isPosted(peer) || inboxes_[static_cast<std::size_t>(peer)] == 0) continue;
    const bool isOnDevice = receivesOnDevice(peer);
    unsigned char* const arena = isOnDevice ? direct_.arena() : throughHost_->arena();
    inboxes[static_cast<std::size_t>(peer)] = {arena + layout_.partAt(peer), isOnDevice};
  }
  return Trials(membership_, *gpu_, layout_).provePosted(*throughHost_, inboxes);
}

// Between hosts it cannot be otherwise; on one, something may be wrong with the machine.
void GpuHostPath::tellPaths() const {
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
  if (indirect.empty() || direct_.devices().empty()) return;  // the latter: it was asked for
  const std::string& why = direct_[std::stoi(indirect)].unreached.message();
  log::warn("rank {} reaches the GPU of rank {} through the host's memory only: {}", membership_.rank, indirect, why);
}

bool GpuHostPath::posts() const {
  for (int peer = 0; peer < membership_.ranks(); ++peer) {
    if (isPosted(peer)) return true;
  }
  return false;
}

Status GpuHostPath::pin(void* memory, std::uint64_t bytes) {
  KOLO_ASSIGN(Pinned pinned, Pinned::make(gpu_, memory, bytes));
  pinned_.push_back(std::move(pinned));
  return {};
}

// What this rank's kernels use of the host's memory. Another process's arena is another mapping, which is pinned for
// itself; one of this process is pinned by its rank. What is posted is read out of its mirror.
Status GpuHostPath::pinAll() {
  const std::string arena = listOf([&](int peer) { return !isPosted(peer) || !receivesOnDevice(peer); });
  if (!arena.empty()) {
    KOLO_ASSIGN(hostArena_->pinned, Pinned::make(gpu_, throughHost_->arena(), layout_.bytes()));
  }
  KOLO_TRY(pin(departures_->lines(), departures_->bytes()));
  for (int peer = 0; peer < membership_.ranks(); ++peer) {
    const links::Peer& there = (*throughHost_)[peer];
    if (there.link == nullptr) continue;
    if (there.isPosted() && !sendsFromDevice(peer)) KOLO_TRY(pin(there.mirror.data, layout_.partBytes()));
    if (!there.isPosted() && !census_[peer].isInProcess(census_.mine())) KOLO_TRY(pin(there.arena, layout_.bytes()));
  }
  return {};
}

Result<cuda::Engine::Pair> GpuHostPath::pairWith(int peer) const {
  const std::uint64_t theirPart = layout_.partAt(peer), myPart = layout_.partAt(membership_.rank);
  cuda::Engine::Pair pair;
  pair.isPosted = isPosted(peer);
  pair.rails = (*throughHost_)[peer].link->rails();
  pair.mine = direct_.arena();
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

}  // namespace kolo::gpu
