// A reproducible communicator: the bits of a result follow from the inputs, in the order of the communicator's ranks,
// alone.
#include <catch2/catch.hpp>
#include <numeric>

#include "batch.h"

namespace kolo::tests {
namespace {

struct Setting {
  const char* algorithm;
  double inWindow;
  double inPlace;
};

constexpr Setting kSettings[] = {
    {"", 0, 0},         {"", 1, 0},         {"one_shot", 0, 1}, {"one_shot", 1, 0},    {"two_shot", 0, 0},
    {"two_shot", 1, 1}, {"ring", 0.5, 0.5}, {"tree", 0.5, 0},   {"recursive", 1, 0.5}, {"biring", 0, 0}};

constexpr std::size_t kCounts[] = {3, 1000, 2500, 17};

// What rank 0 finds after each all-reduce and reduce-scatter, the same in the first setting and in some of the others.
// They and the counts have their turns. Verified against the oracle's fold too.
std::vector<Bytes> resultsOf(World& world, std::size_t settingCount, std::uint64_t seed) {
  std::vector<std::size_t> windowUsed(static_cast<std::size_t>(world.ranks()), 0);
  Random random(seed);
  std::vector<std::unique_ptr<Case>> cases;
  std::uint64_t dataSeed = seed;
  std::size_t turn = pick(random, 0, 99);
  for (const koloCollective_t collective : {koloCollectiveAllReduce, koloCollectiveReduceScatter}) {
    for (const koloDataType_t type : {koloFloat32, koloBfloat16, koloFloat16, koloFloat8e4m3}) {
      for (const koloRedOp_t op : {koloSum, koloAvg, koloProd}) {
        const std::size_t count = kCounts[++dataSeed % std::size(kCounts)];
        for (std::size_t i = 0; i < settingCount; ++i) {
          const Setting& setting = kSettings[i == 0 ? 0 : 1 + turn++ % (std::size(kSettings) - 1)];
          Wanted wanted;
          wanted.collective = collective;
          wanted.algorithm = setting.algorithm;
          const auto& known = algorithmsFor(collective);
          if (std::find(known.begin(), known.end(), wanted.algorithm) == known.end()) wanted.algorithm.clear();
          wanted.datatype = type;
          wanted.op = op;
          wanted.data = Data::kRough;
          wanted.count = count;
          wanted.inWindow = setting.inWindow;
          wanted.inPlace = setting.inPlace;
          wanted.dataSeed = dataSeed;
          cases.push_back(Case::make(world, wanted, windowUsed, random));
          REQUIRE(cases.back() != nullptr);
        }
      }
    }
  }
  runCases(world, cases, seed);
  std::vector<Bytes> results;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Bytes result = cases[i]->received(0);
    if (i % settingCount == 0) results.push_back(result);
    INFO(cases[i]->describe());
    REQUIRE(result == results.back());
  }
  return results;
}

WorldOptions reproducible(int ranks) {
  WorldOptions options;
  options.ranks = ranks;
  options.reproducible = true;
  options.windowBytes = 32 << 20;
  return options;
}

TEST_CASE("reproducible: the same bits by any algorithm, registered or not, and whoever has a rank", "[optimised]") {
  const int ranks = GENERATE(2, 3, 5);
  const UseExecutor host(0);
  World world(reproducible(ranks));
  // The same data by rank, but the ranks are other threads: here the last comes first.
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.rbegin(), order.rend(), 0);
  World turned(world, order, reproducible(ranks));
  for (Rounds rounds(2000 + ranks); rounds.next();) {
    const std::vector<Bytes> expected = resultsOf(world, 4, rounds.seed());
    REQUIRE(resultsOf(turned, 4, rounds.seed()) == expected);
  }
}

void compareExecutors(std::uint64_t seed) {
  const int ranks = 3;
  std::vector<Bytes> expected;
  {
    const UseExecutor host(0);
    WorldOptions options = reproducible(ranks);
    options.staging = "1M";
    World world(options);
    expected = resultsOf(world, 4, seed);
  }
  for (const unsigned threads : {1u, 7u, 32u}) {
    const UseExecutor emulated(threads);
    World world(reproducible(ranks));
    INFO("blocks of " << threads << " threads");
    REQUIRE(resultsOf(world, threads == 32 ? 1 : 3, seed) == expected);
  }
}

TEST_CASE("reproducible: the same bits with other slots and by emulated blocks of any width", "[slow]") {
  for (Rounds rounds(2010); rounds.next();) compareExecutors(rounds.seed());
}

}  // namespace
}  // namespace kolo::tests
