// Operations of one communicator run one after the other, in the order in which they were issued, whatever thread or
// stream runs them.
//
// A thread that has been alone with the communicator for a while gets the bias (base/bias.h): its operations then need
// no place in the order, because nobody else is in it. The first thread that takes a place ends that.
//
// The holder of the next place may come for it late: a stream takes places when its operations are enqueued, and its
// thread may wait for a message before. Meanwhile the turn is nobody's, and others may *borrow* it, to look after
// messages: without that, nobody would move the message that the stream waits for. So they may while a thread that has
// the turn *lends* it, because it waits for the control plane.
//
// A place that comes late keeps the calls behind it waiting also when the communicator has failed. Then they give up
// their places, and whoever waits behind them passes over these.
//
// Thread safety: all from any thread, leanOn() once. wait(t) and done(t) once for each
// t that take() gave, or waitUnless(t) alone, if it gave the place up. lend() and takeBack() by the thread that has the
// turn.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/bias.h"
#include "base/caller.h"

namespace kolo::comm {

class Turn {
 public:
  static constexpr std::uint64_t kByBias = UINT64_MAX;  // instead of a place

  // Uses this bias, whose memory outlives the turn.
  void leanOn(Bias& bias) {
    if (Bias::isPossible()) bias_.store(&bias, std::memory_order_relaxed);
  }

  // The next place in the order.
  std::uint64_t take() {
    // Sequentially consistent with lean(): either it sees this place, or the bias that it gave is seen here. [lean]
    const std::uint64_t place = issued_.fetch_add(1, std::memory_order_seq_cst);
    if (Bias* const bias = this->bias()) bias->revoke();
    return place;
  }

  // As take(), but nothing where the calling thread gets in by its bias. Goes to InTurn.
  std::uint64_t reserve() {
    Bias* const bias = this->bias();
    return bias != nullptr && bias->enter() ? kByBias : take();
  }

  // Returns when all before `place` are done.
  void wait(std::uint64_t place) {
    (void)waitUnless(place, [] { return false; });
  }

  // The same. False: isOver() has come before, and the place is given up.
  template <class IsOver>
  bool waitUnless(std::uint64_t place, const IsOver& isOver) {
    if (place == kByBias) return true;
    if (!isNext(place) && !waitForOthers(place, isOver)) return false;
    if (const Bias* const bias = this->bias(); bias != nullptr && !bias->isLeft()) waitUntilLeft();
    for (int rounds = 0; !occupy(); ++rounds) {
      if (rounds >= kRoundsBeforeNap) nap();
    }
    return true;
  }

  // Whether all before `place` are done: wait() returns soon.
  bool isNext(std::uint64_t place) {
    if (served_.load(std::memory_order_acquire) == place) return true;  // [turn]
    // A place that is given up at this moment is passed over when somebody looks again.
    if (!hasGivenUp_.load(std::memory_order_relaxed)) return false;
    const std::lock_guard lock(mutex_);
    return isNextLocked(place);
  }

  void done(std::uint64_t place) {
    if (bias() != nullptr) lean(place);
    served_.store(place + 1, std::memory_order_release);  // [turn] what the operation wrote is visible to the next
    // Behind that store: a thread that borrows the turn afterwards sees whether the next place has been taken.
    occupied_.store(false, std::memory_order_release);  // [occupied]
    wakeNext();
  }

  // The calling thread's next turn, by its bias or by a place for which it waits; then leave() with what enter() gave.
  std::uint64_t enter() {
    if (Bias* const bias = this->bias(); bias != nullptr && bias->enter()) return kByBias;
    const std::uint64_t place = take();
    wait(place);
    return place;
  }
  void leave(std::uint64_t entered) {
    if (entered == kByBias) {
      bias()->leave();
    } else {
      done(entered);
    }
  }

  // As enter(), if nobody else has the turn or waits for it.
  std::optional<std::uint64_t> tryEnter() {
    if (Bias* const bias = this->bias(); bias != nullptr && bias->enter()) return kByBias;
    std::uint64_t place = served_.load(std::memory_order_acquire);                                           // [turn]
    if (!issued_.compare_exchange_strong(place, place + 1, std::memory_order_seq_cst)) return std::nullopt;  // [lean]
    Bias* const given = bias();  // only now: another thread may have got one meanwhile, and be inside by it
    if (given != nullptr) given->revoke();
    if ((given == nullptr || given->isLeft()) && occupy()) return place;
    serveNext(place);  // a thread that is inside by the bias sees by isWanted() that it is gone
    return std::nullopt;
  }

  // Lets others borrow the turn that was entered, until takeBack(). Nobody enters it meanwhile.
  void lend(std::uint64_t entered) {
    isLent_.store(true, std::memory_order_release);  // [lent] what was done in the turn is visible to who borrows it
    if (entered != kByBias) giveBack();
  }
  void takeBack(std::uint64_t entered) {
    // Before occupy(): who borrows the turn behind that sees this, and gives it back at once. [occupied]
    isLent_.store(false, std::memory_order_relaxed);
    while (!occupy()) nap();
    if (entered == kByBias) giveBack();
  }

  // Whether the calling thread now has the turn, because the holder of the next place has not come for it, or lends it.
  // Then giveBack() must follow soon: the holder may have to wait for it.
  bool tryBorrow() {
    if (!(isDue() || isLent()) || !occupy()) return false;
    if (isLent()) return true;
    // From here on nobody enters by a place, and no bias is given, as only a thread that is inside by a place gives
    // one. A bias that was given before is taken away here; the thread that was inside by it may still be.
    bool isFree = isDue();
    if (Bias* const bias = this->bias(); isFree && bias != nullptr) {
      bias->revoke();
      isFree = bias->isLeft();
    }
    if (!isFree) giveBack();
    return isFree;
  }
  void giveBack() { occupied_.store(false, std::memory_order_release); }  // [occupied]
  // Whether others wait for the turn that was entered.
  bool isWanted(std::uint64_t entered) const {
    return entered == kByBias ? !bias()->isKept() : issued_.load(std::memory_order_relaxed) != entered + 1;
  }

  // Returns when everything issued so far is done.
  void drain() { leave(enter()); }

 private:
  static constexpr std::chrono::milliseconds kLook{1};
  static constexpr int kRoundsBeforeNap = 1000;  // of a thread that comes while the one before leaves
  static constexpr std::uint64_t kFirstPatience = 8, kMostPatience = 1 << 20;

  Bias* bias() const { return bias_.load(std::memory_order_relaxed); }
  // Whether somebody has the next place.
  bool isDue() const { return issued_.load(std::memory_order_seq_cst) != served_.load(std::memory_order_acquire); }
  bool isLent() const { return isLent_.load(std::memory_order_acquire); }  // [lent]
  // Whether the turn was free: neither borrowed, nor had by a place. [occupied] what was done in it before is visible.
  bool occupy() { return !occupied_.exchange(true, std::memory_order_acquire); }

  void serveNext(std::uint64_t place) {
    served_.store(place + 1, std::memory_order_release);  // [turn]
    wakeNext();
  }
  void wakeNext() {
    // Not sequentially consistent: a fence would wait until the operation's last stores have reached the other core.
    if (waiters_.load(std::memory_order_relaxed) == 0) return;
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  template <class IsOver>
  bool waitForOthers(std::uint64_t place, const IsOver& isOver) {
    std::unique_lock lock(mutex_);
    waiters_.fetch_add(1, std::memory_order_relaxed);
    bool isServed = false, isGivenUp = false;
    // done() may miss a waiter that comes at the same moment, so nobody sleeps for long without looking.
    while (!isServed && !isGivenUp) {
      isServed = changed_.wait_for(lock, kLook, [&] { return isNextLocked(place); });
      isGivenUp = !isServed && isOver() && giveUp(place);
    }
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    return isServed;
  }

  // REQUIRES: mutex_. False: there is no memory for it.
  bool giveUp(std::uint64_t place) {
    try {
      givenUp_.insert(place);
    } catch (const std::bad_alloc&) {
      return false;
    }
    hasGivenUp_.store(true, std::memory_order_relaxed);
    return true;
  }

  // REQUIRES: mutex_. Nobody else serves a place that was given up, so this store is the only one then.
  bool isNextLocked(std::uint64_t place) {
    std::uint64_t next = served_.load(std::memory_order_acquire);                                  // [turn]
    for (; givenUp_.erase(next) != 0; ++next) served_.store(next + 1, std::memory_order_release);  // [turn]
    return next == place;
  }

  // For the thread that had the bias and is still in its last operation.
  void waitUntilLeft() const {
    while (!bias()->isLeft()) nap();
  }
  static void nap() {
    const timespec time{0, 20'000};
    nanosleep(&time, nullptr);
  }

  // Gives the bias to a thread that has had all of the last turns. Each time it takes twice as many, so that programs
  // which use several threads or streams in turn soon pay nothing for it. Under the turn.
  void lean(std::uint64_t place) {
    const std::thread::id self = std::this_thread::get_id();
    if (self != lastThread_) {
      lastThread_ = self;
      turnsInARow_ = 0;
      return;
    }
    if (++turnsInARow_ < patience_ || issued_.load(std::memory_order_relaxed) != place + 1) return;
    turnsInARow_ = 0;
    patience_ = std::min(2 * patience_, kMostPatience);
    bias()->give();
    if (issued_.load(std::memory_order_seq_cst) != place + 1) bias()->revoke();  // [lean]
  }

  std::atomic<std::uint64_t> issued_{0};
  std::atomic<std::uint64_t> served_{0};
  std::atomic<std::uint32_t> waiters_{0};
  std::atomic<bool> occupied_{false};  // by a place, or by borrowing; not by the bias
  std::atomic<bool> isLent_{false};    // by who has entered, and waits
  // Null until leanOn(). A thread that finds the communicator by its name may read it meanwhile. A thread that gives a
  // bias has read it before its last place; so a thread that reads it behind a later place of its own sees it, too.
  std::atomic<Bias*> bias_{nullptr};
  // Under the turn.
  std::thread::id lastThread_;
  std::uint64_t turnsInARow_ = 0, patience_ = kFirstPatience;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::uint64_t> givenUp_;  // under mutex_
  std::atomic<bool> hasGivenUp_{false};
};

// The time in which a place in the order is served, one that was taken before or the next: waits for it, and is done at
// the end of the scope, however it is left.
class InTurn {
 public:
  explicit InTurn(Turn& turn) : turn_(turn), entered_(turn.enter()) {}
  InTurn(Turn& turn, std::optional<std::uint64_t> place)
      : turn_(turn), entered_(place.has_value() ? *place : turn.enter()) {
    if (place.has_value()) turn_.wait(*place);
  }
  // The next place is given up where isOver() comes first.
  template <std::predicate IsOver>
  InTurn(Turn& turn, const IsOver& isOver)
      : turn_(turn), entered_(turn.reserve()), isServed_(turn.waitUnless(entered_, isOver)) {}
  ~InTurn() {
    if (isServed_) turn_.leave(entered_);
  }
  InTurn(const InTurn&) = delete;
  InTurn& operator=(const InTurn&) = delete;

  std::uint64_t entered() const { return entered_; }
  bool isServed() const { return isServed_; }

 private:
  Turn& turn_;
  const std::uint64_t entered_;
  const bool isServed_ = true;
};

// The time in which the calling thread, which has entered the turn, lends it whenever it waits for the control plane:
// what others wait for may be a message of this rank.
class LendsTurn final : public Lendable {
 public:
  LendsTurn(Turn& turn, std::uint64_t entered)
      : turn_(turn), entered_(entered), before_(std::exchange(caller.lendable, this)) {}
  ~LendsTurn() { caller.lendable = before_; }
  LendsTurn(const LendsTurn&) = delete;
  LendsTurn& operator=(const LendsTurn&) = delete;

  void lend() override { turn_.lend(entered_); }
  void takeBack() override { turn_.takeBack(entered_); }

 private:
  Turn& turn_;
  const std::uint64_t entered_;
  Lendable* const before_;
};

// The time in which the calling thread has the turn without having waited for it, borrowed where the holder of the
// next place has not come. Empty where others have the turn.
class Aside {
 public:
  // isInside: the thread is inside by its bias before, and stays so.
  explicit Aside(Turn& turn, bool isInside = false)
      : turn_(turn), isInside_(isInside), entered_(isInside ? Turn::kByBias : turn.tryEnter()),
        isBorrowed_(!entered_.has_value() && turn.tryBorrow()) {}
  ~Aside() {
    if (isBorrowed_) turn_.giveBack();
    if (!isInside_ && entered_.has_value()) turn_.leave(*entered_);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

  explicit operator bool() const { return entered_.has_value() || isBorrowed_; }
  bool isBorrowed() const { return isBorrowed_; }
  bool isWanted() const { return isBorrowed_ || turn_.isWanted(*entered_); }

 private:
  Turn& turn_;
  const bool isInside_;
  const std::optional<std::uint64_t> entered_;
  const bool isBorrowed_;
};

}  // namespace kolo::comm
