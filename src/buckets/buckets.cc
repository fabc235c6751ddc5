// Buckets of a program's collectives: which are merged, and their launch as one list.
#include <algorithm>
#include <vector>

#include "api/client.h"
#include "buckets/plan.h"

namespace kolo::buckets {
namespace {

Status checkPointer(const char* name, const void* pointer, std::size_t entries) {
  if (pointer != nullptr || entries == 0) return {};
  return error(koloInvalidPointer, "{} is NULL, expected {} entries", name, entries);
}

// Places for the order are all there, or none is wanted.
Status checkOrder(const size_t* order, size_t count, const size_t* stepAt, const size_t* stepCount) {
  if (order == nullptr && stepAt == nullptr && stepCount == nullptr) return {};
  KOLO_TRY(checkPointer("order", order, count));
  KOLO_TRY(checkPointer("stepAt", stepAt, count + 1));
  return checkPointer("stepCount", stepCount, 1);
}

// What the item of a list says of the collective.
Status describe(koloBucketItem_t& item, std::size_t number) {
  if (item.item == nullptr || item.collective < 0 || item.collective >= koloNumCollectives) return {};
  KOLO_ASSIGN(const api::Transfer its, api::transferOf(*item.item, number, item.collective, item.comm));
  item.datatype = its.datatype;
  item.bytes = its.bytes;
  return {};
}

// Why members of a program cannot be one list.
Status checkMembers(const koloBucketItem_t* items, const size_t* members, size_t count) {
  if (count == 0) return error(koloInvalidCount, "count is 0, expected the members of a step");
  KOLO_TRY(checkPointer("items", items, 1));
  KOLO_TRY(checkPointer("members", members, count));
  const koloBucketItem_t& first = items[members[0]];
  const bool reduces = first.collective != koloCollectiveAllGather;
  for (std::size_t i = 0; i < count; ++i) {
    const koloBucketItem_t& item = items[members[i]];
    const bool isMergeable = item.collective == koloCollectiveAllGather ||
                             item.collective == koloCollectiveReduceScatter ||
                             item.collective == koloCollectiveAllReduce;
    if (!isMergeable || item.item == nullptr) {
      return error(koloInvalidArgument,
                   "items[{}] is {}: expected an all-gather, a reduce-scatter or an all-reduce with its koloItem_t",
                   members[i], isMergeable ? "without a koloItem_t" : "another collective");
    }
    if (item.comm != first.comm || item.collective != first.collective || (reduces && item.op != first.op)) {
      return error(koloInvalidArgument,
                   "items[{}] and items[{}] differ in communicator, collective or reduction: expected members of one "
                   "bucket",
                   members[0], members[i]);
    }
  }
  return {};
}

}  // namespace
}  // namespace kolo::buckets

using namespace kolo;
using namespace kolo::buckets;

extern "C" {

KOLO_API koloResult_t koloBucketPlan(const koloBucketItem_t* items, size_t count, koloBucketCapFunction_t cap,
                                     koloBucketFilterFunction_t filter, void* context, int mixDatatypes, int* bucketOf,
                                     size_t* order, size_t* stepAt, size_t* stepCount) {
  return api::guard(__func__, [&]() -> Status {
    KOLO_TRY(checkPointer("items", items, count));
    KOLO_TRY(checkOrder(order, count, stepAt, stepCount));
    if (mixDatatypes != 0 && mixDatatypes != 1) {
      return error(koloInvalidArgument, "mixDatatypes is {}, expected 0 or 1", mixDatatypes);
    }
    Rules rules;
    rules.mixesDatatypes = mixDatatypes == 1;
    if (cap != nullptr)
      rules.capMiB = [&](const koloBucketItem_t& first, int bucket) { return cap(&first, bucket, context); };
    if (filter != nullptr) rules.mayMerge = [&](std::size_t item) { return filter(item, context) != 0; };
    std::vector<koloBucketItem_t> program(items, items + count);
    for (std::size_t i = 0; i < count; ++i) KOLO_TRY(describe(program[i], i));
    KOLO_ASSIGN(const Plan made, plan(program, rules));
    if (bucketOf != nullptr) std::copy(made.bucketOf.begin(), made.bucketOf.end(), bucketOf);
    if (stepCount == nullptr) return {};
    std::copy(made.order.begin(), made.order.end(), order);
    std::copy(made.stepAt.begin(), made.stepAt.end(), stepAt);
    *stepCount = made.stepAt.size() - 1;
    return {};
  });
}

KOLO_API koloResult_t koloBucketLaunch(const koloBucketItem_t* items, const size_t* members, size_t count,
                                       koloStream_t stream) {
  std::vector<koloItem_t> list;
  const koloResult_t refused = api::guard(__func__, [&]() -> Status {
    if (Status wrong = checkMembers(items, members, count); !wrong.ok()) return api::refuse(std::move(wrong));
    for (std::size_t i = 0; i < count; ++i) list.push_back(*items[members[i]].item);
    return {};
  });
  if (refused != koloSuccess) return refused;
  const koloBucketItem_t& first = items[members[0]];
  switch (first.collective) {
    case koloCollectiveAllGather: return koloAllGatherList(list.data(), count, first.comm, stream);
    case koloCollectiveReduceScatter: return koloReduceScatterList(list.data(), count, first.op, first.comm, stream);
    default: return koloAllReduceList(list.data(), count, first.op, first.comm, stream);
  }
}

}  // extern "C"
