// Random lists of items, checked against the definition in kolo.h.
#pragma once

#include <cstdint>

#include "world.h"

namespace kolo::tests {

// `each` lists for every collective.
void runLists(World& world, std::uint64_t seed, int each);

}  // namespace kolo::tests
