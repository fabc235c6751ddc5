// The same collectives by emulated blocks: the code, index arithmetic and barriers of the device.
#include <catch2/catch.hpp>

#include "batch.h"

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
  Batch batch(world, testSeed() + 1000 + threads * 10 + static_cast<std::uint64_t>(ranks));
  const int each = kSlowdown > 1 ? 1 : threads == 32 ? 2 : 5;
  for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
    const auto collective = static_cast<koloCollective_t>(i);
    for (const std::string& algorithm : algorithmsFor(collective)) {
      for (int turn = 0; turn < each; ++turn) {
        Wanted wanted = randomWanted(collective, algorithm, ranks, batch.random());
        if (threads == 32) wanted.count = std::min<std::size_t>(wanted.count, kSmallSlotBytes);
        batch.add(wanted);
      }
    }
  }
  batch.run();
}

TEST_CASE("emulated block: counts that differ from rank to rank") {
  const unsigned threads = GENERATE(3u, 32u);
  const UseExecutor emulated(threads);
  WorldOptions options;
  options.ranks = 3;
  World world(options);
  Batch batch(world, testSeed() + 1100 + threads);
  for (const koloCollective_t collective : {koloCollectiveAllGather, koloCollectiveReduceScatter,
                                            koloCollectiveAllToAll, koloCollectiveGather, koloCollectiveScatter}) {
    for (const std::string& algorithm : algorithmsFor(collective)) {
      Wanted wanted = randomWanted(collective, algorithm, 3, batch.random());
      wanted.vector = true;
      batch.add(wanted);
    }
  }
  batch.run();
}

TEST_CASE("emulated block: every datatype and operation") {
  const UseExecutor emulated(4);
  WorldOptions options;
  options.ranks = 2;
  World world(options);
  Batch batch(world, testSeed() + 1200);
  std::size_t turn = 0;
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
  batch.run();
}

TEST_CASE("emulated block: operations in a row, ranks out of step", "[threads]") {
  const unsigned threads = GENERATE(2u, 5u);
  const UseExecutor emulated(threads);
  WorldOptions options;
  options.ranks = 3;
  World world(options);
  Batch batch(world, testSeed() + 1300 + threads, 300);
  for (int i = 0; i < 120 / kSlowdown; ++i) {
    const auto collective = static_cast<koloCollective_t>(pick(batch.random(), 0, koloCollectiveBarrier));
    const auto& algorithms = algorithmsFor(collective);
    const std::size_t at = pick(batch.random(), 0, algorithms.size());
    batch.add(randomWanted(collective, at < algorithms.size() ? algorithms[at] : "", 3, batch.random()));
  }
  batch.run();
}

}  // namespace
}  // namespace kolo::tests
