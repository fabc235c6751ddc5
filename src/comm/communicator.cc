#include "comm/communicator.h"

#include "base/insist.h"
#include "base/log.h"
#include "base/settings.h"
#include "comm/factory.h"
#include "comm/host_backend.h"
#include "comm/parts.h"
#include "comm/sent_arrays.h"
#include "comm/stream.h"
#include "topology/topology.h"

namespace kolo::comm {

namespace {

// What a rank gives to its peers of a new file.
Result<Given> given(const Result<std::shared_ptr<memory::SharedMemory>>& file, const BlockLayout& block) {
  KOLO_TRY(file.status());
  return Given::of(file.value(), block.arenaBytes, block.arenaAt());
}

}  // namespace

Communicator::Communicator(Membership membership, const Options& options)
    : membership_(std::move(membership)), options_(options), failure_(membership_, options_.name,
                                                                      [this] {
                                                                        if (backend_ != nullptr) backend_->stop();
                                                                      }),
      planning_(membership_.rank, membership_.ranks(), options.reproducible), reasons_(membership_.rank) {
  layout_ = ArenaLayout::make(membership_.ranks(), static_cast<std::uint64_t>(settings::integer("KOLO_STAGING_BYTES")));
  planning_.machine().slotBytes = layout_.slotBytes;
  planning_.site().streamingBytes = static_cast<std::uint64_t>(settings::integer("KOLO_TEST_STREAMING_BYTES"));
}

Result<std::unique_ptr<Communicator>> Communicator::create(Membership membership, const Options& options) {
  std::unique_ptr<Communicator> communicator(new Communicator(std::move(membership), options));
  KOLO_TRY(communicator->connect());
  return communicator;
}

Status Communicator::connect() {
  KOLO_TRY(openWindows());
  const bool isOnHost = options_.device < 0;  // links of GPUs are of one communicator
  std::uint64_t poolBytes = isOnHost ? Pool::roomFor(ranks()) : 0;
  KOLO_ASSIGN(const std::string nics, nearNics(membership_, poolBytes));
  Peers::Purpose purpose = staging(layout_, rank());
  purpose.nearNics = nics;
  const BlockLayout block{ranks(), layout_.bytes()};
  const auto file = Pool::makeFile(block, poolBytes);
  KOLO_ASSIGN(peers_, Peers::connect(membership_, given(file, block), purpose, options_.transports,
                                     options_.agreement(layout_)));
  KOLO_ASSIGN(const std::vector<std::string> all, membership_.allGather(tellSurroundings(*peers_)));
  const Surroundings around = hearSurroundings(all);
  arrange(around, links::isDumpable());
  if (isOnHost && allMapped_) {
    auto pool = std::make_shared<Pool>(peers_, file.value(), block, options_.transports, membership_.key);
    share_ = Share::ofFirst(std::move(pool), block, rank());
  }
  if (isOnHost) {
    backend_ = std::make_unique<HostBackend>(*this);
  } else {
    KOLO_ASSIGN(backend_, makeGpuBackend(*this, around.uplinks, nics));
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
  return communicator;
}

Status Communicator::openWindows() {
  KOLO_TRY(planning_.setWishes(options_.algorithm));
  return windows_.open(ranks(), [this] { return traffic_->hold(); });
}

// What all ranks decide alike from what each has said. wasDumpable: this process. REQUIRES: peers_
void Communicator::arrange(const Surroundings& around, bool wasDumpable) {
  planning_.machine().cores = around.cores;
  planning_.site().copies = {.ranks = ranks(),
                             .singleCopyBytes = around.singleCopyBytes,
                             .canReadPeers = around.readsPeers,
                             .canWritePeers = around.writesPeers,
                             .ranksShareCores = around.waitsLonger && options_.device < 0};
  allMapped_ = planning_.machine().mapped = around.allMapped;
  if (options_.device < 0) {
    planning_.hosts().arrange(around.places, rank(), planning_.machine());
    planning_.mesh().arrangeMesh(options_.mesh, around.places, rank(), planning_.machine());
  }
  planner::useUplinks(around.uplinks, planning_.machine());
  makeWaiter(around);
  makeTraffic(wasDumpable);
  makeSite();
}

// What waits, and what puts into words why a wait was in vain.
void Communicator::makeWaiter(const Surroundings& around) {
  boards_ = std::make_unique<Boards>(*peers_, layout_, rank());
  waiter_ = std::make_unique<Waiter>(Waiter::Setup{.failure = failure_,
                                                   .peers = *peers_,
                                                   .asleep = boards_->own().asleep,
                                                   .waiting = waiting_,
                                                   .timeoutMs = options_.timeoutMs,
                                                   .cores = around.cores,
                                                   .posts = !allMapped_,
                                                   .polling = executor::Polling::make(ranks() <= around.cores)});
  causes_ = std::make_unique<CauseFinder>(CauseFinder::Setup{.membership = membership_,
                                                             .name = options_.name,
                                                             .timeoutMs = options_.timeoutMs,
                                                             .peers = *peers_,
                                                             .boards = *boards_,
                                                             .waiting = waiting_,
                                                             .terms = callTerms_,
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
                                                      .canWritePeers = planning_.site().copies.canWritePeers,
                                                      .wasDumpable = wasDumpable});
}

// What all operations have in common; the backend adds what it decides.
void Communicator::makeSite() {
  planning_.site().rank = rank();
  planning_.site().ranks = ranks();
  planning_.site().machine = &planning_.machine();
  planning_.site().links = traffic_->links().data();
  planning_.site().slots = layout_.slots;
  planning_.site().slotBytes = layout_.slotBytes;
  planning_.site().order = &planning_.hosts().order;
  planning_.site().context = {.owner = traffic_.get(), .polling = waiter_->polling(), .posts = traffic_->posts()};
  planning_.site().findWindow = [this](const void* buffer, std::uint64_t bytes) {
    return windows_.find(buffer, bytes);
  };
  planning_.site().hasWindows = [this] { return windows_.haveZeroCopy(); };
  planning_.site().hasAbandonedWindows = [this] { return windows_.hasAbandoned(); };
}

// From here on the communicator works, and hears of failures.
void Communicator::begin() {
  messages_ = std::make_unique<Messages>(Messages::Setup{.rank = rank(),
                                                         .name = options_.name,
                                                         .timeoutMs = options_.timeoutMs,
                                                         .streamingBytes = planning_.site().streamingBytes,
                                                         .singleCopyBytes = planning_.site().copies.singleCopyBytes,
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
      [this](int asker, std::string_view question) { return answer(asker, question); }, membership_.hubsKey());
  membership_.control->subscribe(
      membership_.keyOfGivingUp(), {}, [this](const bootstrap::Failure& failure) { failure_.hearGivenUp(failure); },
      nullptr, membership_.hubsKey());
  traffic_->begin(*messages_);
  membership_.interrupt = failure_.interrupt();  // no longer that of the communicator from which it was made
  isMade_ = true;
  log::debug("communicator {}: rank {} of {}, transport {}, {} slots of {} bytes for each peer", options_.name, rank(),
             ranks(), peers_->transportNames(), layout_.slots, layout_.slotBytes);
}

Status failByThrown(Communicator& communicator) {
  const Status thrown = withoutExceptions([]() -> Status { throw; }, "an operation needs a thread");
  const int rank = communicator.rank();
  communicator.failureState().fail(
      {error(thrown.code(), "on rank {}: {}", rank, thrown.message()), communicator.membership().jobRank(rank)});
  return communicator.failure();
}

std::string Communicator::answer(int asker, std::string_view question) {
  const auto found = std::find(membership_.members.begin(), membership_.members.end(), asker);
  const auto rank = static_cast<int>(found - membership_.members.begin());
  if (std::optional<std::string> answer = backend_->answer(rank, question)) return *std::move(answer);
  return causes_->answer(question);
}

Communicator::~Communicator() {
  requests_.stop(isMade_ ? messages_.get() : nullptr);
  workers_.end();
  if (traffic_ != nullptr) traffic_->end();
  if (peers_ == nullptr) return;
  membership_.control->unsubscribe(membership_.keyOfGivingUp());
  membership_.control->unsubscribe(membership_.key);
  // After a failure the peers learn, or know, what it was: leaving is not the reason why they wait in vain. The peers
  // of a communicator that was not made wholly are told by the rank that made it (comm/factory.cc).
  const bool isInUse = isMade_ && !failed();
  if (isInUse) (void)insist([this] { sayGoodbye(); });
  if (backend_ != nullptr) backend_->close(!isInUse);  // before what its thread may use to tell of a fault
  if (!isInUse) peers_->abandon();
  if (backend_ == nullptr) return;
  std::shared_ptr<std::vector<std::unique_ptr<Window>>> last;
  (void)insist([&] {  // the windows leave their list when there is memory to hold them
    if (last == nullptr) {
      last = std::make_shared<std::vector<std::unique_ptr<Window>>>();
      *last = windows_.dropAll();
    }
    backend_->release(last);
  });
}

void Communicator::sayGoodbye() {
  backend_->leave();
  // Peers that still wait for this rank find out; the arena outlives this object in their mappings.
  device::storeRelease(boards_->own().left, 1);  // [left]
  if (share_ != nullptr) share_->ownBulletin().leave();
  traffic_->sayGoodbye();
}

Status Communicator::removeWindow(Window** window) {
  planning_.forget();
  backend_->drain();        // kernels use it until they end; those of a failed communicator end soon
  windows_.hide(**window);  // a peer that has dropped it is not to read of it in a message
  Status status = failed() ? failure() : windows_.agree(membership_, **window);
  if (!failed() && status.code() == koloMismatch) {
    windows_.show(**window);
    return status;
  }
  // Other ranks, which have not answered, still have it and would name it in headers.
  if (!failed() && !status.ok()) failure_.fail({status, membership_.jobRank(rank())});
  windows_.drop(**window, [&](std::shared_ptr<const Window> dropped) { backend_->release(std::move(dropped)); });
  *window = nullptr;
  return !status.ok() && failed() ? failure() : status;
}

}  // namespace kolo::comm
