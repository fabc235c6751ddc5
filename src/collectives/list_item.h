// One item of a list, from its caller's words to the one form that all items have.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "collectives/list.h"

namespace kolo::collectives {

// Item number `number` of a list. Its errors name it.
Result<Item> readItem(const ListCall& call, const koloItem_t& given, std::size_t number);
// Of an all-to-all along two axes.
Result<Item> readItem(const ListCall& call, const koloItem_t& given, int splitAxis, int concatAxis,
                      const std::size_t* splits, const std::size_t* concats);

}  // namespace kolo::collectives
