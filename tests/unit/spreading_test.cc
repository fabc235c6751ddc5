#include "waiting/spreading.h"

#include <catch2/catch.hpp>
#include <vector>

using kolo::waiting::Spreading;

namespace {

const std::vector<int> kTwo{0, 1};

int targetOf(const std::vector<int>& threads, int rank, const std::vector<int>& allowed = kTwo) {
  return Spreading::target(threads, rank, allowed);
}

}  // namespace

TEST_CASE("ranks that are spread evenly stay where they are") {
  for (int rank = 0; rank < 4; ++rank) CHECK(targetOf({0, 1, 1, 0}, rank) == -1);
  for (int rank = 0; rank < 3; ++rank) CHECK(targetOf({1, 1, 0}, rank) == -1);
  CHECK(targetOf({0}, 0) == -1);
}

TEST_CASE("of the ranks on a crowded core one goes, to where the fewest are") {
  const std::vector<int> threads{1, 0, 1, 1};
  for (int rank = 0; rank < 3; ++rank) CHECK(targetOf(threads, rank) == -1);
  CHECK(targetOf(threads, 3) == 0);
  CHECK(targetOf({2, 2, 2, 1, 0, 0}, 2, {0, 1, 2, 3}) == 3);
}

TEST_CASE("one after the other, ranks that begin on one core end up evenly") {
  std::vector<int> threads(7, 3);
  const std::vector<int> allowed{2, 3, 5};
  for (int turn = 0; turn < 20; ++turn) {
    for (int rank = 0; rank < 7; ++rank) {
      if (const int to = targetOf(threads, rank, allowed); to != -1) threads[static_cast<std::size_t>(rank)] = to;
    }
  }
  for (const int thread : allowed) {
    const auto ranks = std::count(threads.begin(), threads.end(), thread);
    CHECK((ranks == 2 || ranks == 3));
  }
}

TEST_CASE("nobody goes while one's place is not known, or where it may not run") {
  CHECK(targetOf({0, 0, -1, 0}, 3) == -1);
  CHECK(targetOf({0, 0, 0, 0}, 3, {0}) == -1);
  CHECK(targetOf({0, 0, 0, 0}, 3, {}) == -1);
}

TEST_CASE("where the ranks are is looked at less and less often") {
  constexpr std::int64_t kMs = 1'000'000;
  Spreading spreading;
  int looks = 0;
  for (std::int64_t now = 1; now < 1000 * kMs; now += kMs / 2) looks += spreading.isDue(now) ? 1 : 0;
  CHECK(looks >= 15);
  CHECK(looks <= 25);
}
