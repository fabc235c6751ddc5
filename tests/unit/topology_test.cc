#include "topology/topology.h"

#include <sched.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>
#include <tuple>

using kolo::topology::cpuQuota;
using kolo::topology::Place;
using kolo::topology::ringOrder;

namespace {

template <class KeyOf>
bool isContiguous(const std::vector<Place>& places, const std::vector<int>& order, KeyOf keyOf) {
  std::set<decltype(keyOf(places[0]))> seen;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const auto key = keyOf(places[static_cast<std::size_t>(order[at])]);
    const bool continues = at > 0 && key == keyOf(places[static_cast<std::size_t>(order[at - 1])]);
    if (!continues && !seen.insert(key).second) return false;
  }
  return true;
}

bool isPermutation(std::vector<int> order) {
  std::sort(order.begin(), order.end());
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    if (order[rank] != static_cast<int>(rank)) return false;
  }
  return true;
}

std::vector<Place> scattered(int ranks, int hosts) {
  std::mt19937 random(7);
  std::vector<Place> places(static_cast<std::size_t>(ranks));
  for (Place& place : places) {
    const auto draw = [&](unsigned n) { return static_cast<int>(random() % n); };
    place = {draw(static_cast<unsigned>(hosts)), draw(2) - 1, draw(3) - 1, draw(9) - 1};
  }
  return places;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kolo-topology-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("a ring keeps every host, package, NUMA node and core together", "[topology]") {
  const std::vector<Place> places = scattered(5000, 17);
  const std::vector<int> order = ringOrder(places);
  CHECK(isPermutation(order));
  CHECK(isContiguous(places, order, [](const Place& p) { return p.host; }));
  CHECK(isContiguous(places, order, [](const Place& p) { return std::tuple(p.host, p.package); }));
  CHECK(isContiguous(places, order, [](const Place& p) { return std::tuple(p.host, p.package, p.numa); }));
  CHECK(isContiguous(places, order, [](const Place& p) { return std::tuple(p.host, p.package, p.numa, p.core); }));
}

TEST_CASE("a ring orders groups by their lowest rank and ranks by number", "[topology]") {
  const std::vector<Place> places = {{9, 1, 0, 0}, {4, 0, 0, 0}, {9, 0, 0, 0}, {4, 0, 0, 1}, {9, 1, 0, 0}};
  CHECK(ringOrder(places) == std::vector<int>{0, 4, 2, 1, 3});
}

TEST_CASE("a ring leaves ranks that are not bound in their order", "[topology]") {
  CHECK(ringOrder(std::vector<Place>(4)) == std::vector<int>{0, 1, 2, 3});
  CHECK(ringOrder({}).empty());
}

TEST_CASE("a ring of ranks that were placed on hosts in turn leaves each host once", "[topology]") {
  std::vector<Place> places;
  for (int rank = 0; rank < 12; ++rank) places.push_back({.host = rank % 3, .package = rank / 3 % 2});
  const std::vector<int> order = ringOrder(places);
  CHECK(order == std::vector<int>{0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11});
  int crossings = 0;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const auto host = [&](std::size_t place) {
      return places[static_cast<std::size_t>(order[place % order.size()])].host;
    };
    crossings += host(at) != host(at + 1);
  }
  CHECK(crossings == 3);
}

// So many that a method whose time grows with their square would not end before the suite's watchdog.
TEST_CASE("a ring of 131072 ranks is ordered", "[topology]") {
  const std::vector<Place> places = scattered(131072, 16384);
  const std::vector<int> order = ringOrder(places);
  CHECK(isPermutation(order));
  CHECK(isContiguous(places, order, [](const Place& p) { return p.host; }));
}

TEST_CASE("the CPU quota is the tightest of the control group and its ancestors", "[topology]") {
  const TemporaryFolder mount;
  mount.write("cpu.max", "max 100000\n");
  mount.write("jobs/cpu.max", "150000 100000\n");
  mount.write("jobs/mine/cpu.max", "400000 100000\n");
  CHECK(cpuQuota("0::/jobs/mine\n", mount.path()) == 1.5);
  CHECK(cpuQuota("0::/\n", mount.path()) == 0);
  CHECK(cpuQuota("0::/other\n", mount.path()) == 0);
}

TEST_CASE("a container's CPU quota is found although its group's path is that of the outer system", "[topology]") {
  const TemporaryFolder mount;
  mount.write("cpu.max", "250000 100000\n");
  CHECK(cpuQuota("0::/../../outside\n", mount.path()) == 2.5);
}

TEST_CASE("the CPU quota of version 1 control groups is found", "[topology]") {
  const TemporaryFolder mount;
  mount.write("cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
  mount.write("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  CHECK(cpuQuota("8:pids:/job\n4:cpu,cpuacct:/job\n0::/\n", mount.path()) == 3);
  mount.write("cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  CHECK(cpuQuota("4:cpu,cpuacct:/job\n", mount.path()) == 0);
}

TEST_CASE("malformed control group texts mean no limit", "[topology]") {
  const TemporaryFolder mount;
  mount.write("cpu.max", "many\n");
  CHECK(cpuQuota("0::/\n", mount.path()) == 0);
  CHECK(cpuQuota("", mount.path()) == 0);
  CHECK(cpuQuota("nonsense\n1:\n:::\n0::relative\n", mount.path()) == 0);
}

TEST_CASE("the machine is consistent in itself", "[topology]") {
  const kolo::topology::Machine& machine = kolo::topology::machine();
  CHECK(machine.packages >= 1);
  CHECK(machine.cores >= machine.packages);
  CHECK(machine.threads >= machine.cores);
  CHECK(machine.memoryBytes > 0);
  CHECK(machine.available >= 1);
  CHECK(machine.available <= static_cast<int>(machine.allowedThreads.size()));
  CHECK(static_cast<int>(machine.allowedThreads.size()) <= machine.threads);
  CHECK(std::is_sorted(machine.allowedThreads.begin(), machine.allowedThreads.end()));
  CHECK(kolo::topology::availableCores() == machine.available);
}

TEST_CASE("the threads that affinity allows are found", "[topology]") {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> expected;
  for (int thread = 0; thread < CPU_SETSIZE; ++thread) {
    if (CPU_ISSET(thread, &set)) expected.push_back(thread);
  }
  CHECK(kolo::topology::machine().allowedThreads == expected);
}

TEST_CASE("the topology may be asked from several threads at once", "[topology][threads]") {
  std::vector<const kolo::topology::Machine*> seen(4);
  std::vector<std::thread> threads;
  for (auto& slot : seen) threads.emplace_back([&slot] { slot = &kolo::topology::machine(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto* one : seen) CHECK(one == seen.front());
}

TEST_CASE("the place of a process names the host that was given", "[topology]") {
  const Place place = kolo::topology::placeOfProcess(3);
  CHECK(place.host == 3);
  CHECK(place.package < kolo::topology::machine().packages);
  CHECK(place.core < kolo::topology::machine().cores);
}
