#include "executor/host/reduce.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <vector>

#include "device/reducers.h"
#include "reduce_fixture.h"

namespace kolo::test {
namespace {

using device::ReduceOp;
using executor::HostIsa;

executor::ReduceKernel kernelOf(const HostIsa& isa, koloDataType_t datatype, ReduceOp op) {
  return isa.kernel[datatype][static_cast<int>(op)];
}

// body(tag, kernel, op) for every kernel there is.
template <class Body>
void forEachKernel(Body&& body) {
  for (const HostIsa* isa : isas()) {
    forEachDatatype([&](auto tag, koloDataType_t datatype) {
      for (const ReduceOp op : kOperations) {
        const executor::ReduceKernel kernel = kernelOf(*isa, datatype, op);
        if (kernel == nullptr) continue;
        INFO(isa->name << " datatype " << datatype << " op " << static_cast<int>(op));
        body(tag, kernel, op);
      }
    });
  }
}

// body(tag, kernel) for every sum.
template <class Body>
void forEachSum(Body&& body) {
  for (const HostIsa* isa : isas()) {
    forEachDatatype([&](auto tag, koloDataType_t datatype) {
      INFO(isa->name << " datatype " << datatype);
      body(tag, kernelOf(*isa, datatype, ReduceOp::kSum), datatype);
    });
  }
}

TEST_CASE("a kernel exists exactly where the operation is defined", "[reduce]") {
  for (const HostIsa* isa : isas()) {
    forEachDatatype([&](auto tag, koloDataType_t datatype) {
      using T = typename decltype(tag)::type;
      for (const ReduceOp op : kOperations) {
        const bool bitwise = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
        const bool arithmetic = op == ReduceOp::kSum || op == ReduceOp::kProd;
        const bool integral = std::is_integral_v<T> || std::is_same_v<T, device::Bool>;
        const bool wanted = device::kIsComplex<T> ? arithmetic : !bitwise || integral;
        INFO(isa->name << " datatype " << datatype << " op " << static_cast<int>(op));
        CHECK((kernelOf(*isa, datatype, op) != nullptr) == wanted);
        CHECK(device::isDefined(op, datatype) == wanted);
        CHECK((executor::reduceKernel(datatype, op) != nullptr) == wanted);
      }
      CHECK(kernelOf(*isa, datatype, ReduceOp::kUser) == nullptr);
    });
  }
  CHECK(executor::reduceKernel(koloNumDatatypes, ReduceOp::kSum) == nullptr);
  CHECK(executor::reduceKernel(koloFloat32, ReduceOp::kCount) == nullptr);
  CHECK_FALSE(device::isDefined(ReduceOp::kSum, koloNumDatatypes));
  CHECK_FALSE(device::isAverageDefined(koloBool));
  CHECK(device::isAverageDefined(koloComplex64));
}

TEST_CASE("the instruction set in use is one of those available, generic the first", "[reduce][optimised]") {
  const std::vector<const HostIsa*> all = isas();
  REQUIRE_FALSE(all.empty());
  CHECK(std::string(all.front()->name) == "generic");
  bool found = false;
  for (const HostIsa* isa : all) found = found || std::string(isa->name) == executor::isaName();
  CHECK(found);
}

TEST_CASE("every kernel folds two and three sources as the oracle does, for any count", "[reduce][optimised]") {
  forEachKernel([](auto tag, executor::ReduceKernel kernel, ReduceOp op) {
    using T = typename decltype(tag)::type;
    for (const std::uint64_t count : {0, 1, 2, 3, 5, 7, 8, 13, 16, 31, 33, 64, 127, 257, 509, 1031}) {
      CHECK(faultOf<T>({.count = count, .seed = static_cast<unsigned>(count)}, op, kernel) == "");
      CHECK(faultOf<T>({.count = count, .sources = {0, 0, 0}}, op, kernel) == "");
    }
  });
}

TEST_CASE("one to nine sources go to one to three destinations", "[reduce][optimised]") {
  forEachSum([](auto tag, executor::ReduceKernel kernel, koloDataType_t) {
    using T = typename decltype(tag)::type;
    for (std::size_t sources = 1; sources <= 9; ++sources) {
      for (std::size_t destinations = 1; destinations <= 3; ++destinations) {
        for (const bool streaming : {false, true}) {
          const Setup setup{.count = 1237,
                            .sources = std::vector<std::size_t>(sources, 0),
                            .destinations = std::vector<std::size_t>(destinations, 0),
                            .streaming = streaming};
          CHECK(faultOf<T>(setup, ReduceOp::kSum, kernel) == "");
        }
      }
    }
  });
}

TEST_CASE("a destination may be any of the sources", "[reduce][optimised]") {
  forEachKernel([](auto tag, executor::ReduceKernel kernel, ReduceOp op) {
    using T = typename decltype(tag)::type;
    for (int inPlace = 0; inPlace < 4; ++inPlace) {
      const std::size_t offset = sizeof(T) * 3 % 64;
      const Setup setup{.count = 1301,
                        .sources = {0, offset, 0, 1},
                        .destinations = {0, 0},
                        .inPlace = inPlace,
                        .streaming = inPlace % 2 == 1};
      CHECK(faultOf<T>(setup, op, kernel) == "");
    }
    for (int inPlace = 0; inPlace < 2; ++inPlace) {
      CHECK(faultOf<T>({.count = 1301, .sources = {0, 8}, .inPlace = inPlace}, op, kernel) == "");
      CHECK(faultOf<T>({.count = 5, .sources = {0, 8}, .inPlace = inPlace}, op, kernel) == "");
    }
  });
}

TEST_CASE("pointers may be misaligned to any degree, each its own", "[reduce][optimised]") {
  forEachSum([](auto tag, executor::ReduceKernel kernel, koloDataType_t) {
    using T = typename decltype(tag)::type;
    for (std::size_t offset = 0; offset < 64; ++offset) {
      const bool streaming = offset % 2 == 1;
      const std::uint64_t count = 1100 / sizeof(T) + offset;  // four of the widest unrolled steps, and a rest
      CHECK(faultOf<T>({.count = count, .sources = {offset, offset}, .destinations = {offset}, .streaming = !streaming},
                       ReduceOp::kSum, kernel) == "");
      CHECK(faultOf<T>({.count = count,
                        .sources = {(offset * 7 + 3) % 64, 63 - offset},
                        .destinations = {offset, (offset * 5 + 1) % 64},
                        .streaming = streaming},
                       ReduceOp::kSum, kernel) == "");
      CHECK(faultOf<T>({.count = 1 + offset % 11, .sources = {0, offset, 1}, .destinations = {63 - offset}},
                       ReduceOp::kSum, kernel) == "");
    }
  });
}

TEST_CASE("a scale is multiplied into its source only, and a divisor applies once", "[reduce][optimised]") {
  forEachSum([](auto tag, executor::ReduceKernel kernel, koloDataType_t datatype) {
    using T = typename decltype(tag)::type;
    for (std::size_t sources = 1; sources <= 3; ++sources) {
      for (int scaled = -1; scaled < static_cast<int>(sources); ++scaled) {
        for (const std::uint32_t divisor : {1u, 2u, 3u, 7u, 1000u, 4294967295u}) {
          if (divisor > 1 && (scaled >= 0 || !device::isAverageDefined(datatype))) continue;
          Setup setup{.count = 277,
                      .sources = std::vector<std::size_t>(sources, sizeof(T)),
                      .scaledSource = scaled,
                      .divisor = divisor};
          for (unsigned seed = 1; seed <= 3; ++seed) {
            setup.seed = seed;
            CHECK(faultOf<T>(setup, ReduceOp::kSum, kernel) == "");
          }
          setup.streaming = true;
          setup.count = 1111;
          setup.destinations = {0, 3};
          CHECK(faultOf<T>(setup, ReduceOp::kSum, kernel) == "");
        }
      }
    }
  });
}

TEST_CASE("an average of shares counts each by its weight", "[reduce][optimised]") {
  forEachSum([](auto tag, executor::ReduceKernel kernel, koloDataType_t) {
    using T = typename decltype(tag)::type;
    if constexpr (device::kIsNarrowFloat<T>) {
      const Setup setups[] = {{.sources = {0, 2}, .divisor = 4, .weights = {2, 1}},
                              {.sources = {0, 0, 6}, .divisor = 7, .weights = {1, 4, 2}},
                              {.sources = {0, 0, 0}, .divisor = 9, .unit = 0.25f},
                              {.sources = {4, 0}, .divisor = 12, .weights = {2, 1}, .unit = 0.25f}};
      for (Setup setup : setups) {
        for (const std::uint64_t count : {5, 277, 1111}) {
          setup.count = count;
          setup.streaming = count > 1000;
          setup.seed = static_cast<unsigned>(count);
          CHECK(faultOf<T>(setup, ReduceOp::kSum, kernel) == "");
        }
      }
    }
  });
}

TEST_CASE("an average of the largest values is the largest, and one of the smallest the smallest",
          "[reduce][optimised]") {
  forEachSum([](auto tag, executor::ReduceKernel kernel, koloDataType_t datatype) {
    using T = typename decltype(tag)::type;
    if constexpr (device::kIsNarrowFloat<T> || device::kIsSmallInteger<T>) {
      std::vector<T> extremes;
      if constexpr (device::kIsNarrowFloat<T>) {
        const std::size_t largest = oracle::finiteValues<T>().size() - 1;
        extremes = {T{static_cast<decltype(T::bits)>(largest)}, T{1}};
      } else {
        extremes = {std::numeric_limits<T>::max(), std::numeric_limits<T>::min()};
      }
      for (const T value : extremes) {
        for (const int sources : {2, 3, 64}) {
          const std::vector<T> source(40, value);
          std::vector<T> result(40);
          const std::vector<const void*> src(static_cast<std::size_t>(sources), source.data());
          void* const dst[] = {result.data()};
          const auto divisor = static_cast<std::uint32_t>(sources);
          kernel({.dst = dst, .dstCount = 1, .src = src.data(), .srcCount = sources, .count = 39, .divisor = divisor});
          INFO("datatype " << datatype << ", " << sources << " sources");
          CHECK(std::memcmp(result.data(), source.data(), 39 * sizeof(T)) == 0);
        }
      }
    }
  });
}

TEST_CASE("large ranges are whole, streamed or not", "[reduce][optimised]") {
  for (const HostIsa* isa : isas()) {
    INFO(isa->name);
    for (const bool streaming : {false, true}) {
      const Setup setup{.count = (1 << 17) + 13, .sources = {4, 20}, .destinations = {12, 12}, .streaming = streaming};
      CHECK(faultOf<float>(setup, ReduceOp::kSum, kernelOf(*isa, koloFloat32, ReduceOp::kSum)) == "");
      CHECK(faultOf<device::Bfloat16>(setup, ReduceOp::kMax, kernelOf(*isa, koloBfloat16, ReduceOp::kMax)) == "");
    }
  }
}

TEST_CASE("all instruction sets give the same bits", "[reduce][optimised]") {
  forEachDatatype([](auto tag, koloDataType_t datatype) {
    using T = typename decltype(tag)::type;
    for (const ReduceOp op : kOperations) {
      if (!device::isDefined(op, datatype)) continue;
      INFO("datatype " << datatype << " op " << static_cast<int>(op));
      const Setup setup{.count = 1999, .sources = {0, 4, 8}, .destinations = {sizeof(T)}};
      std::vector<unsigned char> first;
      for (const HostIsa* isa : isas()) {
        std::vector<unsigned char> results;
        REQUIRE(faultOf<T>(setup, op, kernelOf(*isa, datatype, op), &results) == "");
        if (first.empty()) first = results;
        // NaNs that sums and products yield may differ in their payload: the oracle has seen to the rest.
        const bool exact =
            !(device::kIsFloat<T> || device::kIsComplex<T>) || (op != ReduceOp::kSum && op != ReduceOp::kProd);
        if (exact) CHECK(results == first);
      }
    }
  });
}

template <class F, class Bits>
void checkOrderIndependence(koloDataType_t datatype, const std::vector<Bits>& patterns, Bits nan) {
  for (const HostIsa* isa : isas()) {
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      const executor::ReduceKernel kernel = kernelOf(*isa, datatype, op);
      for (const Bits a : patterns) {
        for (const Bits b : patterns) {
          // 40 elements: both the vectors and what is left after them.
          const std::vector<Bits> left(40, a), right(40, b);
          std::vector<Bits> one(40), other(40);
          const void* const forth[] = {left.data(), right.data()};
          const void* const back[] = {right.data(), left.data()};
          void* const toOne[] = {one.data()};
          void* const toOther[] = {other.data()};
          kernel({.dst = toOne, .dstCount = 1, .src = forth, .srcCount = 2, .count = 39});
          kernel({.dst = toOther, .dstCount = 1, .src = back, .srcCount = 2, .count = 39});
          INFO(isa->name << " op " << static_cast<int>(op) << " of " << a << " and " << b);
          CHECK(one == other);
          F x, y;
          std::memcpy(&x, &a, sizeof(F));
          std::memcpy(&y, &b, sizeof(F));
          if (x != x || y != y) CHECK((one[0] == nan && one[38] == nan));
        }
      }
    }
  }
}

TEST_CASE("min and max of signed zeros, infinities and NaNs do not depend on the order, to the bit",
          "[reduce][optimised]") {
  checkOrderIndependence<float, std::uint32_t>(koloFloat32,
                                               {0, 0x80000000, 1, 0x80000001, 0x3f800000, 0xbf800000, 0x7f800000,
                                                0xff800000, 0x7f800001, 0xffc12345, 0x7fc00000},
                                               0x7fc00000);
  checkOrderIndependence<double, std::uint64_t>(
      koloFloat64,
      {0, 0x8000000000000000, 1, 0x8000000000000001, 0x3ff0000000000000, 0xbff0000000000000, 0x7ff0000000000000,
       0xfff0000000000000, 0x7ff0000000000001, 0xfff8000000012345},
      0x7ff8000000000000);
}

TEST_CASE("a copy is whole at any size and misalignment, and writes nothing else", "[reduce][optimised]") {
  const auto check = [](std::size_t bytes, std::size_t to, std::size_t from, auto&& copy) {
    Buffer src(bytes, from), dst(bytes, to);
    for (std::size_t i = 0; i < bytes; ++i) src.data()[i] = static_cast<unsigned char>(i * 131 + i / 251);
    copy(dst.data(), src.data(), bytes);
    INFO(bytes << " bytes from " << from << " to " << to);
    CHECK((bytes == 0 || std::memcmp(dst.data(), src.data(), bytes) == 0));
    CHECK(dst.guardsIntact());
  };
  const std::size_t sizes[] = {0, 1, 2, 63, 64, 65, 200, 4096, 70001, 3 << 20};
  for (const std::size_t bytes : sizes) {
    for (std::size_t offset = 0; offset<64; offset += bytes> 4096 ? 13 : 1) {
      for (const bool streaming : {false, true}) {
        check(bytes, offset, (offset * 11 + 5) % 64,
              [streaming](void* dst, const void* src, std::size_t n) { executor::copy(dst, src, n, streaming); });
      }
      for (const HostIsa* isa : isas()) check(bytes, offset, 63 - offset, isa->streamCopy);
    }
  }
  executor::copy(nullptr, nullptr, 0, false);
  executor::copy(nullptr, nullptr, 0, true);
}

}  // namespace
}  // namespace kolo::test
