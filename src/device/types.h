// The element types: how each datatype is stored, what it is accumulated in, and how one becomes the other. No CUDA
// include, no host-only header: shared by all executors.
//
// Conversions are written once for a single element and for a vector of lanes (a compiler's vector type): U is a 32-bit
// unsigned integer or a vector of them, F a float or a vector as long. They are branch-free, so that both come out
// well, and do not depend on denormal floats being honoured (a program may have switched them off). They are always
// inlined: files compiled for different instruction sets must not share a copy.
//
// Thread safety: pure functions.
#pragma once

#include <kolo/kolo.h>

#include <cstdint>
#include <type_traits>

#include "device/host_device.h"

namespace kolo::device {

struct Float16 {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};
struct Float8E4m3 {
  std::uint8_t bits;
};
struct Float8E5m2 {
  std::uint8_t bits;
};
// Any non-zero byte is true; results are 0 or 1.
struct Bool {
  std::uint8_t bits;
};
template <class T>
struct Complex {
  T re;
  T im;
};
// An 8- or 16-bit integer as an average folds it: in float32, where the sums of up to 256 such integers are exact.
template <class T>
struct Averaged {
  T value;
};

static_assert(sizeof(Float16) == 2 && sizeof(Float8E4m3) == 1 && sizeof(Bool) == 1 && sizeof(Complex<double>) == 16);

template <class T>
inline constexpr bool kIsNarrowFloat = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16> ||
                                       std::is_same_v<T, Float8E4m3> || std::is_same_v<T, Float8E5m2>;
template <class T>
inline constexpr bool kIsFloat = kIsNarrowFloat<T> || std::is_floating_point_v<T>;
template <class T>
inline constexpr bool kIsComplex = std::is_same_v<T, Complex<float>> || std::is_same_v<T, Complex<double>>;
template <class T>
inline constexpr bool kIsSmallInteger = std::is_integral_v<T> && sizeof(T) <= 2;
template <class T>
inline constexpr bool kIsAveraged = false;
template <class T>
inline constexpr bool kIsAveraged<Averaged<T>> = true;
template <class T>
inline constexpr bool kIsFoldedInFloat = kIsNarrowFloat<T> || kIsAveraged<T>;

// What elements of T are accumulated in: float for the 8- and 16-bit floats, and for averages of 8- and 16-bit
// integers; the unsigned type of the same width for other integers, so that they wrap; 0 or 1 in a byte for bool; T
// itself otherwise.
template <class T, class = void>
struct AccumulatorOf {
  using type = T;
};
template <class T>
struct AccumulatorOf<T, std::enable_if_t<kIsFoldedInFloat<T>>> {
  using type = float;
};
template <class T>
struct AccumulatorOf<T, std::enable_if_t<std::is_integral_v<T>>> {
  using type = std::make_unsigned_t<T>;
};
template <>
struct AccumulatorOf<Bool, void> {
  using type = std::uint8_t;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

template <class To, class From>
KOLO_HD constexpr To bitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

// The smallest power of two that is not below a number, which is 1 or more.
KOLO_HD constexpr float powerAtLeast(float number) {
  return bitCast<float>((bitCast<std::uint32_t>(number) + 0x007fffffu) & 0x7f800000u);
}

// Whether numbers below 2^31 are below a limit: as signed ones, which every instruction set compares in one step.
template <class U>
KOLO_HD constexpr auto isBelow(U value, std::int32_t limit) {
  if constexpr (std::is_integral_v<U>) {
    return static_cast<std::int32_t>(value) < limit;
  } else {
    return bitCast<decltype(value == value)>(value) < limit;
  }
}

// The value of an integer of a magnitude below 2^24 as a float, exactly.
template <class F, class U>
KOLO_HD constexpr F smallToFloat(U value) {
  if constexpr (std::is_same_v<F, float>) {
    return static_cast<float>(static_cast<std::int32_t>(value));
  } else {
    using Signed = decltype(value == value);  // signed lanes: every instruction set converts those
    return __builtin_convertvector(bitCast<Signed>(value), F);
  }
}

// ------------------------------------------------------------------ to float

template <class F, class U>
KOLO_HD constexpr F float16ToFloat(U h) {
  const U magnitude = h & 0x7fffu;
  const U normal = (magnitude << 13) + (112u << 23);
  const U subnormal = bitCast<U>(smallToFloat<F>(magnitude) * 0x1p-24f);
  // What has the top exponent is infinite or not a number; the latter is made quiet, as processors do.
  const U infinity = (magnitude & 0u) + 0x7f800000u, quiet = (magnitude & 0u) + 0x7fc00000u;
  const U special = (magnitude << 13) | (isBelow(magnitude, 0x7c01) ? infinity : quiet);
  const U finite = isBelow(magnitude, 0x400) ? subnormal : normal;
  return bitCast<F>((isBelow(magnitude, 0x7c00) ? finite : special) | ((h & 0x8000u) << 16));
}

template <class F, class U>
KOLO_HD constexpr F bfloat16ToFloat(U b) {
  return bitCast<F>(b << 16);
}

// An E5M2 number is the upper half of a float16.
template <class F, class U>
KOLO_HD constexpr F float8E5m2ToFloat(U b) {
  return float16ToFloat<F>(b << 8);
}

template <class F, class U>
KOLO_HD constexpr F float8E4m3ToFloat(U b) {
  const U magnitude = b & 0x7fu;
  const U normal = (magnitude << 20) + (120u << 23);
  const U subnormal = bitCast<U>(smallToFloat<F>(magnitude) * 0x1p-9f);
  const U finite = isBelow(magnitude, 8) ? subnormal : normal;
  const U nan = (magnitude & 0u) + 0x7fc00000u;
  return bitCast<F>((magnitude == 0x7fu ? nan : finite) | ((b & 0x80u) << 24));
}

// ---------------------------------------- from float, rounded to nearest even

// Rounds the magnitude of a float to a format with kMantissa bits of mantissa and the given bias; out of range above,
// the result is just some value beyond that format's largest. Below its normal range the addition of a power of two
// puts the unit of the format's subnormal numbers into the last place of a float, and the processor rounds.
template <int kMantissa, int kBias, class F, class U>
KOLO_HD constexpr U roundMagnitude(U magnitude) {
  constexpr int kDrop = 23 - kMantissa;
  constexpr std::int32_t kSmallestNormal = (127 - kBias + 1) << 23;
  constexpr std::uint32_t kMagic = (127u + 24u - kBias - kMantissa) << 23;
  const U normal =
      (magnitude - ((127u - kBias) << 23) + ((1u << (kDrop - 1)) - 1u) + ((magnitude >> kDrop) & 1u)) >> kDrop;
  const F magic = bitCast<F>((magnitude & 0u) + kMagic);
  const U subnormal =
      bitCast<U>(bitCast<F>(isBelow(magnitude, kSmallestNormal) ? magnitude : (magnitude & 0u)) + magic) - kMagic;
  return isBelow(magnitude, kSmallestNormal) ? subnormal : normal;
}

template <class F, class U>
KOLO_HD constexpr U floatToFloat16(F value) {
  const U bits = bitCast<U>(value);
  const U magnitude = bits & 0x7fffffffu;
  const U rounded = roundMagnitude<10, 15, F, U>(magnitude);
  const U infinite = (bits & 0u) + 0x7c00u;
  const U nan = ((magnitude >> 13) & 0x3ffu) | 0x7e00u;
  const U finite = isBelow(magnitude, 0x477ff000) ? rounded : infinite;  // 65520 and above
  return (isBelow(magnitude, 0x7f800001) ? finite : nan) | ((bits >> 16) & 0x8000u);
}

template <class F, class U>
KOLO_HD constexpr U floatToBfloat16(F value) {
  const U bits = bitCast<U>(value);
  const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U nan = (bits >> 16) | 0x40u;
  return isBelow(bits & 0x7fffffffu, 0x7f800001) ? rounded : nan;
}

// No infinities: everything too large, infinite included, becomes 448.
template <class F, class U>
KOLO_HD constexpr U floatToFloat8E4m3(F value) {
  const U bits = bitCast<U>(value);
  const U magnitude = bits & 0x7fffffffu;
  const U rounded = roundMagnitude<3, 7, F, U>(magnitude);
  const U largest = (bits & 0u) + 0x7eu;
  const U nan = (bits & 0u) + 0x7fu;
  const U finite = isBelow(magnitude, 0x43e00000) ? rounded : largest;  // 448 and above
  return (isBelow(magnitude, 0x7f800001) ? finite : nan) | ((bits >> 24) & 0x80u);
}

// What is finite stays finite: above 57344 it becomes 57344.
template <class F, class U>
KOLO_HD constexpr U floatToFloat8E5m2(F value) {
  const U bits = bitCast<U>(value);
  const U magnitude = bits & 0x7fffffffu;
  const U rounded = roundMagnitude<2, 15, F, U>(magnitude);
  const U largest = (bits & 0u) + 0x7bu;
  const U infinite = (bits & 0u) + 0x7cu;
  const U nan = (bits & 0u) + 0x7eu;
  const U finite = isBelow(magnitude, 0x47600000) ? rounded : largest;  // 57344 and above
  const U number = magnitude == 0x7f800000u ? infinite : finite;
  return (isBelow(magnitude, 0x7f800001) ? number : nan) | ((bits >> 24) & 0x80u);
}

// ------------------------------------------------- integers of 8 and 16 bits

template <class T, class F, class U>
KOLO_HD constexpr F smallIntegerToFloat(U bits) {
  constexpr std::uint32_t kSign = std::is_signed_v<T> ? 1u << (8 * sizeof(T) - 1) : 0;
  return smallToFloat<F>((bits ^ kSign) - kSign);
}

// Truncated towards zero, modulo 2^bits.
template <class T, class F, class U>
KOLO_HD constexpr U floatToSmallInteger(F value) {
  constexpr std::uint32_t kMask = (1u << (8 * sizeof(T))) - 1;
  if constexpr (std::is_same_v<F, float>) {
    return static_cast<U>(static_cast<std::int32_t>(value)) & kMask;
  } else {
    using Signed = decltype(U{} == U{});
    return bitCast<U>(__builtin_convertvector(value, Signed)) & kMask;
  }
}

// --------------------------------------------------- by type, lanes or single

// Lanes of T, each zero-extended to 32 bits, as floats; and back.
template <class T, class F, class U>
KOLO_HD constexpr F widenBits(U bits) {
  static_assert(kIsFoldedInFloat<T>);
  if constexpr (kIsAveraged<T>) return smallIntegerToFloat<decltype(T::value), F>(bits);
  if constexpr (std::is_same_v<T, Float16>) return float16ToFloat<F>(bits);
  if constexpr (std::is_same_v<T, Bfloat16>) return bfloat16ToFloat<F>(bits);
  if constexpr (std::is_same_v<T, Float8E4m3>) return float8E4m3ToFloat<F>(bits);
  if constexpr (std::is_same_v<T, Float8E5m2>) return float8E5m2ToFloat<F>(bits);
}
template <class T, class U, class F>
KOLO_HD constexpr U narrowBits(F value) {
  static_assert(kIsFoldedInFloat<T>);
  if constexpr (kIsAveraged<T>) return floatToSmallInteger<decltype(T::value), F, U>(value);
  if constexpr (std::is_same_v<T, Float16>) return floatToFloat16<F, U>(value);
  if constexpr (std::is_same_v<T, Bfloat16>) return floatToBfloat16<F, U>(value);
  if constexpr (std::is_same_v<T, Float8E4m3>) return floatToFloat8E4m3<F, U>(value);
  if constexpr (std::is_same_v<T, Float8E5m2>) return floatToFloat8E5m2<F, U>(value);
}

#ifdef __CUDA_ARCH__
// A GPU has the 16-bit conversions as instructions; the bits are those of the text above, NaN payloads aside.
__device__ inline float widenByInstruction(Float16 element) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element.bits));
  return value;
}
__device__ inline float widenByInstruction(Float8E5m2 element) {
  return widenByInstruction(Float16{static_cast<std::uint16_t>(element.bits << 8)});
}
__device__ inline void narrowByInstruction(float value, Float16& element) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(element.bits) : "f"(value));
}
__device__ inline void narrowByInstruction(float value, Bfloat16& element) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(element.bits) : "f"(value));
}
// It reads either half of a register as a float16, and from sm_89 on makes two of those of two float8 numbers: words of
// such elements are not taken apart.
#if __CUDA_ARCH__ >= 890
inline constexpr bool kConvertsE4m3 = true;
#else
inline constexpr bool kConvertsE4m3 = false;
#endif
template <class T>
inline constexpr bool kWidensWords = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16> ||
                                     (std::is_same_v<T, Float8E4m3> && kConvertsE4m3);
template <class T>
__device__ inline void widenWord(std::uint32_t word, float* values) {
  if constexpr (std::is_same_v<T, Float16>) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }" : "=f"(values[0]) : "r"(word));
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high; }" : "=f"(values[1]) : "r"(word));
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    values[0] = bitCast<float>(word << 16);
    values[1] = bitCast<float>(word & 0xffff0000u);
  } else {
    std::uint32_t low, high;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }"
        : "=r"(low), "=r"(high)
        : "r"(word));
    widenWord<Float16>(low, values);
    widenWord<Float16>(high, values + 2);
  }
}
#if __CUDA_ARCH__ >= 890
__device__ inline void narrowPair(const float* values, Float8E4m3* pair) {
  std::uint16_t bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(values[1]), "f"(values[0]));
  pair[0].bits = static_cast<std::uint8_t>(bits);
  pair[1].bits = static_cast<std::uint8_t>(bits >> 8);
}
#endif
#endif

// One element as it is accumulated, and one accumulator as it is stored.
template <class T>
KOLO_HD constexpr Accumulator<T> widen(T element) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, Float8E5m2>) return widenByInstruction(element);
#endif
  if constexpr (kIsNarrowFloat<T>) {
    return widenBits<T, float>(std::uint32_t{element.bits});
  } else if constexpr (kIsAveraged<T>) {
    return static_cast<float>(element.value);
  } else if constexpr (std::is_same_v<T, Bool>) {
    return element.bits != 0 ? 1 : 0;
  } else {
    return static_cast<Accumulator<T>>(element);
  }
}
template <class T>
KOLO_HD constexpr T narrow(Accumulator<T> value) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>) {
    T element{};
    narrowByInstruction(value, element);
    return element;
  }
#endif
  if constexpr (kIsNarrowFloat<T>) {
    return T{static_cast<decltype(T::bits)>(narrowBits<T, std::uint32_t>(value))};
  } else if constexpr (kIsAveraged<T>) {
    return T{static_cast<decltype(T::value)>(static_cast<std::int32_t>(value))};
  } else if constexpr (std::is_same_v<T, Bool>) {
    return Bool{value};
  } else {
    return static_cast<T>(value);
  }
}

// The elements of a pack: as many at a time as the processor converts.
template <class T, int kCount>
KOLO_HD constexpr void widenAll(const T (&elements)[kCount], Accumulator<T> (&values)[kCount]) {
#ifdef __CUDA_ARCH__
  if constexpr (kWidensWords<T>) {
    constexpr int kInWord = sizeof(std::uint32_t) / sizeof(T);
    for (int i = 0; i < kCount; i += kInWord) {
      std::uint32_t word;
      __builtin_memcpy(&word, elements + i, sizeof word);
      widenWord<T>(word, values + i);
    }
  } else
#endif
    for (int i = 0; i < kCount; ++i) values[i] = widen(elements[i]);
}
template <class T, int kCount>
KOLO_HD constexpr void narrowAll(const Accumulator<T> (&values)[kCount], T (&elements)[kCount]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (std::is_same_v<T, Float8E4m3>) {
    for (int i = 0; i < kCount; i += 2) narrowPair(values + i, elements + i);
  } else
#endif
    for (int i = 0; i < kCount; ++i) elements[i] = narrow<T>(values[i]);
}

// ------------------------------------------------------------------ datatypes

template <class T>
struct TypeTag {
  using type = T;
};

// Calls functor(TypeTag<T>{}) with the type of a datatype and returns what it returns. An unknown datatype is the
// caller's mistake to have ruled out; it reaches the functor as float32.
template <class Functor>
constexpr decltype(auto) dispatch(koloDataType_t datatype, Functor&& functor) {
  switch (datatype) {
    case koloInt8: return functor(TypeTag<std::int8_t>{});
    case koloUint8: return functor(TypeTag<std::uint8_t>{});
    case koloInt16: return functor(TypeTag<std::int16_t>{});
    case koloUint16: return functor(TypeTag<std::uint16_t>{});
    case koloInt32: return functor(TypeTag<std::int32_t>{});
    case koloUint32: return functor(TypeTag<std::uint32_t>{});
    case koloInt64: return functor(TypeTag<std::int64_t>{});
    case koloUint64: return functor(TypeTag<std::uint64_t>{});
    case koloFloat16: return functor(TypeTag<Float16>{});
    case koloBfloat16: return functor(TypeTag<Bfloat16>{});
    case koloFloat8e4m3: return functor(TypeTag<Float8E4m3>{});
    case koloFloat8e5m2: return functor(TypeTag<Float8E5m2>{});
    case koloFloat64: return functor(TypeTag<double>{});
    case koloBool: return functor(TypeTag<Bool>{});
    case koloComplex64: return functor(TypeTag<Complex<float>>{});
    case koloComplex128: return functor(TypeTag<Complex<double>>{});
    case koloFloat32:
    case koloNumDatatypes: break;
  }
  return functor(TypeTag<float>{});
}

}  // namespace kolo::device
