// Vectors of accumulators, as wide as the instruction set that the including file is compiled for: loading, storing,
// widening, narrowing. Compiler vector types do the arithmetic, on any processor; only what they cannot say (masks,
// stores past the caches, float16) is in intrinsics. Included by reduce_kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "device/reducers.h"

namespace kolo::executor::KOLO_ISA_NAMESPACE {

#if defined(__AVX512BW__) && defined(__AVX512VL__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

using Byte = unsigned char;

template <class Lane, int kBytes>
struct VectorOf {
  typedef Lane type __attribute__((vector_size(kBytes)));
};
template <class Lane, int kBytes>
using VectorType = typename VectorOf<Lane, kBytes>::type;
template <int kBytes>
using Raw = VectorType<Byte, kBytes>;

// -------------------------------------------------------------------- memory

template <int kBytes>
KOLO_HD Raw<kBytes> load(const Byte* from) {
  Raw<kBytes> raw;
  __builtin_memcpy(&raw, from, kBytes);
  return raw;
}

template <int kBytes>
KOLO_HD void store(Byte* to, Raw<kBytes> raw) {
  __builtin_memcpy(to, &raw, kBytes);
}

// Past the caches, where the processor can. REQUIRES: to is a multiple of kBytes.
template <int kBytes>
KOLO_HD void stream(Byte* to, Raw<kBytes> raw) {
#if defined(__AVX512F__)
  if constexpr (kBytes == 64) return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)raw);
#endif
#if defined(__AVX__)
  if constexpr (kBytes == 32) return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)raw);
#endif
#if defined(__x86_64__)
  if constexpr (kBytes == 16) return _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)raw);
  if constexpr (kBytes == 8) {
    return _mm_stream_si64(reinterpret_cast<long long*>(to), device::bitCast<long long>(raw));
  }
  if constexpr (kBytes == 4) return _mm_stream_si32(reinterpret_cast<int*>(to), device::bitCast<int>(raw));
#else
  store<kBytes>(to, raw);
#endif
}

// Orders the stores past the caches before every later store, so that a thread that acquires one of those
// sees them too.
KOLO_HD void streamFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)
// The first `bytes` bytes; nothing beyond is touched, and the other lanes are 0.
template <int kBytes>
KOLO_HD Raw<kBytes> loadPart(const Byte* from, std::uint64_t bytes) {
  const std::uint64_t mask = (std::uint64_t{1} << bytes) - 1;
  if constexpr (kBytes == 64) return (Raw<64>)_mm512_maskz_loadu_epi8(mask, from);
  if constexpr (kBytes == 32) return (Raw<32>)_mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), from);
  if constexpr (kBytes == 16) return (Raw<16>)_mm_maskz_loadu_epi8(static_cast<__mmask16>(mask), from);
}
template <int kBytes>
KOLO_HD void storePart(Byte* to, Raw<kBytes> raw, std::uint64_t bytes) {
  const std::uint64_t mask = (std::uint64_t{1} << bytes) - 1;
  if constexpr (kBytes == 64) _mm512_mask_storeu_epi8(to, mask, (__m512i)raw);
  if constexpr (kBytes == 32) _mm256_mask_storeu_epi8(to, static_cast<__mmask32>(mask), (__m256i)raw);
  if constexpr (kBytes == 16) _mm_mask_storeu_epi8(to, static_cast<__mmask16>(mask), (__m128i)raw);
}
#endif

// --------------------------------------------------------------------- lanes

template <class T>
struct PartOf {
  using type = device::Accumulator<T>;
};
template <class T>
struct PartOf<device::Complex<T>> {
  using type = T;
};

// One vector of accumulators of T, and the bytes that its elements take in memory. A complex element is two lanes.
template <class T>
struct Lanes {
  using Scalar = device::Accumulator<T>;
  using Part = typename PartOf<T>::type;
  using Vector = VectorType<Part, kVectorBytes>;
  static constexpr int kElements = kVectorBytes / sizeof(Scalar);
  static constexpr int kBytes = kElements * sizeof(T);

  KOLO_HD static Vector splat(Scalar value) {
    Vector lanes{};
    for (int k = 0; k < kElements; ++k) {
      if constexpr (device::kIsComplex<T>) {
        lanes[2 * k] = value.re;
        lanes[2 * k + 1] = value.im;
      } else {
        lanes[k] = value;
      }
    }
    return lanes;
  }

  KOLO_HD static Vector widen(Raw<kBytes> raw) {
    if constexpr (std::is_same_v<T, device::Bool>) {
      return raw != 0 ? Vector{} + Byte{1} : Vector{};
    } else if constexpr (device::kIsFoldedInFloat<T>) {
      return widenFloats(raw);
    } else {
      return device::bitCast<Vector>(raw);
    }
  }

  KOLO_HD static Raw<kBytes> narrow(Vector lanes) {
    if constexpr (device::kIsFoldedInFloat<T>) {
      return narrowFloats(lanes);
    } else {
      return device::bitCast<Raw<kBytes>>(lanes);
    }
  }

  KOLO_HD static Vector divide(Vector lanes, std::uint32_t divisor) {
    if constexpr (std::is_floating_point_v<Part>) {
      return lanes / (Vector{} + static_cast<Part>(divisor));
    } else {
      Part part[kElements];
      __builtin_memcpy(part, &lanes, sizeof(lanes));
      for (int k = 0; k < kElements; ++k) part[k] = device::divide<T>(part[k], divisor);
      __builtin_memcpy(&lanes, part, sizeof(lanes));
      return lanes;
    }
  }

 private:
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>;
  using Words = VectorType<std::uint32_t, kVectorBytes>;

  // Each element's bits in a word, and back. The compiler's own conversion does it lane by lane, or nearly.
#if defined(__AVX512F__)
  KOLO_HD static Words toWords(Raw<kBytes> raw) {
    if constexpr (sizeof(T) == 2) {
      return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)raw);
    } else {
      return (Words)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)raw);
    }
  }
  KOLO_HD static Raw<kBytes> fromWords(Words words) {
    if constexpr (sizeof(T) == 2) {
      return (Raw<kBytes>)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)words);
    } else {
      return (Raw<kBytes>)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)words);
    }
  }
#elif defined(__AVX2__)
  KOLO_HD static Words toWords(Raw<kBytes> raw) {
    if constexpr (sizeof(T) == 2) {
      return (Words)_mm256_cvtepu16_epi32((__m128i)raw);
    } else {
      return (Words)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(device::bitCast<long long>(raw)));
    }
  }
  KOLO_HD static Raw<kBytes> fromWords(Words words) {
    // Packing works on halves of 128 bits: what comes out of each is the lower part of it.
    const __m256i halves = _mm256_packus_epi32((__m256i)words, (__m256i)words);
    const __m128i shorts = _mm_unpacklo_epi64(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    if constexpr (sizeof(T) == 2) {
      return (Raw<kBytes>)shorts;
    } else {
      return device::bitCast<Raw<kBytes>>(_mm_cvtsi128_si64(_mm_packus_epi16(shorts, shorts)));
    }
  }
#elif defined(__SSE2__)
  KOLO_HD static Words toWords(Raw<kBytes> raw) {
    const __m128i zero = _mm_setzero_si128();
    if constexpr (sizeof(T) == 2) {
      return (Words)_mm_unpacklo_epi16(_mm_cvtsi64_si128(device::bitCast<long long>(raw)), zero);
    } else {
      const __m128i shorts = _mm_unpacklo_epi8(_mm_cvtsi32_si128(device::bitCast<int>(raw)), zero);
      return (Words)_mm_unpacklo_epi16(shorts, zero);
    }
  }
  KOLO_HD static Raw<kBytes> fromWords(Words words) {
    // Packing saturates as signed numbers do, so 16 bits are made a small signed number first.
    const __m128i lanes = _mm_srai_epi32(_mm_slli_epi32((__m128i)words, 16), 16);
    const __m128i shorts = _mm_packs_epi32(lanes, lanes);
    if constexpr (sizeof(T) == 2) {
      return device::bitCast<Raw<kBytes>>(_mm_cvtsi128_si64(shorts));
    } else {
      return device::bitCast<Raw<kBytes>>(_mm_cvtsi128_si32(_mm_packus_epi16(shorts, shorts)));
    }
  }
#else
  KOLO_HD static Words toWords(Raw<kBytes> raw) {
    return __builtin_convertvector(device::bitCast<VectorType<Bits, kBytes>>(raw), Words);
  }
  KOLO_HD static Raw<kBytes> fromWords(Words words) {
    return device::bitCast<Raw<kBytes>>(__builtin_convertvector(words, VectorType<Bits, kBytes>));
  }
#endif

  KOLO_HD static Vector widenFloats(Raw<kBytes> raw) {
    [[maybe_unused]] constexpr bool kHalf = std::is_same_v<T, device::Float16>;
#if defined(__F16C__)
#if defined(__AVX512F__)
    if constexpr (kHalf && kVectorBytes == 64) return (Vector)_mm512_maskz_cvtph_ps(0xffff, (__m256i)raw);
#endif
    if constexpr (kHalf && kVectorBytes == 32) return (Vector)_mm256_cvtph_ps((__m128i)raw);
#endif
    return device::widenBits<T, Vector>(toWords(raw));
  }

  KOLO_HD static Raw<kBytes> narrowFloats(Vector lanes) {
    [[maybe_unused]] constexpr bool kHalf = std::is_same_v<T, device::Float16>;
#if defined(__F16C__)
#if defined(__AVX512F__)
    if constexpr (kHalf && kVectorBytes == 64) {
      return (Raw<kBytes>)_mm512_maskz_cvtps_ph(0xffff, (__m512)lanes, _MM_FROUND_TO_NEAREST_INT);
    }
#endif
    if constexpr (kHalf && kVectorBytes == 32) {
      return (Raw<kBytes>)_mm256_cvtps_ph((__m256)lanes, _MM_FROUND_TO_NEAREST_INT);
    }
#endif
    return fromWords(device::narrowBits<T, Words>(lanes));
  }
};

// Lane k of the result is lane (k & kAnd) ^ kXor.
template <std::size_t kAnd, std::size_t kXor, class Vector, std::size_t... kLane>
KOLO_HD Vector permute(Vector lanes, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(lanes, lanes, ((kLane & kAnd) ^ kXor)...);
}

// (a.re b.re - a.im b.im, a.re b.im + a.im b.re), with the roundings of the scalar expression: x - y is x + (-y).
template <class T>
KOLO_HD typename Lanes<T>::Vector multiplyComplex(typename Lanes<T>::Vector a, typename Lanes<T>::Vector b) {
  using L = Lanes<T>;
  using Vector = typename L::Vector;
  using Bits = device::SignedLanes<Vector>;
  constexpr std::make_index_sequence<2 * L::kElements> kLanes{};
  constexpr std::size_t kPair = ~std::size_t{1}, kAll = ~std::size_t{0};
  Bits sign{};
  for (int k = 0; k < L::kElements; ++k) sign[2 * k] = std::is_same_v<typename L::Part, double> ? INT64_MIN : INT32_MIN;
  const Vector first = permute<kPair, 0>(a, kLanes) * b;
  const Vector second = permute<kPair, 1>(a, kLanes) * permute<kAll, 1>(b, kLanes);
  return first + device::bitCast<Vector>(device::bitCast<Bits>(second) ^ sign);
}

template <class T, class Op>
KOLO_HD typename Lanes<T>::Vector combine(typename Lanes<T>::Vector a, typename Lanes<T>::Vector b) {
  if constexpr (device::kIsComplex<T>) {
    if constexpr (std::is_same_v<Op, device::Prod>) {
      return multiplyComplex<T>(a, b);
    } else {
      static_assert(std::is_same_v<Op, device::Sum>);
      return a + b;
    }
  } else {
    return Op::template apply<T>(a, b);
  }
}

}  // namespace kolo::executor::KOLO_ISA_NAMESPACE
