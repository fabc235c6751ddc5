// Plans of which collectives are merged.
#include <algorithm>
#include <vector>

#include "api/checks.h"
#include "api/guard.h"
#include "base/datatypes.h"
#include "buckets/plan.h"
#include "collectives/list_item.h"

namespace kolo::api {
namespace {

// Elements of the longer of an item's buffers: the one with the blocks of all ranks, where one is divided.
std::uint64_t elementsOf(const collectives::Item& item) {
  std::uint64_t sent = 0, received = 0;
  for (std::size_t block = 0; block < item.send.extents.size(); ++block) sent += item.send.elementsOf(block);
  for (std::size_t block = 0; block < item.recv.extents.size(); ++block) received += item.recv.elementsOf(block);
  return std::max(sent, received);
}

// What the item of a list says of the collective.
Status describe(koloBucketItem_t& item, std::size_t number) {
  if (item.item == nullptr || item.collective < 0 || item.collective >= koloNumCollectives) return {};
  const auto communicator = find(item.comm);
  if (!communicator.ok()) {
    return error(communicator.status().code(), "items[{}].comm: {}", number, communicator.status().message());
  }
  const collectives::ListCall call{.collective = static_cast<device::Collective>(item.collective),
                                   .rank = communicator.value()->rank(),
                                   .ranks = communicator.value()->ranks(),
                                   .root = 0};
  KOLO_ASSIGN(const collectives::Item read, collectives::readItem(call, *item.item, number));
  item.datatype = read.transferType;
  item.bytes = elementsOf(read) * elementBytes(read.transferType);
  return {};
}

// Places for the order are all there, or none is wanted.
Status checkOrder(const size_t* order, size_t count, const size_t* stepAt, const size_t* stepCount) {
  if (order == nullptr && stepAt == nullptr && stepCount == nullptr) return {};
  KOLO_TRY(checkPointer({"order", order, count * sizeof *order}));
  KOLO_TRY(checkPointer({"stepAt", stepAt, (count + 1) * sizeof *stepAt}));
  return checkResult("stepCount", stepCount);
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloBucketPlan(const koloBucketItem_t* items, size_t count, koloBucketCapFunction_t cap,
                                     koloBucketFilterFunction_t filter, void* context, int mixDatatypes, int* bucketOf,
                                     size_t* order, size_t* stepAt, size_t* stepCount) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkPointer({"items", items, count * sizeof *items}));
    KOLO_TRY(checkOrder(order, count, stepAt, stepCount));
    if (mixDatatypes != 0 && mixDatatypes != 1) {
      return error(koloInvalidArgument, "mixDatatypes is {}, expected 0 or 1", mixDatatypes);
    }
    buckets::Rules rules;
    rules.mixesDatatypes = mixDatatypes == 1;
    if (cap != nullptr)
      rules.capMiB = [&](const koloBucketItem_t& first, int bucket) { return cap(&first, bucket, context); };
    if (filter != nullptr) rules.mayMerge = [&](std::size_t item) { return filter(item, context) != 0; };
    std::vector<koloBucketItem_t> program(items, items + count);
    for (std::size_t i = 0; i < count; ++i) KOLO_TRY(describe(program[i], i));
    KOLO_ASSIGN(const buckets::Plan made, buckets::plan(program, rules));
    if (bucketOf != nullptr) std::copy(made.bucketOf.begin(), made.bucketOf.end(), bucketOf);
    if (stepCount == nullptr) return {};
    std::copy(made.order.begin(), made.order.end(), order);
    std::copy(made.stepAt.begin(), made.stepAt.end(), stepAt);
    *stepCount = made.stepAt.size() - 1;
    return {};
  });
}

}  // extern "C"
