#include "comm/communicator.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>

#include "base/log.h"
#include "base/settings.h"
#include "comm/blob.h"
#include "comm/stream.h"
#include "comm/undertake.h"
#include "drivers/cuda/devices.h"
#include "topology/topology.h"

namespace kolo::comm {

using device::Fault;

struct Surroundings {
  bool allMapped = true;
  std::vector<topology::Place> places;   // of each rank; the host is the least rank whose memory it reaches
  std::vector<planner::Uplink> uplinks;  // of each rank
  int cores = 1;                         // that the ranks share
  std::uint64_t singleCopyBytes = 0;
  bool writesPeers = true;
  bool waitsLonger = false;
};

namespace {

// From how many bytes on a copy by the kernel out of the peer's ordinary memory is used instead of two through staging.
// On AMD (Zen 5, 2 ranks) staging is faster, or within a tenth, at every size:
// perf/results/2026-11-21-single-copy-zen5.txt. On Intel (2 MiB of L2, 2 ranks) it takes as long at 4 KiB, and from 8
// KiB on a quarter more and soon half as much again: perf/results/2026-11-22-single-copy-intel.txt.
constexpr std::uint64_t kSingleCopyBytesOnIntel = 8192;

constexpr std::uint64_t kKeyOfPool = ~std::uint64_t{1};  // no color is so large

std::uint64_t ownSingleCopyBytes(const Peers& peers) {
  for (int rank = 0; rank < peers.ranks(); ++rank) {
    if (!peers.isOpen(rank) || peers[rank].isPosted() || peers[rank].link->reads().ok()) continue;
    log::debug("ordinary buffers go through staging: rank {}: {}", rank, peers[rank].link->reads().message());
    return UINT64_MAX;
  }
  const std::int64_t wish = settings::integer("KOLO_SINGLE_COPY_BYTES");
  if (wish >= 0) return static_cast<std::uint64_t>(wish);
  return topology::machine().cpuModel.find("Intel") != std::string::npos ? kSingleCopyBytesOnIntel : UINT64_MAX;
}

bool writesAll(const Peers& peers) {
  for (int rank = 0; rank < peers.ranks(); ++rank) {
    if (peers.isOpen(rank) && !peers[rank].isPosted() && !peers[rank].link->writes()) return false;
  }
  return true;
}

// By what this rank reaches other hosts, for the planner.
void tellUplink(const transport::Device::Network& network, BlobWriter& writer) {
  const auto hopUs = static_cast<double>(settings::integer("KOLO_NET_HOP_US"));
  writer.put(hopUs > 0 ? hopUs : network.messageNs / 1e3).put(network.putNs / 1e3).put(network.mostMegabits / 8e3);
  writer.put(static_cast<std::uint32_t>(network.nics.size()));
  for (const koloTransportNic& nic : network.nics) {
    const auto unknown = static_cast<double>(settings::integer("KOLO_NET_GBITS"));
    writer.putText(nic.name).put(nic.megabits > 0 ? static_cast<double>(nic.megabits) / 8e3 : unknown / 8);
  }
}

planner::Uplink hearUplink(int host, BlobReader& reader) {
  planner::Uplink uplink{.host = host, .nics = {}};
  uplink.hopUs = reader.get<double>();
  uplink.postUs = reader.get<double>();
  uplink.mostGigabytes = reader.get<double>();
  for (auto left = reader.get<std::uint32_t>(); left > 0 && !reader.truncated(); --left) {
    std::string name = reader.getText();
    uplink.nics.push_back({std::move(name), reader.get<double>()});
  }
  return uplink;
}

}  // namespace

std::string tellSurroundings(const Peers& peers) {
  const topology::Machine& mine = topology::machine();
  BlobWriter writer;
  writer.put(ownSingleCopyBytes(peers)).put(static_cast<std::uint8_t>(writesAll(peers)));
  writer.put(static_cast<std::uint8_t>(settings::integer("KOLO_SINGLE_COPY_BYTES") >= 0));
  writer.put(topology::placeOfProcess(peers.leader()));
  const std::vector<int> allowed = topology::allowedThreads();
  writer.put(transport::identity().hostId).put(mine.cpuQuota).put(static_cast<std::uint32_t>(allowed.size()));
  for (const int thread : allowed) writer.put(thread);
  tellUplink(peers.network(), writer);
  return writer.text();
}

namespace {

// What depends on all ranks. Cores: each may be bound to its own, so it takes all ranks' answers to know how many there
// are.
Surroundings hearSurroundings(const std::vector<std::string>& blobs) {
  struct Host {
    std::set<int> threads;
    double quota = 0;  // 0: none

    int cores() const {
      const int allowed = static_cast<int>(threads.size());
      return std::max(1, quota > 0 ? std::min(static_cast<int>(quota), allowed) : allowed);
    }
  };
  std::map<std::string, Host> hosts;
  bool isWished = false;  // how many bytes one copy is for
  Surroundings result;
  for (const std::string& blob : blobs) {
    BlobReader reader(blob);
    result.singleCopyBytes = std::max(result.singleCopyBytes, reader.get<std::uint64_t>());
    result.writesPeers = reader.get<std::uint8_t>() != 0 && result.writesPeers;
    isWished = reader.get<std::uint8_t>() != 0 || isWished;
    result.places.push_back(reader.get<topology::Place>());
    result.allMapped = result.allMapped && result.places.back().host == 0;
    const auto id = reader.get<std::array<char, 16>>();
    Host& host = hosts[std::string(id.data(), id.size())];
    const auto quota = reader.get<double>();
    if (quota > 0 && (host.quota == 0 || quota < host.quota)) host.quota = quota;
    for (auto left = reader.get<std::uint32_t>(); left > 0 && !reader.truncated(); --left)
      host.threads.insert(reader.get<int>());
    result.uplinks.push_back(hearUplink(result.places.back().host, reader));
  }
  if (!result.allMapped) result.singleCopyBytes = UINT64_MAX;
  result.cores = std::accumulate(hosts.begin(), hosts.end(), 0,
                                 [](int sum, const auto& host) { return sum + host.second.cores(); });
  result.waitsLonger = result.allMapped && static_cast<int>(blobs.size()) > result.cores && !isWished;
  return result;
}

template <class T>
bool isGiven(T value, T undefined) {
  return value != undefined;
}

// A field that is 0 or 1, or was left at its initial value.
Status takeSwitch(int given, const char* name, bool& option) {
  if (!isGiven(given, KOLO_CONFIG_UNDEF_INT)) return {};
  if (given != 0 && given != 1) return error(koloInvalidArgument, "{} is {}, expected 0 or 1", name, given);
  option = given == 1;
  return {};
}

}  // namespace

Result<Options> Options::make(const koloConfig_t* config, const Options* parent) {
  KOLO_TRY(settings::validate());
  KOLO_TRY(log::openFile());
  Options options;
  if (parent != nullptr) {
    options = *parent;
  } else {
    options.timeoutMs = static_cast<int>(settings::integer("KOLO_TIMEOUT_MS"));
    options.reproducible = settings::integer("KOLO_REPRODUCIBLE") != 0;
    options.eager = settings::integer("KOLO_EAGER") != 0;
    options.algorithm = settings::text("KOLO_ALGORITHM");
    options.transports = settings::text("KOLO_TRANSPORTS");
    options.name = "world";
    options.device = static_cast<int>(settings::integer("KOLO_DEVICE"));
    options.resident = static_cast<int>(settings::integer("KOLO_RESIDENT"));
  }
  if (config != nullptr) {
    if (config->magic != KOLO_CONFIG_MAGIC || config->size < sizeof(std::size_t) + 2 * sizeof(unsigned)) {
      return error(koloInvalidArgument, "the configuration is not initialised; start from KOLO_CONFIG_INITIALIZER");
    }
    if (config->version > KOLO_VERSION_CODE) {
      return error(koloInvalidArgument, "the configuration was made for version {} of Kolo, this is {}",
                   config->version, KOLO_VERSION_CODE);
    }
    if (isGiven(config->timeoutMs, KOLO_CONFIG_UNDEF_INT)) options.timeoutMs = config->timeoutMs;
    if (options.timeoutMs < 0) {
      return error(koloInvalidArgument, "timeoutMs is {}, expected milliseconds or 0 for no deadline",
                   options.timeoutMs);
    }
    KOLO_TRY(takeSwitch(config->reproducible, "reproducible", options.reproducible));
    if (config->algorithm != nullptr) options.algorithm = config->algorithm;
    if (config->transports != nullptr) options.transports = config->transports;
    if (config->name != nullptr) options.name = config->name;
    const bool hasDevice = config->size >= offsetof(koloConfig_t, device) + sizeof config->device;  // since 0.2
    if (hasDevice && isGiven(config->device, KOLO_CONFIG_UNDEF_INT)) options.device = config->device;
    const bool hasResident = config->size >= offsetof(koloConfig_t, resident) + sizeof config->resident;  // since 0.2
    if (hasResident && isGiven(config->resident, KOLO_CONFIG_UNDEF_INT)) {
      if (config->resident < 0 || config->resident > 2) {
        return error(koloInvalidArgument, "resident is {}, expected 0, 1 or 2", config->resident);
      }
      options.resident = config->resident;
    }
    const bool hasEager = config->size >= offsetof(koloConfig_t, eager) + sizeof config->eager;  // since 0.2
    if (hasEager) KOLO_TRY(takeSwitch(config->eager, "eager", options.eager));
    if (options.device < KOLO_HOST)
      return error(koloInvalidArgument, "device is {}, expected a CUDA device or KOLO_HOST", options.device);
  }
  if (const auto wishes = planner::parseWishes(options.algorithm); !wishes.ok()) {
    const bool fromEnvironment = options.algorithm == settings::text("KOLO_ALGORITHM");
    return error(fromEnvironment ? koloInvalidEnvironment : koloInvalidArgument, "{}: {}",
                 fromEnvironment ? "environment variable KOLO_ALGORITHM" : "algorithm", wishes.status().message());
  }
  return options;
}

Communicator::Communicator(Membership membership, const Options& options)
    : membership_(std::move(membership)), options_(options) {
  layout_ = ArenaLayout::make(membership_.ranks(), static_cast<std::uint64_t>(settings::integer("KOLO_STAGING_BYTES")));
  machine_.ranks = membership_.ranks();
  machine_.slotBytes = layout_.slotBytes;
  streamingBytes_ = static_cast<std::uint64_t>(settings::integer("KOLO_STREAMING_BYTES"));
}

Result<std::unique_ptr<Communicator>> Communicator::create(Membership membership, const Options& options) {
  std::unique_ptr<Communicator> communicator(new Communicator(std::move(membership), options));
  KOLO_TRY(communicator->connect());
  communicator->isMade_ = true;
  return communicator;
}

std::string Communicator::agreement(const ArenaLayout& layout, const Options& options) {
  return fmt::format("KOLO_STAGING_BYTES for {} slots of {} bytes, reproducible {}, algorithms \"{}\", {}",
                     layout.slots, layout.slotBytes, options.reproducible ? 1 : 0, options.algorithm,
                     options.device < 0      ? "host memory"
                     : options.resident != 0 ? "GPUs, resident"
                                             : "GPUs");
}

Peers::Purpose Communicator::staging(const ArenaLayout& layout, int rank) {
  return {.name = "staging",
          .partAt = layout.partAt(rank),
          .partBytes = layout.partBytes(),
          .mostAtOnce = static_cast<int>(settings::integer("KOLO_CONNECT_ALL_RANKS"))};
}

Status Communicator::connect() {
  KOLO_TRY(openWindows());
  KOLO_ASSIGN(const std::string nics, nearNics(membership_));
  Peers::Purpose purpose = staging(layout_, rank());
  purpose.nearNics = nics;
  KOLO_ASSIGN(peers_, Peers::connect(membership_, Given::ofNewHostMemory(layout_.bytes()), purpose, options_.transports,
                                     agreement(layout_, options_)));
  KOLO_ASSIGN(const std::vector<std::string> all, membership_.allGather(tellSurroundings(*peers_)));
  wasDumpable_ = isDumpable();
  const Surroundings around = hearSurroundings(all);
  arrange(around);
  if (options_.device >= 0) KOLO_TRY(connectGpus(around, nics));
  begin();
  return {};
}

Result<std::unique_ptr<Communicator>> Communicator::createOver(std::shared_ptr<Share> share,
                                                               std::unique_ptr<Peers> peers, Membership membership,
                                                               const Options& options,
                                                               const std::vector<std::string>& around) {
  std::unique_ptr<Communicator> communicator(new Communicator(std::move(membership), options));
  KOLO_TRY(communicator->openWindows());
  communicator->wasDumpable_ = share->pool()->wasDumpable();
  communicator->share_ = std::move(share);
  communicator->peers_ = std::move(peers);
  communicator->arrange(hearSurroundings(around));
  communicator->begin();
  communicator->isMade_ = true;
  return communicator;
}

Status Communicator::openWindows() {
  KOLO_TRY(setWishes(options_.algorithm));
  return windows_.open(ranks(), [this] { return holdLinks(); });
}

// What all ranks decide alike from what each has said. REQUIRES: peers_
void Communicator::arrange(const Surroundings& around) {
  machine_.cores = cores_ = around.cores;
  spreads_ = settings::integer("KOLO_SPREAD") != 0 && options_.device < 0 && around.allMapped && ranks() > around.cores;
  singleCopyBytes_ = around.singleCopyBytes;
  writesPeers_ = around.writesPeers;
  waitsLonger_ = around.waitsLonger && options_.device < 0;
  if (waitsLonger_) machine_.takenFromBytes = singleCopyBytes_;
  allMapped_ = machine_.mapped = around.allMapped;
  if (options_.device < 0) hosts_.arrange(around.places, rank(), machine_);
  planner::useUplinks(around.uplinks, machine_);
  polling_ = executor::Polling::make(ranks() <= machine_.cores, static_cast<int>(settings::integer("KOLO_SPIN")));
  links_.resize(static_cast<std::size_t>(ranks()));
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank()) continue;
    device::Link& link = links_[static_cast<std::size_t>(peer)];
    const ArenaLayout::Part in = layout_.part(peers_->arena() + layout_.partAt(peer));
    link.peer = peer;
    link.inbox = in.mailbox;
    link.inSlots = in.slots;
    link.windows = windows_.tableOf(peer);
    if (peers_->isOpen(peer)) aim(link);
  }
}

Status Communicator::connectGpus(const Surroundings& around, const std::string& nics) {
  const GpuRank::Wishes wishes{.device = options_.device,
                               .mostChannels = static_cast<int>(settings::integer("KOLO_GPU_CHANNELS")),
                               .resident = options_.resident,
                               .idleNs = static_cast<std::uint64_t>(settings::integer("KOLO_RESIDENT_IDLE_US")) * 1000,
                               .transports = options_.transports,
                               .nearNics = nics,
                               .onFault = [this] { checkGpu(); }};
  KOLO_ASSIGN(gpu_, GpuRank::connect(membership_, wishes));
  KOLO_TRY(arrangeGpus(around.uplinks));
  singleCopyBytes_ = UINT64_MAX;
  return {};
}

// From here on the communicator works, and hears of failures.
void Communicator::begin() {
  usesCuda_ = drivers::usesCuda();
  messages_ = std::make_unique<Messages>(*this, layout_, *peers_, windows_);
  membership_.control->subscribe(
      membership_.key, membership_.members, [this](const bootstrap::Failure& failure) { onFailure(failure); },
      [this](std::string_view question) { return giveAccount(question); }, membership_.family);
  mayReroute_ = posts() && peers_->mayReroute();
  if (mayReroute_) caretaker_ = std::jthread([this](const std::stop_token& stop) { takeCare(stop); });
  log::debug("communicator {}: rank {} of {}, transport {}, {} slots of {} bytes for each peer", options_.name, rank(),
             ranks(), peers_->transportNames(), layout_.slots, layout_.slotBytes);
}

Result<std::shared_ptr<Share>> Communicator::share(std::uint64_t child) {
  const bool may = !hasTriedToShare_ && allMapped_ && options_.device < 0 && ranks() <= Pool::kMostRanks;
  if (share_ != nullptr || !may) return share_;
  Membership making = membership_;
  making.gathers = 0;
  making.key = mixKeys(mixKeys(key(), child), kKeyOfPool);
  bool isDecided = false;
  auto shared = withoutExceptions([&]() -> Result<std::shared_ptr<Share>> {
    KOLO_ASSIGN(std::shared_ptr<Pool> pool, Pool::create(membership_, making, options_.transports, isDecided));
    return pool != nullptr ? Share::ofFirst(std::move(pool), ranks(), rank()) : nullptr;
  });
  if (!shared.ok()) {
    const Status& why = shared.status();
    const std::string message = fmt::format("on rank {}: {}", rank(), why.message());
    membership_.control->reportFailure(making.key, {why.code(), jobRank(rank()), message});
    // The others may go on with the pool, and this rank cannot: from here on they would wait for each other in vain.
    if (isDecided) fail({why.code(), jobRank(rank()), message});
    return why;
  }
  hasTriedToShare_ = true;
  share_ = shared.take();
  return share_;
}

// On GPUs other links make hosts of the ranks than in the host's memory: transports may be chosen such that only GPUs
// are mapped.
Status Communicator::arrangeGpus(std::vector<planner::Uplink> uplinks) {
  machine_ = gpu_->machine();
  if (machine_.mapped) return {};
  std::vector<topology::Place> places;
  for (const int leader : gpu_->leaders()) places.push_back({.host = leader});
  for (std::size_t i = 0; i < uplinks.size(); ++i) uplinks[i].host = gpu_->leaders()[i];
  planner::useUplinks(uplinks, machine_);
  hosts_.arrange(places, rank(), machine_);
  Status given = machine_.perHost > 1 ? gpu_->setHosts(hosts_.shape) : Status();
  if (given.ok() && !hosts_.order.empty()) given = gpu_->setOrder(hosts_.order);
  return membership_.agree(given);
}

// Where an open link leads.
void Communicator::aim(device::Link& link) {
  const ArenaLayout::Part out = layout_.part(peers_->partAt(link.peer));
  link.outbox = out.mailbox;
  link.outSlots = out.slots;
  link.isPosted = (*peers_)[link.peer].isPosted();
  link.gaveUp = link.isPosted ? nullptr : &boardOf(link.peer).gaveUp;
  link.railMask = (*peers_)[link.peer].link->rails() - 1;
}

Fault Communicator::open(device::Link& link) {
  if (link.outbox != nullptr)
    return {};  // its rails are counted as they were at first, whatever link has come in its place
  Status opened = peers_->open(link.peer);
  if (opened.ok() && allMapped_ && (*peers_)[link.peer].isPosted()) {
    opened = error(koloUnreachable, "rank {} maps the memory of others on this host, but not that of rank {}", rank(),
                   link.peer);
  }
  if (!opened.ok()) return lost(link.peer, std::move(opened));
  aim(link);
  return {};
}

Communicator::~Communicator() {
  requests_.stop();
  idleWorkers_.clear();
  caretaker_ = {};
  if (peers_ == nullptr) return;
  membership_.control->unsubscribe(membership_.key);
  // After a failure the peers learn, or know, what it was: leaving is not the reason why they wait in vain. The peers
  // of a communicator that was not made wholly are told by the rank that made it (comm/factory.cc).
  const bool isInUse = isMade_ && !failed();
  if (isInUse) sayGoodbye();
  if (gpu_ != nullptr) gpu_->close(!isInUse);  // before what its thread may use to tell of a fault
  if (!isInUse) peers_->abandon();
  if (gpu_ != nullptr) gpu_->release(std::make_shared<const std::vector<std::unique_ptr<Window>>>(windows_.dropAll()));
}

void Communicator::sayGoodbye() {
  if (gpu_ != nullptr) gpu_->leave();
  // Peers that still wait for this rank find out; the arena outlives this object in their mappings.
  device::storeRelease(ownBoard().left, 1);  // [left]
  if (share_ != nullptr) share_->ownBulletin().leave();
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank() && peers_->isOpen(peer)) sayGoodbye(peer);
  }
}

std::unique_ptr<Stream> Communicator::borrowWorker() {
  const std::lock_guard lock(workerMutex_);
  if (idleWorkers_.empty()) return std::make_unique<Stream>();
  std::unique_ptr<Stream> worker = std::move(idleWorkers_.back());
  idleWorkers_.pop_back();
  return worker;
}

void Communicator::giveBack(std::unique_ptr<Stream> worker) {
  const std::lock_guard lock(workerMutex_);
  idleWorkers_.push_back(std::move(worker));
}

// ---- failure

Status Communicator::failure() const {
  const std::lock_guard lock(failureMutex_);
  return failure_;
}

void Communicator::record(const bootstrap::Failure& failure) {
  const std::lock_guard lock(failureMutex_);
  if (!failure_.ok()) return;
  failure_ = Status(failure.code, failure.message);
  stop_.store(1, std::memory_order_release);  // [stop]
  if (gpu_ != nullptr) gpu_->stop();
}

bool Communicator::isReported(int peer) const {
  const std::lock_guard lock(failureMutex_);
  return reported_.count(peer) != 0;
}

void Communicator::onFailure(const bootstrap::Failure& failure) {
  bootstrap::Failure mine = failure;
  const auto member = std::find(membership_.members.begin(), membership_.members.end(), failure.rank);
  if (failure.code == koloRemoteError && member != membership_.members.end()) {
    const auto at = member - membership_.members.begin();
    const std::lock_guard lock(failureMutex_);
    reported_.insert(static_cast<int>(at));
    if (at != failure.rank)
      mine.message = fmt::format("rank {} of communicator {}: {}", at, options_.name, failure.message);
  }
  log::info("communicator {} has failed on rank {}: {}", options_.name, rank(), mine.message);
  record(mine);
}

void Communicator::fail(const bootstrap::Failure& failure) {
  record(failure);
  if (membership_.control != nullptr) membership_.control->reportFailure(membership_.key, failure, membership_.family);
}

Result<Window*> Communicator::addWindow(void* buffer, std::size_t bytes) {
  if (gpu_ == nullptr) peers_->openDevicesForWindows(membership_, options_.transports);
  KOLO_ASSIGN(Window* const window,
              windows().add(membership_, gpu_ != nullptr ? gpu_->peers() : *peers_, buffer, bytes));
  if (gpu_ == nullptr) return window;
  Status status;
  for (int rank = 0; rank < ranks() && status.ok() && window->zeroCopy; ++rank) {
    status = gpu_->setWindow(rank, window->index, windows_.tableOf(rank)[window->index]);
  }
  const std::uint64_t begin = gpu_->allocationId(buffer);
  // Of several allocations in a row, each has its own.
  const bool isOne = bytes != 0 && gpu_->allocationId(static_cast<unsigned char*>(buffer) + bytes - 1) == begin;
  window->allocationId = isOne ? begin : 0;
  if (status = membership_.agree(status); !status.ok()) {
    windows_.drop(*window);
    return status;
  }
  return window;
}

Result<Window*> Communicator::addMappedWindow(void* const* parts, const std::size_t* bytes) {
  if (gpu_ != nullptr) return error(koloUnsupported, "the communicator is on GPUs, expected one on the host");
  return windows().addMapped(membership_, *peers_, parts, bytes);
}

Status Communicator::removeWindow(Window** window) {
  forget();
  if (gpu_ != nullptr) (void)gpu_->drain();  // kernels use it until they end; those of a failed communicator end soon
  Status status = failed() ? failure() : Windows::agree(membership_, **window);
  if (!failed() && status.code() == koloMismatch) return status;
  // Others who have not answered still have it, and would name it in headers.
  if (!failed() && !status.ok()) fail({status.code(), jobRank(rank()), status.message()});
  windows_.drop(**window, [&](std::shared_ptr<const Window> dropped) {
    if (gpu_ != nullptr) gpu_->release(std::move(dropped));
  });
  *window = nullptr;
  return !status.ok() && failed() ? failure() : status;
}

Status Communicator::checkPlace(const char* name, const void* buffer, std::uint64_t bytes) const {
  return gpu_ != nullptr ? gpu_->checkBuffer(name, buffer, bytes) : drivers::checkHostMemory(name, buffer, bytes);
}

// ---- choices

Status Communicator::setWishes(std::string_view text) {
  KOLO_ASSIGN(std::vector<planner::Wish> wishes, planner::parseWishes(text));
  {
    const std::lock_guard lock(wishesMutex_);
    wishes_ = std::move(wishes);
    wishesHaveRanges_ = planner::haveRanges(wishes_);
  }
  for (auto& classes : plans_) classes.fill(std::nullopt);
  forget();
  return {};
}

std::string Communicator::explain(const planner::Query& query) const {
  const std::lock_guard lock(wishesMutex_);
  return planner::explain(query, machine_, wishes_);
}

}  // namespace kolo::comm
