// The order of a communicator's operations, and the bias that spares a lone thread the price of it.
#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "base/handle_table.h"
#include "comm/turn.h"

using kolo::Bias;
using kolo::comm::InTurn;
using kolo::comm::Turn;

namespace {

constexpr int kLong = 200;   // turns in which a thread that is alone has surely been given the bias

void takeTurns(Turn& turn, int count) {
  for (int i = 0; i < count; ++i) const InTurn served(turn);
}

bool hasBias(Bias& bias) {
  if (!bias.enter()) return false;
  bias.leave();
  return true;
}

}  // namespace

TEST_CASE("A thread that is alone gets the bias, and loses it when another takes a place", "[turn]") {
  Bias bias;
  Turn turn;
  turn.leanOn(bias);
  REQUIRE_FALSE(hasBias(bias));
  takeTurns(turn, kLong);
  REQUIRE(hasBias(bias) == Bias::isPossible());
  std::thread([&] {
    REQUIRE_FALSE(hasBias(bias));   // it is the other's
    takeTurns(turn, 1);
  }).join();
  REQUIRE_FALSE(hasBias(bias));
  takeTurns(turn, kLong);
  REQUIRE(hasBias(bias) == Bias::isPossible());
  const std::uint64_t place = turn.take();   // as a stream's operation does, by the same thread
  REQUIRE_FALSE(hasBias(bias));
  turn.wait(place);
  turn.done(place);
}

TEST_CASE("A turn without a bias never leans", "[turn]") {
  Bias bias;
  Turn turn;
  takeTurns(turn, kLong);
  REQUIRE_FALSE(hasBias(bias));
}

TEST_CASE("A place taken while the owner is inside is served after it has left", "[turn]") {
  if (!Bias::isPossible()) return;
  Bias bias;
  Turn turn;
  turn.leanOn(bias);
  takeTurns(turn, kLong);
  const std::uint64_t inside = turn.enter();
  std::atomic<bool> taken{false};
  bool left = false;   // not atomic: the turn orders it
  std::thread other([&] {
    const std::uint64_t place = turn.take();
    taken = true;
    turn.wait(place);
    CHECK(left);
    turn.done(place);
  });
  while (!taken) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  left = true;
  turn.leave(inside);
  other.join();
}

TEST_CASE("One is in the turn at a time, whoever has the bias, and places are served in order", "[turn]") {
  Bias bias;
  Turn turn;
  turn.leanOn(bias);
  // One thread goes alone for long, others disturb it now and then: the bias is given and revoked again and again.
  std::uint64_t count = 0, inside = 0;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> disturbed{0};
  const auto oneTurn = [&] {
    const InTurn served(turn);
    if (++inside != 1) std::abort();
    ++count;
    --inside;
  };
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      while (!stop) {
        oneTurn();
        ++disturbed;
        std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
    });
  }
  std::uint64_t own = 0;
  for (; own < 200'000 || disturbed < 50; ++own) oneTurn();
  stop = true;
  for (std::thread& other : others) other.join();
  REQUIRE(count == own + disturbed);
}

TEST_CASE("A handle's bias is not inherited by the next object of the slot, nor reached by an older handle", "[turn]") {
  static kolo::HandleTable<Turn, 0x717201> table;
  Turn first, second;
  const std::uintptr_t old = table.add(&first);
  first.leanOn(table.biasOf(old));
  takeTurns(first, kLong);
  REQUIRE(static_cast<bool>(table.remember(old).enter()) == Bias::isPossible());
  const kolo::Weak<Turn> weak = table.remember(old);
  REQUIRE(table.retire(old) == &first);
  takeTurns(first, 1);
  table.release(old);
  const std::uintptr_t young = table.add(&second);
  REQUIRE(&table.biasOf(young) == &table.biasOf(old));
  second.leanOn(table.biasOf(young));
  REQUIRE_FALSE(table.remember(young).enter());
  takeTurns(second, kLong);
  REQUIRE(static_cast<bool>(table.remember(young).enter()) == Bias::isPossible());
  REQUIRE_FALSE(weak.enter());
  REQUIRE_FALSE(table.remember(old).enter());
}

// ---- the argument, tried in every interleaving, with the store buffer that processors have

namespace {

// One owner, who has the bias, goes in by it; two others take places, revoke what they see, and go in by turn. The owner's store
// of `inside` lies in a buffer until it is flushed, at any moment, or by a barrier. kRevoking, the intermediate owner, is what
// keeps the second of the others from going in on the first one's word.
struct State {
  int owner = 1;                        // 0: nobody, 1: the owner thread, 2: revoking
  int inside = 0, buffered = -1;        // -1: nothing buffered
  int issued = 0, served = 0;
  std::array<int, 3> step{};            // 0: the owner thread; 1, 2: the others
  std::array<int, 3> place{};
  std::array<int, 3> in{};              // in the critical section
  auto operator<=>(const State&) const = default;
};

struct Rules {
  bool marksRevoking;   // else a revoker stores "nobody" at once
  bool barrier;         // else revoking flushes nothing
};

class BiasModel {
 public:
  explicit BiasModel(const Rules& rules) : rules_(rules) {}

  // Whether two are ever inside at once, or all come to a standstill.
  bool goesWrong() {
    std::vector<State> left = {State{}};
    while (!left.empty()) {
      const State state = left.back();
      left.pop_back();
      if (!seen_.insert(state).second) continue;
      if (state.in[0] + state.in[1] + state.in[2] > 1) return true;
      bool moved = false;
      const auto go = [&](const State& next) {
        moved = true;
        left.push_back(next);
      };
      if (state.buffered >= 0) go(flushed(state));
      stepOwner(state, go);
      for (int who = 1; who <= 2; ++who) stepOther(state, who, go);
      if (!moved && !(state.step[0] == kEnd && state.step[1] == kEnd && state.step[2] == kEnd)) return true;
    }
    return false;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  static constexpr int kEnd = 100;

  static State flushed(State state) {
    if (state.buffered >= 0) state.inside = state.buffered;
    state.buffered = -1;
    return state;
  }

  template <class Go>
  void stepOwner(State s, Go go) const {
    switch (s.step[0]++) {
      case 0: if (s.owner != 1) s.step[0] = kEnd; break;      // first look
      case 1: s = flushed(s); s.buffered = 1; break;          // inside = 1 (one entry: an older one goes out first)
      case 2: s.step[0] = s.owner == 1 ? 3 : 4; s.in[0] = s.owner == 1; break;   // second look
      case 3: s.in[0] = 0; break;                             // done in there
      case 4: s = flushed(s); s.buffered = 0; break;          // inside = 0
      case 5: if (s.buffered >= 0) return; s.step[0] = kEnd; break;
      default: return;
    }
    go(s);
  }

  template <class Go>
  void stepOther(State s, int who, Go go) const {
    const auto i = static_cast<std::size_t>(who);
    switch (s.step[i]++) {
      case 0: s.place[i] = s.issued++; break;
      case 1: if (s.owner == 0) s.step[i] = 5; break;         // nothing to revoke
      case 2: s.owner = rules_.marksRevoking ? 2 : 0; break;
      case 3: if (rules_.barrier) s = flushed(s); break;
      case 4: if (s.owner == 2) s.owner = 0; break;
      case 5: if (s.served != s.place[i]) return; break;      // waits for its place
      case 6: if (s.inside != 0) return; s.in[i] = 1; break;  // and for the owner to be out
      case 7: s.in[i] = 0; ++s.served; s.step[i] = kEnd; break;
      default: return;
    }
    go(s);
  }

  Rules rules_;
  std::set<State> seen_;
};

}  // namespace

TEST_CASE("The bias excludes in every interleaving, and none of its parts can be left out", "[turn][model]") {
  BiasModel whole({.marksRevoking = true, .barrier = true});
  REQUIRE_FALSE(whole.goesWrong());
  REQUIRE(whole.states() > 500);
  REQUIRE(BiasModel({.marksRevoking = false, .barrier = true}).goesWrong());
  REQUIRE(BiasModel({.marksRevoking = true, .barrier = false}).goesWrong());
}
