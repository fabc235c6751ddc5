// What every transport with posted links promises while all goes well, run against each one there is.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "posted_pair.h"
#include "support/deadline.h"

namespace kolo::contract {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Rank i of all those: writes to each other one, and checks what they write, round by round.
std::string exchangeWithAll(std::vector<Rank>& ranks, int i, std::uint64_t rounds) {
  const int n = static_cast<int>(ranks.size());
  Rank& own = ranks[static_cast<std::size_t>(i)];
  constexpr std::size_t kPart = 32 << 10;
  const auto partOf = [](int rank) { return kSignals + static_cast<std::size_t>(rank) * kPart; };
  std::vector<std::size_t> links(ranks.size());
  for (int step = 1; step < n; ++step) {
    const int to = (i + step) % n;
    const Rank& other = ranks[static_cast<std::size_t>(to)];
    const auto link = own.openLink(other.address(), other.descriptor(0));
    if (!link.ok()) return link.status().message();
    links[static_cast<std::size_t>(to)] = link.value();
  }
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    std::memset(own.data(1), static_cast<int>(round + static_cast<std::uint64_t>(i)), kPart);
    for (int to = 0; to < n; ++to) {
      if (to == i) continue;
      const PostedEnd end{&own, to, links[static_cast<std::size_t>(to)], 0, 1};
      const Status status = putAll(end, {.memory = 1,
                                         .bytes = kPart,
                                         .to = partOf(i),
                                         .signalTo = 8u * static_cast<unsigned>(i),
                                         .signal = 2 * round});
      if (!status.ok()) return status.message();
    }
    for (int from = 0; from < n; ++from) {
      if (from == i) continue;
      const PostedEnd end{&own, from, links[static_cast<std::size_t>(from)], 0, 1};
      if (const Status status = awaitSignal(end, 8u * static_cast<unsigned>(from), 2 * round); !status.ok())
        return status.message();
      if (own.data(0)[partOf(from)] != static_cast<unsigned char>(round + static_cast<std::uint64_t>(from)))
        return "wrong bytes";
      if (const Status status = settle(end); !status.ok()) return status.message();
    }
    // The next round overwrites what the others may still check: they say when they have.
    for (int to = 0; to < n; ++to) {
      if (to == i) continue;
      const PostedEnd end{&own, to, links[static_cast<std::size_t>(to)], 0, 1};
      if (const Status status =
              putAll(end, {.memory = 1, .signalTo = 64u + 8u * static_cast<unsigned>(i), .signal = round});
          !status.ok())
        return status.message();
    }
    for (int from = 0; from < n; ++from) {
      const PostedEnd end{&own, from, links[static_cast<std::size_t>(from)], 0, 1};
      if (from == i) continue;
      if (const Status status = awaitSignal(end, 64u + 8u * static_cast<unsigned>(from), round); !status.ok())
        return status.message();
    }
  }
  return "";
}

}  // namespace

TEST_CASE("payloads and signals pass in order between processes", "[posted][optimised]") {
  for (const std::string& name : working(koloLinkPosted)) {
    for (const auto& [rounds, most] : {std::pair<std::uint64_t, std::size_t>{10000, 2048}, {200, kMostPayload}}) {
      DYNAMIC_SECTION(name << " up to " << most << " bytes") {
        PostedPair pair(name);
        pair.startAnswering(rounds, most);
        CHECK(sendPostedPings(pair.end(), rounds, most) == "");
        accepted(pair.peer.receive());
      }
    }
  }
}

TEST_CASE("payloads and signals pass in order between threads", "[posted][threads]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      Rank ranks[2];
      std::size_t links[2];
      for (int i = 0; i < 2; ++i) {
        REQUIRE_OK(ranks[i].open(name, {.rank = i}));
        registered(ranks[i], kInbox);
        registered(ranks[i], kInbox);
        prepareInbox(ranks[i], 0);
      }
      std::string problem = "not ended";
      links[0] = linked(ranks[0], ranks[1].address(), ranks[1].descriptor(0));
      links[1] = linked(ranks[1], ranks[0].address(), ranks[0].descriptor(0));
      std::thread other([&] { problem = answerPostedPings({&ranks[1], 0, links[1], 0, 1}, 10000, 4096); });
      CHECK(sendPostedPings({&ranks[0], 1, links[0], 0, 1}, 10000, 4096) == "");
      other.join();
      CHECK(problem == "");
    }
  }
}

TEST_CASE("requests that may wait for others arrive in order, with the next call at the latest", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      std::memset(pair.rank.data(pair.outbox), 5, kInbox);
      std::uint64_t signal = 0;
      for (const std::size_t bytes : {8, 56, 0, 4096, 30000, 64, 8}) {
        REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox,
                                       .bytes = bytes,
                                       .to = kSignals,
                                       .signalTo = 8,
                                       .signal = ++signal,
                                       .more = KOLO_TRANSPORT_SOON}));
      }
      REQUIRE_OK(settle(pair.end()));
      accepted(pair.awaitThere(8, signal));
      CHECK(pair.untouchedThere() == kInbox - kSignals + 64 - 30000);
    }
  }
}

TEST_CASE(
    "requests for later are not queued, and go with the next of their rail, or with the next call that moves anything",
    "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      std::uint64_t signal = 0;
      const auto later = [&](std::size_t at) {
        REQUIRE_OK(putAll(pair.end(),
                          {.memory = pair.outbox, .signalTo = at, .signal = ++signal, .more = KOLO_TRANSPORT_LATER}));
        CHECK(pair.rank.queued(pair.link) == 0);
      };
      for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < round; ++i) later(16);  // more than go together
        REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox, .signalTo = 8, .signal = ++signal}));
        accepted(pair.awaitThere(8, signal));
        if (round > 0) accepted(pair.awaitThere(16, signal - 1));  // in order
        later(24);
        pair.rank.progress(1, 0);
        accepted(pair.awaitThere(24, signal));
      }
      REQUIRE_OK(settle(pair.end()));
      CHECK(pair.untouchedThere() == kInbox - kSignals + 64);
    }
  }
}

TEST_CASE("bytes go where they are put, and nowhere else", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      std::memset(pair.rank.data(pair.outbox), 7, kInbox);
      std::uint64_t expected = 0, signal = 0;
      for (const std::size_t bytes : {1, 7, 8, 63, 64, 65, 4095, 100000}) {
        const std::size_t to = kSignals + expected * 2 + bytes % 5;
        REQUIRE_OK(putAll(
            pair.end(),
            {.memory = pair.outbox, .from = bytes % 3, .bytes = bytes, .to = to, .signalTo = 8, .signal = ++signal}));
        expected += bytes;
      }
      REQUIRE_OK(settle(pair.end()));
      accepted(pair.awaitThere(8, signal));
      CHECK(pair.untouchedThere() == kInbox - kSignals + 64 - expected);
      CHECK(pair.peer.value(Op::kLoadOwn, pair.theirInbox, 16) == 0);
    }
  }
}

TEST_CASE("a signal may come without bytes, and bytes without a signal", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      std::memset(pair.rank.data(pair.outbox), 9, 16);
      REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox, .bytes = 16, .to = kSignals}));
      REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox}));
      REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox, .signalTo = 24, .signal = 0xffff'ffff'ffff'fff0u}));
      REQUIRE_OK(settle(pair.end()));
      accepted(pair.awaitThere(24, 0xffff'ffff'ffff'fff0u));
      CHECK(pair.peer.value(Op::kLoadOwn, pair.theirInbox, kSignals + 15) == 9);
    }
  }
}

// Each rail's signals count in a word of its own, and each put's number stands in its payload.
TEST_CASE("the requests of one rail take effect in order, on all rails at once", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    for (const char* const settings : {"", "KOLO_TCP_SOCKETS=4"}) {
      DYNAMIC_SECTION(name << " " << settings) {
        constexpr std::uint64_t kPuts = 2000;
        HostOptions options;
        std::strcpy(options.settings, settings);
        PostedPair pair(name, options);
        const std::uint32_t rails = pair.rank.rails(pair.link);
        CHECK(pair.peer.value(Op::kRails, pair.theirLink) == rails);
        pair.peer.send({Op::kWatchRails, pair.theirInbox, rails, kPuts, pair.theirLink});
        for (std::uint64_t n = 1; n <= kPuts; ++n) {
          for (std::uint32_t rail = 0; rail < rails; ++rail) {
            const std::size_t slot = 64 * (n % 1024) + 8 * rail;
            REQUIRE_OK(settle(pair.end()));
            std::memcpy(pair.rank.data(pair.outbox) + slot, &n, sizeof n);
            REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox,
                                           .from = slot,
                                           .bytes = 8,
                                           .to = kSignals + slot,
                                           .signalTo = 128 + 8 * rail,
                                           .signal = n,
                                           .rail = rail}));
          }
        }
        REQUIRE_OK(settle(pair.end()));
        accepted(pair.peer.receive());
      }
    }
  }
}

TEST_CASE("another memory of the peer is written to by its key", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      const std::uint64_t second = accepted(pair.peer.registerMemory(kPage + 3, 5, Backing::kOrdinary)).value;
      const koloTransportKey key = accepted(pair.peer.call({Op::kKey, second})).key;
      pair.rank.data(pair.outbox)[0] = 77;
      REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox,
                                     .bytes = 1,
                                     .to = kPage + 2,
                                     .signalTo = 8,
                                     .signal = 1,
                                     .hasKey = true,
                                     .key = key}));
      REQUIRE_OK(settle(pair.end()));
      accepted(pair.awaitThere(8, 1));
      CHECK(pair.peer.value(Op::kLoadOwn, second, kPage + 2) == 77);
      CHECK(pair.untouchedThere() == kInbox - kSignals + 64);
    }
  }
}

TEST_CASE("what is over may be changed", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      constexpr std::size_t kLarge = 3 << 20;
      PostedPair pair(name);
      for (std::uint64_t round = 1; round <= 20; ++round) {
        std::memset(pair.rank.data(pair.outbox), static_cast<int>(round), kLarge);
        REQUIRE_OK(putAll(pair.end(),
                          {.memory = pair.outbox, .bytes = kLarge, .to = kSignals, .signalTo = 8, .signal = round}));
        pair.peer.send({Op::kAwaitSignal, pair.theirInbox, 8, round, pair.theirLink});
        REQUIRE_OK(settle(pair.end()));
        std::memset(pair.rank.data(pair.outbox), 0, kLarge);
        accepted(pair.peer.receive());
        CHECK(pair.peer.value(Op::kCount, pair.theirInbox, round, kSignals) == kInbox - kSignals - kLarge);
      }
    }
  }
}

TEST_CASE("what is queued is bounded, and goes on when the peer does", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      constexpr std::size_t kStep = 64 << 10;
      PostedPair pair(name);
      std::memset(pair.rank.data(pair.outbox), 3, kStep);
      std::uint64_t puts = 0;
      Status status;
      const auto begun = Clock::now();
      for (; status.ok() && puts < 100000; puts += status.ok() ? 1 : 0) {
        pair.rank.progress(-1, 0);
        status = pair.rank.put(
            pair.link, {.memory = pair.outbox, .bytes = kStep, .to = kSignals, .signalTo = 8, .signal = puts + 1});
      }
      CHECK(status.code() == koloInProgress);
      CHECK(pair.rank.unfinished(pair.link) >= pair.rank.queued(pair.link));
      CHECK(pair.rank.queued(pair.link) > 0);
      CHECK(pair.rank.queued(pair.link) <= puts);
      CHECK_WITHIN(20s, begun);
      pair.peer.send({Op::kAwaitSignal, pair.theirInbox, 8, puts + 1, pair.theirLink});
      REQUIRE_OK(putAll(pair.end(),
                        {.memory = pair.outbox, .bytes = kStep, .to = kSignals, .signalTo = 8, .signal = puts + 1}));
      REQUIRE_OK(settle(pair.end()));
      accepted(pair.peer.receive());
      CHECK(pair.untouchedThere() == kInbox - kSignals + 64 - kStep);
    }
  }
}

TEST_CASE("ranks that all write to each other at once do not hold each other up", "[posted][threads]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      constexpr int kRanks = 4;
      constexpr std::uint64_t kRounds = 200;
      std::vector<Rank> ranks(kRanks);
      std::vector<std::string> problems(kRanks);
      for (int i = 0; i < kRanks; ++i) {
        REQUIRE_OK(ranks[static_cast<std::size_t>(i)].open(name, {.rank = i, .ranks = kRanks}));
        registered(ranks[static_cast<std::size_t>(i)], kInbox);
        registered(ranks[static_cast<std::size_t>(i)], kInbox);
      }
      std::vector<std::thread> threads;
      for (int i = 0; i < kRanks; ++i) {
        threads.emplace_back([&, i] { problems[static_cast<std::size_t>(i)] = exchangeWithAll(ranks, i, kRounds); });
      }
      for (std::thread& thread : threads) thread.join();
      for (const std::string& problem : problems) CHECK(problem == "");
    }
  }
}

TEST_CASE("a rank writes to itself", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      Rank rank;
      REQUIRE_OK(rank.open(name, {}));
      registered(rank, kInbox);
      registered(rank, kInbox);
      rank.data(1)[0] = 5;
      const PostedEnd end{&rank, 0, linked(rank, rank.address(), rank.descriptor(0)), 0, 1};
      REQUIRE_OK(putAll(end, {.memory = 1, .bytes = 1, .to = 99, .signalTo = 8, .signal = 4}));
      REQUIRE_OK(awaitSignal(end, 8, 4));
      CHECK(rank.data(0)[99] == 5);
    }
  }
}

TEST_CASE("ranks that seem to be on two machines reach each other", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      Rank rank;
      Peer peer;
      REQUIRE_OK(rank.open(name, {}));
      accepted(peer.open(name, {.otherMachine = true, .rank = 1}));
      const Reply theirs = accepted(peer.registerMemory(kBytes));
      linked(rank, peer.address(), theirs.blob);
    }
  }
}

TEST_CASE("links that both sides open at once do not wait for each other", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      // Who waits for the other does so until its patience is over, which is checked of each round: starting processes
      // takes what it takes.
      for (int round = 0; round < 20; ++round) {
        Pair pair(name);
        const Reply theirs = accepted(pair.peer.registerMemory(kBytes));
        const std::size_t mine = registered(pair.rank, kBytes);
        Request request{Op::kLink};
        request.address = pair.rank.address();
        request.descriptor = pair.rank.descriptor(mine);
        const auto begun = Clock::now();
        pair.peer.send(request);
        linked(pair.rank, pair.peer.address(), theirs.blob);
        accepted(pair.peer.receive());
        CHECK_WITHIN(std::chrono::milliseconds(HostOptions().timeoutMs) / 2, begun);
      }
    }
  }
}

TEST_CASE("devices open and close in any order while others post", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      auto first = std::make_unique<Rank>();
      auto second = std::make_unique<Rank>();
      REQUIRE_OK(first->open(name, {}));
      REQUIRE_OK(second->open(name, {}));
      registered(*second, kPage);
      const PostedEnd end{second.get(), 1, linked(*second, pair.peer.address(), pair.theirs), 0, 0};
      first.reset();
      REQUIRE_OK(putAll(end, {.signalTo = 16, .signal = 1}));
      REQUIRE_OK(settle(end));
      accepted(pair.awaitThere(16, 1));
      second.reset();
      REQUIRE_OK(putAll(pair.end(), {.memory = pair.outbox, .signalTo = 16, .signal = 2}));
      REQUIRE_OK(settle(pair.end()));
      accepted(pair.awaitThere(16, 2));
    }
  }
}

TEST_CASE("what was accepted reaches the peer, also when the device is closed at once", "[posted][threads]") {
  for (const std::string& name : working(koloLinkPosted)) {
    DYNAMIC_SECTION(name) {
      PostedPair pair(name);
      std::memset(pair.rank.data(pair.outbox), 6, kMostPayload);
      for (std::uint64_t n = 1; n <= 10; ++n) {  // more than the kernel holds
        REQUIRE_OK(pair.rank.put(
            pair.link, {.memory = pair.outbox, .bytes = kMostPayload, .to = kSignals, .signalTo = 8, .signal = n}));
      }
      // What the peer sends at the same time must not matter, though nobody reads it any more.
      accepted(pair.peer.put(pair.theirLink, {.memory = pair.theirOutbox, .bytes = kMostPayload, .to = kSignals}));
      std::thread closing([&] {
        CHECK(settle(pair.end()).message() == "");
        pair.rank.close();
      });
      const Reply reply = pair.awaitThere(8, 10);
      closing.join();
      accepted(reply);
      CHECK(pair.untouchedThere() == kInbox - kSignals + 64 - kMostPayload);
      CHECK(pair.peer.call({Op::kAwaitSignal, pair.theirInbox, 8, 11, pair.theirLink}).code == koloRemoteError);
    }
  }
}

}  // namespace kolo::contract
