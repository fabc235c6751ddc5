// The reductions and copies of the host: vectorised functions, chosen by what the processor can do. All instruction
// sets give the same bits (NaN payloads of sums and products aside).
//
// Thread safety: all functions, from any thread.
#pragma once

#include <kolo/kolo.h>

#include <cstddef>
#include <cstdint>

#include "device/reduce_args.h"
#include "device/row_move.h"

namespace kolo::executor {

// Carries out what ReduceArgs describes. Scale and divisor are for kSum only.
using ReduceKernel = void (*)(const device::ReduceArgs&);

// The kernel for a datatype and an operation; null where the operation is not defined for it, and for kUser.
ReduceKernel reduceKernel(koloDataType_t datatype, device::ReduceOp op);

// "generic", "avx2" or "avx512": what is in use.
const char* isaName();

// Copies; dst and src are the same or do not overlap. streaming: writes past the caches, and fences, as ReduceArgs
// says.
void copy(void* dst, const void* src, std::size_t bytes, bool streaming);

// Rows of elements that do not follow each other, or are converted. REQUIRES: the conversion is defined.
void moveRows(const device::RowMove& move);

// Converts `count` elements that follow each other, each multiplied by `factor`.
using CastKernel = void (*)(void* dst, const void* src, std::uint64_t count, float factor);

// One instruction set's code. For the choice above and for the tests, which compare them all.
struct HostIsa {
  const char* name;
  ReduceKernel kernel[koloNumDatatypes][static_cast<int>(device::ReduceOp::kCount)];
  CastKernel casts[koloNumDatatypes][koloNumDatatypes];  // [to][from]; null where there is none
  // Past the caches where the processor can; fences.
  void (*streamCopy)(void* dst, const void* src, std::size_t bytes);
};

// The instruction sets compiled in that this processor can execute, best last; the first is "generic". *count gets how
// many.
const HostIsa* const* availableIsas(int* count);

}  // namespace kolo::executor
