// How an operation waits, for peers whose memory is mapped and for posted links, and what it finds meanwhile.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "base/caller.h"
#include "base/clock.h"
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

// Sends what is new on the board to the peers that cannot read it, in each operation in which this rank waits for long:
// one of them may wait for it, though it waits for another. By signals alone, which are whole however the peer reads
// meanwhile.
void Communicator::notify() {
  const Board& board = boards_->own();
  const std::uint64_t last = boards_->lastNumber();
  const std::uint64_t oldest = last > device::kMaxOwed ? last - device::kMaxOwed : 0;
  for (std::uint64_t number = std::max(notified_, oldest) + 1; number <= last; ++number) {
    const BoardEntry& mine = board.entries[number % Board::kEntries];
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank() || !peers_->isOpen(peer) || !(*peers_)[peer].isPosted()) continue;
      BoardEntry& theirs = boards_->noticeTo(peer).entries[number % Board::kEntries];
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
  notified_ = last;
}

// Tells a peer that this rank goes, behind what it was sent before: by a posted link, by each rail.
void Communicator::sayGoodbye(int peer) {
  Notice& notice = boards_->noticeTo(peer);
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
  if (failed()) return {Fault::kAborted, peer, 0, 0};
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
  const auto isGone = [&] { return peer >= 0 ? boards_->hasLeft(peer) : boards_->haveAllLeft(); };
  if (isGone()) return std::exchange(state.isKnownToBeGone, true) ? Fault{Fault::kLeft, peer, 0, 0} : Fault{};
  Status link = peer >= 0 ? peers_->state(peer) : Status();
  if (link.ok()) return {};
  const Fault loss = lost(peer, std::move(link));
  return isGone() ? Fault{} : loss;
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
    device::storeRelaxed(boards_->own().thread, static_cast<std::uint64_t>(thread + 1));
  }
  if (!spreading_.isDue(nowNs)) return;
  std::vector<int> threadOf(static_cast<std::size_t>(ranks()), -1);
  threadOf[static_cast<std::size_t>(rank())] = thread_;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank() || !peers_->isOpen(peer) || (*peers_)[peer].isPosted()) continue;  // whose board cannot be read
    threadOf[static_cast<std::size_t>(peer)] = static_cast<int>(device::loadRelaxed(boards_->of(peer).thread)) - 1;
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
    if (lasting.kind != Fault::kNone && !boards_->hasLeft(peer)) return lasting;
  }
  if (const std::optional<Fault> found = boards_->problemOf(peer, work)) return *found;
  return inquire(work, peer, state).value_or(Fault{});
}

}  // namespace kolo::comm
