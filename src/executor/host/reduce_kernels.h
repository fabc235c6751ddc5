// The kernels, as text: each reduce_<isa>.cc defines KOLO_ISA_NAMESPACE, includes this once, and is compiled for its
// instruction set. Everything here lives in that namespace, and what is called outside it is always inlined, so that
// the linker cannot replace one file's code by another's.
//
// A range is folded in blocks of a few vectors: all sources of a block are loaded and folded in registers before
// anything is stored, so a destination may be a source.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/reducers.h"
#include "executor/host/cast_kernels.h"
#include "executor/host/reduce.h"
#include "executor/host/reduce_lanes.h"

namespace kolo::executor::KOLO_ISA_NAMESPACE {

using device::ReduceArgs;
using device::ReduceOp;

constexpr std::uint64_t kLine = 64;
// Shorter ranges are not worth aligning, and their lines are better left in the cache.
constexpr std::uint64_t kAlignFrom = 1024;

// ------------------------------------------------------------------- copying

// Lines from src to dst, past the caches. REQUIRES: dst begins a line.
template <int kLines>
KOLO_HD void streamLines(Byte* dst, const Byte* src) {
  constexpr int kVectors = kLines * static_cast<int>(kLine) / kVectorBytes;
  Raw<kVectorBytes> block[kVectors];
  for (std::ptrdiff_t k = 0; k < kVectors; ++k) block[k] = load<kVectorBytes>(src + k * kVectorBytes);
  for (std::ptrdiff_t k = 0; k < kVectors; ++k) stream<kVectorBytes>(dst + k * kVectorBytes, block[k]);
}

// Whole lines past the caches, the parts of lines at the ends through them. Four pages side by side, since a
// processor's prefetching of one page's lines does not reach the next page, nor fill the memory's channels.
inline void streamCopy(void* to, const void* from, std::size_t bytes) {
  auto* dst = static_cast<Byte*>(to);
  const auto* src = static_cast<const Byte*>(from);
  const std::uint64_t toLine = -reinterpret_cast<std::uintptr_t>(dst) % kLine;
  const std::uint64_t head = toLine < bytes ? toLine : bytes;
  if (head != 0) __builtin_memcpy(dst, src, head);
  std::uint64_t at = head;
  constexpr std::uint64_t kPage = 4096;
  for (; bytes - at >= 4 * kPage; at += 4 * kPage) {
    for (std::uint64_t line = at; line < at + kPage; line += 2 * kLine) {
      for (std::uint64_t page = 0; page < 4 * kPage; page += kPage) {
        __builtin_prefetch(src + line + page + 2 * kLine);
        __builtin_prefetch(src + line + page + 3 * kLine);
        streamLines<2>(dst + line + page, src + line + page);
      }
    }
  }
  for (; bytes - at >= kLine; at += kLine) streamLines<1>(dst + at, src + at);
  if (at < bytes) __builtin_memcpy(dst + at, src + at, bytes - at);
  streamFence();
}

// The fold of a single source: its bytes.
__attribute__((noinline)) inline void copyToAll(const ReduceArgs& args, std::uint64_t bytes) {
  for (int d = 0; d < args.dstCount; ++d) {
    if (args.dst[d] == args.src[0] || bytes == 0) continue;
    if (args.streaming) {
      streamCopy(args.dst[d], args.src[0], bytes);
    } else {
      __builtin_memcpy(args.dst[d], args.src[0], bytes);
    }
  }
}

// ------------------------------------------------------------------- folding

// Reductions that a ring or a two-shot of two ranks spends its time in.
template <class T, class Op>
constexpr bool kHot = std::is_same_v<Op, device::Sum> &&
                      (std::is_floating_point_v<T> || std::is_same_v<T, std::uint32_t> ||
                       std::is_same_v<T, device::Float16> || std::is_same_v<T, device::Bfloat16>);

// What is special about a kernel: kTwo has exactly two sources, whose addresses it keeps in registers; kScaled has a
// scale or a divisor, or both.
enum class Shape { kAny, kTwo, kScaled };

template <class T, class Op, Shape kShape>
class Fold {
 public:
  // Any range. Not inlined, like the following: a small kernel must not pay for the registers of a large one.
  __attribute__((noinline)) static void run(const ReduceArgs& args) {
    const std::uint64_t bytes = args.count * sizeof(T);
    if (bytes < kAlignFrom) return range(args, 0, bytes, false);
    // Whole elements up to the first destination's next line, so that the stores that follow do not straddle lines.
    std::uint64_t head = -reinterpret_cast<std::uintptr_t>(args.dst[0]) % kLine;
    if (head % sizeof(T) != 0) head = 0;
    if (head != 0) range(args, 0, head, false);
    range(args, head, bytes, args.streaming);
    if (args.streaming) streamFence();
  }

  // Less than one vector.
  __attribute__((noinline)) static void runSmall(const ReduceArgs& args) {
    if (args.count != 0) Fold(args).rest(0, args.count * sizeof(T));
  }

 private:
  using L = Lanes<T>;
  using Vector = typename L::Vector;
  using Scalar = device::Accumulator<T>;
  // Vectors in flight. Converting keeps a processor busy with one; several would only make these kernels large.
  static constexpr int kUnroll = device::kIsFoldedInFloat<T> && !kHot<T, Op> ? 1 : 4;
  // What is not folded in float32 is divided after the fold. Small integers are Averaged then, bools have no averages.
  static constexpr bool kIsDivided =
      !device::kIsFoldedInFloat<T> && !device::kIsSmallInteger<T> && !std::is_same_v<T, device::Bool>;

  KOLO_HD explicit Fold(const ReduceArgs& args)
      : args_(args), first_(static_cast<const Byte*>(args.src[0])),
        second_(kShape == Shape::kTwo ? static_cast<const Byte*>(args.src[1]) : nullptr), averaging_(args) {
    if constexpr (kShape == Shape::kScaled && !device::kIsAveraged<T>) {
      if (args.scaledSource >= 0) {
        T scale;
        __builtin_memcpy(&scale, args.scale, sizeof(T));
        scale_ = device::widen(scale);
        scaleLanes_ = L::splat(scale_);
      }
    }
  }

  // Bytes [at, end) of every source and destination: blocks, then vectors, then what is left. One copy of this is
  // enough.
  __attribute__((noinline)) static void range(const ReduceArgs& args, std::uint64_t at, std::uint64_t end,
                                              bool streaming) {
    const Fold fold(args);
    constexpr std::uint64_t kBlock = kUnroll * L::kBytes;
    for (; end - at >= kBlock; at += kBlock) fold.template block<kUnroll>(at, streaming);
    if constexpr (kUnroll > 1) {
      for (; end - at >= L::kBytes; at += L::kBytes) fold.template block<1>(at, false);
    }
    if (at < end) fold.rest(at, end - at);
  }

  template <int kVectors>
  KOLO_HD void block(std::uint64_t at, bool streaming) const {
    Vector acc[kVectors];
    for (int k = 0; k < kVectors; ++k) acc[k] = loadLanes(0, first_ + at + k * L::kBytes);
    if constexpr (kShape == Shape::kTwo) {
      for (int k = 0; k < kVectors; ++k) {
        acc[k] = combine<T, Op>(acc[k], loadLanes(1, second_ + at + k * L::kBytes));
      }
    } else {
      for (int s = 1; s < args_.srcCount; ++s) {
        const Byte* const from = static_cast<const Byte*>(args_.src[s]) + at;
        for (int k = 0; k < kVectors; ++k) acc[k] = combine<T, Op>(acc[k], loadLanes(s, from + k * L::kBytes));
      }
    }
    Raw<L::kBytes> out[kVectors];
    for (int k = 0; k < kVectors; ++k) out[k] = L::narrow(finish(acc[k]));
    for (int d = 0; d < args_.dstCount; ++d) {
      Byte* const to = static_cast<Byte*>(args_.dst[d]) + at;
      // A destination that is aligned otherwise than the first is written through the caches: to stream it, too, its
      // bytes would have to go through a buffer, which is a copy more.
      if (streaming && reinterpret_cast<std::uintptr_t>(to) % L::kBytes == 0) {
        for (int k = 0; k < kVectors; ++k) stream<L::kBytes>(to + k * L::kBytes, out[k]);
      } else {
        for (int k = 0; k < kVectors; ++k) store<L::kBytes>(to + k * L::kBytes, out[k]);
      }
    }
  }

  KOLO_HD Vector loadLanes(int source, const Byte* from) const {
    return scaled(source, L::widen(load<L::kBytes>(from)));
  }

  KOLO_HD Vector scaled(int source, Vector lanes) const {
    lanes = averaging_.load(args_, lanes, source);
    if constexpr (kShape == Shape::kScaled && !device::kIsAveraged<T>) {
      if (source == args_.scaledSource) {
        const Vector product = combine<T, device::Prod>(lanes, scaleLanes_);
        if constexpr (std::is_same_v<device::Accumulator<T>, T>) return product;
        return L::widen(L::narrow(product));
      }
    }
    return lanes;
  }

  KOLO_HD Vector finish(Vector acc) const {
    if constexpr (kShape == Shape::kScaled && kIsDivided) {
      if (args_.divisor > 1) return L::divide(acc, args_.divisor);
    }
    return averaging_.finish(args_, acc);
  }

#if defined(__AVX512BW__) && defined(__AVX512VL__)
  // Less than one vector, by masks.
  KOLO_HD void rest(std::uint64_t at, std::uint64_t bytes) const {
    Vector acc = loadRest(0, at, bytes);
    for (int s = 1; s < args_.srcCount; ++s) acc = combine<T, Op>(acc, loadRest(s, at, bytes));
    const Raw<L::kBytes> out = L::narrow(finish(acc));
    for (int d = 0; d < args_.dstCount; ++d) {
      storePart<L::kBytes>(static_cast<Byte*>(args_.dst[d]) + at, out, bytes);
    }
  }
  KOLO_HD Vector loadRest(int source, std::uint64_t at, std::uint64_t bytes) const {
    return scaled(source, L::widen(loadPart<L::kBytes>(static_cast<const Byte*>(args_.src[source]) + at, bytes)));
  }
#else
  // Less than one vector, element by element.
  KOLO_HD void rest(std::uint64_t at, std::uint64_t bytes) const {
    for (const std::uint64_t end = at + bytes; at < end; at += sizeof(T)) {
      Scalar acc = loadOne(0, at);
      for (int s = 1; s < args_.srcCount; ++s) acc = Op::template apply<T>(acc, loadOne(s, at));
      if constexpr (kShape == Shape::kScaled && kIsDivided) {
        if (args_.divisor > 1) acc = device::divide<T>(acc, args_.divisor);
      }
      acc = averaging_.finish(args_, acc);
      const T element = device::narrow<T>(acc);
      for (int d = 0; d < args_.dstCount; ++d) {
        __builtin_memcpy(static_cast<Byte*>(args_.dst[d]) + at, &element, sizeof(T));
      }
    }
  }
  KOLO_HD Scalar loadOne(int source, std::uint64_t at) const {
    T element;
    __builtin_memcpy(&element, static_cast<const Byte*>(args_.src[source]) + at, sizeof(T));
    Scalar value = device::widen(element);
    value = averaging_.load(args_, value, source);
    if constexpr (kShape == Shape::kScaled && !device::kIsAveraged<T>) {
      if (source == args_.scaledSource) return device::widen(device::narrow<T>(device::Prod::apply<T>(value, scale_)));
    }
    return value;
  }
#endif

  const ReduceArgs& args_;
  const Byte* const first_;
  const Byte* const second_;
  Scalar scale_{};
  Vector scaleLanes_{};
  [[no_unique_address]] device::Averaging<T, kShape == Shape::kScaled && device::kIsFoldedInFloat<T>> averaging_;
};

// ------------------------------------------------------------------ the table

// T is that of the scale and the divisor, which mind the sign; U, to which the fold itself is the same, has none.
template <class T, class U, class Op>
void reduce(const ReduceArgs& args) {
  if constexpr (std::is_same_v<Op, device::Sum>) {
    if constexpr (device::kIsSmallInteger<T>) {
      if (args.divisor > 1) return Fold<device::Averaged<T>, Op, Shape::kScaled>::run(args);
    }
    if (args.scaledSource >= 0 || args.divisor > 1) return Fold<T, Op, Shape::kScaled>::run(args);
  }
  if (args.srcCount == 1) return copyToAll(args, args.count * sizeof(T));
  if (args.count < Lanes<U>::kElements) return Fold<U, Op, Shape::kAny>::runSmall(args);
  if constexpr (kHot<U, Op>) {
    if (args.srcCount == 2) return Fold<U, Op, Shape::kTwo>::run(args);
  }
  Fold<U, Op, Shape::kAny>::run(args);
}

template <class T, ReduceOp kOp>
constexpr ReduceKernel kernelOf() {
  if constexpr (!device::isDefinedFor<T>(kOp)) {
    return nullptr;
  } else if constexpr (std::is_same_v<T, device::Bool>) {
    // Bools are folded as 0 and 1, of which the product, the minimum and the "and"s are one thing, and so on.
    constexpr bool kAnd =
        kOp == ReduceOp::kProd || kOp == ReduceOp::kMin || kOp == ReduceOp::kLogicalAnd || kOp == ReduceOp::kBitAnd;
    constexpr bool kXor = kOp == ReduceOp::kLogicalXor || kOp == ReduceOp::kBitXor;
    return &reduce<T, T,
                   std::conditional_t<kAnd, device::BitAnd, std::conditional_t<kXor, device::BitXor, device::Sum>>>;
  } else {
    using Op = device::OperationOf<kOp>;
    constexpr bool kOrdered = kOp == ReduceOp::kMax || kOp == ReduceOp::kMin;
    using U = typename std::conditional_t<std::is_integral_v<T> && !kOrdered, device::AccumulatorOf<T>,
                                          device::TypeTag<T>>::type;
    constexpr bool kSum = kOp == ReduceOp::kSum;
    return &reduce<std::conditional_t<kSum, T, U>, U, Op>;
  }
}

template <class T>
constexpr void fillRow(ReduceKernel (&row)[static_cast<int>(ReduceOp::kCount)]) {
  row[static_cast<int>(ReduceOp::kSum)] = kernelOf<T, ReduceOp::kSum>();
  row[static_cast<int>(ReduceOp::kProd)] = kernelOf<T, ReduceOp::kProd>();
  row[static_cast<int>(ReduceOp::kMax)] = kernelOf<T, ReduceOp::kMax>();
  row[static_cast<int>(ReduceOp::kMin)] = kernelOf<T, ReduceOp::kMin>();
  row[static_cast<int>(ReduceOp::kLogicalAnd)] = kernelOf<T, ReduceOp::kLogicalAnd>();
  row[static_cast<int>(ReduceOp::kLogicalOr)] = kernelOf<T, ReduceOp::kLogicalOr>();
  row[static_cast<int>(ReduceOp::kLogicalXor)] = kernelOf<T, ReduceOp::kLogicalXor>();
  row[static_cast<int>(ReduceOp::kBitAnd)] = kernelOf<T, ReduceOp::kBitAnd>();
  row[static_cast<int>(ReduceOp::kBitOr)] = kernelOf<T, ReduceOp::kBitOr>();
  row[static_cast<int>(ReduceOp::kBitXor)] = kernelOf<T, ReduceOp::kBitXor>();
}

constexpr HostIsa makeIsa(const char* name) {
  HostIsa isa{};
  isa.name = name;
  for (int datatype = 0; datatype < koloNumDatatypes; ++datatype) {
    device::dispatch(static_cast<koloDataType_t>(datatype),
                     [&isa, datatype](auto tag) { fillRow<typename decltype(tag)::type>(isa.kernel[datatype]); });
  }
  fillCasts(isa);
  isa.streamCopy = &streamCopy;
  return isa;
}

}  // namespace kolo::executor::KOLO_ISA_NAMESPACE
