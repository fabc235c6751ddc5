#include "buckets/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

namespace kolo::buckets {
namespace {

using Index = std::uint32_t;

// What the members of a bucket have in common.
using Class = std::tuple<koloComm_t, koloCollective_t, koloDataType_t, koloRedOp_t>;

bool reduces(const koloBucketItem_t& item) {
  return item.collective == koloCollectiveReduceScatter || item.collective == koloCollectiveAllReduce;
}

Class classOf(const koloBucketItem_t& item, bool mixesDatatypes) {
  return {item.comm, item.collective, mixesDatatypes ? koloNumDatatypes : item.datatype,
          reduces(item) ? item.op : koloSum};
}

Status checkDependencies(const koloBucketItem_t& item, std::size_t index, std::size_t items) {
  if (item.dependsOn == nullptr && item.dependencies != 0) {
    return error(koloInvalidPointer, "items[{}].dependsOn is NULL, expected {} indices of items", index,
                 item.dependencies);
  }
  for (std::size_t i = 0; i < item.dependencies; ++i) {
    const std::size_t other = item.dependsOn[i];
    if (other < index) continue;
    if (other >= items) {
      return error(koloInvalidArgument, "items[{}].dependsOn[{}] is {}, expected an index below {}, the item's own",
                   index, i, other, index);
    }
    return error(koloInvalidArgument,
                 "items[{0}].dependsOn[{1}] is {2}: expected an item before item {0}. Items stand in the program's "
                 "order, in which nothing depends on what comes later, and so there are no cycles",
                 index, i, other);
  }
  return {};
}

Status check(std::span<const koloBucketItem_t> items) {
  if (items.size() >= std::size_t{UINT32_MAX} / 2) {
    return error(koloInvalidCount, "count is {}, expected fewer than {} items", items.size(), UINT32_MAX / 2);
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const koloBucketItem_t& item = items[i];
    if (item.collective < 0 || item.collective >= koloNumCollectives) {
      return error(koloInvalidArgument, "items[{}].collective is {}, expected a koloCollective_t from 0 to {}", i,
                   static_cast<int>(item.collective), koloNumCollectives - 1);
    }
    if (item.datatype < 0 || item.datatype >= koloNumDatatypes) {
      return error(koloInvalidDatatype, "items[{}].datatype is {}, expected a koloDataType_t from 0 to {}", i,
                   static_cast<int>(item.datatype), koloNumDatatypes - 1);
    }
    if (reduces(item) && item.op < 0) {
      return error(koloInvalidOperation, "items[{}].op is {}, expected a koloRedOp_t", i, static_cast<int>(item.op));
    }
    KOLO_TRY(checkDependencies(item, i, items.size()));
  }
  return {};
}

// The program as a graph without cycles. A node is an item, or a bucket, which has the number of its first member.
class Graph {
 public:
  explicit Graph(std::span<const koloBucketItem_t> items)
      : items_(items), nodeOf_(items.size()), members_(items.size()), placeOf_(items.size()) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      nodeOf_[i] = static_cast<Index>(i);
      order_.push_back(static_cast<Index>(i));
      placeOf_[i] = i;
    }
  }

  // An order in which every node follows those that it depends on.
  const std::vector<Index>& order() const { return order_; }
  std::size_t placeOf(Index node) const { return placeOf_[node]; }

  // function(node): for each node that this one depends on, until one returns true. Whether one did.
  template <class Function>
  bool anyDependency(Index node, const Function& function) const {
    const auto ofItem = [&](std::size_t item) {
      const std::span dependencies(items_[item].dependsOn, items_[item].dependencies);
      return std::any_of(dependencies.begin(), dependencies.end(),
                         [&](std::size_t other) { return function(nodeOf_[other]); });
    };
    const std::vector<Index>& merged = members_[node];
    return merged.empty() ? ofItem(node) : std::any_of(merged.begin(), merged.end(), ofItem);
  }

  // REQUIRES: none of the items is in a bucket, and none depends on another, directly or not; then sort().
  void merge(const std::vector<Index>& items) {
    const Index node = items.front();
    for (const Index item : items) nodeOf_[item] = node;
    members_[node] = items;
  }

  // Makes the order anew: the old one, but for nodes that others need earlier.
  void sort() {
    const std::vector<Index> before = std::move(order_);
    order_.clear();
    std::vector<bool> isPlaced(items_.size()), isOpen(items_.size());
    std::vector<Index> open;  // a depth-first search: a node is placed when all that it depends on are
    for (const Index first : before) {
      open.push_back(nodeOf_[first]);
      while (!open.empty()) {
        const Index node = open.back();
        if (isPlaced[node] || isOpen[node]) {
          open.pop_back();
          if (!isPlaced[node]) place(node, isPlaced);
          continue;
        }
        isOpen[node] = true;
        anyDependency(node, [&](Index other) {
          if (!isPlaced[other]) open.push_back(other);
          return false;
        });
      }
    }
  }

 private:
  void place(Index node, std::vector<bool>& isPlaced) {
    isPlaced[node] = true;
    placeOf_[node] = order_.size();
    order_.push_back(node);
  }

  std::span<const koloBucketItem_t> items_;
  std::vector<Index> nodeOf_;                // [items]
  std::vector<std::vector<Index>> members_;  // [items], of a bucket's node; else empty
  std::vector<Index> order_;
  std::vector<std::size_t> placeOf_;  // of a node in order_
};

// A bucket's cap in bytes.
Result<std::uint64_t> capOf(const Rules& rules, int bucket) {
  const double megabytes = rules.capMiB ? rules.capMiB(bucket) : kDefaultCapMiB;
  if (!(megabytes >= 0)) {
    return error(koloInvalidArgument, "the cap of bucket {} is {} MiB, expected 0 or more", bucket, megabytes);
  }
  const double bytes = std::floor(std::ldexp(megabytes, 20));
  return bytes < 0x1p63 ? static_cast<std::uint64_t>(bytes) : UINT64_MAX;
}

// The buckets of one class, filled one after the other.
class Filling {
 public:
  Filling(std::span<const koloBucketItem_t> items, const Rules& rules) : items_(items), rules_(rules) {}

  // Of two members or more each, in the order of the graph.
  Result<std::vector<std::vector<Index>>> fill(const Graph& graph, std::vector<Index> candidates,
                                               std::vector<int>& reached, int& stamp) {
    std::sort(candidates.begin(), candidates.end(),
              [&](Index a, Index b) { return graph.placeOf(a) < graph.placeOf(b); });
    KOLO_ASSIGN(cap_, capOf(rules_, 0));
    ++stamp;
    auto next = candidates.begin();
    for (std::size_t at = graph.placeOf(*next); next != candidates.end(); ++at) {
      const Index node = graph.order()[at];
      // Whether the open bucket is among what the node depends on.
      const bool dependsOnBucket = graph.anyDependency(node, [&](Index other) { return reached[other] == stamp; });
      if (dependsOnBucket) reached[node] = stamp;
      if (node != *next) continue;
      ++next;
      if (dependsOnBucket) continue;  // skipped: neither in this bucket nor in a later one
      if (isFullFor(node)) {
        close();
        ++stamp;
        KOLO_ASSIGN(cap_, capOf(rules_, ++number_));
      }
      open_.push_back(node);
      bytes_ += items_[node].bytes;
      reached[node] = stamp;
    }
    close();
    return std::move(buckets_);
  }

 private:
  bool isFullFor(Index item) const {
    if (open_.empty()) return false;
    return bytes_ > cap_ || items_[item].bytes > cap_ - bytes_;
  }
  // A bucket of one is not merged.
  void close() {
    if (open_.size() > 1) buckets_.push_back(std::move(open_));
    open_.clear();
    bytes_ = 0;
  }

  std::span<const koloBucketItem_t> items_;
  const Rules& rules_;
  std::vector<std::vector<Index>> buckets_;
  std::vector<Index> open_;
  std::uint64_t bytes_ = 0, cap_ = 0;
  int number_ = 0;
};

// The candidates of each class, by the class's first item.
std::vector<std::vector<Index>> candidatesOf(std::span<const koloBucketItem_t> items, const Rules& rules) {
  std::map<Class, std::size_t> numbers;
  std::vector<std::vector<Index>> classes;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!reduces(items[i]) && items[i].collective != koloCollectiveAllGather) continue;
    if (rules.mayMerge && !rules.mayMerge(i)) continue;
    const auto [found, isNew] = numbers.try_emplace(classOf(items[i], rules.mixesDatatypes), classes.size());
    if (isNew) classes.emplace_back();
    classes[found->second].push_back(static_cast<Index>(i));
  }
  return classes;
}

Plan makePlan(std::span<const koloBucketItem_t> items, std::vector<std::vector<Index>> buckets) {
  Plan made;
  made.bucketOf.assign(items.size(), KOLO_NO_BUCKET);
  for (std::vector<Index>& bucket : buckets) std::sort(bucket.begin(), bucket.end());
  std::sort(buckets.begin(), buckets.end(), [](const auto& a, const auto& b) { return a.front() < b.front(); });
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    for (const Index item : buckets[i]) made.bucketOf[item] = static_cast<int>(i);
    const bool isGather = items[buckets[i].front()].collective == koloCollectiveAllGather;
    made.launchAt.push_back(isGather ? buckets[i].front() : buckets[i].back());
  }
  return made;
}

}  // namespace

Result<Plan> plan(std::span<const koloBucketItem_t> items, const Rules& rules) {
  KOLO_TRY(check(items));
  Graph graph(items);
  std::vector<std::vector<Index>> buckets;
  std::vector<int> reached(items.size());
  int stamp = 0;
  for (std::vector<Index>& candidates : candidatesOf(items, rules)) {
    if (candidates.size() < 2) continue;
    KOLO_ASSIGN(std::vector<std::vector<Index>> filled,
                Filling(items, rules).fill(graph, std::move(candidates), reached, stamp));
    if (filled.empty()) continue;
    for (const std::vector<Index>& bucket : filled) graph.merge(bucket);
    graph.sort();
    buckets.insert(buckets.end(), filled.begin(), filled.end());
  }
  return makePlan(items, std::move(buckets));
}

}  // namespace kolo::buckets
