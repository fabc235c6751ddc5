// How elements are divided among ranks, channels and chunks: pure index arithmetic.
#pragma once

#include <cstdint>

namespace kolo::device {

// Elements [begin, begin + count).
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

// Divisions of 64 bits are subroutines on a GPU: there numbers below 2^32 are divided as such.
constexpr std::uint64_t quotient(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
#endif
  return a / b;
}
constexpr std::uint64_t remainder(std::uint64_t a, std::uint64_t b) { return a - quotient(a, b) * b; }
constexpr std::uint64_t divideUp(std::uint64_t a, std::uint64_t b) { return quotient(a + b - 1, b); }

// Part i of n of `count` elements, cut at multiples of `grain` (64 bytes' worth, say) so that parts stay aligned. Part
// sizes differ by at most one grain; parts at the end may be empty.
constexpr Range alignedPart(std::uint64_t count, int n, int i, std::uint64_t grain) {
  const std::uint64_t grains = divideUp(count, grain);
  const std::uint64_t parts = static_cast<std::uint64_t>(n), at = static_cast<std::uint64_t>(i);
  const std::uint64_t base = quotient(grains, parts), left = grains - base * parts;
  const std::uint64_t first = base * at + (at < left ? at : left);
  const std::uint64_t last = first + base + (at < left ? 1 : 0);
  const std::uint64_t begin = first * grain < count ? first * grain : count;
  const std::uint64_t end = last * grain < count ? last * grain : count;
  return {begin, end - begin};
}

// Part i of n as tinygrad's ring allreduce cuts it: by the largest factor of {32, 16, 8, 4, 2} that divides the count,
// the first parts one factor longer. (It keeps every part a multiple of the factor, and the first longest.)
constexpr Range factoredPart(std::uint64_t count, int n, int i) {
  std::uint64_t factor = 32;
  while (factor > 1 && (count & (factor - 1)) != 0) factor /= 2;
  return alignedPart(count, n, i, factor);
}

// Chunk c of `count` elements, `chunk` at a time.
constexpr Range chunkOf(std::uint64_t count, std::uint64_t chunk, std::uint64_t c) {
  const std::uint64_t begin = c * chunk < count ? c * chunk : count;
  return {begin, count - begin < chunk ? count - begin : chunk};
}

// The rank after r on a ring of n.
constexpr int nextRank(int r, int n) { return r + 1 == n ? 0 : r + 1; }

// Rank r + d on a ring of n.
constexpr int ringRank(int r, int d, int n) {
  const int at = (r + d) % n;
  return at < 0 ? at + n : at;
}

}  // namespace kolo::device
