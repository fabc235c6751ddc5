#include "comm/host_backend.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/caller.h"
#include "collectives/call_log.h"
#include "comm/communicator.h"
#include "comm/in_turn.h"
#include "device/headers.h"
#include "device/offers.h"
#include "device/slots.h"
#include "drivers/cuda/devices.h"
#include "executor/host/host_team.h"

namespace kolo::comm {
namespace {

using collectives::Prepared;
using device::Fault;
using device::Signature;
using device::Work;

// Chunks of a long message are to stay in the caches of both cores. No file of perf/results compares sizes.
constexpr std::uint64_t kMostChunkBytes = 65536;

std::atomic<executor::Executor*> testExecutor{nullptr};

executor::Executor& executorInUse() {
  executor::Executor* const test = testExecutor.load();
  return test != nullptr ? *test : executor::hostExecutor();
}

}  // namespace

void HostBackend::useExecutor(executor::Executor* executor) { testExecutor.store(executor); }

HostBackend::HostBackend(Communicator& owner)
    : owner_(owner), executor_(executorInUse()), operations_(owner.planning().operations()),
      ran_(&operations_.current()), usesCuda_(drivers::usesCuda()) {
  collectives::Site& site = owner_.planning().site();
  site.fault = &fault_;
  site.context.course = &course_;
  site.mostChunkBytes = kMostChunkBytes;
  site.members = owner_.planning().hosts().order.data();
  site.grids[static_cast<int>(algorithms::GridOf::kHosts)] = &owner_.planning().hosts().grid.shape;
  site.grids[static_cast<int>(algorithms::GridOf::kMesh)] = &owner_.planning().mesh().shape;
  site.pairsChooseInGather = true;
}

std::string HostBackend::transportNames() const { return owner_.peers().transportNames(); }

// ---- operations

Status HostBackend::run(const Operation& operation, void*) {
  Status status = prepareAndRun(operation);
  if (status.ok()) collectives::logCall(operation, operations_.current(), course_);
  return status;
}

Status HostBackend::prepareAndRun(const Operation& operation) {
  const bool isRecallable = operation.custom == nullptr;
  if (isRecallable && operations_.recall(operation)) return runAgain();
  if (owner_.failed()) return owner_.failure();
  const bool isTrusted = isRecallable && owner_.options().eager;
  if (!isTrusted && !caller.mayWait && owner_.ranks() > 1) return Status(koloInProgress, {});
  KOLO_TRY(collectives::checkFold(operation, owner_.planning().choices(), owner_.ranks()));
  Prepared& now = operations_.make();
  collectives::prepare(owner_.planning().site(), owner_.planning().choices(), operation, now);
  if (scratch_.size() < now.edgesEnd) scratch_.resize(now.edgesEnd);
  if (isRecallable && !owner_.isFinalized()) operations_.remember(operation);
  if (!isTrusted) share(now, device::Start::kChecks);
  KOLO_TRY(isTrusted ? runAgain() : execute());
  // Neither is the block written where it goes, nor taken from where it is.
  now.isStagedAnyway = now.mayStageEarly &&
                       !isOffered(offerOf(now.work.channel.links[now.work.root].headers.theirRecv)) &&
                       !isOffered(now.sharing.input);
  return {};
}

Status HostBackend::runMessages(Held<Communicator>& communicator, std::span<const Message> messages, void*) {
  if (owner_.failed()) return owner_.failure();
  return Requests::run(communicator, messages.data(), messages.size());
}

Status HostBackend::runMessage(Held<Communicator>& communicator, const Message& message, void* stream) {
  if (!caller.mayWait) return owner_.failed() ? owner_.failure() : Status(koloInProgress, {});
  return runMessages(communicator, {&message, 1}, stream);
}

// As one request, whose place in the turn ends when they have begun.
Status HostBackend::runMessagesAt(std::uint64_t place, std::span<const Message> messages, void*) {
  Request request(static_cast<std::uint32_t>(messages.size()));
  owner_.requests().startAt(place, messages.data(), messages.size(), request);
  owner_.requests().wait(request, Requests::kNever);
  return request.status();
}

Status HostBackend::tell(int root, void* value, std::size_t bytes) {
  const Call call{.send = value,
                  .recv = value,
                  .count = bytes,
                  .collective = device::Collective::kBroadcast,
                  .datatype = koloUint8,
                  .root = root};
  return run({call, {}, {}}, nullptr);
}

Status HostBackend::reduceWords(std::span<std::uint64_t> words, koloRedOp_t op) {
  const Call call{.send = words.data(),
                  .recv = words.data(),
                  .count = words.size(),
                  .collective = device::Collective::kAllReduce,
                  .datatype = koloUint64,
                  .op = op};
  return run({call, {}, {}}, nullptr);
}

// How a call of an operation starts, and what this rank offers in it: nothing, where there is no direct form.
inline void HostBackend::share(Prepared& now, device::Start start) {
  now.work.sharing.start = start;
  if (now.work.direct == device::Algorithm::kCount) return;
  if (now.work.segments != nullptr) owner_.traffic().beginLists();
  const bool isByAddress = now.sharing.readsPeers || now.sharing.writesPeers;
  now.work.sharing = sharingIn(now.sharing, start, !isByAddress || owner_.traffic().offersMemory());
}

// The first time it has been checked before this rank went on, unless the communicator is eager. That the others repeat
// it too is believed until they say something else: a rank that only gives need not wait for each of them each time.
Status HostBackend::runAgain() {
  if (owner_.failed()) return owner_.failure();
  Prepared& now = operations_.current();
  const bool stagesEarly = now.mayStageEarly && (now.isStagedAnyway || !caller.mayWait);
  share(now, stagesEarly ? device::Start::kStagesEarly : device::Start::kDefersChecks);
  if (stagesEarly || !caller.mayWait) {
    const bool atOnce = runsAtOnce();
    if (!atOnce && !caller.mayWait) return Status(koloInProgress, {});
    if (!atOnce) share(now, device::Start::kDefersChecks);
  }
  return execute();
}

// Whether runAgain() would not wait for other ranks, as far as is known: this rank only gives, and there is room.
bool HostBackend::runsAtOnce() const {
  const Work& work = operations_.current().work;
  if (owner_.ranks() == 1) return true;
  const bool isLine = work.signature.algorithm == device::Algorithm::kLine;
  if (owner_.traffic().posts() || !device::onlyGives(work) || !(isLine || device::goesThroughSlots(work))) return false;
  // One-shot, all ranks of a reduce announce themselves to all.
  const bool toAll =
      owner_.rank() == work.root || (!isLine && !device::isIn(work.signature.collective, device::kMeetsRootOnly));
  const auto hasRoom = [&](int peer) {
    const device::Link& link = owner_.traffic().links()[static_cast<std::size_t>(peer)];
    if (link.outbox == nullptr) return false;
    const device::Header& next = link.inbox->header[(link.headers.met + 1) % device::kHeaderLines];
    if (link.headers.owed == device::kMaxOwed && device::loadAcquire(next.number) <= link.headers.met)
      return false;  // [header]
    if (!device::gives(work, owner_.rank(), peer)) return true;
    const std::uint64_t bytes = work.partTo(peer).count * work.elementBytes;
    if (isLine || work.fitsHeader(bytes)) return true;
    const std::uint64_t last = link.sent + (bytes + work.channel.chunkBytes - 1) / work.channel.chunkBytes;
    if (last <= link.credited + work.channel.slots) return true;
    const device::Proof proof = device::proofOf(work, link, last - work.channel.slots);
    return device::loadAcquire(proof.counter) >= proof.value;  // [credit]
  };
  for (int peer = 0; peer < owner_.ranks(); ++peer) {
    if (peer != owner_.rank() && (toAll || peer == work.root) && !hasRoom(peer)) return false;
  }
  return true;
}

// The current operation, as the communicator's next.
Status HostBackend::execute() {
  Prepared& now = operations_.current();
  ran_ = &now;
  Work& work = now.work;
  work.channel.scratch = scratch_.data();
  if (now.behindRoot != device::Algorithm::kCount) followRoot(work);
  const bool isBehindTaking = tookFromAll_;
  tookFromAll_ = device::isIn(work.signature.collective, device::kToRoot) && work.rank == work.root;
  rootThatGave_ =
      device::isIn(work.signature.collective, device::kFromRoot) ? static_cast<int>(work.signature.root) : -1;
  const std::uint64_t sequence = owner_.boards().takeNumbers(1);
  work.signature.sequence = static_cast<std::uint16_t>(sequence);
  work.header.word =
      (work.header.word & ~(~std::uint64_t{0} << Signature::kSequenceAt)) | sequence << Signature::kSequenceAt;
  fault_.kind = Fault::kNone;
  course_ = device::Course::kStaged;
  if (now.list != nullptr) owner_.callTerms().note(sequence, now.list);
  if (owner_.ranks() > 1) owner_.boards().post(work);
  const auto held = owner_.traffic().hold();
  executor_.run(work, now.context);
  if (owner_.traffic().posts() && fault_.kind == Fault::kNone) fault_ = owner_.traffic().flush(false);
  if (fault_.kind != Fault::kNone) {
    owner_.traffic().releaseBuffers();
    return owner_.conclusions().of(work, fault_);
  }
  owner_.waiter().end();
  if (isBehindTaking && now.behindRoot != device::Algorithm::kCount) letOthersGoFirst();
  return {};
}

// After a barrier that follows a gather or a reduce, the root leaves its core for a turn. The other ranks then send the
// data of their next operation before the root waits for it.
void HostBackend::letOthersGoFirst() {
  const auto hasCome = [&](int peer) {
    const device::Link& link = owner_.traffic().links()[static_cast<std::size_t>(peer)];
    const std::uint64_t next = link.headers.met + link.headers.owed + 1;
    return peer == owner_.rank() ||
           device::loadAcquire(link.inbox->header[next % device::kHeaderLines].number) >= next;  // [header]
  };
  const auto haveCome = [&] {
    for (int peer = 0; peer < owner_.ranks(); ++peer) {
      if (!hasCome(peer)) return false;
    }
    return true;
  };
  if (!owner_.waiter().polling().until(haveCome)) owner_.waiter().yield();
}

// A barrier's algorithm, by what was executed before it, which is the same on all ranks.
void HostBackend::followRoot(Work& work) const {
  const bool isBehindRoot = rootThatGave_ >= 0;
  work.signature.algorithm = isBehindRoot ? ran_->behindRoot : ran_->behindOthers;
  work.signature.root = static_cast<std::uint32_t>(isBehindRoot ? rootThatGave_ : 0);
  work.header.word = work.signature.pack();
  work.steps.members = nullptr;
  work.rank = owner_.rank();
  work.root = static_cast<int>(work.signature.root);
  collectives::followOrder(owner_.planning().site(), work);
}

// Messages first start, then progress whenever a collective waits, then end: so neither kind can hold up the other.
Status HostBackend::runGroup(std::span<const Message> messages, std::span<const Operation> operations, void*) {
  if (owner_.failed()) return owner_.failure();
  const MayWait asEver;
  Request request(static_cast<std::uint32_t>(messages.size()));
  if (!messages.empty()) owner_.requests().startNow(messages.data(), messages.size(), request);
  Status first;
  for (const Operation& operation : operations) {  // nothing is thrown, for messages are under way
    Status status = orFail(owner_, [&] { return run(operation, nullptr); });
    if (first.ok()) first = std::move(status);
  }
  if (messages.empty()) return first;
  do {  // also if the request is over: there may be answers to be written, and bytes to be flushed
    Status failure = orFail(owner_, [&] { return owner_.messages().attend(request, nullptr, Requests::kNever); });
    if (first.ok()) first = std::move(failure);
  } while (!request.isOver());
  return first.ok() ? request.status() : first;
}

Status HostBackend::settle() {
  if (owner_.ranks() == 1 || owner_.failed()) return {};
  const auto held = owner_.traffic().hold();
  Fault fault;
  // What this rank called last: a peer that has posted it on its board is only late with its header.
  Work work = ran_->work;
  work.channel.links = owner_.traffic().links().data();  // there may have been no operation yet
  work.steps.members = nullptr;                          // all of them
  work.channel.fault = &fault;
  executor::HostTeam team(work, owner_.planning().site().context);
  device::Exchange<executor::HostTeam> exchange(team, work);
  for (int peer = 0; peer < owner_.ranks(); ++peer) {
    if (peer != owner_.rank()) device::settle(exchange, peer, 0);
  }
  if (fault.kind != Fault::kNone) return owner_.conclusions().of(work, fault);
  owner_.waiter().end();
  return {};
}

bool HostBackend::settlesAtOnce() {
  if (owner_.ranks() == 1 || owner_.failed()) return true;
  const auto held = owner_.traffic().hold();
  if (owner_.traffic().posts()) (void)owner_.peers().progress(-1, 0);
  return std::all_of(owner_.traffic().links().begin(), owner_.traffic().links().end(), [](const device::Link& link) {
    const std::uint64_t last = link.headers.met + link.headers.owed;
    return link.headers.owed == 0 ||
           device::loadAcquire(link.inbox->header[last % device::kHeaderLines].number) >= last;  // [header]
  });
}

// ---- buffers

Status HostBackend::checkPlace(const char* name, const void* buffer, std::uint64_t bytes) const {
  return drivers::checkHostMemory(name, buffer, bytes);
}

Result<Window*> HostBackend::addWindow(void* buffer, std::size_t bytes) {
  Membership& membership = owner_.membership();
  owner_.planning().forget();
  owner_.peers().openDevicesForWindows(membership, owner_.options().transports);
  return agreedWindow(owner_.windows().add(membership, owner_.peers(), buffer, bytes));
}

Result<Window*> HostBackend::addMappedWindow(void* const* parts, const std::size_t* bytes) {
  owner_.planning().forget();
  return agreedWindow(owner_.windows().addMapped(owner_.membership(), owner_.peers(), parts, bytes));
}

// All ranks have to know alike whether there are windows.
Result<Window*> HostBackend::agreedWindow(Result<Window*> added) {
  if (!added.ok() && owner_.windows().isInDoubt() && !owner_.failed()) {
    const Status& why = added.status();
    owner_.failureState().fail({why, owner_.membership().jobRank(owner_.rank())});
  }
  return added;
}

}  // namespace kolo::comm
