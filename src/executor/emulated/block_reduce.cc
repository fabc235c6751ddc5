#include "executor/emulated/block_reduce.h"

#include "device/block_ops.h"
#include "device/reducers.h"

namespace kolo::executor {
namespace {

// The instantiation for an operation, chosen at run time; on the device the kernel is chosen by the same two.
template <class T, int kOp = 0>
void reduceTyped(const BlockIndex& block, device::ReduceOp op, const device::ReduceArgs& args) {
  if constexpr (kOp < static_cast<int>(device::ReduceOp::kUser)) {
    constexpr auto kThis = static_cast<device::ReduceOp>(kOp);
    if (op != kThis) {
      reduceTyped<T, kOp + 1>(block, op, args);
    } else if constexpr (device::isDefinedFor<T>(kThis)) {
      device::blockReduce<T, kThis>(block, args);
    }
  }
}

}  // namespace

void reduceInBlock(const BlockIndex& block, koloDataType_t datatype, device::ReduceOp op,
                   const device::ReduceArgs& args) {
  device::dispatch(datatype, [&](auto tag) { reduceTyped<typename decltype(tag)::type>(block, op, args); });
}

}  // namespace kolo::executor
