// The device's reductions, instantiated once for all blocks that are emulated. For tests only.
#pragma once

#include <kolo/kolo.h>

#include "device/reduce_args.h"

namespace kolo::executor {

// All that loads and stores need to know of a block: which of its threads this is.
struct BlockIndex {
  unsigned index;
  unsigned count;
  unsigned thread() const { return index; }
  unsigned threads() const { return count; }
};

// This thread's share of device::blockReduce<T, op>, T being the datatype's. REQUIRES: op is defined for it, and is not kUser.
void reduceInBlock(const BlockIndex& block, koloDataType_t datatype, device::ReduceOp op,
                   const device::ReduceArgs& args);

}  // namespace kolo::executor
