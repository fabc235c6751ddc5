#include "collectives/list.h"

#include <algorithm>
#include <utility>

#include "base/datatypes.h"
#include "collectives/list_item.h"

namespace kolo::collectives {
namespace {

using device::Collective;

// A range of memory of an item that has one.
struct Place {
  const unsigned char* begin;
  const unsigned char* end;
  std::size_t item;
  bool isWritten;
};

// Of buffers whose elements follow each other. Arrays with strides may lie within each other, as columns do.
void addPlace(const Side& side, std::size_t item, bool isWritten, std::vector<Place>& places) {
  if (side.data == nullptr) return;
  std::uint64_t length = 0, elements = 0;
  for (std::size_t block = 0; block < side.extents.size(); ++block) {
    length += side.extents[block];
    elements += side.elementsOf(block);
  }
  std::int64_t expected = 1;
  for (int d = side.ndim - 1; d >= 0; --d) {
    const std::uint64_t lengthHere = d == side.axis ? length : side.shape[d];
    if (lengthHere > 1 && side.strides[d] != expected) return;
    expected *= static_cast<std::int64_t>(std::max<std::uint64_t>(lengthHere, 1));
  }
  if (elements != 0) places.push_back({side.data, side.data + elements * elementBytes(side.datatype), item, isWritten});
}

// Whether elements that begin at one place follow each other alike in both.
bool haveSameStrides(const Side& a, const Side& b) {
  if (a.ndim != b.ndim) return false;
  for (int d = 0; d < a.ndim; ++d) {
    const bool isLong = d == a.axis || d == b.axis || (a.shape[d] > 1 && b.shape[d] > 1);
    if (isLong && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

// In place: what a rank gives of an item lies where it gets its own block of it. Where it gives and gets a block of
// each rank, each is exchanged for one that lies there.
bool isInPlace(const ListCall& call, const Item& item) {
  const bool hasBoth = item.send.data != nullptr && item.recv.data != nullptr;
  if (!hasBoth || item.send.datatype != item.recv.datatype || !haveSameStrides(item.send, item.recv)) return false;
  const auto at = [&](const Side& side, bool isWhole, bool isOther) {
    if (!isWhole || !isOther) return side.data;
    std::int64_t before = 0;
    for (int i = 0; i < call.rank; ++i) before += static_cast<std::int64_t>(side.extents[static_cast<std::size_t>(i)]);
    return side.data + before * side.strides[side.axis] * static_cast<std::int64_t>(elementBytes(side.datatype));
  };
  const bool sends = device::isIn(call.collective, device::kSendsBlocks),
             receives = device::isIn(call.collective, device::kReceivesBlocks);
  if (sends && receives) return item.send == item.recv;
  return at(item.send, sends, !receives) == at(item.recv, receives, !sends);
}

// What is written overlaps nothing else, but in place. One sort and one sweep.
Status checkOverlaps(const ListCall& call, const List& list) {
  const auto overlaps = [](std::size_t written, const char* buffer, std::size_t other) {
    return error(koloInvalidArgument,
                 "the recvbuf of item {} overlaps the {} of item {}: expected buffers apart, or an item in place (its "
                 "sendbuf is this rank's own block of its recvbuf, or the reverse, in one datatype, with the same "
                 "strides; of an all-to-all, the same array)",
                 written, buffer, other);
  };
  std::vector<Place> places;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const Item& item = list.items[i];
    const auto from = item.send.place(), to = item.recv.place();
    const bool areThere = from.first != from.second && to.first != to.second;
    if (areThere && item.send.data == item.recv.data && !isInPlace(call, item)) return overlaps(i, "sendbuf", i);
    addPlace(item.send, i, false, places);
    addPlace(item.recv, i, true, places);
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  // Of the places that begin earlier, the one that ends last: among reads; among reads of any other item, for an item
  // may overlap itself; and among writes, of which no two overlap.
  const Place *read = nullptr, *otherRead = nullptr, *written = nullptr;
  for (const Place& place : places) {
    for (const Place* before : {read, otherRead, written}) {
      if (before == nullptr || before->end <= place.begin || (!before->isWritten && !place.isWritten)) continue;
      if (before->item == place.item && isInPlace(call, list.items[place.item])) continue;
      const Place& target = place.isWritten ? place : *before;
      const Place& other = place.isWritten ? *before : place;
      return overlaps(target.item, other.isWritten ? "recvbuf" : "sendbuf", other.item);
    }
    const auto reachesFurther = [&](const Place* than) { return than == nullptr || place.end > than->end; };
    if (place.isWritten) {
      if (reachesFurther(written)) written = &place;
    } else if (reachesFurther(read)) {
      if (read != nullptr && read->item != place.item) otherRead = read;
      read = &place;
    } else if (read->item != place.item && reachesFurther(otherRead)) {
      otherRead = &place;
    }
  }
  return {};
}

std::shared_ptr<List> finish(const ListCall& call, List&& list) {
  list.collective = call.collective;
  list.root = call.root;
  list.digest = digestOf(list);
  for (const Item& item : list.items) {
    list.castsOutput = list.castsOutput || item.recv.datatype != item.transferType;
    list.isInPlace = list.isInPlace || isInPlace(call, item);
  }
  if (list.longest == 0) {
    const Blocks send = blocksOf(list, device::Buffer::kSend), recv = blocksOf(list, device::Buffer::kRecv);
    list.longest = std::max(send.longest, recv.longest);
    list.areAlike = send.areAlike && recv.areAlike;
  }
  return std::make_shared<List>(std::move(list));
}

// Pairs of ranks, whose blocks differ: the longest and whether all are alike, from what all ranks know.
void knowPairs(List& list, std::uint64_t longest, bool areAlike) {
  const Item& item = list.items.front();
  const int split = list.recut->to, concat = list.recut->from;
  std::uint64_t others = elementBytes(item.transferType);
  for (int d = 0; d < item.send.ndim; ++d) others *= d == split || d == concat ? 1 : item.send.shape[d];
  list.longest = longest * others;
  list.areAlike = areAlike;
}

// Elements that two ranges have in common.
std::uint64_t overlap(std::uint64_t begin, std::uint64_t end, std::uint64_t otherBegin, std::uint64_t otherEnd) {
  const std::uint64_t first = std::max(begin, otherBegin), last = std::min(end, otherEnd);
  return last > first ? last - first : 0;
}

// Of each part of `others`, what lies in part `mine` of `parts`.
std::vector<std::size_t> overlaps(const std::vector<std::size_t>& parts, std::size_t mine,
                                  const std::vector<std::size_t>& others) {
  std::uint64_t begin = 0, at = 0;
  for (std::size_t i = 0; i < mine; ++i) begin += parts[i];
  std::vector<std::size_t> result;
  for (const std::size_t other : others) {
    result.push_back(overlap(begin, begin + parts[mine], at, at + other));
    at += other;
  }
  return result;
}

// Both axes are the same: every rank cuts its array alike, so this rank gets the same length from each.
Status checkAlike(const Item& item, int rank) {
  const std::uint64_t own = item.send.extents[static_cast<std::size_t>(rank)];
  const std::vector<std::uint64_t>& received = item.recv.extents;
  const auto other = std::ranges::find_if(received, [&](std::uint64_t length) { return length != own; });
  if (other == received.end()) return {};
  return error(koloInvalidArgument, "item 0: concats[{}] is {}, expected {}: rank {}'s part, as both axes are the same",
               other - received.begin(), *other, own, rank);
}

}  // namespace

Status refuseNoItem() { return error(koloInvalidPointer, "item is NULL, expected an item"); }

Result<std::shared_ptr<List>> makeList(const ListCall& call, const ItemsCall& given) {
  const auto& [items, count] = given;
  if (items == nullptr && count != 0)
    return error(koloInvalidPointer, "items is NULL, expected an array of {} items", count);
  List list;
  list.items.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    KOLO_ASSIGN(Item item, readItem(call, items[i], i));
    list.items.push_back(std::move(item));
  }
  KOLO_TRY(checkOverlaps(call, list));
  return finish(call, std::move(list));
}

Result<std::shared_ptr<List>> makeList(const ListCall& call, const AxisCall& given) {
  if (given.item == nullptr) return refuseNoItem();
  const auto& [item, splitAxis, concatAxis, splits, concats] = given;
  KOLO_ASSIGN(Item read, readItem(call, *item, splitAxis, concatAxis, splits, concats));
  if (splitAxis == concatAxis) KOLO_TRY(checkAlike(read, call.rank));
  const auto longestOf = [](const std::vector<std::uint64_t>& lengths) { return *std::ranges::max_element(lengths); };
  const auto areAlike = [](const std::vector<std::uint64_t>& lengths) {
    return std::ranges::all_of(lengths, [&](std::uint64_t length) { return length == lengths.front(); });
  };
  List list;
  const std::vector<std::uint64_t>&sent = read.send.extents, &received = read.recv.extents;
  const std::uint64_t longest = longestOf(sent) * (splitAxis == concatAxis ? 1 : longestOf(received));
  const bool alike = areAlike(sent) && areAlike(received);
  list.recut = Recut{concatAxis, splitAxis, splitAxis == concatAxis ? std::vector<std::uint64_t>() : received, sent};
  list.items.push_back(std::move(read));
  knowPairs(list, longest, alike);
  KOLO_TRY(checkOverlaps(call, list));
  return finish(call, std::move(list));
}

Result<std::shared_ptr<List>> makeRecut(const ListCall& call, const koloItem_t& item, int axis,
                                        const std::vector<std::size_t>& from, const std::vector<std::size_t>& to) {
  const auto mine = static_cast<std::size_t>(call.rank);
  const std::vector<std::size_t> sent = overlaps(from, mine, to), received = overlaps(to, mine, from);
  KOLO_ASSIGN(Item read, readItem(call, item, axis, axis, sent.data(), received.data()));
  List list;
  list.recut = Recut{axis, axis, {from.begin(), from.end()}, {to.begin(), to.end()}};
  list.items.push_back(std::move(read));
  std::uint64_t longest = 0;  // block of any pair of ranks
  for (std::size_t rank = 0; rank < from.size(); ++rank) {
    for (const std::uint64_t length : overlaps(from, rank, to)) longest = std::max(longest, length);
  }
  knowPairs(list, longest, false);
  KOLO_TRY(checkOverlaps(call, list));
  return finish(call, std::move(list));
}

std::uint64_t memoryOf(const List& list) {
  std::uint64_t bytes = sizeof list + list.said.size() * sizeof list.said.front();
  for (const Item& item : list.items)
    bytes += sizeof item + (item.send.extents.size() + item.recv.extents.size()) * sizeof(std::uint64_t);
  return bytes;
}

Result<std::shared_ptr<List>> makeLocal(const koloItem_t* items, std::size_t count) {
  const ListCall alone{.collective = Collective::kAllGather, .rank = 0, .ranks = 1, .root = 0};
  List list;
  list.isLocal = true;
  for (std::size_t i = 0; i < count; ++i) {
    KOLO_ASSIGN(Item item, readItem(alone, items[i], i));
    list.items.push_back(std::move(item));
  }
  KOLO_TRY(checkOverlaps(alone, list));
  return finish(alone, std::move(list));
}

}  // namespace kolo::collectives
