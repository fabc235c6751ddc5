// Which addresses of a host are told to others, and in which order those try them. Most addresses are made up.
#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "network/place.h"
#include "support/seed.h"

namespace kolo::network {
namespace {

Place place(const char* interface, const char* address, int prefix, Made made, std::int64_t megabits) {
  const auto parsed = parseAddress(address);
  REQUIRE(parsed.has_value());
  Place result{*parsed};
  result.interface = interface;
  result.prefix = static_cast<std::uint8_t>(prefix);
  result.made = made;
  result.speed = speedClass(megabits);
  return result;
}

std::string textOf(const std::vector<Place>& places) {
  std::string text;
  for (const Place& one : places) text += (text.empty() ? "" : " ") + one.text();
  return text;
}

// A host of a cluster: slow and fast networks, a bridge of containers that every host has, and a tunnel.
std::vector<Place> host(int number) {
  const std::string n = std::to_string(number);
  return {place("lo", "127.0.0.1", 8, Made::kVirtual, 0),
          place("docker0", "172.17.0.1", 16, Made::kBridge, 10000),
          place("eth0", ("192.168.1." + n).c_str(), 24, Made::kHardware, 1000),
          place("tun0", ("10.8.0." + n).c_str(), 24, Made::kVirtual, 0),
          place("ib0", ("10.10.0." + n).c_str(), 16, Made::kHardware, 200000),
          place("eth0", ("fd00::" + n).c_str(), 64, Made::kHardware, 1000)};
}

std::string chosen(const std::vector<Place>& own, const char* setting, std::string* problem) {
  return textOf(choosePlaces(own, setting, problem));
}

}  // namespace

TEST_CASE("peers are told hardware before bridges and tunnels, the fastest first, loopback last", "[network]") {
  std::string problem;
  CHECK(chosen(host(1), "", &problem) == "10.10.0.1 192.168.1.1 fd00::1 10.8.0.1 172.17.0.1 127.0.0.1");
  CHECK(problem == "");
}

TEST_CASE("of equally fast interfaces peers are told those near the rank first, unless the user gives an order",
          "[network]") {
  std::vector<Place> own = {
      place("eth0", "10.0.0.1", 24, Made::kHardware, 100000), place("eth1", "10.0.1.1", 24, Made::kHardware, 100000),
      place("eth2:1", "10.0.2.1", 24, Made::kHardware, 100000), place("eth3", "10.0.3.1", 24, Made::kHardware, 1000)};
  std::string problem;
  measureDistances(own, "");
  CHECK(chosen(own, "", &problem) == "10.0.0.1 10.0.1.1 10.0.2.1 10.0.3.1");
  measureDistances(own, "mlx5_2,eth2,eth3,eth1");
  CHECK(chosen(own, "", &problem) == "10.0.2.1 10.0.1.1 10.0.0.1 10.0.3.1");
  CHECK(chosen(own, "^eth2:1", &problem) == "10.0.1.1 10.0.0.1 10.0.3.1");
  CHECK(chosen(own, "eth0,eth1", &problem) == "10.0.0.1 10.0.1.1");
}

TEST_CASE("KOLO_TCP_INTERFACES names interfaces and addresses, in order, or those to leave out", "[network]") {
  std::string problem;
  CHECK(chosen(host(1), "eth0", &problem) == "192.168.1.1 fd00::1");
  CHECK(chosen(host(1), " tun0 , 192.168.1.1", &problem) == "10.8.0.1 192.168.1.1");
  CHECK(chosen(host(1), "fd00::1,ib0", &problem) == "fd00::1 10.10.0.1");
  CHECK(chosen(host(1), "^docker0,lo,tun0", &problem) == "10.10.0.1 192.168.1.1 fd00::1");
  CHECK(problem == "");
  CHECK(chosen(host(1), "eth7", &problem) == "");
  CHECK(problem.find("\"eth7\"") != std::string::npos);
  CHECK(problem.find("ib0 10.10.0.1") != std::string::npos);
  CHECK(chosen({}, "", &problem) == "");
  CHECK(problem.find("no network interface") != std::string::npos);
}

TEST_CASE("a peer on another host is tried at its fastest network that this host has too, its bridges last",
          "[network]") {
  CHECK(textOf(orderPlaces(host(2), host(1), false, false)) == "10.10.0.2 192.168.1.2 fd00::2 10.8.0.2");
  // A host without the fast network.
  std::vector<Place> slow = host(1);
  std::erase_if(slow, [](const Place& one) { return one.interface == "ib0"; });
  CHECK(textOf(orderPlaces(host(2), slow, false, false)) == "192.168.1.2 fd00::2 10.8.0.2 10.10.0.2");
  // A container's address on a bridge of its host, as seen from a host with such a bridge.
  std::vector<Place> container = {place("eth0", "172.17.0.5", 16, Made::kVirtual, 10000),
                                  place("net1", "10.10.3.5", 16, Made::kVirtual, 0)};
  CHECK(textOf(orderPlaces(container, host(1), false, false)) == "10.10.3.5 172.17.0.5");
}

TEST_CASE("an address that this host has itself does not lead to another one", "[network]") {
  const std::vector<Place> theirs = {place("docker0", "172.17.0.1", 16, Made::kBridge, 10000)};
  CHECK(orderPlaces(theirs, host(1), false, false).empty());
}

TEST_CASE("loopback leads to peers on the same host only, and there it comes first", "[network]") {
  CHECK(textOf(orderPlaces(host(1), host(1), true, false)).rfind("127.0.0.1 10.10.0.1 ", 0) == 0);
  CHECK(textOf(orderPlaces({host(2)[0]}, host(1), false, false)) == "");
}

TEST_CASE("an address counts wherever it is, on the loopback interface too", "[network]") {
  const auto announced = [](int number) {
    const std::string n = std::to_string(number);
    return std::vector<Place>{
        place("lo", "127.0.0.1", 8, Made::kVirtual, 0), place("lo", ("10.99.0." + n).c_str(), 32, Made::kVirtual, 0),
        place("lo", "::1", 128, Made::kVirtual, 0), place("lo", ("fd99::" + n).c_str(), 128, Made::kVirtual, 0),
        place("br0", "172.18.0.1", 16, Made::kBridge, 0)};
  };
  std::string problem;
  CHECK(chosen(announced(1), "", &problem) == "10.99.0.1 fd99::1 172.18.0.1 127.0.0.1 ::1");
  CHECK(chosen(announced(1), "lo", &problem) == "10.99.0.1 fd99::1 127.0.0.1 ::1");
  CHECK(textOf(orderPlaces(announced(2), announced(1), false, false)) == "10.99.0.2 fd99::2");
  CHECK(problem == "");
  const std::vector<Place> alone = {announced(1)[0], announced(1)[2]};
  CHECK(orderPlaces(alone, announced(2), false, false).empty());
  CHECK(whyNone(alone) == "has no address that leads to it from another host");
}

TEST_CASE("bridges that every host has come after all else, and leave no place empty", "[network]") {
  std::vector<Place> own;
  for (const char* const address : {"172.17.0.1", "172.18.0.1", "172.19.0.1", "172.20.0.1"})
    own.push_back(place("docker", address, 16, Made::kBridge, 10000));
  own.push_back(place("eth0", "10.0.0.7", 24, Made::kVirtual, 0));
  std::string problem;
  CHECK(chosen(own, "", &problem).rfind("10.0.0.7 172.17.0.1", 0) == 0);
  const std::vector<Place> bridges(own.begin(), own.end() - 1);
  CHECK(orderPlaces(bridges, own, false, false).empty());
  CHECK(whyNone(bridges).find("this host has itself, too, as bridges of containers do (docker 172.17.0.1, ") !=
        std::string::npos);
}

TEST_CASE("an order that the peer's user gave is kept", "[network]") {
  const std::vector<Place> theirs = {host(2)[3], host(2)[2], host(2)[4]};
  CHECK(textOf(orderPlaces(theirs, host(1), false, true)) == "10.8.0.2 192.168.1.2 10.10.0.2");
}

TEST_CASE("networks are compared by the bits of their prefix", "[network]") {
  const auto near = [](const char* a, int aPrefix, const char* b, int bPrefix) {
    return sameNetwork(place("a", a, aPrefix, Made::kHardware, 0), place("b", b, bPrefix, Made::kHardware, 0));
  };
  CHECK(near("10.1.2.3", 24, "10.1.2.200", 24));
  CHECK_FALSE(near("10.1.2.3", 24, "10.1.3.3", 24));
  CHECK(near("10.1.2.3", 23, "10.1.3.3", 23));
  CHECK_FALSE(near("10.1.2.3", 25, "10.1.2.200", 25));
  CHECK(near("10.1.2.3", 32, "10.1.2.3", 32));
  CHECK_FALSE(near("10.1.2.3", 0, "10.1.2.3", 0));
  CHECK(near("fd00:1::1", 64, "fd00:1::2", 64));
  CHECK_FALSE(near("fd00:1::1", 64, "fd00:1:0:1::1", 64));
  CHECK_FALSE(near("10.1.2.3", 8, "fd00::1", 8));
}

TEST_CASE("places travel, as many as fit, and garbage is not taken for places", "[network]") {
  std::vector<Place> many;
  for (int i = 1; i < 60; ++i) many.push_back(host(i)[i % 2 == 0 ? 2 : 5]);
  std::vector<unsigned char> room(170);
  const std::size_t packed = packPlaces(many, room);
  CHECK(packed >= 12);
  std::vector<Place> back;
  REQUIRE(unpackPlaces(room, &back));
  REQUIRE(back.size() == packed);
  CHECK(leavesOut(many, packed));
  many.resize(packed);
  many.push_back(host(1)[0]);
  CHECK_FALSE(leavesOut(many, packed));  // loopback's
  for (std::size_t i = 0; i < packed; ++i) {
    CHECK(back[i].address() == many[i].address());
    CHECK(std::tuple(back[i].made, back[i].speed, back[i].prefix) ==
          std::tuple(many[i].made, many[i].speed, many[i].prefix));
  }
  for (test::Rounds rounds(3); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    for (int turn = 0; turn < 500; ++turn) {
      std::vector<unsigned char> noise(random() % 172);
      for (unsigned char& byte : noise) byte = static_cast<unsigned char>(random());
      if (!unpackPlaces(noise, &back)) continue;
      for (const Place& one : back) CHECK(one.text() != "");
    }
  }
}

TEST_CASE("addresses are read and written as people write them", "[network]") {
  for (const char* const text : {"10.0.0.1", "127.0.0.1", "fd00::2", "::1", "fe80::1"}) {
    const auto address = parseAddress(text);
    REQUIRE(address.has_value());
    CHECK(address->text() == text);
    sockaddr_storage storage;
    address->fill(5000, storage);
    CHECK(addressOf(reinterpret_cast<const sockaddr*>(&storage)) == address);
  }
  CHECK(parseAddress("10.0.0.1")->text(5000) == "10.0.0.1:5000");
  CHECK(parseAddress("fd00::2")->text(5000) == "[fd00::2]:5000");
  CHECK(parseAddress("127.9.9.9")->isLoopback());
  CHECK(parseAddress("::1")->isLoopback());
  CHECK_FALSE(parseAddress("::2")->isLoopback());
  CHECK(parseAddress("fe80::1")->isLinkLocalV6());
  for (const char* const text : {"", "10.0.0", "host", "::1::2", "10.0.0.1:5"}) CHECK_FALSE(parseAddress(text));
}

TEST_CASE("speeds are told apart by their size", "[network]") {
  CHECK(speedClass(-1) == 0);
  CHECK(speedClass(0) == 0);
  CHECK(speedClass(1000) < speedClass(10000));
  CHECK(speedClass(100000) < speedClass(400000));
  CHECK(speedClass(INT64_MAX) == 63);
}

TEST_CASE("this machine's own addresses are found", "[network]") {
  std::vector<Place> own;
  REQUIRE(ownPlaces(&own) == 0);
  CHECK_FALSE(own.empty());
  CHECK(stackName("") == stackName("fallback"));
  for (const Place& one : own) {
    CHECK(one.interface != "");
    CHECK(one.prefix > 0);
  }
}

}  // namespace kolo::network
