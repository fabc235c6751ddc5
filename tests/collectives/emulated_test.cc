// The same collectives by emulated blocks: the code, index arithmetic and barriers of the device.
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "batch.h"
#include "emulated/emulated_executor.h"

namespace kolo::tests {
namespace {

TEST_CASE("emulated block: every algorithm gives what its definition says", "[threads]") {
  const unsigned threads = GENERATE(1u, 3u, 32u);
  const int ranks = GENERATE(2, 3, 5);
  if (threads == 32 && ranks > 3) return;  // too many threads for a small machine
  const UseExecutor emulated(threads);
  WorldOptions options;
  options.ranks = ranks;
  World world(options);
  runRounds(world, Rounds(1000 + static_cast<int>(threads) * 10 + ranks), [&](Batch& batch) {
    for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
      const auto collective = static_cast<koloCollective_t>(i);
      for (const std::string& algorithm : algorithmsFor(collective)) {
        Wanted wanted = randomWanted(collective, algorithm, ranks, batch.random());
        if (threads == 32) wanted.count = std::min<std::size_t>(wanted.count, kSmallSlotBytes);
        batch.add(wanted);
      }
    }
  });
}

TEST_CASE("emulated block: all peers of a step are told at once, whatever their number") {
  const int ranks = GENERATE(2, 5, 8);
  const UseExecutor emulated(8);
  World world({.ranks = ranks, .singleCopy = "-1"});
  // Headers, which tell of the input; of two_shot the result too.
  for (const auto& [algorithm, signals] : {std::pair("all_reduce:one_shot", 1), std::pair("all_reduce:two_shot", 2)}) {
    INFO(algorithm);
    (void)executor::takeMostSignals();
    world.run([&](int rank) {
      const std::vector<int> input(256, rank);
      std::vector<int> output(input.size());
      (void)koloCommSetAlgorithm(world.comm(rank), algorithm);
      (void)koloAllReduce(input.data(), output.data(), input.size(), koloInt32, koloSum, world.comm(rank), nullptr);
    });
    CHECK(executor::takeMostSignals() == signals);
  }
}

TEST_CASE("emulated block: counts that differ from rank to rank") {
  const unsigned threads = GENERATE(3u, 32u);
  const UseExecutor emulated(threads);
  WorldOptions options;
  options.ranks = 3;
  World world(options);
  runRounds(world, Rounds(1100 + static_cast<int>(threads)), [&](Batch& batch) {
    for (const koloCollective_t collective : {koloCollectiveAllGather, koloCollectiveReduceScatter,
                                              koloCollectiveAllToAll, koloCollectiveGather, koloCollectiveScatter}) {
      for (const std::string& algorithm : algorithmsFor(collective)) {
        Wanted wanted = randomWanted(collective, algorithm, 3, batch.random());
        wanted.vector = true;
        batch.add(wanted);
      }
    }
  });
}

// The all-reduce by some algorithm, and pre-multiplied sums.
void addEveryReduction(Batch& batch) {
  std::size_t turn = pick(batch.random(), 0, 99);
  for (int type = 0; type < koloNumDatatypes; ++type) {
    for (int op = 0; op < koloNumOps; ++op) {
      const auto& algorithms = algorithmsFor(koloCollectiveAllReduce);
      Wanted wanted = randomWanted(koloCollectiveAllReduce, algorithms[turn++ % algorithms.size()], 2, batch.random());
      wanted.datatype = static_cast<koloDataType_t>(type);
      wanted.op = static_cast<koloRedOp_t>(op);
      wanted.data = Data::kExact;
      wanted.count = pick(batch.random(), 1, 300);
      if (koloRedOpIsDefined(wanted.op, wanted.datatype) != 0) batch.add(wanted);
    }
  }
  for (int type = 0; type < koloNumDatatypes; ++type) {
    if (type == koloBool) continue;
    Wanted wanted = randomWanted(koloCollectiveAllReduce, "one_shot", 2, batch.random());
    wanted.datatype = static_cast<koloDataType_t>(type);
    wanted.reduction = Reduction::kPreMulSum;
    wanted.op = koloSum;
    wanted.data = Data::kExact;
    batch.add(wanted);
  }
}

TEST_CASE("emulated block: every datatype and operation") {
  const UseExecutor emulated(4);
  WorldOptions options;
  options.ranks = 2;
  World world(options);
  runRounds(world, Rounds(1200), addEveryReduction);
}

TEST_CASE("emulated block: operations in a row, ranks out of step", "[threads]") {
  const unsigned threads = GENERATE(2u, 5u);
  const UseExecutor emulated(threads);
  WorldOptions options;
  options.ranks = 3;
  World world(options);
  runRounds(
      world, Rounds(1300 + static_cast<int>(threads)), [](Batch& batch) { addInAnyOrder(batch, 3, 20); }, 300);
}

}  // namespace
}  // namespace kolo::tests
