// The two trees of double_tree, for every number of ranks that is looked at here.
#include "algorithms/two_trees.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <set>
#include <vector>

namespace {

using kolo::algorithms::TwoTrees;

std::vector<int> childrenOf(const TwoTrees& trees, int tree, int place) {
  std::vector<int> children;
  trees.eachChild(tree, place, [&](int child) { children.push_back(child); });
  return children;
}

// Places in the subtree below one, itself included, as children tell it. Fails where a place is met twice.
int countBelow(const TwoTrees& trees, int tree, int place, std::set<int>& met) {
  REQUIRE(met.insert(place).second);
  int count = 1;
  for (const int child : childrenOf(trees, tree, place)) count += countBelow(trees, tree, child, met);
  return count;
}

int depthOf(const TwoTrees& trees, int tree, int place) {
  int depth = 0;
  for (; place != 0; place = trees.parent(tree, place)) ++depth;
  return depth;
}

constexpr int kMostRanks = 300;

TEST_CASE("two trees: each spans all ranks, and parents, children and sizes of subtrees agree") {
  for (int n = 2; n <= kMostRanks; ++n) {
    const TwoTrees trees(n);
    for (int tree = 0; tree < 2; ++tree) {
      INFO("tree " << tree << " of " << n << " ranks");
      std::set<int> met;
      REQUIRE(countBelow(trees, tree, 0, met) == n);
      REQUIRE(*met.begin() == 0);
      REQUIRE(*met.rbegin() == n - 1);
      for (int place = 0; place < n; ++place) {
        INFO("place " << place);
        const std::vector<int> children = childrenOf(trees, tree, place);
        REQUIRE(children.size() <= (place == 0 ? 1u : 2u));
        for (const int child : children) REQUIRE(trees.parent(tree, child) == place);
        std::set<int> below;
        REQUIRE(trees.subtreeOf(tree, place) == countBelow(trees, tree, place, below));
      }
    }
  }
}

TEST_CASE("two trees: no rank but the root has children in both") {
  for (int n = 2; n <= kMostRanks; ++n) {
    const TwoTrees trees(n);
    for (int place = 1; place < n; ++place) {
      INFO("place " << place << " of " << n << " ranks");
      REQUIRE((childrenOf(trees, 0, place).empty() || childrenOf(trees, 1, place).empty()));
    }
  }
}

TEST_CASE("two trees: no rank is farther from the root than log2 n levels, rounded up") {
  for (int n = 2; n <= kMostRanks; ++n) {
    const TwoTrees trees(n);
    const int levels = std::bit_width(static_cast<unsigned>(n - 1));
    for (int tree = 0; tree < 2; ++tree) {
      int deepest = 0;
      for (int place = 0; place < n; ++place) deepest = std::max(deepest, depthOf(trees, tree, place));
      INFO("tree " << tree << " of " << n << " ranks");
      REQUIRE(deepest <= levels);
    }
  }
}

}  // namespace
