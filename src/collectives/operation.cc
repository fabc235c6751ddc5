#include "collectives/operation.h"

#include <algorithm>

#include "base/datatypes.h"
#include "device/reducers.h"
#include "planner/planner.h"

namespace kolo::collectives {

device::ReduceOp reduceOpOf(koloRedOp_t op) {
  switch (op) {
    case koloProd: return device::ReduceOp::kProd;
    case koloMax: return device::ReduceOp::kMax;
    case koloMin: return device::ReduceOp::kMin;
    case koloLogicalAnd: return device::ReduceOp::kLogicalAnd;
    case koloLogicalOr: return device::ReduceOp::kLogicalOr;
    case koloLogicalXor: return device::ReduceOp::kLogicalXor;
    case koloBitAnd: return device::ReduceOp::kBitAnd;
    case koloBitOr: return device::ReduceOp::kBitOr;
    case koloBitXor: return device::ReduceOp::kBitXor;
    default: return device::ReduceOp::kSum;
  }
}

bool needsWholeFold(koloRedOp_t op, koloDataType_t datatype) {
  return op == koloAvg && device::averagesAtOnce(datatype);
}

bool needsWholeFold(const Operation& operation) {
  if (operation.list == nullptr) return needsWholeFold(operation.op, operation.datatype);
  const std::vector<Item>& items = operation.list->items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Item& item) { return needsWholeFold(operation.op, item.transferType); });
}

int reductionOf(const Operation& operation) {
  if (!operation.reduces() || operation.op < 0) return koloSum;
  if (operation.op < koloNumOps) return operation.op;
  const bool isPreMulSum = operation.custom != nullptr && operation.custom->isPreMulSum;
  return isPreMulSum ? planner::kPreMulSum : planner::kUserReduction;
}

bool countsDiffer(const Call& call) { return call.vector && device::isIn(call.collective, device::kCountsOfPairs); }

std::uint64_t plannedBytes(const Operation& operation) {
  if (operation.list != nullptr) return operation.list->longest;
  const std::uint64_t element = elementBytes(operation.datatype);
  if (!operation.vector) return operation.count * element;
  const auto longest = [](const std::vector<std::uint64_t>& counts) {
    return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  };
  return std::max(longest(operation.counts->sendCounts), longest(operation.counts->recvCounts)) * element;
}

}  // namespace kolo::collectives
