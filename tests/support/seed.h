// Random cases: the seed of a run, and the rounds of a test case.
//
// A failed round prints "KOLO_TEST_SEED=N". With that in the environment, the round is the first one of its test case.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

namespace kolo::test {

// The value of KOLO_TEST_SEED. Where the environment has none, the first call draws a number and puts it there, for
// this process and for those that it starts. runTests() makes that call before there are other threads.
std::uint64_t testSeed();

// The seed that repeats what is under way: that of the present round, or of the run where no case is in its rounds. And
// when the last round began.
//
// Thread safety: any thread.
std::uint64_t currentSeed();
std::chrono::steady_clock::time_point lastRoundBegin();

// The rounds in which a test case tries random data:
//
//   for (Rounds rounds(600 + ranks); rounds.next();) tryEveryAlgorithm(Random(rounds.seed()));
//
// There is a round for each seed that failed once, then one with the seed of this run, then others as long as they end
// within the budget of the test case: 0.2 s, times KOLO_TEST_BUDGET. A check that fails in a round prints its seed.
//
// Thread safety: one thread.
class Rounds {
 public:
  // number: test cases with different numbers draw different data. failed: the values of KOLO_TEST_SEED that failed.
  explicit Rounds(int number, std::initializer_list<std::uint64_t> failed = {});
  Rounds(const Rounds&) = delete;
  ~Rounds();

  // Begins the next round; false if there is none.
  bool next();
  // For the random numbers of this round.
  std::uint64_t seed() const;

 private:
  using Clock = std::chrono::steady_clock;

  int number_;
  std::vector<std::uint64_t> failed_;
  std::size_t round_ = 0;    // the number of those that have begun, repeated ones first
  std::uint64_t base_ = 0;   // KOLO_TEST_SEED of the present round
  Clock::time_point begin_;  // of the first round that repeats no failure
  Clock::time_point last_;   // of the present round
  std::optional<Catch::ScopedMessage> message_;
};

}  // namespace kolo::test
