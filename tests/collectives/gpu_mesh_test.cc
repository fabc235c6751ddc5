// The all-reduce along the axes of a mesh, and lists, in the memory of a GPU (gpu_scene.h).
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "gpu_scene.h"
#include "lists.h"
#include "mesh_cases.h"

namespace kolo::tests {
namespace {

using Lengths = std::vector<int>;

// Which algorithm the ranks plan if mesh_ring is asked for.
std::string plannedAlongAxes(const World& world) {
  REQUIRE(koloCommSetAlgorithm(world.comm(0), "all_reduce:mesh_ring") == koloSuccess);
  koloPlan_t plan{};
  REQUIRE(koloCommGetPlan(world.comm(0), koloCollectiveAllReduce, 1000, koloFloat32, koloSum, 0, &plan) == koloSuccess);
  return plan.algorithm;
}

TEST_CASE("GPU: S3.6 the all-reduce by rings along the axes of a mesh", "[gpu][lists]") {
  const Lengths mesh = GENERATE(Lengths{2, 2}, Lengths{3, 2}, Lengths{2, 2, 2});
  const int ranks = ranksOf(mesh);
  const int perHost = GENERATE(0, 1, 2);
  if (ranks == 8 && perHost == 1 && isMocked()) return;
  const bool resident = ranks == 4 && perHost != 1;
  const int blocks = ranks == 4 ? 2 : 1;
  Gpu gpu(ranks, blocks, 1, resident);
  gpu.options.mesh = mesh;
  gpu.options.latePerHost = perHost;
  World world(gpu.options);
  CHECK(plannedAlongAxes(world) == "mesh_ring");
  runRounds(world, Rounds(meshNumber(20 + perHost, mesh)), [&](Batch& batch) {
    addAlongAxes(batch, ranks);
    Wanted wanted = randomWanted(koloCollectiveAllReduce, "mesh_ring", ranks, batch.random());
    wanted.count = pick(batch.random(), 40'000, 100'000) / kSlowdown;  // enough for all channels
    batch.add(wanted);
  });
}

TEST_CASE("GPU: S3.6 lists by rings along the axes of a mesh", "[gpu][lists]") {
  const int perHost = GENERATE(0, 2);
  Gpu gpu(4, 2, 2);
  gpu.options.mesh = {2, 2};
  gpu.options.latePerHost = perHost;
  World world(gpu.options);
  CHECK(plannedAlongAxes(world) == "mesh_ring");
  runLists(world, Rounds(listNumber(21, perHost)));
}

}  // namespace
}  // namespace kolo::tests
