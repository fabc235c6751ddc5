// Conversions of rows between datatypes, as text: included by each reduce_<isa>.cc, as reduce_kernels.h is.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/row_move.h"
#include "executor/host/reduce.h"
#include "executor/host/reduce_lanes.h"

namespace kolo::executor::KOLO_ISA_NAMESPACE {

// `count` elements that follow each other. By vectors of float32; float64 by elements.
template <class To, class From>
void castRow(void* to, const void* from, std::uint64_t count, float factor) {
  auto* dst = static_cast<Byte*>(to);
  const auto* src = static_cast<const Byte*>(from);
  if constexpr (sizeof(To) <= 4 && sizeof(From) <= 4) {
    using Source = Lanes<From>;
    using Target = Lanes<To>;
    static_assert(Source::kElements == Target::kElements);
    const auto factors = Lanes<float>::splat(factor);
    for (; count >= Source::kElements; count -= Source::kElements) {
      store<Target::kBytes>(dst, Target::narrow(Source::widen(load<Source::kBytes>(src)) * factors));
      src += Source::kBytes;
      dst += Target::kBytes;
    }
  }
  for (; count != 0; --count) {
    From element;
    __builtin_memcpy(&element, src, sizeof element);
    const To result = device::castElement<To>(element, factor);
    __builtin_memcpy(dst, &result, sizeof result);
    src += sizeof(From);
    dst += sizeof(To);
  }
}

constexpr void fillCasts(HostIsa& isa) {
  for (int to = 0; to < koloNumDatatypes; ++to) {
    for (int from = 0; from < koloNumDatatypes; ++from) {
      device::withCast(static_cast<koloDataType_t>(to), static_cast<koloDataType_t>(from),
                       [&]<class To, class From>() { isa.casts[to][from] = &castRow<To, From>; });
    }
  }
}

}  // namespace kolo::executor::KOLO_ISA_NAMESPACE
