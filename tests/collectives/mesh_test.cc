// The all-reduce along the axes of a mesh, on the host.
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>

#include "lists.h"
#include "mesh_cases.h"

namespace kolo::tests {

void addAlongAxes(Batch& batch, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  for (const std::string& algorithm : meshAlgorithmsFor(koloCollectiveAllReduce)) {
    const auto wish = [&] { return randomWanted(koloCollectiveAllReduce, algorithm, ranks, batch.random()); };
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, n - 1, n, n + 1, std::size_t{97}, std::size_t{4099}}) {
      Wanted wanted = wish();
      wanted.count = count;
      batch.add(wanted);
    }
    for (const koloDataType_t datatype : {koloFloat16, koloBfloat16, koloFloat8e4m3, koloFloat8e5m2}) {
      Wanted wanted = wish();
      wanted.datatype = datatype;
      wanted.op = koloAvg;
      wanted.data = chance(batch.random(), 0.5) ? Data::kLarge : Data::kTiny;
      wanted.count = pick(batch.random(), 1, 5000);
      batch.add(wanted);
    }
    for (const koloDataType_t datatype : {koloFloat32, koloFloat64, koloInt32}) {
      Wanted wanted = wish();
      wanted.datatype = datatype;
      wanted.data = Data::kExact;
      wanted.op = koloAvg;
      batch.add(wanted);
      wanted.op = koloSum;
      wanted.reduction = Reduction::kPreMulSum;
      batch.add(wanted);
    }
    for (int turn = 0; turn < 2; ++turn) batch.add(wish());
  }
}

int ranksOf(const std::vector<int>& mesh) { return std::accumulate(mesh.begin(), mesh.end(), 1, std::multiplies<>()); }

int meshNumber(int test, const std::vector<int>& mesh) {
  int number = 5000 + test * 1000;
  for (const int length : mesh) number = number * 7 + length;
  return number;
}

namespace {

using Lengths = std::vector<int>;

void runAlongAxes(WorldOptions options, int test) {
  options.ranks = ranksOf(options.mesh);
  World world(options);
  runRounds(world, Rounds(meshNumber(test, options.mesh)), [&](Batch& batch) { addAlongAxes(batch, options.ranks); });
}

TEST_CASE("S3.6 the all-reduce by rings along the axes of a mesh gives what its definition says", "[threads]") {
  const UseExecutor host(0);
  WorldOptions options;
  options.mesh =
      GENERATE(Lengths{2, 2}, Lengths{2, 3}, Lengths{3, 2}, Lengths{2, 1, 3}, Lengths{2, 2, 2}, Lengths{3, 5});
  runAlongAxes(options, 0);
}

TEST_CASE("S3.6 rings along the axes of a mesh by emulated blocks") {
  const unsigned threads = GENERATE(1u, 3u);
  const UseExecutor emulated(threads);
  WorldOptions options;
  options.mesh = GENERATE(Lengths{2, 2}, Lengths{3, 2});
  runAlongAxes(options, 1);
}

TEST_CASE("S3.6 rings along the axes of a mesh over tcp links") {
  const UseExecutor host(0);
  WorldOptions options;
  options.transports = "tcp";
  options.mesh = GENERATE(Lengths{2, 3}, Lengths{2, 2, 2});
  runAlongAxes(options, 2);
}

// Axes along hosts, across them, and both; and an order of the ranks that hosts do not follow.
TEST_CASE("S3.6 rings along the axes of a mesh between hosts", "[posted]") {
  struct Shape {
    Lengths mesh;
    int perHost;
    bool inTurn = false;
  };
  const Shape shape = GENERATE(Shape{{2, 2}, 1}, Shape{{2, 3}, 3}, Shape{{2, 3}, 2}, Shape{{3, 2}, 1},
                               Shape{{2, 2, 2}, 2}, Shape{{2, 2, 2}, 4}, Shape{{3, 2}, 2, true});
  const UseExecutor host(0);
  WorldOptions options;
  options.mesh = shape.mesh;
  options.latePerHost = shape.perHost;
  options.inTurn = shape.inTurn;
  runAlongAxes(options, 3 + shape.perHost);
}

TEST_CASE("S3.6 rings along the axes of a mesh while links are lost and replaced", "[posted][reroute]") {
  const UseExecutor host(0);
  WorldOptions options;
  options.ranks = 4;
  options.mesh = {2, 2};
  options.latePerHost = 1;
  options.losesAfter = GENERATE(10, 300);
  for (Rounds rounds(meshNumber(8, options.mesh)); rounds.next();) {
    World world(options);
    Batch batch(world, rounds.seed());
    addAlongAxes(batch, options.ranks);
    batch.run();
  }
}

TEST_CASE("S3.6 large buffers by rings along the axes of a mesh") {
  const int perHost = GENERATE(0, 2);
  const UseExecutor host(0);
  World world({.ranks = 6, .staging = "8M", .windowBytes = 24 << 20, .latePerHost = perHost, .mesh = {3, 2}});
  runRounds(world, Rounds(meshNumber(9, {3, 2})), [](Batch& batch) {
    for (const koloRedOp_t op : {koloAvg, koloSum}) {
      Wanted wanted = randomWanted(koloCollectiveAllReduce, "mesh_ring", 6, batch.random());
      wanted.datatype = koloFloat32;
      wanted.op = op;
      wanted.data = Data::kExact;
      wanted.count = pick(batch.random(), 50000, 200000) / kSlowdown;
      batch.add(wanted);
    }
  });
}

TEST_CASE("S3.6 lists by rings along the axes of a mesh") {
  struct Shape {
    Lengths mesh;
    int perHost = 0;
    unsigned threads = 0;
  };
  const Shape shape = GENERATE(Shape{{2, 2}}, Shape{{2, 3}}, Shape{{2, 2, 2}}, Shape{{2, 2}, 2}, Shape{{2, 2}, 0, 3});
  const UseExecutor executor(shape.threads);
  WorldOptions options;
  options.mesh = shape.mesh;
  options.ranks = ranksOf(shape.mesh);
  options.latePerHost = shape.perHost;
  World world(options);
  runLists(world, Rounds(listNumber(20, options.ranks)));
}

// The planner's choices on such communicators, for all collectives.
TEST_CASE("S3.6 every collective on a communicator that is a mesh", "[posted]") {
  const int perHost = GENERATE(0, 1, 2);
  const UseExecutor host(0);
  World world({.ranks = 4, .latePerHost = perHost, .mesh = {2, 2}});
  runRounds(world, Rounds(meshNumber(10, {2, perHost})), [](Batch& batch) {
    for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i)
      batch.add(randomWanted(static_cast<koloCollective_t>(i), "", 4, batch.random()));
  });
}

}  // namespace
}  // namespace kolo::tests
