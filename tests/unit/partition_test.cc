// Index arithmetic: parts are disjoint and complete, trees and foldings consistent.
#include "device/partition.h"

#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "algorithms/recursive.h"
#include "algorithms/tree.h"

namespace {

using namespace kolo::device;
using kolo::algorithms::Binomial;
using kolo::algorithms::Folding;

const std::vector<std::uint64_t> kCounts = {0,   1,   2,    3,    5,    7,    8,     15,      16,
                                            31,  32,  33,   63,   64,   65,   100,   127,     255,
                                            256, 257, 1000, 1021, 4096, 4097, 65536, 1000003, (1ull << 33) + 5};

// Parts in order, one after the other, from 0 to count.
template <class Part>
void requireCover(std::uint64_t count, int n, Part part) {
  std::uint64_t at = 0;
  for (int i = 0; i < n; ++i) {
    const Range range = part(i);
    if (range.begin != at) {
      INFO("part " << i << " of " << n << " of " << count << " begins at " << range.begin);
      REQUIRE(range.begin == at);
    }
    at += range.count;
  }
  REQUIRE(at == count);
}

TEST_CASE("partition: quotients and remainders, of numbers below 2^32 and above") {
  for (const std::uint64_t a : {0ull, 1ull, 63ull, 0xffffffffull, 0x100000000ull, 0x123456789abcdefull, ~0ull}) {
    for (const std::uint64_t b : {1ull, 3ull, 64ull, 0xffffffffull, 0x100000001ull}) {
      CHECK(kolo::device::quotient(a, b) == a / b);
      CHECK(kolo::device::remainder(a, b) == a % b);
    }
  }
}

TEST_CASE("partition: aligned parts cover the range once, differ by at most a grain, and begin on grains") {
  for (const std::uint64_t count : kCounts) {
    for (int n = 1; n <= 200; n += n < 20 ? 1 : 37) {
      for (const std::uint64_t grain : {1u, 4u, 16u, 64u}) {
        requireCover(count, n, [&](int i) { return alignedPart(count, n, i, grain); });
        const std::uint64_t longest = alignedPart(count, n, 0, grain).count;
        for (int i = 0; i < n; ++i) {
          const Range part = alignedPart(count, n, i, grain);
          if (part.count != 0) REQUIRE(part.begin % grain == 0);
          REQUIRE(part.count <= longest);
          // The last part that is not empty also loses what is left of its last grain.
          if (part.begin + part.count < count) REQUIRE(longest - part.count <= grain);
        }
      }
    }
  }
}

TEST_CASE("partition: factored parts cover the range once") {
  for (const std::uint64_t count : kCounts) {
    for (int n = 1; n <= 64; ++n) {
      requireCover(count, n, [&](int i) { return factoredPart(count, n, i); });
    }
  }
}

// factor = max(f for f in [32, 16, 8, 4, 2, 1] if count % f == 0); base, left = divmod(count // factor, n);
// chunk sizes = [(base + 1) * factor] * left + [base * factor] * (n - left)
TEST_CASE("S0.4 partition: factored parts are those of tinygrad's ring all-reduce") {
  const auto sizes = [](std::uint64_t count, int n) {
    std::vector<std::uint64_t> result;
    for (int i = 0; i < n; ++i) result.push_back(factoredPart(count, n, i).count);
    return result;
  };
  CHECK(sizes(256, 4) == std::vector<std::uint64_t>{64, 64, 64, 64});
  CHECK(sizes(32, 3) == std::vector<std::uint64_t>{32, 0, 0});
  CHECK(sizes(96, 2) == std::vector<std::uint64_t>{64, 32});
  CHECK(sizes(100, 3) == std::vector<std::uint64_t>{36, 32, 32});    // factor 4: 25 = 9 + 8 + 8
  CHECK(sizes(10, 4) == std::vector<std::uint64_t>{4, 2, 2, 2});     // factor 2: 5 = 2 + 1 + 1 + 1
  CHECK(sizes(7, 3) == std::vector<std::uint64_t>{3, 2, 2});         // factor 1
  CHECK(sizes(48, 4) == std::vector<std::uint64_t>{16, 16, 16, 0});  // factor 16: 3 = 1 + 1 + 1 + 0
}

TEST_CASE("partition: chunks cover the range once") {
  for (const std::uint64_t count : {0u, 1u, 7u, 1024u, 1025u, 5000u}) {
    for (const std::uint64_t chunk : {1u, 7u, 1024u}) {
      const int chunks = static_cast<int>(divideUp(count, chunk)) + 2;
      requireCover(count, chunks, [&](int c) { return chunkOf(count, chunk, static_cast<std::uint64_t>(c)); });
    }
  }
}

TEST_CASE("partition: ranks on a ring wrap both ways") {
  for (int n = 1; n <= 20; ++n) {
    for (int r = 0; r < n; ++r) {
      for (int d = -3 * n; d <= 3 * n; ++d) {
        const int at = ringRank(r, d, n);
        REQUIRE((at >= 0 && at < n));
        REQUIRE((at - r - d) % n == 0);
      }
    }
  }
}

TEST_CASE("folding: members stand for all ranks, in order, each rank once") {
  for (int n = 1; n <= 200; ++n) {
    const Folding folding(n);
    REQUIRE((folding.size() & (folding.size() - 1)) == 0);
    REQUIRE((folding.size() <= n && 2 * folding.size() > n));
    std::set<int> members;
    for (int rank = 0; rank < n; ++rank) {
      const int member = folding.memberOf(rank);
      REQUIRE((folding.firstRank(member) <= rank && rank < folding.firstRank(member + 1)));
      if (folding.isMember(rank)) {
        REQUIRE(folding.rankOf(member) == rank);
        members.insert(member);
      } else {
        REQUIRE(folding.isPaired(rank));
        REQUIRE(folding.rankOf(member) == rank + 1);
        REQUIRE(folding.isMember(rank + 1));
      }
    }
    REQUIRE(static_cast<int>(members.size()) == folding.size());
    REQUIRE(*members.rbegin() == folding.size() - 1);
    REQUIRE(folding.firstRank(0) == 0);
    REQUIRE(folding.firstRank(folding.size()) == n);
  }
}

TEST_CASE("binomial tree: children name their parent, subtrees partition the places, depth is at most log2 n") {
  for (int n = 1; n <= 200; ++n) {
    std::vector<int> reached(static_cast<std::size_t>(n), 0);
    for (int place = 0; place < n; ++place) {
      const Binomial tree(n, place);
      int next = place + 1;  // a subtree is a run of places: the node, then its children's subtrees in order
      tree.eachChild([&](int child) {
        REQUIRE(child == next);
        REQUIRE(Binomial(n, child).parent() == place);
        next = child + tree.subtreeOf(child);
        ++reached[static_cast<std::size_t>(child)];
      });
      REQUIRE(next == place + tree.subtreeOf(place));
      int depth = 0;
      for (int at = place; at != 0; at = Binomial(n, at).parent()) ++depth;
      REQUIRE((1 << depth) <= (n > 1 ? 2 * (n - 1) : 1));
    }
    for (int place = 1; place < n; ++place) REQUIRE(reached[static_cast<std::size_t>(place)] == 1);
    REQUIRE(reached[0] == 0);
  }
}

}  // namespace
