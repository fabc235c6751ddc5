// How a rank waits for others (D8): the deadline, the failure that ends the wait, and who has the core meanwhile.
//
// A wait is a loop of looks at what it waits for. Between two looks it calls keepWaiting(), which says whether to give
// up. The rank polls for a while where it has a core, and yields. After a long time it sleeps, and is woken by what
// comes: where memory is mapped by the peer that writes (executor/host/sleep.h), else in a transport that can wake it.
//
// Thread safety: under the communicator's turn, and with its links held where some are posted, but for polling(),
// userProgress(), cores(), sharesCores() and longestNapNs(), which any thread may call.
// Invariants
//  - Every wait ends: by the failure of the communicator, or by the deadline of the thread that waits or of the
//    communicator.
//  - What this rank waits for is known to those who ask (failure/cause.h) from a moment after the wait has begun until
//    it has ended well. A wait in vain is not ended.
#pragma once

#include <cstdint>

#include "common/patience.h"
#include "executor/context.h"
#include "executor/host/sleep.h"
#include "failure/cause.h"
#include "failure/failure_state.h"
#include "links/peers.h"
#include "waiting/core_sharing.h"
#include "waiting/user_progress.h"

namespace kolo::waiting {

// How often a rank that waits says that it waits, and looks at what its peers say.
inline constexpr std::int64_t kBoardIntervalNs = 10'000'000;

class Waiter {
 public:
  // All of them outlive the waiter.
  struct Setup {
    const failure::FailureState& failure;
    links::Peers& peers;
    executor::AsleepWord& asleep;  // of this rank's board
    failure::Waiting& waiting;
    int timeoutMs = 0;   // the communicator's
    int cores = 1;       // that the ranks may use, all together
    bool posts = false;  // some links are posted
    executor::Polling polling;
  };
  explicit Waiter(const Setup& setup) : setup_(setup) {}

  const executor::Polling& polling() const { return setup_.polling; }
  UserProgress& userProgress() { return userProgress_; }
  int cores() const { return setup_.cores; }  // that the ranks may use, all together
  bool sharesCores() const { return setup_.cores < setup_.peers.ranks(); }
  // The user's function may be what others wait for: then sleeps stay short.
  std::int64_t longestNapNs() const { return userProgress_.isGiven() ? kLeastNapNs : kMostNapNs; }

  // After a look in vain: kNone, or why to give up. Leaves the core to others for a moment. peer -1: the rank waits for
  // nobody in particular.
  device::Fault keepWaiting(int peer, executor::WaitState& state, bool isMessage, std::int64_t nowNs);
  // The answer of keepWaiting(), for a thread that does not wait, and has something better to do.
  device::Fault check(int peer, executor::WaitState& state, bool isMessage, std::int64_t nowNs);
  // For ranks that ask why nothing goes on.
  void say(int peer, bool isMessage, std::int64_t sinceNs, std::int64_t nowNs);
  // The wait that this rank was in is over, and was not in vain.
  void end();

  // Lets others have the core.
  void yield();
  // Lets posted links move data, that of this peer first. True if something has moved.
  bool progress(int peer);
  // How often in a row progress() is called in vain before keepWaiting() is.
  int looks() const;

 private:
  // The rank has taken turns for so long that it sleeps from then on.
  bool isLong(std::int64_t waitedNs, std::int64_t nowNs);
  void rest(int peer, executor::WaitState& state, std::int64_t nowNs);

  const Setup setup_;
  UserProgress userProgress_;
  CoreSharing sharing_;
  std::int64_t askedNs_ = 0;  // when the thread's scheduling was asked for last
  bool isRealTime_ = false;
  bool saysWait_ = false;  // Setup::waiting has been told, in this operation
};

}  // namespace kolo::waiting
