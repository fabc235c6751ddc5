#include "collectives/list_calls.h"

#include <bit>

namespace kolo::collectives {
namespace {

std::uint64_t wordOf(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
std::uint64_t wordOf(int first, int second) {
  return std::uint64_t{static_cast<std::uint32_t>(first)} << 32 | static_cast<std::uint32_t>(second);
}

const Words kRefused;

enum class Kind { kItems, kAxisExchange, kReshard };

// The thread's words, of which the first two say what kind of call it is. Every part of them says how long it is.
Words& begin(Kind kind, const ListCall& call) {
  thread_local Words words;
  words.assign({wordOf(static_cast<int>(kind), static_cast<int>(call.collective)), wordOf(call.op, call.root)});
  return words;
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
void writeShape(Words& words, const koloArray_t* array) {
  if (array == nullptr || isRefused(*array)) return;
  for (int d = 0; d < array->ndim; ++d) words.push_back(array->shape[d]);
  for (int d = 0; d < array->ndim && array->strides != nullptr; ++d)
    words.push_back(static_cast<std::uint64_t>(array->strides[d]));
}

// A length for each rank; null: none are given.
void writeLengths(Words& words, const std::size_t* lengths, int ranks) {
  words.push_back(lengths != nullptr);
  if (lengths != nullptr) words.insert(words.end(), lengths, lengths + ranks);
}

// counts: null where the call reads none.
void writeItem(Words& words, const koloItem_t& item, const std::size_t* counts, int ranks) {
  const std::uint64_t scale = item.scale != nullptr ? std::bit_cast<std::uint32_t>(*item.scale) : 0;
  words.insert(words.end(), {wordOf(item.sendbuf), wordOf(item.recvbuf), item.count,
                             wordOf(item.sendtype, item.transfertype), wordOf(item.recvtype, item.axis),
                             scale << 2 | (item.scale != nullptr ? 2 : 0) | (item.counts != nullptr),
                             headOf(item.sendarray), headOf(item.recvarray)});
  if (counts != nullptr) words.insert(words.end(), counts, counts + ranks);
  writeShape(words, item.sendarray);
  writeShape(words, item.recvarray);
}

}  // namespace

// Lengths of the ranks' parts are read where a buffer is divided, and refused elsewhere.
const Words& wordsOf(const ListCall& call, const ItemsCall& given) {
  if (given.items == nullptr && given.count != 0) return kRefused;
  Words& words = begin(Kind::kItems, call);
  const bool readsCounts = device::isIn(call.collective, device::kDivided);
  words.push_back(given.count);
  for (std::size_t i = 0; i < given.count; ++i)
    writeItem(words, given.items[i], readsCounts ? given.items[i].counts : nullptr, call.ranks);
  return words;
}

const Words& wordsOf(const ListCall& call, const AxisCall& given) {
  if (given.item == nullptr) return kRefused;
  Words& words = begin(Kind::kAxisExchange, call);
  words.push_back(wordOf(given.splitAxis, given.concatAxis));
  writeItem(words, *given.item, nullptr, call.ranks);
  writeLengths(words, given.splits, call.ranks);
  writeLengths(words, given.concats, call.ranks);
  return words;
}

// Of the whole array, its shape counts alone. Lengths of parts are read where the place is an axis that there is.
const Words& wordsOf(const ListCall& call, const ReshardCall& given) {
  if (given.item == nullptr || given.whole == nullptr || isRefused(*given.whole)) return kRefused;
  Words& words = begin(Kind::kReshard, call);
  const koloArray_t shape{given.whole->ndim, given.whole->shape, nullptr};
  const auto lengthsAt = [&](int place, const std::size_t* lengths) {
    return place >= 0 && place < shape.ndim ? lengths : nullptr;
  };
  words.push_back(wordOf(given.from, given.to));
  words.push_back(headOf(&shape));
  writeShape(words, &shape);
  writeItem(words, *given.item, nullptr, call.ranks);
  writeLengths(words, lengthsAt(given.from, given.fromParts), call.ranks);
  writeLengths(words, lengthsAt(given.to, given.toParts), call.ranks);
  return words;
}

}  // namespace kolo::collectives
