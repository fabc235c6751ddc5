// Plans of buckets: the rules of the seed document, each by its number there, a naive planner to compare with, and
// input that is wrong.
#include <kolo/kolo.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "support/seed.h"

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

koloComm_t communicator(std::uintptr_t number) { return reinterpret_cast<koloComm_t>(number); }

struct Item {
  koloCollective_t collective = koloCollectiveAllGather;
  std::size_t bytes = kMiB;
  std::vector<std::size_t> dependsOn;
  koloDataType_t datatype = koloFloat32;
  koloRedOp_t op = koloSum;
  std::uintptr_t comm = 1;
};

struct Rules {
  std::function<double(int)> cap;
  std::function<bool(std::size_t)> filter;
  bool mixes = false;
};

struct Planned {
  koloResult_t result = koloSuccess;
  std::vector<int> bucketOf;
  std::vector<std::size_t> launchAt;
};

std::vector<koloBucketItem_t> given(const std::vector<Item>& items) {
  std::vector<koloBucketItem_t> all;
  for (const Item& item : items) {
    all.push_back({item.bytes, item.datatype, item.collective, item.op, communicator(item.comm),
                   item.dependsOn.empty() ? nullptr : item.dependsOn.data(), item.dependsOn.size()});
  }
  return all;
}

Planned plan(const std::vector<Item>& items, const Rules& rules = {}) {
  Planned planned;
  planned.bucketOf.resize(items.size(), -7);
  planned.launchAt.resize(items.size());
  std::size_t buckets = 0;
  Rules copy = rules;
  const auto cap = [](int bucket, void* context) { return static_cast<Rules*>(context)->cap(bucket); };
  const auto filter = [](std::size_t item, void* context) {
    return static_cast<Rules*>(context)->filter(item) ? 1 : 0;
  };
  const std::vector<koloBucketItem_t> all = given(items);
  planned.result =
      koloBucketPlan(all.data(), all.size(), rules.cap ? +cap : nullptr, rules.filter ? +filter : nullptr, &copy,
                     rules.mixes ? 1 : 0, planned.bucketOf.data(), planned.launchAt.data(), &buckets);
  planned.launchAt.resize(buckets);
  return planned;
}

std::vector<int> bucketsOf(const std::vector<Item>& items, const Rules& rules = {}) {
  const Planned planned = plan(items, rules);
  REQUIRE(planned.result == koloSuccess);
  return planned.bucketOf;
}

Rules capped(double megabytes) {
  return {[megabytes](int) { return megabytes; }, {}, false};
}

constexpr int kNone = KOLO_NO_BUCKET;
constexpr koloCollective_t kGather = koloCollectiveAllGather, kScatter = koloCollectiveReduceScatter,
                           kReduce = koloCollectiveAllReduce, kOther = koloCollectiveBarrier;

// ---- a planner without ideas

using Bucket = std::vector<std::size_t>;

// Whether item `from` needs item `to`, where all of a bucket need what one member needs.
bool needs(const std::vector<Item>& items, const std::vector<Bucket>& buckets, std::size_t from, std::size_t to) {
  std::set<std::size_t> seen, todo = {from};
  const auto addBucketOf = [&](std::size_t item) {
    todo.insert(item);
    for (const Bucket& bucket : buckets) {
      if (std::find(bucket.begin(), bucket.end(), item) != bucket.end()) todo.insert(bucket.begin(), bucket.end());
    }
  };
  addBucketOf(from);
  while (!todo.empty()) {
    const std::size_t item = *todo.begin();
    todo.erase(todo.begin());
    if (!seen.insert(item).second) continue;
    for (const std::size_t other : items[item].dependsOn) {
      if (other == to) return true;
      if (seen.count(other) == 0) addBucketOf(other);
    }
  }
  return false;
}

// The items in an order in which each follows what it needs, as the last order had them otherwise.
std::vector<std::size_t> sorted(const std::vector<Item>& items, const std::vector<Bucket>& buckets,
                                const std::vector<std::size_t>& before) {
  std::vector<std::size_t> after;
  const std::function<void(std::size_t)> put = [&](std::size_t item) {
    if (std::find(after.begin(), after.end(), item) != after.end()) return;
    Bucket together = {item};
    for (const Bucket& bucket : buckets) {
      if (std::find(bucket.begin(), bucket.end(), item) != bucket.end()) together = bucket;
    }
    // The last one's first, as a stack gives them.
    for (auto member = together.rbegin(); member != together.rend(); ++member) {
      const std::vector<std::size_t>& all = items[*member].dependsOn;
      for (auto other = all.rbegin(); other != all.rend(); ++other) put(*other);
    }
    after.insert(after.end(), together.begin(), together.end());
  };
  for (const std::size_t item : before) put(item);
  return after;
}

Planned planNaively(const std::vector<Item>& items, const Rules& rules) {
  using Class = std::tuple<std::uintptr_t, koloCollective_t, int, int>;
  std::vector<Class> classes;
  std::map<Class, std::vector<std::size_t>> members;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    if (item.collective != kGather && item.collective != kScatter && item.collective != kReduce) continue;
    if (rules.filter && !rules.filter(i)) continue;
    const Class its = {item.comm, item.collective, rules.mixes ? -1 : item.datatype,
                       item.collective == kGather ? -1 : item.op};
    if (members[its].empty()) classes.push_back(its);
    members[its].push_back(i);
  }
  std::vector<Bucket> buckets;
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) order[i] = i;
  for (const Class& its : classes) {
    const std::vector<std::size_t>& all = members[its];
    std::vector<Bucket> filled;
    Bucket open;
    double bytes = 0;
    int number = 0;
    for (const std::size_t item : order) {
      if (std::find(all.begin(), all.end(), item) == all.end()) continue;
      if (std::any_of(open.begin(), open.end(),
                      [&](std::size_t member) { return needs(items, buckets, item, member); })) {
        continue;
      }
      const double cap = (rules.cap ? rules.cap(number) : 2000.0) * static_cast<double>(kMiB);
      const auto size = static_cast<double>(items[item].bytes);
      if (!open.empty() && bytes + size > cap) {
        filled.push_back(open);
        open.clear();
        bytes = 0;
        ++number;
      }
      open.push_back(item);
      bytes += size;
    }
    filled.push_back(open);
    for (const Bucket& bucket : filled) {
      if (bucket.size() > 1) buckets.push_back(bucket);
    }
    order = sorted(items, buckets, order);
  }
  Planned planned;
  planned.bucketOf.assign(items.size(), kNone);
  for (Bucket& bucket : buckets) std::sort(bucket.begin(), bucket.end());
  std::sort(buckets.begin(), buckets.end());
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    for (const std::size_t item : buckets[i]) planned.bucketOf[item] = static_cast<int>(i);
    planned.launchAt.push_back(items[buckets[i].front()].collective == kGather ? buckets[i].front()
                                                                               : buckets[i].back());
  }
  return planned;
}

// Whether the program can be carried out with each bucket as one step.
bool canRun(const std::vector<Item>& items, const std::vector<int>& bucketOf) {
  const std::size_t n = items.size();
  std::vector<bool> done(n);
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t i = 0; i < n; ++i) {
      if (done[i]) continue;
      bool isReady = true;
      for (std::size_t k = 0; k < n; ++k) {
        const bool isTogether = k == i || (bucketOf[i] != kNone && bucketOf[k] == bucketOf[i]);
        for (const std::size_t other : items[k].dependsOn) isReady = isReady && (!isTogether || done[other]);
      }
      if (!isReady) continue;
      for (std::size_t k = 0; k < n; ++k)
        if (k == i || (bucketOf[i] != kNone && bucketOf[k] == bucketOf[i])) done[k] = true;
      moves = true;
    }
  }
  return std::all_of(done.begin(), done.end(), [](bool each) { return each; });
}

std::vector<Item> randomItems(std::mt19937_64& random, std::size_t count, int classes, int density) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  constexpr koloCollective_t kKinds[] = {kGather, kScatter, kReduce, kOther};
  constexpr koloDataType_t kTypes[] = {koloFloat32, koloBfloat16};
  std::vector<Item> items(count);
  for (std::size_t i = 0; i < count; ++i) {
    Item& item = items[i];
    item.bytes = below(5) * kMiB / 2 + below(3);
    if (classes > 1) {
      item.collective = kKinds[below(4)];
      item.datatype = kTypes[below(2)];
      item.op = below(4) == 0 ? koloMax : koloSum;
      item.comm = 1 + below(2);
    }
    for (std::size_t k = 0; k < i && i > 0 && static_cast<int>(below(100)) < density; ++k)
      item.dependsOn.push_back(below(i));
  }
  return items;
}

// Programs and rules of all kinds.
void planAtRandom(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int program = 0; program < 420; ++program) {
    const int classes = program % 3 == 0 ? 1 : 2, density = program % 5 * 20;
    const std::vector<Item> items = randomItems(random, 1 + random() % 24, classes, density);
    Rules rules;
    rules.mixes = program % 7 == 0;
    if (program % 4 != 0) rules.cap = [program](int bucket) { return 1 + (bucket + program) % 5; };
    if (program % 6 == 1) rules.filter = [](std::size_t item) { return item % 5 != 2; };
    const Planned planned = plan(items, rules);
    INFO("program " << program);
    REQUIRE(planned.result == koloSuccess);
    REQUIRE(canRun(items, planned.bucketOf));
    const Planned expected = planNaively(items, rules);
    REQUIRE(planned.bucketOf == expected.bucketOf);
    REQUIRE(planned.launchAt == expected.launchAt);
  }
}

}  // namespace

TEST_CASE("S2.1 a bucket never mixes communicators, collectives, datatypes or reductions") {
  CHECK(bucketsOf({{}, {}, {.comm = 2}, {.comm = 2}}) == std::vector{0, 0, 1, 1});
  CHECK(bucketsOf({{}, {.datatype = koloBfloat16}, {}, {.datatype = koloBfloat16}}) == std::vector{0, 1, 0, 1});
  CHECK(bucketsOf({{kScatter}, {kGather}, {kReduce}, {kScatter}, {kGather}, {kReduce}}) ==
        std::vector{0, 1, 2, 0, 1, 2});
  const Item maximum{.collective = kScatter, .op = koloMax};
  CHECK(bucketsOf({{kScatter}, maximum, {kScatter}, maximum}) == std::vector{0, 1, 0, 1});
  // Reduce-scatters are told apart by the datatype as well.
  const Item narrow{.collective = kScatter, .datatype = koloBfloat16};
  CHECK(bucketsOf({{kScatter}, narrow, {kScatter}, narrow}) == std::vector{0, 1, 0, 1});
  // An all-gather has no reduction.
  CHECK(bucketsOf({{.op = koloSum}, {.op = koloMax}}) == std::vector{0, 0});
}

TEST_CASE("S2.1 items that the filter refuses, and other collectives, are not merged") {
  const Rules rules{{}, [](std::size_t item) { return item != 1; }, false};
  CHECK(bucketsOf({{}, {}, {}}, rules) == std::vector{0, kNone, 0});
  CHECK(bucketsOf({{kOther}, {kOther}, {}, {}}) == std::vector{kNone, kNone, 0, 0});
}

TEST_CASE("S2.2 a bucket is closed by the item that does not fit under its cap") {
  CHECK(bucketsOf({{}, {}, {}, {}, {}}, capped(2)) == std::vector{0, 0, 1, 1, kNone});
  CHECK(bucketsOf({{}, {}, {}, {}}, capped(4)) == std::vector{0, 0, 0, 0});
  CHECK(bucketsOf({{}, {}, {.bytes = 1}}, capped(2)) == std::vector{0, 0, kNone});
  CHECK(bucketsOf({{.bytes = kMiB / 2}, {.bytes = kMiB / 2}, {.bytes = 0}}, capped(1)) == std::vector{0, 0, 0});
  // A bucket of one item is not merged.
  CHECK(bucketsOf({{}}) == std::vector{kNone});
  CHECK(bucketsOf({{}, {}, {}}, capped(1)) == std::vector{kNone, kNone, kNone});
  CHECK(bucketsOf({{}, {}}, capped(0)) == std::vector{kNone, kNone});
  CHECK(bucketsOf({{}, {}}, capped(std::numeric_limits<double>::infinity())) == std::vector{0, 0});
  CHECK(bucketsOf({{.bytes = SIZE_MAX}, {.bytes = SIZE_MAX}}) == std::vector{kNone, kNone});
}

TEST_CASE("S2.2 an item above the cap has a bucket of its own") {
  CHECK(bucketsOf({{}, {}, {.bytes = 9 * kMiB}, {}, {}}, capped(2)) == std::vector{0, 0, kNone, 1, 1});
  CHECK(bucketsOf({{.bytes = 9 * kMiB}, {}, {}}, capped(2)) == std::vector{kNone, 0, 0});
}

TEST_CASE("S2.2 the cap is 2000 MiB unless a function gives another") {
  CHECK(bucketsOf({{.bytes = 1000 * kMiB}, {.bytes = 1000 * kMiB}, {.bytes = 1}}) == std::vector{0, 0, kNone});
}

TEST_CASE("S2.2 S2.8 the cap is asked for anew for each bucket of a class, for all-gathers too") {
  for (const koloCollective_t collective : {kGather, kScatter, kReduce}) {
    std::vector<int> asked;
    const Rules rules{[&](int bucket) {
                        asked.push_back(bucket);
                        return bucket + 1.0;
                      },
                      {},
                      false};
    const Item item{.collective = collective};
    CHECK(bucketsOf({item, item, item, item, item, item, item}, rules) == std::vector{kNone, 0, 0, 1, 1, 1, kNone});
    CHECK(asked == std::vector{0, 1, 2, 3});
    // Each class counts its own.
    asked.clear();
    const Item other{.collective = collective, .comm = 2};
    (void)bucketsOf({item, other, item, other}, rules);
    CHECK(asked == std::vector{0, 1, 0, 1});
  }
}

TEST_CASE("S2.3 an item that depends on a member, through whatever, is skipped by the bucket and not deferred") {
  CHECK(bucketsOf({{}, {.dependsOn = {0}}}) == std::vector{kNone, kNone});
  CHECK(bucketsOf({{}, {.dependsOn = {0}}, {}}) == std::vector{0, kNone, 0});
  // Through an item of another class, one that is not merged, and one that was skipped.
  CHECK(bucketsOf({{}, {.dependsOn = {0}, .comm = 2}, {.dependsOn = {1}}, {}}) == std::vector{0, kNone, kNone, 0});
  CHECK(bucketsOf({{}, {.collective = kOther, .dependsOn = {0}}, {.dependsOn = {1}}, {}}) ==
        std::vector{0, kNone, kNone, 0});
  CHECK(bucketsOf({{}, {.dependsOn = {0}}, {.dependsOn = {1}}, {}}) == std::vector{0, kNone, kNone, 0});
  // The skipped item is in no later bucket either, and closes none, even if it would not fit.
  CHECK(bucketsOf({{}, {.bytes = 9 * kMiB, .dependsOn = {0}}, {}, {}, {}}, capped(2)) ==
        std::vector{0, kNone, 0, 1, 1});
}

TEST_CASE("S2.3 the set of dependencies begins anew with each bucket") {
  CHECK(bucketsOf({{}, {}, {}, {.dependsOn = {0}}}, capped(2)) == std::vector{0, 0, 1, 1});
}

TEST_CASE("S2.3 the launch place of a gather bucket is its first member's, that of other buckets their last member's") {
  const Planned planned = plan({{kReduce}, {kScatter}, {kGather}, {kGather}, {kScatter}, {kReduce}});
  CHECK(planned.bucketOf == std::vector{0, 1, 2, 2, 1, 0});
  CHECK(planned.launchAt == std::vector<std::size_t>{5, 4, 2});
}

TEST_CASE("S2.3 buckets of different classes cannot come to wait for each other") {
  // Item 1 needs a bucket's first member, and its second member needs item 2: 1 and 2 cannot be one.
  const std::vector<Item> crossed = {{.comm = 1}, {.dependsOn = {0}, .comm = 2}, {.comm = 2}, {.dependsOn = {2}}};
  CHECK(bucketsOf(crossed) == std::vector{0, kNone, kNone, 0});
  CHECK(canRun(crossed, bucketsOf(crossed)));
  CHECK_FALSE(canRun(crossed, {0, 1, 1, 0}));
}

TEST_CASE("S2.8 a bucket may mix datatypes if it is asked to") {
  const Rules rules{{}, {}, true};
  CHECK(bucketsOf({{}, {.datatype = koloBfloat16}, {.comm = 2}}, rules) == std::vector{0, 0, kNone});
  CHECK(bucketsOf({{kScatter}, {.collective = kScatter, .datatype = koloInt8}, {.collective = kScatter, .op = koloMax}},
                  rules) == std::vector{0, 0, kNone});
}

TEST_CASE("S2.1 S2.2 S2.3 random programs are planned as a naive planner does it, and can be carried out") {
  for (kolo::test::Rounds rounds(7); rounds.next();) planAtRandom(rounds.seed());
}

TEST_CASE("S2.2 ten thousand items, and chains of as many, are planned") {
  constexpr std::size_t kItems = 10000;
  std::vector<Item> items(kItems);
  for (std::size_t i = 0; i < kItems; ++i) {
    items[i].collective = i % 2 == 0 ? kGather : kOther;
    if (i > 0) items[i].dependsOn = {i - 1, i / 2, i / 3};
  }
  CHECK(bucketsOf(items) == std::vector<int>(kItems, kNone));
  for (Item& item : items) item.dependsOn.clear();
  const std::vector<int> merged = bucketsOf(items, capped(20));
  CHECK(merged[0] == 0);
  CHECK(merged[kItems - 2] == 249);
  // Pairs of a class each: the graph is sorted again for each of them.
  constexpr std::size_t kPairs = 500;
  items.resize(2 * kPairs);
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = {.collective = kScatter, .comm = 1 + i % kPairs};
  CHECK(bucketsOf(items).back() == static_cast<int>(kPairs) - 1);
}

TEST_CASE("S2.3 dependencies on later items, cycles and indices out of range are refused by name") {
  const auto refusal = [](const std::vector<Item>& items) {
    const Planned planned = plan(items);
    CHECK(planned.result == koloInvalidArgument);
    CHECK(planned.bucketOf == std::vector<int>(items.size(), -7));  // nothing was written
    return std::string(koloGetLastError(nullptr));
  };
  CHECK(refusal({{}, {.dependsOn = {2}}, {}}).find("items[1].dependsOn[0] is 2: expected an item before item 1") !=
        std::string::npos);
  CHECK(refusal({{.dependsOn = {0}}}).find("items[0].dependsOn[0] is 0") != std::string::npos);
  CHECK(refusal({{.dependsOn = {1}}, {.dependsOn = {0}}}).find("no cycles") != std::string::npos);
  CHECK(refusal({{}, {.dependsOn = {0, 99}}}).find("items[1].dependsOn[1] is 99, expected an index below 1") !=
        std::string::npos);
  CHECK(refusal({{}, {.collective = static_cast<koloCollective_t>(99)}}).find("items[1].collective is 99") !=
        std::string::npos);
}

TEST_CASE("S2.2 other arguments of a plan that are wrong are refused") {
  CHECK(plan({{}, {.datatype = static_cast<koloDataType_t>(99)}}).result == koloInvalidDatatype);
  CHECK(plan({{.collective = kReduce, .op = static_cast<koloRedOp_t>(-3)}}).result == koloInvalidOperation);
  CHECK(plan({{}, {}}, capped(-1)).result == koloInvalidArgument);
  CHECK(plan({{}, {}}, capped(std::numeric_limits<double>::quiet_NaN())).result == koloInvalidArgument);
  CHECK(std::string(koloGetLastError(nullptr)).find("the cap of bucket 0 is nan MiB") != std::string::npos);
  CHECK(plan({}).result == koloSuccess);
  int bucket = 0;
  koloBucketItem_t item{};
  item.collective = kGather;
  CHECK(koloBucketPlan(nullptr, 1, nullptr, nullptr, nullptr, 0, &bucket, nullptr, nullptr) == koloInvalidPointer);
  CHECK(koloBucketPlan(&item, 1, nullptr, nullptr, nullptr, 0, nullptr, nullptr, nullptr) == koloInvalidPointer);
  CHECK(koloBucketPlan(&item, 1, nullptr, nullptr, nullptr, 2, &bucket, nullptr, nullptr) == koloInvalidArgument);
  item.dependencies = 1;
  CHECK(koloBucketPlan(&item, 1, nullptr, nullptr, nullptr, 0, &bucket, nullptr, nullptr) == koloInvalidPointer);
  item.dependencies = 0;
  CHECK(koloBucketPlan(&item, 1, nullptr, nullptr, nullptr, 0, &bucket, nullptr, nullptr) == koloSuccess);
  CHECK(bucket == kNone);
}
