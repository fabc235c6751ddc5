// The same collectives on a GPU, which is mocked unless KOLO_TEST_GPU says which device to use: blocks of host threads then execute
// what the library launches (tests/mock_cuda).
#include <catch2/catch.hpp>

#include <cstdlib>

#include "batch.h"
#include "mock_cuda/mock_cuda.h"

namespace kolo::tests {
namespace {

// A GPU on which `blocks` blocks are resident for each of `ranks` ranks, if it is mocked.
struct Gpu {
  Gpu(int ranks, int blocks, unsigned blockThreads) {
    const char* const real = std::getenv("KOLO_TEST_GPU");
    options.ranks = ranks;
    options.device = real != nullptr ? std::atoi(real) : 0;
    isMocked = real == nullptr;
    if (isMocked) test::MockCuda{.multiprocessors = ranks * blocks, .blockThreads = blockThreads}.install();
  }
  ~Gpu() {
    if (isMocked) CHECK(test::MockCuda::remove() == "");
  }
  WorldOptions options;
  bool isMocked = true;
};

// What a GPU can do of a random wish: not call functions of the host's.
Wanted gpuWanted(koloCollective_t collective, const std::string& algorithm, int ranks, Random& random) {
  Wanted wanted = randomWanted(collective, algorithm, ranks, random);
  if (wanted.reduction != Reduction::kPreMulSum) wanted.reduction = Reduction::kPredefined;
  return wanted;
}

TEST_CASE("GPU: every algorithm gives what its definition says", "[gpu]") {
  const int ranks = GENERATE(1, 2, 3, 5);
  const int blocks = GENERATE(1, 3);
  Gpu gpu(ranks, blocks, 2);
  World world(gpu.options);
  Batch batch(world, testSeed() + 2000 + static_cast<std::uint64_t>(ranks * 10 + blocks));
  const int each = kSlowdown > 1 ? 1 : 3;
  for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
    const auto collective = static_cast<koloCollective_t>(i);
    for (const std::string& algorithm : algorithmsFor(collective)) {
      for (int turn = 0; turn < each; ++turn) {
        Wanted wanted = gpuWanted(collective, algorithm, ranks, batch.random());
        // Enough for all channels, now and then.
        if (turn == 0) wanted.count = pick(batch.random(), 1, std::size_t{100'000} / static_cast<std::size_t>(ranks));
        batch.add(wanted);
      }
    }
  }
  batch.run();
  if (!gpu.isMocked) return;
  CHECK(test::MockCuda::launches() > 0);
  CHECK(test::MockCuda::mostBlocksAtOnce() <= static_cast<unsigned>(ranks * blocks));
}

TEST_CASE("GPU: counts that differ from rank to rank", "[gpu]") {
  Gpu gpu(3, 2, 2);
  World world(gpu.options);
  Batch batch(world, testSeed() + 2100);
  for (const koloCollective_t collective : {koloCollectiveAllGather, koloCollectiveReduceScatter, koloCollectiveAllToAll,
                                            koloCollectiveGather, koloCollectiveScatter}) {
    for (const std::string& algorithm : algorithmsFor(collective)) {
      Wanted wanted = gpuWanted(collective, algorithm, 3, batch.random());
      wanted.vector = true;
      batch.add(wanted);
    }
  }
  batch.run();
}

TEST_CASE("GPU: every datatype and operation", "[gpu]") {
  Gpu gpu(2, 2, 3);
  World world(gpu.options);
  Batch batch(world, testSeed() + 2200);
  std::size_t turn = 0;
  for (int type = 0; type < koloNumDatatypes; ++type) {
    for (int op = 0; op < koloNumOps; ++op) {
      const auto& algorithms = algorithmsFor(koloCollectiveAllReduce);
      Wanted wanted = gpuWanted(koloCollectiveAllReduce, algorithms[turn++ % algorithms.size()], 2, batch.random());
      wanted.datatype = static_cast<koloDataType_t>(type);
      wanted.op = static_cast<koloRedOp_t>(op);
      wanted.reduction = Reduction::kPredefined;
      wanted.data = Data::kExact;
      wanted.count = pick(batch.random(), 1, 300);
      if (koloRedOpIsDefined(wanted.op, wanted.datatype) != 0) batch.add(wanted);
    }
  }
  batch.run();
}

}  // namespace
}  // namespace kolo::tests
