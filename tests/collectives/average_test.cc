// Averages of types of 8 and 16 bits: partial results must neither be too large for the type nor lose what is small.
#include <catch2/catch.hpp>

#include "batch.h"

namespace kolo::tests {
namespace {

constexpr koloDataType_t kNarrow[] = {koloFloat16, koloBfloat16, koloFloat8e4m3, koloFloat8e5m2,
                                      koloInt8,    koloUint8,    koloInt16,      koloUint16};

Wanted average(koloCollective_t collective, const std::string& algorithm, koloDataType_t type, Data data,
               Random& random) {
  Wanted wanted;
  wanted.collective = collective;
  wanted.algorithm = algorithm;
  wanted.datatype = type;
  wanted.op = koloAvg;
  wanted.data = data;
  const std::size_t counts[] = {10, 300, 2500};  // for a line; below and above what recursive doubles
  wanted.count = algorithm == "line" ? pick(random, 1, 10) : counts[pick(random, 0, 2)];
  return wanted;
}

// Every collective that reduces by every algorithm, of every type of 8 or 16 bits; of large numbers and of tiny ones in
// turn.
void addAverages(Batch& batch, const std::vector<std::string>& more = {}) {
  std::size_t turn = pick(batch.random(), 0, 1);
  for (const koloCollective_t collective : kReducing) {
    std::vector<std::string> algorithms = algorithmsFor(collective);
    if (collective != koloCollectiveReduce) algorithms.insert(algorithms.end(), more.begin(), more.end());
    for (const std::string& algorithm : algorithms) {
      for (const koloDataType_t type : kNarrow) {
        const Data data = turn++ % 2 == 0 ? Data::kLarge : Data::kTiny;
        Wanted wanted = average(collective, algorithm, type, data, batch.random());
        batch.add(wanted);
        if (collective != koloCollectiveReduceScatter || algorithm == "hierarchical") continue;
        wanted.vector = true;
        batch.add(wanted);
      }
      ++turn;  // so that the next algorithm has them the other way round
    }
  }
}

TEST_CASE("averages: by every algorithm, large and tiny numbers of small types average to what is between them",
          "[optimised]") {
  const int ranks = GENERATE_RANKS(1, 2, 3, 4, 5, 6, 7, 8);
  const UseExecutor host(0);
  World world({.ranks = ranks});
  runRounds(world, Rounds(3000 + ranks), [](Batch& batch) { addAverages(batch); });
}

TEST_CASE("averages: the same by emulated blocks") {
  const int ranks = GENERATE(3, 4);
  const UseExecutor emulated(3);
  World world({.ranks = ranks});
  runRounds(world, Rounds(3100 + ranks), [](Batch& batch) { addAverages(batch); });
}

TEST_CASE("averages: the same between hosts, in steps or not", "[posted]") {
  struct Shape {
    int hosts, perHost;
  };
  const Shape shape = GENERATE(Shape{2, 2}, Shape{2, 3}, Shape{3, 2});
  const UseExecutor host(0);
  World world({.ranks = shape.hosts * shape.perHost, .latePerHost = shape.perHost});
  runRounds(world, Rounds(3200 + world.ranks()), [](Batch& batch) { addAverages(batch, {"", "hierarchical"}); });
}

template <class T>
struct Equal {
  koloDataType_t datatype;
  T value;
};

// All ranks have the same number, and so has the result, by every algorithm.
template <class T>
void averageEqual(World& world, const Equal<T>& equal, const std::string& algorithm) {
  constexpr std::size_t kCount = 5000;
  std::vector<std::vector<T>> results(static_cast<std::size_t>(world.ranks()), std::vector<T>(kCount));
  world.run([&](int rank) {
    const std::vector<T> input(kCount, equal.value);
    (void)koloCommSetAlgorithm(world.comm(rank), ("all_reduce:" + algorithm).c_str());
    (void)koloAllReduce(input.data(), results[static_cast<std::size_t>(rank)].data(), kCount, equal.datatype, koloAvg,
                        world.comm(rank), nullptr);
  });
  INFO(algorithm << " of " << koloDataTypeName(equal.datatype));
  for (const std::vector<T>& result : results) CHECK(result == std::vector<T>(kCount, equal.value));
}

TEST_CASE("averages: four ranks with equal numbers get just that, however large or small it is", "[optimised]") {
  const UseExecutor host(0);
  World world({.ranks = 4, .singleCopy = "-1"});
  for (const std::string& algorithm : algorithmsFor(koloCollectiveAllReduce)) {
    averageEqual<std::uint16_t>(world, {koloFloat16, 0x7b53}, algorithm);   // 60000
    averageEqual<std::uint16_t>(world, {koloFloat16, 0x0001}, algorithm);   // 2^-24
    averageEqual<std::uint16_t>(world, {koloBfloat16, 0xff7f}, algorithm);  // -3.39e38
    averageEqual<std::uint16_t>(world, {koloBfloat16, 0x0001}, algorithm);  // 2^-133
    averageEqual<std::uint8_t>(world, {koloFloat8e4m3, 0x7e}, algorithm);   // 448
    averageEqual<std::uint8_t>(world, {koloFloat8e4m3, 0x81}, algorithm);   // -2^-9
    averageEqual<std::uint8_t>(world, {koloFloat8e5m2, 0x7b}, algorithm);   // 57344
    averageEqual<std::int8_t>(world, {koloInt8, 100}, algorithm);
    averageEqual<std::uint8_t>(world, {koloUint8, 255}, algorithm);
    averageEqual<std::int16_t>(world, {koloInt16, -32768}, algorithm);
    averageEqual<std::uint16_t>(world, {koloUint16, 65535}, algorithm);
  }
}

TEST_CASE("averages: more ranks than are folded at once average floats, and refuse integers that would wrap") {
  const UseExecutor host(0);
  World world({.ranks = 66, .windowBytes = 64 << 10});
  std::vector<koloResult_t> refused(66), carriedOut(66);
  std::vector<std::string> reasons(66);
  std::vector<std::uint16_t> results(66);
  world.run([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const std::int16_t integer = 1000;
    std::int16_t result = 0;
    refused[at] = koloAllReduce(&integer, &result, 1, koloInt16, koloAvg, world.comm(rank), nullptr);
    reasons[at] = koloGetLastError(world.comm(rank));
    const std::uint16_t number = 0x7b53;
    carriedOut[at] = koloAllReduce(&number, &results[at], 1, koloFloat16, koloAvg, world.comm(rank), nullptr);
  });
  for (std::size_t rank = 0; rank < refused.size(); ++rank) {
    CHECK(refused[rank] == koloUnsupported);
    CHECK(reasons[rank].find("an average of int16") != std::string::npos);
    CHECK(reasons[rank].find("up to 64 ranks") != std::string::npos);
    CHECK(carriedOut[rank] == koloSuccess);
    CHECK(std::abs(results[rank] - 0x7b53) <= 16);
    CHECK(results[rank] == results[0]);
  }
}

}  // namespace
}  // namespace kolo::tests
