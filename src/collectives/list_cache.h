// The lists of the last calls, by what the callers said: programs give the same lists again and again, and reading and
// checking one takes longer than a small operation. The same words give the same object, by whose address
// PreparedOperations finds the operation again.
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
#include "collectives/reshard.h"

namespace kolo::collectives {

class ListCache {
 public:
  // Calls that are remembered. With one more, or lists of more than mostBytes, all are forgotten.
  static constexpr std::size_t kMost = 1024;

  explicit ListCache(std::uint64_t mostBytes = kMostKeptBytes) : mostBytes_(mostBytes) {}

  // What makeList(), makeAxisExchange() and makeReshard() give, with the same arguments and errors.
  Result<ListOperation> find(const ListCall& call, const koloItem_t* items, std::size_t count);
  Result<ListOperation> findAxisExchange(const ListCall& call, const koloItem_t& item, int splitAxis, int concatAxis,
                                         const std::size_t* splits, const std::size_t* concats);
  Result<ListOperation> findReshard(int rank, int ranks, const ReshardCall& call);

 private:
  using Key = std::vector<std::uint64_t>;  // everything that a caller says, word by word
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };

  // write(key): writes the key. make(): what to remember by it, if it is new.
  template <class Write, class Make>
  Result<ListOperation> findOrMake(Write&& write, Make&& make);

  std::mutex mutex_;
  std::unordered_map<Key, ListOperation, Hash> lists_;
  const std::uint64_t mostBytes_;
  std::uint64_t bytes_ = 0;  // of lists_
};

}  // namespace kolo::collectives
