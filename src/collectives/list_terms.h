// What the ranks have to say alike of a list, as a digest, which the header of every operation carries. In words it is
// List::of().
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "collectives/list.h"

namespace kolo::collectives {

std::uint64_t digestOf(const List& list);

}  // namespace kolo::collectives
