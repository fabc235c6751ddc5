// The binary operations, on accumulators, for all executors. The meaning is that of the comment above koloRedOp_t in
// kolo.h.
//
// Each operation is a struct with apply<T>(a, b), where T is the element type and a and b are accumulators of T, or
// vectors of them (complex only as single elements). The order of the operands does not matter to a bit, not even for
// min and max of zeros of either sign and of NaNs; only which NaN a sum or a product of NaNs returns is open.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <tuple>

#include "device/reduce_args.h"
#include "device/types.h"

namespace kolo::device {

// Signed integers as wide as the lanes of A: what comparing vectors yields, or one integer for one number.
template <class A, class = void>
struct SignedLanesOf {
  using type = decltype(A{} == A{});
};
template <class A>
struct SignedLanesOf<A, std::enable_if_t<std::is_integral_v<A>>> {
  using type = std::make_signed_t<A>;
};
template <>
struct SignedLanesOf<float, void> {
  using type = std::int32_t;
};
template <>
struct SignedLanesOf<double, void> {
  using type = std::int64_t;
};
template <class A>
using SignedLanes = typename SignedLanesOf<A>::type;

// The larger (or smaller) of two floating-point values, by their bit patterns: with the lower bits of negative ones
// inverted these are ordered as signed integers are, -0 below +0. If either is a NaN, the result is the one quiet NaN.
template <class T, bool kLarger, class A>
KOLO_HD constexpr A pickFloat(A a, A b) {
  using Lanes = SignedLanes<A>;
  using Word = std::conditional_t<std::is_same_v<T, double>, std::int64_t, std::int32_t>;
  constexpr int kTop = static_cast<int>(8 * sizeof(Word)) - 1;
  constexpr Word kMagnitude = static_cast<Word>(~(std::make_unsigned_t<Word>{1} << kTop));
  constexpr Word kInfinite = sizeof(Word) == 8 ? static_cast<Word>(0x7ff0000000000000) : static_cast<Word>(0x7f800000);
  constexpr Word kNan = sizeof(Word) == 8 ? static_cast<Word>(0x7ff8000000000000) : static_cast<Word>(0x7fc00000);
  const Lanes x = bitCast<Lanes>(a), y = bitCast<Lanes>(b);
  const Lanes orderX = x ^ ((x >> kTop) & kMagnitude), orderY = y ^ ((y >> kTop) & kMagnitude);
  const Lanes picked = (kLarger ? orderX > orderY : orderX < orderY) ? x : y;
  const Lanes nan = (x & Word{0}) + kNan;
  const Lanes checked = (x & kMagnitude) > kInfinite ? nan : picked;
  return bitCast<A>((y & kMagnitude) > kInfinite ? nan : checked);
}

template <class T, bool kLarger, class A>
KOLO_HD constexpr A pick(A a, A b) {
  if constexpr (kIsFloat<T>) {
    return pickFloat<T, kLarger>(a, b);
  } else if constexpr (std::is_signed_v<T>) {
    const SignedLanes<A> x = bitCast<SignedLanes<A>>(a), y = bitCast<SignedLanes<A>>(b);
    return (kLarger ? x > y : x < y) ? a : b;
  } else {
    return (kLarger ? a > b : a < b) ? a : b;
  }
}

struct Sum {
  template <class T, class A>
  KOLO_HD static constexpr A apply(A a, A b) {
    if constexpr (kIsComplex<T>) {
      return {a.re + b.re, a.im + b.im};
    } else if constexpr (std::is_same_v<T, Bool>) {
      return a | b;
    } else {
      return static_cast<A>(a + b);
    }
  }
};

struct Prod {
  template <class T, class A>
  KOLO_HD static constexpr A apply(A a, A b) {
    if constexpr (kIsComplex<T>) {
      return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    } else if constexpr (std::is_same_v<T, Bool>) {
      return a & b;
    } else if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(1u * a * b);  // 1u: 16-bit operands would become int, which may overflow
    } else {
      return a * b;
    }
  }
};

struct Max {
  template <class T, class A>
  KOLO_HD static constexpr A apply(A a, A b) {
    return pick<T, true>(a, b);
  }
};

struct Min {
  template <class T, class A>
  KOLO_HD static constexpr A apply(A a, A b) {
    return pick<T, false>(a, b);
  }
};

struct LogicalAnd {
  template <class T, class A>
  KOLO_HD static constexpr A apply(A a, A b) {
    const A one = A{} + 1, zero = A{};
    return ((a != zero) & (b != zero)) ? one : zero;
  }
};

struct LogicalOr {
  template <class T, class A>
  KOLO_HD static constexpr A apply(A a, A b) {
    const A one = A{} + 1, zero = A{};
    return ((a != zero) | (b != zero)) ? one : zero;
  }
};

struct LogicalXor {
  template <class T, class A>
  KOLO_HD static constexpr A apply(A a, A b) {
    const A one = A{} + 1, zero = A{};
    return ((a != zero) ^ (b != zero)) ? one : zero;
  }
};

struct BitAnd {
  template <class T, class A>
  KOLO_HD static constexpr A apply(A a, A b) {
    return a & b;
  }
};

struct BitOr {
  template <class T, class A>
  KOLO_HD static constexpr A apply(A a, A b) {
    return a | b;
  }
};

struct BitXor {
  template <class T, class A>
  KOLO_HD static constexpr A apply(A a, A b) {
    return a ^ b;
  }
};

// The operation that a ReduceOp names.
template <ReduceOp kOp>
using OperationOf =
    std::tuple_element_t<static_cast<std::size_t>(kOp),
                         std::tuple<Sum, Prod, Max, Min, LogicalAnd, LogicalOr, LogicalXor, BitAnd, BitOr, BitXor>>;

// What an average does to a fold in float32 (A is float, or a vector of them), and nothing to other folds. Sources of
// bfloat16 are made so small that no sum of theirs is too large for float32. To do so is exact: a power of two up to
// 2^16 takes the smallest bfloat16 no further than to the smallest float32. (Where denormal floats are not honoured,
// results near the subnormal ones become 0.)
template <class T, bool kApplies = kIsFoldedInFloat<T>>
class Averaging {
 public:
  KOLO_HD explicit Averaging(const ReduceArgs& args) : divisor_(static_cast<float>(args.divisor) * args.unit) {
    if (kNeedsRoom && args.divisor > 1) room_ = 1 / powerAtLeast(divisor_);
    divisor_ *= room_;
  }
  template <class A>
  KOLO_HD A load(const ReduceArgs& args, A value, int source) const {
    if (!kNeedsRoom && args.weights == nullptr) return value;
    return value * (A{} + (args.weights != nullptr ? args.weights[source] * room_ : room_));
  }
  template <class A>
  KOLO_HD A finish(const ReduceArgs& args, A fold) const {
    return args.divisor > 1 ? fold / (A{} + divisor_) : fold;
  }

 private:
  static constexpr bool kNeedsRoom = std::is_same_v<T, Bfloat16>;
  float divisor_;
  float room_ = 1;
};
template <class T>
class Averaging<T, false> {
 public:
  KOLO_HD explicit Averaging(const ReduceArgs&) {}
  template <class A>
  KOLO_HD A load(const ReduceArgs&, A value, int) const {
    return value;
  }
  template <class A>
  KOLO_HD A finish(const ReduceArgs&, A fold) const {
    return fold;
  }
};

// What an average does to a fold: integers are truncated towards zero. (A double holds a quotient of 32-bit integers so
// exactly that truncating it truncates the true quotient.)
template <class T>
KOLO_HD constexpr Accumulator<T> divide(Accumulator<T> value, std::uint32_t divisor) {
  if constexpr (kIsComplex<T>) {
    using Part = decltype(value.re);
    return {value.re / static_cast<Part>(divisor), value.im / static_cast<Part>(divisor)};
  } else if constexpr (kIsFloat<T>) {
    return value / static_cast<Accumulator<T>>(divisor);
  } else if constexpr (sizeof(T) == 8) {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    return static_cast<Accumulator<T>>(static_cast<Wide>(value) / static_cast<Wide>(divisor));
  } else {
    return static_cast<Accumulator<T>>(static_cast<T>(static_cast<double>(static_cast<T>(value)) / divisor));
  }
}

template <class T>
constexpr bool isDefinedFor(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProd: return true;
    case ReduceOp::kMax:
    case ReduceOp::kMin:
    case ReduceOp::kLogicalAnd:
    case ReduceOp::kLogicalOr:
    case ReduceOp::kLogicalXor: return !kIsComplex<T>;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor: return std::is_integral_v<T> || std::is_same_v<T, Bool>;
    case ReduceOp::kUser:
    case ReduceOp::kCount: break;
  }
  return false;
}

// Whether code for an operation exists. kUser is no code of ours.
constexpr bool isDefined(ReduceOp op, koloDataType_t datatype) {
  if (datatype < 0 || datatype >= koloNumDatatypes) return false;
  return dispatch(datatype, [op](auto tag) { return isDefinedFor<typename decltype(tag)::type>(op); });
}

// Whether a fold by kSum may be given a divisor: an average of bools means nothing.
constexpr bool isAverageDefined(koloDataType_t datatype) {
  return datatype >= 0 && datatype < koloNumDatatypes && datatype != koloBool;
}

// How the sum behind an average is kept from being too large for its datatype: small integers are all folded at once,
// for no 8 or 16 bits hold a part of the sum; small floats store shares (device/shares.h). Other datatypes store sums.
constexpr bool averagesAtOnce(koloDataType_t datatype) {
  return dispatch(datatype, [](auto tag) { return kIsSmallInteger<typename decltype(tag)::type>; });
}
constexpr bool averagesInShares(koloDataType_t datatype) {
  return dispatch(datatype, [](auto tag) { return kIsNarrowFloat<typename decltype(tag)::type>; });
}

// Calls functor.template operator()<T, op>() with the type of a datatype and the operation, if code for the two exists.
template <class T, int kOp = 0, class Functor>
constexpr void withOperation(ReduceOp op, Functor&& functor) {
  if constexpr (kOp < static_cast<int>(ReduceOp::kUser)) {
    constexpr auto kThis = static_cast<ReduceOp>(kOp);
    if (op != kThis) {
      withOperation<T, kOp + 1>(op, functor);
    } else if constexpr (isDefinedFor<T>(kThis)) {
      functor.template operator()<T, kThis>();
    }
  }
}

}  // namespace kolo::device
