// The control plane: how ranks find each other, exchange small blobs out of band, and learn that one of them has
// failed.
//
// A job has one hub, a listener started in the process that made the unique id. Each rank of the job keeps one
// authenticated, encrypted TCP connection to it (a Control). The hub relays; it knows no communicators beyond keys.
// When its process ends, another one takes its place (standby.h). All sockets of a process, hub's and
// ranks', are served by one background thread, the reactor.
//
// Thread safety: all functions, from any thread, unless stated. Callbacks run on the reactor thread, or in subscribe(),
// and must not block.
#pragma once

#include <kolo/kolo.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/interrupt.h"

namespace kolo::bootstrap {

// How long a process that knows that a job will not form stays to tell that to ranks that have not come yet. Ranks that
// are started together come within that time.
constexpr std::chrono::milliseconds kLastWordsTime{10'000};

// Sequences from here on belong to exchanges of some of a key's ranks: Control::allGather.
constexpr std::uint64_t kPartialSequence = std::uint64_t{1} << 63;

// Why a communicator, or a rank of the job, is of no more use.
struct Failure {
  Status why;            // koloRemoteError: a rank died; koloAborted; koloMismatch; koloTimeout
  int rank = -1;         // job rank of the culprit; -1 unknown
  int reporter = -1;     // job rank that has reported it, as the hub knows it; -1: none
  bool isDeath = false;  // of `rank`, as the control plane itself noticed it: no rank's report

  Failure() = default;
  Failure(Status given, int culprit) : why(std::move(given)), rank(culprit) {}
  Failure(koloResult_t code, int culprit, std::string message, bool isDeathOfIt = false)
      : why(code, std::move(message)), rank(culprit), isDeath(isDeathOfIt) {}
};

// What another rank answers.
class Answer {
 public:
  virtual ~Answer() = default;
  // Waits for up to so many milliseconds. nullptr: it has not come yet. Empty: there is nobody who could answer.
  virtual const std::string* wait(int ms) = 0;
};

class Control {
 public:
  virtual ~Control() = default;

  virtual int rank() const = 0;  // rank in the job, 0..ranks()-1
  virtual int ranks() const = 0;
  // A key that the hub has drawn for this run of the job, expanded with a label, 32 bytes: equal on all ranks of the
  // job, unknown outside it. However weak KOLO_SECRET is, nothing that is made with it can be guessed.
  virtual std::string derivedSecret(std::string_view label) const = 0;

  // All-gather of small blobs (up to 1 MiB each) among n callers that give the same key, sequence and members, and
  // distinct indices 0..n-1, where members[index] is the caller's job rank; result[i] is the blob of index i. Returns
  // early with koloRemoteError naming the job rank if one of `members` dies or leaves before it has contributed; with
  // the first failure that was reported for the key, earlier or while this waits; with koloMismatch if the members
  // differ; with koloTimeout naming those still missing (timeoutMs <= 0: no deadline). Several may be in flight with
  // different (key, sequence), and one that failed otherwise than by a report may be done over. Not from a callback.
  // With any of these errors no other caller succeeds with this one's blob. koloInProgress: the hub has not answered in
  // time, and the others may have succeeded. interrupt: once it is raised, the call returns its error, and the others
  // may have succeeded; null: nothing raises it.
  // Sequences from kPartialSequence on: callers of one key may give different members, with different sequences, and a
  // rank waits in one such exchange of the key at a time. Two callers that are members of each other's exchanges would
  // wait for each other in vain: both exchanges end with koloMismatch.
  virtual Result<std::vector<std::string>> allGather(std::uint64_t key, std::uint64_t sequence,
                                                     const std::vector<int>& members, int index, std::string_view mine,
                                                     int timeoutMs, Interrupt* interrupt = nullptr) = 0;

  // From now on `onFailure` is called for each death of one of `members` and for each failure that any rank reports for
  // this key, until unsubscribe; deaths and failures of before are delivered at once. Each failure once; of those
  // reported for one key, the first 16, and the first that each rank reports of itself. onQuestion answers what other
  // ranks ask about this key, and is told which rank asks.
  // family: a key of which the hub is told instead; 0: the key itself. A subscription to a further key of a family is
  // this rank's own affair, and costs no message. All ranks that are subscribed to some key of the family hear of the
  // failures of all its keys.
  virtual void subscribe(std::uint64_t key, const std::vector<int>& members,
                         std::function<void(const Failure&)> onFailure,
                         std::function<std::string(int, std::string_view)> onQuestion = nullptr,
                         std::uint64_t family = 0) = 0;
  // No callback for key runs, or will run, after this returns. (Not from a callback.)
  virtual void unsubscribe(std::uint64_t key) = 0;

  // Tells all ranks subscribed to the key (this one included, through its callback), and ends the key's gathers: those
  // in flight, and those to come. family: that of the subscriptions. Should this process end as soon as this returns,
  // the news of its end names this failure too. A failure that this control plane has not told is reported by this
  // call before it is returned to the program. The caller holds no lock that a callback takes.
  virtual void reportFailure(std::uint64_t key, const Failure& failure, std::uint64_t family = 0) = 0;

  // Asks a rank of the job, this one included, about a key. Its reactor thread answers, whatever its other threads do:
  // only of a process that is stopped, or whose host is silent, does nothing come.
  virtual std::shared_ptr<Answer> ask(std::uint64_t key, int rank, std::string_view question) = 0;

  // Says goodbye: the end of this connection is no death from here on. Called once, before destruction, when this rank
  // leaves in good order. Destruction without it looks like a death to the others.
  virtual void leave() = 0;
};

// Makes an id and starts its hub in this process. isOfThisHost: all ranks are on this host, which the hub then listens
// to alone, unless KOLO_INTERFACE says otherwise. Without it, koloInvalidEnvironment if the launcher says that ranks
// are on several hosts, and no secret is given. growth: 0; or what the id says of the communicator that grows by it
// (comm/factory.h).
Result<koloUniqueId> createUniqueId(bool isOfThisHost = false, std::uint32_t growth = 0);
// What it was given. Errors: those of join() about the id.
Result<std::uint32_t> growthOf(const koloUniqueId& id);

// Joins the job as one of its ranks; blocks until all `ranks` have joined, or the interrupt is raised, which may be
// null. Errors: koloInvalidArgument (not an id),
// koloUnreachable (address, why), koloDuplicateRank, koloInvalidRankCount (ranks disagree on their number, both
// printed), koloTimeout (names the missing ranks), koloMismatch (library versions differ, both printed).
Result<std::shared_ptr<Control>> join(const koloUniqueId& id, int rank, int ranks, int timeoutMs,
                                      Interrupt* interrupt = nullptr);

// In place of join(), of a rank that cannot take part: the ranks that wait for it are told why, and return at once.
// Looks for the hub for ten seconds at most, and no longer than joining may take. Returns `why`.
Status decline(const koloUniqueId& id, int rank, int ranks, int timeoutMs, Status why);

// What a launcher said in the environment.
struct LauncherJob {
  std::string launcher;  // "kolo", "torchrun", "slurm", "openmpi", "mpich", or "none"
  int rank = 0;
  int ranks = 1;
  int localRanks = 0;   // ranks of the job on this host; 0 unknown
  std::string jobName;  // equal on all ranks of the job, different for jobs alive at one time on one host
  std::string root;     // host:port where rank 0 is to listen; empty: rendezvous on this host
  std::string rootFrom = "KOLO_ROOT";  // the variable that says so, for messages
};
// koloInvalidEnvironment names the variable, its value and what was expected.
Result<LauncherJob> readLauncher();

// Rank 0 makes the id and publishes it; the others fetch it. On one host: through a file of this user's with mode 0600
// in a private directory, named by the job; over several hosts: rank 0 listens at job.root and all prove KOLO_SECRET,
// without which the job is not started. A
// root's name that does not resolve is asked for again until the time is over: in Kubernetes a pod's name may come
// after its peers.
Result<koloUniqueId> rendezvous(const LauncherJob& job, int timeoutMs);

}  // namespace kolo::bootstrap
