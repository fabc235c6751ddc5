// Random lists of items, for worlds of any kind.
#pragma once

#include <cstdint>

#include "support/seed.h"
#include "world.h"

namespace kolo::tests {

using test::Rounds;

// The element at a place, as a number, and a number as the element at a place: of every datatype. Of complex ones, the
// real part; the other one becomes 0.
double decodeAny(koloDataType_t datatype, const std::uint8_t* at);
void encodeAny(koloDataType_t datatype, double value, std::uint8_t* at);

// Those by which a round tries a collective; on a communicator that is a mesh, of those along its axes.
enum class ListAlgorithms { kEvery, kAny };
// Every collective: what each rank finds is what kolo.h says of it, and nothing else has changed.
void runLists(World& world, Rounds&& rounds, ListAlgorithms which = ListAlgorithms::kEvery);
// A test's number for Rounds.
int listNumber(int test, int ranks);

// All-to-all of arrays along two axes, with uneven splits. REQUIRES: three ranks.
void exchangeAxes(World& world);
// Arrays that are resharded between two axes, one rank and all ranks. REQUIRES: two ranks, three or four.
void reshardEveryWay(World& world);

}  // namespace kolo::tests
