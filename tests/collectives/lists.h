// Random lists of items, for worlds of any kind.
#pragma once

#include <cstdint>

#include "world.h"

namespace kolo::tests {

// The element at a place, as a number, and a number as the element at a place: of every datatype. Of complex ones, the
// real part; the other one becomes 0.
double decodeAny(koloDataType_t datatype, const std::uint8_t* at);
void encodeAny(koloDataType_t datatype, double value, std::uint8_t* at);

// Every collective, `each` lists: what each rank finds is what kolo.h says of it, and nothing else has changed.
void runLists(World& world, std::uint64_t seed, int each);
std::uint64_t listSeed(int test, int ranks);

// All-to-all of arrays along two axes, with uneven splits. REQUIRES: three ranks.
void exchangeAxes(World& world);
// Arrays that are resharded between two axes, one rank and all ranks. REQUIRES: two ranks, three or four.
void reshardEveryWay(World& world);

}  // namespace kolo::tests
