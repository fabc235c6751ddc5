// Groups that their members make alone, their names, and the translation of ranks.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "each_links.h"

using namespace kolo::test;

namespace {

void makeAndExpect(Self& self, const std::vector<int>& ranks) {
  if (placeIn(ranks, self.rank) < 0) return;
  koloComm_t group = nullptr;
  EXPECT_OK(self, createGroup(self, ranks, &group));
  if (group == nullptr) return;
  expectIsOf(self, group, ranks);
  EXPECT_OK(self, koloCommDestroy(group));
}

void expectOrderDefinesRanks(const World& world, const std::vector<int>& ranks) {
  world.run([&](Self& self) {
    if (placeIn(ranks, self.rank) >= 0) {
      const int root = ranks.front();
      koloComm_t group = nullptr;
      EXPECT_OK(self, createGroup(self, ranks, &group));
      expectIsOf(self, group, ranks);
      int value = 100 + self.rank;
      EXPECT_OK(self, koloBroadcast(&value, &value, 1, koloInt32, 0, group, nullptr));
      EXPECT(self, value == 100 + root);
      int sum = -1;
      std::vector<int> gathered(ranks.size(), -1);
      EXPECT_OK(self, koloReduce(&self.rank, &sum, 1, koloInt32, koloSum, 0, group, nullptr));
      EXPECT_OK(self, koloGather(&self.rank, gathered.data(), 1, koloInt32, 0, group, nullptr));
      EXPECT(self, sum == (self.rank == root ? std::accumulate(ranks.begin(), ranks.end(), 0) : -1));
      EXPECT(self, gathered == (self.rank == root ? ranks : std::vector<int>(ranks.size(), -1)));
      EXPECT_OK(self, koloCommDestroy(group));
    }
    expectWorks(self);
  });
}

}  // namespace

TEST_CASE("S4.2 the order of a group's list defines its ranks, and roots and gathers follow it", "[links]") {
  withEachLinks([](const koloConfig_t& config) {
    expectOrderDefinesRanks(World(2, config), {1, 0});
    expectOrderDefinesRanks(World(4, config), {3, 0, 2});  // over mixed links, rank 3 maps the memory of rank 2 alone
  });
}

TEST_CASE("S2.6 groups of any ranks are made by their members alone, and map ranks to places") {
  runOverEachLinks(7, [](Self& self) {
    for (const std::vector<int>& ranks : std::vector<std::vector<int>>{
             {0, 2, 4, 6}, {0, 1, 3, 5}, {6, 1}, {3}, {5, 3, 1}, {6, 5, 4, 3, 2, 1, 0}, {0, 1, 2, 3, 4, 5, 6}}) {
      makeAndExpect(self, ranks);
    }
    expectWorks(self);
  });
}

TEST_CASE("S2.6 ranks are translated between communicators, and those that are not in the other give KOLO_RANK_NONE") {
  World world(7);
  world.run([](Self& self) {
    koloComm_t even = nullptr, some = nullptr;
    if (self.rank % 2 == 0) EXPECT_OK(self, createGroup(self, {6, 4, 2, 0}, &even));
    if (placeIn({0, 1, 3, 4}, self.rank) >= 0) EXPECT_OK(self, createGroup(self, {0, 1, 3, 4}, &some));
    const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6};
    std::vector<int> out(7, -9);
    if (even != nullptr) {
      EXPECT_OK(self, koloCommTranslateRanks(self.comm, all.data(), 7, even, out.data()));
      EXPECT(self, (out == std::vector<int>{3, KOLO_RANK_NONE, 2, KOLO_RANK_NONE, 1, KOLO_RANK_NONE, 0}));
    }
    if (even != nullptr && some != nullptr) {
      const std::vector<int> four = {3, 2, 1, 0};
      out.assign(4, -9);
      EXPECT_OK(self, koloCommTranslateRanks(even, four.data(), 4, some, out.data()));
      EXPECT(self, (out == std::vector<int>{0, KOLO_RANK_NONE, 3, KOLO_RANK_NONE}));
      const int outside = 4;
      EXPECT_CODE(self, koloInvalidRank, koloCommTranslateRanks(even, &outside, 1, some, out.data()));
      EXPECT_CODE(self, koloInvalidCount, koloCommTranslateRanks(even, &outside, -1, some, out.data()));
      EXPECT_CODE(self, koloInvalidPointer, koloCommTranslateRanks(even, nullptr, 1, some, out.data()));
      EXPECT_OK(self, koloCommTranslateRanks(even, nullptr, 0, some, nullptr));
    }
    for (const koloComm_t comm : {even, some}) {
      if (comm != nullptr) EXPECT_OK(self, koloCommDestroy(comm));
    }
  });
  World other(1);
  const int zero = 0;
  int out = -9;
  CHECK_CODE(koloInvalidArgument, koloCommTranslateRanks(world[0], &zero, 1, other[0], &out));
  CHECK(messageHas("different unique ids"));
  CHECK(out == -9);
}

TEST_CASE("S2.6 groups of groups, of splits and of more ranks than cores", "[threads]") {
  World world(12);
  world.run([](Self& self) {
    koloComm_t half = nullptr, part = nullptr;
    EXPECT_OK(self, koloCommSplit(self.comm, self.rank % 2, -self.rank, &half, nullptr));  // 10, 8, .. and 11, 9, ..
    const int list[] = {4, 0, 2};
    int place = -1;
    EXPECT_OK(self, koloCommUserRank(half, &place));
    if (place % 2 == 0) {
      EXPECT_OK(self, koloCommCreateGroup(half, list, 3, nullptr, &part, nullptr));
      const int odd = self.rank % 2;
      expectIsOf(self, part, {2 + odd, 10 + odd, 6 + odd});
      EXPECT_OK(self, koloCommDestroy(half));
      koloComm_t pair = nullptr;
      const int two[] = {2, 1};
      int mine = -1;
      EXPECT_OK(self, koloCommUserRank(part, &mine));
      if (mine > 0) {
        EXPECT_OK(self, koloCommCreateGroup(part, two, 2, nullptr, &pair, nullptr));
        EXPECT_OK(self, koloCommDestroy(part));
        expectIsOf(self, pair, {6 + odd, 10 + odd});
        EXPECT_OK(self, koloCommDestroy(pair));
      } else {
        EXPECT_OK(self, koloCommDestroy(part));
      }
    } else {
      EXPECT_OK(self, koloCommDestroy(half));
    }
    expectWorks(self);
  });
}

TEST_CASE("S4.2 the same group made twice is the same one, until its last owner has destroyed it") {
  runOverEachLinks(3, [](Self& self) {
    if (self.rank == 1) return;
    koloComm_t first = nullptr, second = nullptr, named = nullptr, turned = nullptr, again = nullptr;
    EXPECT_OK(self, createGroup(self, {2, 0}, &first));
    EXPECT_OK(self, createGroup(self, {2, 0}, &second));
    EXPECT_OK(self, createGroup(self, {2, 0}, &named, "another"));
    EXPECT_OK(self, createGroup(self, {0, 2}, &turned));
    EXPECT(self, first == second);
    EXPECT(self, named != first);
    EXPECT(self, turned != first);
    EXPECT_OK(self, koloCommDestroy(first));
    expectIsOf(self, second, {2, 0});
    EXPECT_OK(self, koloCommDestroy(second));
    int count = 0;
    EXPECT_CODE(self, koloInvalidHandle, koloCommCount(second, &count));
    EXPECT_CODE(self, koloInvalidHandle, koloCommDestroy(second));
    expectIsOf(self, named, {2, 0});
    expectIsOf(self, turned, {0, 2});
    EXPECT_OK(self, createGroup(self, {2, 0}, &again));
    EXPECT(self, again != first);
    expectIsOf(self, again, {2, 0});
    for (const koloComm_t comm : {named, turned, again}) EXPECT_OK(self, koloCommDestroy(comm));
  });
}

TEST_CASE("S4.2 a group that one member has destroyed, or that has failed, is made anew", "[threads][links]") {
  World world(2);
  world.run([](Self& self) {
    koloComm_t old = nullptr, fresh = nullptr, last = nullptr;
    EXPECT_OK(self, createGroup(self, {1, 0}, &old, "g"));
    if (self.rank == 1) EXPECT_OK(self, koloCommDestroy(old));
    EXPECT_OK(self, createGroup(self, {1, 0}, &fresh, "g"));
    EXPECT(self, self.rank == 1 || fresh != old);
    expectIsOf(self, fresh, {1, 0});
    if (self.rank == 0) EXPECT_OK(self, koloCommDestroy(old));
    if (self.rank == 0) EXPECT_OK(self, koloCommAbort(fresh));
    if (self.rank == 1) EXPECT_CODE(self, koloAborted, koloBarrier(fresh, nullptr));
    EXPECT_OK(self, createGroup(self, {1, 0}, &last, "g"));
    expectIsOf(self, last, {1, 0});
    koloComm_t found = nullptr;
    EXPECT_OK(self, koloCommByName("g", &found));  // not the one that has failed
    EXPECT(self, found == last);
    if (self.rank == 1) EXPECT_OK(self, koloCommDestroy(fresh));
    EXPECT_OK(self, koloCommDestroy(last));
    expectWorks(self);
  });
}

TEST_CASE("S4.2 owners of one group come and go in several threads", "[threads]") {
  World world(2);
  world.run([](Self& self) {
    koloComm_t kept = nullptr;
    EXPECT_OK(self, createGroup(self, {0, 1}, &kept));
    for (int round = 0; round < 10; ++round) {
      std::vector<koloComm_t> owners(3);
      for (koloComm_t& owner : owners) EXPECT_OK(self, createGroup(self, {0, 1}, &owner));
      std::atomic<int> destroyed{0};
      std::vector<std::thread> threads;
      for (const koloComm_t owner : owners)
        threads.emplace_back([&destroyed, owner] { destroyed += koloCommDestroy(owner) == koloSuccess ? 1 : 0; });
      for (std::thread& thread : threads) thread.join();
      EXPECT(self, destroyed == 3);
      EXPECT(self, std::all_of(owners.begin(), owners.end(), [&](koloComm_t owner) { return owner == kept; }));
    }
    expectIsOf(self, kept, {0, 1});
    EXPECT_OK(self, koloCommDestroy(kept));
  });
}

TEST_CASE("S1.9 groups are addressed by name") {
  World world(4);
  world.run([](Self& self) {
    // Disjoint groups may have one name: each rank is in one of them.
    const std::vector<int> ranks = self.rank < 2 ? std::vector<int>{1, 0} : std::vector<int>{2, 3};
    koloComm_t group = nullptr, found = nullptr;
    EXPECT_OK(self, createGroup(self, ranks, &group, "tensor parallel"));
    EXPECT_OK(self, koloCommByName("tensor parallel", &found));
    EXPECT(self, found == group);
    expectIsOf(self, found, ranks);
    koloConfig_t config = defaultConfig();
    config.name = "named by its configuration";
    koloComm_t split = nullptr, other = nullptr;
    EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &split, &config));
    EXPECT_OK(self, koloCommByName("named by its configuration", &found));
    EXPECT(self, found == split);
    EXPECT_OK(self, koloCommCreateGroup(split, ranks.data(), 2, "", &other, &config));
    EXPECT_CODE(self, koloInvalidUsage, koloCommByName("named by its configuration", &found));
    EXPECT(self, messageHas("the calling thread has made 2 of them"));
    EXPECT_OK(self, koloCommDestroy(other));
    EXPECT_OK(self, koloCommDestroy(split));
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));  // those of the other threads are gone too
    EXPECT_CODE(self, koloInvalidArgument, koloCommByName("named by its configuration", &found));
    EXPECT(self, messageHas("no communicator of this process has the name"));
    EXPECT_CODE(self, koloInvalidPointer, koloCommByName(nullptr, &found));
    EXPECT_CODE(self, koloInvalidPointer, koloCommByName("x", nullptr));
    EXPECT_OK(self, koloCommDestroy(group));
  });
  koloComm_t found = nullptr;
  World single(1, [] {
    koloConfig_t config = defaultConfig();
    config.name = "single";
    return config;
  }());
  std::thread([&] { CHECK_CODE(koloSuccess, koloCommByName("single", &found)); }).join();  // made by another thread
  CHECK(found == single[0]);
}

TEST_CASE("S4.2 lists that cannot be are refused before anything is sent") {
  World world(3);
  const koloComm_t comm = world[1];
  koloComm_t made = nullptr;
  const auto create = [&](std::vector<int> ranks) {
    return koloCommCreateGroup(comm, ranks.data(), static_cast<int>(ranks.size()), nullptr, &made, nullptr);
  };
  CHECK_CODE(koloDuplicateRank, create({0, 1, 0}));
  CHECK(messageHas("ranks has rank 0 twice"));
  CHECK_CODE(koloInvalidRank, create({1, 3}));
  CHECK(messageHas("ranks has 3, expected ranks 0..2"));
  CHECK_CODE(koloInvalidRank, create({-1, 1}));
  CHECK_CODE(koloInvalidUsage, create({0, 2}));
  CHECK(messageHas("rank 1 is not in the list of ranks (0, 2)"));
  const int ranks[] = {1};
  CHECK_CODE(koloInvalidCount, koloCommCreateGroup(comm, ranks, 0, nullptr, &made, nullptr));
  CHECK_CODE(koloInvalidCount, koloCommCreateGroup(comm, ranks, 4, nullptr, &made, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommCreateGroup(comm, nullptr, 1, nullptr, &made, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommCreateGroup(comm, ranks, 1, nullptr, nullptr, nullptr));
  CHECK_CODE(koloInvalidHandle, koloCommCreateGroup(nullptr, ranks, 1, nullptr, &made, nullptr));
  REQUIRE_OK(koloGroupStart());
  CHECK_CODE(koloInvalidUsage, koloCommCreateGroup(comm, ranks, 1, nullptr, &made, nullptr));
  CHECK_CODE(koloInvalidUsage, koloGroupEnd());
  CHECK(made == nullptr);
  world.run([](Self& self) { expectWorks(self); });
}

TEST_CASE("S4.2 members that disagree on the list, or on the name, are all told, and the parent goes on") {
  struct Case {
    std::vector<int> one, other;
    const char *oneName, *otherName;
    const char* words;
  };
  for (const Case& each :
       {Case{{0, 1}, {1, 0}, nullptr, nullptr, "says ranks 1, 0"}, Case{{0, 1}, {0, 1, 2}, "g", "g", "says ranks 0-2"},
        Case{{2, 0, 1}, {1, 0}, "g", "h", "says ranks 2, 0-1"}, Case{{0, 1}, {0, 1}, "g", "h", "calls it \"g\""}}) {
    World world(3);
    world.run([&](Self& self) {
      if (self.rank == 2) return;
      koloComm_t group = nullptr;
      const bool isOne = self.rank == 0;
      EXPECT_CODE(self, koloMismatch,
                  createGroup(self, isOne ? each.one : each.other, &group, isOne ? each.oneName : each.otherName));
      EXPECT(self, group == nullptr);
      EXPECT(self, messageHas("a group of ranks"));
      if (self.rank == 1) EXPECT(self, messageHas(each.words));
      EXPECT_OK(self, createGroup(self, {1, 0}, &group, "g"));
      expectIsOf(self, group, {1, 0});
      EXPECT_OK(self, koloCommDestroy(group));
    });
    world.run([](Self& self) { expectWorks(self); });
  }
}

TEST_CASE("S4.2 a member whose configuration is not valid tells the others why") {
  World world(3);
  world.run([](Self& self) {
    koloConfig_t config = defaultConfig();
    if (self.rank == 2) config.algorithm = "all_reduce:nonsense";
    const int ranks[] = {2, 1};
    koloComm_t group = nullptr;
    if (self.rank == 0) return;
    EXPECT_CODE(self, koloInvalidArgument, koloCommCreateGroup(self.comm, ranks, 2, "g", &group, &config));
    EXPECT(self, messageHas("nonsense"));
    if (self.rank == 1) EXPECT(self, messageHas("on rank 2"));
    EXPECT_OK(self, koloCommCreateGroup(self.comm, ranks, 2, "g", &group, nullptr));
    expectIsOf(self, group, {2, 1});
    EXPECT_OK(self, koloCommDestroy(group));
  });
}

TEST_CASE("S4.2 a member that never comes ends the others' wait in time, and a later attempt succeeds") {
  extendDeadline(std::chrono::seconds(60));
  // A quarter of it is what a link may take, for which a busy machine may need a while.
  withSettings({{"KOLO_INIT_TIMEOUT_MS", "5000"}}, [] {
    for (const char* const transports : {static_cast<const char*>(nullptr), "tcp"}) {
      World world(4, configWithTransports(transports));
      world.run([](Self& self) {
        if (self.rank == 0) return;
        koloComm_t group = nullptr;
        const std::vector<int> ranks = {3, 1, 2};
        if (self.rank != 3) {
          const auto begin = std::chrono::steady_clock::now();
          EXPECT_CODE(self, koloTimeout, createGroup(self, ranks, &group));
          EXPECT(self, messageHas("KOLO_INIT_TIMEOUT_MS"));
          EXPECT(self, messageHas("rank 3") || messageHas("ranks"));
          EXPECT_WITHIN(self, std::chrono::seconds(20), begin);
        }
      });
      world.run([](Self& self) { makeAndExpect(self, {3, 1, 2}); });
      world.run([](Self& self) { expectWorks(self); });
    }
  });
}

TEST_CASE("S4.2 the abort of the parent ends the wait for a member", "[threads]") {
  World world(3);
  world.run([](Self& self) {
    koloComm_t group = nullptr;
    if (self.rank == 2) {
      EXPECT_OK(self, koloCommAbort(self.comm));
      self.comm = nullptr;
    } else {
      EXPECT_CODE(self, koloAborted, createGroup(self, {0, 1, 2}, &group));
      EXPECT(self, messageHas("rank 2 called koloCommAbort"));
    }
  });
  world[2] = nullptr;
}
