// Asynchronous handles: of collectives on a group that its name finds, and what it takes to wait for one that is done.
#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "subgroups.h"
#include "support/items.h"

using namespace kolo::test;

namespace {

// The members in the order of the group. What the first of them starts ends only when the others have come.
const std::vector<int> kExperts = {3, 1, 0};
constexpr std::size_t kExpertInts = 9;

// Element i of the input of a rank of the world; and the sum of all members' elements.
int expertInput(int rank, std::size_t i) { return 100 * rank + static_cast<int>(i); }
int expertSum(std::size_t i) {
  int sum = 0;
  for (const int rank : kExperts) sum += expertInput(rank, i);
  return sum;
}

// Collectives of one member of the group, all under way at a time.
class ExpertCalls {
 public:
  ExpertCalls(Self& self, koloComm_t group) : self_(self), group_(group), place_(placeIn(kExperts, self.rank)) {
    for (std::size_t i = 0; i < kExpertInts; ++i) input_[i] = expertInput(self.rank, i);
    if (place_ == kRoot) cast_ = 77;
  }

  void start() {
    const int* const input = input_.data();
    const std::size_t each = kExpertInts / kExperts.size();
    koloRequest_t* next = handles_.data();
    EXPECT_OK(self_, koloIallReduce(input, sums_.data(), kExpertInts, koloInt32, koloSum, group_, next++));
    EXPECT_OK(self_, koloIallGather(input, gathered_.data(), kExpertInts, koloInt32, group_, next++));
    EXPECT_OK(self_, koloIreduceScatter(input, scattered_.data(), each, koloInt32, koloSum, group_, next++));
    // To the member at place m, m + 1 ints of its own.
    const std::array<std::size_t, 3> to = {1, 2, 3};
    std::array<std::size_t, 3> from{};
    from.fill(static_cast<std::size_t>(place_) + 1);
    EXPECT_OK(self_, koloIallToAllv(input, to.data(), nullptr, exchanged_.data(), from.data(), nullptr, koloInt32,
                                    group_, next++));
    EXPECT_OK(self_, koloIbroadcast(&cast_, &cast_, 1, koloInt32, kRoot, group_, next++));
    const koloItem_t summed[] = {intItem(input, listSums_.data(), 4), intItem(input + 4, &listSums_[4], 5)};
    EXPECT_OK(self_, koloGroupStart());
    EXPECT_OK(self_, koloAllReduceList(summed, 2, koloSum, group_, nullptr));
    EXPECT_OK(self_, koloIgroupEnd(next++));
    const koloItem_t gathered[] = {intItem(input, listGathered_.data(), kExpertInts)};
    EXPECT_OK(self_, koloGroupStart());
    EXPECT_OK(self_, koloAllGatherList(gathered, 1, group_, nullptr));
    EXPECT_OK(self_, koloIgroupEnd(next++));
    const koloItem_t scattered[] = {intItem(input, listScattered_.data(), each)};
    EXPECT_OK(self_, koloGroupStart());
    EXPECT_OK(self_, koloReduceScatterList(scattered, 1, koloSum, group_, nullptr));
    EXPECT_OK(self_, koloIgroupEnd(next++));
  }
  bool areAllUnderWay() const {
    for (const koloRequest_t handle : handles_) {
      if (koloRequestTest(handle) != koloInProgress) return false;
    }
    return true;
  }
  // The last one first, and the others a second time when they are done.
  void wait() {
    for (std::size_t i = handles_.size(); i-- > 0;) EXPECT_OK(self_, koloRequestWait(handles_[i], -1));
    for (const koloRequest_t handle : handles_) {
      EXPECT_OK(self_, koloRequestWait(handle, 0));
      EXPECT_OK(self_, koloRequestFree(handle));
    }
  }
  void expectResults() const {
    const std::size_t each = kExpertInts / kExperts.size(), own = static_cast<std::size_t>(place_);
    bool isKept = true, isSummed = true, isGathered = true, isScattered = true, isExchanged = true;
    for (std::size_t i = 0; i < kExpertInts; ++i) {
      isKept = isKept && input_[i] == expertInput(self_.rank, i);
      isSummed = isSummed && sums_[i] == expertSum(i) && listSums_[i] == expertSum(i);
    }
    for (std::size_t i = 0; i < gathered_.size(); ++i) {
      const int wanted = expertInput(kExperts[i / kExpertInts], i % kExpertInts);
      isGathered = isGathered && gathered_[i] == wanted && listGathered_[i] == wanted;
    }
    for (std::size_t i = 0; i < each; ++i) {
      const int wanted = expertSum(own * each + i);
      isScattered = isScattered && scattered_[i] == wanted && listScattered_[i] == wanted;
    }
    for (std::size_t i = 0; i < kExperts.size() * (own + 1); ++i) {
      const int wanted = expertInput(kExperts[i / (own + 1)], own * (own + 1) / 2 + i % (own + 1));
      isExchanged = isExchanged && exchanged_[i] == wanted;
    }
    EXPECT(self_, isKept && isSummed);
    EXPECT(self_, isGathered && isScattered);
    EXPECT(self_, isExchanged && cast_ == 77);
  }

 private:
  static constexpr int kRoot = 1;

  Self& self_;
  koloComm_t group_;
  int place_;
  int cast_ = -1;
  std::array<koloRequest_t, 8> handles_{};
  std::array<int, kExpertInts> input_{}, sums_{}, listSums_{}, exchanged_{};
  std::array<int, 3 * kExpertInts> gathered_{}, listGathered_{};
  std::array<int, kExpertInts / 3> scattered_{}, listScattered_{};
};

}  // namespace

TEST_CASE("S1.9 calls on a group that its name finds give handles at once, which are waited for in any order",
          "[threads][links]") {
  World world(4);
  std::atomic<bool> hasFirstStarted{false};
  world.run([&](Self& self) {
    const int place = placeIn(kExperts, self.rank);
    if (place < 0) return;
    koloComm_t made = nullptr, group = nullptr;
    EXPECT_OK(self, createGroup(self, kExperts, &made, "experts"));
    EXPECT_OK(self, koloCommByName("experts", &group));
    EXPECT(self, group == made);
    // If a call of the first member waited for the others, it would wait for ever.
    while (place != 0 && !hasFirstStarted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ExpertCalls calls(self, group);
    calls.start();
    if (place == 0) EXPECT(self, calls.areAllUnderWay());
    hasFirstStarted = true;
    calls.wait();
    calls.expectResults();
    EXPECT_OK(self, koloCommDestroy(made));
  });
}

// Neither the other rank, which does nothing meanwhile, nor the communicator, in which another thread waits.
TEST_CASE("S1.9 a wait for a handle that is done waits for nothing, however often", "[threads]") {
  World world(2);
  std::atomic<bool> isOver{false};
  world.run([&](Self& self) {
    const int mine = self.rank + 1;
    int sum = 0, index = -1;
    koloRequest_t done = nullptr;
    EXPECT_OK(self, koloIallReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, &done));
    EXPECT_OK(self, koloRequestWait(done, -1));
    EXPECT(self, sum == 3);
    if (self.rank == 1) {
      while (!isOver) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    } else {
      std::vector<std::string> faults;
      std::thread other([&] {
        Self its{self.rank, self.ranks, self.comm, {}};
        EXPECT_OK(its, koloBarrier(its.comm, nullptr));
        faults = its.faults;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it waits by now
      constexpr int kTimes = 5000;
      int ended = 0;
      EXPECT_OK(self, koloSetMayWait(0));
      for (int i = 0; i < kTimes; ++i) {
        ended += koloRequestWait(done, -1) == koloSuccess ? 1 : 0;
        ended += koloRequestWait(done, 0) == koloSuccess ? 1 : 0;
        ended += koloRequestTest(done) == koloSuccess ? 1 : 0;
        ended += koloRequestWaitAny(1, &done, -1, &index) == koloSuccess && index == 0 ? 1 : 0;
      }
      EXPECT_OK(self, koloSetMayWait(1));
      isOver = true;
      other.join();
      self.faults.insert(self.faults.end(), faults.begin(), faults.end());
      EXPECT(self, ended == 4 * kTimes);
    }
    EXPECT_OK(self, koloRequestFree(done));
  });
}
