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

#include "device/packs.h"
#include "device/reducers.h"

namespace kolo::device {

// All that loads and stores need to know of a team: which of its threads this is.
struct BlockIndex {
  unsigned index;
  unsigned count;
  KOLO_DEVICE unsigned thread() const { return index; }
  KOLO_DEVICE unsigned threads() const { return count; }
};

inline constexpr int kPacksInFlight = 4;
// How a fold goes through memory. Each pack becomes as many accumulators as it has elements: of the small types few
// packs fill the registers. `together`: sources whose packs are loaded before the first of them is folded, so that
// loads from so many peers wait for each other once.
struct FoldShape {
  int packs;
  int together;
};
template <class T, class Op>
KOLO_HD constexpr FoldShape foldShape() {
  if (sizeof(T) >= 4) return {kPacksInFlight, 4};
  const bool isSum = std::is_same_v<Op, Sum>;  // the others take more registers for what lies between
  if (sizeof(T) == 2) return {isSum ? 4 : 2, 4};
  return {1, isSum ? 8 : 4};
}

// The bytes outside the packs.
template <class Team>
KOLO_DEVICE void copyEnds(const Team& team, unsigned char* to, const unsigned char* from, std::uint64_t bytes,
                          const PackSplit& split) {
  const std::uint64_t threads = team.threads();
  KOLO_ROLLED
  for (std::uint64_t i = team.thread(); i < split.head; i += threads) to[i] = from[i];
  KOLO_ROLLED
  for (std::uint64_t i = split.packsEnd() + team.thread(); i < bytes; i += threads) to[i] = from[i];
}

// The packs, which load(address) gives.
template <class Team, class Load>
KOLO_DEVICE void copyPacks(const Team& team, unsigned char* to, const unsigned char* from, const PackSplit& split,
                           Load load) {
  const std::uint64_t stride = team.threads() * kPackBytes, end = split.packsEnd();
  std::uint64_t byte = split.head + team.thread() * kPackBytes;
  KOLO_ROLLED
  for (; byte + (kPacksInFlight - 1) * stride < end; byte += kPacksInFlight * stride) {
    Pack packs[kPacksInFlight];
    for (int k = 0; k < kPacksInFlight; ++k) packs[k] = load(from + byte + k * stride);
    for (int k = 0; k < kPacksInFlight; ++k) storePack(to + byte + k * stride, packs[k]);
  }
  KOLO_ROLLED
  for (; byte < end; byte += stride) storePack(to + byte, load(from + byte));
}

// A function of its own, for it takes more registers, which a GPU's function saves for its caller.
template <class Team>
KOLO_DEVICE_CALL void copyShifted(const Team& team, unsigned char* to, const unsigned char* from, std::uint64_t bytes) {
  const PackSplit split = splitIntoPacks(packOffset(to), bytes, 1, kPackBytes);
  copyEnds(team, to, from, bytes, split);
  copyPacks(team, to, from, split, [](const unsigned char* at) { return loadShifted(at); });
}

// bytes from src to dst, which are the same or do not overlap. Whatever their misalignments, the middle moves by
// accesses of 16 bytes. streaming is a hint that this text has no portable way to follow: it is part of the interface
// that teams share.
template <class Team>
KOLO_DEVICE_CALL void blockCopy(const Team& team, void* dst, const void* src, std::uint64_t bytes,
                                [[maybe_unused]] bool streaming) {
  auto* const to = static_cast<unsigned char*>(dst);
  const auto* const from = static_cast<const unsigned char*>(src);
  if (packOffset(to) != packOffset(from)) return copyShifted(team, to, from, bytes);
  const PackSplit split = splitIntoPacks(packOffset(to), bytes, 1, 0);
  copyEnds(team, to, from, bytes, split);
  copyPacks(team, to, from, split, [](const unsigned char* at) { return loadPack(at); });
}

// Whether a fold is nothing but its operation: no source is scaled or weighted, and nothing is divided.
KOLO_HD bool isPlain(const ReduceArgs& args) {
  return args.scaledSource < 0 && args.divisor <= 1 && args.weights == nullptr;
}

// One reduction as a thread sees it. T: the element type; Op: an operation of reducers.h. kPlain: isPlain(args), so
// that no element asks for a scale, a weight or a divisor. Its arguments are a copy, which no store can change: a
// compiler reads what it has by reference anew after each.
template <class T, class Op, bool kPlain = false>
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

  // Whether all pointers have the same misalignment.
  KOLO_HD bool isAligned() const {
    const std::uint64_t offset = packOffset(args_.dst[0]);
    std::uint64_t differ = 0;
    KOLO_ROLLED
    for (int d = 1; d < args_.dstCount; ++d) differ |= packOffset(args_.dst[d]) ^ offset;
    KOLO_ROLLED
    for (int s = 0; s < args_.srcCount; ++s) differ |= packOffset(args_.src[s]) ^ offset;
    return differ == 0;
  }

  KOLO_HD void element(std::uint64_t byte) const {
    Accumulator<T> acc = load(0, byte);
    KOLO_ROLLED
    for (int s = 1; s < args_.srcCount; ++s) acc = Op::template apply<T>(acc, load(s, byte));
    const T result = finish(acc);
    KOLO_ROLLED
    for (int d = 0; d < args_.dstCount; ++d) storeElement(static_cast<unsigned char*>(args_.dst[d]) + byte, result);
  }

  // kPacks packs, the first at `byte` and the next ones `stride` bytes apart, of kTogether sources at a time. kShifted:
  // at some of the pointers these do not begin at a pack's boundary.
  template <bool kShifted, int kPacks, int kTogether>
  KOLO_DEVICE void packs(std::uint64_t byte, std::uint64_t stride) const {
    Accumulator<T> acc[kPacks][kElements];
    for (int k = 0; k < kPacks; ++k) {
      for (int i = 0; i < kElements; ++i) acc[k][i] = nothing();
    }
    KOLO_ROLLED
    for (int first = 0, left = args_.srcCount; left > 0; first += kTogether, left -= kTogether) {
      Quarters loaded[kTogether][kPacks];
      KOLO_UNROLLED
      for (int j = 0; j < kTogether; ++j) {
        if (j < left) loadPacks<kShifted, kPacks>(first + j, byte, stride, loaded[j]);
      }
      KOLO_UNROLLED
      for (int j = 0; j < kTogether; ++j) {
        if (j < left) foldPacks<kPacks>(first + j, loaded[j], acc);
      }
    }
    Pack result[kPacks];
    for (int k = 0; k < kPacks; ++k) {
      T elements[kElements];
      for (int i = 0; i < kElements; ++i) acc[k][i] = finished(acc[k][i]);
      narrowAll(acc[k], elements);
      __builtin_memcpy(&result[k], elements, kPackBytes);
    }
    KOLO_ROLLED
    for (int d = 0; d < args_.dstCount; ++d) {
      unsigned char* const to = static_cast<unsigned char*>(args_.dst[d]) + byte;
      if (!kShifted || packOffset(to) == 0) {
        for (int k = 0; k < kPacks; ++k) storePack(to + k * stride, result[k]);
      } else {
        for (int k = 0; k < kPacks; ++k) storeShifted(to + k * stride, result[k]);
      }
    }
  }

 private:
  static constexpr int kElements = kPackBytes / sizeof(T);
  // Scale and divisor are for sums only. What is not folded in float32 is divided after the fold; small integers are
  // then Averaged, and bools have no averages.
  static constexpr bool kHasTerms = std::is_same_v<Op, Sum> && !kPlain;
  static constexpr bool kMayScale = kHasTerms && !kIsAveraged<T>;
  static constexpr bool kMayDivide =
      kHasTerms && !kIsFoldedInFloat<T> && !kIsSmallInteger<T> && !std::is_same_v<T, Bool>;

  template <bool kShifted, int kPacks>
  KOLO_HD void loadPacks(int source, std::uint64_t byte, std::uint64_t stride, Quarters (&loaded)[kPacks]) const {
    const unsigned char* const from = static_cast<const unsigned char*>(args_.src[source]) + byte;
    if (!kShifted || packOffset(from) == 0) {
      for (int k = 0; k < kPacks; ++k) loaded[k] = loadQuarters(from + k * stride);
    } else {
      for (int k = 0; k < kPacks; ++k) loaded[k] = bitCast<Quarters>(loadShifted(from + k * stride));
    }
  }
  template <int kPacks>
  KOLO_HD void foldPacks(int source, const Quarters (&loaded)[kPacks], Accumulator<T> (&acc)[kPacks][kElements]) const {
    for (int k = 0; k < kPacks; ++k) {
      T elements[kElements];
      Accumulator<T> values[kElements];
      __builtin_memcpy(elements, &loaded[k], kPackBytes);
      widenAll(elements, values);
      for (int i = 0; i < kElements; ++i) values[i] = scaled(source, values[i]);
      if (!kHasNothing && source == 0) {
        for (int i = 0; i < kElements; ++i) acc[k][i] = values[i];
      } else {
        for (int i = 0; i < kElements; ++i) acc[k][i] = Op::template apply<T>(acc[k][i], values[i]);
      }
    }
  }
  // What a fold begins with. A sum begins with what changes no bit of any number, and so needs no first source: of
  // floating-point numbers this is -0, for 0 would make 0 of -0.
  static constexpr bool kHasNothing = std::is_same_v<Op, Sum>;
  KOLO_HD static constexpr Accumulator<T> nothing() {
    if constexpr (kIsComplex<T>) return {-0.0f, -0.0f};
    else if constexpr (std::is_floating_point_v<Accumulator<T>>) return -0.0f;
    else return {};
  }
  KOLO_HD Accumulator<T> load(int source, std::uint64_t byte) const {
    return scaled(source, widen(loadElement<T>(static_cast<const unsigned char*>(args_.src[source]) + byte)));
  }
  KOLO_HD Accumulator<T> scaled(int source, Accumulator<T> value) const {
    value = averaging_.load(args_, value, source);
    if constexpr (kMayScale) {
      if (source == args_.scaledSource) return widen(narrow<T>(Prod::apply<T>(value, scale_)));
    }
    return value;
  }
  KOLO_HD Accumulator<T> finished(Accumulator<T> acc) const {
    if constexpr (kMayDivide) {
      if (args_.divisor > 1) acc = divide<T>(acc, args_.divisor);
    }
    return averaging_.finish(args_, acc);
  }
  KOLO_HD T finish(Accumulator<T> acc) const { return narrow<T>(finished(acc)); }

  const ReduceArgs args_;
  [[no_unique_address]] Averaging<T, kHasTerms && kIsFoldedInFloat<T>> averaging_;
  Accumulator<T> scale_{};
};

// What is in no pack, by elements: fewer than a few packs hold. A function of its own keeps its registers apart.
template <class T, class Op, class Team>
KOLO_DEVICE_CALL void foldEnds(const Team& team, const ReduceArgs& args, const PackSplit& split) {
  const BlockFold<T, Op> fold(args);
  const std::uint64_t within = split.packs * kPackBytes, outside = args.count * sizeof(T) - within;
  KOLO_ROLLED
  for (std::uint64_t at = team.thread() * sizeof(T); at < outside; at += team.threads() * sizeof(T)) {
    fold.element(at < split.head ? at : at + within);
  }
}

// Pointers of different misalignments. The packs are aligned in the first destination, where its elements allow it; a
// source that is not is read in pairs of packs, so that there has to be one more on either side. In place, threads so
// read what others may have stored already, and make no use of it.
template <class T, class Op, class Team>
KOLO_DEVICE_CALL void foldShifted(const Team& team, const ReduceArgs& args) {
  constexpr int kPacks = sizeof(T) >= 4 ? 2 : 1;  // each is two loads
  const PackSplit split = splitIntoPacks(packOffset(args.dst[0]), args.count * sizeof(T), sizeof(T), kPackBytes);
  foldEnds<T, Op>(team, args, split);
  const BlockFold<T, Op> fold(args);
  const std::uint64_t stride = team.threads() * kPackBytes, end = split.packsEnd();
  KOLO_ROLLED
  for (std::uint64_t byte = split.head + team.thread() * kPackBytes; byte < end; byte += kPacks * stride) {
    const std::uint64_t next = byte + (kPacks - 1) * stride < end ? stride : 0;  // 0: the last one twice
    fold.template packs<true, kPacks, 1>(byte, next);
  }
}

// Pointers of one misalignment, by elements and packs.
template <class T, class Op, bool kPlain, int kPacks, int kTogether, class Team>
KOLO_DEVICE void foldAligned(const Team& team, const ReduceArgs& args, const PackSplit& split) {
  const BlockFold<T, Op, kPlain> fold(args);
  if (split.head > 0 || split.packsEnd() < args.count * sizeof(T)) foldEnds<T, Op>(team, args, split);
  const std::uint64_t stride = team.threads() * kPackBytes, end = split.packsEnd();
  std::uint64_t byte = split.head + team.thread() * kPackBytes;
  KOLO_ROLLED
  for (; byte + (kPacks - 1) * stride < end; byte += kPacks * stride) {
    fold.template packs<false, kPacks, kTogether>(byte, stride);
  }
  KOLO_ROLLED
  for (; byte < end; byte += stride) fold.template packs<false, 1, kTogether>(byte, stride);
}
// Sums that scale, weigh or divide. A function of its own keeps its registers from the plain ones.
template <class T, class Team>
KOLO_DEVICE_CALL void foldWithTerms(const Team& team, const ReduceArgs& args, const PackSplit& split) {
  foldAligned<T, Sum, false, foldShape<T, Max>().packs, 1>(team, args, split);
}

// The whole range.
template <class T, class Op, class Team>
KOLO_DEVICE void blockFold(const Team& team, const ReduceArgs& args) {
  const std::uint64_t offset = packOffset(args.dst[0]);
  if (!BlockFold<T, Op, true>(args).isAligned() || (kPackBytes - offset) % kPackBytes % sizeof(T) != 0)
    return foldShifted<T, Op>(team, args);
  const PackSplit split = splitIntoPacks(offset, args.count * sizeof(T), sizeof(T), 0);
  if constexpr (std::is_same_v<Op, Sum>) {
    if (!isPlain(args)) return foldWithTerms<T>(team, args, split);
  }
  constexpr FoldShape kShape = foldShape<T, Op>();
  if constexpr (!kIsAveraged<T>) foldAligned<T, Op, true, kShape.packs, kShape.together>(team, args, split);
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
  blockFold<T, OperationOf<kOp>>(team, args);
}

}  // namespace kolo::device
