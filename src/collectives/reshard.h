// An array that is distributed over ranks in one way, and in another one afterwards: which collective over a list does
// that.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"
#include "collectives/list.h"

namespace kolo::collectives {

// As koloReshard() is called.
struct ReshardCall {
  const koloItem_t* item;
  const koloArray_t* whole;
  int from, to;  // an axis, KOLO_ON_ALL or KOLO_ON_RANK()
  const std::size_t *fromParts, *toParts;
};

// The collective and the root of the call are not read: they are found.
Result<std::shared_ptr<List>> makeList(const ListCall& call, const ReshardCall& given);

}  // namespace kolo::collectives
