// What the transport over InfiniBand does when NICs, ports and ways fail, on devices that are told to: no byte is lost
// or wrong, no signal goes back, and what cannot go on says why.
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "../../transports/ib/pairing.h"
#include "drivers/verbs/verbs.h"
#include "ib_world.h"

namespace kolo::contract {
namespace {

// The process's ends of connections.
std::vector<int> connections() {
  std::vector<int> found;
  for (int fd = 3; fd < 1024; ++fd) {
    int protocol = 0, listens = 1;
    socklen_t bytes = sizeof protocol;
    if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) != 0 || protocol != IPPROTO_TCP) continue;
    bytes = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens != 0) continue;
    found.push_back(fd);
  }
  return found;
}

// From now on nothing gets through the connections of two ranks, as if their network had failed: a filter drops every
// packet that comes. What earlier cases leave is closed by threads of their own, and awaited.
bool silenceConnections() {
  std::vector<int> ends = connections();
  for (const auto begin = Clock::now(); ends.size() != 2 && Clock::now() - begin < 10s; ends = connections())
    std::this_thread::sleep_for(1ms);
  sock_filter dropAll[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{1, dropAll};
  return ends.size() == 2 && std::all_of(ends.begin(), ends.end(), [&](int fd) {
           return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
         });
}

// How often the transport's threads have gone to sleep.
std::uint64_t sleepsOfServices() {
  std::uint64_t sleeps = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    bool isService = false;
    for (std::string line; std::getline(status, line);) {
      isService = isService || line == "Name:\tkolo-ib";
      constexpr std::string_view kField = "voluntary_ctxt_switches:";
      if (isService && line.starts_with(kField)) sleeps += std::stoull(line.substr(kField.size()));
    }
  }
  return sleeps;
}

}  // namespace

TEST_CASE("a way that ends with an error is replaced by another, and every byte arrives", "[ib]") {
  if (isReal()) return;
  const ibv_wc_status errors[] = {IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_RESP_TIMEOUT_ERR,
                                  IBV_WC_FATAL_ERR,     IBV_WC_GENERAL_ERR,       IBV_WC_BAD_RESP_ERR,
                                  IBV_WC_REM_ABORT_ERR, IBV_WC_WR_FLUSH_ERR,      IBV_WC_LOC_QP_OP_ERR};
  int after = 3;
  for (const ibv_wc_status error : errors) {
    for (const bool isDelivered : {true, false}) {
      DYNAMIC_SECTION("status " << error << (isDelivered ? " of what has arrived" : "")) {
        const World world;
        Two two;
        after += 29;
        MockVerbs::failWrite(error, isDelivered, after, after % 2);
        stream(two, kCount);
        CHECK(MockVerbs::hasFailed());
      }
    }
  }
}

TEST_CASE("a write that is refused as it is ends the link on both sides", "[ib]") {
  if (isReal()) return;
  const ibv_wc_status errors[] = {IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR,    IBV_WC_LOC_ACCESS_ERR,
                                  IBV_WC_MW_BIND_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR,
                                  IBV_WC_REM_OP_ERR};
  for (const ibv_wc_status error : errors) {
    DYNAMIC_SECTION("status " << error) {
      const World world;
      Two two;
      MockVerbs::failWrite(error);
      REQUIRE_OK(putAll(two.end(0), {.memory = 1, .bytes = 5000, .to = kSignals, .signalTo = 8, .signal = 1}));
      CHECK(contains(two.awaitLoss(), "no other way would help"));
      CHECK(wordAt(two.end(1), 8) == 0);
    }
  }
}

TEST_CASE("a lane that fails with bytes for a user's buffer ends the link: they are not sent twice", "[ib]") {
  if (isReal()) return;
  for (const bool isDelivered : {true, false}) {
    DYNAMIC_SECTION((isDelivered ? "they have arrived" : "they have not arrived")) {
      const World world;
      Two two;
      REQUIRE(two.rails() == 2);
      const auto key = two.ranks[1].key(0);
      REQUIRE_OK(key.status());
      MockVerbs::failWrite(IBV_WC_RETRY_EXC_ERR, isDelivered);
      REQUIRE_OK(putAll(two.end(0), {.memory = 1,
                                     .bytes = 5000,
                                     .to = kSignals,
                                     .signalTo = 8,
                                     .signal = 1,
                                     .hasKey = true,
                                     .key = key.value()}));
      CHECK(contains(two.awaitLoss(), "not sent twice"));
    }
  }
}

TEST_CASE("short queues, late completions and any order among queue pairs change nothing", "[ib]") {
  if (isReal()) return;
  for (const auto& [requests, lateBy, shuffle] : {std::tuple{4u, 0, 0u}, {8u, 3, 1u}, {4096u, 20, 2u}, {16u, 1, 3u}}) {
    DYNAMIC_SECTION(requests << " requests, late by " << lateBy << ", seed " << shuffle) {
      MockVerbs properties;
      properties.nics = 4;
      properties.mostRequests = requests;
      properties.lateBy = lateBy;
      properties.shuffle = shuffle;
      const World world(properties);
      Two two;
      CHECK(two.rails() == 4);
      stream(two, kCount);
    }
  }
}

TEST_CASE("a port that goes down in the middle is left for another one", "[ib][threads]") {
  if (isReal()) return;
  for (const bool isSilent : {false, true}) {
    for (const int nics : {2, 4}) {
      DYNAMIC_SECTION(nics << " NICs" << (isSilent ? ", nobody is told" : "")) {
        MockVerbs properties;
        properties.nics = nics;
        properties.lateBy = 2;
        properties.shuffle = 7;
        const World world(properties);
        Two two;
        stream(two, kCount, [&](std::uint64_t n) {
          if (n % (kCount / static_cast<unsigned>(nics)) != 77) return;
          const int nic = static_cast<int>(n / (kCount / static_cast<unsigned>(nics)));
          if (nic + 1 == nics) return;  // the last one stays
          if (isSilent) MockVerbs::setPathBroken(nic, true);
          else MockVerbs::setPortDown(nic, true);
        });
      }
    }
  }
}

TEST_CASE("a port that fails together with the connection is left for another one", "[ib]") {
  if (isReal()) return;
  for (const bool isSilent : {false, true}) {
    DYNAMIC_SECTION((isSilent ? "nobody is told" : "the port is down")) {
      const World world;
      Two two;
      CHECK(silenceConnections());
      stream(two, kCount, [&](std::uint64_t n) {
        if (n != kCount / 2) return;
        if (isSilent) MockVerbs::setPathBroken(0, true);
        else MockVerbs::setPortDown(0, true);
      });
    }
  }
}

// The same where one of both ranks is in no call when it happens.
TEST_CASE("a rank in no call leaves a lane that its peer has closed", "[ib][threads]") {
  if (isReal()) return;
  const World world;
  Two two;
  CHECK(silenceConnections());
  MockVerbs::setPathBroken(0, true);
  fillSlot(two.ranks[0].data(1) + kSignals, 1);
  REQUIRE_OK(putAll(two.end(0),
                    {.memory = 1, .from = kSignals, .bytes = bytesOf(1), .to = kSignals, .signalTo = 0, .signal = 1}));
  REQUIRE_OK(settle(two.end(0), 10000));
  REQUIRE_OK(awaitSignal(two.end(1), 0, 1, 10000));
  CHECK(isRight(two.ranks[1].data(0) + kSignals, 1));
}

TEST_CASE("a rank that has left the operation still carries on what it put", "[ib][threads]") {
  if (isReal()) return;
  const World world;
  Two two;
  fillSlot(two.ranks[0].data(1) + kSignals, 1);
  MockVerbs::failWrite(IBV_WC_RETRY_EXC_ERR, false, 0, 0);
  REQUIRE_OK(putAll(two.end(0),
                    {.memory = 1, .from = kSignals, .bytes = bytesOf(1), .to = kSignals, .signalTo = 0, .signal = 1}));
  CHECK(two.ranks[0].queued(two.links[0]) == 0);
  REQUIRE_OK(awaitSignal(two.end(1), 0, 1, 10000));  // the other rank is in no call
  CHECK(isRight(two.ranks[1].data(0) + kSignals, 1));
}

TEST_CASE("messages wake no thread, which keeps its tick while they come", "[ib]") {
  if (isReal()) return;
  constexpr std::uint64_t kMessages = 400;
  const World world;
  Two two;
  std::uint64_t seen[2] = {0, 0};
  const auto rally = [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t n = first; n <= last; ++n, std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      const int from = static_cast<int>(n % 2);
      REQUIRE_OK(putAll(two.end(from), {.memory = 1, .bytes = 8, .to = kSignals, .signalTo = 8, .signal = n}));
      REQUIRE(awaitRising(two.end(1 - from), 8, n, &seen[1 - from]) == "");
      for (int looks = 0; looks < 8; ++looks) two.ranks[from].progress(1 - from, 0);  // nothing is under way any more
    }
  };
  rally(1, 100);  // the first may wake it
  const std::uint64_t before = sleepsOfServices();
  const auto begin = Clock::now();
  rally(101, kMessages);
  const std::uint64_t sleeps = sleepsOfServices() - before;
  CHECK(before != 0);
  // Each of two threads sleeps once in a tick of 50 ms, also in the two ticks that this time cuts.
  const auto ticks = static_cast<std::uint64_t>((Clock::now() - begin) / 50ms);
  CHECK(sleeps <= 4 + 2 * (ticks + 2));
}

TEST_CASE("without any way left the link is lost, and says what happened to each", "[ib][threads]") {
  if (isReal()) return;
  for (const bool isSilent : {false, true}) {
    DYNAMIC_SECTION((isSilent ? "nobody is told" : "ports are down")) {
      const World world;
      Two two;
      for (int nic = 0; nic < 2; ++nic) {
        if (isSilent) MockVerbs::setPathBroken(nic, true);
        else MockVerbs::setPortDown(nic, true);
      }
      if (isSilent)
        REQUIRE_OK(putAll(two.end(0), {.memory = 1, .bytes = 5000, .to = kSignals, .signalTo = 8, .signal = 1}));
      const std::string why = two.awaitLoss();
      INFO(why);
      CHECK(contains(why, "mock0"));
      CHECK(wordAt(two.end(1), 8) == 0);
    }
  }
}

TEST_CASE("rails are as many as both have ports, or as the user says", "[ib]") {
  if (isReal()) return;
  for (const auto& [nics, settings, rails] : {std::tuple{1, "", 1u},
                                              {2, "", 2u},
                                              {3, "", 2u},
                                              {4, "", 4u},
                                              {8, "", 4u},
                                              {1, "KOLO_IB_RAILS=4", 4u},
                                              {4, "KOLO_IB_RAILS=1", 1u},
                                              {4, "KOLO_IB_DEVICES=mock1", 1u},
                                              {3, "KOLO_IB_DEVICES=^mock1", 2u}}) {
    DYNAMIC_SECTION(nics << " NICs, " << settings) {
      MockVerbs properties;
      properties.nics = nics;
      const World world(properties);
      Two two(settings);
      CHECK(two.rails() == rails);
      CHECK(two.ranks[1].rails(two.links[1]) == rails);
      stream(two, 100);
    }
  }
}

TEST_CASE("packets have the service level and the traffic class that the user asks for", "[ib]") {
  if (isReal()) return;
  MockVerbs infiniBand;
  infiniBand.isInfiniBand = true;
  for (MockVerbs::Gid& gid : infiniBand.gids) gid = MockVerbs::Gid::kNone;
  infiniBand.gids[0] = MockVerbs::Gid::kInfiniBand;
  struct Case {
    MockVerbs nics;
    const char* settings;
    int serviceLevel, trafficClass;
  };
  const Case cases[] = {{{}, "", 0, 0},
                        {{}, "KOLO_IB_SERVICE_LEVEL=3 KOLO_IB_TRAFFIC_CLASS=106", 3, 106},
                        {infiniBand, "KOLO_IB_SERVICE_LEVEL=5 KOLO_IB_TRAFFIC_CLASS=106", 5, 0}};  // RoCE's alone
  for (const Case& one : cases) {
    DYNAMIC_SECTION((one.nics.isInfiniBand ? "InfiniBand " : "RoCE ") << one.settings) {
      const World world(one.nics);
      Two two(one.settings);
      CHECK(MockVerbs::pairs() > 0);
      CHECK(MockVerbs::pairsWith(one.serviceLevel, one.trafficClass) == MockVerbs::pairs());
      stream(two, 100);
    }
  }
}

TEST_CASE("ranks use the NICs near them, unless the user says otherwise", "[ib]") {
  if (isReal()) return;
  MockVerbs properties;
  properties.nics = 4;
  const World world(properties);
  struct Case {
    const char *near[2], *settings;
    std::vector<int> used;
  };
  const Case cases[] = {{{"", ""}, "", {0, 1, 2, 3}},
                        {{"mock2,mock3", "mock2,mock3"}, "", {2, 3}},
                        {{"mock3", "mock3,mock1"}, "", {3}},
                        {{"mock0,mock1", "mock2,mock3"}, "", {0, 1, 2, 3}},  // no lane is near both
                        {{"eth0", "eth0"}, "", {0, 1, 2, 3}},
                        {{"mock2,mock3", "mock2,mock3"}, "KOLO_IB_DEVICES=mock0,mock1", {0, 1}},
                        {{"mock2,mock3", "mock2,mock3"}, "KOLO_IB_DEVICES=^mock2", {3}}};
  for (const Case& one : cases) {
    DYNAMIC_SECTION("near " << one.near[0] << " and " << one.near[1] << ", " << one.settings) {
      Two two(one.settings, 20000, one.near[0], one.near[1]);
      std::uint64_t before[4];
      for (int nic = 0; nic < 4; ++nic) before[nic] = MockVerbs::carried(nic);
      stream(two, 100);
      for (int nic = 0; nic < 4; ++nic) {
        const bool isUsed = std::find(one.used.begin(), one.used.end(), nic) != one.used.end();
        CHECK((MockVerbs::carried(nic) > before[nic]) == isUsed);
      }
    }
  }
}

TEST_CASE("a pair of ports between which nothing passes is not used", "[ib]") {
  if (isReal()) return;
  const World world;
  MockVerbs::setPathBroken(0, true);
  Two two;
  CHECK(two.rails() == 1);
  stream(two, 100);
  MockVerbs::setPathBroken(1, true);
  Rank rank;
  REQUIRE_OK(rank.open("ib", with("")));
  const auto link = rank.openLink(two.ranks[1].address(), two.ranks[1].descriptor(0));
  INFO(link.status().message());
  CHECK(link.status().code() == koloUnreachable);
  CHECK(contains(link.status().message(),
                 "from 10.77.1.1 (RoCE v2) to mock1 port 1 10.77.1.1 (RoCE v2): no trial write has passed"));
}

TEST_CASE("of a port's addresses one is chosen that leads somewhere", "[ib]") {
  if (isReal()) return;
  using Gid = MockVerbs::Gid;
  MockVerbs properties;
  SECTION("none but link-local ones") {
    properties.gids[2] = properties.gids[3] = Gid::kNone;
    const World world(properties);
    Rank rank;
    const Status status = rank.open("ib", {});
    CHECK(contains(status.message(), "link-local"));
    CHECK(contains(status.message(), "KOLO_IB_GID_INDEX"));
    REQUIRE_OK(rank.open("ib", with("KOLO_IB_GID_INDEX=1")));
    CHECK_FALSE(rank.open("ib", with("KOLO_IB_GID_INDEX=5")).ok());
  }
  SECTION("IPv6") {
    properties.gids[2] = Gid::kGlobalV2;
    properties.gids[3] = Gid::kNone;
    const World world(properties);
    Two two;
    stream(two, 100);
  }
  SECTION("version 1 alone") {
    properties.gids[3] = Gid::kNone;
    const World world(properties);
    Two two;
    stream(two, 100);
  }
  SECTION("InfiniBand") {
    properties.isInfiniBand = true;
    properties.gids[0] = Gid::kInfiniBand;
    properties.gids[1] = properties.gids[2] = properties.gids[3] = Gid::kNone;
    const World world(properties);
    Two two;
    CHECK(two.rails() == 2);
    stream(two, 100);
  }
  SECTION("different kinds do not reach each other") {
    const World world(properties);
    Rank one, other;
    REQUIRE_OK(one.open("ib", with("KOLO_IB_GID_INDEX=3")));
    REQUIRE_OK(other.open("ib", with("KOLO_IB_GID_INDEX=2", 1)));
    const auto link = one.openLink(other.address(), other.descriptor(registered(other, kBytes)));
    CHECK(link.status().code() == koloUnreachable);
    CHECK(contains(link.status().message(), "RoCE v1"));
  }
}

TEST_CASE("addresses are ranked: RoCE v2 before v1, IPv4 before IPv6, link-local ones never", "[ib]") {
  const unsigned char linkLocal[16] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2}, empty[16] = {};
  const unsigned char mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1},
                      global[16] = {0x20, 1, 0xd, 0xb8};
  const auto score = [](const unsigned char(&gid)[16], drivers::GidType type) {
    return ib::scoreGid(gid, static_cast<std::uint8_t>(type), type == drivers::GidType::kInfiniBand);
  };
  using drivers::GidType;
  CHECK(score(mapped, GidType::kRoceV2) > score(global, GidType::kRoceV2));
  CHECK(score(global, GidType::kRoceV2) > score(mapped, GidType::kRoceV1));
  CHECK(score(mapped, GidType::kRoceV1) > 0);
  CHECK(score(linkLocal, GidType::kRoceV2) == 0);
  CHECK(score(empty, GidType::kRoceV2) == 0);
  CHECK(score(linkLocal, GidType::kInfiniBand) > 0);
}

TEST_CASE("ports are paired with those of their network", "[ib]") {
  const auto port = [](std::uint8_t network, std::uint8_t host, drivers::GidType type = drivers::GidType::kRoceV2) {
    ib::PortAddress address{};
    const unsigned char gid[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, network, host};
    std::memcpy(address.gid, gid, sizeof gid);
    address.kind = static_cast<std::uint8_t>(type);
    return address;
  };
  const ib::PortAddress mine[] = {port(1, 1), port(2, 1), port(3, 1)}, theirs[] = {port(3, 2), port(1, 2)};
  auto pairs = ib::pairPorts(mine, theirs, 0);
  REQUIRE(pairs.size() == 2);
  for (const ib::PortPair& pair : pairs) CHECK(mine[pair.mine].gid[14] == theirs[pair.theirs].gid[14]);
  pairs = ib::pairPorts(mine, theirs, 4);
  CHECK(pairs.size() == 4);
  const ib::PortAddress old[] = {port(1, 3, drivers::GidType::kRoceV1)};
  CHECK(ib::pairPorts(mine, old, 4).empty());
  // In one network: those that are near both ranks, else near one; with networks of their own, never across them.
  const auto known = [&](std::uint8_t network, std::uint8_t host, std::uint8_t prefix, bool isFar) {
    ib::PortAddress address = port(network, host);
    address.prefix = prefix;
    address.isFar = isFar ? 1 : 0;
    return address;
  };
  const ib::PortAddress flatMine[] = {known(1, 1, 112, false), known(1, 2, 112, true)};
  const ib::PortAddress flatTheirs[] = {known(1, 3, 112, true), known(2, 9, 112, false)};
  pairs = ib::pairPorts(flatMine, flatTheirs, 0);
  REQUIRE(pairs.size() == 1);
  CHECK((pairs[0].mine == 0 && pairs[0].theirs == 1));
  const ib::PortAddress railsMine[] = {known(1, 1, 120, false), known(2, 1, 120, true)};
  const ib::PortAddress railsTheirs[] = {known(2, 2, 120, false), known(1, 2, 120, true)};
  pairs = ib::pairPorts(railsMine, railsTheirs, 0);
  REQUIRE(pairs.size() == 2);
  for (const ib::PortPair& pair : pairs) CHECK(railsMine[pair.mine].gid[14] == railsTheirs[pair.theirs].gid[14]);
  CHECK(ib::megabitsOf(32, 2) == 100000);   // EDR, 4x
  CHECK(ib::megabitsOf(128, 2) == 400000);  // NDR, 4x
  CHECK(ib::megabitsOf(64, 16) == 100000);  // HDR, 2x
  CHECK(ib::railsFor(0, 0, 3) == 2);
  CHECK(ib::railsFor(4, 0, 1) == 4);
  CHECK(ib::railsFor(4, 2, 1) == 2);
}

TEST_CASE("memory that may not be locked is an error that says how to allow it", "[ib]") {
  if (isReal()) return;
  MockVerbs properties;
  properties.lockedBytes = 4 << 20;
  const World world(properties);
  Rank rank;
  REQUIRE_OK(rank.open("ib", {}));
  const auto memory = rank.registerMemory(16 << 20, 0, Backing::kFile);
  CHECK(memory.status().code() == koloSystemError);
  CHECK(contains(memory.status().message(), "16777216 bytes"));
  CHECK(contains(memory.status().message(), "locked"));
  registered(rank, kPage);
}

TEST_CASE("one range is registered once, however often", "[ib]") {
  if (isReal()) return;
  const World world;
  const auto table = transport::list("ib").value().front().table;
  koloTransportHost host = transport::thisProcess();
  host.ranks = 1;
  const auto device = transport::Device::open(table, host);
  REQUIRE_OK(device.status());
  std::vector<unsigned char> memory(kBytes);
  const auto range = [&](std::size_t begin, std::size_t end) {
    return koloTransportMemory{sizeof(koloTransportMemory), memory.data() + begin, end - begin, -1, 0, koloMemoryHost};
  };
  const std::size_t end = memory.size() - 100;
  const int before = MockVerbs::registrations();
  auto first = device.value()->registerMemory(range(0, end));
  REQUIRE_OK(first.status());
  const int registrations = MockVerbs::registrations();
  CHECK(registrations == before + 2);
  auto second = device.value()->registerMemory(range(0, end));
  REQUIRE_OK(second.status());
  // Nor is a part of it, and keys of both name the same.
  auto part = device.value()->registerMemory(range(100, end));
  REQUIRE_OK(part.status());
  CHECK(MockVerbs::registrations() == registrations);
  REQUIRE_OK(part.value()->key().status());
  const int withKeys = MockVerbs::registrations();  // what keys name is registered for relaxed ordering, too
  REQUIRE_OK(first.value()->key().status());
  CHECK(MockVerbs::registrations() == withKeys);
  // What reaches beyond it is.
  auto beyond = device.value()->registerMemory(range(100, end + 1));
  REQUIRE_OK(beyond.status());
  CHECK(MockVerbs::registrations() == withKeys + 2);
  beyond.value().reset();
  first.value().reset();
  second.value().reset();
  CHECK(MockVerbs::registrations() == withKeys);
  part.value().reset();
  CHECK(MockVerbs::registrations() == before);
}

TEST_CASE("memory that nobody has registered is sent all the same", "[ib]") {
  if (isReal()) return;
  const World world;
  Two two;
  two.ranks[0].deregister(1);
  const int registrations = MockVerbs::registrations();
  for (const std::size_t bytes : {8, 56, 220, 221, 100000}) {
    std::memset(two.ranks[0].data(1), static_cast<int>(bytes), bytes);
    REQUIRE_OK(putAll(two.end(0), {.memory = 1, .bytes = bytes, .to = kSignals, .signalTo = 8, .signal = bytes}));
    REQUIRE_OK(awaitSignal(two.end(1), 8, bytes));
    CHECK(two.ranks[1].data(0)[kSignals + bytes - 1] == static_cast<unsigned char>(bytes));
    REQUIRE_OK(settle(two.end(0)));
  }
  CHECK(MockVerbs::registrations() == registrations);
}

TEST_CASE("whatever cannot be made is an error with a reason, and nothing is left behind", "[ib]") {
  if (isReal()) return;
  for (const char* const function : {"openDevice", "queryDevice", "queryPort", "allocPd", "regMr"}) {
    DYNAMIC_SECTION(function) {
      const World world;
      MockVerbs::failCall(function, EIO);
      Rank rank;
      const Status status = rank.open("ib", {});
      CHECK(status.code() == koloSystemError);
      CHECK(contains(status.message(), "mock0"));
    }
  }
  for (const char* const function : {"createCq", "createQp", "modifyQp", "postReceive"}) {
    DYNAMIC_SECTION(function) {
      const World world;
      Rank one, other;
      REQUIRE_OK(one.open("ib", {}));
      REQUIRE_OK(other.open("ib", with("", 1)));
      registered(other, kBytes);
      MockVerbs::failCall(function, ENOMEM);
      const auto link = one.openLink(other.address(), other.descriptor(0));
      INFO(link.status().message());
      CHECK(link.status().code() == koloUnreachable);
      MockVerbs::failCall("", 0);
      linked(one, other.address(), other.descriptor(0));
    }
  }
  SECTION("postSend") {
    const World world;
    Two two;
    MockVerbs::failCall("postSend", EIO);
    (void)two.ranks[0].put(two.links[0], {.memory = 1, .bytes = 8, .to = kSignals});
    two.awaitLoss();
    MockVerbs::failCall("", 0);
  }
}

// On real devices, two of them: KOLO_TEST_FAULT is a command that breaks the first one's network.
TEST_CASE("an interface that goes down in the middle is left for another one", "[.][ib-real]") {
  const char* const fault = std::getenv("KOLO_TEST_FAULT");
  REQUIRE(fault != nullptr);
  Two two;
  CHECK(two.rails() == 2);
  int status = -1;
  stream(two, kCount, [&](std::uint64_t n) {
    if (n == kCount / 3) status = std::system(fault);
  });
  CHECK(status == 0);
}

// Figures to put beside those of ib_write_lat and ib_write_bw on the same devices; not run by itself. The least and the
// middle ones, for other programs have the processor in between.
TEST_CASE("figures of links over InfiniBand", "[.][ib-bench]") {
  for (const auto& [rounds, bytes] :
       {std::pair{3000u, std::size_t{0}}, {3000u, std::size_t{8}}, {600u, std::size_t{1} << 20}}) {
    const bool isSmall = bytes <= 8;
    PostedPair pair("ib");
    Request request{Op::kAnswerBench, pair.theirLink, pair.theirInbox, pair.theirOutbox};
    request.put.signal = rounds;
    request.put.bytes = bytes;
    request.put.to = bytes == 0 ? 0 : 8;
    pair.peer.send(request);
    std::vector<double> times;
    auto last = Clock::now();
    const auto note = [&] {
      times.push_back(1e6 * std::chrono::duration<double>(Clock::now() - std::exchange(last, Clock::now())).count());
    };
    PutOptions put{.memory = pair.outbox, .bytes = bytes, .to = kSignals, .signalTo = 64};
    for (put.signal = 1; put.signal <= rounds; ++put.signal) {
      REQUIRE_OK(putAll(pair.end(), put));
      // Small ones go forth and back; of large ones 64 are under way, and 16 of them make a figure.
      while (isSmall && wordAt(pair.end(), 64) < put.signal) pair.rank.progress(1, 0);
      while (!isSmall && pair.rank.unfinished(pair.link) >= 64) pair.rank.progress(1, 0);
      if (isSmall || (put.signal > 128 && put.signal % 16 == 0)) note();
      if (put.signal == 128) last = Clock::now();
    }
    REQUIRE_OK(settle(pair.end()));
    accepted(pair.peer.receive());
    std::sort(times.begin(), times.end());
    const double least = times.front(), middle = times[times.size() / 2];
    if (isSmall)
      WARN(bytes << " bytes and a signal, one way: at least " << least / 2 << " us, middle " << middle / 2 << " us");
    else WARN("1 MiB: at most " << 16e6 / least << " MiB/s, middle " << 16e6 / middle << " MiB/s");
  }
}

}  // namespace kolo::contract
