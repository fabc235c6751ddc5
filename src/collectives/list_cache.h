// The lists of the last calls, by what the callers said: programs give the same lists again and again, and reading and
// checking one takes longer than a small operation.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "collectives/list.h"

namespace kolo::collectives {

class ListCache {
 public:
  // Calls that are remembered. With one more, or lists of more than mostBytes, all are forgotten.
  static constexpr std::size_t kMost = 1024;

  explicit ListCache(std::uint64_t mostBytes = kMostKeptBytes) : mostBytes_(mostBytes) {}

  // What makeList() gives, and as it.
  Result<std::shared_ptr<const List>> find(const ListCall& call, const koloItem_t* items, std::size_t count);

 private:
  using Key = std::vector<std::uint64_t>;  // everything that a caller says, word by word
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };

  static void write(Key& key, const ListCall& call, const koloItem_t* items, std::size_t count);

  std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const List>, Hash> lists_;
  const std::uint64_t mostBytes_;
  std::uint64_t bytes_ = 0;  // of lists_
};

}  // namespace kolo::collectives
