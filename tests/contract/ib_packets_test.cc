// Short requests over InfiniBand: packets, their credit, and what becomes of them when a lane fails.
#include "ib_world.h"

namespace kolo::contract {

TEST_CASE("short requests go together, those that may wait with the next call", "[ib]") {
  if (isReal()) return;
  const World world;
  Two two("KOLO_IB_RAILS=1");
  const std::uint64_t before = MockVerbs::messages();
  constexpr std::uint64_t kPuts = 8;
  for (std::uint64_t n = 1; n <= kPuts; ++n) {
    std::memset(two.ranks[0].data(1) + 8 * n, static_cast<int>(n), 8);
    REQUIRE_OK(two.ranks[0].put(two.links[0], {.memory = 1,
                                               .from = 8 * n,
                                               .bytes = 8,
                                               .to = kSignals + 8 * n,
                                               .signalTo = 64 + 8 * n,
                                               .signal = n,
                                               .more = KOLO_TRANSPORT_SOON}));
  }
  CHECK(two.ranks[0].queued(two.links[0]) == kPuts);
  std::this_thread::sleep_for(10ms);
  CHECK(MockVerbs::messages() == before);
  two.ranks[0].progress(1, 0);
  CHECK(two.ranks[0].queued(two.links[0]) == 0);
  REQUIRE_OK(awaitSignal(two.end(1), 64 + 8 * kPuts, kPuts));
  CHECK(MockVerbs::messages() == before + 1);
  for (std::uint64_t n = 1; n <= kPuts; ++n) {
    CHECK(wordAt(two.end(1), 64 + 8 * n) == n);
    CHECK(two.ranks[1].data(0)[kSignals + 8 * n + 7] == n);
  }
}

// The mock takes it for a mistake if a message comes and there is no buffer for it.
TEST_CASE("a rank in no call is sent no more packets than it has room for, and the rest when it calls",
          "[ib][threads]") {
  if (isReal()) return;
  for (const unsigned requests : {4u, 4096u}) {
    DYNAMIC_SECTION("queues of " << requests) {
      MockVerbs properties;
      properties.mostRequests = requests;
      const World world(properties);
      Two two;
      Status status;
      std::uint64_t puts = 0;
      for (const auto deadline = Clock::now() + 10s; status.ok() && Clock::now() < deadline; puts += status.ok()) {
        status = two.ranks[0].put(two.links[0], {.memory = 1, .signalTo = 64, .signal = puts + 1});
        two.ranks[0].progress(1, 0);
      }
      CHECK(status.code() == koloInProgress);
      CHECK(two.ranks[0].queued(two.links[0]) > 0);
      CHECK(wordAt(two.end(1), 64) == 0);
      std::this_thread::sleep_for(300ms);  // nor by the thread that works in its place
      CHECK(wordAt(two.end(1), 64) == 0);
      REQUIRE_OK(two.ranks[0].state(two.links[0]));
      std::uint64_t seen = 0;
      for (const auto deadline = Clock::now() + 20s; seen < puts && Clock::now() < deadline;
           two.ranks[0].progress(1, 0)) {
        two.ranks[1].progress(0, 0);
        CHECK(wordAt(two.end(1), 64) >= seen);
        seen = wordAt(two.end(1), 64);
      }
      CHECK(seen == puts);
      REQUIRE_OK(settle(two.end(0)));
    }
  }
}

// Of those that came by the one some are not carried out yet when the newer ones come by the other.
TEST_CASE("what came by a lane that has failed is older than what comes by another", "[ib]") {
  if (isReal()) return;
  for (const int lateBy : {0, 1, 5}) {
    DYNAMIC_SECTION("completions late by " << lateBy) {
      MockVerbs properties;
      properties.lateBy = lateBy;
      const World world(properties);
      Two two;
      const auto say = [&](std::uint64_t n) {
        std::memset(two.ranks[0].data(1) + 64 * n, static_cast<int>(n), 56);
        return putAll(two.end(0),
                      {.memory = 1, .from = 64 * n, .bytes = 56, .to = kSignals + 64 * n, .signalTo = 64, .signal = n});
      };
      for (std::uint64_t n = 1; n <= 10; ++n) REQUIRE_OK(say(n));
      REQUIRE_OK(settle(two.end(0)));
      MockVerbs::setPathBroken(0, true);
      for (std::uint64_t n = 11; n <= 20; ++n) REQUIRE_OK(say(n));
      REQUIRE_OK(settle(two.end(0)));
      CHECK(wordAt(two.end(1), 64) == 0);
      REQUIRE_OK(awaitSignal(two.end(1), 64, 20));
      progressFor(two.ranks[1], 0, 50);
      CHECK(wordAt(two.end(1), 64) == 20);
      for (std::uint64_t n = 1; n <= 20; ++n) CHECK(two.ranks[1].data(0)[kSignals + 64 * n + 55] == n);
    }
  }
}

// As on a machine that is so busy that a rank comes to look for a completion each few milliseconds.
TEST_CASE("the buffers of a closed lane may come back slowly", "[ib]") {
  if (isReal()) return;
  MockVerbs properties;
  properties.lateBy = 5;
  const World world(properties);
  Two two;
  REQUIRE_OK(putAll(two.end(0), {.memory = 1, .bytes = 56, .to = kSignals, .signalTo = 64, .signal = 1}));
  MockVerbs::setPathBroken(0, true);
  REQUIRE_OK(putAll(two.end(0), {.memory = 1, .bytes = 56, .to = kSignals, .signalTo = 64, .signal = 2}));
  REQUIRE_OK(settle(two.end(0)));
  for (const auto deadline = Clock::now() + 20s; wordAt(two.end(1), 64) != 2 && Clock::now() < deadline;
       std::this_thread::sleep_for(8ms)) {
    two.ranks[1].progress(0, 0);
    REQUIRE_OK(two.ranks[1].state(two.links[1]));
  }
  CHECK(wordAt(two.end(1), 64) == 2);
}

TEST_CASE("a packet for memory that is registered no longer ends the link on both sides", "[ib]") {
  if (isReal()) return;
  const World world;
  Two two;
  const std::size_t other = registered(two.ranks[1], kPage);
  const std::size_t link = linked(two.ranks[0], two.ranks[1].address(), two.ranks[1].descriptor(other));
  two.ranks[1].deregister(other);
  REQUIRE_OK(two.ranks[0].put(link, {.memory = 1, .bytes = 8, .to = 64, .signalTo = 8, .signal = 1}));
  CHECK(contains(two.awaitLoss(), "rank 1"));
}

TEST_CASE("NICs that take little inline send packets from memory", "[ib]") {
  if (isReal()) return;
  for (const unsigned most : {8u, 64u, 128u}) {
    DYNAMIC_SECTION(most << " bytes") {
      MockVerbs properties;
      properties.maxInline = most;
      const World world(properties);
      Two two;
      stream(two, kCount);
    }
  }
}

}  // namespace kolo::contract
