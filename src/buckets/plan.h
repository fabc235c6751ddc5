// Which collectives of a program are merged into one launch: PyTorch Inductor's bucketing of all-gathers and
// reduce-scatters (torch/_inductor/fx_passes/bucketing.py), for any list of collectives with dependencies.
//
// Thread safety: pure functions; the caller's functions run on the calling thread.
// Invariants
//  - Items are numbered in the program's order, and an item depends on earlier items only.
//  - Buckets hold items of one class: those of one communicator, collective, datatype and reduction.
//  - The graph in which each bucket is one node has no cycle, so the merged program can be carried out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"

namespace kolo::buckets {

inline constexpr double kDefaultCapMiB = 2000;

struct Rules {
  // The cap in MiB of a class's bucket of this number, which this item opens; empty: kDefaultCapMiB.
  std::function<double(const koloBucketItem_t& first, int bucket)> capMiB;
  // Whether an item may be merged at all; empty: every item.
  std::function<bool(std::size_t item)> mayMerge;
  bool mixesDatatypes = false;
};

struct Plan {
  std::vector<int> bucketOf;        // [items]; KOLO_NO_BUCKET: the item is not merged
  std::vector<std::size_t> order;   // [items]: as they are carried out, a bucket's members together
  std::vector<std::size_t> stepAt;  // [steps + 1]: where in `order` each step begins, which is an item or a bucket
};

// koloInvalidArgument, koloInvalidDatatype, koloInvalidOperation and koloInvalidPointer name the item that is wrong.
// Time: as koloBucketPlan says.
Result<Plan> plan(std::span<const koloBucketItem_t> items, const Rules& rules);

}  // namespace kolo::buckets
