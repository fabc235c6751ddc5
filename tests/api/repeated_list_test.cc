// Calls over the same arrays of items, again and again: each goes by what the items say then.
#include <algorithm>
#include <vector>

#include "support/items.h"
#include "support/ranks.h"

using namespace kolo::test;

namespace repeating {
namespace {

constexpr std::size_t kRoom = 64, kHalf = 32;  // of a buffer, and where its second item begins

// Two items of one rank, with new numbers in each call.
class Repeated {
 public:
  explicit Repeated(Self& self)
      : self_(self), items{intItem(input_.data(), output_.data(), 8),
                           intItem(input_.data() + kHalf, output_.data() + kHalf, 8)} {}

  // By sum or maximum. The items' results are right, and what is beside them stays.
  void reduce(koloRedOp_t op) {
    ++round_;
    for (std::size_t i = 0; i < kRoom; ++i) input_[i] = inputOf(self_.rank, i);
    for (std::vector<int>* const buffer : {&output_, &other_}) std::fill(buffer->begin(), buffer->end(), -1);
    EXPECT_OK(self_, koloAllReduceList(items, 2, op, self_.comm, nullptr));
    std::size_t written = 0;
    for (const koloItem_t& item : items) {
      const auto begin = static_cast<std::size_t>(static_cast<const int*>(item.sendbuf) - input_.data());
      const int* const result = static_cast<const int*>(item.recvbuf);
      for (std::size_t i = 0; i < item.count; ++i) EXPECT(self_, result[i] == resultOf(op, begin + i));
      written += item.count;
    }
    const auto untouched =
        std::count(output_.begin(), output_.end(), -1) + std::count(other_.begin(), other_.end(), -1);
    EXPECT(self_, untouched == static_cast<std::ptrdiff_t>(2 * kRoom - written));
  }
  void reduceTwice(koloRedOp_t op) {
    reduce(op);
    reduce(op);
  }
  int* other() { return other_.data(); }

 private:
  int inputOf(int rank, std::size_t i) const { return 100 * (rank + 1) + static_cast<int>(i) + round_; }
  int resultOf(koloRedOp_t op, std::size_t i) const {
    int result = 0;
    for (int rank = 0; rank < self_.ranks; ++rank) {
      const int theirs = inputOf(rank, i);
      result = op == koloSum ? result + theirs : std::max(result, theirs);
    }
    return result;
  }

  Self& self_;
  int round_ = 0;
  std::vector<int> input_ = std::vector<int>(kRoom), output_ = input_, other_ = input_;

 public:
  koloItem_t items[2];
};

TEST_CASE("S1.5 a list that is called again is what its items say then", "[links]") {
  World world(3);
  world.run([&](Self& self) {
    Repeated list(self);
    list.reduceTwice(koloSum);
    list.reduceTwice(koloMax);
    list.items[1].count = 5;
    list.reduceTwice(koloMax);
    list.items[0].recvbuf = list.other();
    list.reduceTwice(koloSum);
    EXPECT_OK(self, koloCommSetAlgorithm(self.comm, "all_reduce:ring"));
    list.reduceTwice(koloSum);
    list.items[1].count = 8;
    list.reduceTwice(koloSum);
    list.reduceTwice(koloMax);
    // What is wrong now is refused, as if it had never been right.
    list.items[1].recvbuf = list.items[0].recvbuf;
    EXPECT_CODE(self, koloInvalidArgument, koloAllReduceList(list.items, 2, koloSum, self.comm, nullptr));
    EXPECT(self, messageHas("the recvbuf of item 1 overlaps") || messageHas("the recvbuf of item 0 overlaps"));
  });
}

TEST_CASE("S1.5 S1.8 a list is no other collective's, and no other root's, of the same items") {
  World world(2);
  world.run([&](Self& self) {
    std::vector<int> input(16), output(16);
    const koloItem_t item = intItem(input.data(), output.data(), 8);
    for (int round = 0; round < 3; ++round) {
      for (const int root : {0, 1}) {
        for (std::size_t i = 0; i < input.size(); ++i) input[i] = 100 * self.rank + static_cast<int>(i) + round;
        EXPECT_OK(self, koloBroadcastList(&item, 1, root, self.comm, nullptr));
        EXPECT(self, output[7] == 100 * root + 7 + round);
        EXPECT_OK(self, koloAllGatherList(&item, 1, self.comm, nullptr));
        EXPECT(self, output[7] == 7 + round && output[15] == 107 + round);
        EXPECT_OK(self, koloReduceScatterList(&item, 1, koloSum, self.comm, nullptr));
        EXPECT(self, output[0] == 100 + 2 * (8 * self.rank + round));
      }
      EXPECT_CODE(self, koloInvalidRoot, koloBroadcastList(&item, 1, 2, self.comm, nullptr));
    }
  });
}

}  // namespace
}  // namespace repeating
