// What the buffers of a verified run hold, and what they must hold afterwards.
//
// A buffer's content is a table of kPeriod elements repeated: filling is copying, and checking is comparing with the
// folded table, at memory speed whatever the datatype. kPeriod is prime, so that data moved by any chunk, block or
// alignment of the library arrives out of step and is seen. Operands of reductions are small integers of which every
// partial fold is exact in the datatype: the result does not depend on the order of the folds and is compared for
// equality.
//
// Thread safety: free functions without state, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kolo/kolo.h"

namespace kolo::perf {

constexpr size_t kPeriod = 4099;
using Table = std::vector<std::byte>;  // kPeriod elements of a datatype

// For collectives that only move data: random bytes (0 and 1 for bool), different for each rank and seed.
Table movedTable(koloDataType_t datatype, int rank, std::uint64_t seed);
// What rank contributes to a reduction over `ranks` ranks. REQUIRES: koloRedOpIsDefined(op, datatype)
Table operandTable(koloDataType_t datatype, koloRedOp_t op, int rank, int ranks, std::uint64_t seed);
// The reduction of all ranks' operandTable.
Table foldedTable(koloDataType_t datatype, koloRedOp_t op, int ranks, std::uint64_t seed);

// Writes elements whose first is the table's element number `phase` (any number: taken modulo kPeriod).
void fill(std::byte* to, size_t elements, size_t elementBytes, const Table& table, size_t phase);

// How two elements compare: as bytes, or as numbers, where the two floating-point zeros are equal.
enum class Compare { kBytes, kNumbers };
// The number of elements that differ from what fill would have written.
size_t countWrong(const std::byte* got, size_t elements, koloDataType_t datatype, const Table& table, size_t phase,
                  Compare compare);

}  // namespace kolo::perf
