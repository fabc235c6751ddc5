// What is remembered of the lists that callers give again and again.
#include "collectives/list_calls.h"

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

namespace kolo::collectives {
namespace {

constexpr ListCall kGather = {device::Collective::kAllGather, 1, 3, 0};

// Items of this rank, at places that nobody looks at.
std::vector<koloItem_t> itemsAt(std::uintptr_t place, std::size_t count) {
  std::vector<koloItem_t> items(count);
  for (koloItem_t& item : items) {
    item.sendbuf = reinterpret_cast<void*>(place);
    item.recvbuf = reinterpret_cast<void*>(place + 64);
    item.count = 3;
    item.sendtype = item.transfertype = item.recvtype = koloFloat32;
    place += 128;
  }
  return items;
}

// The list of a call that is carried out.
template <class Given>
const List* listOf(PreparedOperations& operations, const ListCall& call, const Given& given) {
  const Result<std::shared_ptr<const List>> found = findList(operations, call, given);
  REQUIRE(found.ok());
  Operation operation;
  operation.over(found.value());
  if (!operations.recall(operation)) {
    operations.make().list = operation.list;
    operations.remember(operation);
  }
  CHECK(operations.recall(wordsOf(call, given)));
  return operations.current().list.get();
}
const List* foundBy(PreparedOperations& operations, const ListCall& call, const std::vector<koloItem_t>& items) {
  return listOf(operations, call, ItemsCall{items.data(), items.size()});
}

TEST_CASE("S1.5 a list of ten thousand items, and a hundred buckets in turn, are read once") {
  PreparedOperations cache(1, 3);
  const std::vector<koloItem_t> longest = itemsAt(1 << 20, 10'000);
  std::vector<std::vector<koloItem_t>> buckets;
  for (std::uintptr_t i = 0; i < 100; ++i) buckets.push_back(itemsAt((i + 2) << 30, 50 + i));
  const List* const first = foundBy(cache, kGather, longest);
  CHECK(first->items.size() == 10'000);
  std::vector<const List*> made;
  for (const auto& bucket : buckets) made.push_back(foundBy(cache, kGather, bucket));
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < buckets.size(); ++i) REQUIRE(foundBy(cache, kGather, buckets[i]) == made[i]);
    REQUIRE(foundBy(cache, kGather, longest) == first);
  }
}

TEST_CASE("S1.5 a list of which one word differs is another one") {
  PreparedOperations cache(1, 3);
  std::vector<koloItem_t> items = itemsAt(1 << 20, 5);
  const List* const first = foundBy(cache, kGather, items);
  items[4].count = 4;
  const List* const longer = foundBy(cache, kGather, items);
  CHECK(longer != first);
  CHECK(longer->items[4].send.extents != first->items[4].send.extents);
  items[4].count = 3;
  CHECK(foundBy(cache, kGather, items) == first);
  items[2].recvtype = koloBfloat16;
  CHECK(foundBy(cache, kGather, items) != first);
  items[2].recvtype = koloFloat32;
  CHECK(foundBy(cache, {device::Collective::kAllToAll, 1, 3, 0}, items) != first);
}

// An array of 6 x 6 float32 on 3 ranks, of which a rank has 6 x 2 before and 2 x 6 afterwards.
struct Exchange {
  std::size_t before[2] = {6, 2}, after[2] = {2, 6}, all[2] = {6, 6}, alike[3] = {2, 2, 2}, uneven[3] = {3, 2, 1};
  koloArray_t sent{2, before, nullptr}, received{2, after, nullptr}, whole{2, all, nullptr};
  koloItem_t item = itemsAt(1 << 20, 1).front();

  Exchange() {
    item.count = 0;
    item.sendarray = &sent;
    item.recvarray = &received;
  }
};

TEST_CASE("S1.8 an exchange of axes is read once, and one of other lengths is another one") {
  constexpr ListCall kExchange = {device::Collective::kAllToAll, 1, 3, 0};
  PreparedOperations cache(1, 3);
  Exchange exchange;
  const auto found = [&](int split, int concat, const std::size_t* splits) {
    return listOf(cache, kExchange, AxisCall{&exchange.item, split, concat, splits, exchange.alike});
  };
  const List* const first = found(0, 1, nullptr);
  CHECK(found(0, 1, nullptr) == first);
  CHECK(found(0, 1, exchange.alike) != first);  // the same lengths, said in another way
  const List* const uneven = found(0, 1, exchange.uneven);
  CHECK(uneven->items[0].send.extents == std::vector<std::uint64_t>{3, 2, 1});
  exchange.uneven[0] = 2, exchange.uneven[1] = 2, exchange.uneven[2] = 2;
  CHECK(found(0, 1, exchange.uneven)->items[0].send.extents == std::vector<std::uint64_t>{2, 2, 2});
  exchange.before[0] = 2, exchange.before[1] = 6, exchange.after[0] = 6, exchange.after[1] = 2;
  CHECK(found(1, 0, nullptr) != first);
}

TEST_CASE("S4.4 a reshard is read once, and its collective and root are remembered with it") {
  constexpr ListCall kCall = {device::Collective::kBarrier, 1, 3, 0};
  PreparedOperations cache(1, 3);
  Exchange exchange;
  const auto found = [&](int from, int to, const std::size_t* parts) {
    exchange.item.sendarray = exchange.item.recvarray = nullptr;
    return listOf(cache, kCall, ReshardCall{&exchange.item, &exchange.whole, from, to, parts, nullptr});
  };
  const List* const columnsToRows = found(1, 0, nullptr);
  CHECK(columnsToRows->collective == device::Collective::kAllToAll);
  const List* const columnsToOne = found(1, KOLO_ON_RANK(2), nullptr);
  CHECK(columnsToOne->collective == device::Collective::kGather);
  CHECK(columnsToOne->root == 2);
  CHECK(found(1, 0, nullptr) == columnsToRows);
  CHECK(found(1, KOLO_ON_RANK(2), nullptr) == columnsToOne);
  CHECK(found(1, KOLO_ON_RANK(2), exchange.uneven) != columnsToOne);
  // Lengths that no place asks for are not read.
  CHECK(found(KOLO_ON_RANK(0), 0, reinterpret_cast<const std::size_t*>(8)) != nullptr);
  const koloArray_t refused{1, nullptr, nullptr};
  CHECK_FALSE(findList(cache, kCall, ReshardCall{&exchange.item, &refused, 0, 0, nullptr, nullptr}).ok());
  CHECK_FALSE(findList(cache, kCall, ReshardCall{&exchange.item, nullptr, 0, 0, nullptr, nullptr}).ok());
}

}  // namespace
}  // namespace kolo::collectives
