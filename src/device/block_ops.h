// Copying and folding by the threads of one block together: the text that a CUDA block instantiates, and that the
// emulated block instantiates in tests. Consecutive threads touch consecutive packs of 16 bytes, and each has several
// packs in flight. The results are those of the host's kernels, bit for bit. No CUDA include.
//
// Team: `unsigned thread() const` is the calling thread's index, `unsigned threads() const` how many there are. All
// threads call with the same arguments; nothing here is a barrier, so what one thread has written the others see after
// the team's own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/reducers.h"

namespace kolo::device {

// All that loads and stores need to know of a team: which of its threads this is.
struct BlockIndex {
  unsigned index;
  unsigned count;
  KOLO_DEVICE unsigned thread() const { return index; }
  KOLO_DEVICE unsigned threads() const { return count; }
};

inline constexpr std::uint64_t kPackBytes = 16;
inline constexpr int kPacksInFlight = 4;
// In a fold each pack becomes as many accumulators as it has elements: of the small types one or two packs fill the registers.
template <class T>
inline constexpr int kFoldPacks = sizeof(T) >= 4 ? kPacksInFlight : sizeof(T) == 2 ? 2 : 1;

// Assigned as a whole, it moves by one access of 16 bytes. Through memcpy a GPU's compiler forgets the alignment and moves byte by byte.
struct alignas(kPackBytes) KOLO_MAY_ALIAS Pack {
  std::uint64_t words[2];
};

// How a range of bytes falls apart: [0, head) and [packs end, bytes) by elements, between them whole packs.
struct PackSplit {
  std::uint64_t head;
  std::uint64_t packs;
};

KOLO_HD std::uint64_t packOffset(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kPackBytes; }

// offset: the misalignment that all pointers share. No packs where whole elements do not reach a pack's boundary.
KOLO_HD PackSplit splitIntoPacks(std::uint64_t offset, std::uint64_t bytes, std::uint64_t elementBytes) {
  const std::uint64_t head = (kPackBytes - offset) % kPackBytes;
  if (head % elementBytes != 0 || head > bytes) return {bytes, 0};
  return {head, (bytes - head) / kPackBytes};
}

// The packs of a source that begin `shift` bytes after a pack's boundary: 0 in a source that is aligned as its destination is.
struct AlignedPacks {
  const Pack* packs;
  KOLO_HD Pack operator[](std::uint64_t i) const { return packs[i]; }
};
struct ShiftedPacks {
  const Pack* packs;   // the boundary before the first
  unsigned shift;      // 1 to 15
  KOLO_HD Pack operator[](std::uint64_t i) const {
    const Pack low = packs[i], high = packs[i + 1];
    const bool inFirstWord = shift < 8;
    const std::uint64_t first = inFirstWord ? low.words[0] : low.words[1];
    const std::uint64_t second = inFirstWord ? low.words[1] : high.words[0];
    const std::uint64_t third = inFirstWord ? high.words[0] : high.words[1];
    return {{funnel(first, second), funnel(second, third)}};
  }

 private:
  // Eight bytes out of sixteen; little-endian, as all machines are that this runs on.
  KOLO_HD std::uint64_t funnel(std::uint64_t low, std::uint64_t high) const {
    const unsigned bits = shift % 8 * 8;
    return low >> bits | high << 1 << (63 - bits);
  }
};

// As splitIntoPacks, for a copy from one misalignment to another: packs of the destination whose bytes lie in two packs of the source. Both
// of these lie in the source wholly, for nothing else may be read.
KOLO_HD PackSplit splitShifted(std::uint64_t dstOffset, std::uint64_t srcOffset, std::uint64_t bytes) {
  std::uint64_t head = (kPackBytes - dstOffset) % kPackBytes;
  const std::uint64_t shift = (srcOffset + head) % kPackBytes;
  if (head < shift) head += kPackBytes;
  const std::uint64_t around = head + kPackBytes - shift;   // the packs' share begins shift bytes before, and ends as many short of a pack
  return bytes < around + kPackBytes ? PackSplit{bytes, 0} : PackSplit{head, (bytes - around) / kPackBytes};
}

template <class Team, class Packs>
KOLO_DEVICE void copyPacks(const Team& team, Pack* to, const Packs& from, std::uint64_t count) {
  const std::uint64_t threads = team.threads();
  std::uint64_t at = team.thread();
  KOLO_ROLLED
  for (; at + (kPacksInFlight - 1) * threads < count; at += kPacksInFlight * threads) {
    Pack packs[kPacksInFlight];
    for (int k = 0; k < kPacksInFlight; ++k) packs[k] = from[at + k * threads];
    for (int k = 0; k < kPacksInFlight; ++k) to[at + k * threads] = packs[k];
  }
  KOLO_ROLLED
  for (; at < count; at += threads) to[at] = from[at];
}

// bytes from src to dst, which are the same or do not overlap. Whatever their misalignments, the middle moves by accesses of 16 bytes.
// streaming is a hint that this text has no portable way to follow: it is part of the interface that teams share.
template <class Team>
KOLO_DEVICE_CALL void blockCopy(const Team& team, void* dst, const void* src, std::uint64_t bytes,
                            [[maybe_unused]] bool streaming) {
  auto* const to = static_cast<unsigned char*>(dst);
  const auto* const from = static_cast<const unsigned char*>(src);
  const bool alike = packOffset(dst) == packOffset(src);
  const PackSplit split = alike ? splitIntoPacks(packOffset(dst), bytes, 1) : splitShifted(packOffset(dst), packOffset(src), bytes);
  const std::uint64_t thread = team.thread(), threads = team.threads();
  KOLO_ROLLED
  for (std::uint64_t i = thread; i < split.head; i += threads) to[i] = from[i];
  auto* const toPacks = reinterpret_cast<Pack*>(to + split.head);
  const unsigned char* const first = from + split.head;
  if (alike) {
    copyPacks(team, toPacks, AlignedPacks{reinterpret_cast<const Pack*>(first)}, split.packs);
  } else if (split.packs > 0) {
    const auto shift = static_cast<unsigned>(packOffset(first));
    copyPacks(team, toPacks, ShiftedPacks{reinterpret_cast<const Pack*>(first - shift), shift}, split.packs);
  }
  KOLO_ROLLED
  for (std::uint64_t i = split.head + split.packs * kPackBytes + thread; i < bytes; i += threads) to[i] = from[i];
}

// One reduction as a thread sees it. T: the element type; Op: an operation of reducers.h.
template <class T, class Op>
class BlockFold {
 public:
  KOLO_HD explicit BlockFold(const ReduceArgs& args) : args_(args), averaging_(args) {
    if constexpr (kMayScale) {
      if (args.scaledSource < 0) return;
      T scale;
      __builtin_memcpy(&scale, args.scale, sizeof(T));
      scale_ = widen(scale);
    }
  }

  // The misalignment that all pointers share, or -1.
  KOLO_HD int sharedOffset() const {
    const std::uint64_t offset = packOffset(args_.dst[0]);
    for (int d = 1; d < args_.dstCount; ++d) {
      if (packOffset(args_.dst[d]) != offset) return -1;
    }
    for (int s = 0; s < args_.srcCount; ++s) {
      if (packOffset(args_.src[s]) != offset) return -1;
    }
    return static_cast<int>(offset);
  }

  KOLO_DEVICE_CALL void element(std::uint64_t byte) const {
    Accumulator<T> acc = loadElement(0, byte);
    KOLO_ROLLED
    for (int s = 1; s < args_.srcCount; ++s) acc = Op::template apply<T>(acc, loadElement(s, byte));
    const T result = finish(acc);
    KOLO_ROLLED
    for (int d = 0; d < args_.dstCount; ++d) {
      __builtin_memcpy(static_cast<unsigned char*>(args_.dst[d]) + byte, &result, sizeof(T));
    }
  }

  // kPacks packs, the first at `byte` and the next ones `stride` bytes apart.
  template <int kPacks>
  KOLO_DEVICE void packs(std::uint64_t byte, std::uint64_t stride) const {
    Accumulator<T> acc[kPacks][kElements];
    loadPacks<kPacks>(
        0, byte, stride, [](Accumulator<T>& to, Accumulator<T> value) { to = value; }, acc);
    KOLO_ROLLED
    for (int s = 1; s < args_.srcCount; ++s) {
      loadPacks<kPacks>(
          s, byte, stride, [](Accumulator<T>& to, Accumulator<T> value) { to = Op::template apply<T>(to, value); },
          acc);
    }
    alignas(kPackBytes) T result[kPacks][kElements];
    for (int k = 0; k < kPacks; ++k) {
      for (int i = 0; i < kElements; ++i) result[k][i] = finish(acc[k][i]);
    }
    KOLO_ROLLED
    for (int d = 0; d < args_.dstCount; ++d) {
      for (int k = 0; k < kPacks; ++k) {
        void* const to = static_cast<unsigned char*>(args_.dst[d]) + byte + k * stride;
        __builtin_memcpy(__builtin_assume_aligned(to, kPackBytes), result[k], kPackBytes);
      }
    }
  }

 private:
  static constexpr int kElements = kPackBytes / sizeof(T);
  // Scale and divisor are for sums only. What is not folded in float32 is divided after the fold; small integers are
  // then Averaged, and bools have no averages.
  static constexpr bool kIsSum = std::is_same_v<Op, Sum>;
  static constexpr bool kMayScale = kIsSum && !kIsAveraged<T>;
  static constexpr bool kMayDivide =
      kIsSum && !kIsFoldedInFloat<T> && !kIsSmallInteger<T> && !std::is_same_v<T, Bool>;

  // Loads all packs of a source before it hands their values to merge(accumulator, value).
  template <int kPacks, class Merge>
  KOLO_HD void loadPacks(int source, std::uint64_t byte, std::uint64_t stride, Merge merge,
                         Accumulator<T> (&acc)[kPacks][kElements]) const {
    alignas(kPackBytes) T loaded[kPacks][kElements];
    for (int k = 0; k < kPacks; ++k) {
      const void* const from = static_cast<const unsigned char*>(args_.src[source]) + byte + k * stride;
      __builtin_memcpy(loaded[k], __builtin_assume_aligned(from, kPackBytes), kPackBytes);
    }
    for (int k = 0; k < kPacks; ++k) {
      for (int i = 0; i < kElements; ++i) merge(acc[k][i], scaled(source, widen(loaded[k][i])));
    }
  }
  KOLO_HD Accumulator<T> loadElement(int source, std::uint64_t byte) const {
    T loaded;
    __builtin_memcpy(&loaded, static_cast<const unsigned char*>(args_.src[source]) + byte, sizeof(T));
    return scaled(source, widen(loaded));
  }
  KOLO_HD Accumulator<T> scaled(int source, Accumulator<T> value) const {
    value = averaging_.load(args_, value, source);
    if constexpr (kMayScale) {
      if (source == args_.scaledSource) return widen(narrow<T>(Prod::apply<T>(value, scale_)));
    }
    return value;
  }
  KOLO_HD T finish(Accumulator<T> acc) const {
    if constexpr (kMayDivide) {
      if (args_.divisor > 1) acc = divide<T>(acc, args_.divisor);
    }
    return narrow<T>(averaging_.finish(args_, acc));
  }

  const ReduceArgs& args_;
  [[no_unique_address]] Averaging<T, kIsSum && kIsFoldedInFloat<T>> averaging_;
  Accumulator<T> scale_{};
};

// The whole range, by elements and packs.
template <class T, class Op, class Team>
KOLO_DEVICE void blockFold(const Team& team, const ReduceArgs& args) {
  const BlockFold<T, Op> fold(args);
  const std::uint64_t bytes = args.count * sizeof(T);
  const std::uint64_t thread = team.thread(), threads = team.threads();
  const int offset = fold.sharedOffset();
  PackSplit split{bytes, 0};
  if (offset >= 0) split = splitIntoPacks(static_cast<std::uint64_t>(offset), bytes, sizeof(T));
  const std::uint64_t tail = split.head + split.packs * kPackBytes, stride = threads * kPackBytes;
  KOLO_ROLLED
  for (std::uint64_t at = thread * sizeof(T); at < split.head; at += threads * sizeof(T)) fold.element(at);
  std::uint64_t at = thread;
  KOLO_ROLLED
  for (; at + (kFoldPacks<T> - 1) * threads < split.packs; at += kFoldPacks<T> * threads) {
    fold.template packs<kFoldPacks<T>>(split.head + at * kPackBytes, stride);
  }
  KOLO_ROLLED
  for (; at < split.packs; at += threads) fold.template packs<1>(split.head + at * kPackBytes, stride);
  KOLO_ROLLED
  for (std::uint64_t byte = tail + thread * sizeof(T); byte < bytes; byte += threads * sizeof(T)) fold.element(byte);
}

// What ReduceArgs describes. As on the host, scale and divisor are for kSum only, and a single source without them is
// copied.
template <class T, ReduceOp kOp, class Team>
KOLO_DEVICE void blockReduce(const Team& team, const ReduceArgs& args) {
  static_assert(isDefinedFor<T>(kOp));
  if (args.srcCount == 1 && args.scaledSource < 0 && args.divisor <= 1) {
    const std::uint64_t bytes = args.count * sizeof(T);
    KOLO_ROLLED
    for (int d = 0; d < args.dstCount; ++d) blockCopy(team, args.dst[d], args.src[0], bytes, args.streaming);
    return;
  }
  if constexpr (kOp == ReduceOp::kSum && kIsSmallInteger<T>) {
    if (args.divisor > 1) return blockFold<Averaged<T>, Sum>(team, args);
  }
  blockFold<T, typename ReducerOf<kOp>::Operation>(team, args);
}

}  // namespace kolo::device
