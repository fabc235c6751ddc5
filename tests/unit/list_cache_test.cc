// What is remembered of the lists that callers give again and again.
#include "collectives/list_cache.h"

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

const List* foundBy(ListCache& cache, const ListCall& call, const std::vector<koloItem_t>& items) {
  const Result<std::shared_ptr<const List>> found = cache.find(call, items.data(), items.size());
  REQUIRE(found.ok());
  return found.value().get();
}

TEST_CASE("S1.5 a list of ten thousand items, and a hundred buckets in turn, are read once") {
  ListCache cache;
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
  ListCache cache;
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

TEST_CASE("S1.5 lists are remembered up to a number of bytes") {
  const std::vector<koloItem_t> small = itemsAt(1 << 20, 2), large = itemsAt(1 << 30, 100), more = itemsAt(2 << 20, 60);
  ListCache cache(60'000);
  const std::weak_ptr<const List> made = cache.find(kGather, small.data(), small.size()).value();
  const List* const long_ = foundBy(cache, kGather, large);
  REQUIRE(memoryOf(*long_) > 30'000);
  REQUIRE(memoryOf(*long_) < 50'000);
  CHECK_FALSE(made.expired());
  (void)foundBy(cache, kGather, more);
  CHECK(made.expired());
  CHECK(foundBy(cache, kGather, more)->items.size() == 60);
}

}  // namespace
}  // namespace kolo::collectives
