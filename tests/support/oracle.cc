#include "support/oracle.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <limits>

#include "support/collectives_table.h"

namespace kolo::tests {
namespace {

struct Format {
  int exponentBits;
  int mantissaBits;
  bool infinities;  // the top exponent is kept for infinities and NaNs
  bool saturates;
};

Format formatOf(koloDataType_t datatype) {
  switch (datatype) {
    case koloFloat16: return {5, 10, true, false};
    case koloBfloat16: return {8, 7, true, false};
    case koloFloat8e4m3: return {4, 3, false, true};
    default: return {5, 2, true, true};
  }
}

bool isNarrow(koloDataType_t datatype) {
  return datatype == koloFloat16 || datatype == koloBfloat16 || datatype == koloFloat8e4m3 ||
         datatype == koloFloat8e5m2;
}

double decodeNarrow(const Format& format, std::uint32_t bits) {
  const int bias = (1 << (format.exponentBits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> format.mantissaBits) & ((1 << format.exponentBits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << format.mantissaBits) - 1);
  const bool negative = (bits >> (format.mantissaBits + format.exponentBits) & 1) != 0;
  double value = exponent == 0
                     ? std::ldexp(mantissa, 1 - bias - format.mantissaBits)
                     : std::ldexp(mantissa + (1 << format.mantissaBits), exponent - bias - format.mantissaBits);
  const bool top = exponent == (1 << format.exponentBits) - 1;
  if (top && format.infinities) value = mantissa == 0 ? INFINITY : NAN;
  if (top && !format.infinities && mantissa == (1 << format.mantissaBits) - 1) value = NAN;
  return negative ? -value : value;
}

std::uint32_t encodeNarrow(const Format& format, double value) {
  const int bias = (1 << (format.exponentBits - 1)) - 1;
  const std::uint32_t sign = std::signbit(value) ? 1u << (format.mantissaBits + format.exponentBits) : 0;
  const std::uint32_t infinity = ((1u << format.exponentBits) - 1) << format.mantissaBits;
  const std::uint32_t largest = format.infinities ? infinity - 1 : infinity + (1u << format.mantissaBits) - 2;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return sign | (format.infinities ? infinity : largest);
  const int lowest = 1 - bias;
  const int unit = std::max(std::ilogb(magnitude), lowest) - format.mantissaBits;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit);
  if (rounded > decodeNarrow(format, largest)) return sign | (format.saturates ? largest : infinity);
  if (rounded < std::ldexp(1, lowest)) {
    return sign | static_cast<std::uint32_t>(std::ldexp(rounded, format.mantissaBits - lowest));
  }
  const int exponent = std::ilogb(rounded);
  const auto mantissa = static_cast<std::uint32_t>(std::ldexp(rounded, format.mantissaBits - exponent));
  const std::uint32_t fraction = mantissa - (1u << format.mantissaBits);
  return sign | (static_cast<std::uint32_t>(exponent + bias) << format.mantissaBits) | fraction;
}

// ------------------------------------------------------------------- folding

// One element of each rank, in rank order.
using Sources = std::vector<const std::uint8_t*>;

// Integers and bool, zero- or sign-extended to 64 bits.
std::uint64_t loadInteger(koloDataType_t datatype, const std::uint8_t* from) {
  const std::size_t size = koloDataTypeSize(datatype);
  std::uint64_t value = 0;
  std::memcpy(&value, from, size);
  if (datatype == koloBool) return value != 0 ? 1 : 0;
  const int unused = static_cast<int>(64 - 8 * size);
  return isSigned(datatype) ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value << unused) >> unused) : value;
}

// Results of these are 0 or 1, also of one rank alone.
bool isLogical(koloRedOp_t op) { return op == koloLogicalAnd || op == koloLogicalOr || op == koloLogicalXor; }

std::uint64_t combineIntegers(koloRedOp_t op, bool isSignedType, std::uint64_t a, std::uint64_t b) {
  const bool less = isSignedType ? static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) : a < b;
  switch (op) {
    case koloSum:
    case koloAvg: return a + b;
    case koloProd: return a * b;
    case koloMax: return less ? b : a;
    case koloMin: return less ? a : b;
    case koloLogicalAnd: return a != 0 && b != 0 ? 1 : 0;
    case koloLogicalOr: return a != 0 || b != 0 ? 1 : 0;
    case koloLogicalXor: return (a != 0) != (b != 0) ? 1 : 0;
    case koloBitAnd: return a & b;
    case koloBitOr: return a | b;
    default: return a ^ b;
  }
}

void foldIntegers(const Problem& problem, const Sources& sources, std::uint8_t* out) {
  const koloDataType_t datatype = problem.datatype;
  std::uint64_t acc = 0;
  for (std::size_t rank = 0; rank < sources.size(); ++rank) {
    std::uint64_t value = loadInteger(datatype, sources[rank]);
    if (problem.reduction == Reduction::kPreMulSum) {
      value *= static_cast<std::uint64_t>(static_cast<std::int64_t>(problem.scales[rank]));
    }
    if (isLogical(problem.op)) value = value != 0 ? 1 : 0;
    acc = rank == 0 ? value : combineIntegers(problem.op, isSigned(datatype), acc, value);
  }
  if (datatype == koloBool) acc = acc != 0 && (problem.op != koloLogicalXor || acc % 2 != 0) ? 1 : 0;
  if (problem.op == koloAvg) {
    if (koloDataTypeSize(datatype) > 2) {  // the sums of others do not wrap
      std::uint8_t wrapped[8] = {};
      std::memcpy(wrapped, &acc, sizeof acc);
      acc = loadInteger(datatype, wrapped);
    }
    const auto n = static_cast<std::int64_t>(sources.size());
    acc = isSigned(datatype) ? static_cast<std::uint64_t>(static_cast<std::int64_t>(acc) / n)
                             : acc / static_cast<std::uint64_t>(n);
  }
  std::memcpy(out, &acc, koloDataTypeSize(datatype));
}

template <class Real>
Real combineReals(koloRedOp_t op, Real a, Real b) {
  switch (op) {
    case koloSum:
    case koloAvg: return a + b;
    case koloProd: return a * b;
    case koloMax: return std::max(a, b);
    case koloMin: return std::min(a, b);
    case koloLogicalAnd: return a != 0 && b != 0 ? Real(1) : Real(0);
    case koloLogicalOr: return a != 0 || b != 0 ? Real(1) : Real(0);
    default: return (a != 0) != (b != 0) ? Real(1) : Real(0);
  }
}

// An average of narrow floats is folded in float32, as if that had no largest number: here in units that are too large
// for overflow, and small enough for every bfloat16 to be exact.
constexpr double kAverageUnit = 256;

template <class Real>
void foldReals(const Problem& problem, const Sources& sources, std::uint8_t* out) {
  const double unit = problem.op == koloAvg && isNarrow(problem.datatype) ? kAverageUnit : 1;
  Real acc = 0;
  for (std::size_t rank = 0; rank < sources.size(); ++rank) {
    Real value = static_cast<Real>(decode(problem.datatype, sources[rank]) / unit);
    if (problem.reduction == Reduction::kPreMulSum) {
      // A contribution is rounded to the datatype when it is multiplied.
      std::uint8_t scaled[8];
      encode(problem.datatype, static_cast<double>(value * static_cast<Real>(problem.scales[rank])), scaled);
      value = static_cast<Real>(decode(problem.datatype, scaled));
    }
    if (isLogical(problem.op)) value = value != 0 ? Real(1) : Real(0);
    acc = rank == 0 ? value : combineReals(problem.op, acc, value);
  }
  if (problem.op == koloAvg) acc /= static_cast<Real>(sources.size());
  encode(problem.datatype, static_cast<double>(acc) * unit, out);
}

template <class Real>
void foldComplex(const Problem& problem, const Sources& sources, std::uint8_t* out) {
  Real re = 0, im = 0;
  const std::size_t half = partBytes(problem.datatype);
  for (std::size_t rank = 0; rank < sources.size(); ++rank) {
    auto x = static_cast<Real>(decode(problem.datatype, sources[rank]));
    auto y = static_cast<Real>(decode(problem.datatype, sources[rank] + half));
    if (problem.reduction == Reduction::kPreMulSum) {  // scales are real; a whole product, for the signs of zeros
      const auto scale = static_cast<Real>(problem.scales[rank]);
      const Real product = x * scale - y * Real(0);
      y = x * Real(0) + y * scale;
      x = product;
    }
    if (rank == 0) {
      re = x;
      im = y;
    } else if (problem.op == koloProd) {
      const Real product = re * x - im * y;
      im = re * y + im * x;
      re = product;
    } else {
      re += x;
      im += y;
    }
  }
  if (problem.op == koloAvg) {
    re /= static_cast<Real>(sources.size());
    im /= static_cast<Real>(sources.size());
  }
  encode(problem.datatype, static_cast<double>(re), out);
  encode(problem.datatype, static_cast<double>(im), out + half);
}

void foldElement(const Problem& problem, const Sources& sources, std::uint8_t* out) {
  if (problem.reduction == Reduction::kAffine || problem.reduction == Reduction::kUserXor) {
    const std::size_t size = koloDataTypeSize(problem.datatype);
    std::memcpy(out, sources[0], size);
    for (std::size_t rank = 1; rank < sources.size(); ++rank) {
      const auto function = problem.reduction == Reduction::kAffine ? affineFunction : xorFunction;
      function(out, sources[rank], 1, problem.datatype, nullptr);
    }
    return;
  }
  switch (problem.datatype) {
    case koloFloat64: foldReals<double>(problem, sources, out); break;
    case koloComplex64: foldComplex<float>(problem, sources, out); break;
    case koloComplex128: foldComplex<double>(problem, sources, out); break;
    default:
      if (isFloating(problem.datatype)) {
        foldReals<float>(problem, sources, out);
      } else {
        foldIntegers(problem, sources, out);
      }
  }
}

Bytes foldBlock(const Problem& problem, const std::vector<const std::uint8_t*>& inputs, std::size_t block) {
  const std::size_t size = koloDataTypeSize(problem.datatype);
  const Block range = problem.send[0][block];
  Bytes result(range.count * size);
  Sources sources(inputs.size());
  for (std::size_t i = 0; i < range.count; ++i) {
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) sources[rank] = inputs[rank] + (range.begin + i) * size;
    foldElement(problem, sources, result.data() + i * size);
  }
  return result;
}

}  // namespace

bool Problem::reduces() const { return !test::isBarrier(collective) && test::rowOf(collective).reduces; }

bool Problem::rooted() const { return !test::isBarrier(collective) && test::rowOf(collective).hasRoot; }

std::size_t Problem::extent(const std::vector<Block>& blocks) {
  std::size_t end = 0;
  for (const Block& block : blocks) end = std::max(end, block.begin + block.count);
  return end;
}

std::vector<std::vector<Bytes>> expectedOutputs(const Problem& problem,
                                                const std::vector<const std::uint8_t*>& inputs) {
  const std::size_t size = koloDataTypeSize(problem.datatype), n = inputs.size();
  const auto root = static_cast<std::size_t>(problem.root);
  const auto blockOf = [&](std::size_t rank, std::size_t block) {
    const Block range = problem.send[rank][block];
    const std::uint8_t* const begin = inputs[rank] + range.begin * size;
    return Bytes(begin, begin + range.count * size);
  };
  std::vector<std::vector<Bytes>> outputs(n);
  if (test::isBarrier(problem.collective)) return outputs;
  const test::Collective& row = test::rowOf(problem.collective);
  Bytes shared;
  if (row.reduces && !row.sendDivided) shared = foldBlock(problem, inputs, 0);
  for (std::size_t rank = 0; rank < n; ++rank) {
    for (std::size_t block = 0; block < problem.recv[rank].size(); ++block) {
      if (!row.reduces) {
        outputs[rank].push_back(blockOf(row.recvDivided ? block : root, row.sendDivided ? rank : 0));
      } else {
        outputs[rank].push_back(row.sendDivided ? foldBlock(problem, inputs, rank) : shared);
      }
    }
  }
  return outputs;
}

double decode(koloDataType_t datatype, const std::uint8_t* part) {
  if (datatype == koloFloat64 || datatype == koloComplex128) {
    double value;
    std::memcpy(&value, part, sizeof value);
    return value;
  }
  if (isNarrow(datatype)) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, part, koloDataTypeSize(datatype));
    return decodeNarrow(formatOf(datatype), bits);
  }
  float value;
  std::memcpy(&value, part, sizeof value);
  return static_cast<double>(value);
}

void encode(koloDataType_t datatype, double value, std::uint8_t* part) {
  if (datatype == koloFloat64 || datatype == koloComplex128) {
    std::memcpy(part, &value, sizeof value);
  } else if (isNarrow(datatype)) {
    const std::uint32_t bits = encodeNarrow(formatOf(datatype), value);
    std::memcpy(part, &bits, koloDataTypeSize(datatype));
  } else {
    const auto single = static_cast<float>(value);
    std::memcpy(part, &single, sizeof single);
  }
}

bool isFloating(koloDataType_t datatype) {
  return isNarrow(datatype) || datatype == koloFloat32 || datatype == koloFloat64 || datatype == koloComplex64 ||
         datatype == koloComplex128;
}

bool isSigned(koloDataType_t datatype) {
  return datatype == koloInt8 || datatype == koloInt16 || datatype == koloInt32 || datatype == koloInt64;
}

std::size_t partBytes(koloDataType_t datatype) {
  const bool complex = datatype == koloComplex64 || datatype == koloComplex128;
  return koloDataTypeSize(datatype) / (complex ? 2 : 1);
}

double epsilon(koloDataType_t datatype) {
  if (datatype == koloFloat64 || datatype == koloComplex128) return std::numeric_limits<double>::epsilon();
  if (isNarrow(datatype)) return std::ldexp(1, -formatOf(datatype).mantissaBits);
  return std::numeric_limits<float>::epsilon();
}

double largest(koloDataType_t datatype) {
  const Format format = formatOf(datatype);
  const std::uint32_t infinity = ((1u << format.exponentBits) - 1) << format.mantissaBits;
  return decodeNarrow(format, format.infinities ? infinity - 1 : infinity + (1u << format.mantissaBits) - 2);
}

double stepAtLargest(koloDataType_t datatype) { return std::ldexp(epsilon(datatype), std::ilogb(largest(datatype))); }

double smallest(koloDataType_t datatype) { return decodeNarrow(formatOf(datatype), 1); }

void affineFunction(void* acc, const void* in, std::size_t count, koloDataType_t, void*) {
  // The map x -> a x + b modulo 2^32, a in the low half; first acc, then in.
  auto* const first = static_cast<std::uint8_t*>(acc);
  const auto* const second = static_cast<const std::uint8_t*>(in);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t f[2], g[2];
    std::memcpy(f, first + 8 * i, 8);
    std::memcpy(g, second + 8 * i, 8);
    const std::uint32_t composed[2] = {f[0] * g[0], f[1] * g[0] + g[1]};
    std::memcpy(first + 8 * i, composed, 8);
  }
}

void xorFunction(void* acc, const void* in, std::size_t count, koloDataType_t datatype, void*) {
  auto* const to = static_cast<std::uint8_t*>(acc);
  const auto* const from = static_cast<const std::uint8_t*>(in);
  for (std::size_t i = 0; i < count * koloDataTypeSize(datatype); ++i) to[i] ^= from[i];
}

}  // namespace kolo::tests
