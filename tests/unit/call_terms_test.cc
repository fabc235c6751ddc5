// In which part the terms of two ranks differ, whatever the other rank answers.
#include "failure/call_terms.h"

#include <catch2/catch.hpp>
#include <string>

namespace {

using namespace kolo;
using failure::Asked;

struct Words : Terms {
  std::vector<std::vector<Term>> all;
  std::size_t parts() const override { return all.size(); }
  std::vector<Term> of(std::size_t part) const override { return all[part]; }
};

std::shared_ptr<Words> words(std::size_t parts) {
  auto result = std::make_shared<Words>();
  for (std::size_t i = 0; i < parts; ++i) result->all.push_back({{i, "place " + std::to_string(i)}, {7, "type seven"}});
  return result;
}

std::string differenceOf(const Words& own, const Words* theirs) {
  return failure::firstDifference(own, 4, 1, [&](Asked asked, std::uint64_t part) {
    return std::make_shared<const std::string>(failure::answerOf(theirs, asked, part));
  });
}

TEST_CASE("terms: the first part that differs, and what of it") {
  for (const std::size_t parts : {1, 5, 40000}) {
    const auto own = words(parts), theirs = words(parts);
    CHECK(differenceOf(*own, theirs.get()).empty());
    theirs->all[parts - 1][1] = {8, "type eight"};
    CHECK(differenceOf(*own, theirs.get()) ==
          "item " + std::to_string(parts - 1) + ": rank 1 gave type eight, rank 4 gave type seven");
  }
}

TEST_CASE("terms: different numbers of parts are told, with the first that differs") {
  const auto own = words(3), theirs = words(2);
  CHECK(differenceOf(*own, theirs.get()) == "rank 1 gave 2 items, rank 4 gave 3");
  theirs->all[0][0] = {9, "place nine"};
  CHECK(differenceOf(*own, theirs.get()) ==
        "rank 1 gave 2 items, rank 4 gave 3; item 0: rank 1 gave place nine, rank 4 gave place 0");
  CHECK(differenceOf(*own, words(0).get()) == "rank 1 gave 0 items, rank 4 gave 3");
}

TEST_CASE("terms: a rank that does not answer, or answers nonsense, leaves the difference untold") {
  const auto own = words(3);
  CHECK(differenceOf(*own, nullptr).empty());
  CHECK(failure::firstDifference(*own, 0, 1, [](Asked, std::uint64_t) { return nullptr; }).empty());
  for (const char* text : {"", "x", "12345678", "12345678abcdefgh"}) {
    CHECK(failure::firstDifference(*own, 0, 1, [&](Asked, std::uint64_t) {
            return std::make_shared<const std::string>(text);
          }).empty());
  }
}

TEST_CASE("terms: those of the last operations are kept, by number") {
  failure::CallTerms kept;
  const auto one = words(1), two = words(2);
  kept.note(5, one);
  kept.note(6, two);
  CHECK(kept.of(5) == one);
  CHECK(kept.of(6) == two);
  CHECK(kept.of(7) == nullptr);
  kept.note(5 + links::Board::kEntries, two);
  CHECK(kept.of(5) == nullptr);
  CHECK(kept.of(5 + links::Board::kEntries) == two);
}

}  // namespace
