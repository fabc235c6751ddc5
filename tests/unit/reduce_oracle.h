// What a reduction must yield, worked out one element at a time by code that shares nothing with the library: small
// floats are decoded by ldexp and encoded by looking for the nearest neighbour among all values of the format.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "device/reduce_args.h"
#include "device/types.h"

namespace kolo::oracle {

using device::Bfloat16;
using device::Bool;
using device::Complex;
using device::Float16;
using device::Float8E4m3;
using device::Float8E5m2;
using device::ReduceOp;

// ------------------------------------------------------------- small floats

struct Format {
  int exponentBits, mantissaBits, bias;
  bool hasInfinity;  // otherwise the top exponent is used for numbers, but for one NaN
  bool saturates;    // finite values that are too large become the largest
};

template <class T>
constexpr Format formatOf() {
  if constexpr (std::is_same_v<T, Float16>) return {5, 10, 15, true, false};
  if constexpr (std::is_same_v<T, Bfloat16>) return {8, 7, 127, true, false};
  if constexpr (std::is_same_v<T, Float8E4m3>) return {4, 3, 7, false, true};
  if constexpr (std::is_same_v<T, Float8E5m2>) return {5, 2, 15, true, true};
}

inline double decode(Format f, std::uint32_t bits) {
  const int width = f.exponentBits + f.mantissaBits;
  const double sign = (bits >> width & 1) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> f.mantissaBits) & ((1 << f.exponentBits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << f.mantissaBits) - 1);
  const int top = (1 << f.exponentBits) - 1, full = (1 << f.mantissaBits) - 1;
  if (exponent == top && f.hasInfinity) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == top && mantissa == full && !f.hasInfinity) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - f.bias - f.mantissaBits);
  return sign * std::ldexp((1 << f.mantissaBits) + mantissa, exponent - f.bias - f.mantissaBits);
}

// The values of a format that are finite and not negative, in order: the index is the bit pattern.
template <class T>
const std::vector<double>& finiteValues() {
  static const std::vector<double> values = [] {
    std::vector<double> list;
    for (std::uint32_t bits = 0; std::isfinite(decode(formatOf<T>(), bits)); ++bits) {
      list.push_back(decode(formatOf<T>(), bits));
    }
    return list;
  }();
  return values;
}

template <class T>
std::uint32_t encode(float value) {
  constexpr Format f = formatOf<T>();
  const std::vector<double>& values = finiteValues<T>();
  const std::uint32_t sign = std::signbit(value) ? 1u << (f.exponentBits + f.mantissaBits) : 0;
  const auto largest = static_cast<std::uint32_t>(values.size() - 1);
  if (std::isnan(value)) return largest + (f.hasInfinity ? 2 : 1);
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return sign | (f.hasInfinity ? largest + 1 : largest);
  // One step beyond the largest is where infinity would be, if it were a number.
  const double beyond = values[largest] + (values[largest] - values[largest - 1]);
  if (magnitude >= values[largest]) {
    const bool up = magnitude - values[largest] >= beyond - magnitude;  // a tie goes to the even one, the one beyond
    return sign | (up && !f.saturates ? largest + 1 : largest);
  }
  const auto above =
      static_cast<std::uint32_t>(std::upper_bound(values.begin(), values.end(), magnitude) - values.begin());
  const double down = magnitude - values[above - 1], up = values[above] - magnitude;
  if (down != up) return sign | (down < up ? above - 1 : above);
  return sign | ((above & 1) == 0 ? above : above - 1);
}

// ---------------------------------------------------------------- operations

template <class F>
F foldFloat(ReduceOp op, F a, F b) {
  const F nan = std::numeric_limits<F>::quiet_NaN();
  switch (op) {
    case ReduceOp::kSum: return a + b;
    case ReduceOp::kProd: return a * b;
    case ReduceOp::kMax:
      if (std::isnan(a) || std::isnan(b)) return nan;
      if (a == b) return std::signbit(a) ? b : a;
      return a > b ? a : b;
    case ReduceOp::kMin:
      if (std::isnan(a) || std::isnan(b)) return nan;
      if (a == b) return std::signbit(a) ? a : b;
      return a < b ? a : b;
    case ReduceOp::kLogicalAnd: return a != 0 && b != 0 ? 1 : 0;
    case ReduceOp::kLogicalOr: return a != 0 || b != 0 ? 1 : 0;
    case ReduceOp::kLogicalXor: return (a != 0) != (b != 0) ? 1 : 0;
    default: std::abort();
  }
}

template <class T>
T foldInteger(ReduceOp op, T a, T b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::kSum: return static_cast<T>(x + y);
    case ReduceOp::kProd: return static_cast<T>(x * y);
    case ReduceOp::kMax: return a > b ? a : b;
    case ReduceOp::kMin: return a < b ? a : b;
    case ReduceOp::kLogicalAnd: return a != 0 && b != 0;
    case ReduceOp::kLogicalOr: return a != 0 || b != 0;
    case ReduceOp::kLogicalXor: return (a != 0) != (b != 0);
    case ReduceOp::kBitAnd: return static_cast<T>(x & y);
    case ReduceOp::kBitOr: return static_cast<T>(x | y);
    case ReduceOp::kBitXor: return static_cast<T>(x ^ y);
    default: std::abort();
  }
}

inline bool foldBool(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kLogicalOr:
    case ReduceOp::kBitOr: return a || b;
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kLogicalAnd:
    case ReduceOp::kBitAnd: return a && b;
    default: return a != b;
  }
}

// ------------------------------------------------------------------- elements

// What T is folded in, how it gets there and back.
template <class T>
auto open(T element) {
  if constexpr (device::kIsNarrowFloat<T>) {
    return static_cast<float>(decode(formatOf<T>(), element.bits));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return element.bits != 0;
  } else {
    return element;
  }
}
template <class T, class A>
T close(A value) {
  if constexpr (device::kIsNarrowFloat<T>) {
    return T{static_cast<decltype(T::bits)>(encode<T>(value))};
  } else if constexpr (std::is_same_v<T, Bool>) {
    return Bool{static_cast<std::uint8_t>(value ? 1 : 0)};
  } else {
    return value;
  }
}

template <class T, class A>
A combine(ReduceOp op, A a, A b) {
  if constexpr (device::kIsComplex<T>) {
    if (op == ReduceOp::kSum) return {a.re + b.re, a.im + b.im};
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  } else if constexpr (std::is_same_v<A, bool>) {
    return foldBool(op, a, b);
  } else if constexpr (std::is_integral_v<A>) {
    return foldInteger<A>(op, a, b);
  } else {
    return foldFloat<A>(op, a, b);
  }
}

// As float32 would if it had no largest and no smallest number.
inline double roundAsFloat(double value) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::isfinite(value) ? std::ldexp(std::nearbyint(std::ldexp(fraction, 24)), exponent - 24) : value;
}

template <class T, class A>
A average(A value, std::uint32_t divisor) {
  if constexpr (device::kIsComplex<T>) {
    return {value.re / divisor, value.im / divisor};
  } else if constexpr (std::is_same_v<A, bool>) {
    return value;
  } else if constexpr (std::is_integral_v<A> && std::is_signed_v<A>) {
    return static_cast<A>(std::int64_t{value} / std::int64_t{divisor});
  } else if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(std::uint64_t{value} / std::uint64_t{divisor});
  } else {
    return value / static_cast<A>(divisor);
  }
}

template <class T>
T elementAt(const void* from, std::uint64_t i) {
  T element;
  std::memcpy(&element, static_cast<const unsigned char*>(from) + i * sizeof(T), sizeof(T));
  return element;
}

// Element i of an average of a datatype of 8 or 16 bits: its sum is too large for none.
template <class T>
T smallAverage(const device::ReduceArgs& args, std::uint64_t i) {
  if constexpr (std::is_integral_v<T>) {
    std::int64_t sum = 0;
    for (int s = 0; s < args.srcCount; ++s) sum += elementAt<T>(args.src[s], i);
    return static_cast<T>(sum / std::int64_t{args.divisor});
  } else {
    const auto load = [&](int s) {
      const double weight = args.weights == nullptr ? 1 : static_cast<double>(args.weights[s]);
      return weight * static_cast<double>(open(elementAt<T>(args.src[s], i)));
    };
    double sum = load(0);
    for (int s = 1; s < args.srcCount; ++s) sum = roundAsFloat(sum + load(s));
    const double divisor = static_cast<double>(static_cast<float>(args.divisor)) * static_cast<double>(args.unit);
    return close<T>(static_cast<float>(sum / divisor));
  }
}

// Element i of the result.
template <class T>
T expected(const device::ReduceArgs& args, ReduceOp op, std::uint64_t i) {
  if (args.srcCount == 1 && args.scaledSource < 0 && args.divisor <= 1) return elementAt<T>(args.src[0], i);
  if constexpr (device::kIsNarrowFloat<T> || (std::is_integral_v<T> && sizeof(T) <= 2)) {
    if (args.divisor > 1) return smallAverage<T>(args, i);
  }
  const auto load = [&](int s) {
    auto value = open(elementAt<T>(args.src[s], i));
    if (s == args.scaledSource)
      value = open(close<T>(combine<T>(ReduceOp::kProd, value, open(elementAt<T>(args.scale, 0)))));
    return value;
  };
  auto acc = load(0);
  for (int s = 1; s < args.srcCount; ++s) acc = combine<T>(op, acc, load(s));
  if (args.divisor > 1) acc = average<T>(acc, args.divisor);
  return close<T>(acc);
}

// The same bits; any NaN is as good as another.
template <class T>
bool same(T a, T b) {
  if constexpr (device::kIsComplex<T>) {
    return same(a.re, b.re) && same(a.im, b.im);
  } else if constexpr (device::kIsNarrowFloat<T>) {
    return a.bits == b.bits || (std::isnan(open(a)) && std::isnan(open(b)));
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::memcmp(&a, &b, sizeof(T)) == 0 || (std::isnan(a) && std::isnan(b));
  } else {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
  }
}

}  // namespace kolo::oracle
