// The execution of one collective: from an operation to its description, and through the planner to the executor.
#include <algorithm>
#include <bit>

#include "algorithms/catalogue.h"
#include "algorithms/direct.h"
#include "algorithms/line.h"
#include "algorithms/names.h"
#include "algorithms/one_shot.h"
#include "base/caller.h"
#include "base/datatypes.h"
#include "comm/communicator.h"
#include "device/reducers.h"
#include "executor/host/host_team.h"
#include "executor/host/reduce.h"
#include "executor/host/user_fold.h"

namespace kolo::comm {
namespace {

using device::Collective;
using device::Fault;
using device::Signature;
using device::Work;

std::atomic<executor::Executor*> testExecutor{nullptr};

constexpr std::uint64_t kMostReadForAllReduce = 512 << 10;
constexpr std::uint64_t kMostReadForGather = 128 << 10;
// Where ranks share cores. Below that a meeting of all before they read costs more than a second copy:
// perf/results/2026-11-23-single-copy-4-ranks.txt.
constexpr std::uint64_t kWorthMeeting = 32 << 10;
// From there on the root of a broadcast writes a part of it itself, and two ranks fold half of an all-reduce each, and
// write it to the other. To fold less than that oneself is quicker than to hand it over:
// perf/results/2026-11-23-single-copy-writing.txt.
constexpr std::uint64_t kWorthPushing = 32 << 10;
constexpr std::uint64_t kWorthHalving = 64 << 10;
// Up to there a rank that only gives does so by two copies, so as not to wait: where one copy would do, and when it was
// told not to wait, or two are made anyway.
constexpr std::uint64_t kMostGivenAhead = 16 << 10, kMostGivenAheadWithoutWaiting = 128 << 10;
constexpr std::uint64_t kMostGivenAheadInAll = 512 << 10;  // to all ranks, by a root alone

// FNV-1a over the counts: what v-variants compare instead of one count.
std::uint64_t digest(const std::vector<std::uint64_t>& values, std::uint64_t seed) {
  for (const std::uint64_t value : values) seed = (seed ^ value) * 0x100000001b3u;
  return seed;
}

// What the planner calls the size: bytes of one block, of the longest where they differ.
std::uint64_t plannedBytes(const Operation& operation, std::uint64_t elementBytes) {
  if (!operation.vector) return operation.count * elementBytes;
  const auto longest = [](const std::vector<std::uint64_t>& counts) {
    return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  };
  return std::max(longest(operation.counts->sendCounts), longest(operation.counts->recvCounts)) * elementBytes;
}

// Whether ranks know only what they themselves give and get.
bool countsDiffer(const Call& call) {
  return call.vector && call.collective != Collective::kAllGather && call.collective != Collective::kReduceScatter;
}

// Whether results are 0 or 1 whatever the input was.
bool yieldsTruth(koloDataType_t datatype, device::ReduceOp op) {
  if (op == device::ReduceOp::kUser) return false;
  return datatype == koloBool || op == device::ReduceOp::kLogicalAnd || op == device::ReduceOp::kLogicalOr ||
         op == device::ReduceOp::kLogicalXor;
}

}  // namespace

device::ReduceOp reduceOpOf(koloRedOp_t op) {
  switch (op) {
    case koloProd: return device::ReduceOp::kProd;
    case koloMax: return device::ReduceOp::kMax;
    case koloMin: return device::ReduceOp::kMin;
    case koloLogicalAnd: return device::ReduceOp::kLogicalAnd;
    case koloLogicalOr: return device::ReduceOp::kLogicalOr;
    case koloLogicalXor: return device::ReduceOp::kLogicalXor;
    case koloBitAnd: return device::ReduceOp::kBitAnd;
    case koloBitOr: return device::ReduceOp::kBitOr;
    case koloBitXor: return device::ReduceOp::kBitXor;
    default: return device::ReduceOp::kSum;
  }
}

void Communicator::setExecutor(executor::Executor* executor) { testExecutor.store(executor); }

bool needsWholeFold(koloRedOp_t op, koloDataType_t datatype) {
  return op == koloAvg && device::averagesAtOnce(datatype);
}

bool Communicator::inOrder(const Operation& operation) const {
  if (options_.reproducible || needsWholeFold(operation.op, operation.datatype)) return true;
  if (operation.op < koloNumOps) return false;
  return operation.custom != nullptr && !operation.custom->commutative;
}

koloPlan_t Communicator::describePlan(const planner::Query& query) const {
  koloPlan_t plan{};
  const auto put = [](char(&place)[24], const std::string& text) { text.copy(place, sizeof place - 1); };
  plan.channels = 1;
  plan.chunkBytes = machine_.slotBytes;
  put(plan.transport, gpu_ != nullptr ? gpu_->transportNames() : peers_->transportNames());
  if (query.collective == Collective::kSendRecv) {
    plan.zeroCopy = query.registered && query.bytes > kEagerWindowBytes ? 1 : 0;
    put(plan.algorithm, "direct");
    return plan;
  }
  planner::Query planned = query;  // as planFor() does it
  planned.inOrder = query.inOrder || (options_.reproducible && device::isIn(query.collective, device::kReducing));
  std::unique_lock lock(wishesMutex_);
  if (!wishesHaveRanges_) planned.bytes = planner::sizeForClassOf(query.bytes);
  const planner::Choice choice = planner::choose(planned, machine_, wishes_);
  lock.unlock();
  plan.zeroCopy = query.registered && choice.direct != device::Algorithm::kCount ? 1 : 0;
  plan.channels = planner::channelsFor(plan.zeroCopy != 0 ? choice.direct : choice.algorithm, query, machine_);
  plan.predictedUs =
      planner::predictUs(plan.zeroCopy != 0 ? choice.direct : choice.algorithm, plan.zeroCopy != 0, query, machine_);
  put(plan.algorithm, ranks() == 1 ? "self" : name(plan.zeroCopy != 0 ? choice.direct : choice.algorithm));
  return plan;
}

planner::Query Communicator::queryFor(const Operation& operation) const {
  planner::Query query;
  query.collective = operation.collective;
  query.vector = operation.vector;
  query.countsKnown = !countsDiffer(operation);
  query.inOrder = operation.reduces() && inOrder(operation);
  return query;
}

// The choice for a size class. All ranks must choose alike, so the choice for a class is made for one size that stands
// for it, whichever size of it comes first on a rank.
planner::Choice Communicator::planFor(const Operation& operation, std::uint64_t bytes) {
  planner::Query query = queryFor(operation);
  if (!query.countsKnown) bytes = 0;  // ranks see different counts
  const auto width = static_cast<std::size_t>(std::bit_width(bytes));
  const bool fitsLine = bytes <= device::kHeaderPayloadBytes;
  const bool cached = !query.vector && !query.inOrder && !wishesHaveRanges_;
  // Class 6 holds 32..63 bytes, of which only some fit a line.
  const std::size_t sizeClass = width == 6 && !fitsLine ? kClasses - 1 : width;
  auto& slot = plans_[static_cast<std::size_t>(operation.collective)][sizeClass];
  if (cached && slot.has_value()) return *slot;
  query.bytes = wishesHaveRanges_ ? bytes : planner::sizeForClassOf(bytes);
  planner::Choice choice = planner::choose(query, machine_, wishes_);
  if (cached) slot = choice;
  return choice;
}

// ---- description

// A sender fills one slot while the receiver empties another, so a message of some length goes in two chunks or more; a
// long one in chunks that stay in the caches of both (measured on a Skylake server with 1 MiB of L2: 64 KiB). On a GPU
// in whole slots: each chunk is a call of functions that save registers for their callers.
std::uint32_t Communicator::chunkFor(const Work& work, std::uint64_t bytes, bool areAlike) const {
  const bool inSlices = algorithms::rowOf(work.signature.algorithm).inSlices;
  const std::uint64_t message =
      (inSlices ? bytes / static_cast<std::uint64_t>(ranks()) : bytes) / static_cast<std::uint64_t>(work.channels);
  const std::uint64_t most = gpu_ != nullptr ? machine_.slotBytes : 65536;
  if (!areAlike) return static_cast<std::uint32_t>(std::min<std::uint64_t>(most, machine_.slotBytes));
  const std::uint64_t chunk = std::clamp<std::uint64_t>(message / 2 / 4096 * 4096, 8192, most);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk, machine_.slotBytes));
}

void Communicator::describeBlocks(const Operation& operation, Work& work) {
  work.headerCount = work.sendLayout.count = work.recvLayout.count = operation.count;
  if (!operation.vector) return;
  const VectorCounts& counts = *operation.counts;
  const auto use = [](device::Layout& layout, const auto& lengths, const auto& displs) {
    if (lengths.empty()) return;
    layout.counts = lengths.data();
    layout.displs = displs.data();
  };
  use(work.sendLayout, counts.sendCounts, counts.sendDispls);
  use(work.recvLayout, counts.recvCounts, counts.recvDispls);
  switch (operation.collective) {
    case Collective::kAllGather:
      work.headerCount = digest(counts.recvCounts, 1);
      work.sendLayout.count = counts.recvCounts[static_cast<std::size_t>(rank())];
      break;
    case Collective::kReduceScatter:
      work.headerCount = digest(counts.sendDispls, digest(counts.sendCounts, 2));
      work.recvLayout.count = counts.sendCounts[static_cast<std::size_t>(rank())];
      break;
    case Collective::kAllToAll:
      work.countTo = counts.sendCounts.data();
      work.countFrom = counts.recvCounts.data();
      break;
    case Collective::kGather:
      if (rank() == operation.root) work.countTo = work.countFrom = counts.recvCounts.data();
      break;
    case Collective::kScatter:
      if (rank() == operation.root) work.countTo = work.countFrom = counts.sendCounts.data();
      break;
    default: break;
  }
}

void Communicator::describe(const Operation& operation, Work& work) {
  work.signature.collective = operation.collective;
  work.signature.datatype = static_cast<std::uint8_t>(operation.datatype);
  work.signature.op = device::Signature::kNoOp;
  work.signature.vector = operation.vector;
  work.signature.root = static_cast<std::uint32_t>(operation.root);
  work.elementBytes = static_cast<std::uint32_t>(elementBytes(operation.datatype));
  work.rank = rank();
  work.ranks = ranks();
  work.root = operation.root;
  work.send = static_cast<const unsigned char*>(operation.send);
  work.recv = static_cast<unsigned char*>(operation.recv);
  work.fault = &fault_;
  work.links = links_.data();
  work.slots = layout_.slots;
  work.slotBytes = layout_.slotBytes;
  if (operation.reduces()) {
    work.op = reduceOpOf(operation.op);
    work.signature.op = static_cast<std::uint8_t>(work.op);
    if (operation.op == koloAvg) {
      work.divisor = static_cast<std::uint32_t>(ranks());
      work.signature.op = device::Signature::kAvg;
      work.inputRanks = device::averagesInShares(operation.datatype) ? 1 : 0;
    }
  }
  describeBlocks(operation, work);
}

Status Communicator::checkFold(const Operation& operation) const {
  if (ranks() <= algorithms::kMaxLineRanks || !operation.reduces() || !inOrder(operation)) return {};
  if (needsWholeFold(operation.op, operation.datatype)) {
    return error(koloUnsupported,
                 "an average of {} folds the inputs of all ranks at once, so that its sum does not "
                 "wrap; that is available for up to {} ranks, and this communicator has {}. An average of int32, whose "
                 "sum may wrap, has no such limit",
                 koloDataTypeName(operation.datatype), algorithms::kMaxLineRanks, ranks());
  }
  return error(koloUnsupported,
               "a fold in rank order (a reproducible communicator, or a reduction that does not commute) "
               "is available for up to {} ranks; this communicator has {}",
               algorithms::kMaxLineRanks, ranks());
}

template <class Condition>
bool Communicator::recallIf(Condition condition) {
  if (condition(*now_)) return true;
  const auto found = std::find_if(prepared_.begin(), prepared_.end(), condition);
  if (found == prepared_.end()) return false;
  now_ = &*found;
  return true;
}

bool Communicator::recall(const Call& call) {
  return recallIf([&](const Prepared& each) { return each.call == call; });
}

bool Communicator::recall(const Call& call, const CountArrays& counts) {
  return recallIf([&](const Prepared& each) { return each.call == call && each.counts->are(counts); });
}

// In the place of the operation that was prepared longest ago.
Status Communicator::run(const Operation& operation) {
  const bool isRecallable = operation.custom == nullptr;
  if (isRecallable && (operation.vector ? recall(operation, operation.counts->arrays()) : recall(operation)))
    return runAgain();
  if (failed()) return failure();
  const bool isTrusted = isRecallable && options_.eager && gpu_ == nullptr;
  if (!isTrusted && !caller.mayWait && ranks() > 1) return Status(koloInProgress, {});
  KOLO_TRY(checkFold(operation));
  preparing_ = (preparing_ + 1) % prepared_.size();
  now_ = &prepared_[preparing_];
  now_->call = kNothing;
  now_->work = Work();
  now_->counts = operation.counts;
  now_->custom = operation.custom;
  prepare(operation, now_->work);
  if (isRecallable && !isFinalized()) now_->call = operation;
  KOLO_TRY(isTrusted ? runAgain() : execute());
  // To a gather's root: neither is the block written where it goes, nor taken from where it is.
  const bool isStaged = rank() != now_->work.root && !hasOfferedOutput(now_->work.root) &&
                        !(now_->work.shareable && now_->work.sendRef.index != 0);
  if (now_->longestAhead != UINT64_MAX && isStaged) now_->mostAhead = kMostGivenAheadWithoutWaiting;
  return {};
}

// Whether the peer's last header said where its output is.
bool Communicator::hasOfferedOutput(int peer) const {
  const device::Link& link = links_[static_cast<std::size_t>(peer)];
  const device::Header& line = link.inbox->header[link.met % device::kHeaderLines];
  return line.refs.recvWindow != 0 || line.refs.recvOffset != 0;
}

// The first time it has been checked before this rank went on, unless the communicator is eager. That the others repeat
// it too is believed until they say something else: a rank that only gives need not wait for each of them each time.
Status Communicator::runAgain() {
  if (failed()) return failure();
  Work& work = now_->work;
  work.givesAhead = now_->longestAhead <= (caller.mayWait ? now_->mostAhead : kMostGivenAheadWithoutWaiting);
  if (work.givesAhead || !caller.mayWait) {
    const bool atOnce = runsAtOnce();
    if (!atOnce && !caller.mayWait) return Status(koloInProgress, {});
    work.givesAhead = work.givesAhead && atOnce;
  }
  work.mayOwe = true;
  return execute();
}

// Whether runAgain() would not wait for other ranks, as far as is known: this rank only gives, and there is room.
bool Communicator::runsAtOnce() const {
  const Work& work = now_->work;
  if (ranks() == 1) return true;
  const bool isLine = work.signature.algorithm == device::Algorithm::kLine;
  if (posts() || gpu_ != nullptr || !device::onlyGives(work) || !(isLine || algorithms::givesThroughStaging(work)))
    return false;
  // One-shot, all ranks of a reduce announce themselves to all.
  const bool toAll =
      rank() == work.root || (!isLine && !device::isIn(work.signature.collective, device::kMeetsRootOnly));
  const auto hasRoom = [&](int peer) {
    const device::Link& link = links_[static_cast<std::size_t>(peer)];
    if (link.outbox == nullptr) return false;
    const device::Header& next = link.inbox->header[(link.met + 1) % device::kHeaderLines];
    if (link.owed == device::kMaxOwed && device::loadAcquire(next.number) <= link.met) return false;  // [header]
    if (!device::gives(work, rank(), peer)) return true;
    const std::uint64_t bytes = work.partTo(peer).count * work.elementBytes;
    if (isLine || work.fitsHeader(bytes)) return true;
    return link.sent + (bytes + work.chunkBytes - 1) / work.chunkBytes <=
           device::loadAcquire(link.inbox->signals.head) + work.slots;  // [credit]
  };
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank() && (toAll || peer == work.root) && !hasRoom(peer)) return false;
  }
  return true;
}

// The operation that now_ describes, as the communicator's next.
Status Communicator::execute() {
  ran_ = now_;
  Work& work = now_->work;
  if (now_->behindRoot != device::Algorithm::kCount) followRoot(work);
  const bool isBehindTaking = tookFromAll_;
  tookFromAll_ = device::isIn(work.signature.collective, device::kToRoot) && work.rank == work.root;
  rootThatGave_ =
      device::isIn(work.signature.collective, device::kFromRoot) ? static_cast<int>(work.signature.root) : -1;
  work.signature.sequence = static_cast<std::uint16_t>(++sequence_);
  work.word = (work.word & ~(~std::uint64_t{0} << Signature::kSequenceAt)) | sequence_ << Signature::kSequenceAt;
  fault_.kind = Fault::kNone;
  if (work.readsPeers || work.writesPeers) work.offersMemory = offersMemory();
  if (ranks() > 1) postOnBoard(work);
  const auto held = holdLinks();
  executor::Executor* const test = testExecutor.load(std::memory_order_relaxed);
  (test != nullptr ? *test : executor::hostExecutor()).run(work, now_->context);
  if (posts() && fault_.kind == Fault::kNone) fault_ = flush(false);
  if (fault_.kind != Fault::kNone) {
    releaseBuffers();
    return conclude(work, fault_);
  }
  endWait();
  if (isBehindTaking && now_->behindRoot != device::Algorithm::kCount) letOthersGoFirst();
  return {};
}

// At the end of a barrier behind a gather or a reduce, its root: what the others give next, which takes them one turn,
// is there when it asks for it. It would wait there for that turn otherwise.
void Communicator::letOthersGoFirst() {
  const auto hasCome = [&](int peer) {
    const device::Link& link = links_[static_cast<std::size_t>(peer)];
    return peer == rank() || device::loadAcquire(link.inbox->header[(link.met + 1) % device::kHeaderLines].number) >
                                 link.met;  // [header]
  };
  const auto haveCome = [&] {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (!hasCome(peer)) return false;
    }
    return true;
  };
  if (!polling_.until(haveCome)) yield();
}

Status Communicator::settle() {
  if (gpu_ != nullptr) {
    Status drained = gpu_->drain();
    checkGpu();
    return failed() ? failure() : std::move(drained);
  }
  if (ranks() == 1 || failed()) return {};
  const auto held = holdLinks();
  Fault fault;
  Work work =
      ran_->work;  // what this rank called last: a peer that has posted it on its board is only late with its header
  work.links = links_.data();  // there may have been no operation yet
  work.members = nullptr;      // all of them
  work.fault = &fault;
  const executor::Context context{.owner = this, .polling = polling_, .posts = posts()};
  executor::HostTeam team(work, context);
  device::Exchange<executor::HostTeam> exchange(team, work);
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank()) exchange.settle(peer, 0);
  }
  if (fault.kind != Fault::kNone) return conclude(work, fault);
  endWait();
  return {};
}

bool Communicator::settlesAtOnce() {
  if (gpu_ != nullptr || ranks() == 1 || failed()) return true;
  const auto held = holdLinks();
  if (posts()) (void)peers_->progress(-1, 0);
  return std::all_of(links_.begin(), links_.end(), [](const device::Link& link) {
    const std::uint64_t last = link.met + link.owed;
    return link.owed == 0 ||
           device::loadAcquire(link.inbox->header[last % device::kHeaderLines].number) >= last;  // [header]
  });
}

// Where ranks that follow each other by number are not near each other (placed on hosts in turn, say), algorithms whose
// ranks talk to neighbours number them anew, host by host: a ring then leaves each host once. Not those that move runs
// of the ranks' blocks.
void Communicator::followOrder(Work& work) const {
  if (hosts_.order.empty()) return;
  const Collective collective = work.signature.collective;
  if (!device::isIn(collective, algorithms::rowOf(work.signature.algorithm).renumbers)) return;
  const auto placeOf = [&](int rank) {
    return static_cast<int>(std::find(hosts_.order.begin(), hosts_.order.end(), rank) - hosts_.order.begin());
  };
  work.members = gpu_ != nullptr ? gpu_->order() : hosts_.order.data();
  work.rank = placeOf(work.rank);
  work.root = placeOf(work.root);
  if (device::isIn(collective, device::kSendsBlocks)) work.sendLayout.order = work.members;
  if (device::isIn(collective, device::kReceivesBlocks)) work.recvLayout.order = work.members;
}

// A barrier's algorithm, by what was executed before it, which is the same on all ranks.
void Communicator::followRoot(Work& work) const {
  const bool isBehindRoot = rootThatGave_ >= 0;
  work.signature.algorithm = isBehindRoot ? now_->behindRoot : now_->behindOthers;
  work.signature.root = static_cast<std::uint32_t>(isBehindRoot ? rootThatGave_ : 0);
  work.word = work.signature.pack();
  work.members = nullptr;
  work.rank = rank();
  work.root = static_cast<int>(work.signature.root);
  followOrder(work);
}

// Everything about an operation but its number: how its buffers are laid out, which algorithm it takes, and in what
// chunks.
void Communicator::prepare(const Operation& operation, Work& work) {
  describe(operation, work);
  executor::Context& context = now_->context;
  context = {.owner = this, .polling = polling_, .posts = posts(), .datatype = operation.datatype};
  if (const CustomReduction* const custom = operation.custom.get(); custom != nullptr) {
    if (custom->isPreMulSum) {
      std::copy_n(custom->scalar.data(), sizeof work.scalar, work.scalar);
      work.scaled = true;
      work.signature.op = device::Signature::kPreMulSum;
    } else {
      work.op = device::ReduceOp::kUser;
      work.signature.op = static_cast<std::uint8_t>(work.op);
      user_ = custom->user;
      user_.datatype = operation.datatype;  // known only now: the function works with every datatype
      context.user = &user_;
    }
  }
  if (operation.reduces()) work.yieldsTruth = yieldsTruth(operation.datatype, work.op);
  if (ranks() == 1 && work.yieldsTruth) work.op = device::ReduceOp::kLogicalOr;
  // Where data is only moved, a "fold" of one source copies it to several places.
  if (context.user == nullptr) context.kernel = executor::reduceKernel(operation.datatype, work.op);
  const std::uint64_t bytes = plannedBytes(operation, work.elementBytes);
  const planner::Choice choice = planFor(operation, bytes);
  work.signature.algorithm = choice.algorithm;
  work.word = work.signature.pack();
  work.direct = choice.direct;
  if (choice.algorithm == device::Algorithm::kHierarchical) {
    work.hosts = gpu_ != nullptr ? gpu_->hosts() : &hosts_.shape;
    work.within = choice.within;
    work.between = choice.between;
  }
  now_->behindRoot = choice.behindRoot;
  now_->behindOthers = choice.algorithm;
  followOrder(work);
  if (gpu_ != nullptr) {
    planner::Query query = queryFor(operation);
    query.bytes = bytes;
    work.channels = planner::channelsFor(choice.algorithm, query, machine_);
  }
  work.chunksAtOnce =
      machine_.mapped ? 1
                      : work.slots - 1;  // between hosts a chunk is long under way; where it is not, the caches count
  const bool divided = device::isIn(operation.collective, device::kSendsBlocks | device::kReceivesBlocks);
  work.streaming = (divided ? bytes * static_cast<std::uint64_t>(ranks()) : bytes) >= streamingBytes_;
  // Of gatherv, all but the root know their own block only.
  const std::uint64_t longest = operation.collective == Collective::kGather
                                    ? std::max(bytes, work.partTo(work.root).count * work.elementBytes)
                                    : bytes;
  if (choice.direct != device::Algorithm::kCount) {
    const bool inPlace = operation.send == operation.recv;
    work.readsPeers = !work.scaled && readsPeers(work, longest);
    work.writesPeers = !work.scaled && writesPeers(work, longest);
    const bool readsWhatIsWritten = operation.collective == Collective::kAllToAll ||
                                    (operation.collective == Collective::kAllReduce &&
                                     choice.direct == device::Algorithm::kOneShot && !work.readsPeers);
    work.shareable = !(inPlace && readsWhatIsWritten) && !work.scaled;
    if (work.shareable) shareBuffers(operation, work);
  }
  const bool isPlainGather =
      operation.collective == Collective::kGather && choice.algorithm == device::Algorithm::kOneShot && gpu_ == nullptr;
  if (countsDiffer(operation) || isPlainGather) decideByPairs(work, longest);
  work.chunkBytes = chunkFor(work, bytes, !countsDiffer(operation));
  now_->longestAhead = longestAhead(work);
  now_->mostAhead = kMostGivenAhead;
  std::uint64_t scratch = planner::scratchBytes(choice.algorithm, operation.collective, inputBytes(operation, work));
  if (work.readsPeers && operation.reduces()) {
    const bool isOneShot =
        choice.direct == device::Algorithm::kOneShot || !work.writesPeers;  // in windows, or by reading alone
    const bool aside = operation.collective == Collective::kAllReduce && operation.send == operation.recv && isOneShot;
    scratch = std::max(scratch, algorithms::readBytes(ranks()) + (aside ? bytes : 0));
  }
  if (gpu_ == nullptr && scratch_.size() < scratch) {
    forget();  // the others point to the old one
    scratch_.resize(scratch);
  }
  work.scratch = scratch_.data();
}

// Bytes of the longest block that this rank gives, if the others would take it, or it would have to meet the root
// first, and it may put it into slots instead, where waiting costs more than a copy.
std::uint64_t Communicator::longestAhead(const Work& work) const {
  const bool gives = device::isIn(work.signature.collective, device::kMeetsRootOnly) && device::onlyGives(work);
  if (!gives || !waitsLonger_ || work.signature.algorithm != device::Algorithm::kOneShot ||
      algorithms::givesThroughStaging(work))
    return UINT64_MAX;
  std::uint64_t longest = 0, all = 0;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank() || !device::gives(work, rank(), peer)) continue;
    const std::uint64_t bytes = work.partTo(peer).count * work.elementBytes;
    longest = std::max(longest, bytes);
    all += bytes;
  }
  return all <= kMostGivenAheadInAll ? longest : UINT64_MAX;
}

// Whether ordinary buffers are read where they are: from a size on, where each rank takes what it needs from where it
// is at first. An algorithm that relays, if it was asked for, goes on relaying. The inputs of an all-reduce are read by
// two ranks only, and, where results cannot be written, not if they do not stay in the caches: then staging moves less
// (perf/results/2026-11-23-single-copy-reductions.txt). What goes to one root is copied by the others rather than by
// the root alone, if it is long.
bool Communicator::readsPeers(const Work& work, std::uint64_t bytes) const {
  if (bytes == 0 || bytes < singleCopyBytes_ || ranks() == 1) return false;
  switch (work.signature.collective) {
    case Collective::kBroadcast:
    case Collective::kScatter: return true;
    case Collective::kGather: return bytes <= kMostReadForGather && !waitsLonger_;
    case Collective::kAllGather:
    case Collective::kAllToAll: return bytes >= exchangeCopyBytes();
    case Collective::kReduceScatter: return !waitsLonger_;
    case Collective::kAllReduce:
      return ranks() == 2 && (bytes <= kMostReadForAllReduce || writesPeers_) && !waitsLonger_;
    default: return false;
  }
}

// Likewise: what goes to one root is written there by all at once; the root of a broadcast, who would only wait, does a
// part of the work; and of two ranks each folds one half of an all-reduce.
bool Communicator::writesPeers(const Work& work, std::uint64_t bytes) const {
  if (!writesPeers_ || waitsLonger_ || bytes == 0 || bytes < singleCopyBytes_ || ranks() == 1) return false;
  switch (work.signature.collective) {
    case Collective::kGather: return true;
    case Collective::kBroadcast: return bytes >= kWorthPushing;
    case Collective::kAllReduce: return ranks() == 2 && bytes >= kWorthHalving;
    default: return false;
  }
}

// Where everybody has to meet everybody before anything is read.
std::uint64_t Communicator::exchangeCopyBytes() const {
  return waitsLonger_ ? std::max(singleCopyBytes_, kWorthMeeting) : singleCopyBytes_;
}

// A block in a window is taken from there if a message would be; one in ordinary memory as in the other collectives.
// Nothing is offered if no block is long enough. Of gather's blocks the senders have to know it too, so it does not
// depend on the root's buffer; and a sender has to wait for the root to know that, unless it gives ahead.
void Communicator::decideByPairs(Work& work, std::uint64_t longestBytes) const {
  const bool isGather = work.signature.collective == Collective::kGather;
  std::uint64_t fromBytes = work.signature.collective == Collective::kAllToAll ? exchangeCopyBytes() : singleCopyBytes_;
  if (isGather || work.sendRef.index != 0) fromBytes = kEagerWindowBytes + 1;
  if (isGather && waitsLonger_) fromBytes = std::max(fromBytes, kWorthMeeting);
  work.pairsFromBytes = work.direct == device::Algorithm::kCount
                            ? UINT64_MAX
                            : std::max<std::uint64_t>(fromBytes, device::kHeaderPayloadBytes + 1);
  work.shareable = work.shareable && longestBytes >= work.pairsFromBytes;
}

// Bytes of this rank's whole input.
std::uint64_t Communicator::inputBytes(const Operation& operation, const Work& work) const {
  if (!operation.vector) return operation.count * work.elementBytes * static_cast<std::uint64_t>(ranks());
  std::uint64_t end = 0;
  const VectorCounts& counts = *operation.counts;
  for (std::size_t i = 0; i < counts.sendCounts.size(); ++i)
    end = std::max(end, counts.sendDispls[i] + counts.sendCounts[i]);
  return end * work.elementBytes;
}

void Communicator::shareBuffers(const Operation& operation, Work& work) {
  const auto extent = [&](const device::Layout& layout, bool divided) {
    if (layout.counts == nullptr) return layout.count * (divided ? static_cast<std::uint64_t>(ranks()) : 1);
    std::uint64_t end = 0;
    for (int i = 0; i < ranks(); ++i) end = std::max(end, layout.block(i).begin + layout.block(i).count);
    return end;
  };
  const bool sendDivided = device::isIn(operation.collective, device::kSendsBlocks);
  const bool recvDivided = device::isIn(operation.collective, device::kReceivesBlocks);
  if (work.send != nullptr)
    work.sendRef = windows_.find(work.send, extent(work.sendLayout, sendDivided) * work.elementBytes);
  if (work.recv != nullptr)
    work.recvRef = windows_.find(work.recv, extent(work.recvLayout, recvDivided) * work.elementBytes);
}

}  // namespace kolo::comm
