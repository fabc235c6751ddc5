// Every datatype with every reduction, user functions and pre-multiplied sums.
#include <catch2/catch.hpp>

#include "batch.h"

namespace kolo::tests {
namespace {

TEST_CASE("reductions: every datatype and operation in every collective that reduces", "[optimised]") {
  const int ranks = GENERATE_RANKS(3, 6);
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = ranks;
  World world(options);
  runRounds(world, Rounds(600 + ranks), [&](Batch& batch) {
    std::size_t turn = pick(batch.random(), 0, 99);
    for (int type = 0; type < koloNumDatatypes; ++type) {
      for (int op = 0; op < koloNumOps; ++op) {
        for (const koloCollective_t collective : kReducing) {
          Wanted wanted = randomWanted(collective, "", ranks, batch.random());
          const auto& algorithms = algorithmsFor(collective);
          wanted.algorithm = algorithms[turn++ % algorithms.size()];
          wanted.datatype = static_cast<koloDataType_t>(type);
          wanted.op = static_cast<koloRedOp_t>(op);
          wanted.data = Data::kExact;
          wanted.count = pick(batch.random(), 1, 300);
          if (koloRedOpIsDefined(wanted.op, wanted.datatype) != 0) batch.add(wanted);
        }
      }
    }
  });
}

TEST_CASE("reductions: one rank alone gives a reduction's result too") {
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = 1;
  World world(options);
  runRounds(world, Rounds(650), [](Batch& batch) {
    for (int type = 0; type < koloNumDatatypes; ++type) {
      for (int op = 0; op < koloNumOps; ++op) {
        Wanted wanted = randomWanted(koloCollectiveAllReduce, "", 1, batch.random());
        wanted.datatype = static_cast<koloDataType_t>(type);
        wanted.op = static_cast<koloRedOp_t>(op);
        wanted.count = 40;
        if (koloRedOpIsDefined(wanted.op, wanted.datatype) != 0) batch.add(wanted);
      }
    }
  });
}

TEST_CASE("reductions: each rank's own factor in a pre-multiplied sum") {
  const int ranks = GENERATE(1, 2, 5);
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = ranks;
  World world(options);
  runRounds(world, Rounds(700 + ranks), [&](Batch& batch) {
    for (const koloCollective_t collective : kReducing) {
      for (const std::string& algorithm : algorithmsFor(collective)) {
        for (int type = 0; type < koloNumDatatypes; ++type) {
          if (type == koloBool) continue;
          Wanted wanted = randomWanted(collective, algorithm, ranks, batch.random());
          wanted.reduction = Reduction::kPreMulSum;
          wanted.op = koloSum;
          wanted.datatype = static_cast<koloDataType_t>(type);
          wanted.data = Data::kExact;
          wanted.count = algorithm == "line" ? 2 : pick(batch.random(), 1, 300);
          batch.add(wanted);
        }
      }
    }
  });
}

// All ranks must agree to the bit on an all-reduce, however each got its own contribution.
TEST_CASE("reductions: a pre-multiplied sum of narrow floats is rounded alike on all ranks", "[optimised]") {
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = 4;
  World world(options);
  runRounds(world, Rounds(750), [](Batch& batch) {
    for (const char* algorithm : {"line", "one_shot", "two_shot"}) {
      for (const koloDataType_t type : {koloFloat16, koloBfloat16, koloFloat32}) {
        Wanted wanted = randomWanted(koloCollectiveAllReduce, algorithm, 4, batch.random());
        wanted.reduction = Reduction::kPreMulSum;
        wanted.op = koloSum;
        wanted.datatype = type;
        wanted.data = Data::kRough;
        wanted.count = std::string(algorithm) == "line" ? 10 : 500;
        batch.add(wanted);
      }
    }
  });
}

TEST_CASE("reductions: user functions, in rank order where they do not commute") {
  const int ranks = GENERATE_RANKS(2, 3, 5, 8);
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = ranks;
  World world(options);
  runRounds(world, Rounds(800 + ranks), [&](Batch& batch) {
    for (const koloCollective_t collective : kReducing) {
      for (const std::string& algorithm : algorithmsFor(collective)) {
        for (const koloDataType_t type : {koloInt16, koloComplex128}) {
          Wanted wanted = randomWanted(collective, algorithm, ranks, batch.random());
          wanted.reduction = Reduction::kAffine;
          wanted.op = koloSum;
          wanted.datatype = koloUint64;
          wanted.data = Data::kExact;
          batch.add(wanted);
          wanted.reduction = Reduction::kUserXor;
          wanted.datatype = type;
          wanted.count = std::min<std::size_t>(wanted.count, 700);
          batch.add(wanted);
        }
      }
    }
  });
}

}  // namespace
}  // namespace kolo::tests
