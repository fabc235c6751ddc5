// Lines of ranks in a mesh.
#include "comm/mesh.h"

#include <catch2/catch.hpp>

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
