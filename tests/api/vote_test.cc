// Votes of 64 bits.
#include <cstdint>
#include <string>
#include <vector>

#include "each_links.h"

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
  withEachLinks([](const koloConfig_t& config) {
    for (const int ranks : {1, 2, 3, 9}) {
      World world(ranks, config);
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
  });
}

TEST_CASE("S4.10 whether there is a gradient is agreed on before its collective") {
  runOverEachLinks(3, [](Self& self) {
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

// Only a rank that has a result of the forward calls knows whether there is a gradient of it; the others have to know
// before they call backwards.
TEST_CASE("S4.10 reduce and broadcast, gather and scatter, send and receive: gradients go back if there are some") {
  constexpr int kRoot = 1, kSender = 2, kReceiver = 0;
  runOverEachLinks(3, [](Self& self) {
    const bool isRoot = self.rank == kRoot, isSender = self.rank == kSender, isReceiver = self.rank == kReceiver;
    for (std::uint64_t has = 0; has < 8; ++has) {  // bit 0: the sum, bit 1: what was gathered, bit 2: the message
      const int mine = 10 * (self.rank + 1);
      int sum = -1, message = -1;
      std::vector<int> gathered(3, -1);
      EXPECT_OK(self, koloReduce(&mine, &sum, 1, koloInt32, koloSum, kRoot, self.comm, nullptr));
      EXPECT_OK(self, koloGather(&mine, gathered.data(), 1, koloInt32, kRoot, self.comm, nullptr));
      if (isSender) EXPECT_OK(self, koloSend(&mine, 1, koloInt32, kReceiver, self.comm, nullptr));
      if (isReceiver) EXPECT_OK(self, koloRecv(&message, 1, koloInt32, kSender, self.comm, nullptr));
      EXPECT(self, sum == (isRoot ? 60 : -1));
      EXPECT(self, gathered == (isRoot ? std::vector<int>{10, 20, 30} : std::vector<int>(3, -1)));
      EXPECT(self, message == (isReceiver ? 30 : -1));
      const std::uint64_t own = isRoot ? 3 : isReceiver ? 4 : 0;
      std::uint64_t any = 0, all = 0;
      EXPECT_OK(self, koloVote(has & own, &any, &all, self.comm));
      EXPECT(self, any == has);
      EXPECT(self, all == 0);
      int ofSum = isRoot ? 7 : -1, ofMine = -1, ofMessage = isReceiver ? 9 : -1;
      const std::vector<int> ofGathered = {100, 101, 102};
      if ((any & 1) != 0) EXPECT_OK(self, koloBroadcast(&ofSum, &ofSum, 1, koloInt32, kRoot, self.comm, nullptr));
      if ((any & 2) != 0)
        EXPECT_OK(self, koloScatter(ofGathered.data(), &ofMine, 1, koloInt32, kRoot, self.comm, nullptr));
      if ((any & 4) != 0 && isReceiver)
        EXPECT_OK(self, koloSend(&ofMessage, 1, koloInt32, kSender, self.comm, nullptr));
      if ((any & 4) != 0 && isSender)
        EXPECT_OK(self, koloRecv(&ofMessage, 1, koloInt32, kReceiver, self.comm, nullptr));
      EXPECT(self, ofSum == (isRoot || (has & 1) != 0 ? 7 : -1));
      EXPECT(self, ofMine == ((has & 2) != 0 ? 100 + self.rank : -1));
      EXPECT(self, ofMessage == (isReceiver || (isSender && (has & 4) != 0) ? 9 : -1));
    }
  });
}

TEST_CASE("S4.10 the two ranks of a message agree by themselves on whether its gradient goes back") {
  runOverEachLinks(3, [](Self& self) {
    if (self.rank == 1) return;  // is asked nothing
    const bool isSender = self.rank == 2;
    koloComm_t pair = nullptr;
    EXPECT_OK(self, createGroup(self, {2, 0}, &pair, "2->0"));
    for (const bool hasGradient : {true, false, false, true}) {
      int value = isSender ? 5 : -1, gradient = isSender ? -1 : 50;
      EXPECT_OK(self, isSender ? koloSend(&value, 1, koloInt32, 1, pair, nullptr)
                               : koloRecv(&value, 1, koloInt32, 0, pair, nullptr));
      EXPECT(self, value == 5);
      std::uint64_t any = 0, all = 0;
      EXPECT_OK(self, koloVote(!isSender && hasGradient ? 1 : 0, &any, &all, pair));
      EXPECT(self, any == (hasGradient ? 1U : 0U));
      if (any != 0) {
        EXPECT_OK(self, isSender ? koloRecv(&gradient, 1, koloInt32, 1, pair, nullptr)
                                 : koloSend(&gradient, 1, koloInt32, 0, pair, nullptr));
      }
      EXPECT(self, gradient == (hasGradient || !isSender ? 50 : -1));
    }
    EXPECT_OK(self, koloCommDestroy(pair));
  });
}

// Calls whose results all ranks have: each rank knows of its own gradient only.
TEST_CASE("S4.10 broadcast, scatter and all-gather: ranks without a gradient give zeros, if some rank has one") {
  runOverEachLinks(3, [](Self& self) {
    constexpr int kRoot = 2;
    for (int mask = 0; mask < 8; ++mask) {  // of the ranks that have one
      const auto gradientOf = [mask](int rank) { return (mask >> rank & 1) != 0 ? static_cast<float>(1 << rank) : 0; };
      std::uint64_t any = 0, all = 0;
      EXPECT_OK(self, koloVote(static_cast<std::uint64_t>(mask >> self.rank & 1), &any, &all, self.comm));
      EXPECT(self, any == (mask != 0 ? 1U : 0U));
      EXPECT(self, all == (mask == 7 ? 1U : 0U));
      if (any == 0) continue;
      const float mine = gradientOf(self.rank);
      const std::vector<float> ofAll = {mine, 2 * mine, 3 * mine};
      float ofRoots = -1, ofGiven = -1;
      std::vector<float> ofParts(3, -1);
      EXPECT_OK(self, koloReduce(&mine, &ofRoots, 1, koloFloat32, koloSum, kRoot, self.comm, nullptr));
      EXPECT_OK(self, koloGather(&mine, ofParts.data(), 1, koloFloat32, kRoot, self.comm, nullptr));
      EXPECT_OK(self, koloReduceScatter(ofAll.data(), &ofGiven, 1, koloFloat32, koloSum, self.comm, nullptr));
      EXPECT(self, ofGiven == static_cast<float>(mask * (self.rank + 1)));
      if (self.rank != kRoot) continue;
      EXPECT(self, ofRoots == static_cast<float>(mask));
      EXPECT(self, ofParts == (std::vector<float>{gradientOf(0), gradientOf(1), gradientOf(2)}));
    }
  });
}

TEST_CASE("S4.10 one vote tells of 64 gradients, and one list holds those that some rank has") {
  runOverEachLinks(3, [](Self& self) {
    const auto has = [](int rank, std::size_t i) {
      return (i * 7 + static_cast<std::size_t>(rank) * 5 + i / 5) % 6 == 0;
    };
    std::uint64_t mine = 0, any = 0, all = 0;
    std::vector<std::vector<float>> gradients(64), sums(64);
    for (std::size_t i = 0; i < 64; ++i) {
      if (has(self.rank, i)) mine |= std::uint64_t{1} << i;
      gradients[i].assign(i + 1, has(self.rank, i) ? static_cast<float>(1 << self.rank) : 0.0F);
      sums[i].assign(i + 1, -1);
    }
    EXPECT_OK(self, koloVote(mine, &any, &all, self.comm));
    EXPECT(self, any != mine && any != 0 && any != ~std::uint64_t{0});
    std::vector<koloItem_t> items;
    for (std::size_t i = 0; i < 64; ++i) {
      if ((any >> i & 1) == 0) continue;
      koloItem_t item{};
      item.sendbuf = gradients[i].data();
      item.recvbuf = sums[i].data();
      item.count = i + 1;
      item.sendtype = item.transfertype = item.recvtype = koloFloat32;
      items.push_back(item);
    }
    EXPECT_OK(self, koloAllReduceList(items.data(), items.size(), koloSum, self.comm, nullptr));
    for (std::size_t i = 0; i < 64; ++i) {
      float wanted = 0;
      for (int rank = 0; rank < 3; ++rank) wanted += has(rank, i) ? static_cast<float>(1 << rank) : 0.0F;
      EXPECT(self, sums[i] == std::vector<float>(i + 1, wanted == 0 ? -1 : wanted));
    }
  });
}

TEST_CASE("S4.10 a vote goes on the header line, and keeps the order of operations", "[threads][links]") {
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
