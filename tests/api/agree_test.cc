// Agreements, which need no communicator that works, and what a shrink has of them.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "support/ranks.h"
#include "support/settings.h"

using namespace kolo::test;

namespace {

void expectAgreement(Self& self, std::uint64_t mine, std::uint64_t all) {
  EXPECT_OK(self, koloCommAgree(self.comm, &mine));
  EXPECT(self, mine == all);
}

}  // namespace

TEST_CASE("ranks agree on the flags that all of them have, also when the communicator was revoked",
          "[threads][links]") {
  World world(4);
  world.run([](Self& self) {
    expectAgreement(self, ~(std::uint64_t{1} << self.rank), ~std::uint64_t{15});
    expectWorks(self);
    expectAgreement(self, ~std::uint64_t{0}, ~std::uint64_t{0});  // so all have done the work above
    if (self.rank == 3) EXPECT_OK(self, koloCommRevoke(self.comm, "enough"));
    EXPECT(self, awaitFailure(self.comm) == koloAborted);
    for (std::uint64_t round = 0; round < 20; ++round)
      expectAgreement(self, round + (self.rank == 2 ? 0 : 1024), round);
    int failed[4] = {}, count = -1;
    EXPECT_OK(self, koloCommFailedRanks(self.comm, failed, &count));
    EXPECT(self, count == 0);
  });
}

TEST_CASE("an agreement that meets a shrink is a mismatch for all, and both can be called again") {
  World world(3);
  world.run([](Self& self) {
    std::uint64_t flags = 5;
    koloComm_t rest = nullptr;
    if (self.rank == 1) {
      EXPECT_CODE(self, koloMismatch, koloCommShrink(self.comm, nullptr, 0, &rest, nullptr));
    } else {
      EXPECT_CODE(self, koloMismatch, koloCommAgree(self.comm, &flags));
    }
    EXPECT(self, messageHas("rank 0 calls koloCommAgree, rank 1 calls koloCommShrink"));
    EXPECT(self, flags == 5);
    expectAgreement(self, 4, 4);
    EXPECT_OK(self, koloCommShrink(self.comm, nullptr, 0, &rest, nullptr));
    EXPECT_OK(self, koloCommDestroy(rest));
    expectWorks(self);
  });
}

TEST_CASE("ranks that have begun different numbers of splits shrink", "[links]") {
  World world(3);
  world.run([](Self& self) {
    koloComm_t none = nullptr, rest = nullptr;
    if (self.rank != 2) {
      EXPECT_CODE(self, koloAborted, koloCommSplit(self.comm, 0, 0, &none, nullptr));
    } else {
      EXPECT_OK(self, koloCommRevoke(self.comm, "no split"));
    }
    EXPECT_OK(self, koloCommShrink(self.comm, nullptr, 0, &rest, nullptr));
    Self its{self.rank, 3, rest, {}};
    expectWorks(its);
    EXPECT(self, its.faults.empty());
    EXPECT_OK(self, koloCommDestroy(rest));
  });
}

TEST_CASE("an abort ends the agreements and shrinks of the other ranks at once, who then shrink without that rank",
          "[threads][links]") {
  World world(3);
  std::atomic<int> begun{0};
  world.run([&](Self& self) {
    if (self.rank == 2) {
      while (begun < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_OK(self, koloCommAbort(self.comm));
      return;
    }
    std::uint64_t flags = 5;
    koloComm_t rest = nullptr;
    const int aborted = 2;
    ++begun;
    EXPECT_CODE(self, koloAborted, koloCommAgree(self.comm, &flags));
    EXPECT(self, messageHas("rank 2 called koloCommAbort"));
    EXPECT(self, flags == 5);
    EXPECT_CODE(self, koloAborted, koloCommShrink(self.comm, nullptr, 0, &rest, nullptr));
    EXPECT(self, messageHas("rank 2 called koloCommAbort"));
    EXPECT_OK(self, koloCommShrink(self.comm, &aborted, 1, &rest, nullptr));
    Self its{self.rank, 2, rest, {}};
    expectWorks(its);
    EXPECT(self, its.faults.empty());
    EXPECT_OK(self, koloCommDestroy(rest));
    EXPECT_CODE(self, koloAborted, koloCommAgree(self.comm, &flags));
  });
}

TEST_CASE("an agreement names the living ranks that do not come, and leaves the flags alone") {
  withSettings({{"KOLO_INIT_TIMEOUT_MS", "500"}}, [] {
    World world(3);
    world.run([](Self& self) {
      std::uint64_t flags = 7;
      if (self.rank == 2) return;
      EXPECT_CODE(self, koloTimeout, koloCommAgree(self.comm, &flags));
      EXPECT(self, messageHas("rank 2") || messageHas("ranks "));
      EXPECT(self, messageHas("KOLO_INIT_TIMEOUT_MS"));
      EXPECT(self, flags == 7);
    });
  });
}
