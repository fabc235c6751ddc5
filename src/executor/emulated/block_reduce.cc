#include "executor/emulated/block_reduce.h"

#include "device/block_ops.h"
#include "device/reducers.h"

namespace kolo::executor {

void reduceInBlock(const device::BlockIndex& block, koloDataType_t datatype, device::ReduceOp op,
                   const device::ReduceArgs& args) {
  // On the device too the instantiation is chosen at run time, in executor/cuda/kernels.cu.
  device::withReduction(datatype, op,
                        [&]<class T, device::ReduceOp kOp>() { device::blockReduce<T, kOp>(block, args); });
}

}  // namespace kolo::executor
