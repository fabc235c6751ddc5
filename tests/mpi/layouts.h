// Datatypes for the tests: all predefined ones, with numbers to fill them, and derived ones with the signature of so
// many ints.
#pragma once

#include <complex>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "its_own.h"

namespace kolo::test {

using Random = std::mt19937_64;

// A predefined datatype, with the operations that MPI defines for it.
struct Number {
  MPI_Datatype datatype;
  std::function<void(unsigned char*, Random&)> fill;  // one element
  std::vector<MPI_Op> ops;
  bool isComplex = false;
};

// Small whole numbers: sums and products of a few are exact in every type, in any order.
template <class T>
void fillNumber(unsigned char* to, Random& random) {
  const T value = static_cast<T>(static_cast<int>(random() % 3));
  std::memset(to, 0, sizeof value);  // long double has bytes that are no part of its value
  std::memcpy(to, &value, sizeof value < 16 ? sizeof value : 10);
}
template <class T>
void fillComplex(unsigned char* to, Random& random) {
  fillNumber<T>(to, random);
  fillNumber<T>(to + sizeof(T), random);
}
// MAXLOC and MINLOC on few values: ties are decided by the index.
template <class Value, class Index>
void fillPair(unsigned char* to, Random& random) {
  struct Pair {
    Value value;
    Index index;
  };
  std::memset(to, 0, sizeof(Pair));
  fillNumber<Value>(to, random);
  fillNumber<Index>(to + offsetof(Pair, index), random);
}

inline std::vector<Number> numbers() {
  const std::vector<MPI_Op> order = {MPI_MAX, MPI_MIN}, sums = {MPI_SUM, MPI_PROD};
  const std::vector<MPI_Op> truths = {MPI_LAND, MPI_LOR, MPI_LXOR}, bits = {MPI_BAND, MPI_BOR, MPI_BXOR},
                            pairs = {MPI_MAXLOC, MPI_MINLOC};
  const auto all = [](std::initializer_list<std::vector<MPI_Op>> lists) {
    std::vector<MPI_Op> joined;
    for (const auto& each : lists) joined.insert(joined.end(), each.begin(), each.end());
    return joined;
  };
  const auto integer = all({order, sums, truths, bits}), floating = all({order, sums}),
             address = all({order, sums, bits});
  return {{MPI_CHAR, fillNumber<signed char>, all({order, sums})},
          {MPI_SIGNED_CHAR, fillNumber<signed char>, integer},
          {MPI_UNSIGNED_CHAR, fillNumber<unsigned char>, integer},
          {MPI_SHORT, fillNumber<short>, integer},
          {MPI_UNSIGNED_SHORT, fillNumber<unsigned short>, integer},
          {MPI_INT, fillNumber<int>, integer},
          {MPI_UNSIGNED, fillNumber<unsigned>, integer},
          {MPI_LONG, fillNumber<long>, integer},
          {MPI_UNSIGNED_LONG, fillNumber<unsigned long>, integer},
          {MPI_LONG_LONG, fillNumber<long long>, integer},
          {MPI_UNSIGNED_LONG_LONG, fillNumber<unsigned long long>, integer},
          {MPI_INT8_T, fillNumber<std::int8_t>, integer},
          {MPI_UINT8_T, fillNumber<std::uint8_t>, integer},
          {MPI_INT16_T, fillNumber<std::int16_t>, integer},
          {MPI_UINT16_T, fillNumber<std::uint16_t>, integer},
          {MPI_INT32_T, fillNumber<std::int32_t>, integer},
          {MPI_UINT32_T, fillNumber<std::uint32_t>, integer},
          {MPI_INT64_T, fillNumber<std::int64_t>, integer},
          {MPI_UINT64_T, fillNumber<std::uint64_t>, integer},
          {MPI_INTEGER, fillNumber<int>, address},
          {MPI_FLOAT, fillNumber<float>, floating},
          {MPI_DOUBLE, fillNumber<double>, floating},
          {MPI_LONG_DOUBLE, fillNumber<long double>, floating},
          {MPI_REAL, fillNumber<float>, floating},
          {MPI_DOUBLE_PRECISION, fillNumber<double>, floating},
          {MPI_C_FLOAT_COMPLEX, fillComplex<float>, sums, true},
          {MPI_C_DOUBLE_COMPLEX, fillComplex<double>, sums, true},
          {MPI_C_LONG_DOUBLE_COMPLEX, fillComplex<long double>, sums, true},
          {MPI_COMPLEX, fillComplex<float>, sums, true},
          {MPI_DOUBLE_COMPLEX, fillComplex<double>, sums, true},
          {MPI_C_BOOL, [](unsigned char* to, Random& random) { *to = random() % 2; }, truths},
          {MPI_LOGICAL, [](unsigned char* to, Random& random) { fillNumber<int>(to, random), *to &= 1; }, truths},
          {MPI_BYTE, fillNumber<unsigned char>, bits},
          {MPI_AINT, fillNumber<MPI_Aint>, address},
          {MPI_OFFSET, fillNumber<MPI_Offset>, address},
          {MPI_COUNT, fillNumber<MPI_Count>, address},
          {MPI_FLOAT_INT, fillPair<float, int>, pairs},
          {MPI_DOUBLE_INT, fillPair<double, int>, pairs},
          {MPI_LONG_INT, fillPair<long, int>, pairs},
          {MPI_2INT, fillPair<int, int>, pairs},
          {MPI_SHORT_INT, fillPair<short, int>, pairs},
          {MPI_LONG_DOUBLE_INT, fillPair<long double, int>, pairs},
          {MPI_2REAL, fillPair<float, float>, pairs},
          {MPI_2DOUBLE_PRECISION, fillPair<double, double>, pairs},
          {MPI_2INTEGER, fillPair<int, int>, pairs}};
}

// Datatypes whose signature is four ints: ranks may mix them in one call.
inline std::vector<MPI_Datatype> fourInts() {
  std::vector<MPI_Datatype> made(7);
  const int lengths[] = {1, 3}, places[] = {5, 0}, twos[] = {2, 2};
  const MPI_Aint halves[] = {0, 8}, swapped[] = {8, 0};
  const MPI_Datatype ints[] = {MPI_INT, MPI_INT};
  MPI_Type_contiguous(4, MPI_INT, &made[0]);
  MPI_Type_vector(2, 2, 2, MPI_INT, &made[1]);               // without gaps
  MPI_Type_vector(2, 2, 5, MPI_INT, &made[2]);               // with one
  MPI_Type_indexed(2, lengths, places, MPI_INT, &made[3]);   // the last comes first
  MPI_Type_create_struct(2, twos, halves, ints, &made[4]);   // without gaps
  MPI_Type_create_struct(2, twos, swapped, ints, &made[5]);  // without gaps, and yet in another order
  MPI_Type_create_resized(made[0], -8, 40, &made[6]);        // far apart
  for (MPI_Datatype& each : made) MPI_Type_commit(&each);
  return made;
}

}  // namespace kolo::test
