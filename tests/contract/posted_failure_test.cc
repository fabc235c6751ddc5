// What every transport with posted links promises when something goes wrong, run against each one there is.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "posted_pair.h"
#include "support/deadline.h"

namespace kolo::contract {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Progress until the link is lost, for ten seconds at most.
Status awaitLoss(const PostedPair& pair) {
  Status status;
  for (const auto deadline = Clock::now() + 10s; status.ok() && Clock::now() < deadline;) {
    pair.rank.progress(1, 1000);
    status = pair.rank.state(pair.link);
  }
  return status;
}

}  // namespace

TEST_CASE("a killed peer is lost for who writes to it and for who only waits", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    for (const bool writes : {true, false}) {
      DYNAMIC_SECTION(name << (writes ? " writing" : " waiting")) {
        PostedPair pair(name);
        std::memset(pair.rank.data(pair.outbox), 1, kMostPayload);
        for (int i = 0; writes && i < 16; ++i) {
          REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox, .bytes = kMostPayload, .to = kSignals}));
        }
        pair.peer.kill();
        const Status lost = awaitLoss(pair);
        INFO(lost.message());
        CHECK(lost.code() == koloRemoteError);
        CHECK(contains(lost.message(), "rank 1"));
        CHECK(pair.rank.put(pair.link, {.memory = pair.outbox, .bytes = 8, .to = kSignals}).code() == koloRemoteError);
        CHECK(pair.rank.unfinished(pair.link) == 0);
        CHECK(pair.rank.queued(pair.link) == 0);
        pair.rank.progress(1, 0);
        pair.rank.progress(-1, 0);
      }
    }
  }
}

TEST_CASE("what a peer put before it ended is there before it is lost", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    for (const bool closes : {true, false}) {
      if (name == "ib" && !closes) continue;  // a NIC stops with the process whose queue pairs it serves
      DYNAMIC_SECTION(name << (closes ? " closed" : " killed")) {
        PostedPair pair(name);
        for (std::uint64_t n = 1; n <= 20; ++n) {
          accepted(pair.peer.put(
              pair.theirLink, {.memory = pair.theirOutbox, .bytes = 1000, .to = kSignals, .signalTo = 8, .signal = n}));
        }
        if (closes) pair.peer.value(Op::kClose);
        pair.peer.kill();
        std::this_thread::sleep_for(50ms);
        CHECK(awaitSignal(pair.end(), 8, 20).message() == "");
        CHECK(awaitLoss(pair).code() == koloRemoteError);
      }
    }
  }
}

TEST_CASE("a stopped peer blocks nobody, and is not lost for that", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      pair.peer.pause();
      std::memset(pair.rank.data(pair.outbox), 1, kMostPayload);
      auto longest = 0ns;
      std::uint64_t puts = 0;
      for (int i = 0; i < 400; ++i) {
        const auto begun = Clock::now();
        const Status status = pair.rank.put(
            pair.link,
            {.memory = pair.outbox, .bytes = kMostPayload / 8, .to = kSignals, .signalTo = 8, .signal = puts + 1});
        if (status.ok()) ++puts;
        pair.rank.progress(1, 0);
        longest = std::max<std::chrono::nanoseconds>(longest, Clock::now() - begun);
        CHECK((status.ok() || status.code() == koloInProgress));
      }
      CHECK(longest < 5s);
      REQUIRE_OK(pair.rank.state(pair.link));
      pair.peer.resume();
      pair.peer.send({Op::kAwaitSignal, pair.theirInbox, 8, puts, pair.theirLink});
      REQUIRE_OK(settle(pair.end()));
      accepted(pair.peer.receive());
    }
  }
}

TEST_CASE("after a failure closing waits for nobody, where the transport knows of that", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      pair.peer.pause();
      std::memset(pair.rank.data(pair.outbox), 1, kMostPayload);
      for (int i = 0; i < 400; ++i) {  // more than the kernels of both sides hold
        (void)pair.rank.put(pair.link, {.memory = pair.outbox, .bytes = kMostPayload / 8, .to = kSignals});
        pair.rank.progress(1, 0);
      }
      const auto begun = Clock::now();
      const bool knows = pair.rank.abandon();
      pair.rank.close();
      if (knows) CHECK_WITHIN(2s, begun);
      pair.peer.resume();
    }
  }
}

TEST_CASE("after a failure nothing of what was put is read any more, where the transport knows of that",
          "[posted][threads]") {
  for (const std::string& name : working(koloLinkPosted)) {
    for (const char* const settings :
         {"", "KOLO_TEST_TCP_ZEROCOPY_BYTES=1000"}) {  // the kernel reads what it was lent, when it likes
      if (*settings != '\0' && name != "tcp") continue;
      DYNAMIC_SECTION(name << " " << settings) {
        HostOptions options;
        std::strcpy(options.settings, settings);
        PostedPair pair(name, options);
        pair.peer.pause();
        std::memset(pair.rank.data(pair.outbox), 1, kMostPayload);
        for (int i = 0; i < 400; ++i) {  // more than the kernels of both sides hold
          (void)pair.rank.put(pair.link, {.memory = pair.outbox, .bytes = kMostPayload / 8, .to = kSignals});
          pair.rank.progress(1, 0);
        }
        const bool knows = pair.rank.abandon();
        std::memset(pair.rank.data(pair.outbox), 2, kMostPayload);
        CHECK_FALSE(pair.rank.progress(1, 0));
        CHECK(pair.rank.unfinished(pair.link) == 0);
        pair.peer.resume();
        (void)pair.peer.value(Op::kProgress, 0, 300);
        if (knows)
          CHECK(pair.peer.value(Op::kCount, pair.theirInbox, 2, kSignals) ==
                kInbox - kSignals);  // bytes that are not 2
      }
    }
  }
}

TEST_CASE("deviceProgress sleeps as long as it is told, and wakes for what comes", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    if (name == "ib")
      continue;  // a NIC tells nobody that a peer has written: there is nothing to wake for, nor to sleep on
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      while (pair.rank.progress(1, 0)) {
      }
      const auto begun = Clock::now();
      CHECK_FALSE(pair.rank.progress(1, 100000));
      CHECK(Clock::now() - begun > 80ms);
      accepted(pair.peer.put(pair.theirLink, {.memory = pair.theirOutbox, .signalTo = 8, .signal = 1}));
      const auto again = Clock::now();
      CHECK(pair.rank.progress(-1, 10000000));
      CHECK_WITHIN(5s, again);
    }
  }
}

TEST_CASE("a put outside of the peer's memory is refused, and the link still works", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      const PutOptions wrong[] = {
          {.memory = pair.outbox, .bytes = 2, .to = kInbox - 1},
          {.memory = pair.outbox, .bytes = 1, .to = kInbox},
          {.memory = pair.outbox, .bytes = 16, .to = UINT64_MAX - 7},
          {.memory = pair.outbox, .signalTo = kInbox},
          {.memory = pair.outbox, .signalTo = kInbox - 4},
          {.memory = pair.outbox, .signalTo = 12},
          {.memory = pair.outbox, .signalTo = UINT64_MAX - 7},
          {.memory = pair.outbox, .bytes = 1, .rail = KOLO_TRANSPORT_MAX_RAILS},
      };
      for (const PutOptions& put : wrong) {
        const Status status = pair.rank.put(pair.link, put);
        CHECK(status.code() == koloSystemError);
        CHECK(status.message() != "");
      }
      REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox, .signalTo = 8, .signal = 1}));
      accepted(pair.awaitThere(8, 1));
      CHECK(pair.untouchedThere() == kInbox - kSignals + 64);
    }
  }
}

// Where the sender cannot know, the receiver drops the link, and its memory is as it was.
TEST_CASE("a put into memory that its owner has deregistered harms nobody but the link", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      const std::uint64_t other = accepted(pair.peer.registerMemory(kPage)).value;
      const koloTransportKey key = accepted(pair.peer.call({Op::kKey, other})).key;
      pair.peer.value(Op::kDeregister, other);
      const std::uint64_t third = accepted(pair.peer.registerMemory(kPage)).value;  // may stand in its place
      std::memset(pair.rank.data(pair.outbox), 9, kPage);
      REQUIRE_OK(pair.rank.put(
          pair.link, {.memory = pair.outbox, .bytes = kPage, .signalTo = 8, .signal = 1, .hasKey = true, .key = key}));
      const Reply there = pair.awaitThere(8, 1);
      CHECK(there.code == koloRemoteError);
      CHECK(contains(there.message, "rank 0"));
      CHECK(pair.peer.value(Op::kCount, other, 0) == 0);
      CHECK(pair.peer.value(Op::kCount, third, 0) == 0);
      CHECK(awaitLoss(pair).code() == koloRemoteError);
    }
  }
}

TEST_CASE("a key with an altered size or number harms nobody but the link", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    for (std::size_t at = 0; at < KOLO_TRANSPORT_KEY_BYTES; at += 3) {
      DYNAMIC_SECTION(name << " byte " << at) {
        Pair pair(name);
        accepted(pair.peer.registerMemory(kPage));
        const Reply theirs = accepted(pair.peer.registerMemory(kPage));
        const std::size_t mine = registered(pair.rank, 2 * kPage);
        std::memset(pair.rank.data(mine), 9, 2 * kPage);
        const std::size_t link = linked(pair.rank, pair.peer.address(), theirs.blob);
        koloTransportKey key = accepted(pair.peer.call({Op::kKey, 1})).key;
        key.data[at] ^= 0x20;
        (void)pair.rank.put(link, {.memory = mine, .bytes = 1, .to = kPage, .hasKey = true, .key = key});
        pair.rank.progress(1, 1000);
        pair.peer.value(Op::kProgress, 0, 20);
        CHECK(pair.peer.value(Op::kCount, 0, 0) == 0);
        CHECK(pair.peer.value(Op::kCount, 1, 0) == 0);
      }
    }
  }
}

TEST_CASE("a link to a peer that has gone is an error in bounded time", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      const Reply theirs = accepted(pair.peer.registerMemory(kBytes));
      pair.peer.kill();
      const auto begun = Clock::now();
      const auto link = pair.rank.openLink(pair.peer.address(), theirs.blob);
      CHECK_FALSE(link.ok());
      CHECK(contains(link.status().message(), "rank 1"));
      CHECK_WITHIN(10s, begun);
    }
  }
}

TEST_CASE("a peer without any way to it is unreachable, and what was tried is listed", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      Rank rank;
      Peer peer;
      REQUIRE_OK(rank.open(name, {.timeoutMs = 3000}));
      if (const Reply moved = peer.call({Op::kOwnNetwork}); moved.code != koloSuccess) {
        WARN("not tested: this machine allows no new network namespace: " << moved.message);
        return;
      }
      const std::size_t mine = registered(rank, kBytes);
      if (const Reply opened = peer.open(name, {.timeoutMs = 3000, .rank = 1}); opened.code != koloSuccess) {
        CHECK(contains(opened.message, "interface"));  // there is none that is up
        continue;
      }
      const Reply theirs = accepted(peer.registerMemory(kBytes));
      const auto begun = Clock::now();
      const auto there = rank.openLink(peer.address(), theirs.blob);
      CHECK(there.status().code() == koloUnreachable);
      const Reply here = peer.link(rank.address(), rank.descriptor(mine));
      CHECK(here.code == koloUnreachable);
      CHECK(contains(here.message, "rank 0"));
      CHECK_WITHIN(15s, begun);
    }
  }
}

TEST_CASE("a link that is closed while bytes are under way does not disturb the others", "[posted][threads]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      std::memset(pair.rank.data(pair.outbox), 4, kMostPayload);
      const std::size_t second = linked(pair.rank, pair.peer.address(), pair.theirs);
      for (int i = 0; i < 8; ++i) {
        REQUIRE_OK(pair.rank.put(second, {.memory = pair.outbox, .bytes = kMostPayload, .to = kSignals}));
      }
      pair.rank.closeLink(second);
      REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox, .bytes = 8, .to = kSignals, .signalTo = 8, .signal = 1}));
      pair.peer.send({Op::kAwaitSignal, pair.theirInbox, 8, 1, pair.theirLink});
      REQUIRE_OK(settle(pair.end()));
      accepted(pair.peer.receive());
    }
  }
}

TEST_CASE("a forked child neither uses nor disturbs its parent's links", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      // AddressSanitizer's allocator has locks that fork() copies as they are: let the other thread come to rest.
      std::this_thread::sleep_for(20ms);
      const pid_t child = fork();
      if (child == 0) {
        alarm(20);  // a child that hangs ends by a signal
        const bool refused = !pair.rank.put(pair.link, {.memory = pair.outbox, .bytes = 8, .to = kSignals}).ok() &&
                             !pair.rank.openLink(pair.peer.address(), pair.theirs).ok() &&
                             !pair.rank.state(pair.link).ok();
        pair.rank.progress(1, 0);
        pair.rank.close();
        Rank fresh;
        const bool opened =
            !kThreadsInChild || (fresh.open(name, {}).ok() && fresh.registerMemory(kPage, 0, Backing::kFile).ok());
        if (kThreadsInChild) fresh.close();
        _exit(refused && opened ? 0 : 1);
      }
      int status = -1;
      REQUIRE(waitpid(child, &status, 0) == child);
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 0);
      pair.startAnswering(50, 4096);
      CHECK(sendPostedPings(pair.end(), 50, 4096) == "");
      accepted(pair.peer.receive());
    }
  }
}

// A child that kept its parent's connections would hide the parent's death.
TEST_CASE("a peer that dies is lost although a child that it forked lives", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      const auto child = static_cast<pid_t>(pair.peer.value(Op::kForkAndWait));
      pair.peer.kill();
      CHECK(awaitLoss(pair).code() == koloRemoteError);
      ::kill(child, SIGKILL);
    }
  }
}

TEST_CASE("a process may exit with everything open", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      pair.peer.send({Op::kExit});
      CHECK(pair.peer.exitStatus() == 0);
      CHECK(awaitLoss(pair).code() == koloRemoteError);
    }
  }
}

}  // namespace kolo::contract
