#include "collectives/list_cache.h"

#include <bit>

#include "collectives/hash.h"

namespace kolo::collectives {
namespace {

std::uint64_t wordOf(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
std::uint64_t wordOf(int first, int second) {
  return std::uint64_t{static_cast<std::uint32_t>(first)} << 32 | static_cast<std::uint32_t>(second);
}

// What makeList() refuses is read no further than it reads it, and its word is that of no array that is read.
void writeArray(std::vector<std::uint64_t>& key, const koloArray_t* array) {
  if (array == nullptr) return key.push_back(0);
  const bool isRefused = array->ndim > device::kMostDimensions || (array->ndim > 0 && array->shape == nullptr);
  if (isRefused) return key.push_back(wordOf(3, array->ndim));
  key.push_back(wordOf(array->strides != nullptr ? 2 : 1, array->ndim));
  for (int d = 0; d < array->ndim; ++d) key.push_back(array->shape[d]);
  for (int d = 0; d < array->ndim && array->strides != nullptr; ++d)
    key.push_back(static_cast<std::uint64_t>(array->strides[d]));
}

// Lengths of the ranks' parts are read where one of the buffers is divided, and refused elsewhere.
void writeItem(std::vector<std::uint64_t>& key, const ListCall& call, const koloItem_t& item) {
  const bool readsCounts =
      device::isIn(call.collective, device::kSendsBlocks) != device::isIn(call.collective, device::kReceivesBlocks);
  const std::uint64_t scale = item.scale != nullptr ? std::bit_cast<std::uint32_t>(*item.scale) : 0;
  key.insert(key.end(), {wordOf(item.sendbuf), wordOf(item.recvbuf), item.count,
                         wordOf(item.sendtype, item.transfertype), wordOf(item.recvtype, item.axis),
                         scale << 2 | (item.scale != nullptr ? 2 : 0) | (item.counts != nullptr)});
  if (readsCounts && item.counts != nullptr) key.insert(key.end(), item.counts, item.counts + call.ranks);
  writeArray(key, item.sendarray);
  writeArray(key, item.recvarray);
}

}  // namespace

std::size_t ListCache::Hash::operator()(const Key& key) const {
  std::uint64_t hash = kHashOfNothing;
  for (const std::uint64_t word : key) mix(hash, word);
  return hash;
}

// Every part says how long it is, so that two lists with one key are the same.
void ListCache::write(Key& key, const ListCall& call, const koloItem_t* items, std::size_t count) {
  key.clear();
  key.push_back(wordOf(static_cast<int>(call.collective), call.root));
  key.push_back(count);
  for (std::size_t i = 0; i < count; ++i) writeItem(key, call, items[i]);
}

Result<std::shared_ptr<const List>> ListCache::find(const ListCall& call, const koloItem_t* items, std::size_t count) {
  if (items == nullptr) return makeList(call, items, count);
  thread_local Key key;
  write(key, call, items, count);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = lists_.find(key); found != lists_.end()) return found->second;
  }
  KOLO_ASSIGN(std::shared_ptr<const List> list, makeList(call, items, count));
  const std::uint64_t bytes = memoryOf(*list) + key.size() * sizeof key.front();
  const std::lock_guard lock(mutex_);
  if (lists_.size() == kMost || bytes_ + bytes > mostBytes_) {
    lists_.clear();
    bytes_ = 0;
  }
  if (lists_.emplace(key, list).second) bytes_ += bytes;  // else another thread has made it meanwhile
  return list;
}

}  // namespace kolo::collectives
