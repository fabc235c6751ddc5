#include "emulated/block_reduce.h"

#include "device/block_ops.h"
#include "device/reducers.h"
#include "device/row_move.h"

namespace kolo::executor {

void reduceInBlock(const device::BlockIndex& block, koloDataType_t datatype, device::ReduceOp op,
                   const device::ReduceArgs& args) {
  // On the device too the instantiation is chosen at run time, in executor/cuda/kernels.cu.
  const auto reduce = [&]<class T, device::ReduceOp kOp>() { device::blockReduce<T, kOp>(block, args); };
  device::dispatch(datatype, [&](auto tag) { device::withOperation<typename decltype(tag)::type>(op, reduce); });
}

void castRowsInBlock(const device::BlockIndex& block, const device::RowMove& move) {
  device::withCast(static_cast<koloDataType_t>(move.dstDatatype), static_cast<koloDataType_t>(move.srcDatatype),
                   [&]<class To, class From>() { device::castRows<To, From>(block, move); });
}

}  // namespace kolo::executor
