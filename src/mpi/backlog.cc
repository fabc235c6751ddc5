#include "mpi/backlog.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <new>

#include "mpi/errors.h"
#include "mpi/regions.h"
#include "mpi/session.h"

namespace kolo::mpi {
namespace {

// A thread for which signals are none of its business: they are the program's.
template <class Function>
std::thread startQuietly(Function function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    const sigset_t& mask;
  } const restore{before};
  return std::thread(function);
}

}  // namespace

bool Pending::execute() {
  try {
    const koloResult_t result = task_->run();
    if (result == koloInProgress) return false;
    code_ = classOf(result);
    if (result != koloSuccess) message_ = koloGetLastError(nullptr);
  } catch (const MpiError& error) {
    code_ = error.code;
    message_ = error.what;
  } catch (const std::bad_alloc&) {
    code_ = MPI_ERR_NO_MEM;
    message_ = "out of memory";
  }
  isOver_.store(true, std::memory_order_release);  // [over] with its results; from here on it may be gone
  return true;
}

bool Pending::executeWithoutWaiting() {
  koloSetMayWait(0);
  const bool isOver = execute();
  koloSetMayWait(1);
  return isOver;
}

Backlog::Backlog(bool sharesCores)
    : look_(sharesCores ? kLookSharingCores : kLook), thread_(startQuietly([this] { work(); })) {}

Backlog::~Backlog() {
  drain();
  {
    const std::lock_guard lock(mutex_);
    isStopping_ = true;
  }
  added_.notify_one();
  thread_.join();
}

void Backlog::add(Pending& pending) {
  bool isAsleep = false;
  {
    const std::lock_guard lock(mutex_);
    if (executeAtOnce(pending)) return;
    waiting_.push_back(&pending);
    left_.fetch_add(1, std::memory_order_relaxed);
    isAsleep = std::exchange(isAsleep_, false);
  }
  if (isAsleep) added_.notify_one();
}

bool Backlog::isIdle() {
  const Lock lock(mutex_);
  return !isExecuting_ && waiting_.empty();
}

void Backlog::hurry() {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty() || std::exchange(isHurried_, true)) return;
  }
  added_.notify_one();
}

void Backlog::executeFirst(Lock& lock) {
  Pending* const first = waiting_.front();
  waiting_.pop_front();
  ++begun_;
  isExecuting_ = true;
  lock.unlock();
  (void)first->execute();  // it may wait
  lock.lock();
  isExecuting_ = false;
  left_.fetch_sub(1, std::memory_order_release);  // [left] after what the execution has changed
  over_.notify_all();
}

// Only if it is its turn. Under the lock, for nobody could begin with another meanwhile, and to give it back and take
// it again costs as much as a short collective. No rank is waited for, and what a rank gives without waiting is half a
// MiB at most.
bool Backlog::executeAtOnce(Pending& pending) {
  if (isExecuting_ || !waiting_.empty() || !pending.task_->onlyGives()) return false;
  const bool isOver = pending.executeWithoutWaiting();
  if (isOver) ++begun_;
  return isOver;
}

void Backlog::waitForOthers(Lock& lock) {
  lock.unlock();
  Session::progress();
  lock.lock();
  if (isExecuting_) over_.wait_for(lock, kNap);
}

void Backlog::waitFor(const Pending& pending) {
  if (pending.isOver()) return;
  Lock lock(mutex_);
  while (!pending.isOver()) {
    if (isExecuting_) {
      waitForOthers(lock);
    } else {
      executeFirst(lock);
    }
  }
}

void Backlog::drain() {
  if (left_.load(std::memory_order_acquire) == 0)
    return;  // [left] what the program's threads added before this call is seen here
  Lock lock(mutex_);
  while (isExecuting_ || !waiting_.empty()) {
    if (isExecuting_) {
      waitForOthers(lock);
    } else {
      executeFirst(lock);
    }
  }
}

// What stands first is executed if it did so at the look before, or at once if somebody is in a hurry. If another does
// by then, the program's threads get on without this one, which leaves them alone as if nothing had been there.
void Backlog::work() {
  Session::enterOwnThread();
  Lock lock(mutex_);
  constexpr std::uint64_t kNothing = 0;
  std::uint64_t suspected = kNothing;  // what stood first at the last look, by its number
  int idleLooks = 0;
  Interval seldom = look_;
  while (!isStopping_) {
    const std::uint64_t first = waiting_.empty() ? kNothing : begun_ + 1;
    if (first == kNothing) {
      isHurried_ = false;
      ++idleLooks;
    } else {
      idleLooks = 0;
      if (!isExecuting_ && (first == suspected || isHurried_)) {
        executeFirst(lock);
        suspected = kNothing;
        seldom = look_;
        continue;
      }
    }
    if (idleLooks > kLooks) {
      isAsleep_ = true;
      added_.wait(lock, [this] { return !isAsleep_ || isStopping_; });
      idleLooks = 0;
      continue;
    }
    const bool isSuspicious = first != kNothing && (suspected == kNothing || first == suspected);
    suspected = isSuspicious ? first : kNothing;
    added_.wait_for(lock, isSuspicious ? look_ : seldom);
    if (!isSuspicious) seldom = std::min(2 * seldom, kLongestLook);
  }
}

}  // namespace kolo::mpi
