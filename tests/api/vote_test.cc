// Votes of 64 bits.
#include <cstdint>
#include <string>
#include <vector>

#include "subgroups.h"

using namespace kolo::test;

namespace {

void expectVote(Self& self, const std::vector<std::uint64_t>& words) {
  std::uint64_t any = 0, all = ~std::uint64_t{0}, gotAny = 1, gotAll = 1;
  for (const std::uint64_t word : words) {
    any |= word;
    all &= word;
  }
  EXPECT_OK(self, koloVote(words[static_cast<std::size_t>(self.rank)], &gotAny, &gotAll, self.comm));
  EXPECT(self, gotAny == any);
  EXPECT(self, gotAll == all);
}

}  // namespace

TEST_CASE("S4.10 a vote tells all ranks which of 64 bits some have set, and which all have") {
  for (const char* const transports : {static_cast<const char*>(nullptr), "tcp"}) {
    for (const int ranks : {1, 2, 3, 9}) {
      World world(ranks, configWithTransports(transports));
      world.run([&](Self& self) {
        std::uint64_t state = 88172645463325252u;  // xorshift, the same on all ranks
        for (int round = 0; round < 20; ++round) {
          std::vector<std::uint64_t> words(static_cast<std::size_t>(ranks));
          for (std::uint64_t& word : words) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word = round == 0 ? 0 : round == 1 ? ~std::uint64_t{0} : state | (state >> 32) << 32;
          }
          expectVote(self, words);
        }
      });
    }
  }
}

TEST_CASE("S4.10 whether there is a gradient is agreed on before its collective") {
  World world(3);
  world.run([](Self& self) {
    // Bit 0: of the first tensor, which only rank 1 has; bit 1: of the second one, which nobody has.
    std::uint64_t any = 0, all = 0;
    EXPECT_OK(self, koloVote(self.rank == 1 ? 1 : 0, &any, &all, self.comm));
    EXPECT(self, any == 1);
    EXPECT(self, all == 0);
    std::vector<float> gradient(5, self.rank == 1 ? 2.5F : 0.0F), sum(5);
    if ((any & 1) != 0)  // all ranks, those without one too
      EXPECT_OK(self, koloAllReduce(gradient.data(), sum.data(), 5, koloFloat32, koloSum, self.comm, nullptr));
    EXPECT(self, sum == std::vector<float>(5, 2.5F));
  });
}

TEST_CASE("S4.10 a vote goes on the header line, and keeps the order of operations") {
  World world(3);
  koloPlan_t plan{};
  REQUIRE_OK(koloCommGetPlan(world[0], koloCollectiveAllReduce, 2, koloUint64, koloBitOr, 0, &plan));
  CHECK(std::string(plan.algorithm) == "line");
  world.run([](Self& self) {
    koloStream_t stream = nullptr;
    EXPECT_OK(self, koloStreamCreate(&stream));
    for (int i = 0; i < 50; ++i) {
      int value = self.rank, sum = 0;
      std::uint64_t any = 0, all = 0;
      EXPECT_OK(self, koloAllReduce(&value, &sum, 1, koloInt32, koloSum, self.comm, stream));
      EXPECT_OK(self, koloVote(std::uint64_t{1} << self.rank, &any, &all, self.comm));
      EXPECT(self, any == 7);
      EXPECT(self, all == 0);
      EXPECT_OK(self, koloStreamSynchronize(stream));
      EXPECT(self, sum == 3);
    }
    EXPECT_OK(self, koloStreamDestroy(stream));
  });
}

TEST_CASE("S4.10 a vote that cannot be leaves the results alone") {
  World world(2);
  world.run([](Self& self) {
    std::uint64_t any = 7, all = 7;
    EXPECT_CODE(self, koloInvalidPointer, koloVote(1, nullptr, &all, self.comm));
    EXPECT_CODE(self, koloInvalidPointer, koloVote(1, &any, nullptr, self.comm));
    EXPECT_CODE(self, koloInvalidHandle, koloVote(1, &any, &all, nullptr));
    EXPECT_OK(self, koloGroupStart());
    EXPECT_CODE(self, koloInvalidUsage, koloVote(1, &any, &all, self.comm));
    EXPECT_CODE(self, koloInvalidUsage, koloGroupEnd());
    EXPECT_OK(self, koloSetMayWait(0));
    EXPECT_CODE(self, koloInProgress, koloVote(1, &any, &all, self.comm));
    EXPECT_OK(self, koloSetMayWait(1));
    EXPECT(self, any == 7 && all == 7);
    expectVote(self, {5, 6});
    EXPECT_CODE(self, koloMismatch,
                self.rank == 0 ? koloVote(1, &any, &all, self.comm) : koloBarrier(self.comm, nullptr));
    EXPECT(self, any == 7 && all == 7);
  });
  koloConfig_t config = defaultConfig();
  config.timeoutMs = 200;
  World alone(2, config);
  std::uint64_t any = 7, all = 7;
  CHECK_CODE(koloTimeout, koloVote(1, &any, &all, alone[0]));
  CHECK(messageHas("koloVote"));
  CHECK(any == 7);
  CHECK(all == 7);
}
