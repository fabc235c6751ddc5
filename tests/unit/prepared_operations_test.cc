#include "collectives/prepared_operations.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <memory>
#include <vector>

namespace kolo::collectives {
namespace {

Operation bucket(std::uint64_t count) {
  Operation operation;
  operation.collective = device::Collective::kAllReduce;
  operation.count = count;
  return operation;
}

void add(PreparedOperations& operations, const Operation& operation) {
  Prepared& made = operations.make();
  made.work.header.count = operation.count;
  made.counts = operation.counts;
  operations.remember(operation);
}

Operation exchange(std::vector<std::uint64_t> counts, int root = 0,
                   device::Collective collective = device::Collective::kAllToAll) {
  Operation operation;
  operation.collective = collective;
  operation.vector = true;
  operation.root = root;
  auto taken = std::make_shared<VectorCounts>();
  taken->sendCounts = counts;
  taken->sendDispls = {0, counts.empty() ? 0 : counts.front()};
  operation.counts = std::move(taken);
  return operation;
}

TEST_CASE("every bucket of a model is prepared once") {
  PreparedOperations operations(0, 2);
  for (std::uint64_t count = 1; count <= 100; ++count) {
    CHECK_FALSE(operations.recall(bucket(count)));
    add(operations, bucket(count));
  }
  for (std::uint64_t count = 1; count <= 100; ++count) {
    REQUIRE(operations.recall(bucket(count)));
    CHECK(operations.current().work.header.count == count);
  }
}

TEST_CASE("of more operations than are kept, those used last stay") {
  PreparedOperations operations(0, 2);
  const std::uint64_t most = PreparedOperations::kMost;
  for (std::uint64_t count = 1; count <= most; ++count) add(operations, bucket(count));
  CHECK(operations.recall(bucket(1)));
  add(operations, bucket(most + 1));
  CHECK(operations.recall(bucket(1)));
  CHECK_FALSE(operations.recall(bucket(2)));
  CHECK(operations.recall(bucket(3)));
  CHECK(operations.recall(bucket(most + 1)));
}

TEST_CASE("what was forgotten is not recalled, and its place is used again") {
  PreparedOperations operations(0, 2);
  for (std::uint64_t count = 1; count <= 3 * PreparedOperations::kMost; ++count) {
    add(operations, bucket(count));
    if (count % 100 == 0) {
      const Prepared* const last = &operations.current();
      operations.forget();
      CHECK(&operations.current() == last);
      CHECK(last->work.header.count == count);
      CHECK_FALSE(operations.recall(bucket(count)));
      CHECK_FALSE(operations.recall(bucket(count - 1)));
    }
  }
}

TEST_CASE("what is outdated is not recalled, and what is prepared then is") {
  PreparedOperations operations(0, 2);
  add(operations, bucket(1));
  add(operations, exchange({1, 2}));
  operations.outdate();
  CHECK_FALSE(operations.recall(exchange({1, 2})));
  CHECK_FALSE(operations.recall(bucket(1)));
  add(operations, bucket(1));
  add(operations, bucket(2));
  CHECK(operations.recall(bucket(1)));
  CHECK(operations.recall(bucket(2)));
  CHECK_FALSE(operations.recall(exchange({1, 2})));
}

TEST_CASE("an operation that is not remembered takes no place for long") {
  PreparedOperations operations(0, 2);
  add(operations, bucket(1));
  const Prepared* const first = &operations.make();
  for (int i = 0; i < 10; ++i) CHECK(&operations.make() == first);
  CHECK(operations.recall(bucket(1)));
}

Operation listOf(std::size_t items, std::uint64_t count) {
  Operation operation = bucket(count);
  auto list = std::make_shared<List>();
  list->items.resize(items);
  list->said = {count};
  operation.list = list;
  return operation;
}

TEST_CASE("S1.5 lists are kept up to a number of bytes, those used last") {
  constexpr std::size_t kLong = 100;
  const std::uint64_t bytes = memoryOf(*listOf(kLong, 1).list);
  PreparedOperations operations(0, 2, 4 * bytes);
  const auto addList = [&](const Operation& operation) {
    operations.make().list = operation.list;
    operations.remember(operation);
  };
  for (std::uint64_t count = 1; count <= 4; ++count) addList(listOf(kLong, count));
  for (std::uint64_t count = 1; count <= 4; ++count) REQUIRE(operations.recall(listOf(kLong, count)));
  CHECK(operations.recall(listOf(kLong, 1)));
  addList(listOf(1, 5));
  CHECK_FALSE(operations.recall(listOf(kLong, 2)));
  for (const std::uint64_t count : {1u, 3u, 4u}) CHECK(operations.recall(listOf(kLong, count)));
  addList(listOf(5 * kLong, 6));
  CHECK(operations.recall(listOf(5 * kLong, 6)));
  CHECK_FALSE(operations.recall(listOf(1, 5)));
}

TEST_CASE("a v-variant is recalled by its counts and displacements") {
  PreparedOperations operations(0, 2);
  for (std::uint64_t i = 0; i < 50; ++i) add(operations, exchange({i, 7}));
  for (std::size_t i = 0; i < 50; ++i) {
    const std::vector<std::size_t> counts{i, 7}, displs{0, i}, others{1, i};
    const Call call = exchange({i, 7});
    REQUIRE(operations.recall(call, CountArrays{.sendCounts = counts.data()}));
    CHECK(operations.current().counts->sendCounts.front() == i);
    CHECK(operations.recall(call, CountArrays{.sendCounts = counts.data(), .sendDispls = displs.data()}));
    CHECK_FALSE(operations.recall(call, CountArrays{.sendCounts = counts.data(), .sendDispls = others.data()}));
  }
}

TEST_CASE("count arrays of ranks that are not the root are not read") {
  PreparedOperations operations(1, 2);
  Operation scatter = exchange({}, 0, device::Collective::kScatter);
  scatter.counts = std::make_shared<VectorCounts>();
  add(operations, scatter);
  add(operations, bucket(1));
  void* const unreadable = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(unreadable != MAP_FAILED);
  const auto* const counts = static_cast<const std::size_t*>(unreadable);
  CHECK(operations.recall(static_cast<const Call&>(scatter), CountArrays{.sendCounts = counts, .sendDispls = counts}));
  munmap(unreadable, 4096);
}

}  // namespace
}  // namespace kolo::collectives
