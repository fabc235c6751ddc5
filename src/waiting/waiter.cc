#include "waiting/waiter.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/caller.h"
#include "common/clock.h"

namespace kolo::waiting {
namespace {

using device::Fault;

// A rank that waits for a posted link looks again at once for so long, if with yields; only then it sleeps until
// something comes. On two cores the processor that is to be woken answers after as long as several messages take.
constexpr std::int64_t kAwakeNs = 1'000'000;

// A rank that waits takes turns by yielding for so long, and sleeps from then on. A thread of the library's own shares
// the core with threads of the user's, which compute meanwhile, as those of PyTorch's autograd do: each turn is time
// that they lack.
constexpr std::int64_t kTurnsNs = 2'000'000, kLibrarysTurnsNs = 5'000;

// The yields of a real-time thread let no ordinary thread have its core, where the rank that it waits for may be one.
// How the thread is scheduled is asked every now and then, for that may change.
constexpr std::int64_t kRealTimeTurnsNs = 100'000, kAskIntervalNs = 10'000'000;

bool isRealTime() {
  const int policy = ::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
  return policy == SCHED_FIFO || policy == SCHED_RR || policy == SCHED_DEADLINE;
}

// What a peer writes wakes a rank that sleeps. A failure, or another thread of its process that wants the communicator,
// does not: the rank notices it at the end of its sleep, which lasts this part of its wait, and 4 ms at most.
constexpr std::int64_t kSleepsOfAWait = 8;

// What comes by posted links comes while this rank makes progress: a look. Where the rank is thought to have a core it
// looks in vain once more, then lets others run: if nobody else wants the core, that costs little; but hosts may share
// one, as containers do.
constexpr int kLooks = 2;
constexpr int kPollsOfALook = 128;

}  // namespace

void Waiter::say(int peer, bool isMessage, std::int64_t sinceNs, std::int64_t nowNs) {
  saysWait_ = true;
  setup_.waiting.say({peer, isMessage, sinceNs, nowNs});
}

// Why to give up, if there is a reason; and says every now and then that this rank waits.
Fault Waiter::check(int peer, executor::WaitState& state, bool isMessage, std::int64_t now) {
  if (setup_.failure.isSet()) return {Fault::kAborted, peer, 0, 0};
  if (state.startedNs == 0) state.startedNs = state.checkedNs = state.saidNs = now;
  const int limitMs = failure::timeoutInUse(setup_.timeoutMs);
  const bool isOver = limitMs > 0 && now - state.startedNs > limitMs * std::int64_t{1'000'000};
  if (isOver || now - state.saidNs >= kBoardIntervalNs) {
    state.saidNs = now;
    say(peer, isMessage, state.startedNs, now);
  }
  return isOver ? Fault{Fault::kTimeout, peer, 0, 0} : Fault{};
}

Fault Waiter::keepWaiting(int peer, executor::WaitState& state, bool isMessage, std::int64_t now) {
  if (const Fault fault = check(peer, state, isMessage, now); fault.kind != Fault::kNone) return fault;
  if (state.idleNs == 0) {
    state.idleNs = now;
    state.naps = false;
  }
  // One or the other: the function may let others run itself, as Open MPI's does where ranks are more than cores, and
  // what was waited for may have come meanwhile.
  if (++state.rounds % 2 != 0 || !userProgress_.make()) {
    rest(peer, state, now);
  }
  return {};
}

void Waiter::end() {
  if (std::exchange(saysWait_, false)) setup_.waiting.end();
}

bool Waiter::isLong(std::int64_t waitedNs, std::int64_t now) {
  if (caller.isLibrarys) return waitedNs > kLibrarysTurnsNs;
  if (waitedNs <= kRealTimeTurnsNs || waitedNs > kTurnsNs) return waitedNs > kTurnsNs;
  if (now >= askedNs_ + kAskIntervalNs) {
    askedNs_ = now;
    isRealTime_ = isRealTime();
  }
  return isRealTime_;
}

// Leaves the core to others for a moment. A rank that waits for posted links may sleep in their transport, which wakes
// it.
void Waiter::rest(int peer, executor::WaitState& state, std::int64_t now) {
  const std::int64_t waitedNs = now - state.idleNs;
  const bool naps = isLong(waitedNs, now);
  const bool maySleep = naps || waitedNs > kAwakeNs;
  if (maySleep && setup_.posts && (peer < 0 ? !setup_.peers.reachesByMapping() : setup_.peers[peer].isPosted())) {
    setup_.peers.progress(peer, static_cast<int>(std::min(napNs(waitedNs), longestNapNs()) / 1000));
  } else if (naps) {
    state.naps = true;
    if (executor::maySleep(setup_.asleep)) {
      executor::sleep(setup_.asleep, std::clamp(waitedNs / kSleepsOfAWait, kLeastNapNs, longestNapNs()));
    }
  } else {
    yield();
  }
}

void Waiter::yield() {
  if (!setup_.posts) {  // a rank that shares memory with all looks at it as often as it likes
    sched_yield();
    return;
  }
  const std::int64_t begin = nowNs();
  sched_yield();
  sharing_.yielded(nowNs() - begin);
}

int Waiter::looks() const { return setup_.polling.polls < kPollsOfALook ? 1 : kLooks; }

// A rank that waits, has sent, and shares its core lets the others run before it looks: they find all that it sent, and
// send what it waits for. Without this each turn but the last of them ends with a look in vain, and that rank goes on
// into the next operation while the others are still in this one.
bool Waiter::progress(int peer) {
  const bool sends = sharing_.isLikely() && !setup_.peers.isFlushed();
  const bool moved = setup_.peers.progress(peer, 0);
  if (sends && setup_.peers.isFlushed()) yield();
  return moved;
}

}  // namespace kolo::waiting
