// NICs and the ranks near them, on machines that are described by hwloc's XML.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "topology/topology.h"

namespace {

using kolo::topology::Described;
using kolo::topology::Nic;
using kolo::topology::nicsNear;
using kolo::topology::Place;
using Names = std::vector<std::string>;
namespace fs = std::filesystem;

constexpr int kNetwork = 2, kRdma = 3;  // hwloc's numbers of kinds of devices
constexpr int kCores = 4;               // of each package, which is a NUMA node

struct Card {
  std::string name;
  int kind;
};

// As lstopo writes it: packages of four cores, with the cards that hang at each; those at the end hang at the machine.
class Xml {
 public:
  explicit Xml(const std::vector<std::vector<Card>>& perPackage, const std::vector<Card>& atMachine = {}) {
    const int packages = static_cast<int>(perPackage.size());
    text_ =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
        "version=\"2.0\">\n";
    open("Machine", 0, (1 << kCores * packages) - 1, (1 << packages) - 1);
    for (int package = 0; package < packages; ++package) {
      const int node = 1 << package, cpus = ((1 << kCores) - 1) << kCores * package;
      open("Package", package, cpus, node);
      open("NUMANode", package, cpus, node);
      close();
      for (int core = kCores * package; core < kCores * (package + 1); ++core) {
        open("Core", core, 1 << core, node);
        open("PU", core, 1 << core, node);
        close();
        close();
      }
      addCards(perPackage[static_cast<std::size_t>(package)]);
      close();
    }
    addCards(atMachine);
    close();
    text_ += "</topology>\n";
  }
  const std::string& text() const { return text_; }

 private:
  void open(const char* type, int number, int cpus, int nodes) {
    text_ += fmt::format(
        "<object type=\"{0}\" os_index=\"{1}\" cpuset=\"{2:#x}\" complete_cpuset=\"{2:#x}\" allowed_cpuset=\"{2:#x}\" "
        "nodeset=\"{3:#x}\" complete_nodeset=\"{3:#x}\" allowed_nodeset=\"{3:#x}\" gp_index=\"{4}\">\n",
        type, number, cpus, nodes, ++objects_);
  }
  void close() { text_ += "</object>\n"; }
  void addCards(const std::vector<Card>& cards) {
    if (cards.empty()) return;
    const int bus = buses_;
    buses_ += 16;
    text_ += fmt::format(
        "<object type=\"Bridge\" gp_index=\"{}\" bridge_type=\"0-1\" depth=\"0\" "
        "bridge_pci=\"0000:[{:02x}-{:02x}]\">\n",
        ++objects_, bus, bus + 15);
    for (std::size_t i = 0; i < cards.size(); ++i) {
      text_ += fmt::format(
          "<object type=\"PCIDev\" gp_index=\"{}\" pci_busid=\"0000:{:02x}:{:02x}.0\" "
          "pci_type=\"0200 [15b3:1019] [15b3:0008] 00\" pci_link_speed=\"0.000000\">\n"
          "<object type=\"OSDev\" gp_index=\"{}\" name=\"{}\" osdev_type=\"{}\"/>\n</object>\n",
          objects_ + 1, bus, i, objects_ + 2, cards[i].name, cards[i].kind);
      objects_ += 2;
    }
    close();
  }

  std::string text_;
  int objects_ = 0, buses_ = 16;
};

Described described(const Xml& xml, const std::vector<int>& threads) {
  auto result = kolo::topology::describe(xml.text(), threads);
  INFO(result.status().message());
  REQUIRE(result.ok());
  return result.take();
}

Xml fourNics() { return Xml({{{"mlx5_0", kRdma}, {"mlx5_1", kRdma}}, {{"mlx5_2", kRdma}, {"mlx5_3", kRdma}}}); }

Names near(const Xml& xml, const std::vector<int>& threads, int turn) {
  const Described found = described(xml, threads);
  return nicsNear(found.nics, found.place, turn);
}

}  // namespace

TEST_CASE("NICs are found with the package and NUMA node that they hang at", "[nics]") {
  const Described found =
      described(Xml({{{"mlx5_0", kRdma}}, {{"eth7", kNetwork}, {"nvme0n1", 0}}}, {{"eth9", kNetwork}}), {5});
  REQUIRE(found.nics.size() == 3);
  std::map<std::string, Nic> nics;
  for (const Nic& nic : found.nics) nics[nic.name] = nic;
  CHECK(nics["mlx5_0"].isRdma);
  CHECK(nics["mlx5_0"].place.package == 0);
  CHECK(nics["mlx5_0"].place.numa == 0);
  CHECK(nics["mlx5_0"].pciBus == "0000:10:00.0");
  CHECK_FALSE(nics["eth7"].isRdma);
  CHECK(nics["eth7"].place.package == 1);
  CHECK(nics["eth7"].place.numa == 1);
  CHECK(nics["eth9"].place.package == -1);
  CHECK(nics["eth9"].place.numa == -1);
  CHECK(found.place.package == 1);
  CHECK(found.place.numa == 1);
  CHECK(found.place.core == 5);
}

TEST_CASE("of four NICs at two packages a rank has the two near ones, and ranks begin with different ones", "[nics]") {
  CHECK(near(fourNics(), {0}, 0) == Names{"mlx5_0", "mlx5_1"});
  CHECK(near(fourNics(), {1}, 1) == Names{"mlx5_1", "mlx5_0"});
  CHECK(near(fourNics(), {4, 5}, 0) == Names{"mlx5_2", "mlx5_3"});
  CHECK(near(fourNics(), {7}, 3) == Names{"mlx5_3", "mlx5_2"});
}

TEST_CASE("a rank that is bound to no package has all NICs near, in turn", "[nics]") {
  CHECK(near(fourNics(), {0, 4}, 0) == Names{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"});
  CHECK(near(fourNics(), {0, 4}, 2) == Names{"mlx5_2", "mlx5_3", "mlx5_0", "mlx5_1"});
}

TEST_CASE("a rank on a package without NICs has those of the others", "[nics]") {
  const Xml one({{{"mlx5_0", kRdma}}, {}});
  CHECK(near(one, {0}, 5) == Names{"mlx5_0"});
  CHECK(near(one, {6}, 0) == Names{"mlx5_0"});
  const Xml two({{{"mlx5_0", kRdma}, {"mlx5_1", kRdma}}, {}});
  CHECK(near(two, {6}, 1) == Names{"mlx5_1", "mlx5_0"});
}

TEST_CASE("RDMA devices and network interfaces are near by themselves", "[nics]") {
  const Xml mixed({{{"mlx5_0", kRdma}, {"eth0", kNetwork}}, {{"mlx5_1", kRdma}}});
  CHECK(near(mixed, {4}, 0) == Names{"mlx5_1", "eth0"});
  CHECK(near(mixed, {0}, 0) == Names{"mlx5_0", "eth0"});
}

TEST_CASE("a machine without NICs has none near", "[nics]") {
  CHECK(near(Xml(std::vector<std::vector<Card>>(2)), {0}, 0).empty());
}

TEST_CASE("what is no description of a machine is refused", "[nics]") {
  CHECK_FALSE(kolo::topology::describe("no machine", {0}).ok());
}

namespace {

// What a system tells in its files.
struct System {
  System() { REQUIRE(mkdtemp(name.data()) != nullptr); }
  ~System() { fs::remove_all(name); }
  void write(const char* at, const char* text) const {
    fs::create_directories((root() / at).parent_path());
    std::ofstream(root() / at) << text;
  }
  fs::path root() const { return name; }

  std::string name = (fs::temp_directory_path() / "kolo-nics-XXXXXX").string();
};

}  // namespace

TEST_CASE("RDMA devices that software makes of interfaces are where these are", "[nics]") {
  const System system;
  system.write("class/infiniband/rxe1/parent", "eth1\n");
  system.write("class/infiniband/rxe0/parent", "eth0\n");
  system.write("class/infiniband/siw0/parent", "lo\n");  // no NIC
  fs::create_directories(system.root() / "class/infiniband/mlx5_0");
  std::vector<Nic> nics = {{.name = "eth0", .place = {.package = 0, .numa = 0}},
                           {.name = "eth1", .place = {.package = 1, .numa = 1}}};
  kolo::topology::addSoftRdma(nics, system.name);
  REQUIRE(nics.size() == 4);
  CHECK(nics[2].name == "rxe0");
  CHECK(nics[2].place.numa == 0);
  CHECK(nics[3].name == "rxe1");
  CHECK(nics[3].place.numa == 1);
  CHECK((nics[2].isRdma && nics[3].isRdma && !nics[0].isRdma));
  CHECK(nicsNear(nics, {.package = 1, .numa = 1}, 0) == Names{"rxe1", "eth1"});
}

TEST_CASE("the speed of NICs is read where the system tells it", "[nics]") {
  const System system;
  const auto write = [&](const char* at, const char* text) { system.write(at, text); };
  const std::string& name = system.name;
  const fs::path root = system.root();
  write("class/net/eth0/speed", "25000\n");
  write("class/net/eth1/speed", "-1\n");
  write("class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
  write("class/infiniband/mlx5_0/ports/2/rate", "400 Gb/sec (4X NDR)\n");
  std::vector<Nic> nics = {{.name = "eth0"}, {.name = "eth1"}, {.name = "eth2"}, {.name = "mlx5_0", .isRdma = true}};
  kolo::topology::readSpeeds(nics, name);
  CHECK_FALSE(kolo::topology::hasSeveralNics(name));  // one RDMA device, and interfaces without hardware
  fs::create_directories(root / "class/net/eth0/device");
  CHECK_FALSE(kolo::topology::hasSeveralNics(name));
  fs::create_directories(root / "class/net/eth1/device");
  CHECK(kolo::topology::hasSeveralNics(name));
  fs::remove_all(root / "class/net");
  CHECK_FALSE(kolo::topology::hasSeveralNics(name));
  fs::create_directories(root / "class/infiniband/mlx5_1");
  CHECK(kolo::topology::hasSeveralNics(name));
  fs::remove_all(root);
  CHECK_FALSE(kolo::topology::hasSeveralNics(name));
  CHECK(nics[0].megabits == 25000);
  CHECK(nics[1].megabits == 0);
  CHECK(nics[2].megabits == 0);
  CHECK(nics[3].megabits == 400000);
}
