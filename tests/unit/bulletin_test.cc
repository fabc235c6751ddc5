// Ranks, as threads, that exchange texts through shared memory.
#include "links/bulletin.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

using namespace kolo;
using namespace kolo::links;

namespace {

struct Board {
  explicit Board(int ranks) : memory(static_cast<std::size_t>(ranks)) {
    for (Bulletin& bulletin : memory) bulletins.push_back(&bulletin);
  }
  Result<std::vector<std::string>> tell(int rank, std::uint64_t number, const std::string& text,
                                        const BulletinWait& wait) {
    return exchange(bulletins, rank, number, text, wait);
  }

  std::vector<Bulletin> memory;
  std::vector<Bulletin*> bulletins;
};

BulletinWait atOnce() {
  return [] { return Result<int>(error(koloTimeout, "nobody comes")); };
}

// Of any length, the longest included.
std::string textOf(int rank, std::uint64_t number) {
  std::minstd_rand random(static_cast<unsigned>(number * 64 + static_cast<std::uint64_t>(rank) + 1));
  std::string text(random() % 8 == 0 ? Bulletin::kTextBytes : random() % 300, '\0');
  for (char& character : text) character = static_cast<char>(random());
  return text;
}

}  // namespace

TEST_CASE("ranks get each other's texts of each exchange, whoever comes first", "[threads]") {
  constexpr int kRanks = 4, kExchanges = 400;
  Board board(kRanks);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      std::minstd_rand random(static_cast<unsigned>(rank) + 1);
      for (std::uint64_t number = 1; number <= kExchanges; ++number) {
        if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
        // Half of the ranks sleep until they are woken, for so long that one that is not would show.
        const auto texts = board.tell(rank, number, textOf(rank, number), [&]() -> Result<int> {
          if (rank % 2 != 0) return 60'000'000;
          std::this_thread::yield();
          return 0;
        });
        for (int from = 0; from < kRanks; ++from) {
          if (!texts.ok() || texts.value()[static_cast<std::size_t>(from)] != textOf(from, number)) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a rank that waits in an exchange in vain goes on, and finds the others in a later one") {
  Board board(2);
  CHECK(board.tell(0, 1, "one", atOnce()).status().code() == koloTimeout);
  CHECK(absentees(board.bulletins, 1) == std::vector<int>{1});
  CHECK(board.tell(0, 3, "three", atOnce()).status().code() == koloTimeout);  // over its text of the first
  const Status late = board.tell(1, 1, "late", atOnce()).status();
  CHECK(late.code() == koloRemoteError);
  CHECK(late.message().find("rank 0 has gone on") != std::string::npos);
  CHECK(board.tell(1, 2, "later", atOnce()).status().code() == koloRemoteError);
  const auto texts = board.tell(1, 3, "in time", atOnce());
  REQUIRE(texts.ok());
  CHECK(texts.value() == std::vector<std::string>{"three", "in time"});
}

TEST_CASE("a rank that gives up on a number says why to those who wait for it, asleep or awake", "[threads]") {
  Board board(3);
  CHECK_FALSE(board.tell(0, 1, "one", atOnce()).ok());
  Status sleeper;
  std::thread thread([&] { sleeper = board.tell(1, 2, "two", [] { return Result<int>(10'000); }).status(); });
  while (device::loadAcquire(board.memory[0].sleepers) == 0) std::this_thread::yield();
  board.memory[0].giveUp(2, error(koloOutOfMemory, "no room for rank {}", 0));
  thread.join();
  const Status awake = board.tell(2, 2, "two", [] { return Result<int>(0); }).status();
  for (const Status& status : {sleeper, awake}) {
    CHECK(status.code() == koloOutOfMemory);
    CHECK(status.message() == "rank 0 has given up on this: no room for rank 0");
  }
  // What was posted before is read, and later numbers are not given up.
  CHECK(board.tell(2, 1, "late", atOnce()).status().message().find("rank 1 has gone on") != std::string::npos);
  CHECK(board.tell(0, 3, "three", atOnce()).status().code() == koloTimeout);
  board.memory[0].giveUp(4, error(koloTimeout, "{}", std::string(2 * Bulletin::kTextBytes, 'x')));
  CHECK(board.tell(2, 4, "four", atOnce()).status().message().size() > Bulletin::kTextBytes - 10);
}

TEST_CASE("a rank that has left is not waited for, but what it posted before is read") {
  Board board(2);
  CHECK_FALSE(board.tell(0, 1, "farewell", atOnce()).ok());
  board.memory[0].leave();
  REQUIRE(board.tell(1, 1, "x", atOnce()).ok());
  const Status gone = board.tell(1, 2, "y", [] { return Result<int>(0); }).status();
  CHECK(gone.code() == koloRemoteError);
  CHECK(gone.message().find("rank 0 has destroyed") != std::string::npos);
  board.memory[0].clear();
  CHECK(board.tell(1, 1, "x", atOnce()).status().code() == koloTimeout);
}

TEST_CASE("a length that no text has is not believed") {
  Board board(2);
  CHECK_FALSE(board.tell(0, 1, "short", atOnce()).ok());
  board.memory[0].entries[1].bytes.value = UINT64_MAX;
  const auto texts = board.tell(1, 1, "x", atOnce());
  REQUIRE(texts.ok());
  CHECK(texts.value()[0].size() == Bulletin::kTextBytes);
}
