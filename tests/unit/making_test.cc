// Every step of making a communicator may fail, on one rank: all ranks get an error that names it, what is left can be
// destroyed, and the ranks can make another.
#include "support/making.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>
#include <thread>

#include "api/guard.h"
#include "base/settings.h"
#include "bootstrap/reactor.h"
#include "bootstrap_child.h"
#include "comm/agreement.h"
#include "comm/factory.h"
#include "comm/in_turn.h"
#include "links/blob.h"
#include "network/address.h"
#include "support/deadline.h"
#include "support/one_core.h"
#include "support/settings_scope.h"

using namespace kolo;
using namespace kolo::test;

namespace {

comm::Options optionsFor(const std::string& transports) {
  Result<comm::Options> options = comm::Options::make(nullptr, nullptr);
  REQUIRE(options.ok());
  options.value().transports = transports;
  return options.take();
}

// The transport of tests/plugin/late.c, before shared memory, and what can be told it.
class Late {
 public:
  explicit Late(int mostAtOnce) {
    const char* const path = std::getenv("KOLO_TEST_LATE_PLUGIN");
    REQUIRE(path != nullptr);
    settings_.emplace(std::vector<std::pair<const char*, std::string>>{
        {"KOLO_TRANSPORT_PLUGINS", path}, {"KOLO_TEST_CONNECT_ALL_RANKS", std::to_string(mostAtOnce)}});
    library_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library_ != nullptr);
  }
  ~Late() {
    (void)hasFailed();
    stall(-1);
  }
  Late(const Late&) = delete;

  void failAt(int rank, int call, int code) const {
    reinterpret_cast<void (*)(int, int, int)>(dlsym(library_, "koloLateFail"))(rank, call, code);
  }
  // The rank's links take all the time that they may, and are not there then; -1: those of none.
  void stall(int rank) const { reinterpret_cast<void (*)(int)>(dlsym(library_, "koloLateStall"))(rank); }
  bool hasFailed() const { return reinterpret_cast<int (*)()>(dlsym(library_, "koloLateHasFailed"))() != 0; }

 private:
  std::optional<SettingsScope> settings_;
  void* library_;
};

// A one of each rank, so often.
Status addUp(comm::Communicator& part, std::size_t count) {
  std::vector<int> ones(count, 1), sums(count);
  comm::Operation sum;
  sum.send = ones.data();
  sum.recv = sums.data();
  sum.count = count;
  sum.collective = device::Collective::kAllReduce;
  sum.datatype = koloInt32;
  KOLO_TRY(part.backend().run(sum, nullptr));
  if (sums == std::vector<int>(count, part.ranks())) return {};
  return error(koloInternalError, "rank {} has a wrong sum", part.rank());
}

// Makes a communicator and adds up in it; and that both ends of each pair go by one transport.
class Worker {
 public:
  explicit Worker(int ranks)
      : names_(static_cast<std::size_t>(ranks), std::vector<std::string>(static_cast<std::size_t>(ranks))) {}

  Result<comm::Owned> operator()(comm::Communicator& whole) {
    Result<comm::Owned> made = comm::split(whole, 0, 0, nullptr);
    KOLO_TRY(made.status());
    comm::Communicator& part = *made.value();
    KOLO_TRY(addUp(part, 1));
    KOLO_TRY(addUp(part, 100000));
    KOLO_TRY(part.backend().settle());
    std::vector<std::string>& mine = names_[static_cast<std::size_t>(part.rank())];
    for (int peer = 0; peer < part.ranks(); ++peer) {
      if (part.peers().isOpen(peer)) mine[static_cast<std::size_t>(peer)] = part.peers()[peer].device->name();
    }
    return made;
  }
  void expectAlike() const {
    for (std::size_t one = 0; one < names_.size(); ++one) {
      for (std::size_t other = 0; other < one; ++other) {
        INFO("ranks " << one << " and " << other);
        CHECK(names_[one][other] == names_[other][one]);
      }
    }
  }
  std::string nameOf(std::size_t rank, std::size_t peer) const { return names_[rank][peer]; }

 private:
  std::vector<std::vector<std::string>> names_;
};

}  // namespace

TEST_CASE("a rank that fails or dies at any exchange of making a communicator is named by the others") {
  const char* const transports = GENERATE("shm", "tcp");
  INFO(transports);
  for (const Way& way : {bySplit(), byShrink(), byGroup()}) failAtEachExchange(way, optionsFor(transports), 3, 1);
}

TEST_CASE("a rank that does not hear how the ranks agreed on sharing memory ends that for all, at once", "[threads]") {
  Makers makers(3, optionsFor("shm"));
  makers.control(1).failAt(FaultyControl::Fault::kUnanswered, 1);
  const auto since = std::chrono::steady_clock::now();
  expectAllNamed(makers.make(Makers::split), 1);
  CHECK(makers.control(1).hasFailed());
  // The others exchange what they have to say by the memory of all, and this rank does not.
  expectAllNamed(makers.make(Makers::split), 1);
  CHECK_WITHIN(std::chrono::milliseconds(Makers::kPatienceMs) / 2, since);
}

TEST_CASE("a rank that does not hear who has come to make a group is missed by the others at once", "[threads]") {
  Makers makers(3, optionsFor("shm"));
  makers.control(1).failAt(FaultyControl::Fault::kUnanswered, 1);
  const auto since = std::chrono::steady_clock::now();
  expectAllNamed(makers.make([](comm::Communicator& whole) -> Result<comm::Owned> {
    KOLO_ASSIGN(comm::Owned made, Makers::group(whole));
    KOLO_TRY(addUp(*made, 1));
    return made;
  }),
                 1);
  CHECK(makers.control(1).hasFailed());
  expectAllMade(makers.make(Makers::group));
  CHECK_WITHIN(std::chrono::milliseconds(Makers::kPatienceMs) / 2, since);
}

TEST_CASE("a rank that fails behind the exchanges of a split over shared memory is named by those who have made it",
          "[threads]") {
  Makers makers(3, optionsFor("shm"));
  Worker worker(3);
  expectAllMade(makers.make(std::ref(worker)));
  makers.control(1).refuseSubscriptions(true);
  const std::vector<Status> statuses = makers.make(std::ref(worker));
  makers.control(1).refuseSubscriptions(false);
  expectAllNamed(statuses, 1);
  expectAllMade(makers.make(std::ref(worker)));
}

// The other rank comes to the exchange only when the call has returned. What koloCommAbort does is done here by its
// parts, for a communicator of these has no handle.
TEST_CASE("an abort ends a call that makes a communicator, in whichever exchange it waits for a rank", "[threads]") {
  const char* const transports = GENERATE("shm", "tcp");
  for (const Way& way : {bySplit(), byShrink(), byGroup()}) {
    int steps = 0;
    for (bool isHeld = true; isHeld; steps += isHeld) {
      INFO(way.name << " by " << transports << ", rank 1 does not come to exchange " << steps + 1);
      Makers makers(2, optionsFor(transports));
      makers.control(1).failAt(FaultyControl::Fault::kLate, steps + 1);
      std::vector<Status> statuses(2);
      std::atomic<int> returned{0};
      std::vector<std::thread> threads;
      for (const int rank : {0, 1}) {
        threads.emplace_back([&, rank] {
          statuses[static_cast<std::size_t>(rank)] = way.make(makers.whole(rank)).status();
          ++returned;
        });
      }
      while (!makers.control(1).isHeld() && returned < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      isHeld = makers.control(1).isHeld();
      if (isHeld) {
        comm::Communicator& whole = makers.whole(0);
        const Status why = error(koloAborted, "rank 0 has had enough");
        whole.failureState().fail({why, 0});
        whole.failureState().giveUp(why);
      }
      threads[0].join();
      makers.control(1).release();
      threads[1].join();
      INFO(statuses[0].message() << "; " << statuses[1].message());
      if (!isHeld) {
        expectAllMade(statuses);
        continue;
      }
      CHECK(statuses[0].code() == koloAborted);
      CHECK(statuses[1].message().find("rank 0 has had enough") != std::string::npos);
    }
    CHECK(steps >= 1);
  }
}

// The reactor is held, so that the death and the abort are told at once.
TEST_CASE("an agreement that is ended by a death, and behind it by an abort, was aborted", "[threads]") {
  const Result<bootstrap::Reactor*> reactor = bootstrap::Reactor::get();
  REQUIRE(reactor.ok());
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };  // any order will do
  for (int round = 0; round < 5; ++round) {
    Makers makers(3, optionsFor("shm"));
    std::atomic<bool> isHeld{false}, goesOn{false};
    Status status;
    std::uint64_t flags = 6;
    std::thread agrees([&] { status = comm::agreeOnFlags(makers.whole(1), &flags); });
    pause();
    REQUIRE(reactor.value()->post([&] {
      for (isHeld = true; !goesOn;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }));
    while (!isHeld) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    makers.control(2).failAt(FaultyControl::Fault::kDeath, 1);
    std::thread dies([&] { (void)makers.whole(2).membership().allGather(""); });
    pause();
    std::thread aborts([&] { makers.whole(0).failureState().giveUp(error(koloAborted, "rank 0 has had enough")); });
    pause();
    goesOn = true;
    for (std::thread* const each : {&agrees, &dies, &aborts}) each->join();
    INFO(status.message());
    CHECK(status.code() == koloAborted);
    CHECK(flags == 6);
  }
}

TEST_CASE("a communicator's growth ends when one of its ranks dies that has the id and has not joined", "[threads]") {
  Makers makers(2, optionsFor("shm"));
  const Result<koloUniqueId> id = bootstrap::createUniqueId(true, comm::growthOf(makers.whole(0)));
  REQUIRE(id.ok());
  Status status;
  makers.forEach([&](int rank) {
    if (rank == 0) {
      status = comm::grow(makers.whole(0), 3, &id.value(), nullptr).status();
      return;
    }
    const links::Membership& its = makers.whole(1).membership();
    const auto meet = [&](const std::string& mine) {
      (void)its.control->allGather(comm::mixKeys(its.key, ~std::uint64_t{4}), 0, its.members, 1, mine,
                                   its.initTimeoutMs);
    };
    links::BlobWriter call;
    call.put(std::int32_t{koloSuccess}).putText("").put(std::int32_t{3}).putText("");
    meet(call.text());
    makers.control(1).failAt(FaultyControl::Fault::kDeath, 1);
    meet("");
  });
  INFO(status.message());
  CHECK(status.code() == koloRemoteError);
  CHECK(status.message().find("rank 1 ") != std::string::npos);
}

namespace {

void dieAndAwait(Makers& makers, int rank, const std::vector<int>& others) {
  makers.control(rank).failAt(FaultyControl::Fault::kDeath, 1);
  (void)makers.whole(rank).membership().allGather("");
  for (const int each : others) {
    while (makers.whole(each).failureState().dead().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

TEST_CASE("an abort ends the agreements of who has heard that the rank has died behind it", "[threads]") {
  Makers makers(3, optionsFor("shm"));
  makers.whole(0).failureState().giveUp(error(koloAborted, "rank 0 has had enough"));
  dieAndAwait(makers, 0, {1, 2});
  // One by one: nobody waits for the other.
  for (const int rank : {1, 2}) {
    std::uint64_t flags = 6;
    const Status status = comm::agreeOnFlags(makers.whole(rank), &flags);
    INFO(status.message());
    CHECK(status.code() == koloAborted);
    CHECK(status.message().find("rank 0 has had enough") != std::string::npos);
    CHECK(flags == 6);
  }
}

TEST_CASE("an abort, and not a death before it, ends the wait for a turn of a communicator that has failed",
          "[threads]") {
  Makers makers(2, optionsFor("shm"));
  comm::Communicator& whole = makers.whole(0);
  dieAndAwait(makers, 1, {0});
  CHECK(whole.failure().code() == koloRemoteError);
  const comm::InTurn held(whole.turn(), [] { return false; });
  Status status;
  std::thread waits(
      [&] { status = api::inTurn(whole, [] { return error(koloInternalError, "two are in the turn"); }); });
  whole.failureState().abortInterrupt()->raise(error(koloAborted, "another thread has had enough"));
  waits.join();
  INFO(status.message());
  CHECK(status.code() == koloAborted);
}

TEST_CASE("a growth ends on all others, and soon, when a new process dies while it joins, or when all meet") {
  const bool hasJoined = GENERATE(false, true);
  INFO("the new process " << (hasJoined ? "has joined" : "joins"));
  Makers makers(2, optionsFor("shm"));
  const int ranks = hasJoined ? 3 : 4;
  const Result<koloUniqueId> id = bootstrap::createUniqueId(true, comm::growthOf(makers.whole(0)));
  REQUIRE(id.ok());
  const auto since = std::chrono::steady_clock::now();
  std::vector<Status> statuses(static_cast<std::size_t>(ranks) - 1);
  std::thread grows([&] {
    makers.forEach([&](int rank) {
      statuses[static_cast<std::size_t>(rank)] =
          comm::grow(makers.whole(rank), ranks, rank == 0 ? &id.value() : nullptr, nullptr).status();
    });
  });
  if (hasJoined) {
    bootstrap::Child child("new rank", 2, ranks, bootstrap::hex(id.value()));
    CHECK(child.line() == "joined");
    child.kill();
  } else {
    // The hub reads what was sent before it finds the end.
    Result<bootstrap::Dialled> raw =
        bootstrap::dial(bootstrap::contentsOf(id.value()), bootstrap::Clock::now() + std::chrono::seconds(20));
    CHECK(raw.ok());
    std::string bytes;
    if (raw.ok()) {
      raw.value().session.seal(bootstrap::rawJoin(2, ranks, KOLO_VERSION_CODE), bytes);
      bootstrap::push(raw.value().socket, bytes);
    }
  }
  if (!hasJoined) statuses[2] = bootstrap::join(id.value(), 3, ranks, Makers::kPatienceMs).status();
  grows.join();
  for (const Status& status : statuses) {
    INFO(status.message());
    CHECK(status.code() == koloRemoteError);
    CHECK(status.message().find("rank 2 (pid ") != std::string::npos);
  }
  CHECK_WITHIN(std::chrono::milliseconds(Makers::kPatienceMs), since);
  expectAllMade(makers.make(Makers::split));
}

TEST_CASE("a transport that fails in any call on one rank is left by both ends of the pair, or all ranks say why",
          "[threads]") {
  const Late late(8);
  const int code = GENERATE(as<int>(), KOLO_TRANSPORT_ERROR, KOLO_TRANSPORT_UNREACHABLE);
  INFO("code " << code);
  // Another transport takes over.
  Makers makers(3, optionsFor("late,shm"));
  int calls = 0;
  for (bool failed = true; failed; calls += failed) {
    INFO("call " << calls + 1 << " fails on rank 1");
    late.failAt(1, calls + 1, code);
    Worker worker(3);
    expectAllMade(makers.make(std::ref(worker)));
    failed = late.hasFailed();
    worker.expectAlike();
    CHECK(worker.nameOf(0, 2) == "late");
    const bool byShm = worker.nameOf(0, 1) == "shm" || worker.nameOf(1, 2) == "shm";
    CHECK(byShm == failed);
  }
  CHECK(calls == 6);  // the device, its memory, and for each of two peers a link and the memory that is put from
  // There is no other.
  Makers alone(3, optionsFor("late"));
  for (int call = 1; call <= calls; ++call) {
    INFO("call " << call << " fails on rank 1, and there is no other transport");
    late.failAt(1, call, code);
    expectAllNamed(alone.make(Makers::split), 1);
    CHECK(late.hasFailed());
    expectAllMade(alone.make(Makers::split));
  }
}

// Three links of it would take longer than the others wait for the rank.
TEST_CASE("a rank whose links take as long as they may says so while the others still wait for it") {
  const Late late(8);
  Makers makers(4, optionsFor("shm"));
  late.stall(3);
  const comm::Options options = optionsFor("late,shm");
  const std::vector<Status> statuses = makers.make([&](comm::Communicator& whole) {
    const comm::Membership& job = whole.membership();
    comm::Membership membership{
        .control = job.control, .key = 2, .members = job.members, .rank = job.rank, .initTimeoutMs = 4000};
    return comm::undertake(membership, [&] { return comm::Communicator::create(std::move(membership), options); });
  });
  expectAllNamed(statuses, 3);
  for (const Status& status : statuses) {
    INFO(status.message());
    CHECK(status.code() == koloUnreachable);
    CHECK(status.message().find(" cannot be reached from rank 3") != std::string::npos);
    CHECK(status.message().find("no time was left to try it by ") != std::string::npos);
    CHECK(status.message().find("(KOLO_INIT_TIMEOUT_MS)") != std::string::npos);
  }
}

// All ranks map the memory of rank 0, and only ranks 1 and 2 do not map each other's: they look at no board of each
// other while they wait, for longer than it takes until a rank looks where the others run.
TEST_CASE("ranks that share a core, and of which one pair is not mapped, wait for as long as they may") {
  ::setenv("KOLO_TEST_LATE_PER_HOST", "2", 1);  // ranks 0 and 1 share memory
  const Late late(8);
  late.failAt(2, 3, KOLO_TRANSPORT_ERROR);  // behind the device and its memory: the link to rank 0
  const OneCore one;
  comm::Options options = optionsFor("late,shm");
  options.timeoutMs = 200;
  Makers makers(3, options);
  CHECK(late.hasFailed());
  ::unsetenv("KOLO_TEST_LATE_PER_HOST");
  CHECK(makers.whole(0).peers()[2].device->name() == std::string("shm"));
  CHECK(makers.whole(1).peers()[2].device->name() == std::string("late"));
  std::vector<Status> statuses(3);
  makers.forEach([&](int rank) {
    if (rank != 0) statuses[static_cast<std::size_t>(rank)] = addUp(makers.whole(rank), 1);
  });
  for (const std::size_t rank : {1, 2}) {
    INFO(statuses[rank].message());
    CHECK(statuses[rank].code() == koloTimeout);
  }
}

TEST_CASE("ranks that prefer different transports go by one") {
  const Late late(8);
  Makers makers(3, optionsFor("late,shm"));
  Worker worker(3);
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.transports = "shm,late";
  expectAllMade(makers.make([&](comm::Communicator& whole) -> Result<comm::Owned> {
    KOLO_ASSIGN(const comm::Owned made, comm::split(whole, 0, 0, whole.rank() == 1 ? &config : nullptr));
    return worker(*made);
  }));
  worker.expectAlike();
}

TEST_CASE("a link that is made at first use and should have worked fails with the reason, for its peer may go by it",
          "[threads]") {
  const Late late(1);
  Makers makers(3, optionsFor("late,shm"));
  const auto links = [](comm::Communicator& whole, Worker& worker) { return worker(whole); };
  Worker worker(3);
  late.failAt(1, 3, KOLO_TRANSPORT_ERROR);  // behind the device and its memory
  const std::vector<Status> statuses = makers.make([&](comm::Communicator& whole) { return links(whole, worker); });
  CHECK(late.hasFailed());
  expectAllNamed(statuses, 1);
  CHECK(statuses[0].message().find("a fault of rank 1 that a test wants") != std::string::npos);
  CHECK(statuses[2].message().find("a fault of rank 1 that a test wants") != std::string::npos);
}

TEST_CASE("a configuration that one rank's split refuses is told to all, and the next split works") {
  Makers makers(3, optionsFor("shm"));
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.timeoutMs = -5;
  const auto refused = [&](const auto& make) {
    const std::vector<Status> statuses =
        makers.make([&](comm::Communicator& whole) { return make(whole, whole.rank() == 2 ? &config : nullptr); });
    expectAllNamed(statuses, 2);
    for (const Status& status : statuses) CHECK(status.message().find("timeoutMs is -5") != std::string::npos);
  };
  refused([](comm::Communicator& whole, const koloConfig_t* config) { return comm::split(whole, 0, 0, config); });
  expectAllMade(makers.make(Makers::split));
  refused([](comm::Communicator& whole, const koloConfig_t* config) { return comm::shrink(whole, {}, config); });
  expectAllMade(makers.make(Makers::shrink));
}

namespace {

// At which this process listens: "127.0.0.1:5000".
std::set<std::string> listeningAddresses() {
  std::set<std::string> found;
  for (int fd = 0; fd < 1024; ++fd) {
    int isListening = 0;
    socklen_t bytes = sizeof isListening;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &isListening, &bytes) != 0 || isListening == 0) continue;
    sockaddr_storage name{};
    bytes = sizeof name;
    (void)::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &bytes);
    const auto address = network::addressOf(reinterpret_cast<const sockaddr*>(&name));
    // Both kinds of address have the port at the same place.
    if (address.has_value()) found.insert(address->text(ntohs(reinterpret_cast<const sockaddr_in&>(name).sin_port)));
  }
  return found;
}

}  // namespace

TEST_CASE("the ranks of one host listen where no other host reaches them") {
  const std::set<std::string> before = listeningAddresses();
  Result<std::vector<comm::Owned>> ranks = comm::createAll(2, optionsFor("tcp"));
  REQUIRE(ranks.ok());
  std::set<std::string> added = listeningAddresses();
  std::erase_if(added, [&](const std::string& each) { return before.contains(each); });
  CHECK_FALSE(added.empty());  // for data; for the hub too, unless it listens already
  for (const std::string& each : added) CHECK(each.starts_with("127.0.0.1:"));
  std::vector<std::thread> ends;
  for (comm::Owned& rank : ranks.value()) ends.emplace_back([&rank] { rank.reset(); });
  for (std::thread& end : ends) end.join();
}
