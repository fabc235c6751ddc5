// The same collectives on a GPU, which is mocked unless KOLO_TEST_GPU says which device to use: blocks of host threads
// then execute what the library launches (tests/mock_cuda). A real one has many more rounds: it is faster.
#include <algorithm>
#include <catch2/catch.hpp>

#include "batch.h"
#include "gpu_scene.h"

namespace kolo::tests {
namespace {

// What a GPU can do of a random wish: not call functions of the host's.
Wanted gpuWanted(koloCollective_t collective, const std::string& algorithm, int ranks, Random& random) {
  Wanted wanted = randomWanted(collective, algorithm, ranks, random);
  if (wanted.reduction != Reduction::kPreMulSum) wanted.reduction = Reduction::kPredefined;
  return wanted;
}

// Every algorithm of every collective, each after change(wanted).
template <class Change>
void addEveryAlgorithm(Batch& batch, int ranks, const Change& change) {
  for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
    const auto collective = static_cast<koloCollective_t>(i);
    for (const std::string& algorithm : algorithmsFor(collective)) {
      Wanted wanted = gpuWanted(collective, algorithm, ranks, batch.random());
      change(wanted);
      batch.add(wanted);
    }
  }
}

TEST_CASE("GPU: every algorithm gives what its definition says", "[gpu]") {
  const int ranks = GENERATE_RANKS(1, 2, 3, 4, 5, 6, 7, 8);
  const int blocks = GENERATE(1, 3);
  const bool many = ranks > 3;
  if (many && blocks == 3 && isMocked() && ranks != 5) return;
  Gpu gpu(ranks, blocks, many ? 1 : 2);
  World world(gpu.options);
  runRounds(world, Rounds(2000 + 10 * ranks + blocks), [&](Batch& batch) {
    addEveryAlgorithm(batch, ranks, [&](Wanted& wanted) {
      // Enough for all channels, now and then.
      const std::size_t most = 100'000 / static_cast<std::size_t>(ranks);
      if (chance(batch.random(), 0.4)) wanted.count = pick(batch.random(), 1, most);
    });
  });
  if (!isMocked()) return;
  CHECK(test::MockCuda::launches() > 0);
  CHECK(test::MockCuda::mostBlocksAtOnce() <= static_cast<unsigned>(ranks * blocks));
}

namespace {

// What goes in packets, where nothing is registered, and operations of other algorithms between; of all lengths.
void inPackets(int ranks, bool resident) {
  Gpu gpu(ranks, 2, ranks > 3 ? 1 : 3, resident);
  gpu.options.registeredBytes = 0;
  World world(gpu.options);
  runRounds(world, Rounds(2060 + 10 * ranks), [&](Batch& batch) {
    for (int i = koloCollectiveAllReduce; i <= koloCollectiveScatter; ++i) {
      const auto collective = static_cast<koloCollective_t>(i);
      for (int time = 0; time < 3; ++time) {
        std::vector<std::string> algorithms = algorithmsFor(collective);
        // Mostly those that go in packets, all or some of their collectives.
        const auto isOther = [](const std::string& name) {
          return name != "one_shot" && name != "two_shot" && name != "tree";
        };
        if (!chance(batch.random(), 0.3)) std::erase_if(algorithms, isOther);
        const std::string& algorithm = algorithms[pick(batch.random(), 0, algorithms.size() - 1)];
        Wanted wanted = gpuWanted(collective, algorithm, ranks, batch.random());
        const bool mayDiffer = collective == koloCollectiveAllGather || collective == koloCollectiveReduceScatter;
        if (mayDiffer && chance(batch.random(), 0.3)) wanted.vector = true;
        wanted.count = pick(batch.random(), 1, chance(batch.random(), 0.2) ? 20'000 : 600);
        batch.add(wanted);
      }
    }
  });
}

}  // namespace

TEST_CASE("GPU: small operations in packets, and others between them", "[gpu][threads]") {
  inPackets(GENERATE_RANKS(2, 3, 5, 8), false);
}

TEST_CASE("GPU: small operations in packets by a resident kernel", "[gpu][threads]") {
  inPackets(GENERATE(2, 3), true);
}

namespace {

void resident(int ranks) {
  Gpu gpu(ranks, 2, 1, true);
  World world(gpu.options);
  runRounds(world, Rounds(2050 + 10 * ranks), [&](Batch& batch) {
    addEveryAlgorithm(batch, ranks, [&](Wanted& wanted) {
      // Large ones, which are launched, between those for the resident kernel.
      if (!chance(batch.random(), 0.1)) wanted.count = pick(batch.random(), 0, 600);
    });
  });
}

}  // namespace

TEST_CASE("GPU: every algorithm by a resident kernel", "[gpu][threads]") { resident(GENERATE_RANKS(1, 2, 3, 4)); }

// These have more streams than a device has queues.
TEST_CASE("GPU: every algorithm by a resident kernel of many ranks", "[gpu][many]") { resident(GENERATE(5, 8)); }

TEST_CASE("GPU: every algorithm over posted links, and between hosts of several ranks", "[gpu][posted][slow]") {
  struct Shape {
    int hosts, perHost;
    bool inTurn = false;
  };
  const Shape shape =
      GENERATE(Shape{2, 1}, Shape{3, 1}, Shape{5, 1}, Shape{2, 2}, Shape{3, 2}, Shape{2, 3}, Shape{3, 2, true});
  const int ranks = shape.hosts * shape.perHost;
  const bool resident = GENERATE(false, true);
  if (resident && ranks > 4) return;
  const int blocks = ranks > 4 ? 1 : 2;
  Gpu gpu(ranks, blocks, ranks > 3 ? 1 : 2, resident);
  gpu.options.latePerHost = shape.perHost;
  gpu.options.inTurn = shape.inTurn;
  World world(gpu.options);
  runRounds(world, Rounds(2400 + 10 * ranks + shape.perHost), [&](Batch& batch) {
    const auto change = [&](Wanted& wanted) {
      const std::size_t most = 60'000 / static_cast<std::size_t>(ranks);
      if (chance(batch.random(), 0.4)) wanted.count = pick(batch.random(), 1, most);
    };
    addEveryAlgorithm(batch, ranks, change);
    for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
      const auto collective = static_cast<koloCollective_t>(i);
      if (shape.perHost == 1 || !isHierarchical(collective, false)) continue;
      if (shape.inTurn && collective == koloCollectiveAllToAll) continue;  // needs a host's ranks in a row
      Wanted wanted = gpuWanted(collective, "hierarchical", ranks, batch.random());
      change(wanted);
      wanted.count = std::max<std::size_t>(wanted.count, 1);
      batch.add(wanted);
    }
  });
}

TEST_CASE("GPU: counts that differ, and large ones, over posted links", "[gpu][posted][threads]") {
  const int ranks = GENERATE(2, 3, 4);
  Gpu gpu(ranks, 2, 1);
  gpu.options.latePerHost = ranks == 4 ? 2 : 1;
  World world(gpu.options);
  runRounds(world, Rounds(2500 + 10 * ranks), [&](Batch& batch) {
    for (const koloCollective_t collective : {koloCollectiveAllGather, koloCollectiveReduceScatter,
                                              koloCollectiveAllToAll, koloCollectiveGather, koloCollectiveScatter}) {
      for (const std::string& algorithm : algorithmsFor(collective)) {
        Wanted wanted = gpuWanted(collective, algorithm, ranks, batch.random());
        wanted.vector = true;
        batch.add(wanted);
      }
    }
    for (int i = koloCollectiveAllReduce; i <= koloCollectiveScatter; ++i) {
      Wanted wanted = gpuWanted(static_cast<koloCollective_t>(i), "", ranks, batch.random());
      wanted.datatype = koloFloat32;
      wanted.op = koloSum;
      wanted.reduction = Reduction::kPredefined;
      wanted.count = pick(batch.random(), 100'000, 200'000) / kSlowdown;  // many times what the slots hold
      batch.add(wanted);
    }
  });
}

TEST_CASE("GPU: averages of small types, of large and of tiny numbers", "[gpu]") {
  const int ranks = GENERATE(3, 4);
  Gpu gpu(ranks, 1, 1);
  World world(gpu.options);
  runRounds(world, Rounds(2600 + 10 * ranks), [&](Batch& batch) {
    for (const koloCollective_t collective : {koloCollectiveAllReduce, koloCollectiveReduceScatter}) {
      for (const std::string& algorithm : algorithmsFor(collective)) {
        for (const koloDataType_t type : {koloFloat16, koloBfloat16, koloFloat8e4m3, koloInt8, koloUint16}) {
          Wanted wanted = gpuWanted(collective, algorithm, ranks, batch.random());
          wanted.datatype = type;
          wanted.op = koloAvg;
          wanted.data = type == koloFloat8e4m3 ? Data::kTiny : Data::kLarge;
          batch.add(wanted);
        }
      }
    }
  });
}

TEST_CASE("GPU: counts that differ from rank to rank", "[gpu]") {
  const int ranks = GENERATE_RANKS(2, 3, 4, 8);
  Gpu gpu(ranks, 2, ranks > 3 ? 1 : 2);
  World world(gpu.options);
  runRounds(world, Rounds(2100 + 10 * ranks), [&](Batch& batch) {
    for (const koloCollective_t collective : {koloCollectiveAllGather, koloCollectiveReduceScatter,
                                              koloCollectiveAllToAll, koloCollectiveGather, koloCollectiveScatter}) {
      for (const std::string& algorithm : algorithmsFor(collective)) {
        Wanted wanted = gpuWanted(collective, algorithm, ranks, batch.random());
        wanted.vector = true;
        batch.add(wanted);
      }
    }
  });
}

namespace {

// Each datatype with each operation, by the algorithms in turn.
void foldEverything(koloCollective_t collective, int ranks, unsigned blockThreads) {
  Gpu gpu(ranks, 2, blockThreads);
  World world(gpu.options);
  runRounds(world, Rounds(2200 + 10 * ranks + collective), [&](Batch& batch) {
    const std::vector<std::string>& algorithms = algorithmsFor(collective);
    std::size_t number = pick(batch.random(), 0, 99);
    for (int type = 0; type < koloNumDatatypes; ++type) {
      for (int op = 0; op < koloNumOps; ++op) {
        if (koloRedOpIsDefined(static_cast<koloRedOp_t>(op), static_cast<koloDataType_t>(type)) == 0) continue;
        Wanted wanted = gpuWanted(collective, algorithms[number++ % algorithms.size()], ranks, batch.random());
        wanted.datatype = static_cast<koloDataType_t>(type);
        wanted.op = static_cast<koloRedOp_t>(op);
        wanted.reduction = Reduction::kPredefined;
        wanted.data = Data::kExact;
        wanted.count = pick(batch.random(), 1, 300);
        batch.add(wanted);
      }
    }
  });
}

constexpr auto kFolding = {koloCollectiveAllReduce, koloCollectiveReduce, koloCollectiveReduceScatter};

}  // namespace

TEST_CASE("GPU: every datatype and operation", "[gpu]") {
  const int ranks = GENERATE(2, 3);
  const auto collective = GENERATE(values(kFolding));
  foldEverything(collective, ranks, 3);
}

// Apart from the one above, which is also run under checkers that make it many times slower.
TEST_CASE("GPU: every datatype and operation by other numbers of ranks", "[gpu]") {
  const int ranks = GENERATE_RANKS(1, 4, 5, 6, 7, 8);
  const auto collective = GENERATE(values(kFolding));
  if (isMocked() && ranks != 5) return;
  foldEverything(collective, ranks, 1);
}

namespace {

void addScaledSums(Batch& batch, int ranks) {
  for (const koloCollective_t collective :
       {koloCollectiveAllReduce, koloCollectiveReduce, koloCollectiveReduceScatter}) {
    for (const std::string& algorithm : algorithmsFor(collective)) {
      Wanted wanted = gpuWanted(collective, algorithm, ranks, batch.random());
      wanted.reduction = Reduction::kPreMulSum;
      wanted.op = koloSum;
      if (wanted.datatype == koloBool) wanted.datatype = koloFloat32;
      batch.add(wanted);
    }
  }
}

}  // namespace

TEST_CASE("GPU: sums of what each rank scales", "[gpu]") {
  const int ranks = GENERATE(1, 2, 3);
  Gpu gpu(ranks, 2, 2);
  World world(gpu.options);
  runRounds(world, Rounds(2300 + 10 * ranks), [&](Batch& batch) { addScaledSums(batch, ranks); });
}

namespace {

void alone(bool resident) {
  Gpu gpu(1, 2, 2, resident);
  World world(gpu.options);
  runRounds(world, Rounds(2700), [&](Batch& batch) {
    addEveryAlgorithm(batch, 1, [&](Wanted& wanted) {
      if (chance(batch.random(), 0.4)) wanted.count = pick(batch.random(), 1, 100'000);
    });
    addScaledSums(batch, 1);
  });
  if (isMocked()) CHECK(test::MockCuda::launches() > 0);
}

}  // namespace

// What a sanitizer can look at: it may let one kernel run at a time, and ranks would wait for each other. A resident
// kernel would be waited for by what rings for it.
TEST_CASE("GPU: a rank by itself, launched", "[gpu][single]") { alone(false); }

TEST_CASE("GPU: a rank by itself, resident", "[gpu]") { alone(true); }

}  // namespace
}  // namespace kolo::tests
