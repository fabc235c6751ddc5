// Calls over lists. A program gives the same lists again and again, and to read and check one takes longer than a small
// operation. So a list keeps the words of its call, by which PreparedOperations finds it again.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <memory>

#include "collectives/list.h"
#include "collectives/prepared_operations.h"
#include "collectives/reshard.h"

namespace kolo::collectives {

// All that a caller says. Two calls with the same words are the same. Empty: the call will be refused. The words are
// the calling thread's, and its next call of this writes others in their place.
const Words& wordsOf(const ListCall& call, const ItemsCall& given);
const Words& wordsOf(const ListCall& call, const AxisCall& given);
const Words& wordsOf(const ListCall& call, const ReshardCall& given);

// The list that one of the last calls made, or what makeList() gives.
template <class Given>
Result<std::shared_ptr<const List>> findList(const PreparedOperations& operations, const ListCall& call,
                                             const Given& given) {
  const Words& said = wordsOf(call, given);
  if (std::shared_ptr<const List> known = operations.listOf(said)) return known;
  KOLO_ASSIGN(const std::shared_ptr<List> made, makeList(call, given));
  made->said = said;
  return std::shared_ptr<const List>(made);
}

}  // namespace kolo::collectives
