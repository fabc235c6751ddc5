// The parts of kolo-perf that need no ranks: names, sizes, statistics, patterns, reports.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "algorithms/names.h"
#include "perf/before.h"
#include "perf/failure.h"
#include "perf/html_report.h"
#include "perf/machine.h"
#include "perf/names.h"
#include "perf/patterns.h"
#include "perf/report.h"
#include "perf/sizes.h"
#include "perf/statistics.h"
#include "perf/svg_chart.h"
#include "perf/wishes.h"

namespace perf = kolo::perf;

TEST_CASE("perf: sizes are read in powers of 1024 and nonsense is refused") {
  CHECK(perf::parseBytes("8") == 8);
  CHECK(perf::parseBytes("64K") == 65536);
  CHECK(perf::parseBytes("1.5M") == 1536 * 1024);
  CHECK(perf::parseBytes("2GiB") == size_t{2} << 30);
  for (const char* text : {"", "x", "8Q", "-1", "1 M", "8iB", "1e3"}) {
    INFO(text);
    CHECK_THROWS_AS(perf::parseBytes(text), perf::Failure);
  }
  CHECK(perf::formatBytes(8) == "8 B");
  CHECK(perf::formatBytes(1536) == "1.5 KiB");
  CHECK(perf::formatBytes(64 << 20) == "64 MiB");
}

TEST_CASE("perf: a sweep multiplies or adds, includes its end and always advances") {
  CHECK(perf::sweepSizes(8, 64, 2, 0) == std::vector<size_t>{8, 16, 32, 64});
  CHECK(perf::sweepSizes(8, 100, 4, 0) == std::vector<size_t>{8, 32});
  CHECK(perf::sweepSizes(10, 30, 2, 10) == std::vector<size_t>{10, 20, 30});
  CHECK(perf::sweepSizes(1, 4, 1.1, 0) == std::vector<size_t>{1, 2, 3, 4});
  CHECK(perf::sweepSizes(0, 2, 2, 0) == std::vector<size_t>{0, 1, 2});
  CHECK_THROWS_AS(perf::sweepSizes(8, 4, 2, 0), perf::Failure);
  CHECK_THROWS_AS(perf::sweepSizes(8, 64, 1, 0), perf::Failure);
  CHECK_THROWS_AS(perf::sweepSizes(0, size_t{1} << 40, 2, 1), perf::Failure);  // a list that would fill the memory
  CHECK(perf::sweepSizes(8, 64, INFINITY, 0) == std::vector<size_t>{8});
}

TEST_CASE("perf: a size counts the buffer that holds a block for each rank") {
  const perf::Shape gather = perf::shapeFor(koloCollectiveAllGather, 1000, 4, 3);
  CHECK(gather.count == 83);
  CHECK(gather.elements == 249);
  CHECK(gather.bytes == 996);
  const perf::Shape reduce = perf::shapeFor(koloCollectiveAllReduce, 1003, 4, 3);
  CHECK(reduce.count == 250);
  CHECK(reduce.bytes == 1000);
  const perf::Shape tiny = perf::shapeFor(koloCollectiveAllToAll, 8, 8, 5);
  CHECK(tiny.count == 1);
  CHECK(tiny.bytes == 40);
  CHECK(perf::shapeFor(koloCollectiveBarrier, 8, 4, 2).bytes == 0);
}

TEST_CASE("perf: bus bandwidth factors are those of nccl-tests") {
  CHECK(perf::busFactor(koloCollectiveAllReduce, 4) == Approx(1.5));
  for (const koloCollective_t each : {koloCollectiveAllGather, koloCollectiveReduceScatter, koloCollectiveAllToAll,
                                      koloCollectiveGather, koloCollectiveScatter}) {
    CHECK(perf::busFactor(each, 4) == Approx(0.75));
  }
  for (const koloCollective_t each : {koloCollectiveBroadcast, koloCollectiveReduce, koloCollectiveSendRecv}) {
    CHECK(perf::busFactor(each, 4) == Approx(1.0));
  }
}

TEST_CASE("perf: names of the library and of nccl-tests mean the same") {
  CHECK(perf::parseDatatype("float") == koloFloat32);
  CHECK(perf::parseDatatype("half") == koloFloat16);
  CHECK(perf::parseDatatype("f8e4m3") == koloFloat8e4m3);
  CHECK(perf::parseCollective("allreduce") == koloCollectiveAllReduce);
  CHECK(perf::parseCollective("all-to-all") == koloCollectiveAllToAll);
  for (int i = 0; i < koloNumDatatypes; ++i) {
    const auto datatype = static_cast<koloDataType_t>(i);
    CHECK(perf::parseDatatype(koloDataTypeName(datatype)) == datatype);
  }
  CHECK(perf::parseDatatypes("all").size() == koloNumDatatypes);
  CHECK(perf::parseOps("max,sum,max") == std::vector<koloRedOp_t>{koloMax, koloSum});
  CHECK(perf::parseCollectives({}).size() == koloNumCollectives);
  CHECK_THROWS_AS(perf::parseDatatype("float31"), perf::Failure);
  for (const char* text : {"", ",", "max,", ",max", "max,,min"}) {
    INFO(text);
    CHECK_THROWS_AS(perf::parseOps(text), perf::Failure);
  }
  CHECK_THROWS_WITH(perf::parseDatatype("float31"), Catch::Contains("bfloat16") && Catch::Contains(" half"));
}

TEST_CASE("perf: an algorithm is asked for of all collectives measured, or of one") {
  const std::vector<koloCollective_t> measured = {koloCollectiveAllReduce, koloCollectiveSendRecv,
                                                  koloCollectiveBarrier};
  const auto text = [&](const char* from) { return perf::wishesText(perf::parseWishes(from, measured)); };
  CHECK(text("ring") == "all_reduce:ring,barrier:ring");  // messages have no algorithms
  CHECK(text("allreduce:ring,barrier:^tree") == "all_reduce:ring,barrier:^tree");
  CHECK(text("all_reduce:ring@1K-2K,all_reduce:tree@-8") == "all_reduce:ring@1024-2048,all_reduce:tree@0-8");
  CHECK(text("ring@-8/ranks=3-/op=sum") == "all_reduce:ring@0-8/ranks=3-/op=sum,barrier:ring@0-8/ranks=3-/op=sum");
  CHECK(text("all_reduce:biring@1M-") == "all_reduce:biring@1048576-");
  for (const char* wrong : {"", "rong", "all_reduce:", "all_reduce:rong", "none:ring", "ring,", "ring@", "ring@1M",
                            "ring@2-1", "send_recv:ring", "broadcast:ring", "all_reduce:ring:tree"}) {
    INFO(wrong);
    CHECK_THROWS_AS(perf::parseWishes(wrong, measured), perf::Failure);
  }
  const std::vector<perf::Wish> wishes = perf::parseWishes("ring,all_reduce:tree@64-128,all_reduce:^line", measured);
  CHECK(perf::algorithmAskedFor(wishes, koloCollectiveAllReduce, 63) == "ring");
  CHECK(perf::algorithmAskedFor(wishes, koloCollectiveAllReduce, 64) == "tree");
  CHECK(perf::algorithmAskedFor(wishes, koloCollectiveBarrier, 64) == "ring");
  CHECK(perf::algorithmAskedFor(wishes, koloCollectiveSendRecv, 64).empty());
  CHECK(perf::algorithmAskedFor(perf::parseWishes("ring,tree/ranks=9", measured), koloCollectiveBarrier, 0) == "ring");
}

TEST_CASE("perf: the names of algorithms are the library's") {
  for (int i = 0; i < static_cast<int>(kolo::device::Algorithm::kCount); ++i) {
    const std::string name = kolo::name(static_cast<kolo::device::Algorithm>(i));
    INFO(name);
    CHECK(perf::parseWishes(name, {koloCollectiveAllReduce}).size() == 1);
  }
}

TEST_CASE("perf: statistics of samples") {
  const perf::Summary one = perf::summarize({3});
  CHECK(one.min == 3);
  CHECK(one.p99 == 3);
  const perf::Summary four = perf::summarize({4, 1, 3, 2});
  CHECK(four.min == 1);
  CHECK(four.median == 2.5);
  CHECK(four.max == 4);
  std::vector<double> many;
  for (int i = 200; i >= 1; --i) many.push_back(i);
  CHECK(perf::summarize(many).p99 == 198);
  CHECK(perf::slowestRank({1, 5, 3, 2, 4, 3}, 2, 3) == std::vector<double>{2, 5, 3});
}

TEST_CASE("perf: short calls are batched and long ones measured a few times") {
  const perf::Schedule tiny = perf::scheduleFor(0.5, 0);
  CHECK(tiny.batch == 40);
  CHECK(tiny.samples == perf::kMaxSamples);
  CHECK(perf::scheduleFor(0.01, 0).batch == perf::kMaxBatch);
  const perf::Schedule huge = perf::scheduleFor(1e6, 0);
  CHECK(huge.batch == 1);
  CHECK(huge.samples == perf::kMinSamples);
  const perf::Schedule given = perf::scheduleFor(0.5, 100);
  CHECK(given.batch * given.samples == 80);
  CHECK(perf::scheduleFor(0.5, 7).batch == 7);
  const std::size_t endless = std::size_t{1} << 30;
  const perf::Schedule most = perf::scheduleFor(1e6, endless);
  CHECK(most.samples <= perf::kMostSamples);
  CHECK(most.batch * most.samples > endless - most.batch);
  CHECK(most.batch * most.samples <= endless);
}

TEST_CASE("perf: buffers must fit the memory of each machine, whatever the others have to hold") {
  perf::Options options;
  options.collectives = {koloCollectiveAllReduce};
  options.datatypes = {koloFloat32};
  options.ops = {koloSum};
  options.buffers = {perf::BufferKind::kRegistered};
  options.sizes = {perf::memoryBytes() / 5};  // each rank has two
  CHECK_NOTHROW(perf::requirePossible(options, 2, 2));
  CHECK_THROWS_AS(perf::requirePossible(options, 3, 3), perf::Failure);
  CHECK_NOTHROW(perf::requirePossible(options, 64, 2));
  CHECK(perf::machineNumber() == perf::machineNumber());
  CHECK(perf::machineNumber() == std::floor(perf::machineNumber()));
}

namespace {

template <typename T>
T at(const perf::Table& table, size_t index) {
  T value;
  std::memcpy(&value, table.data() + index * sizeof value, sizeof value);
  return value;
}

}  // namespace

TEST_CASE("perf: the folded pattern is the fold of the operands, element by element") {
  for (const int ranks : {1, 2, 3, 8, 50}) {
    const std::uint64_t seed = 7;
    const perf::Table sum = perf::foldedTable(koloFloat32, koloSum, ranks, seed);
    const perf::Table low = perf::foldedTable(koloInt32, koloMin, ranks, seed);
    const perf::Table bits = perf::foldedTable(koloUint64, koloBitXor, ranks, seed);
    const perf::Table avg = perf::foldedTable(koloInt8, koloAvg, ranks, seed);
    std::vector<float> sums(perf::kPeriod, 0);
    std::vector<std::int32_t> lows(perf::kPeriod, INT32_MAX);
    std::vector<std::uint64_t> xors(perf::kPeriod, 0);
    std::vector<int> totals(perf::kPeriod, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const perf::Table a = perf::operandTable(koloFloat32, koloSum, rank, ranks, seed);
      const perf::Table b = perf::operandTable(koloInt32, koloMin, rank, ranks, seed);
      const perf::Table c = perf::operandTable(koloUint64, koloBitXor, rank, ranks, seed);
      const perf::Table d = perf::operandTable(koloInt8, koloAvg, rank, ranks, seed);
      for (size_t i = 0; i < perf::kPeriod; ++i) {
        sums[i] += at<float>(a, i);
        lows[i] = std::min(lows[i], at<std::int32_t>(b, i));
        xors[i] ^= at<std::uint64_t>(c, i);
        totals[i] += at<std::int8_t>(d, i);
      }
    }
    size_t wrong = 0;
    for (size_t i = 0; i < perf::kPeriod; ++i) {
      wrong += sums[i] != at<float>(sum, i);
      wrong += lows[i] != at<std::int32_t>(low, i);
      wrong += xors[i] != at<std::uint64_t>(bits, i);
      wrong += totals[i] != ranks * at<std::int8_t>(avg, i);  // exact: nothing is rounded
    }
    INFO(ranks << " ranks");
    CHECK(wrong == 0);
  }
}

TEST_CASE("perf: small floats are encoded as their formats say") {
  // The operands of a maximum are integers of at most 8 (e5m2), 16 (e4m3) or 1000; decoding must give integers back.
  const auto decode = [](unsigned bits, int exponentBits, int mantissaBits) {
    const int bias = (1 << (exponentBits - 1)) - 1;
    const unsigned exponent = bits >> mantissaBits & ((1u << exponentBits) - 1);
    const double fraction = static_cast<double>(bits & ((1u << mantissaBits) - 1)) / (1 << mantissaBits);
    const double value = exponent == 0 ? 0 : std::ldexp(1 + fraction, static_cast<int>(exponent) - bias);
    return bits >> (exponentBits + mantissaBits) & 1 ? -value : value;
  };
  std::set<double> half, brain, e4m3, e5m2;
  const perf::Table h = perf::operandTable(koloFloat16, koloMax, 0, 2, 1);
  const perf::Table b = perf::operandTable(koloBfloat16, koloMax, 0, 2, 1);
  const perf::Table f = perf::operandTable(koloFloat8e4m3, koloMax, 0, 2, 1);
  const perf::Table g = perf::operandTable(koloFloat8e5m2, koloMax, 0, 2, 1);
  for (size_t i = 0; i < perf::kPeriod; ++i) {
    half.insert(decode(at<std::uint16_t>(h, i), 5, 10));
    brain.insert(decode(at<std::uint16_t>(b, i), 8, 7));
    e4m3.insert(decode(at<std::uint8_t>(f, i), 4, 3));
    e5m2.insert(decode(at<std::uint8_t>(g, i), 5, 2));
  }
  CHECK(*half.begin() >= -1000);
  CHECK(*half.rbegin() > 900);
  CHECK(std::all_of(half.begin(), half.end(), [](double v) { return v == std::floor(v); }));
  CHECK(brain.size() == 513);  // -256..256, all met by 4099 draws but for bad luck, and the seed is fixed
  CHECK(e4m3.size() == 33);
  CHECK(e5m2.size() == 17);
  CHECK(*e5m2.begin() == -8);
}

TEST_CASE("perf: a wrong, shifted or missing element is counted") {
  const perf::Table table = perf::movedTable(koloInt32, 1, 3);
  const size_t elements = 3 * perf::kPeriod + 17, phase = perf::kPeriod - 5;
  std::vector<std::byte> data(elements * 4);
  perf::fill(data.data(), elements, 4, table, phase);
  const auto wrong = [&](size_t from) {
    return perf::countWrong(data.data(), elements, koloInt32, table, from, perf::Compare::kBytes);
  };
  CHECK(wrong(phase) == 0);
  CHECK(wrong(phase + perf::kPeriod) == 0);
  CHECK(wrong(phase + 1) > elements - 10);
  data[4 * 4098] ^= std::byte{1};
  data.back() ^= std::byte{1};
  CHECK(wrong(phase) == 2);
}

TEST_CASE("perf: numbers compare with equal zeros and count complex elements once") {
  perf::Table zeros(perf::kPeriod * 8, std::byte{0});
  std::vector<float> got = {0.0f, -0.0f, 1.0f, 2.0f};
  const auto* const bytes = reinterpret_cast<const std::byte*>(got.data());
  CHECK(perf::countWrong(bytes, 4, koloFloat32, zeros, 0, perf::Compare::kNumbers) == 2);
  CHECK(perf::countWrong(bytes, 4, koloFloat32, zeros, 0, perf::Compare::kBytes) == 3);
  CHECK(perf::countWrong(bytes, 2, koloComplex64, zeros, 0, perf::Compare::kNumbers) == 1);
  const std::uint16_t halves[] = {0x8000, 0x0000, 0x3c00};
  CHECK(perf::countWrong(reinterpret_cast<const std::byte*>(halves), 3, koloFloat16, zeros, 0,
                         perf::Compare::kNumbers) == 1);
}

namespace {

perf::Result resultOf(koloCollective_t collective, size_t bytes, double us) {
  perf::Result result;
  result.operation.collective = collective;
  result.ranks = 4;
  result.bytes = bytes;
  result.elements = bytes / 4;
  result.iterations = 10;
  result.timeUs = {.min = us / 2, .median = us, .p99 = us * 2, .max = us * 3};
  result.verified = true;
  std::strcpy(result.plan.algorithm, "ring");
  std::strcpy(result.plan.transport, "shm");
  result.plan.channels = 2;
  return result;
}

}  // namespace

TEST_CASE("perf: the JSON report carries every figure under its agreed name") {
  const auto document = nlohmann::json::parse(perf::jsonText({}, {resultOf(koloCollectiveAllReduce, 4000000, 1000)}));
  CHECK(document.size() == 2);
  CHECK(document.contains("machine"));
  const auto& row = document.at("results").at(0);
  CHECK(row.size() == 15);
  CHECK(row.at("collective") == "all_reduce");
  CHECK(row.at("datatype") == "float32");
  CHECK(row.at("op") == "sum");
  CHECK(row.at("count") == 1000000);
  CHECK(row.at("channels") == 2);
  CHECK(row.at("time_us").at("p99") == 2000);
  CHECK(row.at("algbw_gbps").get<double>() == Approx(4.0));
  CHECK(row.at("busbw_gbps").get<double>() == Approx(6.0));
  CHECK(row.at("wrong") == 0);
}

TEST_CASE("perf: CSV lines have as many fields as the header") {
  const std::string text = perf::csvText({resultOf(koloCollectiveBroadcast, 8, 0.5)});
  const size_t end = text.find('\n');
  const auto fields = [](const std::string& line) { return std::count(line.begin(), line.end(), ','); };
  CHECK(fields(text.substr(0, end)) == 17);
  CHECK(fields(text.substr(end)) == 17);
  CHECK(text.find(",none,") != std::string::npos);
}

TEST_CASE("perf: the HTML report is self-contained and draws a dot for each figure") {
  const std::string html =
      perf::htmlText({}, {resultOf(koloCollectiveAllReduce, 8, 1), resultOf(koloCollectiveAllReduce, 1024, 2),
                          resultOf(koloCollectiveBarrier, 0, 0.2)});
  const auto count = [&](const std::string& what) {
    size_t found = 0;
    for (size_t at = html.find(what); at != std::string::npos; at = html.find(what, at + 1)) ++found;
    return found;
  };
  CHECK(count("<svg") == 2);
  CHECK(count("class=\"dot\"") == 4);
  CHECK(count("<script") == 0);
  CHECK(count("http") == 0);
  CHECK(count("nan") == 0);
  CHECK(perf::escapeHtml("<a & \"b\">") == "&lt;a &amp; &quot;b&quot;&gt;");
}
