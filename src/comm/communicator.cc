#include "comm/communicator.h"

#include "base/log.h"
#include "base/settings.h"
#include "comm/gpu_backend.h"
#include "comm/host_backend.h"
#include "comm/stream.h"
#include "comm/surroundings.h"
#include "comm/undertake.h"
#include "topology/topology.h"

namespace kolo::comm {

using device::Fault;

namespace {

constexpr std::uint64_t kKeyOfPool = ~std::uint64_t{1};  // no color is so large

}  // namespace

Communicator::Communicator(Membership membership, const Options& options)
    : membership_(std::move(membership)), options_(options), failure_(membership_, options_.name,
                                                                      [this] {
                                                                        if (backend_ != nullptr) backend_->stop();
                                                                      }),
      reasons_(membership_.rank), choices_(machine_, options.reproducible),
      operations_(membership_.rank, membership_.ranks()) {
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
  const Surroundings around = hearSurroundings(all);
  arrange(around, isDumpable());
  if (options_.device >= 0) {
    KOLO_TRY(connectGpus(around, nics));
  } else {
    backend_ = std::make_unique<HostBackend>(*this);
  }
  begin();
  return {};
}

Result<std::unique_ptr<Communicator>> Communicator::createOver(std::shared_ptr<Share> share,
                                                               std::unique_ptr<Peers> peers, Membership membership,
                                                               const Options& options,
                                                               const std::vector<std::string>& around) {
  std::unique_ptr<Communicator> communicator(new Communicator(std::move(membership), options));
  KOLO_TRY(communicator->openWindows());
  const bool wasDumpable = share->pool()->wasDumpable();
  communicator->share_ = std::move(share);
  communicator->peers_ = std::move(peers);
  communicator->arrange(hearSurroundings(around), wasDumpable);
  communicator->backend_ = std::make_unique<HostBackend>(*communicator);
  communicator->begin();
  communicator->isMade_ = true;
  return communicator;
}

Status Communicator::openWindows() {
  KOLO_TRY(setWishes(options_.algorithm));
  return windows_.open(ranks(), [this] { return traffic_->hold(); });
}

// What all ranks decide alike from what each has said. wasDumpable: this process. REQUIRES: peers_
void Communicator::arrange(const Surroundings& around, bool wasDumpable) {
  machine_.cores = cores_ = around.cores;
  site_.copies = {.ranks = ranks(),
                  .singleCopyBytes = around.singleCopyBytes,
                  .canWritePeers = around.writesPeers,
                  .ranksShareCores = around.waitsLonger && options_.device < 0};
  if (site_.copies.ranksShareCores) machine_.takenFromBytes = around.singleCopyBytes;
  allMapped_ = machine_.mapped = around.allMapped;
  if (options_.device < 0) hosts_.arrange(around.places, rank(), machine_);
  planner::useUplinks(around.uplinks, machine_);
  makeWaiter(around);
  makeTraffic(wasDumpable);
  makeSite();
}

// What waits, and what puts into words why a wait was in vain.
void Communicator::makeWaiter(const Surroundings& around) {
  boards_ = std::make_unique<Boards>(*peers_, layout_, rank());
  const bool spreads = settings::integer("KOLO_SPREAD") != 0 && options_.device < 0;
  const int spin = static_cast<int>(settings::integer("KOLO_SPIN"));
  waiter_ = std::make_unique<Waiter>(Waiter::Setup{.failure = failure_,
                                                   .peers = *peers_,
                                                   .boards = *boards_,
                                                   .waiting = waiting_,
                                                   .rank = rank(),
                                                   .timeoutMs = options_.timeoutMs,
                                                   .cores = around.cores,
                                                   .posts = !allMapped_,
                                                   .spreads = spreads && around.allMapped && ranks() > around.cores,
                                                   .polling = executor::Polling::make(ranks() <= around.cores, spin)});
  causes_ = std::make_unique<CauseFinder>(CauseFinder::Setup{.membership = membership_,
                                                             .name = options_.name,
                                                             .timeoutMs = options_.timeoutMs,
                                                             .peers = *peers_,
                                                             .boards = *boards_,
                                                             .waiting = waiting_,
                                                             .failure = failure_});
  conclusions_ = std::make_unique<Conclusions>(Conclusions::Setup{.membership = membership_,
                                                                  .name = options_.name,
                                                                  .waits = options_.device < 0,
                                                                  .boards = *boards_,
                                                                  .causes = *causes_,
                                                                  .failure = failure_,
                                                                  .reasons = reasons_});
}

void Communicator::makeTraffic(bool wasDumpable) {
  traffic_ = std::make_unique<Traffic>(Traffic::Setup{.rank = rank(),
                                                      .layout = layout_,
                                                      .peers = *peers_,
                                                      .windows = windows_,
                                                      .boards = *boards_,
                                                      .waiter = *waiter_,
                                                      .failure = failure_,
                                                      .causes = *causes_,
                                                      .reasons = reasons_,
                                                      .posts = !allMapped_,
                                                      .canWritePeers = site_.copies.canWritePeers,
                                                      .wasDumpable = wasDumpable});
}

// What all operations have in common; the backend adds what it decides.
void Communicator::makeSite() {
  site_.rank = rank();
  site_.ranks = ranks();
  site_.machine = &machine_;
  site_.links = traffic_->links().data();
  site_.slots = layout_.slots;
  site_.slotBytes = layout_.slotBytes;
  site_.streamingBytes = streamingBytes_;
  site_.order = &hosts_.order;
  site_.context = {.owner = traffic_.get(), .polling = waiter_->polling(), .posts = traffic_->posts()};
  site_.findWindow = [this](const void* buffer, std::uint64_t bytes) { return windows_.find(buffer, bytes); };
}

Status Communicator::connectGpus(const Surroundings& around, const std::string& nics) {
  const GpuRank::Wishes wishes{.device = options_.device,
                               .mostChannels = static_cast<int>(settings::integer("KOLO_GPU_CHANNELS")),
                               .resident = options_.resident,
                               .idleNs = static_cast<std::uint64_t>(settings::integer("KOLO_RESIDENT_IDLE_US")) * 1000,
                               .transports = options_.transports,
                               .nearNics = nics,
                               .onFault = [this] {
                                 if (backend_ != nullptr) backend_->check();
                               }};
  KOLO_ASSIGN(std::unique_ptr<GpuRank> gpu, GpuRank::connect(membership_, wishes));
  KOLO_TRY(arrangeGpus(*gpu, around.uplinks));
  backend_ = std::make_unique<GpuBackend>(*this, std::move(gpu));
  return {};
}

// From here on the communicator works, and hears of failures.
void Communicator::begin() {
  messages_ = std::make_unique<Messages>(Messages::Setup{.rank = rank(),
                                                         .name = options_.name,
                                                         .timeoutMs = options_.timeoutMs,
                                                         .streamingBytes = streamingBytes_,
                                                         .singleCopyBytes = site_.copies.singleCopyBytes,
                                                         .layout = layout_,
                                                         .peers = *peers_,
                                                         .windows = windows_,
                                                         .boards = *boards_,
                                                         .waiter = *waiter_,
                                                         .traffic = *traffic_,
                                                         .requests = requests_,
                                                         .failure = failure_,
                                                         .conclusions = *conclusions_,
                                                         .reasons = reasons_});
  membership_.control->subscribe(
      membership_.key, membership_.members, [this](const bootstrap::Failure& failure) { failure_.hear(failure); },
      [this](std::string_view question) { return causes_->answer(question); }, membership_.family);
  traffic_->begin(*messages_);
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
Status Communicator::arrangeGpus(GpuRank& gpu, std::vector<planner::Uplink> uplinks) {
  machine_ = gpu.machine();
  if (machine_.mapped) return {};
  std::vector<topology::Place> places;
  for (const int leader : gpu.leaders()) places.push_back({.host = leader});
  for (std::size_t i = 0; i < uplinks.size(); ++i) uplinks[i].host = gpu.leaders()[i];
  planner::useUplinks(uplinks, machine_);
  hosts_.arrange(places, rank(), machine_);
  Status given = machine_.perHost > 1 ? gpu.setHosts(hosts_.shape) : Status();
  if (given.ok() && !hosts_.order.empty()) given = gpu.setOrder(hosts_.order);
  return membership_.agree(given);
}

Communicator::~Communicator() {
  requests_.stop();
  idleWorkers_.clear();
  if (traffic_ != nullptr) traffic_->end();
  if (peers_ == nullptr) return;
  membership_.control->unsubscribe(membership_.key);
  // After a failure the peers learn, or know, what it was: leaving is not the reason why they wait in vain. The peers
  // of a communicator that was not made wholly are told by the rank that made it (comm/factory.cc).
  const bool isInUse = isMade_ && !failed();
  if (isInUse) sayGoodbye();
  if (backend_ != nullptr) backend_->close(!isInUse);  // before what its thread may use to tell of a fault
  if (!isInUse) peers_->abandon();
  if (backend_ == nullptr) return;
  backend_->release(std::make_shared<const std::vector<std::unique_ptr<Window>>>(windows_.dropAll()));
}

void Communicator::sayGoodbye() {
  backend_->leave();
  // Peers that still wait for this rank find out; the arena outlives this object in their mappings.
  device::storeRelease(boards_->own().left, 1);  // [left]
  if (share_ != nullptr) share_->ownBulletin().leave();
  traffic_->sayGoodbye();
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

Status Communicator::removeWindow(Window** window) {
  forget();
  backend_->drain();  // kernels use it until they end; those of a failed communicator end soon
  Status status = failed() ? failure() : Windows::agree(membership_, **window);
  if (!failed() && status.code() == koloMismatch) return status;
  // Others who have not answered still have it, and would name it in headers.
  if (!failed() && !status.ok()) fail({status.code(), jobRank(rank()), status.message()});
  windows_.drop(**window, [&](std::shared_ptr<const Window> dropped) { backend_->release(std::move(dropped)); });
  *window = nullptr;
  return !status.ok() && failed() ? failure() : status;
}

// ---- choices

Status Communicator::setWishes(std::string_view text) {
  KOLO_TRY(choices_.set(text));
  forget();
  return {};
}

koloPlan_t Communicator::describePlan(const planner::Query& query) const {
  koloPlan_t plan{};
  if (query.collective == device::Collective::kSendRecv) {
    plan.channels = 1;
    plan.zeroCopy = query.registered && query.bytes > collectives::kEagerWindowBytes ? 1 : 0;
    std::string_view("direct").copy(plan.algorithm, sizeof plan.algorithm - 1);
  } else {
    plan = choices_.describe(query);
  }
  plan.chunkBytes = machine_.slotBytes;
  backend_->transportNames().copy(plan.transport, sizeof plan.transport - 1);
  return plan;
}

}  // namespace kolo::comm
