#include "collectives/list_cache.h"

#include <bit>
#include <utility>

#include "collectives/hash.h"

namespace kolo::collectives {
namespace {

std::uint64_t wordOf(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
std::uint64_t wordOf(int first, int second) {
  return std::uint64_t{static_cast<std::uint32_t>(first)} << 32 | static_cast<std::uint32_t>(second);
}

// Which function of the cache wrote a key: the first part of its first word.
enum class Kind { kItems, kAxisExchange, kReshard };

std::uint64_t wordOf(Kind kind, const ListCall& call) {
  return wordOf(static_cast<int>(kind) << 8 | static_cast<int>(call.collective), call.root);
}

bool isRefused(const koloArray_t& array) {
  return array.ndim > device::kMostDimensions || (array.ndim > 0 && array.shape == nullptr);
}

// What an array's words begin with. Where it is 0, or the array is refused, no more words follow.
std::uint64_t headOf(const koloArray_t* array) {
  if (array == nullptr) return 0;
  return wordOf(isRefused(*array) ? 3 : array->strides != nullptr ? 2 : 1, array->ndim);
}

// The words behind the head. Of an array that makeList() refuses, no more is read than makeList() reads.
void writeShape(std::vector<std::uint64_t>& key, const koloArray_t* array) {
  if (array == nullptr || isRefused(*array)) return;
  for (int d = 0; d < array->ndim; ++d) key.push_back(array->shape[d]);
  for (int d = 0; d < array->ndim && array->strides != nullptr; ++d)
    key.push_back(static_cast<std::uint64_t>(array->strides[d]));
}

// A length for each rank; null: none are given.
void writeLengths(std::vector<std::uint64_t>& key, const std::size_t* lengths, int ranks) {
  key.push_back(lengths != nullptr);
  if (lengths != nullptr) key.insert(key.end(), lengths, lengths + ranks);
}

// counts: null where the call reads none.
void writeItem(std::vector<std::uint64_t>& key, const koloItem_t& item, const std::size_t* counts, int ranks) {
  const std::uint64_t scale = item.scale != nullptr ? std::bit_cast<std::uint32_t>(*item.scale) : 0;
  key.insert(key.end(),
             {wordOf(item.sendbuf), wordOf(item.recvbuf), item.count, wordOf(item.sendtype, item.transfertype),
              wordOf(item.recvtype, item.axis), scale << 2 | (item.scale != nullptr ? 2 : 0) | (item.counts != nullptr),
              headOf(item.sendarray), headOf(item.recvarray)});
  if (counts != nullptr) key.insert(key.end(), counts, counts + ranks);
  writeShape(key, item.sendarray);
  writeShape(key, item.recvarray);
}

}  // namespace

std::size_t ListCache::Hash::operator()(const Key& key) const {
  std::uint64_t hash = kHashOfNothing;
  for (const std::uint64_t word : key) mix(hash, word);
  return hash;
}

// Every part of a key says how long it is, so that two calls with one key are the same.
template <class Write, class Make>
Result<ListOperation> ListCache::findOrMake(Write&& write, Make&& make) {
  thread_local Key key;
  key.clear();
  write(key);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = lists_.find(key); found != lists_.end()) return found->second;
  }
  KOLO_ASSIGN(const ListOperation made, make());
  const std::uint64_t bytes = memoryOf(*made.list) + key.size() * sizeof key.front();
  const std::lock_guard lock(mutex_);
  if (lists_.size() == kMost || bytes_ + bytes > mostBytes_) {
    lists_.clear();
    bytes_ = 0;
  }
  const auto [place, isNew] = lists_.emplace(key, made);
  if (isNew) bytes_ += bytes;  // else another thread has made it meanwhile
  return place->second;
}

// Lengths of the ranks' parts are read where a buffer is divided, and refused elsewhere.
Result<ListOperation> ListCache::find(const ListCall& call, const koloItem_t* items, std::size_t count) {
  const auto make = [&]() -> Result<ListOperation> {
    KOLO_ASSIGN(std::shared_ptr<const List> list, makeList(call, items, count));
    return ListOperation{call.collective, call.root, std::move(list)};
  };
  if (items == nullptr) return make();
  const bool readsCounts = device::isIn(call.collective, device::kDivided);
  const auto write = [&](Key& key) {
    key.push_back(wordOf(Kind::kItems, call));
    key.push_back(count);
    for (std::size_t i = 0; i < count; ++i)
      writeItem(key, items[i], readsCounts ? items[i].counts : nullptr, call.ranks);
  };
  return findOrMake(write, make);
}

Result<ListOperation> ListCache::findAxisExchange(const ListCall& call, const koloItem_t& item, int splitAxis,
                                                  int concatAxis, const std::size_t* splits,
                                                  const std::size_t* concats) {
  const auto make = [&]() -> Result<ListOperation> {
    KOLO_ASSIGN(std::shared_ptr<const List> list, makeAxisExchange(call, item, splitAxis, concatAxis, splits, concats));
    return ListOperation{call.collective, call.root, std::move(list)};
  };
  const auto write = [&](Key& key) {
    key.push_back(wordOf(Kind::kAxisExchange, call));
    key.push_back(wordOf(splitAxis, concatAxis));
    writeItem(key, item, nullptr, call.ranks);
    writeLengths(key, splits, call.ranks);
    writeLengths(key, concats, call.ranks);
  };
  return findOrMake(write, make);
}

// Of the whole array, its shape counts alone. Lengths of parts are read where the place is an axis that there is.
Result<ListOperation> ListCache::findReshard(int rank, int ranks, const ReshardCall& call) {
  if (call.whole == nullptr || isRefused(*call.whole)) return makeReshard(rank, ranks, call);
  const koloArray_t shape{call.whole->ndim, call.whole->shape, nullptr};
  const auto lengthsAt = [&](int place, const std::size_t* lengths) {
    return place >= 0 && place < shape.ndim ? lengths : nullptr;
  };
  const auto write = [&](Key& key) {
    key.push_back(wordOf(Kind::kReshard, {device::Collective::kAllToAll, rank, ranks, 0}));
    key.push_back(wordOf(call.from, call.to));
    key.push_back(headOf(&shape));
    writeShape(key, &shape);
    writeItem(key, call.item, nullptr, ranks);
    writeLengths(key, lengthsAt(call.from, call.fromParts), ranks);
    writeLengths(key, lengthsAt(call.to, call.toParts), ranks);
  };
  return findOrMake(write, [&] { return makeReshard(rank, ranks, call); });
}

}  // namespace kolo::collectives
