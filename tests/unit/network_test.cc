// What the planner makes of what ranks say of their NICs, and what it then chooses.
#include "planner/network.h"

#include <catch2/catch.hpp>

#include "algorithms/catalogue.h"

namespace {

using namespace kolo;
using device::Algorithm;
using device::Collective;
using planner::Machine;
using planner::Query;
using planner::Uplink;

// Hosts with as many NICs as ranks on each; a rank uses `each` of them, begun with its own.
Machine machineOf(int hosts, int perHost, int each, double gigabytes) {
  std::vector<Uplink> ranks;
  for (int rank = 0; rank < hosts * perHost; ++rank) {
    Uplink uplink{.host = rank / perHost, .nics = {}};
    for (int i = 0; i < each; ++i) uplink.nics.push_back({"mlx5_" + std::to_string((rank + i) % perHost), gigabytes});
    uplink.hopUs = 3;
    uplink.postUs = 0.3;
    ranks.push_back(uplink);
  }
  Machine machine;
  machine.ranks = hosts * perHost;
  machine.hosts = hosts;
  machine.perHost = perHost;
  machine.cores = machine.ranks;
  machine.mapped = false;
  planner::useUplinks(ranks, machine);
  return machine;
}

planner::Choice choose(const Machine& machine, Collective collective, std::uint64_t bytes) {
  Query query;
  query.collective = collective;
  query.bytes = bytes;
  return planner::choose(query, machine, {});
}

constexpr double kGigabit = 0.125, k400Gigabits = 50;  // GB/s

}  // namespace

TEST_CASE("a host has what its ranks' NICs have together, a rank what it uses itself", "[network]") {
  const Machine own = machineOf(2, 4, 1, 12.5);
  CHECK(own.netGBps == 50);
  CHECK(own.netRankGBps == 12.5);
  CHECK(own.netNics == 4);
  const Machine two = machineOf(2, 4, 2, 12.5);  // the same four, each used by two ranks
  CHECK(two.netGBps == 50);
  CHECK(two.netRankGBps == 25);
  CHECK(two.netNics == 4);
  const Machine one = machineOf(2, 1, 1, 12.5);
  CHECK(one.netGBps == 12.5);
  CHECK(one.netNics == 1);
  CHECK(one.netHopUs == 3);
  CHECK(one.netPostUs == 0.3);
}

TEST_CASE("the narrowest host and the slowest hop count, and what nobody knows is what is usual", "[network]") {
  Machine machine;
  planner::useUplinks(
      {{.host = 0, .nics = {{"a", 12.5}, {"b", 12.5}}, .hopUs = 3}, {.host = 4, .nics = {{"a", 12.5}}, .hopUs = 5}},
      machine);
  CHECK(machine.netGBps == 12.5);
  CHECK(machine.netRankGBps == 12.5);
  CHECK(machine.netNics == 1);
  CHECK(machine.netHopUs == 5);
  CHECK(machine.netPostUs == Machine().netPostUs);
  planner::useUplinks({{.host = 0, .nics = {}}, {.host = 1, .nics = {{"eth0", 0}}}}, machine);
  CHECK(machine.netGBps == Machine().netGBps);
  CHECK(machine.netRankGBps == Machine().netRankGBps);
  CHECK(machine.netHopUs == Machine().netHopUs);
}

TEST_CASE("a rank that gets less through than its NICs carry counts with that, and so does its host", "[network]") {
  Machine machine;
  const std::vector<Uplink> ranks(4, {.host = 0, .nics = {{"eth0", 50}}, .mostGigabytes = 2.5});
  planner::useUplinks(ranks, machine);
  CHECK(machine.netRankGBps == 2.5);
  CHECK(machine.netGBps == 10);
}

TEST_CASE("where a rank has one of its host's four NICs, long operations are spread over all ranks", "[network]") {
  const Machine machine = machineOf(2, 4, 1, 1.25);
  CHECK(choose(machine, Collective::kAllReduce, 64 << 20).algorithm == Algorithm::kHierarchical);
  // A ring's border is crossed by one rank's NIC: not faster than with that one on the host alone.
  Query query;
  query.bytes = 64 << 20;
  Machine single = machine;
  single.netGBps = single.netRankGBps;
  CHECK(planner::networkUs(Algorithm::kRing, query, machine) == planner::networkUs(Algorithm::kRing, query, single));
  CHECK(planner::networkUs(Algorithm::kOneShot, query, machine) <
        planner::networkUs(Algorithm::kOneShot, query, single) / 3.9);
}

TEST_CASE("what is chosen follows the speed of the network", "[network]") {
  // Few bytes twice, or more at once: by 1 Gbit/s the bytes count, by 400 the steps.
  CHECK(choose(machineOf(4, 1, 1, kGigabit), Collective::kAllReduce, 1024).algorithm == Algorithm::kTwoShot);
  CHECK(choose(machineOf(4, 1, 1, k400Gigabits), Collective::kAllReduce, 1024).algorithm == Algorithm::kOneShot);
  CHECK(choose(machineOf(4, 1, 1, kGigabit), Collective::kBroadcast, 16384).algorithm == Algorithm::kRing);
  CHECK(choose(machineOf(4, 1, 1, k400Gigabits), Collective::kBroadcast, 16384).algorithm == Algorithm::kOneShot);
  // Between two, a header with the first chunk behind it saves a way there and back.
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kAllToAll}) {
    for (const double gigabytes : {kGigabit, k400Gigabits}) {
      CHECK(choose(machineOf(2, 1, 1, gigabytes), collective, 1024).algorithm == Algorithm::kOneShot);
    }
  }
  // A hierarchical one spares the network, and costs the cores more.
  CHECK(choose(machineOf(4, 4, 1, kGigabit), Collective::kAllReduce, 64 << 20).algorithm == Algorithm::kHierarchical);
  CHECK(choose(machineOf(4, 4, 1, k400Gigabits), Collective::kAllReduce, 64 << 20).algorithm == Algorithm::kTwoShot);
}

TEST_CASE("S3.6 many hosts that are a mesh reduce along its axes, where the model says that it pays", "[network]") {
  const Machine flat = machineOf(81, 1, 1, kGigabit);
  Machine mesh = flat;
  mesh.mesh = {{9, 9}, {9, 9}};
  const Query some{.collective = Collective::kAllReduce, .bytes = 1 << 20};
  CHECK(choose(flat, Collective::kAllReduce, 1 << 20).algorithm != Algorithm::kMeshRing);
  CHECK(choose(mesh, Collective::kAllReduce, 1 << 20).algorithm == Algorithm::kMeshRing);
  CHECK(planner::predictUs(Algorithm::kMeshRing, false, some, mesh) <
        planner::predictUs(Algorithm::kRing, false, some, mesh));
  CHECK_FALSE(planner::fits(Algorithm::kMeshRing, some, flat));
  CHECK(planner::fits(Algorithm::kMeshRing, some, mesh));
  CHECK(choose(mesh, Collective::kAllReduce, 8).algorithm != Algorithm::kMeshRing);
  CHECK(choose(mesh, Collective::kAllGather, 1 << 20).algorithm != Algorithm::kMeshRing);
  CHECK(planner::explain({.bytes = 1 << 20}, mesh, {}).find("81 hosts, a mesh of 9 x 9,") != std::string::npos);
  // In shared memory only if it is asked for.
  Machine mapped;
  mapped.ranks = mapped.cores = 81;
  mapped.mesh = {{9, 1}, {9, 1}};
  CHECK(choose(mapped, Collective::kAllReduce, 64 << 20).algorithm != Algorithm::kMeshRing);
  const auto asked = planner::parseWishes("all_reduce:mesh_ring");
  REQUIRE(asked.ok());
  const Query query{.collective = Collective::kAllReduce, .bytes = 64 << 20};
  CHECK(planner::choose(query, mapped, asked.value()).algorithm == Algorithm::kMeshRing);
  CHECK(planner::choose(query, flat, asked.value()).algorithm != Algorithm::kMeshRing);
  Query ordered = query;
  ordered.inOrder = true;
  CHECK(planner::choose(ordered, mesh, asked.value()).algorithm != Algorithm::kMeshRing);
}

// A host's ranks in a line send nothing over the network, and lines across hosts share it.
TEST_CASE("S3.6 an axis inside hosts costs no network, and lines across hosts share theirs", "[network]") {
  Machine mesh = machineOf(8, 4, 1, kGigabit);
  mesh.mesh = {{8, 8}, {4, 1}};
  const Query query{.collective = Collective::kAllReduce, .bytes = 64 << 20};
  const double inside = planner::predictUs(Algorithm::kMeshRing, false, query, mesh);
  mesh.mesh = {{8, 8}, {4, 4}};
  CHECK(planner::predictUs(Algorithm::kMeshRing, false, query, mesh) > 1.5 * inside);
  mesh.mesh = {{8, 8}, {4, 1}};
  mesh.netGBps = mesh.netRankGBps;  // one NIC for all four
  CHECK(planner::predictUs(Algorithm::kMeshRing, false, query, mesh) > 2 * inside);
}

// A channel of a GPU has a part of the message, which may be short where the message is long.
TEST_CASE("the algorithm of a broadcast's steps inside hosts serves those of short and long ones", "[network]") {
  for (const int perHost : {2, 4, 16}) {
    for (const double gigabytes : {kGigabit, k400Gigabits}) {
      for (std::uint64_t bytes = 1024; bytes <= 64 << 20; bytes *= 4) {
        const planner::Steps steps =
            planner::planSteps(Algorithm::kHierarchical, {.collective = Collective::kBroadcast, .bytes = bytes},
                               machineOf(4, perHost, 1, gigabytes));
        INFO(perHost << " ranks on a host, " << bytes << " bytes");
        CHECK(device::isIn(Collective::kBroadcast, algorithms::rowOf(steps.alongOthers).steps));
        CHECK(device::isIn(Collective::kAllGather, algorithms::rowOf(steps.alongOthers).steps));
        CHECK(device::isIn(Collective::kBroadcast, algorithms::rowOf(steps.alongFirst).steps));
      }
    }
  }
}

TEST_CASE("between hosts of one rank a long broadcast goes along two trees", "[network]") {
  for (const double gigabytes : {kGigabit, 1.25, k400Gigabits}) {
    for (const int hosts : {4, 8, 64}) {
      const Machine machine = machineOf(hosts, 1, 1, gigabytes);
      CHECK(choose(machine, Collective::kBroadcast, 1 << 20).algorithm == Algorithm::kDoubleTree);
      CHECK(choose(machine, Collective::kBroadcast, 1 << 19).algorithm != Algorithm::kDoubleTree);
      CHECK(choose(machine, Collective::kReduce, 1 << 20).algorithm != Algorithm::kDoubleTree);
    }
    CHECK(choose(machineOf(2, 1, 1, gigabytes), Collective::kBroadcast, 1 << 20).algorithm == Algorithm::kOneShot);
  }
  // Through the one NIC of a host with several ranks a ring sends the data once.
  Machine shared = machineOf(4, 8, 1, kGigabit);
  shared.netGBps = shared.netRankGBps;
  CHECK(choose(shared, Collective::kBroadcast, 64 << 20).algorithm == Algorithm::kRing);
}

TEST_CASE("an explanation has the numbers of the network", "[network]") {
  const std::string text = planner::explain({.bytes = 1 << 20}, machineOf(2, 4, 1, 12.5), {});
  CHECK(text.find("network, one way: 50 GB/s of a host by 4 NICs, 12.5 GB/s of a rank; 3 us for a message, 0.3 us to "
                  "send it\n") != std::string::npos);
}
