#include "device/types.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "reduce_oracle.h"
#include "support/seed.h"

namespace kolo::test {
namespace {

using device::narrow;
using device::widen;

std::uint32_t bitsOf(float value) { return device::bitCast<std::uint32_t>(value); }

// Counts mismatches, so that a broken conversion yields one failure and not sixty thousand.
template <class T>
void checkAllValues(std::uint32_t patterns) {
  int wrongValues = 0, wrongRoundTrips = 0;
  for (std::uint32_t bits = 0; bits < patterns; ++bits) {
    const T element{static_cast<decltype(T::bits)>(bits)};
    const double wanted = oracle::decode(oracle::formatOf<T>(), bits);
    const float value = widen(element);
    if (std::isnan(wanted)) {
      wrongValues += std::isnan(value) ? 0 : 1;
      wrongRoundTrips += std::isnan(widen(narrow<T>(value))) ? 0 : 1;
    } else {
      wrongValues += bitsOf(value) == bitsOf(static_cast<float>(wanted)) ? 0 : 1;
      wrongRoundTrips += narrow<T>(value).bits == element.bits ? 0 : 1;
    }
  }
  CHECK(wrongValues == 0);
  CHECK(wrongRoundTrips == 0);
}

template <class T>
bool narrowsRight(float value) {
  const std::uint32_t wanted = oracle::encode<T>(value);
  const T got = narrow<T>(value);
  return std::isnan(value) ? std::isnan(widen(got)) : got.bits == wanted;
}

// Around every value of the format and half way to the next, where rounding is decided; and any floats.
template <class T>
void checkRounding() {
  int wrong = 0;
  const auto& values = oracle::finiteValues<T>();
  const auto probe = [&wrong](double value) {
    for (const float sign : {1.0f, -1.0f}) {
      const float at = sign * static_cast<float>(value);
      const float infinity = std::numeric_limits<float>::infinity();
      for (const float near : {at, std::nextafter(at, infinity), std::nextafter(at, -infinity)}) {
        wrong += narrowsRight<T>(near) ? 0 : 1;
      }
    }
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    probe(values[i]);
    const double step = i + 1 < values.size() ? values[i + 1] - values[i] : values[i] - values[i - 1];
    probe(values[i] + step / 2);
    probe(values[i] + step / 4);
  }
  for (Rounds rounds(7); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    for (int i = 0; i < 50000; ++i) {
      wrong += narrowsRight<T>(device::bitCast<float>(static_cast<std::uint32_t>(random()))) ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::quiet_NaN()}) {
    wrong += narrowsRight<T>(value) && narrowsRight<T>(-value) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("every value of a small float widens exactly and narrows to itself", "[types]") {
  checkAllValues<device::Float16>(1u << 16);
  checkAllValues<device::Bfloat16>(1u << 16);
  checkAllValues<device::Float8E4m3>(1u << 8);
  checkAllValues<device::Float8E5m2>(1u << 8);
}

TEST_CASE("floats narrow to the nearest, ties to even", "[types]") {
  checkRounding<device::Float16>();
  checkRounding<device::Bfloat16>();
  checkRounding<device::Float8E4m3>();
  checkRounding<device::Float8E5m2>();
}

TEST_CASE("what is too large for a small float becomes what its format says", "[types]") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(widen(narrow<device::Float16>(65519.0f)) == 65504.0f);
  CHECK(widen(narrow<device::Float16>(65520.0f)) == infinity);
  CHECK(widen(narrow<device::Float8E4m3>(1e9f)) == 448.0f);
  CHECK(widen(narrow<device::Float8E4m3>(-infinity)) == -448.0f);
  CHECK(widen(narrow<device::Float8E5m2>(1e9f)) == 57344.0f);
  CHECK(widen(narrow<device::Float8E5m2>(-infinity)) == -infinity);
}

TEST_CASE("conversions can be carried out by the compiler", "[types]") {
  STATIC_REQUIRE(narrow<device::Float16>(1.5f).bits == 0x3e00);
  STATIC_REQUIRE(narrow<device::Bfloat16>(-2.0f).bits == 0xc000);
  STATIC_REQUIRE(narrow<device::Float8E4m3>(448.0f).bits == 0x7e);
  STATIC_REQUIRE(widen(device::Float8E5m2{0x3c}) == 1.0f);
}

TEST_CASE("dispatch gives the type of each datatype", "[types]") {
  const auto sizeOf = [](koloDataType_t datatype) {
    return device::dispatch(datatype, [](auto tag) { return sizeof(typename decltype(tag)::type); });
  };
  const std::size_t sizes[koloNumDatatypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 2, 2, 1, 8, 16};
  for (int d = 0; d < koloNumDatatypes; ++d) CHECK(sizeOf(static_cast<koloDataType_t>(d)) == sizes[d]);
  const auto isBool = [](auto tag) { return std::is_same_v<typename decltype(tag)::type, device::Bool>; };
  CHECK(device::dispatch(koloBool, isBool));
  CHECK_FALSE(device::dispatch(koloUint8, isBool));
}

}  // namespace
}  // namespace kolo::test
