// Rows of elements from one place to another, and perhaps into another datatype: what a copy is where elements do not
// follow each other in memory, or are converted on the way.
//
// Thread safety: pure functions but for the memory that they write. No CUDA include.
#pragma once

#include <cstdint>

#include "device/block_ops.h"
#include "device/types.h"

namespace kolo::device {

// Row r, from its first byte on, is at dst + r * dstStride, and comes from src + r * srcStride. The two do not overlap.
struct RowMove {
  unsigned char* dst;
  const unsigned char* src;
  std::uint64_t rows;
  std::uint64_t rowElements;
  std::int64_t dstStride, srcStride;      // bytes
  std::uint8_t dstBytes, srcBytes;        // of an element
  std::uint8_t dstDatatype, srcDatatype;  // the same: elements are copied
  float factor = 1;                       // multiplied into each element that is converted, in float32
};

// The datatypes that are converted into each other: the floats of 8, 16 and 32 bits, each through float32; and float32
// and float64.
template <class To, class From>
inline constexpr bool kIsCastable =
    !std::is_same_v<To, From> &&
    (((kIsNarrowFloat<To> || std::is_same_v<To, float>)&&(kIsNarrowFloat<From> || std::is_same_v<From, float>)) ||
     (std::is_floating_point_v<To> && std::is_floating_point_v<From>));

template <class To, class From>
KOLO_HD To castElement(From element, float factor) {
  if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(widen(element) * static_cast<Accumulator<From>>(factor));
  } else {
    return narrow<To>(widen(element) * factor);
  }
}

// Calls functor.template operator()<To, From>() if one can be converted into the other, and returns whether it can.
template <class Functor>
constexpr bool withCast(koloDataType_t to, koloDataType_t from, Functor&& functor) {
  return dispatch(to, [&](auto toTag) {
    return dispatch(from, [&](auto fromTag) {
      using To = typename decltype(toTag)::type;
      using From = typename decltype(fromTag)::type;
      if constexpr (kIsCastable<To, From>) {
        functor.template operator()<To, From>();
        return true;
      } else {
        return false;
      }
    });
  });
}
constexpr bool isCastDefined(koloDataType_t to, koloDataType_t from) {
  return withCast(to, from, []<class To, class From>() {});
}

// Calls visit(row, column) for the elements of this thread: each threads()-th. No divisions from one to the next.
template <class Team, class Visit>
KOLO_DEVICE void eachOfRows(const Team& team, std::uint64_t rows, std::uint64_t columns, Visit visit) {
  const std::uint64_t threads = team.threads(), thread = team.thread();
  const std::uint64_t rowStep = threads / columns, columnStep = threads % columns;
  std::uint64_t row = thread / columns, column = thread % columns;
  KOLO_ROLLED
  while (row < rows) {
    visit(row, column);
    row += rowStep;
    column += columnStep;
    if (column >= columns) {
      column -= columns;
      ++row;
    }
  }
}

template <class To, class From, class Team>
KOLO_DEVICE void castRows(const Team& team, const RowMove& move) {
  eachOfRows(team, move.rows, move.rowElements, [&](std::uint64_t row, std::uint64_t column) {
    const auto at = static_cast<std::int64_t>(row);
    const From element = loadElement<From>(move.src + at * move.srcStride + column * sizeof(From));
    storeElement(move.dst + at * move.dstStride + column * sizeof(To), castElement<To>(element, move.factor));
  });
}

// By units as large as all addresses allow.
template <class Unit, class Team>
KOLO_DEVICE void copyUnits(const Team& team, const RowMove& move, std::uint64_t rowBytes) {
  eachOfRows(team, move.rows, rowBytes / sizeof(Unit), [&](std::uint64_t row, std::uint64_t column) {
    const auto at = static_cast<std::int64_t>(row);
    const std::uint64_t byte = column * sizeof(Unit);
    storeWord(move.dst + at * move.dstStride + byte, loadWord<Unit>(move.src + at * move.srcStride + byte));
  });
}

// Rows whose elements are copied, by the threads of a block.
template <class Team>
KOLO_DEVICE_CALL void copyRows(const Team& team, const RowMove& move) {
  const std::uint64_t rowBytes = move.rowElements * move.dstBytes;
  const std::uint64_t all = reinterpret_cast<std::uint64_t>(move.dst) | reinterpret_cast<std::uint64_t>(move.src) |
                            static_cast<std::uint64_t>(move.dstStride) | static_cast<std::uint64_t>(move.srcStride) |
                            rowBytes;
  if (all % sizeof(Pack) == 0) return copyUnits<Pack>(team, move, rowBytes);
  if (all % 4 == 0) return copyUnits<std::uint32_t>(team, move, rowBytes);
  if (all % 2 == 0) return copyUnits<std::uint16_t>(team, move, rowBytes);
  copyUnits<std::uint8_t>(team, move, rowBytes);
}

}  // namespace kolo::device
