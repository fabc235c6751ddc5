// Random collectives against the oracle, on the host executor.
#include <catch2/catch.hpp>

#include "algorithms/names.h"
#include "batch.h"
#include "support/one_core.h"

namespace kolo::tests {
namespace {

constexpr koloCollective_t kVectors[] = {koloCollectiveAllGather, koloCollectiveReduceScatter, koloCollectiveAllToAll,
                                         koloCollectiveGather, koloCollectiveScatter};

// Every algorithm of every collective, and the planner's choice.
void addEveryAlgorithm(Batch& batch, int ranks) {
  for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
    const auto collective = static_cast<koloCollective_t>(i);
    for (const std::string& algorithm : algorithmsFor(collective)) {
      batch.add(randomWanted(collective, algorithm, ranks, batch.random()));
    }
    batch.add(randomWanted(collective, "", ranks, batch.random()));
  }
}

void addEveryVector(Batch& batch, int ranks) {
  for (const koloCollective_t collective : kVectors) {
    for (const std::string& algorithm : algorithmsFor(collective)) {
      Wanted wanted = randomWanted(collective, algorithm, ranks, batch.random());
      wanted.vector = true;
      batch.add(wanted);
    }
    Wanted wanted = randomWanted(collective, "", ranks, batch.random());
    wanted.vector = true;
    batch.add(wanted);
  }
}

// Out of place, the input is as it was afterwards; in place, where a rank has no output, and around buffers, too.
TEST_CASE("S1.4 S1.6 S4.1 collectives: every algorithm gives what its definition says", "[threads][optimised]") {
  const int ranks = GENERATE_RANKS(1, 2, 3, 4, 5, 7, 8, 13, 16);
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = ranks;
  World world(options);
  runRounds(world, Rounds(ranks), [&](Batch& batch) { addEveryAlgorithm(batch, ranks); });
}

TEST_CASE("S1.7 collectives: counts that differ from rank to rank, zeros and gaps") {
  const int ranks = GENERATE_RANKS(1, 2, 3, 5, 8, 13);
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = ranks;
  World world(options);
  runRounds(world, Rounds(100 + ranks), [&](Batch& batch) { addEveryVector(batch, ranks); });
}

TEST_CASE("collectives: results written past the caches are the same", "[optimised]") {
  const int ranks = GENERATE_RANKS(2, 3, 6);
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = ranks;
  options.streaming = "256";
  World world(options);
  runRounds(world, Rounds(200 + ranks), [&](Batch& batch) {
    addEveryAlgorithm(batch, ranks);
    addEveryVector(batch, ranks);
  });
}

TEST_CASE("collectives: 64 ranks", "[optimised][slow]") {
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = kSlowdown > 1 ? 24 : 64;
  options.windowBytes = 2 << 20;
  World world(options);
  runRounds(world, Rounds(300), [&](Batch& batch) {
    for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
      const auto collective = static_cast<koloCollective_t>(i);
      for (const std::string& algorithm : algorithmsFor(collective)) {
        Wanted wanted = randomWanted(collective, algorithm, options.ranks, batch.random());
        wanted.count = std::min<std::size_t>(wanted.count, 300);
        batch.add(wanted);
      }
    }
  });
}

TEST_CASE("collectives: large buffers through large slots") {
  const int ranks = GENERATE(2, 4);
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = ranks;
  options.staging = "32M";
  options.windowBytes = 24 << 20;
  World world(options);
  runRounds(world, Rounds(400 + ranks), [&](Batch& batch) {
    for (int i = koloCollectiveAllReduce; i <= koloCollectiveScatter; ++i) {
      const auto collective = static_cast<koloCollective_t>(i);
      for (const std::string& algorithm : algorithmsFor(collective)) {
        Wanted wanted = randomWanted(collective, algorithm, ranks, batch.random());
        wanted.datatype = koloFloat32;
        wanted.op = koloSum;
        wanted.count = pick(batch.random(), 100000, 200000) / (kSlowdown > 1 ? 4 : 1);
        batch.add(wanted);
      }
      batch.run();
    }
  });
}

// Where they share cores, ranks choose other ways for the same data. (What a root gives ahead takes repeated calls:
// tests/api/rooted_test.cc.)
TEST_CASE("collectives: ranks that share a core, copying as they do by default") {
  const int ranks = GENERATE_RANKS(2, 3, 6);
  const test::OneCore one;
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = ranks;
  options.singleCopy = "-1";
  World world(options);
  runRounds(world, Rounds(600 + ranks), [&](Batch& batch) {
    addEveryAlgorithm(batch, ranks);
    addEveryVector(batch, ranks);
  });
}

// By several roots, and again.
void callBarriers(World& world, std::uint64_t seed) {
  std::vector<std::size_t> used(3);
  Random random(seed);
  std::vector<std::unique_ptr<Case>> cases;
  std::vector<std::string> expected;
  const auto add = [&](koloCollective_t collective, const std::string& algorithm) {
    Wanted wanted = randomWanted(collective, "", 3, random);
    wanted.count = 10;
    cases.push_back(Case::make(world, wanted, used, random));
    expected.push_back(algorithm);
  };
  for (const koloCollective_t collective :
       {koloCollectiveBroadcast, koloCollectiveGather, koloCollectiveScatter, koloCollectiveAllReduce}) {
    const bool gives = collective == koloCollectiveBroadcast || collective == koloCollectiveScatter;
    for (int turn = 0; turn < 4; ++turn) {
      add(collective, "");
      add(koloCollectiveBarrier, gives ? "two_shot" : "line");
      add(koloCollectiveBarrier, "line");
    }
  }
  runCases(world, cases, seed);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    INFO("case " << i << ": " << cases[i]->describe());
    if (!expected[i].empty()) CHECK(name(cases[i]->traceOf(0).algorithm) == expected[i]);
  }
}

TEST_CASE(
    "collectives: where ranks share cores a barrier goes through the root of the broadcast or scatter before it, and "
    "no other") {
  const test::OneCore one;
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = 3;
  World world(options);
  for (Rounds rounds(700); rounds.next();) callBarriers(world, rounds.seed());
}

// More chunks than slots, in both directions, and the next operation's behind them: a signal that stood for both
// directions, or for two operations, would let a rank read what is not there yet.
TEST_CASE("S3.4 collectives: both directions of the bidirectional ring in a row, at every pace of the ranks") {
  const int ranks = GENERATE_RANKS(2, 3, 5);
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = ranks;
  World world(options);
  const auto add = [&](Batch& batch) {
    for (int i = 0; i < 20; ++i) {
      for (const koloCollective_t collective :
           {koloCollectiveAllGather, koloCollectiveReduceScatter, koloCollectiveAllReduce}) {
        Wanted wanted = randomWanted(collective, "biring", ranks, batch.random());
        if (i % 4 == 0) wanted.count = pick(batch.random(), 3000, 20000);
        batch.add(wanted);
      }
    }
  };
  runRounds(world, Rounds(800 + ranks), add, 200);
}

TEST_CASE("collectives: hundreds of operations in a row, sizes and algorithms changing, ranks out of step",
          "[threads]") {
  const int ranks = GENERATE_RANKS(2, 3, 4, 7);
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = ranks;
  World world(options);
  runRounds(
      world, Rounds(500 + ranks), [&](Batch& batch) { addInAnyOrder(batch, ranks, 60); }, 200);
}

}  // namespace
}  // namespace kolo::tests
