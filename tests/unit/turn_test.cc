// The order of a communicator's operations, and the bias that spares a lone thread the price of it.
#include "comm/turn.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/handle_table.h"
#include "support/interleavings.h"

using kolo::Bias;
using kolo::comm::InTurn;
using kolo::comm::Turn;

namespace {

constexpr int kLong = 200;  // turns in which a thread that is alone has surely been given the bias

void takeTurns(Turn& turn, int count) {
  for (int i = 0; i < count; ++i) const InTurn served(turn);
}

bool hasBias(Bias& bias) {
  if (!bias.enter()) return false;
  bias.leave();
  return true;
}

}  // namespace

TEST_CASE("A thread that is alone gets the bias, and loses it when another takes a place", "[turn][threads]") {
  Bias bias;
  Turn turn;
  turn.leanOn(bias);
  REQUIRE_FALSE(hasBias(bias));
  takeTurns(turn, kLong);
  REQUIRE(hasBias(bias) == Bias::isPossible());
  std::thread([&] {
    REQUIRE_FALSE(hasBias(bias));  // it is the other's
    takeTurns(turn, 1);
  }).join();
  REQUIRE_FALSE(hasBias(bias));
  takeTurns(turn, kLong);
  REQUIRE(hasBias(bias) == Bias::isPossible());
  const std::uint64_t place = turn.take();  // as a stream's operation does, by the same thread
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

TEST_CASE("A place taken while the owner is inside is served after it has left", "[turn][threads]") {
  if (!Bias::isPossible()) return;
  Bias bias;
  Turn turn;
  turn.leanOn(bias);
  takeTurns(turn, kLong);
  const std::uint64_t inside = turn.enter();
  std::atomic<bool> taken{false};
  bool left = false;  // not atomic: the turn orders it
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

TEST_CASE("One is in the turn at a time, whoever has the bias, and places are served in order",
          "[turn][threads][optimised]") {
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

TEST_CASE("A turn that is lent is borrowed, entered by nobody, and taken back from who has it", "[turn][threads]") {
  Bias bias;
  Turn turn;
  const bool isByBias = GENERATE(false, true) && Bias::isPossible();
  if (isByBias) turn.leanOn(bias);
  takeTurns(turn, kLong);
  std::atomic<bool> stop{false}, isEntered{false};
  std::uint64_t count = 0, inside = 0, borrowed = 0;  // not atomic: the turn orders it
  const std::uint64_t entered = turn.enter();
  REQUIRE((entered == Turn::kByBias) == isByBias);
  REQUIRE_FALSE(turn.tryBorrow());
  std::thread borrower([&] {
    while (!stop) {
      if (!turn.tryBorrow()) continue;
      if (++inside != 1) std::abort();
      ++borrowed;
      --inside;
      turn.giveBack();
    }
  });
  const auto lendUntilBorrowed = [&] {
    for (bool isBorrowed = false; !isBorrowed;) {
      const std::uint64_t before = borrowed;
      turn.lend(entered);
      std::this_thread::yield();
      turn.takeBack(entered);
      if (++inside != 1) std::abort();
      ++count;
      --inside;
      isBorrowed = borrowed != before;
    }
  };
  for (int i = 0; i < 200; ++i) lendUntilBorrowed();
  std::thread other([&] {
    const InTurn served(turn);
    isEntered = true;
  });
  for (int i = 0; i < 200; ++i) lendUntilBorrowed();
  REQUIRE_FALSE(isEntered);
  stop = true;
  borrower.join();
  REQUIRE(count >= 400);
  turn.leave(entered);
  other.join();
}

TEST_CASE("Places that are given up are passed over, whoever waits or looks behind them", "[turn][threads]") {
  Turn turn;
  const auto isOver = [] { return true; };
  std::array<std::uint64_t, 5> places{};
  for (std::uint64_t& place : places) place = turn.take();
  std::atomic<bool> isServed{false};
  std::thread waiter([&] {
    turn.wait(places[3]);
    isServed = true;
    turn.done(places[3]);
  });
  std::vector<std::thread> givers;
  std::array<bool, 2> wereServed{true, true};
  for (std::size_t i = 0; i < wereServed.size(); ++i)
    givers.emplace_back([&, i] { wereServed[i] = turn.waitUnless(places[1 + i], isOver); });
  for (std::thread& giver : givers) giver.join();
  CHECK_FALSE((wereServed[0] || wereServed[1]));
  CHECK_FALSE(isServed);
  CHECK(turn.waitUnless(places[0], isOver));  // it is next
  turn.done(places[0]);
  waiter.join();
  CHECK(turn.isNext(places[4]));
  const std::uint64_t given = turn.take(), last = turn.take();
  CHECK_FALSE(turn.waitUnless(given, isOver));
  turn.wait(places[4]);
  turn.done(places[4]);
  CHECK(turn.isNext(last));
  turn.wait(last);
  turn.done(last);
  takeTurns(turn, 3);
}

TEST_CASE("Who is inside by the bias does not enter again", "[turn]") {
  if (!Bias::isPossible()) return;
  Bias bias, other;
  Turn turn, next;
  turn.leanOn(bias);
  next.leanOn(other);
  takeTurns(turn, kLong);
  takeTurns(next, kLong);
  REQUIRE(bias.enter());
  REQUIRE_FALSE(bias.enter());
  REQUIRE_FALSE(other.enter());
  REQUIRE_FALSE(bias.isLeft());  // the refused attempts have not let it out
  bias.leave();
  REQUIRE(other.enter());
  other.leave();
}

TEST_CASE("A handle's bias is not inherited by the next object of the slot, nor reached by an older handle", "[turn]") {
  static kolo::HandleTable<Turn, 0x7172> table;
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

namespace bias_model {
namespace {

// Two threads that are given the bias in turn, and a third that only takes places. A thread looks whether it has the
// bias, stores that it is inside, looks again; the store lies in a buffer until it is flushed, at any moment or by a
// barrier. If it does not have the bias it takes a place, revokes what it sees, waits for its place and until whoever
// had the bias last is out, and, at the end of its turn, may give itself the bias, which it takes back if a place was
// taken meanwhile.
constexpr int kThreads = 3;
constexpr int kNobody = -1, kRevoking = kThreads;

struct State {
  int owner = 0, last = 0;  // the first thread begins with the bias
  int issued = 0, served = 0;
  struct Thread {
    int step = 0, left = 0;  // turns still to take
    int place = 0;
    bool in = false;      // in the critical section
    bool inside = false;  // its mark, as others see it
    int buffered = -1;    // a store to the mark on its way; -1: none
    auto operator<=>(const Thread&) const = default;
  };
  std::array<Thread, kThreads> threads{};
  bool sharedMark = false;  // with one mark for all: as others see it
  auto operator<=>(const State&) const = default;
};

struct Rules {
  bool marksRevoking = true;  // else a revoker stores "nobody" at once
  bool barrier = true;        // else revoking flushes nothing
  bool ownMarks = true;       // else all threads share one mark
  bool looksBack = true;      // else who gives itself the bias does not look for places taken meanwhile
};

class BiasModel {
 public:
  BiasModel(const Rules& rules, std::array<int, kThreads> turns) : rules_(rules), turns_(turns) {}

  // Whether two are ever in the critical section at once, or all come to a standstill.
  bool goesWrong() {
    State begin;
    for (std::size_t i = 0; i < kThreads; ++i) begin.threads[i].left = turns_[i];
    const auto isOver = [](const State& state) {
      return std::all_of(state.threads.begin(), state.threads.end(),
                         [](const auto& thread) { return thread.left == 0; });
    };
    return tried_.goWrong(begin, isOver, [&](const State& state, const auto& take) {
      const auto takeIfAlone = [&](const State& next) {
        take(next, std::count_if(next.threads.begin(), next.threads.end(), [](const auto& one) { return one.in; }) > 1);
      };
      for (std::size_t i = 0; i < kThreads; ++i) {
        if (state.threads[i].buffered >= 0) {
          State next = state;
          flush(next, i);
          takeIfAlone(next);
        }
        if (state.threads[i].left != 0) step(state, i, takeIfAlone);
      }
    });
  }
  std::size_t states() const { return tried_.states(); }

 private:
  bool& markOf(State& s, std::size_t i) const { return rules_.ownMarks ? s.threads[i].inside : s.sharedMark; }
  void flush(State& s, std::size_t i) const {
    if (s.threads[i].buffered >= 0) markOf(s, i) = s.threads[i].buffered == 1;
    s.threads[i].buffered = -1;
  }
  // One store fits the buffer: an older one goes out first.
  void store(State& s, std::size_t i, bool inside) const {
    flush(s, i);
    s.threads[i].buffered = inside ? 1 : 0;
  }
  static void endTurn(State::Thread& t) {
    t.step = 0;
    --t.left;
  }

  // take(next), unless it has to wait.
  template <class Take>
  void step(State s, std::size_t i, const Take& take) const {
    State::Thread& t = s.threads[i];
    const int self = static_cast<int>(i);
    switch (t.step++) {
      case 0:
        if (s.owner != self) t.step = 10;
        break;  // the first look
      case 1: store(s, i, true); break;
      case 2:
        t.step = s.owner == self ? 3 : 5;
        t.in = s.owner == self;
        break;  // the second
      case 3:
        t.in = false;
        store(s, i, false);
        endTurn(t);
        break;
      case 5:
        store(s, i, false);
        t.step = 10;
        break;  // not inside after all: by a place
      case 10:
        flush(s, i);
        t.place = s.issued++;
        break;  // an atomic read-modify-write
      case 11:
        if (s.owner == kNobody) t.step = 15;
        break;
      case 12:
        flush(s, i);
        s.owner = rules_.marksRevoking ? kRevoking : kNobody;
        break;
      case 13:
        for (std::size_t k = 0; k < kThreads && rules_.barrier; ++k) flush(s, k);
        break;
      case 14:
        if (s.owner == kRevoking) s.owner = kNobody;
        break;
      case 15:
        if (s.served != t.place) return;
        break;
      case 16:
        if (markOf(s, static_cast<std::size_t>(s.last))) return;
        t.in = true;
        break;
      case 17: {  // ends its turn, with or without giving itself the bias
        t.in = false;
        State plain = s;
        ++plain.served;
        endTurn(plain.threads[i]);
        take(plain);
        if (s.issued != t.place + 1 || s.owner != kNobody) return;
        s.last = self;
        break;
      }
      case 18:
        if (s.owner == kNobody) s.owner = self;
        break;
      case 19: t.step = !rules_.looksBack || s.issued == t.place + 1 ? 23 : 20; break;
      case 20:
        if (s.owner == kNobody) {
          t.step = 23;
          break;
        }
        s.owner = rules_.marksRevoking ? kRevoking : kNobody;
        break;
      case 21:
        for (std::size_t k = 0; k < kThreads && rules_.barrier; ++k) flush(s, k);
        break;
      case 22:
        if (s.owner == kRevoking) s.owner = kNobody;
        break;
      case 23:
        ++s.served;
        endTurn(t);
        break;
      default: return;
    }
    take(s);
  }

  Rules rules_;
  std::array<int, kThreads> turns_;
  kolo::tests::Interleavings<State> tried_;
};

}  // namespace

TEST_CASE("The bias excludes in every interleaving, and none of its parts can be left out", "[turn][model]") {
  constexpr std::array<int, kThreads> kTurns = {2, 2, 1};
  BiasModel whole({}, kTurns);
  REQUIRE_FALSE(whole.goesWrong());
  CHECK(whole.states() > 10'000);
  CHECK(BiasModel({.marksRevoking = false}, kTurns).goesWrong());
  CHECK(BiasModel({.barrier = false}, kTurns).goesWrong());
  CHECK(BiasModel({.ownMarks = false}, kTurns).goesWrong());
  CHECK(BiasModel({.looksBack = false}, kTurns).goesWrong());
}

}  // namespace bias_model
