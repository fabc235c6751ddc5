#include "perf/patterns.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>

namespace kolo::perf {
namespace {

using Number = std::complex<double>;  // holds every operand and fold exactly but for those of the bitwise operations

// The finaliser of splitmix64 (Steele, Lea, Flood 2014), over the three coordinates of an element.
std::uint64_t mix(std::uint64_t seed, std::uint64_t rank, std::uint64_t index) {
  std::uint64_t z = seed + rank * 0x9e3779b97f4a7c15u + index * 0xd1342543de82ef95u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

bool isBitwise(koloRedOp_t op) { return op == koloBitAnd || op == koloBitOr || op == koloBitXor; }

bool isUnsigned(koloDataType_t datatype) {
  return datatype == koloUint8 || datatype == koloUint16 || datatype == koloUint32 || datatype == koloUint64 ||
         datatype == koloBool;
}

bool isComplex(koloDataType_t datatype) { return datatype == koloComplex64 || datatype == koloComplex128; }

// All integers up to this, and their negatives, are exact in the datatype.
std::int64_t exactLimit(koloDataType_t datatype) {
  switch (datatype) {
    case koloBool: return 1;
    case koloFloat8e5m2: return 8;
    case koloFloat8e4m3: return 16;
    case koloInt8: return 127;
    case koloUint8: return 255;
    case koloBfloat16: return 256;
    case koloFloat16: return 2048;
    case koloInt16: return 32767;
    case koloUint16: return 65535;
    default: return 1 << 24;
  }
}

// Sums and averages of more ranks than this bound allows still vary: beyond it more bits find no more faults.
constexpr std::int64_t kWidest = 1000;

struct Element {
  koloDataType_t datatype;
  koloRedOp_t op;
  int rank;
  int ranks;
  std::uint64_t seed;
  std::uint64_t index;

  std::uint64_t random() const { return mix(seed, static_cast<std::uint64_t>(rank) + 1, index); }
  std::uint64_t shared() const { return mix(seed, 0, index); }  // the same on all ranks
  // Where this rank stands when the ranks are counted from one that differs from element to element.
  std::int64_t turn() const {
    return static_cast<std::int64_t>((index + static_cast<std::uint64_t>(rank)) % static_cast<std::uint64_t>(ranks));
  }
};

// Uniform in -width..width, or 0..width for unsigned datatypes.
double spread(std::uint64_t random, std::int64_t width, koloDataType_t datatype) {
  const auto w = static_cast<std::uint64_t>(width);
  if (isUnsigned(datatype)) return static_cast<double>(random % (w + 1));
  return static_cast<double>(static_cast<std::int64_t>(random % (2 * w + 1)) - width);
}

// Every partial sum stays within exactLimit. With more ranks than that, only so many contribute a one to each element.
double sumOperand(const Element& e, std::uint64_t random) {
  const std::int64_t limit = exactLimit(e.datatype);
  const std::int64_t share = std::min(limit / e.ranks, kWidest);
  if (share > 0) return spread(random, share, e.datatype);
  return e.turn() < limit ? 1 : 0;
}

// A shared base plus what cancels between the ranks of turn 2k and 2k+1: the average is the base, exactly.
double avgOperand(const Element& e, std::uint64_t shared) {
  if (e.datatype == koloBool) return static_cast<double>(shared & 1);
  const std::int64_t limit = exactLimit(e.datatype);
  const std::int64_t share = std::min(limit / e.ranks, kWidest);
  const std::int64_t delta = share > 0 ? share / 2 : (e.turn() < limit && !isUnsigned(e.datatype) ? 1 : 0);
  const std::int64_t width = share - share / 2;
  // Unsigned operands must not fall below zero: their base is the full delta and then some.
  const double base = share > 0 ? (isUnsigned(e.datatype) ? static_cast<double>(delta) : 0) +
                                      spread(shared, isUnsigned(e.datatype) ? width - delta : width, e.datatype)
                                : 0;
  const std::int64_t turn = e.turn();
  const bool alone = turn == e.ranks - 1 && e.ranks % 2 == 1;
  if (alone) return base;
  return turn % 2 == 0 ? base + static_cast<double>(delta) : base - static_cast<double>(delta);
}

// Ones, and twos on at most six ranks, so that the product stays below 128; with signs where the datatype has them.
Number prodOperand(const Element& e) {
  const std::uint64_t random = e.random();
  if (e.datatype == koloBool) return random % (2 * static_cast<std::uint64_t>(e.ranks)) != 0 ? 1.0 : 0.0;
  double size = e.turn() < 6 && (random & 1) != 0 ? 2 : 1;
  if (!isUnsigned(e.datatype) && (random & 2) != 0) size = -size;
  if (isComplex(e.datatype) && (random & 4) != 0) return {0, size};
  return size;
}

// Chosen so that both results occur whatever the number of ranks.
double logicalOperand(const Element& e) {
  const std::uint64_t random = e.random();
  const bool rare = random % (2 * static_cast<std::uint64_t>(e.ranks)) == 0;
  const bool isTrue = e.op == koloLogicalAnd ? !rare : e.op == koloLogicalOr ? rare : (random & 1) != 0;
  if (!isTrue) return 0;
  return e.datatype == koloBool ? 1 : static_cast<double>(1 + (random >> 32) % 3);
}

Number operand(const Element& e) {
  switch (e.op) {
    case koloSum: return {sumOperand(e, e.random()), isComplex(e.datatype) ? sumOperand(e, mix(e.random(), 0, 0)) : 0};
    case koloAvg: return {avgOperand(e, e.shared()), isComplex(e.datatype) ? avgOperand(e, mix(e.shared(), 0, 0)) : 0};
    case koloProd: return prodOperand(e);
    case koloMax:
    case koloMin: return spread(e.random(), std::min(exactLimit(e.datatype), kWidest), e.datatype);
    default: return logicalOperand(e);
  }
}

std::uint64_t bitOperand(const Element& e) {
  if (e.datatype == koloBool) return static_cast<std::uint64_t>(logicalOperand(e));
  const std::uint64_t a = e.random();
  const std::uint64_t b = mix(a, 0, 0);
  if (e.op == koloBitAnd) return a | b;
  return e.op == koloBitOr ? a & b : a;
}

Number combine(koloRedOp_t op, Number a, Number b) {
  switch (op) {
    case koloProd: return a * b;
    case koloMax: return std::max(a.real(), b.real());
    case koloMin: return std::min(a.real(), b.real());
    case koloLogicalAnd: return a != 0.0 && b != 0.0 ? 1.0 : 0.0;
    case koloLogicalOr: return a != 0.0 || b != 0.0 ? 1.0 : 0.0;
    case koloLogicalXor: return (a != 0.0) != (b != 0.0) ? 1.0 : 0.0;
    default: return a + b;
  }
}

std::uint64_t combineBits(koloRedOp_t op, std::uint64_t a, std::uint64_t b) {
  if (op == koloBitAnd) return a & b;
  return op == koloBitOr ? a | b : a ^ b;
}

Number foldNumbers(Element e) {
  e.rank = 0;
  Number result = operand(e);
  const bool isLogical = e.op == koloLogicalAnd || e.op == koloLogicalOr || e.op == koloLogicalXor;
  if (isLogical) result = result != 0.0 ? 1.0 : 0.0;
  for (e.rank = 1; e.rank < e.ranks; ++e.rank) result = combine(e.op, result, operand(e));
  if (e.op == koloAvg) result /= static_cast<double>(e.ranks);
  if (e.datatype == koloBool) result = result != 0.0 ? 1.0 : 0.0;
  return result;
}

std::uint64_t foldBits(Element e) {
  e.rank = 0;
  std::uint64_t result = bitOperand(e);
  for (e.rank = 1; e.rank < e.ranks; ++e.rank) result = combineBits(e.op, result, bitOperand(e));
  return result;
}

// The bits of a value that is 0 or normal and exact in a format with so many exponent and mantissa bits.
std::uint32_t smallFloatBits(double value, int exponentBits, int mantissaBits) {
  if (value == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  const int bias = (1 << (exponentBits - 1)) - 1;
  const auto mantissa = static_cast<std::uint32_t>(std::ldexp(2 * fraction - 1, mantissaBits));
  const auto biased = static_cast<std::uint32_t>(exponent - 1 + bias);
  return (value < 0 ? 1u << (exponentBits + mantissaBits) : 0u) | biased << mantissaBits | mantissa;
}

template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// Integers are stored as their low bytes: little-endian machines, the only ones Kolo runs on.
void encode(std::byte* to, koloDataType_t datatype, Number value) {
  const double real = value.real();
  switch (datatype) {
    case koloFloat32: return store(to, static_cast<float>(real));
    case koloFloat64: return store(to, real);
    case koloComplex64: return store(to, std::complex<float>(value));
    case koloComplex128: return store(to, value);
    case koloFloat16: return store(to, static_cast<std::uint16_t>(smallFloatBits(real, 5, 10)));
    case koloBfloat16: return store(to, static_cast<std::uint16_t>(smallFloatBits(real, 8, 7)));
    case koloFloat8e4m3: return store(to, static_cast<std::uint8_t>(smallFloatBits(real, 4, 3)));
    case koloFloat8e5m2: return store(to, static_cast<std::uint8_t>(smallFloatBits(real, 5, 2)));
    default: {
      const auto whole = static_cast<std::int64_t>(real);
      std::memcpy(to, &whole, koloDataTypeSize(datatype));
    }
  }
}

// Fills a table from one function for numbers and one for bits.
template <typename Numbers, typename Bits>
Table tabulate(Element e, Numbers numbers, Bits bits) {
  const size_t size = koloDataTypeSize(e.datatype);
  Table table(kPeriod * size);
  for (e.index = 0; e.index < kPeriod; ++e.index) {
    std::byte* const to = table.data() + e.index * size;
    if (isBitwise(e.op)) {
      const std::uint64_t value = bits(e);
      std::memcpy(to, &value, size);
    } else {
      encode(to, e.datatype, numbers(e));
    }
  }
  return table;
}

// The number of differing units of T; `group` of them make one element (2 for complex numbers).
template <typename T, typename Differs>
size_t countDiffering(const std::byte* got, const std::byte* expected, size_t elements, size_t group, Differs differs) {
  size_t wrong = 0;
  for (size_t i = 0; i < elements; ++i) {
    bool differing = false;
    for (size_t part = 0; part < group; ++part) {
      T a, b;
      std::memcpy(&a, got + (i * group + part) * sizeof(T), sizeof a);
      std::memcpy(&b, expected + (i * group + part) * sizeof(T), sizeof b);
      differing |= differs(a, b);
    }
    wrong += differing ? 1 : 0;
  }
  return wrong;
}

template <typename T>
size_t countBytesDiffering(const std::byte* got, const std::byte* expected, size_t elements, size_t group) {
  return countDiffering<T>(got, expected, elements, group, [](T a, T b) { return a != b; });
}

// For formats whose top bit is the sign: equal bits, or both zero but for the sign.
template <typename T>
size_t countSmallFloats(const std::byte* got, const std::byte* expected, size_t elements) {
  return countDiffering<T>(got, expected, elements, 1,
                           [](T a, T b) { return a != b && static_cast<T>((a | b) << 1) != 0; });
}

size_t countNumbersDiffering(const std::byte* got, const std::byte* expected, size_t elements,
                             koloDataType_t datatype) {
  const auto unequal = [](auto a, auto b) { return a != b; };
  switch (datatype) {
    case koloFloat32: return countDiffering<float>(got, expected, elements, 1, unequal);
    case koloFloat64: return countDiffering<double>(got, expected, elements, 1, unequal);
    case koloComplex64: return countDiffering<float>(got, expected, elements, 2, unequal);
    case koloComplex128: return countDiffering<double>(got, expected, elements, 2, unequal);
    case koloFloat16:
    case koloBfloat16: return countSmallFloats<std::uint16_t>(got, expected, elements);
    case koloFloat8e4m3:
    case koloFloat8e5m2: return countSmallFloats<std::uint8_t>(got, expected, elements);
    default: break;
  }
  switch (koloDataTypeSize(datatype)) {
    case 1: return countBytesDiffering<std::uint8_t>(got, expected, elements, 1);
    case 2: return countBytesDiffering<std::uint16_t>(got, expected, elements, 1);
    case 4: return countBytesDiffering<std::uint32_t>(got, expected, elements, 1);
    default: return countBytesDiffering<std::uint64_t>(got, expected, elements, 1);
  }
}

// Calls each(offset, from, length) for the stretches of a repeated table, all in elements.
template <typename Each>
void forStretches(size_t elements, size_t phase, Each each) {
  size_t from = phase % kPeriod;
  for (size_t done = 0; done < elements;) {
    const size_t length = std::min(kPeriod - from, elements - done);
    each(done, from, length);
    done += length;
    from = 0;
  }
}

}  // namespace

Table movedTable(koloDataType_t datatype, int rank, std::uint64_t seed) {
  Table table(kPeriod * koloDataTypeSize(datatype));
  const std::uint64_t mask = datatype == koloBool ? 1 : 0xff;
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<std::byte>((mix(seed, static_cast<std::uint64_t>(rank) + 1, i) >> 24) & mask);
  }
  return table;
}

Table operandTable(koloDataType_t datatype, koloRedOp_t op, int rank, int ranks, std::uint64_t seed) {
  const Element first{.datatype = datatype, .op = op, .rank = rank, .ranks = ranks, .seed = seed, .index = 0};
  return tabulate(first, operand, bitOperand);
}

Table foldedTable(koloDataType_t datatype, koloRedOp_t op, int ranks, std::uint64_t seed) {
  const Element first{.datatype = datatype, .op = op, .rank = 0, .ranks = ranks, .seed = seed, .index = 0};
  return tabulate(first, foldNumbers, foldBits);
}

void fill(std::byte* to, size_t elements, size_t elementBytes, const Table& table, size_t phase) {
  forStretches(elements, phase, [&](size_t offset, size_t from, size_t length) {
    std::memcpy(to + offset * elementBytes, table.data() + from * elementBytes, length * elementBytes);
  });
}

size_t countWrong(const std::byte* got, size_t elements, koloDataType_t datatype, const Table& table, size_t phase,
                  Compare compare) {
  const size_t size = koloDataTypeSize(datatype);
  size_t wrong = 0;
  forStretches(elements, phase, [&](size_t offset, size_t from, size_t length) {
    const std::byte* const a = got + offset * size;
    const std::byte* const b = table.data() + from * size;
    if (std::memcmp(a, b, length * size) == 0) return;
    if (compare == Compare::kNumbers) {
      wrong += countNumbersDiffering(a, b, length, datatype);
    } else {
      for (size_t i = 0; i < length; ++i) wrong += std::memcmp(a + i * size, b + i * size, size) != 0 ? 1 : 0;
    }
  });
  return wrong;
}

}  // namespace kolo::perf
