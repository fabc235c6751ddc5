// In which order algorithms fold, to the bit: sums and products of rough numbers against a fold in the stated order, by
// a loop of this file. How the rings cut is worked out here too, with none of the library's code.
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "support/ranks.h"

using namespace kolo::test;

namespace {

using Floats = std::vector<float>;

// Products of up to five stay in the range, and hardly a sum is exact.
Floats inputOf(int rank, size_t count) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 77);
  std::uniform_real_distribution<float> values(0.1F, 10.0F);
  Floats result(count);
  for (float& value : result) value = random() % 2 == 0 ? values(random) : -values(random);
  return result;
}

struct Cut {
  size_t begin, count;
};

// tinygrad's ring all-reduce: by the largest of 32, 16, 8, 4, 2 and 1 that divides the count; the first chunks are one
// factor longer than the others, which may be empty.
std::vector<Cut> chunksOf(size_t count, size_t ranks) {
  size_t factor = 32;
  while (count % factor != 0) factor /= 2;
  const size_t each = count / factor / ranks, longer = count / factor % ranks;
  std::vector<Cut> chunks;
  for (size_t i = 0, begin = 0; i < ranks; ++i) {
    chunks.push_back({begin, (each + (i < longer ? 1 : 0)) * factor});
    begin += chunks.back().count;
  }
  return chunks;
}

// Elements of the inputs of ranks first, first + step, ..., all of them once, folded left to right.
void fold(koloRedOp_t op, const std::vector<Floats>& inputs, int first, int step, Cut range, Floats& result) {
  const int n = static_cast<int>(inputs.size());
  for (size_t at = range.begin; at < range.begin + range.count; ++at) {
    float value = inputs[static_cast<size_t>(first)][at];
    for (int i = 1; i < n; ++i) {
      const float next = inputs[static_cast<size_t>(((first + i * step) % n + n) % n)][at];
      value = op == koloSum ? value + next : value * next;
    }
    result[at] = value;
  }
}

// The same, of the first half to the left and of the second to the right.
void foldHalves(koloRedOp_t op, const std::vector<Floats>& inputs, int firstToLeft, int firstToRight, Cut block,
                Floats& result) {
  const size_t half = block.count / 2;
  fold(op, inputs, firstToLeft, -1, {block.begin, half}, result);
  fold(op, inputs, firstToRight, +1, {block.begin + half, block.count - half}, result);
}

using Expect = std::function<void(koloRedOp_t op, const std::vector<Floats>& inputs, Floats& result)>;

// Every rank finds just the expected bits, as an all-reduce or a reduce-scatter of count elements per block.
void expectBits(const char* algorithm, int ranks, const std::vector<size_t>& counts, bool scatters,
                const Expect& expect) {
  World world(ranks, configWithAlgorithm(algorithm));
  for (const size_t count : counts) {
    for (const koloRedOp_t op : {koloSum, koloProd}) {
      const size_t all = scatters ? count * static_cast<size_t>(ranks) : count;
      std::vector<Floats> inputs;
      for (int rank = 0; rank < ranks; ++rank) inputs.push_back(inputOf(rank, all));
      Floats expected(all);
      expect(op, inputs, expected);
      INFO(algorithm << ", " << ranks << " ranks, " << count << " elements, " << koloRedOpName(op));
      world.run([&](Self& self) {
        const Floats& input = inputs[static_cast<size_t>(self.rank)];
        Floats result(count, -1);
        const koloResult_t code =
            scatters ? koloReduceScatter(input.data(), result.data(), count, koloFloat32, op, self.comm, nullptr)
                     : koloAllReduce(input.data(), result.data(), count, koloFloat32, op, self.comm, nullptr);
        EXPECT_OK(self, code);
        const float* const mine = expected.data() + (scatters ? static_cast<size_t>(self.rank) * count : 0);
        EXPECT(self, std::memcmp(result.data(), mine, count * sizeof(float)) == 0);
      });
    }
  }
}

const std::vector<size_t> kFoldedCounts = {1, 2, 7, 10, 31, 32, 48, 96, 1000, 4097, 70016};

int after(int rank, int ranks) { return (rank + 1) % ranks; }
int before(int rank, int ranks) { return (rank + ranks - 1) % ranks; }

}  // namespace

TEST_CASE("S0.2 one-shot folds the ranks in order 0, 1, ..., so all results are the same bits", "[optimised]") {
  for (const int ranks : {2, 3, 5}) {
    const Expect inOrder = [](koloRedOp_t op, const std::vector<Floats>& inputs, Floats& result) {
      fold(op, inputs, 0, 1, {0, result.size()}, result);
    };
    expectBits("all_reduce:one_shot", ranks, kFoldedCounts, false, inOrder);
    expectBits("reduce_scatter:one_shot", ranks, {1, 7, 4097}, true, inOrder);
    expectBits("all_reduce:two_shot", ranks, kFoldedCounts, false, inOrder);
    expectBits("all_reduce:line", ranks, {1, 2, 7, 10}, false, inOrder);
  }
}

// 1 element is fewer than ranks; 32 are one chunk, and the others are empty; 48 by four ranks leave the last one empty.
TEST_CASE("S0.3 S0.4 the ring folds chunk i in the order i, i+1, ..., chunks as tinygrad cuts them, empty ones too",
          "[threads][links][optimised]") {
  for (const int ranks : {2, 3, 4, 5}) {
    expectBits("all_reduce:ring", ranks, kFoldedCounts, false,
               [&](koloRedOp_t op, const std::vector<Floats>& inputs, Floats& result) {
                 const std::vector<Cut> chunks = chunksOf(result.size(), inputs.size());
                 for (int i = 0; i < ranks; ++i) fold(op, inputs, i, 1, chunks[static_cast<size_t>(i)], result);
               });
  }
}

// Block b of a reduce-scatter ends at its own rank, so its fold begins behind it.
TEST_CASE("S3.2 S3.8 the bidirectional ring folds the halves of each block in opposite directions", "[optimised]") {
  for (const int ranks : {2, 3, 4, 5}) {
    expectBits("all_reduce:biring", ranks, kFoldedCounts, false,
               [&](koloRedOp_t op, const std::vector<Floats>& inputs, Floats& result) {
                 const std::vector<Cut> chunks = chunksOf(result.size(), inputs.size());
                 for (int i = 0; i < ranks; ++i) foldHalves(op, inputs, i, i, chunks[static_cast<size_t>(i)], result);
               });
    expectBits(
        "reduce_scatter:biring", ranks, {1, 2, 7, 1000, 4097}, true,
        [&](koloRedOp_t op, const std::vector<Floats>& inputs, Floats& result) {
          const size_t count = result.size() / inputs.size();
          for (int b = 0; b < ranks; ++b)
            foldHalves(op, inputs, before(b, ranks), after(b, ranks), {static_cast<size_t>(b) * count, count}, result);
        });
    expectBits("reduce_scatter:ring", ranks, {1, 7, 4097}, true,
               [&](koloRedOp_t op, const std::vector<Floats>& inputs, Floats& result) {
                 const size_t count = result.size() / inputs.size();
                 for (int b = 0; b < ranks; ++b)
                   fold(op, inputs, after(b, ranks), 1, {static_cast<size_t>(b) * count, count}, result);
               });
  }
}

// Beside a ring for ordinary buffers, whose folds begin at other ranks: so the bits tell which of the two ran.
TEST_CASE("S1.1 S1.4 S2.7 an algorithm that is forced for registered buffers is taken in place, and by lists, too") {
  constexpr size_t kMost = 32768;
  for (const int ranks : {2, 3, 5}) {
    World world(ranks, configWithAlgorithm("all_reduce:ring,all_reduce:one_shot/bytes=-128K/op=sum/registered=yes"));
    for (const size_t count : {size_t{1000}, size_t{4000}, kMost}) {
      INFO(ranks << " ranks, " << count << " elements");
      std::vector<Floats> inputs;
      for (int rank = 0; rank < ranks; ++rank) inputs.push_back(inputOf(rank, count));
      Floats expected(count);
      fold(koloSum, inputs, 0, 1, {0, count}, expected);
      koloPlan_t plan{};
      REQUIRE_OK(koloCommGetPlan(world[0], koloCollectiveAllReduce, count, koloFloat32, koloSum, 1, &plan));
      REQUIRE(std::string(plan.algorithm) == "one_shot");
      REQUIRE(plan.zeroCopy == 1);
      world.run([&](Self& self) {
        const Floats& input = inputs[static_cast<size_t>(self.rank)];
        void* memory = nullptr;
        koloWindow_t window = nullptr;
        EXPECT_OK(self, koloMemAlloc(&memory, 2 * kMost * sizeof(float)));
        EXPECT_OK(self, koloWindowRegister(self.comm, memory, 2 * kMost * sizeof(float), &window));
        auto* const send = static_cast<float*>(memory);
        const auto reduces = [&](float* recv, bool asList) {
          std::copy(input.begin(), input.end(), send);
          koloItem_t item = KOLO_ITEM_INITIALIZER;
          item.sendbuf = send;
          item.recvbuf = recv;
          item.count = count;
          item.sendtype = koloFloat32;
          // Where ranks cannot read each other's memory, lists take the algorithm for ordinary buffers.
          char text[4096] = {};
          EXPECT_OK(self, koloExplainList(self.comm, 0, koloCollectiveAllReduce, &item, 1, koloSum, 0, 1, text,
                                          sizeof text, nullptr));
          if (asList && std::strstr(text, "lists go through staging here") != nullptr) return true;
          EXPECT_OK(self, asList ? koloAllReduceList(&item, 1, koloSum, self.comm, nullptr)
                                 : koloAllReduce(send, recv, count, koloFloat32, koloSum, self.comm, nullptr));
          return std::equal(expected.begin(), expected.end(), recv);
        };
        for (const bool asList : {false, true}) {
          EXPECT(self, reduces(send + kMost, asList));
          EXPECT(self, reduces(send, asList));
          // Some ranks in place, and some not.
          EXPECT(self, reduces(self.rank % 2 == 0 ? send : send + kMost, asList));
        }
        EXPECT_OK(self, koloWindowDeregister(self.comm, window));
        EXPECT_OK(self, koloMemFree(memory));
      });
    }
  }
}
