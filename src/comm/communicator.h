// One rank of a communicator: what it is made of, from its links to its requests, and how that is made and ended.
//
// Each part has a header that states what it does and who may use it. Lower parts know nothing of those above them:
//
//   membership, failure   who belongs to it; why it has ended
//   peers, windows        how the ranks reach each other's memory
//   boards                what ranks say of their operations
//   waiter, causes        how a rank waits, and why it waited in vain
//   traffic               what it does by its links
//   messages, requests    what was started
//   planning, backend     how operations are prepared, and who carries them out
//
// Thread safety: under the turn (comm/turn.h), but for the failure, the queries of what never changes (rank, ranks,
// options, membership), requests(), workers(), and what the parts allow.
// Invariant: what create() and createOver() return is complete; until then parts may be missing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/fork.h"
#include "comm/backend.h"
#include "comm/messages.h"
#include "comm/operation.h"
#include "comm/options.h"
#include "comm/parts.h"
#include "comm/planning.h"
#include "comm/reductions.h"
#include "comm/requests.h"
#include "comm/subgroups.h"
#include "comm/turn.h"
#include "comm/workers.h"
#include "planner/network.h"

namespace kolo::comm {

class Communicator final {
 public:
  // Collective over the membership.
  static Result<std::unique_ptr<Communicator>> create(Membership membership, const Options& options);
  // Not collective: over links that other communicators use too (comm/child.h). around: what each rank says of its
  // surroundings.
  static Result<std::unique_ptr<Communicator>> createOver(std::shared_ptr<Share> share, std::unique_ptr<Peers> peers,
                                                          Membership membership, const Options& options,
                                                          const std::vector<std::string>& around);
  ~Communicator();

  int rank() const { return membership_.rank; }
  int ranks() const { return membership_.ranks(); }
  const Options& options() const { return options_; }
  Turn& turn() { return turn_; }
  Membership& membership() { return membership_; }
  // After a change, planning() must forget what was prepared with the old ones.
  Windows& windows() { return windows_; }
  // What this communicator has in the pool that its children may share; null: nothing.
  const std::shared_ptr<Share>& share() const { return share_; }
  // Collective, but for one that has failed. The window stays, and *window with it, only if ranks gave different ones;
  // otherwise *window becomes nullptr, also if the others did not answer, by which the communicator fails. REQUIRES:
  // the turn.
  Status removeWindow(Window** window);
  Peers& peers() { return *peers_; }
  Reductions& reductions() { return reductions_; }
  Messages& messages() { return *messages_; }
  Requests& requests() { return requests_; }
  // Threads for its part of groups over several communicators.
  Workers& workers() { return workers_; }
  // Carries out operations. REQUIRES: the turn, but for what backend.h says.
  Backend& backend() const { return *backend_; }
  // What they are planned and prepared with.
  Planning& planning() { return planning_; }
  // What ranks say of them, and their numbers.
  Boards& boards() { return *boards_; }
  // What ranks have to say alike of its lists.
  CallTerms& callTerms() { return callTerms_; }
  // From faults to words.
  Conclusions& conclusions() { return *conclusions_; }

  // The failure that ended this communicator, or success.
  Status failure() const { return failure_.status(); }
  bool failed() const { return failure_.isSet(); }
  FailureState& failureState() { return failure_; }

  Waiter& waiter() { return *waiter_; }
  Traffic& traffic() { return *traffic_; }

  // The numbers of the last split, alike on all ranks, and of the last shrink in which this rank took part: the ranks
  // of the next one agree on a larger number.
  struct Children {
    std::uint64_t splits = 0, shrinks = 0;
  };
  Children& children() { return children_; }
  // The groups of its ranks. REQUIRES: the turn.
  Subgroups& subgroups() { return subgroups_; }
  // The owners of its handle, and who made it.
  References& references() { return references_; }
  bool isFinalized() const { return finalized_.load(std::memory_order_relaxed); }
  // REQUIRES: the turn.
  void setFinalized() {
    finalized_.store(true, std::memory_order_relaxed);
    planning_.forget();
  }

 private:
  Communicator(Membership membership, const Options& options);
  Status connect();
  Status openWindows();
  void arrange(const Surroundings& around, bool wasDumpable);
  void begin();

  void makeWaiter(const Surroundings& around);
  void makeTraffic(bool wasDumpable);
  void makeSite();
  void sayGoodbye();
  // On the control plane's thread.
  std::string answer(int asker, std::string_view question);

  const InUse inUse_;
  Membership membership_;
  Options options_;
  FailureState failure_;
  Planning planning_;
  ArenaLayout layout_;
  std::shared_ptr<Share> share_;  // of a pool, from which its children's memory is cut, and maybe its own
  std::shared_ptr<Peers> peers_;
  std::unique_ptr<Boards> boards_;
  failure::Waiting waiting_;
  CallTerms callTerms_;
  std::unique_ptr<Waiter> waiter_;
  Reasons reasons_;
  std::unique_ptr<CauseFinder> causes_;
  std::unique_ptr<Conclusions> conclusions_;
  std::unique_ptr<Traffic> traffic_;
  Windows windows_;
  Reductions reductions_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Messages> messages_;
  Turn turn_;
  Requests requests_{*this, turn_};
  Workers workers_;

  Children children_;
  Subgroups subgroups_;
  References references_;
  bool allMapped_ = true;  // all ranks reach all others' memory by mapped links
  std::atomic<bool> finalized_{false};
  bool isMade_ = false;  // it works, and hears of failures
};

}  // namespace kolo::comm
