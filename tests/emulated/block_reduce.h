// The device's reductions, instantiated once for all blocks that are emulated.
#pragma once

#include <kolo/kolo.h>

#include "device/block_ops.h"
#include "device/reduce_args.h"
#include "device/row_move.h"

namespace kolo::executor {

// This thread's share of device::blockReduce<T, op>, T being the datatype's. REQUIRES: op is defined for it, and is not
// kUser.
void reduceInBlock(const device::BlockIndex& block, koloDataType_t datatype, device::ReduceOp op,
                   const device::ReduceArgs& args);

// This thread's share of device::castRows of the move's datatypes.
void castRowsInBlock(const device::BlockIndex& block, const device::RowMove& move);

}  // namespace kolo::executor
