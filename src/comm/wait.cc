// How an operation waits, for peers whose memory is mapped and for posted links, what it finds while it does, and from
// a fault to words.
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "algorithms/names.h"
#include "base/caller.h"
#include "base/log.h"
#include "comm/communicator.h"
#include "topology/topology.h"

namespace kolo::comm {
namespace {

using device::Fault;
using device::Signature;
using device::Work;

// With so many ranks for each core, those that take turns by yielding keep the one that has something to do from its
// turn: each yield costs the others' looks at what they wait for. Napping, 64 ranks on 2 cores all_reduce 8 bytes in 3
// to 12 ms instead of 15 to 17.
constexpr int kCrowd = 8;
constexpr std::uint64_t kTurnsInACrowd = 2;

// A rank that waits for a posted link looks again at once for so long, if with yields; only then it sleeps until
// something comes. On two cores the processor that is to be woken answers after as long as several messages take.
constexpr std::int64_t kAwakeNs = 1'000'000;

// Of two who store each one of two counters and then load the other, one at least sees what the other has stored.
void storeInOneOrder(device::Counter& counter, std::uint64_t value) { std::atomic_ref(counter.value).store(value); }
std::uint64_t loadInOneOrder(const device::Counter& counter) {
  return std::atomic_ref(const_cast<std::uint64_t&>(counter.value)).load();
}

// What comes by posted links comes while this rank makes progress: a look. Where the rank is thought to have a core it
// looks in vain once more, then lets others run: if nobody else wants the core, that costs little; but hosts may share
// one, as containers do. Where the last yields found nobody, and looks cost no system call, the core is offered less
// often, for such an offer costs as much as a look or two. With as many looks of TCP all_gather took 6.7 us for 8 bytes
// instead of 4.8: what the one rank asks the kernel for, the other's packets wait for.
constexpr int kLooks = 2, kLooksAlone = 32;
constexpr int kPollsOfALook = 128;

constexpr std::int64_t kBoardIntervalNs =
    10'000'000;  // a rank that waits reads its peer's board, and says that it waits, this often

}  // namespace

// ---- waiting

const Board& Communicator::boardOf(int peer) const {
  return *reinterpret_cast<const Board*>((*peers_)[peer].arena + layout_.boardAt());
}

Board& Communicator::ownBoard() const { return *reinterpret_cast<Board*>(peers_->arena() + layout_.boardAt()); }

void Communicator::postOnBoard(const Work& work) {
  BoardEntry& entry = ownBoard().entries[sequence_ % Board::kEntries];
  device::storeRelease(entry.sequence, 0);  // a reader that sees the new fields sees this, or the new sequence
  device::storeRelease(entry.signature, work.word);
  device::storeRelease(entry.count, work.headerCount);
  device::storeRelease(entry.sequence, sequence_);  // [board]
}

// The caller may do with its buffers what it likes, though peers may still read there. Whoever has read looks at this
// afterwards; whoever writes says so and looks at this before, so that either the writer sees it, or the writer is seen
// here and waited for.
void Communicator::releaseBuffers() {
  storeInOneOrder(ownBoard().gaveUp, 1);  // [gave up] before [writes] is read
  device::fence();                        // before what the caller writes
  if (writesPeers_) awaitWriters();
}

// A piece takes a millisecond or so. A process that was killed in the middle has left the kernel before others hear of
// its death; its mark stays, though. One that is stopped just there, or waits for its pages, is not waited for longer
// than this.
void Communicator::awaitWriters() {
  constexpr std::int64_t kLongestNs = 2'000'000'000, kOfTheDeadNs = 50'000'000;
  const timespec nap{0, 100'000};
  const std::int64_t begin = nowNs();
  const auto writesHere = [&](int peer) {
    return peer != rank() && peers_->isOpen(peer) && !(*peers_)[peer].isPosted() &&
           loadInOneOrder(boardOf(peer).writes) == static_cast<std::uint64_t>(rank()) + 1;  // [writes]
  };
  for (int peer = 0; peer < ranks(); ++peer) {
    while (writesHere(peer) && nowNs() - begin < (isReported(peer) ? kOfTheDeadNs : kLongestNs))
      nanosleep(&nap, nullptr);
  }
}

// What an entry of a peer's board says about the operation in which this rank waits.
std::optional<Fault> Communicator::checkEntry(const Work& work, const BoardEntry& entry, int peer) const {
  const std::uint64_t before = device::loadAcquire(entry.sequence);  // [board]
  const std::uint64_t signature = device::loadAcquire(entry.signature), count = device::loadAcquire(entry.count);
  if (before != sequence_ || device::loadAcquire(entry.sequence) != before) return std::nullopt;
  if (signature == work.word) return std::nullopt;
  return Fault{Fault::kMismatch, peer, signature, count, work.word, work.headerCount};
}

// Whether the peer, on whom this rank waits, has left or has called something else as this operation. One whose memory
// is not mapped sends its board when it waits too (notify).
std::optional<Fault> Communicator::readBoard(const Work& work, int peer) const {
  if (hasLeft(peer)) return Fault{Fault::kLeft, peer, 0, 0};
  if (!peers_->isOpen(peer)) return std::nullopt;
  if ((*peers_)[peer].isPosted()) return checkEntry(work, noticeOf(peer).entries[sequence_ % Board::kEntries], peer);
  const Board& board = boardOf(peer);
  if (device::loadAcquire(board.left) != 0) return Fault{Fault::kLeft, peer, 0, 0};  // [left]
  return checkEntry(work, board.entries[sequence_ % Board::kEntries], peer);
}

const Notice& Communicator::noticeOf(int peer) const {
  return *layout_.part(peers_->arena() + layout_.partAt(peer)).notice;
}

// By a posted link: whether the goodbye has come by each rail, and with it all that the peer had sent; the first says
// how many rails there are, for this rank may have no link to the peer. A peer that has left needs nothing more: what
// cannot be put any more is not missed, and a rank that waits for it finds out.
bool Communicator::hasLeft(int peer) const {
  const Notice& notice = noticeOf(peer);
  const std::uint64_t rails = device::loadAcquire(notice.left[0]);  // [left]
  for (std::uint64_t rail = 1; rail < std::min<std::uint64_t>(rails, device::kMaxRails); ++rail) {
    if (device::loadAcquire(notice.left[rail]) == 0) return false;  // [left]
  }
  return rails != 0;
}

// Sends what is new on the board to the peers that cannot read it, in each operation in which this rank waits for long:
// one of them may wait for it, though it waits for another. By signals alone, which are whole however the peer reads
// meanwhile.
void Communicator::notify() {
  const Board& board = ownBoard();
  const std::uint64_t oldest = sequence_ > device::kMaxOwed ? sequence_ - device::kMaxOwed : 0;
  for (std::uint64_t number = std::max(notified_, oldest) + 1; number <= sequence_; ++number) {
    const BoardEntry& mine = board.entries[number % Board::kEntries];
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank() || !peers_->isOpen(peer) || !(*peers_)[peer].isPosted()) continue;
      BoardEntry& theirs = layout_.part(peers_->partAt(peer)).notice->entries[number % Board::kEntries];
      const auto send = [&](device::Counter& word, std::uint64_t value) {
        device::storeRelease(word, value);
        (void)post(peer, {0, nullptr, 0, &word, value}, false);
      };
      send(theirs.sequence, 0);
      send(theirs.signature, mine.signature.value);
      send(theirs.count, mine.count.value);
      send(theirs.sequence, number);  // [board]
    }
  }
  notified_ = sequence_;
}

// Tells a peer that this rank goes, behind what it was sent before: by a posted link, by each rail.
void Communicator::sayGoodbye(int peer) {
  Notice& notice = *layout_.part(peers_->partAt(peer)).notice;
  const std::uint32_t rails = (*peers_)[peer].isPosted() ? railsTo(peer) : 1;
  for (std::uint32_t rail = 0; rail < rails; ++rail) {
    device::storeRelease(notice.left[rail], rails);  // [left]
    if (!(*peers_)[peer].isPosted()) return;
    const device::Post goodbye{rail, nullptr, 0, &notice.left[rail], rails};
    for (int tries = 0; tries < 1000 && peers_->put(peer, goodbye).code() == koloInProgress; ++tries) {  // [left]
      peers_->progress(peer, 1000);
      if ((*peers_)[peer].isHeld) (void)followReroutes();
    }
  }
}

// Kept by the thread that executes: the deadline of what it executes, or the communicator's.
int Communicator::timeoutMs() const { return caller.timeoutMs >= 0 ? caller.timeoutMs : options_.timeoutMs; }

void Communicator::sayWait(int peer, bool isMessage, std::int64_t sinceNs, std::int64_t nowNs) {
  saysWait_ = true;
  waiting_.say({peer, isMessage, sinceNs, nowNs});
}

// Why to give up, if there is a reason; and says every now and then that this rank waits.
Fault Communicator::checkFailure(int peer, executor::WaitState& state, std::int64_t now, bool isMessage) {
  if (stop_.load(std::memory_order_acquire) != 0) return {Fault::kAborted, peer, 0, 0};  // [stop]
  if (state.startedNs == 0) state.startedNs = state.checkedNs = state.saidNs = now;
  const int limitMs = timeoutMs();
  const bool isOver = limitMs > 0 && now - state.startedNs > limitMs * std::int64_t{1'000'000};
  if (isOver || now - state.saidNs >= kBoardIntervalNs) {
    state.saidNs = now;
    sayWait(peer, isMessage, state.startedNs, now);
  }
  return isOver ? Fault{Fault::kTimeout, peer, 0, 0} : Fault{};
}

Fault Communicator::lookForReroutes(std::int64_t now) {
  if (!mayReroute_ || now - followedNs_ < kBoardIntervalNs) return {};
  followedNs_ = now;
  return followReroutes();
}

Fault Communicator::checkWait(int peer, executor::WaitState& state, bool isMessage) {
  const std::int64_t now = nowNs();
  if (const Fault fault = checkFailure(peer, state, now, isMessage); fault.kind != Fault::kNone) return fault;
  if (spreads_) spread(now);
  // One or the other: the function may let others run itself, as Open MPI's does where ranks are more than cores, and
  // what was waited for may have come meanwhile.
  if (++state.rounds % 2 != 0 || takesCare_ || !makeUserProgress()) {
    const bool isCrowded = ranks() >= kCrowd * machine_.cores && state.rounds > kTurnsInACrowd;
    const std::int64_t waited = now - state.startedNs;
    rest(peer, isCrowded || waited > 100'000'000, isCrowded || waited > kAwakeNs);
  }
  return lookForReroutes(now);
}

// By threads of the user's, which may use what others must not.
bool Communicator::makeUserProgress() const {
  if (caller.isLibrarys) return false;
  std::unique_lock lock(progressMutex_);
  const UserProgress its = userProgress_;
  lock.unlock();
  if (its.function == nullptr) return false;
  const InUserFunction inside;
  its.function(its.context);
  return true;
}

void Communicator::endWait() {
  if (std::exchange(saysWait_, false)) waiting_.end();
}

// Messages wait for nobody in particular (-1), or for one peer, which may leave meanwhile, or whose link may be lost.
// What a peer sent before it left is there when it is known to have left: this rank looks once more before it gives up.
Fault Communicator::checkMessages(int peer, executor::WaitState& state, bool mayRest) {
  Fault fault = mayRest ? checkWait(peer, state, true) : checkFailure(peer, state, nowNs(), true);
  const std::int64_t now = nowNs();
  if (!mayRest && fault.kind == Fault::kNone) fault = lookForReroutes(now);
  if (fault.kind != Fault::kNone || now - state.checkedNs < kBoardIntervalNs) return fault;
  state.checkedNs = now;
  const auto isGone = [&] { return peer >= 0 ? hasLeft(peer) : haveAllLeft(); };
  if (isGone()) return std::exchange(state.isKnownToBeGone, true) ? Fault{Fault::kLeft, peer, 0, 0} : Fault{};
  Status link = peer >= 0 ? peers_->state(peer) : Status();
  if (link.ok()) return {};
  const Fault loss = lost(peer, std::move(link));
  return isGone() ? Fault{} : loss;
}

bool Communicator::haveAllLeft() const {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank() && !hasLeft(peer)) return false;
  }
  return true;
}

// Leaves the core to others for a moment; forLong: nobody notices a twentieth of a millisecond after a tenth of a
// second. A rank that waits for posted links may sleep in their transport, which wakes it.
void Communicator::rest(int peer, bool forLong, bool maySleep) {
  if (maySleep && posts() && (peer < 0 ? !peers_->reachesByMapping() : (*peers_)[peer].isPosted())) {
    sharing_.sleeps();
    peers_->progress(peer, forLong ? 2000 : 200);
  } else if (forLong) {
    const timespec nap{0, 50'000};
    nanosleep(&nap, nullptr);
  } else {
    yield();
  }
}

// Where ranks are is said as often as they wait, so that others know; who reads it a little too early or late is put
// right the next time.
void Communicator::spread(std::int64_t nowNs) {
  if (const int thread = sched_getcpu(); thread != thread_) {
    thread_ = thread;
    device::storeRelaxed(ownBoard().thread, static_cast<std::uint64_t>(thread + 1));
  }
  if (!spreading_.isDue(nowNs)) return;
  std::vector<int> threadOf(static_cast<std::size_t>(ranks()), -1);
  threadOf[static_cast<std::size_t>(rank())] = thread_;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank() || !peers_->isOpen(peer) || (*peers_)[peer].isPosted()) continue;  // whose board cannot be read
    threadOf[static_cast<std::size_t>(peer)] = static_cast<int>(device::loadRelaxed(boardOf(peer).thread)) - 1;
  }
  const int target = Spreading::target(threadOf, rank(), topology::machine().allowedThreads);
  if (target >= 0) topology::moveTo(target);
}

void Communicator::yield() {
  if (!posts()) {  // who shares memory with all looks at it as often as it likes
    sched_yield();
    return;
  }
  const std::int64_t begin = nowNs();
  sched_yield();
  sharing_.yielded(nowNs() - begin);
}

int Communicator::looks() const {
  if (polling_.polls < kPollsOfALook) return 1;
  return sharing_.isUnlikely() && peers_->looksCheaply() && userProgress_.function == nullptr ? kLooksAlone : kLooks;
}

// A rank that waits, has sent, and shares its core lets the others run before it looks: they find all that it sent, and
// send what it waits for. Else each turn but the last of them ends with a look in vain, and that rank goes on into the
// next operation while the others are still in this one. Three ranks on two cores, in a namespace each, all_reduce 8
// bytes in 27 us instead of 41.
bool Communicator::progress(int peer) {
  const bool sends = sharing_.isLikely() && !peers_->isFlushed();
  const bool moved = peers_->progress(peer, 0);
  if (sends && peers_->isFlushed()) yield();
  return moved;
}

Fault Communicator::keepWaiting(const Work& work, int peer, executor::WaitState& state) {
  messages_->progress(true);
  messages_->endOverdue();
  const Fault fault = checkWait(peer, state, false);
  if (fault.kind != Fault::kNone) return fault;
  const std::int64_t now = nowNs();
  if (now - state.checkedNs < kBoardIntervalNs) return {};
  state.checkedNs = now;
  notify();
  if (Status lostLink = peers_->state(peer); !lostLink.ok()) {
    const Fault lasting = lost(peer, std::move(lostLink));
    if (lasting.kind != Fault::kNone && !hasLeft(peer)) return lasting;
  }
  if (const std::optional<Fault> found = readBoard(work, peer)) return *found;
  return inquire(work, peer, state).value_or(Fault{});
}

// ---- posted links

Fault Communicator::post(const Work&, const device::Link& link, const device::Post& post) {
  return this->post(link.peer, post, false);
}

Fault Communicator::post(int peer, const device::Post& post, bool isMessage) {
  executor::WaitState state;
  for (;;) {
    Status accepted = peers_->put(peer, post);
    if (accepted.ok()) return {};
    const bool isBusy = accepted.code() == koloInProgress && !(*peers_)[peer].isHeld;
    const Fault fault = (*peers_)[peer].isGone              ? Fault{Fault::kLost, peer, 0, 0}
                        : accepted.code() == koloInProgress ? checkWait(peer, state, isMessage)
                                                            : lost(peer, std::move(accepted));
    // Whoever waits for a peer that has left, or is reached by no transport any more, finds out; it may need nothing
    // more, and have gone.
    if (!isBusy && (hasLeft(peer) || (*peers_)[peer].isGone)) return {};
    if (fault.kind != Fault::kNone) return fault;
  }
}

// Before a rank leaves an operation its requests must need no help of its: it may not come back for a long time.
Fault Communicator::flush(bool isMessage) {
  executor::WaitState state;
  while (!peers_->isFlushed()) {
    const int peer = peers_->unflushed();
    if ((*peers_)[peer].isHeld && hasLeft(peer)) peers_->release(peer);
    if (peers_->progress(peer, 0)) continue;
    if (const Fault fault = checkWait(peer, state, isMessage); fault.kind != Fault::kNone) return fault;
  }
  return {};
}

// A rank that dies closes all that it had open, in any order: what the control plane says about it is worth a moment.
// But not if it is still reached otherwise.
Fault Communicator::lost(int peer, Status why) {
  constexpr int kRounds = 100;
  const timespec nap{0, 5'000'000};
  if (reroute(peer, why)) return {};
  for (int i = 0; i < kRounds && !failed() && !hasLeft(peer); ++i) {
    nanosleep(&nap, nullptr);
    (void)peers_->progress(-1, 0);  // what it said before is still to be taken
  }
  if (!failed()) awaitNewsOfHub();
  if (failed()) return {Fault::kAborted, peer, 0, 0};
  lostLink_ = std::move(why);
  return {Fault::kLost, peer, 0, 0};
}

bool Communicator::read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) {
  readFailure_ = (*peers_)[peer].link->read(to, from, bytes);
  return readFailure_.ok();
}

bool Communicator::write(int peer, std::uint64_t to, const void* from, std::uint64_t bytes) {
  constexpr std::uint64_t kPiece = 4 << 20;
  readFailure_ = {};
  for (std::uint64_t done = 0; done < bytes && readFailure_.ok(); done += kPiece) {
    storeInOneOrder(ownBoard().writes, static_cast<std::uint64_t>(peer) + 1);  // [writes] before [gave up] is read
    const bool hasGivenUp = loadInOneOrder(boardOf(peer).gaveUp) != 0;         // [gave up]
    if (!hasGivenUp && !failed()) {
      readFailure_ = (*peers_)[peer].link->write(to + done, static_cast<const unsigned char*>(from) + done,
                                                 std::min(kPiece, bytes - done));
    } else {
      readFailure_ = Status(koloRemoteError, "the operation has failed");
    }
    device::storeRelease(ownBoard().writes, 0);  // [writes] after what was written
  }
  return readFailure_.ok();
}

Fault Communicator::distrust(int peer, const std::string& what) {
  distrusted_ = fmt::format(
      "rank {} wrote to rank {} {}, which a rank of this version does not do: what it wrote was altered, in memory or "
      "on its way, or "
      "it runs another build of the library. KOLO_TCP_CHECKSUM=1 finds what is altered on its way by tcp",
      peer, rank(), what);
  return {Fault::kCorrupt, peer, 0, 0};
}

bool isDumpable() { return prctl(PR_GET_DUMPABLE) == 1; }

// The kernel lets others at the memory of a process that is dumpable. A program may end that when it likes: by prctl,
// or by another user or fewer capabilities. Nobody tells this rank, so it asks before it offers anything; the peers see
// in its headers and lines that nothing is offered. Where peers could read without that (by CAP_SYS_PTRACE), nothing
// changes.
bool Communicator::offersMemory() {
  if (!wasDumpable_ || isDumpable()) return true;
  if (std::exchange(saysUndumpable_, false)) {
    log::info(
        "rank {}: this process is no longer dumpable (prctl PR_SET_DUMPABLE, or a change of its user), so that others "
        "may not read its memory: ordinary buffers go through staging",
        rank());
  }
  return false;
}

Status Communicator::readFailure(int peer) const {
  return error(koloRemoteError, "rank {} could not read the message of rank {}: {}", rank(), peer,
               readFailure_.message());
}

// ---- conclusion

std::string Communicator::label(const Work& work) const {
  return label(work.signature, work.number != 0 ? work.number : sequence_);
}

std::string Communicator::label(const Signature& signature, std::uint64_t number) const {
  return fmt::format("{} (operation {} of communicator {})",
                     koloCollectiveName(static_cast<koloCollective_t>(signature.collective)), number, options_.name);
}

std::string Communicator::describeMismatch(std::uint64_t number, int one, const Called& oneCalled, int other,
                                           const Called& otherCalled) const {
  return fmt::format(
      "the ranks called different operations as number {} of communicator {}: rank {} called {}, rank {} called {}",
      number, options_.name, one, kolo::describe(Signature::unpack(oneCalled.word), oneCalled.count), other,
      kolo::describe(Signature::unpack(otherCalled.word), otherCalled.count));
}

// Whether a peer whose buffer could not be read has given up, and why: it says so on its board before its caller can
// take the memory away, and to the control plane soon after.
bool Communicator::hearsWhyGivenUp(int peer) const {
  constexpr int kRounds = 1000;
  const timespec nap{0, 1'000'000};
  for (int i = 0; i < kRounds && !failed() && device::loadAcquire(boardOf(peer).gaveUp) != 0; ++i)
    nanosleep(&nap, nullptr);  // [gave up]
  return failed();
}

Status Communicator::conclude(const Work& work, const Fault& fault) {
  bootstrap::Failure failure;
  const std::string mine = kolo::describe(work.signature, work.headerCount);
  switch (fault.kind) {
    case Fault::kMismatch: {
      const Signature called = Signature::unpack(fault.mine);  // now, or some operations ago
      const std::uint64_t number =
          work.number != 0 ? work.number
                           : sequence_ - static_cast<std::uint16_t>(work.signature.sequence - called.sequence);
      failure = {
          koloMismatch, jobRank(fault.peer),
          describeMismatch(number, rank(), {fault.mine, fault.mineCount}, fault.peer, {fault.signature, fault.count})};
      break;
    }
    case Fault::kTimeout: {
      const WaitStep step{rank(),
                          fault.peer,
                          sequence_,
                          {work.word, work.headerCount},
                          false,
                          waitedNs(),
                          fmt::format("{}: {}", label(work), mine)};
      if (gpu_ == nullptr) return giveUp(step);
      failure = timedOut(step, "");
      break;
    }
    case Fault::kUnreadable:
    case Fault::kUnwritable:
      if (failed() || hearsWhyGivenUp(fault.peer)) return conclude(work, {Fault::kAborted, fault.peer, 0, 0});
      failure = {koloRemoteError, jobRank(fault.peer),
                 fmt::format("rank {} could not {} buffer of rank {} in {}: {}: {}", rank(),
                             fault.kind == Fault::kUnreadable ? "read the send" : "write the receive", fault.peer,
                             label(work), mine, readFailure_.message())};
      break;
    case Fault::kLost:
      failure = {koloRemoteError, jobRank(fault.peer),
                 fmt::format("rank {} has no link to rank {} in {}: {}: {}", rank(), fault.peer, label(work), mine,
                             lostLink_.message())};
      break;
    case Fault::kCorrupt:
      (void)distrust(
          fault.peer,
          fmt::format(
              "a header that offers memory at offset {} of window {}, where it has registered none that is as long as "
              "the operation needs",
              fault.count, fault.signature - 1));
      failure = {koloRemoteError, jobRank(fault.peer), fmt::format("{}; in {}: {}", distrusted_, label(work), mine)};
      break;
    case Fault::kLeft:
      failure = {koloRemoteError, jobRank(fault.peer),
                 fmt::format("rank {} destroyed its communicator while rank {} waited for it in {}: {}", fault.peer,
                             rank(), label(work), mine)};
      break;
    default: {
      const Status why = this->failure();
      return error(why.code(), "{}; rank {} was waiting for rank {} in {}: {}", why.message(), rank(), fault.peer,
                   label(work), mine);
    }
  }
  fail(failure);
  return Status(failure.code, failure.message);
}

Status Communicator::giveUpMessages(const Fault& fault, int peer) {
  Status why = concludeMessages(fault, peer);
  releaseBuffers();  // behind that, for peers that find the mark wait for the reason
  return why;
}

Status Communicator::concludeMessages(const Fault& fault, int peer) {
  const std::string whom = peer < 0 ? "any rank" : fmt::format("rank {}", peer);
  if (fault.kind == Fault::kTimeout) {
    return giveUp({rank(), peer, sequence_, {}, true, waitedNs(), {}});
  }
  const int culprit = fault.peer < 0 ? -1 : jobRank(fault.peer);
  std::string mine;  // what is news to the others
  if (fault.kind == Fault::kLost) {
    mine = fmt::format("rank {} has no link to rank {} for messages on communicator {}: {}", rank(), fault.peer,
                       options_.name, lostLink_.message());
  } else if (fault.kind == Fault::kCorrupt) {
    mine = fmt::format("{}; communicator {}", distrusted_, options_.name);
  } else if (fault.kind == Fault::kLeft) {
    mine = fmt::format("{} destroyed its communicator {} while rank {} waited for a message from or to it",
                       peer < 0 ? "every other rank" : whom, options_.name, rank());
  }
  if (!mine.empty()) {
    fail({koloRemoteError, culprit, mine});
    return Status(koloRemoteError, mine);
  }
  const Status why = failure();
  return error(why.code(), "{}; rank {} was waiting for a message from or to {}", why.message(), rank(), whom);
}

}  // namespace kolo::comm
