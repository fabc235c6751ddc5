// A verified run: patterns in, one call, everything compared that the call may and may not have written.
//
// Thread safety: collective; each rank calls on its own thread with its own buffers.
#pragma once

#include <cstddef>

#include "perf/exchange.h"
#include "perf/operation.h"

namespace kolo::perf {

// Fills the buffers with patterns, runs the collective once and returns how many elements are wrong on this rank: in
// the result, in the guards around it (each differing byte counts), in a receive buffer that was not to be touched, and
// in a send buffer that was not to be changed. Throws Failure when the library reports an error. A barrier moves
// nothing: 0.
size_t runVerified(const Operation& operation, const Shape& shape, Ranks ranks, const Buffers& buffers, koloComm_t comm,
                   Exchange& exchange);

}  // namespace kolo::perf
