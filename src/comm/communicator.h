// One rank of a communicator: its links, its windows, its failure, and the execution of one operation.
//
// Thread safety: run() and the window functions under the turn (comm/turn.h); failure(), abort() and the queries from
// any thread.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/choices.h"
#include "collectives/prepare.h"
#include "collectives/prepared_operations.h"
#include "comm/backend.h"
#include "comm/boards.h"
#include "comm/cause.h"
#include "comm/conclusions.h"
#include "comm/failure_state.h"
#include "comm/gpu_rank.h"
#include "comm/hosts.h"
#include "comm/messages.h"
#include "comm/operation.h"
#include "comm/peers.h"
#include "comm/pool.h"
#include "comm/reasons.h"
#include "comm/reductions.h"
#include "comm/requests.h"
#include "comm/traffic.h"
#include "comm/turn.h"
#include "comm/waiter.h"
#include "comm/windows.h"
#include "executor/context.h"
#include "planner/network.h"
#include "planner/planner.h"

namespace kolo::comm {

class Stream;
struct Surroundings;

struct Options {
  int timeoutMs = 0;
  bool reproducible = false;
  std::string algorithm;
  std::string transports;
  std::string name;
  int device = -1;   // CUDA ordinal; -1: host memory
  int resident = 0;  // as koloConfig_t's
  bool eager = false;

  // The caller's configuration over the settings; nullptr: the settings alone.
  static Result<Options> make(const koloConfig_t* config, const Options* parent);
};

class Communicator final {
 public:
  // Collective over the membership.
  static Result<std::unique_ptr<Communicator>> create(Membership membership, const Options& options);
  // Not collective: over links that other communicators use too (comm/split.cc). around: what each rank says of its
  // surroundings.
  static Result<std::unique_ptr<Communicator>> createOver(std::shared_ptr<Share> share, std::unique_ptr<Peers> peers,
                                                          Membership membership, const Options& options,
                                                          const std::vector<std::string>& around);
  // What the ranks of a communicator with such options must agree on, in words.
  static std::string agreement(const ArenaLayout& layout, const Options& options);
  static Peers::Purpose staging(const ArenaLayout& layout, int rank);
  ~Communicator();

  int rank() const { return membership_.rank; }
  int ranks() const { return membership_.ranks(); }
  const Options& options() const { return options_; }
  Turn& turn() { return turn_; }
  Membership& membership() { return membership_; }
  int initTimeoutMs() const { return membership_.initTimeoutMs; }
  std::uint64_t key() const { return membership_.key; }
  // For changes: what was prepared with the old windows is forgotten.
  Windows& windows() {
    forget();
    return windows_;
  }
  // Collective at the first call, for the child of this number. What this communicator has in the pool that its
  // children share; nullptr, on all ranks: they share nothing with it. An error is told to all ranks, and ends the
  // communicator if the others may have made the pool. REQUIRES: the turn.
  Result<std::shared_ptr<Share>> share(std::uint64_t child);
  // Collective, but for one that has failed. The window stays, and *window with it, only if ranks gave different ones;
  // otherwise *window becomes nullptr, also if the others did not answer, by which the communicator fails. REQUIRES:
  // the turn.
  Status removeWindow(Window** window);
  Peers& peers() { return *peers_; }
  Reductions& reductions() { return reductions_; }
  Messages& messages() { return *messages_; }
  Requests& requests() { return requests_; }
  // A thread for this communicator's part of a group over several, which goes back when it is done. Groups that end at
  // the same time have one each: a thread that they shared could come to a later part before an earlier one, for which
  // the later one waits.
  std::unique_ptr<Stream> borrowWorker();
  void giveBack(std::unique_ptr<Stream> worker);

  // Whoever carries out operations. REQUIRES: the turn, but for what backend.h says.
  Backend& backend() { return *backend_; }
  const Backend& backend() const { return *backend_; }
  // Whether this is one of the last operations again, for which everything has been checked and prepared; if so,
  // backend().runAgain() runs it. REQUIRES: the turn; calls wait; no reduction that a user made. A v-variant comes with
  // its counts.
  bool recall(const Call& call) { return operations_.recall(call); }
  bool recall(const Call& call, const CountArrays& counts) { return operations_.recall(call, counts); }

  // The operation that recall() has found.
  Operation recalled() const { return {operations_.current().call, {}, operations_.current().counts}; }

  // ---- what backends are made of

  collectives::Site& site() { return site_; }
  collectives::Choices& choices() { return choices_; }
  collectives::PreparedOperations& operations() { return operations_; }
  const Hosts& hosts() const { return hosts_; }
  const Windows& windowTable() const { return windows_; }
  Boards& boards() { return *boards_; }
  // From faults to words.
  Conclusions& conclusions() { return *conclusions_; }
  // What those need to know.
  Reasons& reasons() { return reasons_; }
  int jobRank(int rank) const { return membership_.jobRank(rank); }

  // The failure that ended this communicator, or success.
  Status failure() const { return failure_.status(); }
  bool failed() const { return failure_.isSet(); }
  // Records the failure here and tells all ranks. The first one counts.
  void fail(const bootstrap::Failure& failure) { failure_.fail(failure); }

  Waiter& waiter() { return *waiter_; }
  Traffic& traffic() { return *traffic_; }
  Status setWishes(std::string_view text);
  // The next two may be asked at any time.
  std::string explain(const planner::Query& query) const { return choices_.explain(query); }
  koloPlan_t describePlan(const planner::Query& query) const;
  const planner::Machine& machine() const { return machine_; }
  bool inOrder(const Operation& operation) const { return choices_.inOrder(operation); }

  // Number for the next split or shrink, alike on all ranks.
  std::uint64_t nextChild() { return ++children_; }
  bool isFinalized() const { return finalized_.load(std::memory_order_relaxed); }
  // REQUIRES: the turn.
  void setFinalized() {
    finalized_.store(true, std::memory_order_relaxed);
    forget();
  }

  bool isMade() const { return isMade_; }
  int cores() const { return cores_; }  // that the ranks may use, all together
  std::uint64_t streamingBytes() const { return streamingBytes_; }

 private:
  Communicator(Membership membership, const Options& options);
  Status connect();
  Status openWindows();
  void arrange(const Surroundings& around, bool wasDumpable);
  Status connectGpus(const Surroundings& around, const std::string& nics);
  void begin();
  Status arrangeGpus(GpuRank& gpu, std::vector<planner::Uplink> uplinks);

  void forget() { operations_.forget(); }
  void makeWaiter(const Surroundings& around);
  void makeTraffic(bool wasDumpable);
  void makeSite();
  void sayGoodbye();

  Membership membership_;
  Options options_;
  FailureState failure_;
  ArenaLayout layout_;
  std::shared_ptr<Share> share_;  // for splits; and of one that was split, what its links and arena are cut from
  bool hasTriedToShare_ = false;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<Boards> boards_;
  Waiting waiting_;
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
  std::vector<std::unique_ptr<Stream>> idleWorkers_;
  std::mutex workerMutex_;

  planner::Machine machine_;
  Hosts hosts_;
  collectives::Choices choices_;
  collectives::Site site_;
  collectives::PreparedOperations operations_;

  int cores_ = 1;
  std::uint64_t children_ = 0;
  std::uint64_t streamingBytes_ = 0;
  bool allMapped_ = true;  // all ranks reach all others' memory by mapped links
  std::atomic<bool> finalized_{false};

  bool isMade_ = false;  // connect() has ended well; until then links and messages may not be there
};

}  // namespace kolo::comm
