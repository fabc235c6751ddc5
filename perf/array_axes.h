// Arrays that the ranks divide along an axis (--axis): one operation that places every element, beside one on packed
// blocks with copies before it, behind it, or both.
//
// Thread safety: parseShapes from any thread; runAxes is collective, each rank calls on its own thread.
#pragma once

#include <string_view>
#include <vector>

#include "kolo/kolo.h"
#include "perf/exchange.h"
#include "perf/options.h"
#include "perf/ways.h"

namespace kolo::perf {

// "64x1024,4096x4096": lengths of arrays, the slowest dimension first. Throws Failure.
std::vector<std::vector<size_t>> parseShapes(std::string_view text);

// Throws Failure where a collective is not measured so, where an array does not have the axis, and where the buffers of
// this machine's ranks exceed its memory.
void requireAxes(const Options& options, int ranksHere);

// A line for each collective, kind of buffers, datatype, shape and axis. The shape is that of the whole array. Where
// the ranks do not divide an axis evenly, the first ranks have a row more. An all-to-all takes an array that is
// distributed along another axis (the first, or the last where that is the axis itself) and distributes it along the
// axis; arrays of one dimension have none, and no such line. print: on rank 0.
std::vector<Comparison> runAxes(koloComm_t comm, const Options& options, const Device& device, Exchange& exchange,
                                bool print);

}  // namespace kolo::perf
