// The bidirectional ring, as the systems that have one describe it: a rank by itself, odd sizes, blocks in the order of
// the ranks, and no write before the neighbours have met.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "support/collectives_table.h"
#include "support/ranks.h"

using namespace kolo::test;

namespace {

using Bytes = std::vector<unsigned char>;

unsigned char valueOf(int rank, size_t at) { return static_cast<unsigned char>(rank * 61 + 7 * at + at / 251); }

constexpr unsigned char kNotWritten = 0xa5;
constexpr size_t kMargin = 33;

}  // namespace

TEST_CASE("S3.1 one rank gets its input, from every collective, and keeps it") {
  for (const char* algorithm : {"", "all_reduce:biring,all_gather:biring,reduce_scatter:biring"}) {
    World world(1, configWithAlgorithm(algorithm));
    for (const Collective& collective : collectives()) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{13}, size_t{100003}}) {
        INFO(collective.name << ", " << count << " elements, algorithm " << algorithm);
        std::vector<int> send(count), recv(count + 1, -1);
        std::iota(send.begin(), send.end(), 5);
        const std::vector<int> given = send;
        Arguments arguments;
        arguments.send = send.data();
        arguments.recv = recv.data();
        arguments.count = count;
        arguments.comm = world[0];
        REQUIRE_OK(collective.call(arguments));
        CHECK(send == given);
        CHECK(recv.back() == -1);
        recv.pop_back();
        CHECK(recv == given);
      }
    }
  }
}

TEST_CASE("S3.5 S3.7 odd shards stand in the order of the ranks, as one array, and nothing behind it is written",
          "[threads][links]") {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    World world(ranks, configWithAlgorithm("all_gather:biring"));
    for (const size_t shard : {size_t{1}, size_t{3}, size_t{7}, size_t{13}, size_t{4097}, size_t{100003}}) {
      INFO(ranks << " ranks, shards of " << shard << " bytes");
      world.run([&](Self& self) {
        const auto n = static_cast<size_t>(self.ranks);
        Bytes mine(shard), all(n * shard + kMargin, kNotWritten);
        for (size_t i = 0; i < shard; ++i) mine[i] = valueOf(self.rank, i);
        const Bytes given = mine;
        EXPECT_OK(self, koloAllGather(mine.data(), all.data(), shard, koloUint8, self.comm, nullptr));
        EXPECT(self, mine == given);
        bool isRight = true;
        for (int rank = 0; rank < self.ranks; ++rank) {
          for (size_t i = 0; i < shard; ++i)
            isRight = isRight && all[static_cast<size_t>(rank) * shard + i] == valueOf(rank, i);
        }
        EXPECT(self, isRight);
        EXPECT(self, std::all_of(all.end() - kMargin, all.end(), [](unsigned char at) { return at == kNotWritten; }));
      });
    }
  }
}

// Its neighbours have called, and could write: the buffers of the rank that is late are in a window.
TEST_CASE("S3.3 nobody writes into a rank's buffer before that rank has called", "[threads][links]") {
  constexpr size_t kBytes = 50000;
  for (const char* algorithm : {"", "all_gather:biring", "all_gather:ring", "all_gather:one_shot"}) {
    World world(3, configWithAlgorithm(algorithm));
    std::atomic<int> entering{0};
    INFO("algorithm " << algorithm);
    world.run([&](Self& self) {
      void* memory = nullptr;
      koloWindow_t window = nullptr;
      EXPECT_OK(self, koloMemAlloc(&memory, 4 * kBytes));
      EXPECT_OK(self, koloWindowRegister(self.comm, memory, 4 * kBytes, &window));
      auto* const mine = static_cast<unsigned char*>(memory);
      auto* const all = mine + kBytes;
      for (size_t i = 0; i < kBytes; ++i) mine[i] = valueOf(self.rank, i);
      std::fill(all, all + 3 * kBytes, kNotWritten);
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
      if (self.rank == 2) {
        while (entering.load() < 2) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        EXPECT(self, std::all_of(all, all + 3 * kBytes, [](unsigned char at) { return at == kNotWritten; }));
      }
      ++entering;
      EXPECT_OK(self, koloAllGather(mine, all, kBytes, koloUint8, self.comm, nullptr));
      bool isRight = true;
      for (size_t i = 0; i < 3 * kBytes; ++i)
        isRight = isRight && all[i] == valueOf(static_cast<int>(i / kBytes), i % kBytes);
      EXPECT(self, isRight);
      EXPECT_OK(self, koloWindowDeregister(self.comm, window));
      EXPECT_OK(self, koloMemFree(memory));
    });
  }
}
