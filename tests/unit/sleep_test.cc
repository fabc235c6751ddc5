// A rank that sleeps until a peer has written for it.
#include "executor/host/sleep.h"

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <thread>

#include "device/atomics.h"
#include "support/deadline.h"
#include "support/watchdog.h"

using namespace kolo;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t kWithoutEndNs = 600'000'000'000;

// What a rank has where its peer writes.
struct alignas(64) Rank {
  device::Counter written{};
  alignas(64) executor::AsleepWord asleep{};

  void await(std::uint64_t number) {
    while (device::loadAcquire(written) < number) {
      if (executor::maySleep(asleep)) executor::sleep(asleep, kWithoutEndNs);
    }
  }
  void write(std::uint64_t number) {
    device::storeRelease(written, number);
    executor::wakeIfAsleep(asleep);
  }
};

}  // namespace

TEST_CASE("two ranks that sleep in turn wake each other", "[threads]") {
  const auto since = std::chrono::steady_clock::now();
  constexpr std::uint64_t kRounds = 5'000;
  std::array<Rank, 2> ranks;
  const auto play = [&](Rank& mine, Rank& theirs, bool begins) {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      if (begins) theirs.write(round);
      mine.await(round);
      if (!begins) theirs.write(round);
    }
  };
  std::thread other([&] { play(ranks[1], ranks[0], false); });
  play(ranks[0], ranks[1], true);
  other.join();
  CHECK_WITHIN(60s * test::kSlowness, since);  // one word that is missed takes ten minutes
}

TEST_CASE("a rank says that it sleeps before its last look") {
  executor::AsleepWord word{};
  CHECK_FALSE(executor::maySleep(word));
  CHECK(executor::maySleep(word));
  executor::wakeIfAsleep(word);
  CHECK_FALSE(executor::maySleep(word));
  const auto since = std::chrono::steady_clock::now();
  executor::wakeIfAsleep(word);
  executor::sleep(word, kWithoutEndNs);  // somebody has written meanwhile
  executor::sleep(word, 1'000'000);
  CHECK_WITHIN(60s * test::kSlowness, since);
}
