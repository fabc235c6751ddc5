// Lists of tensors (--list): one operation for a bucket of them, beside packing them into one buffer, one operation and
// unpacking, and beside an operation for each.
//
// Thread safety: readTensors from any thread; runLists is collective, each rank calls on its own thread.
#pragma once

#include <string>
#include <vector>

#include "kolo/kolo.h"
#include "perf/exchange.h"
#include "perf/options.h"
#include "perf/ways.h"

namespace kolo::perf {

struct Tensor {
  size_t count = 0;
  koloDataType_t datatype = koloFloat32;
  size_t bytes() const { return count * koloDataTypeSize(datatype); }
};

// A file has a line for each tensor: its elements and its datatype ("2359296 float32"). Throws Failure, which names the
// line.
std::vector<Tensor> readTensors(const std::string& path);

// Throws Failure where a collective is not measured so, or where the buffers of this machine's ranks exceed its memory.
void requireLists(const Options& options, int ranksHere);

// A line for each collective, kind of buffers and cap. Tensors go into buckets in their order; a bucket is full when
// the next tensor would exceed the cap. All buckets are done one after the other. A rank's part of a tensor that the
// ranks do not divide evenly: the first ranks have an element more. print: on rank 0.
std::vector<Comparison> runLists(koloComm_t comm, const Options& options, const Device& device, Exchange& exchange,
                                 bool print);

}  // namespace kolo::perf
