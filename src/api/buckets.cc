// Plans of which collectives are merged.
#include <algorithm>

#include "api/checks.h"
#include "api/guard.h"
#include "buckets/plan.h"

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloBucketPlan(const koloBucketItem_t* items, size_t count, koloBucketCapFunction_t cap,
                                     koloBucketFilterFunction_t filter, void* context, int mixDatatypes, int* bucketOf,
                                     size_t* launchAt, size_t* bucketCount) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkPointer({"items", items, count * sizeof *items}));
    KOLO_TRY(checkPointer({"bucketOf", bucketOf, count * sizeof *bucketOf}));
    if (mixDatatypes != 0 && mixDatatypes != 1) {
      return error(koloInvalidArgument, "mixDatatypes is {}, expected 0 or 1", mixDatatypes);
    }
    buckets::Rules rules;
    rules.mixesDatatypes = mixDatatypes == 1;
    if (cap != nullptr) rules.capMiB = [&](int bucket) { return cap(bucket, context); };
    if (filter != nullptr) rules.mayMerge = [&](std::size_t item) { return filter(item, context) != 0; };
    KOLO_ASSIGN(const buckets::Plan made, buckets::plan({items, count}, rules));
    std::copy(made.bucketOf.begin(), made.bucketOf.end(), bucketOf);
    if (launchAt != nullptr) std::copy(made.launchAt.begin(), made.launchAt.end(), launchAt);
    if (bucketCount != nullptr) *bucketCount = made.launchAt.size();
    return {};
  });
}

}  // extern "C"
