// Lines of ranks in a mesh, and what algorithms and the planner are told of them.
#include "comm/mesh.h"

#include <catch2/catch.hpp>

#include "links/grid.h"

using kolo::comm::Mesh;

namespace {

std::vector<int> lineAlong(std::vector<int> dims, int ranks, const std::vector<int>& axes, int rank) {
  const kolo::Result<Mesh> mesh = Mesh::make(dims.data(), static_cast<int>(dims.size()), ranks);
  REQUIRE(mesh.ok());
  REQUIRE(mesh.value().checkAxes(axes).ok());
  return mesh.value().along(axes, rank);
}

}  // namespace

TEST_CASE("S3.6 the lines of a mesh are in row-major order of the axes as they are listed") {
  CHECK(lineAlong({2, 3}, 6, {0}, 4) == std::vector<int>{1, 4});
  CHECK(lineAlong({2, 3}, 6, {1}, 4) == std::vector<int>{3, 4, 5});
  CHECK(lineAlong({2, 3}, 6, {0, 1}, 4) == std::vector<int>{0, 1, 2, 3, 4, 5});
  CHECK(lineAlong({2, 3}, 6, {1, 0}, 4) == std::vector<int>{0, 3, 1, 4, 2, 5});
  CHECK(lineAlong({2, 2, 2}, 8, {0, 2}, 3) == std::vector<int>{2, 3, 6, 7});
  CHECK(lineAlong({1, 5, 1}, 5, {0}, 2) == std::vector<int>{2});
}

TEST_CASE("S3.6 the shape of a mesh has the lengths of the listed axes, without those of one rank") {
  const auto shapeAlong = [](const std::vector<int>& dims, int ranks, const std::vector<int>& axes) {
    const kolo::Result<Mesh> mesh = Mesh::make(dims.data(), static_cast<int>(dims.size()), ranks);
    REQUIRE(mesh.ok());
    return mesh.value().shapeAlong(axes);
  };
  CHECK(shapeAlong({2, 3}, 6, {0, 1}) == std::vector<int>{2, 3});
  CHECK(shapeAlong({2, 3}, 6, {1, 0}) == std::vector<int>{3, 2});
  CHECK(shapeAlong({2, 1, 3, 4}, 24, {0, 1, 3}) == std::vector<int>{2, 4});
  for (const std::vector<int>& axes : {std::vector<int>{0}, {1}, {0, 1}}) CHECK(shapeAlong({4, 1}, 4, axes).empty());
  CHECK(shapeAlong({1, 1}, 1, {0, 1}).empty());
}

TEST_CASE("S3.6 algorithms see the lines of a mesh, and the planner on how many hosts they are") {
  const auto hostsOf = [](const std::vector<int>& leaders) {
    std::vector<kolo::topology::Place> places;
    for (const int leader : leaders) places.push_back({.host = leader});
    return places;
  };
  kolo::links::Grid lines;
  kolo::planner::Machine machine;
  lines.arrangeMesh({2, 3}, hostsOf({0, 0, 0, 3, 3, 3}), 4, machine);
  REQUIRE(lines.shape.axes == 2);
  const kolo::device::RankGroup& first = lines.shape.lines[0];
  const kolo::device::RankGroup& second = lines.shape.lines[1];
  CHECK(std::vector<int>(first.members, first.members + first.ranks) == std::vector<int>{1, 4});
  CHECK(first.rank == 1);
  CHECK(std::vector<int>(second.members, second.members + second.ranks) == std::vector<int>{3, 4, 5});
  CHECK(second.rank == 1);
  REQUIRE(machine.mesh.size() == 2);
  CHECK(machine.mesh[0].ranks == 2);
  CHECK(machine.mesh[0].hosts == 2);
  CHECK(machine.mesh[1].ranks == 3);
  CHECK(machine.mesh[1].hosts == 1);
  kolo::links::Grid none;
  kolo::planner::Machine plain;
  none.arrangeMesh({}, hostsOf({0, 0}), 0, plain);
  CHECK(none.shape.axes == 0);
  CHECK(plain.mesh.empty());
}

TEST_CASE("a grid of hosts has their ranks in rows, whatever their numbers") {
  kolo::links::Grid grid;
  grid.arrange({2, 2}, {0, 2, 1, 3}, 1);  // ranks 0 and 2 on one host, 1 and 3 on the other
  REQUIRE(grid.shape.axes == 2);
  const kolo::device::RankGroup& across = grid.shape.lines[0];
  const kolo::device::RankGroup& inside = grid.shape.lines[1];
  CHECK(std::vector<int>(across.members, across.members + across.ranks) == std::vector<int>{0, 1});
  CHECK(across.rank == 1);
  CHECK(std::vector<int>(inside.members, inside.members + inside.ranks) == std::vector<int>{1, 3});
  CHECK(inside.rank == 0);
}
