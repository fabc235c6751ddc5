// The catalogue of algorithms: what the library's queries say of it, and the manual.
#include "algorithms/catalogue.h"

#include <fmt/format.h>
#include <kolo/kolo.h>

#include <catch2/catch.hpp>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "algorithms/execute.h"
#include "algorithms/names.h"
#include "algorithms/steps.h"

namespace {

using namespace kolo;

// "all_reduce" is koloAllReduce.
std::string functionOf(koloCollective_t collective) {
  std::string function = "kolo";
  bool begins = true;
  for (const char* letter = koloCollectiveName(collective); *letter != '\0'; ++letter) {
    if (*letter != '_') function += begins ? static_cast<char>(std::toupper(*letter)) : *letter;
    begins = *letter == '_';
  }
  return function;
}

// The last column of the manual's table of collectives, by the name in the first one.
std::map<std::string, std::string> documentedAlgorithms() {
  const char* const root = std::getenv("KOLO_TEST_SOURCE_ROOT");  // meson test sets it
  REQUIRE(root != nullptr);
  std::ifstream file(std::string(root) + "/src/algorithms/README.md");
  REQUIRE(file.good());
  std::map<std::string, std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| collective |", 0) == 0) inside = true;
    if (!inside || line.rfind("| `", 0) != 0) {
      inside = inside && !line.empty() && line.front() == '|';
      continue;
    }
    const std::size_t end = line.rfind('|'), begin = line.rfind('|', end - 1);
    rows[line.substr(3, line.find('`', 3) - 3)] = line.substr(begin + 2, end - begin - 3);
  }
  return rows;
}

TEST_CASE("catalogue: the manual lists exactly the algorithms that there are") {
  const std::map<std::string, std::string> documented = documentedAlgorithms();
  CHECK(documented.size() == koloCollectiveBarrier + 1);
  for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
    std::string names;
    for (const algorithms::Row& row : algorithms::kCatalogue) {
      if (row.serves(static_cast<device::Collective>(i)))
        names += fmt::format("{}{}", names.empty() ? "" : " ", row.name);
    }
    const std::string function = functionOf(static_cast<koloCollective_t>(i));
    INFO(function);
    REQUIRE(documented.count(function) == 1);
    CHECK(documented.at(function) == names);
  }
}

TEST_CASE("catalogue: lists are cut elsewhere by the algorithms that the manual names") {
  using device::setOf;
  using enum device::Collective;
  const std::map<std::string, std::uint32_t> named{{"biring", setOf(kAllReduce, kReduceScatter)},
                                                   {"double_tree", setOf(kReduce)},
                                                   {"hierarchical", setOf(kAllReduce)},
                                                   {"mesh_ring", setOf(kAllReduce)}};
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    INFO(row.name);
    CHECK(row.cutsLists == (named.count(row.name) != 0 ? named.at(row.name) : 0));
  }
}

TEST_CASE("catalogue: the library's queries name every algorithm, and say what it exists for") {
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    const int number = static_cast<int>(row.algorithm);
    REQUIRE(koloAlgorithmName(number) != nullptr);
    CHECK(std::string(koloAlgorithmName(number)) == row.name);
    CHECK(algorithmByName(row.name) == row.algorithm);
    for (int i = 0; i < koloNumCollectives; ++i) {
      CHECK(koloAlgorithmIsDefined(number, static_cast<koloCollective_t>(i)) ==
            (row.serves(static_cast<device::Collective>(i)) ? 1 : 0));
    }
    CHECK(koloAlgorithmIsDefined(number, koloNumCollectives) == 0);
    CHECK(koloAlgorithmIsDefined(number, static_cast<koloCollective_t>(-1)) == 0);
  }
  for (const int none : {-1, algorithms::kAlgorithms, 1000}) {
    CHECK(koloAlgorithmName(none) == nullptr);
    CHECK(koloAlgorithmIsDefined(none, koloCollectiveAllReduce) == 0);
  }
}

// Not among the static assertions: under its sanitizers GCC does not take the comparison of a function's address with
// null for a constant.
TEST_CASE("catalogue: every algorithm has costs, unless it consists of steps") {
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    INFO(row.name);
    const bool isInSteps = row.grid != algorithms::GridOf::kNone;
    CHECK((row.staged == nullptr) == isInSteps);
    CHECK((row.wire == nullptr) == isInSteps);
  }
}

TEST_CASE(
    "catalogue: every algorithm of several steps has steps that fold to the result once, by algorithms that serve") {
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    for (int i = 0; i < koloNumCollectives; ++i) {
      const auto collective = static_cast<device::Collective>(i);
      if (row.grid == algorithms::GridOf::kNone || !row.serves(collective)) continue;
      for (const std::uint64_t bytes : {std::uint64_t{8}, std::uint64_t{1} << 30}) {
        INFO(row.name << ' ' << koloCollectiveName(static_cast<koloCollective_t>(i)) << ' ' << bytes);
        const algorithms::StepList list = algorithms::stepsOf(collective, bytes);
        REQUIRE(list.count > 1);
        int yields = 0;
        for (int at = 0; at < list.count; ++at) {
          const algorithms::Step& step = list.steps[at];
          const bool folds = device::isIn(step.collective, device::kReducing);
          CHECK((folds || !step.yields));
          CHECK((!folds || yields == 0));  // nothing is folded behind the result
          yields += step.yields ? 1 : 0;
          const device::Algorithm by = step.by != device::Algorithm::kCount ? step.by : row.along;
          if (by != device::Algorithm::kCount) CHECK(device::isIn(step.collective, algorithms::rowOf(by).steps));
        }
        CHECK(yields == (device::isIn(collective, device::kReducing) ? 1 : 0));
      }
    }
  }
}

TEST_CASE("catalogue: device code knows which algorithms let all ranks meet") {
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    INFO(row.name);
    CHECK(device::meetsAll(row.algorithm) == (row.meeting == algorithms::Meeting::kAll));
  }
}

TEST_CASE("catalogue: what goes in packets has a cost, and is an algorithm's collective") {
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    INFO(row.name);
    bool hasForm = false;
    for (int i = 0; i < koloNumCollectives; ++i) {
      const auto collective = static_cast<device::Collective>(i);
      if (!device::hasPacketForm(row.algorithm, collective)) continue;
      hasForm = true;
      CHECK(row.serves(collective));
    }
    CHECK(hasForm == (row.packets != nullptr));
  }
}

}  // namespace
