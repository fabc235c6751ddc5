// Communicators and neighbours along axes of a mesh.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "subgroups.h"

using namespace kolo::test;

namespace {

std::vector<int> coordinatesOf(int rank, const std::vector<int>& dims) {
  std::vector<int> coordinates(dims.size());
  for (std::size_t axis = dims.size(); axis-- > 0; rank /= dims[axis]) coordinates[axis] = rank % dims[axis];
  return coordinates;
}

// The ranks that differ from this one on the axes at most, sorted by their coordinates there: the definition.
std::vector<int> lineOf(int rank, const std::vector<int>& dims, const std::vector<int>& axes, int ranks) {
  const std::vector<int> mine = coordinatesOf(rank, dims);
  std::vector<std::pair<std::vector<int>, int>> found;
  for (int other = 0; other < ranks; ++other) {
    const std::vector<int> theirs = coordinatesOf(other, dims);
    bool isIn = true;
    for (int axis = 0; axis < static_cast<int>(dims.size()); ++axis) {
      const auto at = static_cast<std::size_t>(axis);
      if (placeIn(axes, axis) < 0 && theirs[at] != mine[at]) isIn = false;
    }
    if (!isIn) continue;
    std::vector<int> key;
    for (const int axis : axes) key.push_back(theirs[static_cast<std::size_t>(axis)]);
    found.emplace_back(key, other);
  }
  std::sort(found.begin(), found.end());
  std::vector<int> line;
  for (const auto& [key, other] : found) line.push_back(other);
  return line;
}

void expectMesh(Self& self, const std::vector<int>& dims, const std::vector<int>& axes) {
  const int ndim = static_cast<int>(dims.size()), naxes = static_cast<int>(axes.size());
  const std::vector<int> line = lineOf(self.rank, dims, axes, self.ranks);
  koloComm_t comm = nullptr;
  EXPECT_OK(self, koloMeshComm(self.comm, dims.data(), ndim, axes.data(), naxes, &comm, nullptr));
  if (comm == nullptr) return;
  expectIsOf(self, comm, line);
  int before = -1, after = -1;
  EXPECT_OK(self, koloMeshNeighbors(self.comm, dims.data(), ndim, axes.data(), naxes, &before, &after));
  const auto at = static_cast<std::size_t>(placeIn(line, self.rank));
  EXPECT(self, before == line[(at + line.size() - 1) % line.size()]);
  EXPECT(self, after == line[(at + 1) % line.size()]);
  if (after != self.rank) {  // around the ring, by the parent's ranks
    int got = -1;
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloSend(&self.rank, 1, koloInt32, after, self.comm, nullptr));
    EXPECT_OK(self, koloRecv(&got, 1, koloInt32, before, self.comm, nullptr));
    EXPECT_OK(self, koloGroupEnd());
    EXPECT(self, got == before);
  }
  EXPECT_OK(self, koloCommDestroy(comm));
}

koloComm_t makeMesh(Self& self, const std::vector<int>& dims, const std::vector<int>& axes,
                    const char* name = nullptr) {
  koloConfig_t config = defaultConfig();
  config.name = name;
  koloComm_t comm = nullptr;
  EXPECT_OK(self, koloMeshComm(self.comm, dims.data(), static_cast<int>(dims.size()), axes.data(),
                               static_cast<int>(axes.size()), &comm, &config));
  return comm;
}

// Whether the communicator's all-reduce goes along axes, where that is asked for; and that it works.
bool goesAlongAxes(Self& self, koloComm_t comm) {
  int rank = -1, ranks = 0;
  EXPECT_OK(self, koloCommUserRank(comm, &rank));
  EXPECT_OK(self, koloCommCount(comm, &ranks));
  std::vector<int> mine(1000, rank + 1), sums(mine.size());
  EXPECT_OK(self, koloAllReduce(mine.data(), sums.data(), mine.size(), koloInt32, koloSum, comm, nullptr));
  EXPECT(self, sums == std::vector<int>(mine.size(), ranks * (ranks + 1) / 2));
  koloPlan_t plan{};
  EXPECT_OK(self, koloCommGetPlan(comm, koloCollectiveAllReduce, mine.size(), koloInt32, koloSum, 0, &plan));
  return plan.algorithm == std::string("mesh_ring");
}

}  // namespace

TEST_CASE("S3.6 communicators and neighbours along one axis and several of an N-dimensional mesh") {
  struct Case {
    std::vector<int> dims;
    std::vector<std::vector<int>> axes;
  };
  for (const char* const transports : {static_cast<const char*>(nullptr), "tcp"}) {
    for (const Case& each :
         {Case{{3, 4}, {{0}, {1}, {0, 1}, {1, 0}}}, Case{{2, 3, 2}, {{0}, {1}, {2}, {0, 2}, {2, 1}, {1, 0, 2}}},
          Case{{1, 12, 1}, {{0}, {1}, {2, 1}}}, Case{{12}, {{0}}}}) {
      if (transports != nullptr && each.dims.size() != 2) continue;
      World world(12, configWithTransports(transports));
      world.run([&](Self& self) {
        for (const std::vector<int>& axes : each.axes) expectMesh(self, each.dims, axes);
        expectWorks(self);
      });
    }
  }
}

TEST_CASE("S3.6 a communicator along an axis that is made twice is the same one") {
  World world(4);
  world.run([](Self& self) {
    const int dims[] = {2, 2}, axis[] = {1};
    koloComm_t first = nullptr, second = nullptr;
    EXPECT_OK(self, koloMeshComm(self.comm, dims, 2, axis, 1, &first, nullptr));
    EXPECT_OK(self, koloMeshComm(self.comm, dims, 2, axis, 1, &second, nullptr));
    EXPECT(self, first == second);
    EXPECT_OK(self, koloCommDestroy(first));
    EXPECT_OK(self, koloCommDestroy(second));
  });
}

TEST_CASE("S3.6 a communicator along several axes has their lengths as its shape, and what is made of it has none",
          "[links]") {
  World world(6, configWithAlgorithm("all_reduce:mesh_ring"));
  world.run([](Self& self) {
    EXPECT(self, !goesAlongAxes(self, self.comm));
    const koloComm_t mesh = makeMesh(self, {2, 3}, {0, 1});
    EXPECT(self, goesAlongAxes(self, mesh));
    char text[4096] = {};
    EXPECT_OK(self,
              koloExplain(mesh, 0, koloCollectiveAllReduce, 1000, koloInt32, koloSum, 0, text, sizeof text, nullptr));
    EXPECT(self, std::string(text).find("a mesh of 2 x 3") != std::string::npos);
    EXPECT(self, std::string(text).find("mesh_ring was asked for\n") != std::string::npos);

    const koloComm_t again = makeMesh(self, {2, 1, 3}, {0, 1, 2}), turned = makeMesh(self, {3, 2}, {0, 1});
    EXPECT(self, again == mesh);
    EXPECT(self, turned != mesh);
    EXPECT(self, goesAlongAxes(self, turned));
    koloComm_t group = nullptr, part = nullptr, shrunk = nullptr;
    EXPECT_OK(self, createGroup(self, {0, 1, 2, 3, 4, 5}, &group));
    EXPECT(self, group != mesh);
    EXPECT_OK(self, koloCommSplit(mesh, 0, self.rank, &part, nullptr));
    EXPECT_OK(self, koloCommShrink(mesh, nullptr, 0, &shrunk, nullptr));
    const koloComm_t line = makeMesh(self, {2, 3}, {1}), flat = makeMesh(self, {6, 1}, {0, 1});
    EXPECT(self, flat == group);
    for (const koloComm_t each : {group, part, shrunk, line, flat}) EXPECT(self, !goesAlongAxes(self, each));
    for (const koloComm_t each : {mesh, again, turned, group, part, shrunk, line, flat})
      EXPECT_OK(self, koloCommDestroy(each));
  });
}

TEST_CASE("S3.6 a mesh of one rank, or along axes of one rank, works like any communicator") {
  const int ranks = GENERATE(1, 4);
  World world(ranks, configWithAlgorithm("all_reduce:mesh_ring"));
  world.run([](Self& self) {
    const koloComm_t mesh = makeMesh(self, {self.ranks, 1}, {0, 1});
    EXPECT(self, !goesAlongAxes(self, mesh));
    EXPECT_OK(self, koloCommDestroy(mesh));
  });
}

TEST_CASE("S3.6 members that give one list of ranks other shapes are told so") {
  const char* const name = GENERATE(static_cast<const char*>(nullptr), "both");
  World world(6);
  world.run([&](Self& self) {
    const int dims[][2] = {{2, 3}, {3, 2}}, axes[] = {0, 1};
    koloConfig_t config = defaultConfig();
    config.name = name;
    koloComm_t comm = nullptr;
    EXPECT_CODE(self, koloMismatch, koloMeshComm(self.comm, dims[self.rank % 2], 2, axes, 2, &comm, &config));
    EXPECT(self, comm == nullptr);
    EXPECT(self, messageHas("2 x 3"));
    EXPECT(self, messageHas("3 x 2"));
    const koloComm_t mesh = makeMesh(self, {2, 3}, {0, 1}, name);
    EXPECT_OK(self, koloCommDestroy(mesh));
    expectWorks(self);
  });
}

TEST_CASE("S3.6 a mesh that does not fit the ranks, and axes that it does not have, are refused") {
  World world(6);
  koloComm_t made = nullptr;
  int before = -9, after = -9;
  const auto expectRefused = [&](koloResult_t code, std::vector<int> dims, std::vector<int> axes, const char* words) {
    const int ndim = static_cast<int>(dims.size()), naxes = static_cast<int>(axes.size());
    CHECK_CODE(code, koloMeshComm(world[0], dims.data(), ndim, axes.data(), naxes, &made, nullptr));
    INFO(koloGetLastError(nullptr));
    CHECK(messageHas(words));
    CHECK_CODE(code, koloMeshNeighbors(world[0], dims.data(), ndim, axes.data(), naxes, &before, &after));
    CHECK(messageHas(words));
  };
  expectRefused(koloInvalidArgument, {2, 2}, {0}, "a mesh of 2 x 2 has not as many places");
  expectRefused(koloInvalidArgument, {1 << 30, 1 << 30, 1 << 30}, {0}, "not as many places");
  expectRefused(koloInvalidArgument, {0, 6}, {0}, "dims[0] is 0");
  expectRefused(koloInvalidArgument, {-2, -3}, {0}, "dims[0] is -2");
  expectRefused(koloInvalidArgument, {2, 3}, {2}, "axes has 2, expected axes 0..1 of a mesh of 2 x 3");
  expectRefused(koloInvalidArgument, {2, 3}, {-1}, "axes has -1");
  expectRefused(koloInvalidArgument, {2, 3}, {1, 1}, "axes has axis 1 twice");
  expectRefused(koloInvalidCount, {2, 3}, {}, "naxes is 0");
  expectRefused(koloInvalidCount, {2, 3}, {0, 1, 0}, "naxes is 3");
  expectRefused(koloInvalidCount, {}, {0}, "ndim is 0");
  const int dims[] = {6}, axis[] = {0};
  CHECK_CODE(koloInvalidPointer, koloMeshComm(world[0], nullptr, 1, axis, 1, &made, nullptr));
  CHECK_CODE(koloInvalidPointer, koloMeshComm(world[0], dims, 1, nullptr, 1, &made, nullptr));
  CHECK_CODE(koloInvalidPointer, koloMeshComm(world[0], dims, 1, axis, 1, nullptr, nullptr));
  CHECK_CODE(koloInvalidPointer, koloMeshNeighbors(world[0], dims, 1, axis, 1, nullptr, &after));
  CHECK_CODE(koloInvalidPointer, koloMeshNeighbors(world[0], dims, 1, axis, 1, &before, nullptr));
  CHECK_CODE(koloInvalidHandle, koloMeshNeighbors(nullptr, dims, 1, axis, 1, &before, &after));
  CHECK_CODE(koloInvalidHandle, koloMeshComm(nullptr, dims, 1, axis, 1, &made, nullptr));
  CHECK(made == nullptr);
  CHECK(before == -9);
  CHECK(after == -9);
}
