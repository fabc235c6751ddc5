// Lists of items and arrays with strides in the memory of a GPU, as in lists_test.cc.
#include <algorithm>
#include <catch2/catch.hpp>

#include "gpu_scene.h"
#include "lists.h"

namespace kolo::tests {
namespace {

TEST_CASE("GPU: S0.5 S1.5 S2.4 S2.5 S4.4 lists and axes: every collective gives what its definition says",
          "[gpu][lists]") {
  const int ranks = GENERATE(1, 2, 3, 5);
  const int blocks = GENERATE(1, 3);
  if (ranks == 5 && blocks == 3 && isMocked()) return;
  Gpu gpu(ranks, blocks, ranks > 3 ? 1 : 3);
  World world(gpu.options);
  runLists(world, Rounds(listNumber(4, ranks)), blocks == 1 ? ListAlgorithms::kEvery : ListAlgorithms::kAny);
}

TEST_CASE("GPU: lists and axes beside a resident kernel", "[gpu][lists]") {
  Gpu gpu(2, 2, 2, true);
  World world(gpu.options);
  runLists(world, Rounds(listNumber(5, 2)));
}

TEST_CASE("GPU: lists and axes on reproducible communicators", "[gpu][lists]") {
  Gpu gpu(3, 2, 2);
  gpu.options.reproducible = true;
  World world(gpu.options);
  runLists(world, Rounds(listNumber(6, 3)));
}

TEST_CASE("GPU: lists and axes over posted links, and between hosts of several ranks", "[gpu][posted]") {
  const int perHost = GENERATE(1, 2);
  Gpu gpu(4, 2, 1);
  gpu.options.latePerHost = perHost;
  World world(gpu.options);
  runLists(world, Rounds(listNumber(7, perHost)));
}

TEST_CASE("GPU: S0.8 S1.8 S4.4 arrays between axes", "[gpu][lists]") {
  Gpu gpu(3, 2, 2);
  World world(gpu.options);
  exchangeAxes(world);
  reshardEveryWay(world);
}

}  // namespace
}  // namespace kolo::tests
