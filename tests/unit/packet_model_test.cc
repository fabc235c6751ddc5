// The argument of src/device/packets.h, tried in every interleaving: that two places for the buffers of a pair are
// enough, and that the low bits of a number tell buffers apart, because both places are filled to their end now and
// then. Packets become visible one by one, in any order, as nothing releases them. Data goes one way, both ways, or one
// way as the answer to what came the other way, as from and to the parent of a tree.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <vector>

#include "device/packets.h"
#include "support/interleavings.h"

namespace packet_model {
namespace {

constexpr int kRanks = 2, kPackets = 2, kMostPlaces = 2;
constexpr unsigned kFront = 1, kData = 2;  // bits of the two packets of a buffer

// What the two ranks give each other in buffers of the same number, beside their fronts.
struct Step {
  std::array<bool, kRanks> gives{};
  int answers = -1;  // the rank whose data is made of the peer's; -1: neither
};
constexpr Step kFronts{}, kOneWay{{true, false}}, kOtherWay{{false, true}}, kBothWays{{true, true}};
constexpr Step kAnswered{{true, true}, 1}, kAnswering{{true, true}, 0};

// A packet in memory: the low bits of its number, which is all that a reader sees, and the buffer that it is of.
struct Packet {
  int number = 0;
  int buffer = 0;
  auto operator<=>(const Packet&) const = default;
};

// A rank writes the packets of a buffer in any order, takes those of the peer's in any order, and goes on. Its front
// waits for nothing.
struct Rank {
  int buffer = 1;
  unsigned toWrite = 0;  // bits of the packets that are still to be written; a rank may also be yet to begin
  unsigned toTake = 0;
  bool hasBegun = false;
  auto operator<=>(const Rank&) const = default;
};

struct State {
  std::array<Rank, kRanks> ranks;
  std::array<std::array<std::array<Packet, kPackets>, kMostPlaces>, kRanks> memory;  // [reader][place][packet]
  auto operator<=>(const State&) const = default;
};

struct Rules {
  int places;
  std::vector<Step> steps;  // one for each buffer
  int numbers = 1000;       // after which numbers come again
  int cleanEvery = 1000;    // buffers, of which the first `places` are filled to their end
  bool awaits = true;       // rank 0 takes the peer's buffer before it goes on
};

class Model {
 public:
  explicit Model(const Rules& rules) : rules_(rules) {}

  // Whether some interleaving takes a packet of another buffer, or comes to a standstill.
  bool goesWrong() {
    const auto hasEnded = [&](const Rank& rank) { return rank.buffer > static_cast<int>(rules_.steps.size()); };
    const auto isOver = [&](const State& state) { return hasEnded(state.ranks[0]) && hasEnded(state.ranks[1]); };
    return tried_.goWrong({}, isOver, [&](const State& state, const auto& goTo) {
      for (int rank = 0; rank < kRanks; ++rank) {
        if (hasEnded(state.ranks[at(rank)])) continue;
        for (int packet = 0; packet < kPackets; ++packet) {
          for (const bool writes : {false, true}) {
            State next = state;
            bool wrong = false;
            if (!(writes ? write(next, rank, packet) : take(next, rank, packet, wrong))) continue;
            goOn(next.ranks[at(rank)], rank);
            goTo(next, wrong);
          }
        }
      }
    });
  }
  std::size_t states() const { return tried_.states(); }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  const Step& stepOf(const Rank& rank) const { return rules_.steps[at(rank.buffer - 1)]; }

  void begin(Rank& rank, int index) const {
    if (rank.hasBegun) return;
    rank.hasBegun = true;
    const bool isWhole = rank.buffer % rules_.cleanEvery < rules_.places;
    rank.toWrite = kFront | (isWhole || stepOf(rank).gives[at(index)] ? kData : 0);
    rank.toTake = kFront | (stepOf(rank).gives[at(1 - index)] ? kData : 0);
  }
  bool write(State& state, int index, int packet) const {
    Rank& rank = state.ranks[at(index)];
    begin(rank, index);
    if ((rank.toWrite >> packet & 1) == 0) return false;
    const bool isAnswer = stepOf(rank).answers == index && 1u << packet == kData;
    if (isAnswer && (rank.toTake & kData) != 0) return false;
    rank.toWrite &= ~(1u << packet);
    state.memory[at(1 - index)][at(rank.buffer % rules_.places)][at(packet)] = {rank.buffer % rules_.numbers,
                                                                                rank.buffer};
    return true;
  }
  // Loads may come before this rank's own stores: nothing orders them.
  bool take(State& state, int index, int packet, bool& wrong) const {
    Rank& rank = state.ranks[at(index)];
    begin(rank, index);
    const Packet& there = state.memory[at(index)][at(rank.buffer % rules_.places)][at(packet)];
    if ((rank.toTake >> packet & 1) == 0 || there.number != rank.buffer % rules_.numbers || there.buffer == 0)
      return false;
    wrong = there.buffer != rank.buffer;
    rank.toTake &= ~(1u << packet);
    return true;
  }
  void goOn(Rank& rank, int index) const {
    if (rank.toWrite != 0 || ((rules_.awaits || index != 0) && rank.toTake != 0)) return;
    rank = {.buffer = rank.buffer + 1};
  }

  Rules rules_;
  kolo::tests::Interleavings<State> tried_;
};

// So many buffers, each in all the ways of `steps`.
bool someGoWrong(Rules rules, const std::vector<Step>& steps, int buffers) {
  rules.steps.assign(static_cast<std::size_t>(buffers), {});
  std::vector<std::size_t> ways(rules.steps.size());
  for (;;) {
    for (std::size_t i = 0; i < ways.size(); ++i) rules.steps[i] = steps[ways[i]];
    if (Model(rules).goesWrong()) return true;
    const auto next = std::find_if(ways.begin(), ways.end(), [&](std::size_t way) { return way + 1 < steps.size(); });
    if (next == ways.end()) return false;
    std::fill(ways.begin(), next, 0);
    ++*next;
  }
}
const std::vector<Step>& allSteps() {
  static const std::vector<Step> kAll = {kFronts, kOneWay, kOtherWay, kBothWays, kAnswered, kAnswering};
  return kAll;
}

TEST_CASE("packets: with two places every buffer is taken whole, in every interleaving") {
  CHECK_FALSE(someGoWrong({.places = 2, .steps = {}}, allSteps(), 4));
  Model model({.places = 2, .steps = {kBothWays, kFronts, kOneWay, kAnswered, kFronts, kAnswering, kOtherWay}});
  CHECK_FALSE(model.goesWrong());
  CHECK(model.states() > 50);  // it did look at interleavings
}

TEST_CASE("packets: one place is not enough, nor are two for a rank that does not take the peer's buffer") {
  CHECK(someGoWrong({.places = 1, .steps = {}}, allSteps(), 3));
  CHECK(someGoWrong({.places = 2, .steps = {}, .awaits = false}, {kBothWays}, 4));
  CHECK(someGoWrong({.places = 2, .steps = {}, .awaits = false}, {kOneWay}, 4));  // though it has nothing to take
}

TEST_CASE("packets: numbers may come again once both places have been filled to their end") {
  for (const Step& step : {kBothWays, kOneWay})
    CHECK_FALSE(someGoWrong({.places = 2, .steps = {}, .numbers = 8, .cleanEvery = 4}, {kFronts, step}, 10));
  CHECK(someGoWrong({.places = 2, .steps = {}, .numbers = 4}, {kFronts, kBothWays}, 7));
  CHECK(someGoWrong({.places = 2, .steps = {}, .numbers = 4}, {kFronts, kOneWay}, 7));
}

TEST_CASE("packets: the buffers that are filled to their end are those of the model, and numbers outlast them") {
  using namespace kolo::device;
  const auto isWhole = [](std::uint64_t number) { return packetsWritten(number, 8, 4096) == packetsFor(4096); };
  std::vector<int> places;
  for (std::uint64_t number = kCleanEvery - 3; number < kCleanEvery + 5; ++number) {
    if (isWhole(number)) places.push_back(static_cast<int>(number % kPacketBuffers));
  }
  CHECK(places == std::vector<int>{0, 1});
  CHECK(kCleanEvery % kPacketBuffers == 0);
  CHECK(kCleanEvery < (std::uint64_t{1} << 32) / 2);
  CHECK(packetsWritten(kCleanEvery - 1, 8, 4096) == kFrontPackets + 1);
}

TEST_CASE("packets: data comes out of them as it went in, whatever its address and its length") {
  using namespace kolo::device;
  for (std::uint64_t offset = 0; offset < 8; ++offset) {
    for (std::uint64_t bytes = 1; bytes <= 24; ++bytes) {
      std::array<unsigned char, 40> from{}, to{};
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(3 * i + 129);
      for (std::uint64_t begin = 0; begin < bytes; begin += kPacketData) {
        kolo::device::Packet packet{};
        storePacket(packet, packetOf(packetData({from.data() + offset, bytes}, begin), 0xfedcba98u));
        const LoadedPacket loaded = loadPacket(packet);
        CHECK(loaded.has(0xfedcba98u));
        CHECK_FALSE(loaded.has(0xfedcba99u));
        putData({to.data() + offset, bytes}, begin, loaded.data());
      }
      CHECK(std::equal(from.begin() + static_cast<int>(offset), from.begin() + static_cast<int>(offset + bytes),
                       to.begin() + static_cast<int>(offset)));
      CHECK(std::count(to.begin() + static_cast<int>(offset + bytes), to.end(), 0) ==
            static_cast<int>(to.size() - offset - bytes));
    }
  }
}

}  // namespace
}  // namespace packet_model
