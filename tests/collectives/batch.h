// A list of cases for one world, run in one go, earlier if the windows are full. run() at the end.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>

#include "cases.h"
#include "support/rank_counts.h"
#include "support/seed.h"

namespace kolo::tests {

using test::Rounds;

class Batch {
 public:
  Batch(World& world, std::uint64_t seed, int delays = 0)
      : world_(world), seed_(seed), delays_(delays), random_(seed),
        windowUsed_(static_cast<std::size_t>(world.ranks())) {}

  Random& random() { return random_; }
  void add(const Wanted& wanted) {
    std::unique_ptr<Case> made = Case::make(world_, wanted, windowUsed_, random_);
    if (made == nullptr) {
      run();
      made = Case::make(world_, wanted, windowUsed_, random_);
    }
    REQUIRE(made != nullptr);
    cases_.push_back(std::move(made));
  }
  void run() {
    runCases(world_, cases_, seed_, delays_);
    cases_.clear();
    std::fill(windowUsed_.begin(), windowUsed_.end(), 0);
  }

 private:
  World& world_;
  std::uint64_t seed_;
  int delays_;
  Random random_;
  std::vector<std::size_t> windowUsed_;
  std::vector<std::unique_ptr<Case>> cases_;
};

// Any collectives by any algorithms.
inline void addInAnyOrder(Batch& batch, int ranks, int calls) {
  for (int i = 0; i < calls; ++i) {
    const auto collective = static_cast<koloCollective_t>(pick(batch.random(), 0, koloCollectiveBarrier));
    const std::vector<std::string>& algorithms = algorithmsFor(collective);
    const std::size_t at = pick(batch.random(), 0, algorithms.size());
    batch.add(randomWanted(collective, at < algorithms.size() ? algorithms[at] : "", ranks, batch.random()));
  }
}

// Calls add(batch) and runs the batch, once in each round. delays: as in runCases().
template <class Add>
void runRounds(World& world, Rounds&& rounds, const Add& add, int delays = 0) {
  while (rounds.next()) {
    Batch batch(world, rounds.seed(), delays);
    add(batch);
    batch.run();
  }
}

}  // namespace kolo::tests
