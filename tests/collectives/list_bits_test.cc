// S2.7: what a list reduces has the bits of the single calls that it stands for, by every algorithm of which kolo.h
// says so, on the host, on emulated blocks and on a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/catalogue.h"
#include "algorithms/names.h"
#include "cases.h"
#include "lists.h"
#if KOLO_HAVE_CUDA
#include "gpu_scene.h"
#endif

namespace kolo::tests {
namespace {

// What a collective that reduces takes and gives on one rank, of one item.
struct Reduced {
  koloDataType_t datatype;
  std::size_t count;  // of the result
  std::vector<std::uint8_t> input, single, merged;
  // What the calls are given: these, or places on a GPU.
  std::uint8_t *send = input.data(), *alone = single.data(), *together = merged.data();
};

// One list and the single calls that it stands for.
struct BitsCase {
  koloCollective_t collective = koloCollectiveAllReduce;
  std::vector<koloDataType_t> datatypes;  // for each length, an item of each
  std::string wishes;
  koloRedOp_t op = koloSum;
  bool isScaled = false;  // a pre-multiplied sum; of one datatype
  bool isTraced = false;  // it is seen that the list goes by the algorithm that is wished for
  std::size_t longest = 100000;
  bool isInChannels = false;  // several blocks of a GPU may share an operation
};

// Rough numbers, whose sums depend on the order in which they are folded: some, again and again.
void fillRough(koloDataType_t datatype, std::vector<std::uint8_t>& bytes, Random& random) {
  constexpr std::size_t kSome = 1009;
  std::uniform_real_distribution<float> values(-1, 1);
  const double factor = isFloating(datatype) ? 1 : 1000;
  const std::size_t size = koloDataTypeSize(datatype), drawn = std::min(bytes.size(), kSome * size);
  for (std::size_t at = 0; at < drawn; at += size)
    encodeAny(datatype, static_cast<double>(values(random)) * factor, bytes.data() + at);
  for (std::size_t at = drawn; at < bytes.size(); at += drawn)
    std::memcpy(bytes.data() + at, bytes.data(), std::min(drawn, bytes.size() - at));
}

std::vector<Reduced> roughItems(const BitsCase& bits, int rank, int ranks) {
  Random random(static_cast<std::uint64_t>(rank) + 5);
  std::vector<Reduced> items;
  for (const std::size_t count : std::vector<std::size_t>{1, 37, 4099, 0, 640, bits.longest}) {
    for (const koloDataType_t datatype : bits.datatypes) {
      const std::size_t size = koloDataTypeSize(datatype);
      const std::size_t given =
          bits.collective == koloCollectiveReduceScatter ? count * static_cast<std::size_t>(ranks) : count;
      Reduced item{datatype, count, std::vector<std::uint8_t>(given * size), std::vector<std::uint8_t>(count * size),
                   std::vector<std::uint8_t>(count * size)};
      fillRough(datatype, item.input, random);
      items.push_back(std::move(item));
    }
  }
  return items;
}

// Has the calls use the rank's window on the GPU, one buffer behind the other.
void placeOnGpu(const World& world, int rank, std::vector<Reduced>& items) {
  unsigned char* at = world.deviceWindow(rank);
  const auto take = [&](std::uint8_t*& place, std::size_t bytes) {
    place = at;
    at += (bytes + 63) / 64 * 64;
  };
  for (Reduced& item : items) {
    take(item.send, item.input.size());
    take(item.alone, item.single.size());
    take(item.together, item.merged.size());
    test::upload(world.device(), item.send, item.input.data(), item.input.size());
  }
  if (at > world.deviceWindow(rank) + world.windowBytes()) std::abort();  // items that are too long for this test
}

void fetchFromGpu(const World& world, std::vector<Reduced>& items) {
  for (Reduced& item : items) {
    test::download(world.device(), item.single.data(), item.alone, item.single.size());
    test::download(world.device(), item.merged.data(), item.together, item.merged.size());
  }
}

koloResult_t reduceSingly(koloCollective_t collective, const Reduced& item, koloRedOp_t op, koloComm_t comm,
                          koloStream_t stream) {
  switch (collective) {
    case koloCollectiveReduce: return koloReduce(item.send, item.alone, item.count, item.datatype, op, 1, comm, stream);
    case koloCollectiveReduceScatter:
      return koloReduceScatter(item.send, item.alone, item.count, item.datatype, op, comm, stream);
    default: return koloAllReduce(item.send, item.alone, item.count, item.datatype, op, comm, stream);
  }
}

koloResult_t reduceMerged(koloCollective_t collective, const std::vector<Reduced>& all, koloRedOp_t op, koloComm_t comm,
                          koloStream_t stream) {
  std::vector<koloItem_t> items;
  for (const Reduced& each : all) {
    koloItem_t item{};
    item.sendbuf = each.send;
    item.recvbuf = each.together;
    item.count = each.count;
    item.sendtype = item.transfertype = item.recvtype = each.datatype;
    items.push_back(item);
  }
  switch (collective) {
    case koloCollectiveReduce: return koloReduceList(items.data(), items.size(), op, 1, comm, stream);
    case koloCollectiveReduceScatter: return koloReduceScatterList(items.data(), items.size(), op, comm, stream);
    default: return koloAllReduceList(items.data(), items.size(), op, comm, stream);
  }
}

void compareBits(World& world, const BitsCase& bits) {
  world.run([&](int rank) {
    const koloComm_t comm = world.comm(rank);
    const koloStream_t stream = world.stream(rank);
    std::vector<Reduced> items = roughItems(bits, rank, world.ranks());
    if (world.isOnGpu()) placeOnGpu(world, rank, items);
    koloRedOp_t op = bits.op;
    bool good = koloCommSetAlgorithm(comm, bits.wishes.c_str()) == koloSuccess;
    if (bits.isScaled) {
      std::uint8_t scalar[16] = {};
      encodeAny(bits.datatypes.front(), 0.3 + 0.4 * rank, scalar);
      good = good && koloRedOpCreatePreMulSum(&op, scalar, bits.datatypes.front(), koloScalarHostImmediate, comm) ==
                         koloSuccess;
    }
    for (const Reduced& item : items)
      good = good && reduceSingly(bits.collective, item, op, comm, stream) == koloSuccess;
    good = good && reduceMerged(bits.collective, items, op, comm, stream) == koloSuccess;
    world.synchronize(rank);
    if (world.isOnGpu()) fetchFromGpu(world, items);
    // Of the list.
    const Trace trace = takeTrace();
    if (bits.isTraced)
      good = good && trace.ran && bits.wishes.ends_with(fmt::format(":{}", algorithms::rowOf(trace.algorithm).name));
    if (bits.isScaled) good = good && koloRedOpDestroy(op, comm) == koloSuccess;
    const bool hasResult = bits.collective != koloCollectiveReduce || rank == 1;
    for (const Reduced& item : items) good = good && (!hasResult || item.single == item.merged);
    if (!good) {
      std::fprintf(stderr, "rank %d, \"%s\", reduction %d%s: other bits, or another algorithm, or %s\n", rank,
                   bits.wishes.c_str(), static_cast<int>(bits.op), bits.isScaled ? ", scaled" : "",
                   koloGetLastError(nullptr));
      std::abort();
    }
  });
}

void compareBits(World& world, koloCollective_t collective, koloDataType_t datatype, const std::string& wishes) {
  compareBits(world, BitsCase{.collective = collective, .datatypes = {datatype}, .wishes = wishes});
}

// Algorithms that kolo.h excepts: they cut the merged buffer where they do not cut the single ones, or serve no lists.
bool isExcepted(koloCollective_t collective, const std::string& algorithm, bool isInChannels = false) {
  const algorithms::Row& row = algorithms::rowOf(algorithmByName(algorithm));
  const auto reduced = static_cast<device::Collective>(collective);
  if (algorithm == "line") return true;
  if (isInChannels && collective == koloCollectiveAllReduce && algorithm == "ring") return true;
  return device::isIn(reduced, row.scratch) || device::isIn(reduced, row.cutsLists);
}

// By every algorithm that is to give the same bits. REQUIRES: UseExecutor, or a GPU, on which nobody sees by which
// algorithm a list goes.
void compareBitsByEach(World& world, BitsCase bits) {
  for (const koloCollective_t collective : kReducing) {
    for (const std::string& algorithm : algorithmsFor(collective)) {
      if (isExcepted(collective, algorithm, bits.isInChannels)) continue;
      bits.collective = collective;
      bits.wishes = fmt::format("{}:{}", koloCollectiveName(collective), algorithm);
      bits.isTraced = !world.isOnGpu();
      compareBits(world, bits);
    }
  }
}

TEST_CASE("S2.7 a list gives the bits of single calls, for the same algorithm", "[optimised]") {
  const UseExecutor executor(0);
  for (const int ranks : {3, 4, 5}) {
    WorldOptions options;
    options.ranks = ranks;
    World world(options);
    for (const koloDataType_t datatype : {koloFloat32, koloBfloat16})
      compareBitsByEach(world, {.datatypes = {datatype}, .longest = ranks == 3 ? 100'000u : 20'000u});
  }
}

TEST_CASE("S2.7 a list gives the bits of single calls on reproducible communicators, whatever the algorithm") {
  for (const unsigned threads : {0u, 5u}) {
    const UseExecutor executor(threads);
    for (const char* const transports : {"shm", "tcp"}) {
      if (threads != 0 && std::string(transports) == "tcp") continue;
      WorldOptions options;
      options.ranks = 3;
      options.reproducible = true;
      options.transports = transports;
      World world(options);
      for (const koloCollective_t collective :
           {koloCollectiveAllReduce, koloCollectiveReduce, koloCollectiveReduceScatter}) {
        for (const koloDataType_t datatype : {koloFloat32, koloBfloat16}) compareBits(world, collective, datatype, "");
      }
    }
  }
}

TEST_CASE("S2.7 averages and pre-multiplied sums of a list have the bits of single calls, for the same algorithm") {
  const UseExecutor executor(0);
  for (const int ranks : {3, 5}) {
    WorldOptions options;
    options.ranks = ranks;
    World world(options);
    for (const koloDataType_t datatype : {koloFloat32, koloBfloat16}) {
      compareBitsByEach(world, {.datatypes = {datatype}, .op = koloAvg, .longest = 20000});
      compareBitsByEach(world, {.datatypes = {datatype}, .isScaled = true, .longest = 20000});
    }
  }
}

TEST_CASE("S2.7 averages and pre-multiplied sums of a list have those bits on reproducible communicators") {
  WorldOptions options;
  options.ranks = 3;
  options.reproducible = true;
  World world(options);
  for (const koloCollective_t collective : kReducing) {
    for (const koloDataType_t datatype : {koloFloat32, koloBfloat16}) {
      compareBits(world, {.collective = collective, .datatypes = {datatype}, .op = koloAvg, .longest = 20000});
      compareBits(world, {.collective = collective, .datatypes = {datatype}, .isScaled = true, .longest = 20000});
    }
  }
}

TEST_CASE("S2.7 S2.8 a list of several datatypes has the bits of single calls, for the same algorithm") {
  const UseExecutor executor(0);
  for (const koloRedOp_t op : {koloSum, koloAvg}) {
    WorldOptions options;
    options.ranks = 3;
    World world(options);
    compareBitsByEach(
        world,
        {.datatypes = {koloFloat32, koloBfloat16, koloInt32, koloFloat64, koloFloat16}, .op = op, .longest = 5000});
  }
}

TEST_CASE("S2.7 a list gives the bits of single calls, for the same algorithm: emulated block") {
  for (const unsigned threads : {1u, 5u}) {
    const UseExecutor emulated(threads);
    WorldOptions options;
    options.ranks = 3;
    World world(options);
    for (const koloDataType_t datatype : {koloFloat32, koloBfloat16})
      compareBitsByEach(world, {.datatypes = {datatype}, .longest = 20000});
    compareBitsByEach(world, {.datatypes = {koloFloat32, koloBfloat16, koloInt32}, .longest = 3000});
  }
}

TEST_CASE("S2.7 a list gives the bits of single calls, for the same algorithm: over tcp links and over posted ones") {
  const UseExecutor executor(0);
  for (const int perHost : {0, 1, 2}) {
    WorldOptions options;
    options.ranks = 4;
    options.latePerHost = perHost;
    if (perHost == 0) options.transports = "tcp";
    World world(options);
    for (const koloDataType_t datatype : {koloFloat32, koloBfloat16})
      compareBitsByEach(world, {.datatypes = {datatype}, .longest = 20000});
  }
}

#if KOLO_HAVE_CUDA
TEST_CASE("GPU: S2.7 a list gives the bits of single calls, for the same algorithm", "[gpu][lists]") {
  constexpr std::size_t kBytes = 200'000;  // for three channels
  const int blocks = GENERATE(1, 3);
  const Gpu gpu(4, blocks, 1);
  World world(gpu.options);
  koloPlan_t plan{};
  REQUIRE(koloCommGetPlan(world.comm(0), koloCollectiveAllReduce, kBytes / 2, koloBfloat16, koloSum, 0, &plan) ==
          koloSuccess);
  if (isMocked()) CHECK(plan.channels == blocks);
  for (const koloDataType_t datatype : {koloFloat32, koloBfloat16})
    compareBitsByEach(
        world,
        {.datatypes = {datatype}, .longest = kBytes / koloDataTypeSize(datatype), .isInChannels = plan.channels > 1});
  compareBitsByEach(
      world, {.datatypes = {koloFloat32, koloBfloat16, koloInt32}, .longest = 3000, .isInChannels = plan.channels > 1});
}
#endif

constexpr std::size_t kManyItems = 10'000;
constexpr std::size_t lengthOfItem(std::size_t number) { return number % 4; }

// What a rank gives in all of the items, one behind the other.
std::vector<float> roughNumbers(int rank) {
  Random random(static_cast<std::uint64_t>(rank) + 31);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> numbers(kManyItems / 4 * 6);
  for (float& number : numbers) number = values(random);
  return numbers;
}

// Every element is about the sum, and one item of 101, of any length, has the bits of its single call.
std::string mergeMany(const World& world, int rank, const std::string& algorithm) {
  const koloComm_t comm = world.comm(rank);
  const std::vector<float> mine = roughNumbers(rank);
  std::vector<float> merged(mine.size(), 99);
  std::vector<koloItem_t> items;
  for (std::size_t begin = 0; items.size() < kManyItems; begin += items.back().count) {
    koloItem_t item{};
    item.sendbuf = mine.data() + begin;
    item.recvbuf = merged.data() + begin;
    item.count = lengthOfItem(items.size());
    item.sendtype = item.transfertype = item.recvtype = koloFloat32;
    items.push_back(item);
  }
  if (koloCommSetAlgorithm(comm, ("all_reduce:" + algorithm).c_str()) != koloSuccess ||
      koloAllReduceList(items.data(), items.size(), koloSum, comm, nullptr) != koloSuccess)
    return koloGetLastError(nullptr);
  const Trace trace = takeTrace();
  if (!trace.ran || algorithms::rowOf(trace.algorithm).name != algorithm) return "the list went by another algorithm";
  std::vector<double> sums(mine.size());
  for (int from = 0; from < world.ranks(); ++from) {
    const std::vector<float> given = roughNumbers(from);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(given[i]);
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (std::abs(static_cast<double>(merged[i]) - sums[i]) > 1e-6)
      return fmt::format("element {}: {} instead of {}", i, merged[i], sums[i]);
  }
  for (std::size_t i = 0; i < kManyItems; i += 101) {
    float single[3] = {};
    const std::size_t count = items[i].count;
    if (koloAllReduce(items[i].sendbuf, single, count, koloFloat32, koloSum, comm, nullptr) != koloSuccess)
      return koloGetLastError(nullptr);
    if (std::memcmp(single, items[i].recvbuf, count * sizeof(float)) != 0)
      return fmt::format("item {} has other bits than its single call", i);
  }
  return {};
}

TEST_CASE("S2.7 a list of 10,000 items gives the bits of single calls: emulated block") {
  const UseExecutor emulated(3);
  for (const char* const algorithm : {"one_shot", "two_shot", "ring", "tree"}) {
    INFO(algorithm);
    WorldOptions options;
    options.ranks = 3;
    World world(options);
    std::vector<std::string> faults(3);
    world.run([&](int rank) { faults[static_cast<std::size_t>(rank)] = mergeMany(world, rank, algorithm); });
    for (const std::string& fault : faults) CHECK(fault == "");
  }
}

}  // namespace
}  // namespace kolo::tests
