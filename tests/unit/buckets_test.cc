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
#include <utility>
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
  std::function<double(const koloBucketItem_t& first, int bucket)> cap;
  std::function<bool(std::size_t)> filter;
  bool mixes = false;
};

struct Planned {
  koloResult_t result = koloSuccess;
  std::vector<int> bucketOf;
  std::vector<std::vector<std::size_t>> steps;
};

std::vector<koloBucketItem_t> given(const std::vector<Item>& items) {
  std::vector<koloBucketItem_t> all;
  for (const Item& item : items) {
    all.push_back({item.bytes, item.datatype, item.collective, item.op, communicator(item.comm),
                   item.dependsOn.empty() ? nullptr : item.dependsOn.data(), item.dependsOn.size(), nullptr});
  }
  return all;
}

Planned plan(const std::vector<Item>& items, const Rules& rules = {}) {
  Planned planned;
  planned.bucketOf.resize(items.size(), -7);
  std::vector<std::size_t> order(items.size(), 99), stepAt(items.size() + 1, 99);
  std::size_t steps = 0;
  Rules copy = rules;
  const auto cap = [](const koloBucketItem_t* first, int bucket, void* context) {
    return static_cast<Rules*>(context)->cap(*first, bucket);
  };
  const auto filter = [](std::size_t item, void* context) {
    return static_cast<Rules*>(context)->filter(item) ? 1 : 0;
  };
  const std::vector<koloBucketItem_t> all = given(items);
  planned.result =
      koloBucketPlan(all.data(), all.size(), rules.cap ? +cap : nullptr, rules.filter ? +filter : nullptr, &copy,
                     rules.mixes ? 1 : 0, planned.bucketOf.data(), order.data(), stepAt.data(), &steps);
  for (std::size_t step = 0; step < steps; ++step)
    planned.steps.emplace_back(order.data() + stepAt[step], order.data() + stepAt[step + 1]);
  return planned;
}

std::vector<int> bucketsOf(const std::vector<Item>& items, const Rules& rules = {}) {
  const Planned planned = plan(items, rules);
  REQUIRE(planned.result == koloSuccess);
  return planned.bucketOf;
}

Rules capped(double megabytes) {
  return {[megabytes](const koloBucketItem_t&, int) { return megabytes; }, {}, false};
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

// The order of the merged program: of all steps that could be next, the one whose place is the first.
std::vector<Bucket> stepsOf(const std::vector<Item>& items, const std::vector<Bucket>& buckets) {
  std::vector<Bucket> waiting = buckets;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto holds = [&](const Bucket& bucket) { return std::find(bucket.begin(), bucket.end(), i) != bucket.end(); };
    if (std::none_of(buckets.begin(), buckets.end(), holds)) waiting.push_back({i});
  }
  const auto isGather = [&](const Bucket& step) { return step.size() > 1 && items[step[0]].collective == kGather; };
  const auto stepNeeds = [&](const Bucket& step, const Bucket& other) {
    return std::any_of(other.begin(), other.end(),
                       [&](std::size_t member) { return needs(items, buckets, step[0], member); });
  };
  std::map<Bucket, std::size_t> places;
  for (const Bucket& step : waiting) {
    places[step] = isGather(step) ? step.front() : step.back();
    for (const Bucket& gather : waiting) {
      if (isGather(gather) && stepNeeds(gather, step)) places[step] = std::min(places[step], gather.front());
    }
  }
  std::sort(waiting.begin(), waiting.end(), [&](const Bucket& a, const Bucket& b) {
    return std::pair(places[a], a.front()) < std::pair(places[b], b.front());
  });
  std::vector<Bucket> steps;
  while (!waiting.empty()) {
    const auto next = std::find_if(waiting.begin(), waiting.end(), [&](const Bucket& step) {
      return std::none_of(waiting.begin(), waiting.end(), [&](const Bucket& other) { return stepNeeds(step, other); });
    });
    steps.push_back(*next);
    waiting.erase(next);
  }
  return steps;
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
  for (const Class& its : classes) {
    Bucket open;
    double bytes = 0, cap = 0;
    int number = 0;
    const auto close = [&] {
      if (open.size() > 1) buckets.push_back(open);
      open.clear();
      bytes = 0;
    };
    for (const std::size_t item : members[its]) {
      const bool isTied = std::any_of(open.begin(), open.end(), [&](std::size_t member) {
        return needs(items, buckets, item, member) || needs(items, buckets, member, item);
      });
      if (isTied) continue;
      const auto size = static_cast<double>(items[item].bytes);
      if (!open.empty() && bytes + size > cap) close();
      if (open.empty())
        cap = (rules.cap ? rules.cap(given(items)[item], number++) : 2000.0) * static_cast<double>(kMiB);
      open.push_back(item);
      bytes += size;
    }
    close();
  }
  Planned planned;
  planned.bucketOf.assign(items.size(), kNone);
  std::sort(buckets.begin(), buckets.end());
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    for (const std::size_t item : buckets[i]) planned.bucketOf[item] = static_cast<int>(i);
  }
  planned.steps = stepsOf(items, buckets);
  return planned;
}

// Whether the steps, in their order, have each item once, and each behind what it needs; and buckets are whole.
bool canRun(const std::vector<Item>& items, const Planned& planned) {
  std::vector<bool> done(items.size());
  for (const Bucket& step : planned.steps) {
    for (const std::size_t item : step) {
      const std::vector<std::size_t>& all = items[item].dependsOn;
      if (done[item] || !std::all_of(all.begin(), all.end(), [&](std::size_t other) { return done[other]; }))
        return false;
    }
    for (const std::size_t item : step) done[item] = true;
    const int bucket = planned.bucketOf[step[0]];
    const auto size = std::count(planned.bucketOf.begin(), planned.bucketOf.end(), bucket);
    for (const std::size_t item : step)
      if (planned.bucketOf[item] != bucket) return false;
    if (step.size() != (bucket == kNone ? 1 : static_cast<std::size_t>(size))) return false;
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

std::function<double(const koloBucketItem_t&, int)> capByClass(int program) {
  return [program](const koloBucketItem_t& first, int bucket) { return 1 + (bucket + program + first.collective) % 5; };
}

// Programs and rules of all kinds.
void planAtRandom(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int program = 0; program < 420; ++program) {
    const int classes = program % 3 == 0 ? 1 : 2, density = program % 5 * 20;
    const std::vector<Item> items = randomItems(random, 1 + random() % 24, classes, density);
    Rules rules;
    rules.mixes = program % 7 == 0;
    if (program % 4 != 0) rules.cap = capByClass(program);
    if (program % 6 == 1) rules.filter = [](std::size_t item) { return item % 5 != 2; };
    const Planned planned = plan(items, rules);
    INFO("program " << program);
    REQUIRE(planned.result == koloSuccess);
    REQUIRE(canRun(items, planned));
    const Planned expected = planNaively(items, rules);
    REQUIRE(planned.bucketOf == expected.bucketOf);
    REQUIRE(planned.steps == expected.steps);
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
    const Rules rules{[&](const koloBucketItem_t&, int bucket) {
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

TEST_CASE("S2.2 gathers and reductions have caps of their own, and so has every class") {
  const auto cap = [](const koloBucketItem_t& first, int) {
    if (first.collective == kScatter) return 3.0;
    return first.comm == communicator(2) ? 1.0 : first.datatype == koloBfloat16 ? 4.0 : 2.0;
  };
  const Rules rules{cap, {}, false};
  CHECK(bucketsOf({{kScatter}, {}, {kScatter}, {}, {kScatter}, {}, {kScatter}, {}}, rules) ==
        std::vector{0, 1, 0, 1, 0, 2, kNone, 2});
  CHECK(bucketsOf({{.comm = 2}, {.comm = 2}}, rules) == std::vector{kNone, kNone});
  const Item narrow{.datatype = koloBfloat16};
  CHECK(bucketsOf({narrow, narrow, narrow, narrow, narrow}, rules) == std::vector{0, 0, 0, 0, kNone});
  // One plan for both collectives: buckets of two plans could come to wait for each other.
  const std::vector<Item> crossed = {{}, {kScatter, kMiB, {0}}, {kScatter}, {.dependsOn = {2}}};
  CHECK(bucketsOf(crossed, rules) == std::vector{0, kNone, kNone, 0});
}

TEST_CASE("S2.3 the items of a class are taken in the program's order, behind another class's bucket too") {
  const Item other{.comm = 2};
  // The bucket of items 0 and 4 needs item 3, which 1 and 2 come before all the same.
  CHECK(bucketsOf({{}, other, other, other, {.dependsOn = {3}}}, capped(2)) == std::vector{0, 1, 1, kNone, 0});
  // Through the bucket of 0 and 4, item 1 needs item 3: they cannot be one.
  CHECK(bucketsOf({{}, {.dependsOn = {0}, .comm = 2}, other, other, {.dependsOn = {3}}}) ==
        std::vector{0, 1, 1, kNone, 0});
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

TEST_CASE("S2.3 a gather bucket stands at its first member's place, other buckets at their last member's") {
  using Steps = std::vector<Bucket>;
  const Planned planned = plan({{kReduce}, {kScatter}, {kGather}, {kGather}, {kScatter}, {kReduce}});
  CHECK(planned.bucketOf == std::vector{0, 1, 2, 2, 1, 0});
  CHECK(planned.steps == Steps{{2, 3}, {1, 4}, {0, 5}});
  // What a gather bucket needs is moved in front of it; what needs a reduction's results waits behind it.
  CHECK(plan({{kGather}, {kOther}, {kOther}, {kGather, kMiB, {2}}}).steps == Steps{{2}, {0, 3}, {1}});
  CHECK(plan({{kScatter}, {kOther, 0, {0}}, {kOther}, {kScatter}}).steps == Steps{{2}, {0, 3}, {1}});
  // A gather bucket that needs a reduction's bucket draws it, and what that needs.
  CHECK(plan({{kScatter}, {kGather}, {kOther}, {kScatter, kMiB, {2}}, {kGather, kMiB, {0}}}).steps ==
        Steps{{2}, {0, 3}, {1, 4}});
  // Also through an item whose own place is early enough.
  CHECK(plan({{kScatter}, {kOther, 0, {0}}, {kGather}, {kOther}, {kScatter}, {kGather, kMiB, {1}}}).steps ==
        Steps{{0, 4}, {1}, {2, 5}, {3}});
}

TEST_CASE("S2.3 buckets of different classes cannot come to wait for each other") {
  // Item 1 needs a bucket's first member, and its second member needs item 2: 1 and 2 cannot be one.
  const std::vector<Item> crossed = {{.comm = 1}, {.dependsOn = {0}, .comm = 2}, {.comm = 2}, {.dependsOn = {2}}};
  CHECK(bucketsOf(crossed) == std::vector{0, kNone, kNone, 0});
  CHECK(canRun(crossed, plan(crossed)));
}

TEST_CASE("S2.8 a bucket may mix datatypes if it is asked to") {
  const Rules rules{{}, {}, true};
  CHECK(bucketsOf({{}, {.datatype = koloBfloat16}, {.comm = 2}}, rules) == std::vector{0, 0, kNone});
  CHECK(bucketsOf({{kScatter}, {.collective = kScatter, .datatype = koloInt8}, {.collective = kScatter, .op = koloMax}},
                  rules) == std::vector{0, 0, kNone});
}

TEST_CASE(
    "S2.1 S2.2 S2.3 random programs are planned as a naive planner does it, and can be carried out in their order") {
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
  const auto planOne = [&](const koloBucketItem_t* items, int mixes, std::size_t* steps) {
    std::size_t order = 0, stepAt[2] = {};
    return koloBucketPlan(items, 1, nullptr, nullptr, nullptr, mixes, &bucket, &order, stepAt, steps);
  };
  std::size_t steps = 0;
  CHECK(planOne(nullptr, 0, &steps) == koloInvalidPointer);
  CHECK(planOne(&item, 0, nullptr) == koloInvalidPointer);
  CHECK(std::string(koloGetLastError(nullptr)).find("stepCount is NULL") != std::string::npos);
  CHECK(planOne(&item, 2, &steps) == koloInvalidArgument);
  item.dependencies = 1;
  CHECK(planOne(&item, 0, &steps) == koloInvalidPointer);
  item.dependencies = 0;
  CHECK(planOne(&item, 0, &steps) == koloSuccess);
  CHECK(bucket == kNone);
  CHECK(steps == 1);
  bucket = 7;
  CHECK(koloBucketPlan(&item, 1, nullptr, nullptr, nullptr, 0, &bucket, nullptr, nullptr, nullptr) == koloSuccess);
  CHECK(bucket == kNone);
  // The communicator of an item with a transfer is one.
  koloItem_t transfer = KOLO_ITEM_INITIALIZER;
  item.item = &transfer;
  CHECK(planOne(&item, 0, &steps) == koloInvalidHandle);
  CHECK(std::string(koloGetLastError(nullptr)).find("items[0].comm") != std::string::npos);
}
