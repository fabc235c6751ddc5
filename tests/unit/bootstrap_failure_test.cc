// Deaths, reported failures and farewells. Ranks are threads of this process, and processes of their own where one has
// to die.
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "bootstrap/listener.h"
#include "bootstrap/reactor.h"
#include "bootstrap/subscriptions.h"
#include "bootstrap_child.h"
#include "bootstrap_fixture.h"
#include "links/membership.h"
#include "support/deadline.h"

using namespace kolo;
using namespace kolo::bootstrap;
using namespace std::chrono_literals;

namespace {

std::string childVariable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

// Not a test: what Child runs.
TEST_CASE("a rank in a process of its own", "[.child]") {
  const std::string role = childVariable("CHILD_ROLE");
  const int rank = std::atoi(childVariable("CHILD_RANK").c_str());
  const int ranks = std::atoi(childVariable("CHILD_RANKS").c_str());
  std::FILE* const out = ::fdopen(std::atoi(childVariable("CHILD_OUT").c_str()), "w");
  REQUIRE(out != nullptr);
  const auto say = [out](const std::string& text) {
    std::fputs((text + "\n").c_str(), out);
    std::fflush(out);
  };
  if (childVariable("CHILD_IS_ELSEWHERE") == "1" && ::unshare(CLONE_NEWUSER) != 0) return say("no place");
  koloUniqueId id = unhex(childVariable("CHILD_ID"));
  if (role == "hub at the root") {
    const IdContents root = contentsOf(id);
    say(startHub(root.secret, root.port).ok() ? "listens" : "does not listen");
    std::this_thread::sleep_for(60s);
    return;
  }
  if (role.starts_with("hub")) {
    id = newId();
    say(hex(id));
  }
  if (role == "hub alone") {
    std::this_thread::sleep_for(60s);
    return;
  }
  Result<ControlPtr> control = join(id, rank, ranks, kPatienceMs);
  say(control.ok() ? "joined" : control.status().message());
  if (role == "hub that leaves") {
    control.value()->leave();
    return;
  }
  if (role == "hub that reports and ends") {
    (void)control.value()->allGather(7, 1, upTo(ranks), rank, "", kPatienceMs);
    control.value()->reportFailure(5, {koloAborted, rank, "rank 0 gave up"});
    ::_exit(0);
  }
  if (role.ends_with("that leaves because of a death")) {
    Inbox inbox;
    control.value()->subscribe(1, upTo(ranks), inbox.callback());
    (void)inbox.waitFor(1, 60s);
    control.value()->leave();
    return;
  }
  if (role == "rank that forks" && ::fork() == 0) {
    std::this_thread::sleep_for(3s);  // keeps copies of all descriptors that fork copies
    ::_exit(0);
  }
  say("ready");
  std::this_thread::sleep_for(60s);
}

TEST_CASE("a reported failure reaches all subscribers once, later ones too, until they unsubscribe",
          "[bootstrap][threads]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 4);
  Inbox inboxes[4];
  for (std::size_t i = 0; i < 3; ++i) controls[i]->subscribe(77, upTo(4), inboxes[i].callback());
  controls[2]->unsubscribe(77);
  const Failure failure{koloMismatch, 2, "rank 2 called broadcast"};
  controls[0]->reportFailure(77, failure);
  REQUIRE(inboxes[0].waitFor(1));
  REQUIRE(inboxes[1].waitFor(1));
  controls[3]->subscribe(77, upTo(4), inboxes[3].callback());
  REQUIRE(inboxes[3].waitFor(1));
  controls[1]->reportFailure(78, failure);  // another key
  std::this_thread::sleep_for(50ms);
  for (const std::size_t i : {0, 1, 3}) {
    REQUIRE(inboxes[i].all().size() == 1);
    CHECK(inboxes[i].all()[0].why.code() == koloMismatch);
    CHECK(inboxes[i].all()[0].rank == 2);
    CHECK(inboxes[i].all()[0].why.message() == failure.why.message());
  }
  CHECK(inboxes[2].all().empty());
  leaveAll(controls);
}

TEST_CASE("each rank that says of itself that it gives up is told of, and of what is said of others the first reports",
          "[bootstrap]") {
  constexpr int kRanks = 22;
  const std::vector<ControlPtr> controls = joinAll(newId(), kRanks);
  Inbox before, inFamily, early, after;
  controls[0]->subscribe(51, upTo(kRanks), before.callback(), nullptr, 5);
  controls[1]->subscribe(52, upTo(kRanks), inFamily.callback(), nullptr, 5);
  const auto reports = [&](std::size_t reporter, int rank) {
    controls[reporter]->reportFailure(51, {koloAborted, rank, "of rank " + std::to_string(rank)}, 5);
  };
  std::size_t told = 0;
  for (std::size_t i = 0; i < 3 * kMaxFailuresPerKey; ++i) reports(2, 3);
  REQUIRE(before.waitFor(told += kMaxFailuresPerKey));
  for (int rank = 2; rank < kRanks; ++rank, ++told) {
    for (int i = 0; i < 3; ++i) reports(static_cast<std::size_t>(rank), rank);
  }
  REQUIRE(before.waitFor(told));
  controls[1]->subscribe(51, upTo(kRanks), early.callback(), nullptr, 5);
  controls[kRanks - 1]->subscribe(51, upTo(kRanks), after.callback(), nullptr, 5);
  for (Inbox* const each : {&before, &early, &after}) {
    REQUIRE(each->waitFor(told));
    REQUIRE(each->all().size() == told);
    std::set<int> givers;
    for (const Failure& failure : each->all()) {
      if (failure.rank == failure.reporter) givers.insert(failure.rank);
    }
    CHECK(givers.size() == kRanks - 2);
  }
  CHECK(inFamily.all().empty());
  leaveAll(controls);
}

TEST_CASE("a failure of one key of a family reaches those who subscribe to it, before or after",
          "[bootstrap][threads]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 4);
  Inbox parents[4], children[4];
  const auto everybodyIsThere = [&](std::uint64_t sequence) {  // and what they said before is with the hub
    std::atomic<int> gathered{0};
    onThreads(4, [&](int i) {
      gathered +=
          controls[static_cast<std::size_t>(i)]->allGather(5, sequence, upTo(4), i, "", kPatienceMs).ok() ? 1 : 0;
    });
    CHECK(gathered == 4);
  };
  for (std::size_t i = 0; i < 3; ++i) controls[i]->subscribe(5, upTo(4), parents[i].callback());
  for (std::size_t i = 0; i < 2; ++i) controls[i]->subscribe(51, upTo(4), children[i].callback(), nullptr, 5);
  everybodyIsThere(1);
  controls[0]->unsubscribe(5);  // the parent goes first
  const Failure failure{koloAborted, 0, "rank 0 aborted"};
  controls[0]->reportFailure(51, failure, 5);
  REQUIRE(children[0].waitFor(1));
  REQUIRE(children[1].waitFor(1));
  everybodyIsThere(2);
  controls[2]->subscribe(51, upTo(4), children[2].callback(), nullptr, 5);  // was told before
  CHECK(children[2].all().size() == 1);
  controls[3]->subscribe(5, upTo(4), parents[3].callback());  // was in no family
  controls[3]->subscribe(51, upTo(4), children[3].callback(), nullptr, 5);
  CHECK(children[3].waitFor(1));
  controls[1]->unsubscribe(51);
  controls[2]->reportFailure(51, failure, 5);
  CHECK(children[3].waitFor(2));
  everybodyIsThere(3);
  CHECK(children[1].all().size() == 1);
  for (Inbox& parent : parents) CHECK(parent.all().empty());
  leaveAll(controls);
}

TEST_CASE("a reported failure ends the gathers of its key", "[bootstrap][threads]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 3);
  Blobs waiting[2] = {Status(), Status()};
  onThreads(3, [&](int rank) {
    if (rank < 2) {
      waiting[rank] = controls[static_cast<std::size_t>(rank)]->allGather(5, 1, upTo(3), rank, "x", kPatienceMs);
    } else {
      std::this_thread::sleep_for(100ms);
      controls[0]->reportFailure(5, {koloAborted, 0, "rank 0 aborted"});
    }
  });
  for (const Blobs& blobs : waiting) {
    CHECK(blobs.status().code() == koloAborted);
    CHECK(blobs.status().message() == "rank 0 aborted");
  }
  leaveAll(controls);
}

TEST_CASE(
    "a reported failure ends the gathers of its key that begin later, and tells more than the farewell of who reported "
    "it",
    "[bootstrap]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 3);
  controls[0]->reportFailure(5, {koloOutOfMemory, 0, "on rank 0: out of memory"});
  controls[0]->reportFailure(5, {koloAborted, 0, "a later one"});
  controls[0]->leave();
  for (const std::size_t rank : {1, 2}) {
    const Status status =
        controls[rank]->allGather(5, rank, upTo(3), static_cast<int>(rank), "x", kPatienceMs).status();
    CHECK(status.code() == koloOutOfMemory);
    CHECK(status.message() == "on rank 0: out of memory");
  }
  CHECK(contains(controls[1]->allGather(6, 1, upTo(3), 1, "x", kPatienceMs).status().message(), "rank 0"));  // has left
  leaveAll({controls[1], controls[2]});
}

TEST_CASE("a gather that misses several ranks names the one that died, not those that left because of it",
          "[bootstrap]") {
  std::vector<ControlPtr> controls = joinAll(newId(), 5);
  Inbox inbox;
  controls[1]->subscribe(1, upTo(5), inbox.callback());
  controls[3].reset();
  REQUIRE(inbox.waitFor(1));
  controls[0]->leave();
  controls[4]->leave();
  const auto gather = [&](const std::vector<int>& members) {
    return controls[1]->allGather(1, 1, members, 1, "x", kPatienceMs).status();
  };
  const Status ofAll = gather(upTo(5));
  CHECK(ofAll.code() == koloRemoteError);
  CHECK(contains(ofAll.message(), fmt::format("rank 3 (pid {} on ", ::getpid())));
  CHECK(contains(ofAll.message(), "died: connection closed"));
  const Status ofOthers = gather({0, 1, 2});  // the dead one is not among them
  CHECK(contains(ofOthers.message(), "rank 0"));
  CHECK(contains(ofOthers.message(), "has left the job, after rank 3"));
  leaveAll({controls[1], controls[2]});
}

TEST_CASE("the news of a rank's end names the failure that it reported or heard of before", "[bootstrap][threads]") {
  std::vector<ControlPtr> controls = joinAll(newId(), 4);
  Inbox inbox;
  controls[3]->subscribe(1, upTo(4), inbox.callback());
  controls[0]->reportFailure(77, {koloRemoteError, 2, "no link to rank 2"});
  controls[0].reset();  // at once: what it has reported is on its way
  REQUIRE(inbox.waitFor(1));
  CHECK(inbox.all()[0].rank == 0);
  CHECK(
      contains(inbox.all()[0].why.message(), "died: connection closed, after a failure on rank 0: no link to rank 2"));
  controls[2].reset();
  REQUIRE(inbox.waitFor(2));
  const auto gather = [&](const std::vector<int>& members, int index) {
    return controls[3]->allGather(2, 1, members, index, "x", kPatienceMs).status();
  };
  CHECK(contains(gather({0, 3}, 1).message(), "after a failure on rank 0: no link to rank 2"));
  controls[1].reset();
  REQUIRE(inbox.waitFor(3));
  // The rank knew of two ends, of which either may be the cause of its own.
  const std::string last = inbox.all()[2].why.message();
  CHECK(contains(last, "rank 1 (pid "));
  CHECK(contains(last, ", after a failure on rank 0: no link to rank 2; rank 0 (pid "));
  CHECK(contains(last, "; rank 2 (pid "));
  leaveAll({controls[3]});
}

TEST_CASE("a gather times out with the names of those missing, and can be done over", "[bootstrap][threads]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 4);
  const Status late = controls[0]->allGather(5, 1, upTo(4), 0, "x", 200).status();
  CHECK(late.code() == koloTimeout);
  CHECK(contains(late.message(), "ranks 1-3"));
  CHECK(contains(late.message(), "KOLO_INIT_TIMEOUT_MS"));
  std::atomic<int> right{0};
  onThreads(4, [&](int rank) {
    right += controls[static_cast<std::size_t>(rank)]->allGather(5, 1, upTo(4), rank, "y", kPatienceMs).ok() ? 1 : 0;
  });
  CHECK(right == 4);
  leaveAll(controls);
}

TEST_CASE("ranks that disagree on the members of a gather are both told", "[bootstrap]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 3);
  Status statuses[2];
  onThreads(2, [&](int rank) {
    const std::vector<int> members = rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
    statuses[rank] =
        controls[static_cast<std::size_t>(rank)]->allGather(5, 1, members, rank, "x", kPatienceMs).status();
  });
  for (const Status& status : statuses) {
    CHECK(status.code() == koloMismatch);
    CHECK(contains(status.message(), "says ranks 0-1"));
    CHECK(contains(status.message(), "says ranks 0-2"));
  }
  leaveAll(controls);
}

TEST_CASE("exchanges of some of a key's ranks do not disturb each other, unless two ranks wait for each other in vain",
          "[bootstrap][threads]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 5);
  Status statuses[5];
  const auto meet = [&](int rank, std::uint64_t sequence, const std::vector<int>& members) {
    const auto index = static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
    statuses[rank] = controls[static_cast<std::size_t>(rank)]
                         ->allGather(5, kPartialSequence + sequence, members, index, "x", 5000)
                         .status();
  };
  // Rank 1 waits for 0 while 0 waits for 4: the two do not list each other.
  onThreads(5, [&](int rank) {
    if (rank == 1) meet(1, 1, {0, 1});
    if (rank == 0) {
      std::this_thread::sleep_for(50ms);
      meet(0, 2, {4, 0});
      meet(0, 1, {0, 1});
    }
    if (rank == 4) {
      std::this_thread::sleep_for(100ms);
      meet(4, 2, {4, 0});
    }
    if (rank == 2 || rank == 3) meet(rank, 3, {3, 2});
  });
  for (const Status& status : statuses) {
    INFO(status.message());
    CHECK(status.ok());
  }
  // Ranks 1 and 2 list each other. Rank 0 has come before: rank 1 asks whom it would wait for, again and again.
  std::atomic<bool> hasCome{false};
  onThreads(3, [&](int rank) {
    while (rank == 1 && !hasCome) {
      const Status absent = controls[1]->allGather(5, kPartialSequence + 4, {0, 1, 2}, 1, "x", 10).status();
      hasCome = contains(absent.message(), "for rank 2 to take part");
    }
    while (!hasCome && rank == 2) std::this_thread::sleep_for(1ms);
    meet(rank, rank == 2 ? 5 : 4, rank == 2 ? std::vector<int>{1, 2} : std::vector<int>{0, 1, 2});
  });
  for (int rank = 0; rank < 3; ++rank) {
    INFO(statuses[rank].message());
    CHECK(statuses[rank].code() == koloMismatch);
    CHECK(contains(statuses[rank].message(), "says ranks 0-2"));
    CHECK(contains(statuses[rank].message(), "says ranks 1-2"));
  }
  onThreads(3, [&](int rank) { meet(rank, 4, {0, 1, 2}); });
  for (int rank = 0; rank < 3; ++rank) CHECK(statuses[rank].ok());
  leaveAll(controls);
}

TEST_CASE("a question is answered by the rank asked, and empty where nobody can answer", "[bootstrap][threads]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 4);
  const auto nothing = [](const Failure&) {};
  for (std::size_t i = 0; i < 4; ++i) {
    controls[i]->subscribe(5, upTo(4), nothing,
                           [i](int, std::string_view question) { return fmt::format("{} of {}", question, i); });
  }
  controls[2]->subscribe(6, upTo(4), nothing);
  const auto ask = [&](std::size_t from, std::uint64_t key, int to) {
    const std::shared_ptr<Answer> answer = controls[from]->ask(key, to, "news");
    const std::string* const text = answer->wait(kPatienceMs);
    return text != nullptr ? *text : "none";
  };
  // Ranks other than the asker subscribed on threads of their own: a gather is behind that.
  std::atomic<int> gathered{0};
  onThreads(4, [&](int i) {
    gathered += controls[static_cast<std::size_t>(i)]->allGather(5, 1, upTo(4), i, "", kPatienceMs).ok() ? 1 : 0;
  });
  CHECK(gathered == 4);
  CHECK(ask(0, 5, 3) == "news of 3");
  CHECK(ask(3, 5, 0) == "news of 0");
  CHECK(ask(1, 5, 1) == "news of 1");
  CHECK(ask(0, 6, 2).empty());  // does not answer about this
  CHECK(ask(0, 7, 2).empty());  // knows nothing of it
  CHECK(ask(0, 5, 4).empty());
  CHECK(ask(0, 5, -1).empty());
  controls[3]->unsubscribe(5);
  CHECK(ask(0, 5, 3).empty());
  controls[2]->leave();
  CHECK(ask(0, 5, 2).empty());
  CHECK(ask(2, 5, 0).empty());  // has left itself
  for (const std::size_t i : {0, 1, 3}) controls[i]->leave();
}

TEST_CASE("leaving is no failure, but nothing more can be gathered from one who left", "[bootstrap]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 3);
  Inbox inbox;
  controls[0]->subscribe(1, upTo(3), inbox.callback());
  controls[2]->leave();
  const Status status = controls[0]->allGather(1, 1, upTo(3), 0, "x", kPatienceMs).status();
  CHECK(status.code() == koloRemoteError);
  CHECK(contains(status.message(), "rank 2"));
  CHECK(contains(status.message(), "has left the job"));
  std::this_thread::sleep_for(50ms);
  CHECK(inbox.all().empty());
  CHECK(controls[2]->allGather(1, 1, upTo(3), 2, "x", 100).status().code() == koloInvalidUsage);
  controls[0]->leave();
  controls[1]->leave();
}

TEST_CASE("destruction without leaving is a death, told to those concerned", "[bootstrap][threads]") {
  std::vector<ControlPtr> controls = joinAll(newId(), 4);
  Inbox concerned;
  Inbox unconcerned;
  Inbox late;
  controls[0]->subscribe(1, upTo(4), concerned.callback());
  controls[1]->subscribe(2, {0, 1}, unconcerned.callback());
  Blobs waiting = Status();
  std::thread gather([&] { waiting = controls[0]->allGather(1, 1, upTo(4), 0, "x", kPatienceMs); });
  std::this_thread::sleep_for(50ms);
  controls[3].reset();
  REQUIRE(concerned.waitFor(1));
  CHECK(concerned.all()[0].why.code() == koloRemoteError);
  CHECK(concerned.all()[0].rank == 3);
  CHECK(contains(concerned.all()[0].why.message(), fmt::format("rank 3 (pid {} on ", ::getpid())));
  CHECK(contains(concerned.all()[0].why.message(), "died: connection closed"));
  gather.join();
  CHECK(waiting.status().code() == koloRemoteError);
  CHECK(contains(waiting.status().message(), "rank 3"));
  controls[2]->subscribe(3, upTo(4), late.callback());  // after the fact
  CHECK(late.waitFor(1));
  CHECK(unconcerned.all().empty());
  CHECK(concerned.all().size() == 1);
  leaveAll({controls[0], controls[1], controls[2]});
}

TEST_CASE("the death of a process is told at once with its rank and pid", "[bootstrap]") {
  const koloUniqueId id = newId();
  const std::string role = GENERATE("rank", "rank that forks");
  Child child(role, 2, 3, hex(id));
  std::vector<ControlPtr> controls(2);
  onThreads(2, [&](int rank) {
    Result<ControlPtr> joined = join(id, rank, 3, kPatienceMs);
    if (joined.ok()) controls[static_cast<std::size_t>(rank)] = joined.take();
  });
  REQUIRE(controls[0] != nullptr);
  REQUIRE(controls[1] != nullptr);
  CHECK(child.line() == "joined");
  CHECK(child.line() == "ready");
  Inbox inboxes[2];
  controls[0]->subscribe(1, upTo(3), inboxes[0].callback());
  controls[1]->subscribe(1, upTo(3), inboxes[1].callback());
  const int pid = child.pid();
  const auto start = Clock::now();
  child.kill();
  REQUIRE(inboxes[0].waitFor(1));
  REQUIRE(inboxes[1].waitFor(1));
  CHECK_WITHIN(8s, start);
  CHECK(inboxes[1].all()[0].rank == 2);
  CHECK(contains(inboxes[1].all()[0].why.message(), fmt::format("rank 2 (pid {} on", pid)));
  leaveAll(controls);
}

TEST_CASE("the death of the hub's process is the death of the rank in it", "[bootstrap]") {
  Child child("hub", 0, 3, "");
  const koloUniqueId id = unhex(child.line());
  std::vector<ControlPtr> controls = joinAll(id, 3, 1);
  CHECK(child.line() == "joined");
  Inbox inboxes[3];
  controls[1]->subscribe(1, upTo(3), inboxes[1].callback());
  controls[2]->subscribe(1, {1, 2}, inboxes[2].callback());
  const Status waiting = [&] {
    std::thread killer([&] {
      std::this_thread::sleep_for(100ms);
      child.kill();
    });
    const Status status = controls[1]->allGather(1, 1, upTo(3), 1, "x", kPatienceMs).status();
    killer.join();
    return status;
  }();
  CHECK(waiting.code() == koloRemoteError);
  CHECK(contains(waiting.message(), "rank 0"));
  REQUIRE(inboxes[1].waitFor(1));
  CHECK(inboxes[1].all()[0].rank == 0);
  CHECK(inboxes[2].all().empty());  // its members live
  controls[2]->reportFailure(1, {koloAborted, 2, "told to myself"});
  CHECK(inboxes[2].waitFor(1));
  leaveAll({controls[1], controls[2]});
}

TEST_CASE("of failures that were reported early so many are kept as there is room for", "[bootstrap]") {
  constexpr int kReporters = 100;
  constexpr std::uint64_t kKeys = kMaxFailureBytes / kReporters / kMaxReportBytes + 10;
  const std::string words(kMaxReportBytes, 'w');
  Subscriptions subscriptions;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    for (int rank = 0; rank < kReporters; ++rank) {
      Failure failure(koloAborted, rank, words);
      failure.reporter = rank;
      subscriptions.reported(key, failure, true);
    }
  }
  const auto heardOf = [&](std::uint64_t key) {
    int heard = 0;
    (void)subscriptions.add(
        key, key, upTo(kReporters), [&](const Failure&) { ++heard; }, nullptr);
    return heard;
  };
  CHECK(heardOf(0) == 0);
  CHECK(heardOf(kKeys - 1) == kReporters);
  CHECK(heardOf(kKeys / 2) == kReporters);
}

TEST_CASE("of failures that nobody has subscribed to a hub keeps so many as it has room for", "[bootstrap]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 3);
  const std::string words(kMaxReportBytes, 'w');
  constexpr std::uint64_t kKeys = 1000;  // of 18 reports each
  for (std::uint64_t key = 1; key <= kKeys; ++key) {
    for (std::size_t i = 0; i < kMaxFailuresPerKey; ++i) controls[0]->reportFailure(key, {koloAborted, 2, words});
    for (int rank = 0; rank < 2; ++rank)
      controls[static_cast<std::size_t>(rank)]->reportFailure(key, {koloAborted, rank, words});
  }
  Inbox first, last;
  controls[2]->subscribe(1, upTo(3), first.callback());
  controls[2]->subscribe(kKeys, upTo(3), last.callback());
  CHECK(last.waitFor(kMaxFailuresPerKey + 2));
  CHECK(first.all().empty());
  leaveAll(controls);
}

TEST_CASE("a rank whose process cannot be reached is known to have died before the hub has said so", "[bootstrap]") {
  const koloUniqueId id = newId();
  Child child("rank", 2, 3, hex(id));
  const std::vector<ControlPtr> controls = [&] {
    std::vector<ControlPtr> both(2);
    onThreads(2, [&](int rank) { both[static_cast<std::size_t>(rank)] = join(id, rank, 3, kPatienceMs).take(); });
    return both;
  }();
  links::Membership membership{.control = controls[0], .key = 5, .members = {1, 0, 2}, .initTimeoutMs = kPatienceMs};
  const Status none(koloUnreachable, "there is no link");
  const std::string named = fmt::format("rank 2 (pid {} on ", child.pid());
  CHECK(membership.whyUnreached(2, none).message() == "there is no link");
  CHECK(membership.whyUnreached(0, none).code() == koloUnreachable);
  child.kill();
  for (int i = 0; i < 2; ++i) {  // and it stays so
    const Status why = membership.whyUnreached(2, none);
    CHECK(why.code() == koloRemoteError);
    CHECK(contains(why.message(), named));
    CHECK(contains(why.message(), "there is no link"));
  }
  leaveAll(controls);
}

TEST_CASE("what a rank in the hub's process reports right before its end is told to all others", "[bootstrap]") {
  for (int i = 0; i < 5; ++i) {
    Child child("hub that reports and ends", 0, 4, "");
    const std::vector<ControlPtr> controls = joinAll(unhex(child.line()), 4, 1);
    Inbox inboxes[4];
    onThreads(3, [&](int other) {
      const auto rank = static_cast<std::size_t>(other) + 1;
      controls[rank]->subscribe(5, upTo(4), inboxes[rank].callback());
      (void)controls[rank]->allGather(7, 1, upTo(4), other + 1, "", kPatienceMs);
    });
    for (std::size_t rank = 1; rank < 4; ++rank) {
      REQUIRE(inboxes[rank].waitFor(1, 20s));
      CHECK(inboxes[rank].all()[0].why.message() == "rank 0 gave up");
    }
    leaveAll(controls);
  }
}

TEST_CASE("a rank that asks while the hub dies has heard of its death when the question is over",
          "[bootstrap][threads]") {
  Child child("hub", 0, 2, "");
  const koloUniqueId id = unhex(child.line());
  std::vector<ControlPtr> controls = joinAll(id, 2, 1);
  CHECK(child.line() == "joined");
  CHECK(child.line() == "ready");
  std::atomic<bool> hasHeard{false};
  controls[1]->subscribe(1, upTo(2), [&](const Failure&) {
    std::this_thread::sleep_for(200ms);  // who does not wait for this finds out too early that nobody answers
    hasHeard = true;
  });
  child.stop();  // so that the question stays open
  const std::shared_ptr<Answer> answer = controls[1]->ask(1, 1, "news");
  CHECK(answer->wait(100) == nullptr);
  child.kill();
  const std::string* const text = answer->wait(kPatienceMs);
  CHECK(hasHeard);
  REQUIRE(text != nullptr);
  CHECK(text->empty());
  leaveAll({controls[1]});
}

TEST_CASE("a rank whose exchange ends by a death or a report has heard of it when the exchange is over",
          "[bootstrap][threads]") {
  const bool isDeath = GENERATE(true, false);
  std::vector<ControlPtr> controls = joinAll(newId(), 3);
  std::atomic<bool> hasHeard{false};
  controls[1]->subscribe(1, upTo(3), [&](const Failure& failure) {
    std::this_thread::sleep_for(200ms);  // who does not wait for this goes on too early
    hasHeard = failure.isDeath == isDeath;
  });
  Blobs waiting = Status();
  bool hadHeard = false;
  std::thread gather([&] {
    waiting = controls[1]->allGather(1, 1, upTo(3), 1, "x", kPatienceMs);
    hadHeard = hasHeard;
  });
  std::this_thread::sleep_for(50ms);  // an exchange that begins later has to hear of it, too
  if (isDeath) {
    controls[2].reset();
  } else {
    controls[2]->reportFailure(1, {koloRemoteError, 2, "rank 2 gave up"});
  }
  gather.join();
  CHECK(hadHeard);
  CHECK(waiting.status().code() == koloRemoteError);
  std::erase(controls, nullptr);
  leaveAll(controls);
}

TEST_CASE("when the hub's owner has left in good order the ranks of its host go on", "[bootstrap][threads]") {
  Child child("hub that leaves", 0, 3, "");
  const koloUniqueId id = unhex(child.line());
  std::vector<ControlPtr> controls = joinAll(id, 3, 1);
  Inbox inbox;
  controls[1]->subscribe(1, upTo(3), inbox.callback());
  CHECK(WEXITSTATUS(child.wait()) == 0);
  std::this_thread::sleep_for(100ms);
  std::atomic<int> right{0};
  onThreads(2, [&](int i) {
    const ControlPtr& own = controls[static_cast<std::size_t>(i) + 1];
    const Blobs blobs = own->allGather(1, 1, {1, 2}, i, i == 0 ? "x" : "y", kPatienceMs);
    right += blobs.ok() && blobs.value() == std::vector<std::string>{"x", "y"} ? 1 : 0;
  });
  CHECK(right == 2);
  const Status status = controls[1]->allGather(1, 2, upTo(3), 1, "x", kPatienceMs).status();
  CHECK(status.code() == koloRemoteError);
  CHECK(contains(status.message(), "rank 0"));
  CHECK(contains(status.message(), "has left the job"));
  CHECK(inbox.all().empty());
  leaveAll({controls[1], controls[2]});
}

TEST_CASE("the rank whose death made the hub's owner leave is named, not the owner alone", "[bootstrap]") {
  Child child("hub that leaves because of a death", 0, 3, "");
  std::vector<ControlPtr> controls = joinAll(unhex(child.line()), 3, 1);
  controls[2].reset();
  CHECK(WEXITSTATUS(child.wait()) == 0);
  const Status status = controls[1]->allGather(1, 1, upTo(3), 1, "x", kPatienceMs).status();
  CHECK(status.code() == koloRemoteError);
  CHECK(contains(status.message(), fmt::format("rank 2 (pid {} on ", ::getpid())));
  leaveAll({controls[1]});
}

TEST_CASE("an exchange in which the hub does not answer names the hub's rank, its address and the setting",
          "[bootstrap]") {
  const bool isOfRank0 = GENERATE(true, false);
  Child child(isOfRank0 ? "hub" : "hub alone", 0, 3, "");
  const koloUniqueId id = unhex(child.line());
  const std::vector<ControlPtr> controls = joinAll(id, isOfRank0 ? 3 : 2, isOfRank0 ? 1 : 0);
  if (isOfRank0) CHECK(child.line() == "joined");
  child.stop();
  const std::vector<int> members = isOfRank0 ? std::vector<int>{1, 2} : std::vector<int>{0, 1};
  const Status status = controls[1]->allGather(1, 1, members, isOfRank0 ? 0 : 1, "x", 100).status();
  INFO(status.message());
  CHECK(status.code() == koloInProgress);
  CHECK(contains(status.message(),
                 isOfRank0 ? "the process of rank 0 (pid " : "the process which made the unique id (pid "));
  CHECK(contains(status.message(), fmt::format("(pid {} on ", child.pid())));
  CHECK(contains(status.message(), fmt::format("127.0.0.1:{}", contentsOf(id).port)));
  CHECK(contains(status.message(), "100 ms (KOLO_INIT_TIMEOUT_MS)"));
}

TEST_CASE("a rank killed while others join ends their wait", "[bootstrap]") {
  const koloUniqueId id = newId();
  Status status;
  std::thread waiting([&] { status = join(id, 0, 3, kPatienceMs).status(); });
  {
    Result<Dialled> raw = dial(contentsOf(id), Clock::now() + 5s);
    REQUIRE(raw.ok());
    std::string bytes;
    raw.value().session.seal(rawJoin(1, 3, KOLO_VERSION_CODE), bytes);
    push(raw.value().socket, bytes);
    std::this_thread::sleep_for(100ms);
  }
  waiting.join();
  const Status late = join(id, 2, 3, kPatienceMs).status();  // told, too
  for (const Status* const each : {&std::as_const(status), &late}) {
    CHECK(each->code() == koloRemoteError);
    CHECK(contains(each->message(), "rank 1 (pid 4711 on elsewhere) died while ranks were joining"));
  }
}

TEST_CASE("a rank that declines ends the wait of those who wait and of those who come later", "[bootstrap]") {
  const koloUniqueId id = newId();
  const bool isFirst = GENERATE(true, false);  // before any other has come
  const auto decline = [&] {
    Result<Dialled> raw = dial(contentsOf(id), Clock::now() + 5s);
    REQUIRE(raw.ok());
    const std::string words = frame(Frame::kDecline)
                                  .number(std::int32_t{1})
                                  .number(std::int32_t{3})
                                  .number(std::uint32_t{4711})
                                  .text("elsewhere")
                                  .text("its disk is full")
                                  .take();
    REQUIRE(tell(raw.value(), words, Clock::now() + 5s));
  };
  Status statuses[2];
  if (isFirst) decline();
  std::thread waiting([&] { statuses[0] = join(id, 0, 3, kPatienceMs).status(); });
  if (!isFirst) decline();
  waiting.join();
  statuses[1] = join(id, 2, 3, kPatienceMs).status();
  for (const Status& status : statuses) {
    CHECK(status.code() == koloRemoteError);
    CHECK(contains(status.message(), "rank 1 (pid 4711 on elsewhere) cannot take part: its disk is full"));
  }
}

TEST_CASE("a rank that cannot dial the hub of its own process ends the wait of all", "[bootstrap][threads]") {
  const koloUniqueId id = newId();
  Status waiting;
  std::thread rank([&] { waiting = join(id, 1, 3, kPatienceMs).status(); });
  failHub(contentsOf(id).secret, 0, 3, error(koloRemoteError, "rank 0 has no descriptors"));
  rank.join();
  for (const Status& status : {waiting, join(id, 2, 3, kPatienceMs).status()}) {
    CHECK(status.code() == koloRemoteError);
    CHECK(status.message() == "rank 0 has no descriptors");
  }
}

TEST_CASE("a forked child is told that it cannot use the control plane", "[bootstrap]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 2);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const bool refused = controls[0]->allGather(1, 1, upTo(2), 0, "x", 1000).status().code() == koloInvalidUsage &&
                         createUniqueId().status().code() == koloInvalidUsage;
    controls[0]->leave();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
  std::atomic<int> right{0};
  onThreads(2, [&](int rank) {
    right += controls[static_cast<std::size_t>(rank)]->allGather(1, 1, upTo(2), rank, "x", kPatienceMs).ok() ? 1 : 0;
  });
  CHECK(right == 2);
  leaveAll(controls);
}

// The reactor is held, so that the hub reads all that both ranks have sent at once: mostly that of the rank first which
// has called first.
TEST_CASE("a rank that begins an exchange anew takes no result of the part that it has withdrawn", "[threads]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 2);
  const Result<Reactor*> reactor = Reactor::get();
  REQUIRE(reactor.ok());
  const auto pause = [] {
    std::this_thread::sleep_for(2ms);
  };  // any order will do: some rounds have the one in question
  for (int round = 0; round < 20; ++round) {
    const int anew = round % 2, other = 1 - anew;
    const auto meet = [&](int rank, std::string_view mine, Interrupt* interrupt) {
      return controls[static_cast<std::size_t>(rank)]->allGather(9, static_cast<std::uint64_t>(round), {0, 1}, rank,
                                                                 mine, kPatienceMs, interrupt);
    };
    const auto partOf = [anew](const Result<std::vector<std::string>>& told) {
      return told.ok() ? told.value()[static_cast<std::size_t>(anew)] : told.status().message();
    };
    std::atomic<bool> isHeld{false}, goesOn{false};
    REQUIRE(reactor.value()->post([&] {
      for (isHeld = true; !goesOn;) std::this_thread::sleep_for(1ms);
    }));
    while (!isHeld) std::this_thread::sleep_for(1ms);
    std::string own, others;
    std::thread waits([&] {
      others = partOf(meet(other, "", nullptr));
      if (others == "first") others = partOf(meet(other, "", nullptr));
    });
    pause();
    Interrupt interrupt;
    std::thread first([&] { (void)meet(anew, "first", &interrupt); });
    pause();
    interrupt.raise(error(koloAborted, "enough"));
    first.join();
    std::thread second([&] { own = partOf(meet(anew, "second", nullptr)); });
    pause();
    goesOn = true;
    second.join();
    waits.join();
    CHECK(own == "second");
    CHECK(others == "second");
  }
}
