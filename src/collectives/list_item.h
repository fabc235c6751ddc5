// One item of a list, from its caller's words to the one form that all items have.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "collectives/list.h"

namespace kolo::collectives {

// Item number `number` of a list. Its errors name it.
Result<Item> readItem(const ListCall& call, const koloItem_t& given, std::size_t number);
// Of an all-to-all along two axes.
Result<Item> readItem(const ListCall& call, const koloItem_t& given, int splitAxis, int concatAxis,
                      const std::size_t* splits, const std::size_t* concats);

// Whether memory can hold so many elements as an array of this shape has.
bool fitsMemory(std::span<const std::uint64_t> shape);
// The first dimension by which an array, from its first element to the last one, reaches further than memory; -1: none.
int dimensionBeyondMemory(std::span<const std::uint64_t> shape, std::span<const std::int64_t> strides);

}  // namespace kolo::collectives
