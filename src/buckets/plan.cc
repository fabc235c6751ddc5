#include "buckets/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/log.h"

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
  static constexpr Index kNone = UINT32_MAX;  // in an order: what was there is in a bucket

  explicit Graph(std::span<const koloBucketItem_t> items)
      : items_(items), nodeOf_(items.size()), members_(items.size()), order_(items.size()), placeOf_(items.size()) {
    std::iota(nodeOf_.begin(), nodeOf_.end(), Index{0});
    std::iota(order_.begin(), order_.end(), Index{0});
    std::iota(placeOf_.begin(), placeOf_.end(), std::size_t{0});
  }

  // An order in which every node follows those that it depends on.
  const std::vector<Index>& order() const { return order_; }
  std::size_t placeOf(Index node) const { return placeOf_[node]; }
  // A bucket's, in the program's order; empty: the node is an item.
  const std::vector<Index>& membersOf(Index node) const { return members_[node]; }

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

  // REQUIRES: none of the items is in a bucket, and none depends on another, directly or not.
  void merge(const std::vector<Index>& items) {
    std::size_t first = placeOf_[items.front()], last = first;
    for (const Index item : items) {
      first = std::min(first, placeOf_[item]);
      last = std::max(last, placeOf_[item]);
      nodeOf_[item] = items.front();
    }
    members_[items.front()] = items;
    sort(first, last + 1);
  }

 private:
  static constexpr std::size_t kUnplaced = SIZE_MAX, kOpen = SIZE_MAX - 1;

  // Makes the order of places [begin, end) anew: the old one, but for nodes that others need earlier. What is in front
  // needs nothing of them, and nothing of them needs what is behind. A depth-first search: a node is placed when all
  // that it depends on are.
  void sort(std::size_t begin, std::size_t end) {
    std::vector<Index> before;
    for (std::size_t at = begin; at < end; ++at) {
      if (order_[at] == kNone) continue;
      before.push_back(nodeOf_[order_[at]]);
      placeOf_[before.back()] = kUnplaced;
    }
    std::size_t next = begin;
    std::vector<Index> open;
    for (const Index first : before) {
      open.push_back(first);
      while (!open.empty()) {
        const Index node = open.back();
        if (placeOf_[node] == kUnplaced) {
          placeOf_[node] = kOpen;
          anyDependency(node, [&](Index other) {
            if (placeOf_[other] == kUnplaced) open.push_back(other);
            return false;
          });
          continue;
        }
        open.pop_back();
        if (placeOf_[node] != kOpen) continue;
        placeOf_[node] = next;
        order_[next++] = node;
      }
    }
    std::fill(order_.begin() + static_cast<std::ptrdiff_t>(next), order_.begin() + static_cast<std::ptrdiff_t>(end),
              kNone);
  }

  std::span<const koloBucketItem_t> items_;
  std::vector<Index> nodeOf_;                // [items]
  std::vector<std::vector<Index>> members_;  // [items], of a bucket's node; else empty
  std::vector<Index> order_;                 // [items]
  std::vector<std::size_t> placeOf_;         // of a node in order_
};

// A bucket's cap in bytes.
Result<std::uint64_t> capOf(const Rules& rules, const koloBucketItem_t& first, int bucket) {
  const double megabytes = rules.capMiB ? rules.capMiB(first, bucket) : kDefaultCapMiB;
  if (!(megabytes >= 0)) {
    return error(koloInvalidArgument, "the cap of bucket {} is {} MiB, expected 0 or more", bucket, megabytes);
  }
  const double bytes = std::floor(std::ldexp(megabytes, 20));
  return bytes < 0x1p63 ? static_cast<std::uint64_t>(bytes) : UINT64_MAX;
}

// Nodes that were reached from somewhere along dependencies. A new round forgets those of the last one.
class Reached {
 public:
  explicit Reached(std::size_t nodes) : rounds_(nodes) {}
  void begin() { ++round_; }
  void add(Index node) { rounds_[node] = round_; }
  bool has(Index node) const { return rounds_[node] == round_; }
  // Of the nodes in places (from, to], which come in an order of the graph, those that depend on some that are.
  void sweep(const Graph& graph, std::size_t from, std::size_t to) {
    for (std::size_t at = from + 1; at <= to; ++at) {
      const Index node = graph.order()[at];
      if (node == Graph::kNone || has(node)) continue;
      if (graph.anyDependency(node, [&](Index other) { return has(other); })) add(node);
    }
  }

 private:
  std::vector<std::uint64_t> rounds_;
  std::uint64_t round_ = 0;
};

// Fills the buckets of one class, one after the other, and merges each of two members or more when it is closed.
class Filling {
 public:
  Filling(std::span<const koloBucketItem_t> items, const Rules& rules, Graph& graph)
      : items_(items), rules_(rules), graph_(graph), users_(items.size()), needs_(items.size()) {}

  // candidates: in the program's order.
  Status fill(const std::vector<Index>& candidates) {
    number_ = 0;
    for (const Index item : candidates) {
      if (isTied(item)) continue;  // skipped: neither in this bucket nor in a later one
      if (isFullFor(item)) {
        sayFull(item);
        close();
      }
      if (open_.empty()) {
        KOLO_ASSIGN(cap_, capOf(rules_, items_[item], number_++));
      }
      add(item);
    }
    close();
    return {};
  }

 private:
  // Whether the item depends on a member of the open bucket, or a member on it: not before it in the program, but
  // through a bucket that was planned earlier.
  bool isTied(Index item) {
    if (open_.empty()) return false;
    const std::size_t place = graph_.placeOf(item);
    if (place > swept_) {
      users_.sweep(graph_, swept_, place);
      swept_ = place;
    }
    if (users_.has(item)) return true;
    if (place > lastMember_) return false;
    needs_.begin();
    needs_.add(item);
    needs_.sweep(graph_, place, lastMember_);
    return std::any_of(open_.begin(), open_.end(), [&](Index member) { return needs_.has(member); });
  }

  void add(Index item) {
    const std::size_t place = graph_.placeOf(item);
    if (open_.empty()) {
      users_.begin();
      swept_ = lastMember_ = place;
    }
    open_.push_back(item);
    bytes_ += items_[item].bytes;
    users_.add(item);
    users_.sweep(graph_, place, swept_);
    lastMember_ = std::max(lastMember_, place);
  }

  bool isFullFor(Index item) const {
    if (open_.empty()) return false;
    return bytes_ > cap_ || items_[item].bytes > cap_ - bytes_;
  }
  void sayFull(Index item) const {
    const koloBucketItem_t& first = items_[open_.front()];
    log::info("bucket {} of {} {} is full: {} bytes in {} items, and item {} has {} bytes; the cap is {} bytes",
              number_ - 1, koloCollectiveName(first.collective),
              rules_.mixesDatatypes ? "of any datatype" : koloDataTypeName(first.datatype), bytes_, open_.size(), item,
              items_[item].bytes, cap_);
  }
  // A bucket of one is not merged.
  void close() {
    if (open_.size() > 1) graph_.merge(open_);
    open_.clear();
    bytes_ = 0;
  }

  std::span<const koloBucketItem_t> items_;
  const Rules& rules_;
  Graph& graph_;
  std::vector<Index> open_;
  std::uint64_t bytes_ = 0, cap_ = 0;
  int number_ = 0;                          // of the bucket that is opened next
  std::size_t swept_ = 0, lastMember_ = 0;  // places: how far users_ is known; of the open bucket's last member
  Reached users_;                           // what depends on the open bucket, and its members
  Reached needs_;                           // what depends on an item
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

// The order in which a program with buckets is carried out: the program's, but for what its buckets ask for. A gather
// bucket stands at the place of its first member, and draws what it needs in front of it. Other buckets stand at the
// place of their last member, and what needs their results waits behind them.
class Schedule {
 public:
  Schedule(std::span<const koloBucketItem_t> items, const Graph& graph)
      : items_(items), graph_(graph), placeOf_(items.size()), waitsFor_(items.size()), users_(items.size()) {
    for (const Index node : graph.order()) {
      if (node == Graph::kNone) continue;
      graph.anyDependency(node, [&](Index other) {
        ++waitsFor_[node];
        users_[other].push_back(node);
        return false;
      });
    }
    findPlaces();
  }

  // The nodes: of those for which nothing is missing, always the one with the first place.
  std::vector<Index> order() {
    std::vector<Index> done;
    std::set<std::pair<Index, Index>> ready;  // place, node
    for (const Index node : graph_.order())
      if (node != Graph::kNone && waitsFor_[node] == 0) ready.emplace(placeOf_[node], node);
    while (!ready.empty()) {
      const Index node = ready.begin()->second;
      ready.erase(ready.begin());
      done.push_back(node);
      for (const Index user : users_[node])
        if (--waitsFor_[user] == 0) ready.emplace(placeOf_[user], user);
    }
    return done;
  }

 private:
  bool isGatherBucket(Index node) const {
    return !graph_.membersOf(node).empty() && items_[node].collective == koloCollectiveAllGather;
  }
  Index ownPlaceOf(Index node) const {
    const std::vector<Index>& members = graph_.membersOf(node);
    return members.empty() || isGatherBucket(node) ? node : members.back();
  }
  // A gather bucket draws to its place all that it needs and that has a later one: from users to what they need.
  void findPlaces() {
    std::vector<Index> drawnTo(items_.size(), UINT32_MAX);
    for (auto at = graph_.order().rbegin(); at != graph_.order().rend(); ++at) {
      const Index node = *at;
      if (node == Graph::kNone) continue;
      placeOf_[node] = std::min(ownPlaceOf(node), drawnTo[node]);
      const Index drawsTo = isGatherBucket(node) ? placeOf_[node] : drawnTo[node];
      graph_.anyDependency(node, [&](Index other) {
        drawnTo[other] = std::min(drawnTo[other], drawsTo);
        return false;
      });
    }
  }

  std::span<const koloBucketItem_t> items_;
  const Graph& graph_;
  std::vector<Index> placeOf_;
  std::vector<std::size_t> waitsFor_;
  std::vector<std::vector<Index>> users_;
};

Plan makePlan(std::span<const koloBucketItem_t> items, const Graph& graph) {
  Plan made;
  made.bucketOf.assign(items.size(), KOLO_NO_BUCKET);
  int buckets = 0;
  for (Index i = 0; i < items.size(); ++i) {
    if (graph.membersOf(i).empty()) continue;
    for (const Index item : graph.membersOf(i)) made.bucketOf[item] = buckets;
    ++buckets;
  }
  for (const Index node : Schedule(items, graph).order()) {
    made.stepAt.push_back(made.order.size());
    const std::vector<Index>& members = graph.membersOf(node);
    if (members.empty()) made.order.push_back(node);
    else made.order.insert(made.order.end(), members.begin(), members.end());
  }
  made.stepAt.push_back(made.order.size());
  return made;
}

}  // namespace

Result<Plan> plan(std::span<const koloBucketItem_t> items, const Rules& rules) {
  KOLO_TRY(check(items));
  Graph graph(items);
  Filling filling(items, rules, graph);
  for (const std::vector<Index>& candidates : candidatesOf(items, rules)) {
    if (candidates.size() > 1) KOLO_TRY(filling.fill(candidates));
  }
  return makePlan(items, graph);
}

}  // namespace kolo::buckets
