// The waits of ranks for each other: what ranks tell each other through the control plane when waiting takes too long.
// So a rank whose time is over finds the wait from which the others follow, and a peer whose board cannot be read is
// asked what it has called.
//
// Thread safety: plain data; Waiting and CauseFinder::answer() from any thread, the rest by one thread at a time.
// Invariants: a rank answers whatever its other threads do; a rank that asks waits for a bounded time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/caller.h"
#include "bootstrap/control.h"
#include "common/clock.h"
#include "device/work.h"
#include "executor/context.h"
#include "failure/call_terms.h"
#include "failure/failure_state.h"
#include "links/boards.h"
#include "links/membership.h"
#include "links/peers.h"

namespace kolo::failure {

// The deadline in milliseconds of what the calling thread executes: its own, or the communicator's. 0: there is none.
inline int timeoutInUse(int communicatorsMs) { return caller.timeoutMs >= 0 ? caller.timeoutMs : communicatorsMs; }

// What a rank waits for just now. Its thread says so every now and then; the reactor's reads it when others ask.
class Waiting {
 public:
  struct Wait {
    int peer = -1;  // -1: any
    bool isMessage = false;
    std::int64_t sinceNs = 0;
    std::int64_t seenNs = 0;  // when the rank said so last
  };
  void say(const Wait& wait) {
    const std::lock_guard lock(mutex_);
    wait_ = wait;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    wait_.reset();
  }
  std::optional<Wait> now() const {
    const std::lock_guard lock(mutex_);
    return wait_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Wait> wait_;
};

// A rank's answer to the question about the operation of some number.
struct Account {
  links::Called asked;
  std::uint64_t last = 0;  // number of its last operation; 0: it has called none
  links::Called lastCalled;
  bool waits = false;
  bool isMessage = false;
  int peer = -1;
  std::int64_t waitedNs = 0;

  // nullopt: the rank has no such communicator any more, or says what cannot be: that it waits for a rank which the
  // communicator, of so many ranks, does not have.
  static std::optional<Account> decode(std::string_view answer, int ranks);
  std::string encode() const;
};

// One wait of a chain.
struct WaitStep {
  int waiter = -1, awaited = -1;
  std::uint64_t number = 0;  // of the waiter's last operation
  links::Called called;
  bool isMessage = false;
  std::int64_t waitedNs = 0;
  std::string what;  // "all_reduce (operation 7 of communicator world): ..."
};

// What the waits follow from, and whose it was.
struct Cause {
  bootstrap::Failure failure;
  int waiter = -1;
};

// "all_reduce (operation 7 of communicator world)"
std::string labelOf(const device::Signature& signature, std::uint64_t number, const std::string& communicator);
// Of two ranks that have called different operations as the same number. difference: in which part, if that is known
// better than from what headers say.
std::string describeMismatch(std::uint64_t number, const std::string& communicator, int one,
                             const links::Called& oneCalled, int other, const links::Called& otherCalled,
                             std::string difference = {});

// One rank's part in looking for causes.
class CauseFinder {
 public:
  // All of them outlive the finder.
  struct Setup {
    const links::Membership& membership;
    const std::string& name;  // of the communicator
    int timeoutMs = 0;        // the communicator's
    const links::Peers& peers;
    const links::Boards& boards;
    const Waiting& waiting;
    const CallTerms& terms;
    const FailureState& failure;
  };
  explicit CauseFinder(const Setup& setup) : setup_(setup) {}

  // The answer to another rank that asks what this one does. On the control plane's thread.
  std::string answer(std::string_view question) const;
  // Now and then in a wait for the peer: asks it what it has called as this operation, if its board cannot be read, and
  // says if that is something else. REQUIRES: the turn.
  std::optional<device::Fault> inquire(const device::Work& work, int peer, const executor::WaitState& state);
  // What this rank's wait, which is in vain, follows from. Asks the others.
  Cause find(const WaitStep& own) const;
  // In which item the list of a peer differs that both have called as the operation, and in what; "" where that cannot
  // be told. Asks the peer.
  std::string differenceOfLists(std::uint64_t number, int peer) const;
  // Until the job's hub answers, or is known to be gone. Then the communicator has failed, if the hub's process had a
  // rank of it.
  void awaitNewsOfHub() const;
  // Until a peer answers, for a second: it lives then. Of one that has died this rank hears before.
  void awaitNewsOf(int peer) const;
  // How long this rank has waited.
  std::int64_t waitedNs() const;
  // The failure that a wait of which nobody is known to be the cause ends with.
  bootstrap::Failure timedOut(const WaitStep& step, const std::string& remark) const;
  std::string describe(const WaitStep& step) const;

 private:
  // The question that this rank asks of a peer by a posted link in which it waits for long.
  struct Inquiry {
    int peer = -1;
    std::uint64_t number = 0;
    std::int64_t dueNs = 0;
    std::shared_ptr<bootstrap::Answer> answer;  // null: none is under way
  };
  // A question about the operation of the number.
  struct Question {
    std::uint64_t number = 0;
    Asked asked = Asked::kNothing;
    std::uint64_t part = 0;
  };
  std::shared_ptr<bootstrap::Answer> pose(int rank, const Question& question) const;
  std::shared_ptr<const std::string> ask(int rank, const Question& question, std::int64_t untilNs) const;
  WaitStep stepOf(int waiter, const Account& account) const;
  std::string explainSilence(int rank) const;
  std::string explainIdleness(const WaitStep& step, const Account& account) const;
  Cause circle(const WaitStep* begin, const WaitStep* end) const;

  const Setup setup_;
  Inquiry inquiry_;
};

}  // namespace kolo::failure
