// A communicator's own thread, which goes on with requests while nobody waits for them.
#include <sched.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/caller.h"
#include "base/log.h"
#include "base/quiet_thread.h"
#include "comm/communicator.h"
#include "comm/requests.h"
#include "common/clock.h"

namespace kolo::comm {
namespace {

using Interval = std::chrono::microseconds;

// Between two looks of the own thread: the second one begins what stood there at the first.
constexpr Interval kLook{100}, kLookSharingCores{1000}, kLongestLook{1000};
// After so many that find nothing it sleeps until it is woken.
constexpr int kLooksBeforeSleep = 100;
// While data moves it stays, so as not to make the peer wait for its next look.
constexpr std::int64_t kStayNs = 100'000;

}  // namespace

void Requests::hurry() {
  Lock lock(mutex_);
  if (queue_.empty() || std::exchange(isHurried_, true)) return;
  added_.notify_one();
}

// They have a thread of their own: this object's may be executing what ends only after what a notice starts.
Status Requests::prepareNotices() {
  const Lock lock(mutex_);
  if (notices_ != nullptr) return {};
  try {
    notices_ = std::make_unique<Stream>();
    return {};
  } catch (const std::system_error& why) {
    return noThread(why, "a function for the end of a request needs a thread");
  }
}

void Requests::giveNoticeSoon(Request& request) {
  const Lock lock(mutex_);
  notices_->enqueue(request.takeNotice());
}

// Somebody leaves messages under way. Sequentially consistent with the thread's going to sleep: either it sees them, or
// it is seen to sleep.
void Requests::watch() {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // [asleep]
  if (!isAsleep_.load(std::memory_order_relaxed)) return;
  Lock lock(mutex_);
  wake(lock);
}

void Requests::wake(Lock&) {
  if (!isAsleep_.load(std::memory_order_relaxed) || isStopping_) return;
  isAsleep_.store(false, std::memory_order_relaxed);
  if (thread_.joinable()) {
    added_.notify_one();
    return;
  }
  try {
    thread_ = startQuietly([this] { work(); });
  } catch (const std::exception& why) {
    isAsleep_.store(true, std::memory_order_relaxed);
    const Status none = noThread(why, "the progress of requests needs a thread");
    log::warn("rank {} of communicator {}: {}; its requests go on only while somebody waits", owner_.rank(),
              owner_.options().name, none.message());
  }
}

void Requests::work() {
  const Interval look = owner_.waiter().sharesCores() ? kLookSharingCores : kLook;
  constexpr std::uint64_t kNothing = 0;
  caller.isLibrarys = true;
  Lock lock(mutex_);
  std::uint64_t suspected = kNothing;  // what stood first in the queue at the last look, by its number
  std::uint64_t seenLooks = 0;
  std::int64_t stayUntilNs = 0, movedNs = nowNs();
  int idleLooks = 0;
  Interval pause = look;
  executor::WaitState state;
  while (!isStopping_) {
    const std::uint64_t first = queue_.empty() ? kNothing : begun_ + 1;
    if (first != kNothing && (first == suspected || isHurried_)) {
      executeFirst(lock);
      movedNs = nowNs();
      suspected = kNothing;
      pause = look;
      continue;
    }
    isHurried_ = false;
    // What stands first is not what stood there before: others execute, and each look costs the thread on whose core it
    // is as much as some collectives.
    const bool isSuspect = first != kNothing && suspected == kNothing;
    suspected = isSuspect ? first : kNothing;
    const bool cares = needsCare();
    if (cares && looks_.load(std::memory_order_relaxed) == seenLooks) {
      lock.unlock();
      const bool moved = lookAfterMessages(state);
      lock.lock();
      if (moved) stayUntilNs = nowNs() + kStayNs;
    }
    seenLooks = looks_.load(std::memory_order_relaxed);
    const std::int64_t now = nowNs();
    if (now < stayUntilNs) {
      movedNs = now;
      lock.unlock();
      sched_yield();
      lock.lock();
      continue;
    }
    const bool isIdle = first == kNothing && !cares;
    idleLooks = isIdle ? idleLooks + 1 : 0;
    if (idleLooks > kLooksBeforeSleep && fallAsleep()) {
      added_.wait(lock, [this] { return !isAsleep_.load(std::memory_order_relaxed) || isStopping_; });
      idleLooks = 0;
      pause = look;
      continue;
    }
    if (const std::chrono::nanoseconds quiet(napNs(now - movedNs)); first == kNothing && quiet > kLongestLook) {
      if (!sleepFor(lock, quiet)) continue;
      movedNs = nowNs();
      pause = look;
      continue;
    }
    added_.wait_for(lock, isSuspect ? look : pause);
    if (!isSuspect) pause = std::min(2 * pause, kLongestLook);
  }
}

// Whether it was woken before its time: something was started. What is started a moment before the sleep waits for its
// end.
bool Requests::sleepFor(Lock& lock, std::chrono::nanoseconds time) {
  isAsleep_.store(true, std::memory_order_relaxed);
  added_.wait_for(lock, time, [this] { return !isAsleep_.load(std::memory_order_relaxed) || isStopping_; });
  return !isAsleep_.exchange(false, std::memory_order_relaxed);
}

// Under the lock. False: there is something to do.
bool Requests::fallAsleep() {
  isAsleep_.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // [asleep]
  const bool isIdle = queue_.empty() && !needsCare();
  if (!isIdle) isAsleep_.store(false, std::memory_order_relaxed);
  return isIdle;
}

void Requests::stop(Messages* messages) {
  Lock lock(mutex_);
  isStopping_ = true;
  added_.notify_one();
  lock.unlock();
  if (thread_.joinable()) thread_.join();
  const Status why =
      owner_.failed() ? owner_.failure() : error(koloAborted, "communicator {} was destroyed", owner_.options().name);
  for (const Queued& queued : std::exchange(queue_, Queue())) {
    const std::size_t parts = queued.messages.empty() ? 1 : queued.messages.size();
    for (std::size_t i = 0; i < parts; ++i) ended(*queued.request, why);
  }
  for (const Posted& posted : std::exchange(post_, {})) ended(*posted.request, why);
  if (messages != nullptr) messages->endAll(why);
  notices_.reset();  // when all have been given
}

}  // namespace kolo::comm
