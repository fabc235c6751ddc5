// Collectives over posted links, and over posted links between groups of ranks that share memory: by a transport that does
// everything late and out of order (tests/plugin/late.c).
#include <catch2/catch.hpp>

#include "batch.h"

namespace kolo::tests {
namespace {

// Every algorithm of every collective, `each` times; with counts that differ if `vector`.
void addEveryAlgorithm(Batch& batch, int ranks, int each, bool vector, bool hierarchical) {
  for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
    const auto collective = static_cast<koloCollective_t>(i);
    if (vector && (collective < koloCollectiveAllGather || collective > koloCollectiveScatter)) continue;
    std::vector<std::string> algorithms = algorithmsFor(collective);
    algorithms.push_back("");
    if (hierarchical && isHierarchical(collective, vector)) algorithms.push_back("hierarchical");
    for (const std::string& algorithm : algorithms) {
      for (int turn = 0; turn < each; ++turn) {
        Wanted wanted = randomWanted(collective, algorithm, ranks, batch.random());
        wanted.vector = vector;
        if (algorithm == "hierarchical") wanted.count = std::max<std::size_t>(wanted.count, 1);
        batch.add(wanted);
      }
    }
  }
}

TEST_CASE("posted links: every algorithm between ranks that share no memory", "[posted]") {
  const int ranks = GENERATE(2, 3, 4, 5, 8, 13);
  const UseExecutor host(0);
  World world({.ranks = ranks, .latePerHost = 1});
  Batch batch(world, testSeed() + 600 + static_cast<std::uint64_t>(ranks));
  addEveryAlgorithm(batch, ranks, kSlowdown > 1 ? 1 : 4, false, false);
  addEveryAlgorithm(batch, ranks, 1, true, false);
  batch.run();
}

TEST_CASE("posted links: every algorithm between hosts of several ranks", "[posted]") {
  struct Shape {
    int hosts, perHost;
  };
  const Shape shape = GENERATE(Shape{2, 2}, Shape{3, 2}, Shape{2, 3}, Shape{4, 2}, Shape{3, 4}, Shape{5, 3});
  const int ranks = shape.hosts * shape.perHost;
  const UseExecutor host(0);
  World world({.ranks = ranks, .latePerHost = shape.perHost});
  Batch batch(world, testSeed() + 700 + static_cast<std::uint64_t>(ranks));
  addEveryAlgorithm(batch, ranks, kSlowdown > 1 ? 2 : 8, false, true);
  addEveryAlgorithm(batch, ranks, 2, true, true);
  batch.run();
}

TEST_CASE("posted links: hosts with unequal numbers of ranks", "[posted]") {
  const int ranks = GENERATE(3, 5, 7);
  const UseExecutor host(0);
  World world({.ranks = ranks, .latePerHost = 2});
  Batch batch(world, testSeed() + 800 + static_cast<std::uint64_t>(ranks));
  addEveryAlgorithm(batch, ranks, kSlowdown > 1 ? 1 : 4, false, false);
  batch.run();
}

TEST_CASE("posted links: large buffers, and results in rank order", "[posted]") {
  const bool reproducible = GENERATE(false, true);
  const UseExecutor host(0);
  World world({.ranks = 4, .reproducible = reproducible, .staging = "8M", .windowBytes = 24 << 20, .latePerHost = 2});
  Batch batch(world, testSeed() + 900);
  for (int i = koloCollectiveAllReduce; i <= koloCollectiveScatter; ++i) {
    const auto collective = static_cast<koloCollective_t>(i);
    Wanted wanted = randomWanted(collective, "", 4, batch.random());
    wanted.datatype = koloFloat32;
    wanted.op = koloSum;
    wanted.count = pick(batch.random(), 50000, 200000) / (kSlowdown > 1 ? 4 : 1);
    batch.add(wanted);
  }
  batch.run();
}

}  // namespace
}  // namespace kolo::tests
