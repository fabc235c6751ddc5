#include "bootstrap/control.h"

#include <unistd.h>

#include <algorithm>

#include "base/caller.h"
#include "base/fork.h"
#include "base/insist.h"
#include "base/log.h"
#include "bootstrap/dial.h"
#include "bootstrap/hub.h"
#include "bootstrap/job_secret.h"
#include "bootstrap/listener.h"
#include "bootstrap/member_link.h"
#include "bootstrap/rendezvous.h"

namespace kolo::bootstrap {
namespace {

// The hub answers at the deadline itself, and names the ranks that are missing. Only if it does not answer, the waiting
// ends without a name.
constexpr auto kAnswerGrace = std::chrono::seconds(2);
constexpr auto kFarewellLimit = std::chrono::seconds(2);
// How long a rank in the hub's process stays in a call that failed while ranks were joining, until all know why.
constexpr auto kTellingLimit = std::chrono::seconds(1);
// A rank that fails so long before the others' time is over tells them.
constexpr auto kWorthTelling = std::chrono::seconds(1);
// At which rank 0 looks whether another rank has left word in the file.
constexpr auto kWordInterval = std::chrono::milliseconds(100);

std::uint32_t patience(int timeoutMs) { return timeoutMs > 0 ? static_cast<std::uint32_t>(timeoutMs) : INT32_MAX; }

class MemberControl final : public Control {
 public:
  // hub: where it is, for messages
  MemberControl(Reactor& reactor, std::shared_ptr<MemberLink> link, int rank, int ranks, std::string hub)
      : reactor_(reactor), link_(std::move(link)), rank_(rank), ranks_(ranks), hub_(std::move(hub)) {}
  ~MemberControl() override {
    (void)insist([this] { (void)reactor_.call([this] { link_->close(); }); });
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  std::string derivedSecret(std::string_view label) const override {
    const Secret derived = expand(link_->jobKey(), "kolo derived: " + std::string(label));
    return {reinterpret_cast<const char*>(derived.data()), derived.size()};
  }

  Result<std::vector<std::string>> allGather(std::uint64_t key, std::uint64_t sequence, const std::vector<int>& members,
                                             int index, std::string_view mine, int timeoutMs,
                                             Interrupt* interrupt) override;

  void subscribe(std::uint64_t key, const std::vector<int>& members, std::function<void(const Failure&)> onFailure,
                 std::function<std::string(int, std::string_view)> onQuestion, std::uint64_t family) override {
    if (isForkedInUse()) return;  // a thread that the child does not have may have held the lock
    const std::uint64_t told = family != 0 ? family : key;
    if (link_->subscriptions().add(key, told, members, std::move(onFailure), std::move(onQuestion))) tellHub(told);
  }

  void unsubscribe(std::uint64_t key) override {
    if (isForkedInUse()) return;
    if (const std::optional<std::uint64_t> family = link_->subscriptions().remove(key)) tellHub(*family);
  }

  void reportFailure(std::uint64_t key, const Failure& failure, std::uint64_t family) override {
    (void)reactor_.call([&] { link_->report(key, failure, family != 0 ? family : key); });
  }

  std::shared_ptr<Answer> ask(std::uint64_t key, int rank, std::string_view question) override {
    const auto answer = std::make_shared<PendingAnswer>();
    const bool posted = reactor_.post([link = link_, key, rank, answer, question = std::string(question)] {
      link->ask(key, rank, question, answer);
    });
    if (!posted) answer->over.finish({});
    return answer;
  }

  void leave() override {
    bool isPosted = false;
    (void)insist([&] { isPosted = reactor_.post([link = link_] { link->leave(); }); });
    if (!isPosted || reactor_.onReactorThread()) return;
    // Until the hub has it: closing a socket with unread input resets the connection and may destroy a goodbye on its
    // way.
    if (!link_->left().wait(Clock::now() + kFarewellLimit)) {
      log::warn("rank {} said goodbye, but the job's hub, in {}, did not answer within {} s", rank_, hub_,
                kFarewellLimit.count());
    }
  }

 private:
  Status check(const std::vector<int>& members, int index, std::string_view mine) const;
  void tellHub(std::uint64_t family) {
    (void)insist([&] { (void)reactor_.post([link = link_, family] { link->tellHub(family); }); });
  }

  const InUse inUse_;
  Reactor& reactor_;
  std::shared_ptr<MemberLink> link_;
  int rank_;
  int ranks_;
  std::string hub_;
};

Status MemberControl::check(const std::vector<int>& members, int index, std::string_view mine) const {
  KOLO_TRY(refuseIfForkedInUse());
  if (reactor_.onReactorThread())
    return error(koloInvalidUsage, "an exchange cannot be waited for in a failure callback");
  if (mine.size() > kMaxBlobBytes) {
    return error(koloInvalidArgument, "a blob of {} bytes, expected at most {}", mine.size(), kMaxBlobBytes);
  }
  const bool outside = std::any_of(members.begin(), members.end(), [this](int r) { return r < 0 || r >= ranks_; });
  if (outside || index < 0 || index >= static_cast<int>(members.size()) ||
      members[static_cast<std::size_t>(index)] != rank_ || static_cast<int>(members.size()) > ranks_) {
    return error(koloInvalidArgument, "index {} of members {} is not rank {} of a job of {}", index,
                 describeRanks(members), rank_, ranks_);
  }
  return {};
}

Result<std::vector<std::string>> MemberControl::allGather(std::uint64_t key, std::uint64_t sequence,
                                                          const std::vector<int>& members, int index,
                                                          std::string_view mine, int timeoutMs, Interrupt* interrupt) {
  KOLO_TRY(check(members, index, mine));
  if (members.size() == 1) return std::vector<std::string>{std::string(mine)};
  const auto exchange = std::make_shared<Exchange>();
  exchange->blobs.resize(members.size());
  exchange->index = static_cast<std::uint32_t>(index);
  const std::uint32_t patienceMs = patience(timeoutMs);
  exchange->timeoutMs = patienceMs;
  exchange->deadline = Clock::now() + std::chrono::milliseconds(patienceMs);
  exchange->members = Encoder().ranks(members).take();
  exchange->mine = mine;
  const Interrupt::Scope scope(interrupt, exchange->over);
  if (interrupt != nullptr && interrupt->isRaised()) return exchange->over.status();
  const bool posted = reactor_.post(
      [link = link_, id = MemberLink::ExchangeKey(key, sequence), exchange] { link->gather(id, exchange); });
  if (!posted) return error(koloInvalidUsage, "the process is exiting");
  const bool isOver = [&] {
    const WhileLent lent;
    return exchange->over.wait(exchange->deadline + kAnswerGrace);
  }();
  // After an interruption the exchange may be over for the reactor, too: it then has nothing to withdraw.
  if (!isOver || (interrupt != nullptr && interrupt->isRaised()))
    (void)reactor_.post([link = link_, id = MemberLink::ExchangeKey(key, sequence)] { link->withdraw(id); });
  if (!isOver) {
    return error(koloInProgress,
                 "the job's hub, in {}, did not answer within {} ms (KOLO_INIT_TIMEOUT_MS) in an exchange of ranks {}",
                 hub_, patienceMs, describeRanks(members));
  }
  KOLO_TRY(exchange->over.status());
  return std::move(exchange->blobs);
}

// own: this rank's standby. hub: the connection to the hub, whose end here says where others find this host.
std::string joinFrame(int rank, int ranks, int timeoutMs, Clock::time_point deadline, const Standby::Opened& own,
                      const Socket& hub) {
  const Standby* const standby = own.standby.get();
  std::string address = standby != nullptr ? standby->address() : std::string();
  if (const auto end = ownAddressOf(hub.fd()); end.has_value() && address.empty()) address = end->text();
  const std::optional<Address> reached = peerAddressOf(hub.fd());
  const Identity& process = processIdentity();
  return frame(Frame::kJoin, static_cast<std::int32_t>(rank), static_cast<std::int32_t>(ranks),
               static_cast<std::uint32_t>(KOLO_VERSION_CODE), static_cast<std::uint32_t>(::getpid()),
               static_cast<std::uint32_t>(millisecondsUntil(deadline)), patience(timeoutMs))
      .raw({reinterpret_cast<const char*>(process.data()), process.size()})
      .number(placeIdentity())
      .number(stackIdentity())
      .text(standby != nullptr ? standby->name() : std::string())
      .text(address)
      .number(std::uint8_t{standby != nullptr && standby->isAtGivenAddress()})
      .number(standby != nullptr ? standby->port() : std::uint16_t{0})
      .text(reached.has_value() ? reached->text() : std::string())
      .text(std::string_view(own.lack).substr(0, kMostKnownBytes))
      .text(hostName())
      .take();
}

std::string declineFrame(int rank, int ranks, const Status& why) {
  return frame(Frame::kDecline, static_cast<std::int32_t>(rank), static_cast<std::int32_t>(ranks),
               static_cast<std::uint32_t>(::getpid()), hostName(),
               std::string_view(why.message()).substr(0, kMaxBlobBytes))
      .take();
}

// A rank that has found the hub and cannot go on: the others would wait for it until their time is over.
Status declineAt(Dialled& dialled, int rank, int ranks, Status why) {
  (void)tell(dialled, declineFrame(rank, ranks, why), Clock::now() + kFarewellLimit);
  return why;
}

// False: the hub is in another process.
bool failHubHere(const IdContents& contents, int rank, int ranks, const Status& why) {
  return failHub(contents.secret, rank, ranks,
                 error(koloRemoteError, "rank {} (pid {} on {}) cannot take part: {}", rank, ::getpid(), hostName(),
                       why.message()));
}

// A rank that cannot even reach the hub tells the others if the hub is in its own process, or if they may still wait
// for it and the ranks meet by a file.
Status failedToDial(const koloUniqueId& id, const IdContents& contents, int rank, int ranks, int timeoutMs,
                    bool mayBeAwaited, Status why) {
  const bool isHere = failHubHere(contents, rank, ranks, why);
  if (!isHere && mayBeAwaited) leaveWord(id, rank, why, timeoutMs);
  return why;
}

// The id was made where KOLO_SECRET is set, and here it is not.
bool lacksSecret(const IdContents& contents) { return contents.isSecretGiven && !hasGivenSecret(); }

// Ranks of other hosts may join, for the hub listens not to this one alone. A root's name says whether it does: that of
// a host may be of a loopback address there, and of another one elsewhere.
bool mayBeFar(const IdContents& contents, const Root& root) {
  if (!root.name.empty()) return !isOfThisHost(root.name);
  return !std::all_of(contents.places.begin(), contents.places.end(),
                      [](const Place& each) { return each.isLoopback(); });
}

// Until the rank has joined; false: the time is over. Rank 0 hears meanwhile of those that have no way to the hub.
bool awaitJoined(MemberLink& link, const koloUniqueId& id, const IdContents& contents, int rank, int ranks,
                 Clock::time_point end, Interrupt* interrupt) {
  const Interrupt::Scope scope(interrupt, link.joined());
  const WhileLent lent;
  while (!link.joined().wait(rank == 0 ? std::min(end, Clock::now() + kWordInterval) : end)) {
    if (Clock::now() >= end) return false;
    if (const std::optional<PublishedFailure> word = takeWord(id, rank)) {
      (void)failHub(contents.secret, word->rank, ranks, word->why);
    }
  }
  return true;
}

// The job failed to form. Where its hub is in this process, ranks that are just coming are told why first: the program
// may end the process as soon as it knows, by a way that runs no function of exit(), which waits for longer.
void awaitTold(const Secret& secret, int timeoutMs) {
  const auto told = std::make_shared<Handover>();
  whenTold(secret, [told] { told->finish({}); });
  const std::chrono::milliseconds limit(patience(timeoutMs));
  (void)told->wait(Clock::now() + std::min<Clock::duration>(kTellingLimit, limit));
}

Result<std::shared_ptr<Control>> joinHub(const koloUniqueId& id, const IdContents& contents, int rank, int ranks,
                                         int timeoutMs, Interrupt* interrupt) {
  KOLO_TRY(refuseIfForkedInUse());
  const auto deadline = Clock::now() + std::chrono::milliseconds(patience(timeoutMs));
  if (lacksSecret(contents)) {
    // The hub cannot know that this is a rank, but its user is told that somebody came without the secret.
    const Status refused = dial(contents, std::min(deadline, Clock::now() + kFarewellLimit)).status();
    Status why = error(koloInvalidEnvironment,
                       "environment variable KOLO_SECRET is not set, but the unique id was made where it is: {} ({})",
                       kOneSecretForAll, refused.message());
    return failedToDial(id, contents, rank, ranks, timeoutMs, true, std::move(why));
  }
  const Root root = rootOf(id, rank);
  Result<Dialled> dialled = [&] {
    const WhileLent lent;
    return dial(contents, deadline, root, interrupt);
  }();
  if (!dialled.ok()) {
    const bool mayBeAwaited = dialled.status().code() == koloSystemError || Clock::now() + kWorthTelling < deadline;
    return failedToDial(id, contents, rank, ranks, timeoutMs, mayBeAwaited, dialled.status());
  }
  const Result<Reactor*> reactor = Reactor::get();
  if (!reactor.ok()) return declineAt(dialled.value(), rank, ranks, reactor.status());
  Standby::Opened own;
  const auto reach = mayBeFar(contents, root) ? Standby::Reach::kEverywhereOfRank : Standby::Reach::kHere;
  (void)reactor.value()->call([&] { own = Standby::open(*reactor.value(), reach); });
  // On this thread, so that the hub knows who it is that goes away if the reactor cannot serve the connection.
  const auto words = joinFrame(rank, ranks, timeoutMs, deadline, own, dialled.value().socket);
  if (!tell(dialled.value(), words, deadline + kAnswerGrace)) {
    return error(koloUnreachable, "the job's hub at {} closed the connection before rank {} had joined",
                 dialled.value().where, rank);
  }
  const auto link = std::make_shared<MemberLink>(*reactor.value(), rank, contents.secret, std::move(own.standby));
  const std::string& where = dialled.value().where;
  const bool called =
      reactor.value()->call([&] { link->start(std::move(dialled.value().socket), dialled.value().session); });
  if (!called) return error(koloInvalidUsage, "the process is exiting");
  Status status = error(koloTimeout,
                        "the job's hub at {} (in the process of rank 0 if a launcher started the ranks) did not say "
                        "within {} ms (KOLO_INIT_TIMEOUT_MS) whether all ranks have joined",
                        where, timeoutMs);
  if (awaitJoined(*link, id, contents, rank, ranks, deadline + kAnswerGrace, interrupt))
    status = link->joined().status();
  if (!status.ok()) {
    const bool givesUp = interrupt != nullptr && interrupt->isRaised();
    const auto farewell = std::make_shared<const std::string>(declineFrame(rank, ranks, status));
    (void)reactor.value()->call([&] {
      if (givesUp) {  // else the others would hear of a death
        link->decline(farewell);
        link->leave();
      }
      link->close();
    });
    return status;
  }
  std::string hub;
  (void)reactor.value()->call([&] { hub = fmt::format("{} at {}", link->hubOwner(), where); });
  return std::shared_ptr<Control>(std::make_shared<MemberControl>(*reactor.value(), link, rank, ranks, std::move(hub)));
}

}  // namespace

Result<koloUniqueId> createUniqueId(bool isOfThisHost, std::uint32_t growth) {
  KOLO_TRY(initialiseCrypto());
  // Not everybody who makes an id was started by a launcher; and ranks that this one knows nothing of may get the id.
  const Result<LauncherJob> job = isOfThisHost ? Result<LauncherJob>(LauncherJob()) : readLauncher();
  if (job.ok() && isOnSeveralHosts(job.value()))
    KOLO_TRY(demandSecret(fmt::format("{} has started ranks on several hosts", job.value().launcher)));
  Secret secret;
  randombytes_buf(secret.data(), secret.size());
  if (hasGivenSecret()) secret = givenSecret(tagOf(secret));
  KOLO_ASSIGN(IdContents contents, startHub(secret, 0, isOfThisHost ? loopbackHere() : std::nullopt));
  contents.isSecretGiven = hasGivenSecret();
  contents.growth = growth;
  return encodeId(contents);
}

Result<std::uint32_t> growthOf(const koloUniqueId& id) {
  KOLO_TRY(initialiseCrypto());
  KOLO_ASSIGN(const IdContents contents, decodeId(id));
  return contents.growth;
}

Result<std::shared_ptr<Control>> join(const koloUniqueId& id, int rank, int ranks, int timeoutMs,
                                      Interrupt* interrupt) {
  KOLO_TRY(initialiseCrypto());
  KOLO_ASSIGN(const IdContents contents, decodeId(id));
  if (ranks < 1 || ranks > kMaxRanks) {
    return error(koloInvalidRankCount, "{} ranks, expected 1..{}", ranks, kMaxRanks);
  }
  if (rank < 0 || rank >= ranks) return error(koloInvalidRank, "rank {}, expected 0..{}", rank, ranks - 1);
  network::raiseFileLimit(ranks);
  Result<std::shared_ptr<Control>> result = joinHub(id, contents, rank, ranks, timeoutMs, interrupt);
  if (!result.ok() && result.status().code() != koloTimeout) awaitTold(contents.secret, timeoutMs);
  KOLO_TRY(finishRendezvous(id, contents.secret, rank, result.status()));
  return result;
}

Status decline(const koloUniqueId& id, int rank, int ranks, int timeoutMs, Status why) {
  if (ranks == 1 || isForkedInUse() || !initialiseCrypto().ok()) return why;
  const Result<IdContents> contents = decodeId(id);
  if (!contents.ok()) return why;
  const auto deadline = Clock::now() + timeToTell(why, rank, kLastWordsTime, timeoutMs);
  // The hub of this process knows before this returns: the process may be about to exit, and then stays to tell others.
  if (!failHubHere(contents.value(), rank, ranks, why)) {
    Result<Dialled> dialled = dial(contents.value(), deadline, rootOf(id, rank));
    if (dialled.ok()) (void)declineAt(dialled.value(), rank, ranks, why);
    else leaveWord(id, rank, why, timeoutMs);
  }
  return finishRendezvous(id, contents.value().secret, rank, std::move(why));
}

}  // namespace kolo::bootstrap
