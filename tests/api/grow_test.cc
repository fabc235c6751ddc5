// Growing: who may join by which id, and who is told why when something does not fit. New processes are threads here.
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/ranks.h"
#include "support/settings.h"

using namespace kolo::test;

namespace {

void expectGrown(Self& self, koloComm_t grown, int rank, int ranks) {
  int itsRank = -1, itsRanks = -1;
  EXPECT_OK(self, koloCommUserRank(grown, &itsRank));
  EXPECT_OK(self, koloCommCount(grown, &itsRanks));
  EXPECT(self, itsRank == rank && itsRanks == ranks);
  Self its{rank, ranks, grown, {}};
  expectWorks(its);
  for (const std::string& fault : its.faults) self.faults.push_back(fault);
}

// Two ranks, of which rank 0 has made an id, and some that are new.
struct Growth {
  World world{2};
  koloUniqueId id{};

  Growth() { REQUIRE_OK(koloCommGetUniqueId(world[0], &id)); }
  // The new ones have no communicator.
  void run(int added, const std::function<void(Self&)>& function) {
    std::vector<koloComm_t> comms = world.comms();
    comms.resize(comms.size() + static_cast<std::size_t>(added), KOLO_COMM_NULL);
    runOn(comms, function);
  }
  const koloUniqueId* idFor(const Self& self) const { return self.rank == 1 ? nullptr : &id; }
};

int oldOrNew(const Self& self) { return self.comm != KOLO_COMM_NULL ? -1 : self.rank; }

}  // namespace

TEST_CASE("a communicator grows, its ranks keep their numbers, and it stays as it is", "[threads][links]") {
  Growth growth;
  growth.run(2, [&](Self& self) {
    koloComm_t grown = nullptr;
    EXPECT_OK(self, koloCommGrow(self.comm, 4, growth.idFor(self), oldOrNew(self), &grown, nullptr));
    expectGrown(self, grown, self.rank, 4);
    if (self.comm != KOLO_COMM_NULL) {
      Self old{self.rank, 2, self.comm, {}};
      expectWorks(old);
      EXPECT(self, old.faults.empty());
    }
    expectGrown(self, grown, self.rank, 4);
    EXPECT_OK(self, koloCommDestroy(grown));
  });
}

TEST_CASE("what was grown grows again") {
  Growth growth;
  koloUniqueId second{};
  std::atomic<bool> isMade{false};
  growth.run(2, [&](Self& self) {
    koloComm_t three = nullptr, four = nullptr;
    if (self.rank < 3) EXPECT_OK(self, koloCommGrow(self.comm, 3, growth.idFor(self), oldOrNew(self), &three, nullptr));
    if (self.rank == 2) {
      EXPECT_OK(self, koloCommGetUniqueId(three, &second));
      isMade = true;
    }
    while (!isMade) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const bool hasId = self.rank >= 2;
    const int rank = self.rank == 3 ? 3 : -1;
    EXPECT_OK(self, koloCommGrow(three, 4, hasId ? &second : nullptr, rank, &four, nullptr));
    expectGrown(self, four, self.rank, 4);
    if (three != nullptr) EXPECT_OK(self, koloCommDestroy(three));
    EXPECT_OK(self, koloCommDestroy(four));
  });
}

TEST_CASE("ranks that disagree on how a communicator grows all say so, the new ones too, and it goes on") {
  Growth growth;
  growth.run(1, [&](Self& self) {
    koloComm_t grown = nullptr;
    const int ranks = self.rank == 1 ? 4 : 3;
    const koloResult_t expected = self.rank == 2 ? koloRemoteError : koloMismatch;
    EXPECT_CODE(self, expected, koloCommGrow(self.comm, ranks, growth.idFor(self), oldOrNew(self), &grown, nullptr));
    EXPECT(self, messageHas("rank 0 gives 3, rank 1 gives 4"));
    EXPECT(self, grown == nullptr);
    if (self.rank != 2) {
      Self old{self.rank, 2, self.comm, {}};
      expectWorks(old);
      EXPECT(self, old.faults.empty());
    }
  });
}

TEST_CASE("without an id, with two, or with one of another kind, no communicator grows") {
  Growth growth;
  World twin(2);
  koloUniqueId other{}, plain{}, another{};
  REQUIRE_OK(koloCommGetUniqueId(twin[0], &another));
  REQUIRE_OK(koloCommGetUniqueId(growth.world[1], &other));
  REQUIRE_OK(koloGetUniqueId(&plain));
  growth.world.run([&](Self& self) {
    koloComm_t grown = nullptr;
    EXPECT_CODE(self, koloInvalidArgument, koloCommGrow(self.comm, 3, nullptr, -1, &grown, nullptr));
    EXPECT(self, messageHas("expected one of koloCommGetUniqueId"));
    const koloUniqueId* const mine = self.rank == 0 ? &growth.id : &other;
    EXPECT_CODE(self, koloMismatch, koloCommGrow(self.comm, 3, mine, self.rank, &grown, nullptr));
    EXPECT(self, messageHas("ranks 0 and 1 of communicator"));
    EXPECT_CODE(self, koloInvalidArgument, koloCommGrow(self.comm, 3, &plain, -1, &grown, nullptr));
    EXPECT(self, messageHas("not of koloCommGetUniqueId"));
    expectWorks(self);
    EXPECT_CODE(self, koloInvalidArgument, koloCommGrow(self.comm, 3, &another, -1, &grown, nullptr));
    EXPECT(self, messageHas("not of koloCommGetUniqueId"));
    // The id's own job has not heard of that.
    EXPECT_OK(self, koloCommInitRank(&grown, 2, plain, self.rank));
    EXPECT_OK(self, koloCommDestroy(grown));
  });
  koloComm_t made = nullptr;
  CHECK_CODE(koloInvalidArgument, koloCommGrow(KOLO_COMM_NULL, 3, &plain, 2, &made, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommGrow(KOLO_COMM_NULL, 3, nullptr, 2, &made, nullptr));
  CHECK_CODE(koloInvalidArgument, koloCommInitRank(&made, 3, other, 2));
  CHECK(messageHas("koloCommGrow"));
}

TEST_CASE("a new process that claims an old rank's number is refused, and may come again with another") {
  Growth growth;
  growth.run(1, [&](Self& self) {
    koloComm_t grown = nullptr;
    if (self.rank == 2) {
      for (const int taken : {0, 1, 3, -1}) {
        EXPECT_CODE(self, koloInvalidRank, koloCommGrow(KOLO_COMM_NULL, 3, &growth.id, taken, &grown, nullptr));
        EXPECT(self, messageHas("expected 2..2: the first 2 are those of the communicator that grows"));
      }
      EXPECT_CODE(self, koloInvalidRankCount, koloCommGrow(KOLO_COMM_NULL, 2, &growth.id, 1, &grown, nullptr));
    } else {
      EXPECT_CODE(self, koloInvalidRank, koloCommGrow(self.comm, 3, &growth.id, 2, &grown, nullptr));
      EXPECT_CODE(self, koloInvalidRankCount, koloCommGrow(self.comm, 2, &growth.id, -1, &grown, nullptr));
    }
    EXPECT_OK(self, koloCommGrow(self.comm, 3, growth.idFor(self), oldOrNew(self), &grown, nullptr));
    expectGrown(self, grown, self.rank, 3);
    EXPECT_OK(self, koloCommDestroy(grown));
  });
}

TEST_CASE("a new process that expects another number of ranks ends the growth of all, who print both") {
  Growth growth;
  growth.run(1, [&](Self& self) {
    koloComm_t grown = nullptr;
    const int ranks = self.rank == 2 ? 4 : 3;
    EXPECT_CODE(self, koloInvalidRankCount,
                koloCommGrow(self.comm, ranks, growth.idFor(self), oldOrNew(self), &grown, nullptr));
    EXPECT(self, messageHas("says 3") && messageHas("says 4"));
  });
}

TEST_CASE("a new process that does not come is named, and the communicator goes on") {
  withSettings({{"KOLO_INIT_TIMEOUT_MS", "1000"}}, [] {
    Growth growth;
    growth.world.run([&](Self& self) {
      koloComm_t grown = nullptr;
      EXPECT_CODE(self, koloTimeout, koloCommGrow(self.comm, 4, growth.idFor(self), -1, &grown, nullptr));
      EXPECT(self, messageHas("ranks 2-3 of 4 have not joined within 1000 ms (KOLO_INIT_TIMEOUT_MS)"));
      expectWorks(self);
    });
  });
}

TEST_CASE("a communicator that has failed does not grow, and new processes are told why") {
  Growth growth;
  REQUIRE_OK(koloCommRevoke(growth.world[1], "no more"));
  growth.run(1, [&](Self& self) {
    koloComm_t grown = nullptr;
    const koloResult_t expected = self.rank == 2 ? koloRemoteError : koloAborted;
    if (self.rank != 2) EXPECT(self, awaitFailure(self.comm) == koloAborted);
    EXPECT_CODE(self, expected, koloCommGrow(self.comm, 3, growth.idFor(self), oldOrNew(self), &grown, nullptr));
    EXPECT(self, messageHas("rank 1 called koloCommRevoke"));
    koloUniqueId id{};
    if (self.rank != 2) EXPECT_CODE(self, koloAborted, koloCommGetUniqueId(self.comm, &id));
  });
}

TEST_CASE("the abort of a communicator ends its growth, for which a new process is awaited", "[threads]") {
  Growth growth;
  std::atomic<int> begun{0};
  growth.world.run([&](Self& self) {
    std::thread aborter;
    if (self.rank == 0) {
      aborter = std::thread([&] {
        while (begun < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK_CODE(koloSuccess, koloCommAbort(self.comm));
      });
    }
    koloComm_t grown = nullptr;
    ++begun;
    const koloResult_t result = koloCommGrow(self.comm, 3, growth.idFor(self), -1, &grown, nullptr);
    // The call may come behind the abort. Rank 1 hears of that by the communicator, or of its consequence by the id.
    if (self.rank == 0) EXPECT(self, result == koloAborted || result == koloInvalidHandle);
    if (self.rank == 1) EXPECT(self, result == koloAborted || result == koloRemoteError);
    EXPECT(self, result == koloInvalidHandle || messageHas("koloCommAbort") || messageHas("while ranks were joining"));
    if (aborter.joinable()) aborter.join();
  });
}
