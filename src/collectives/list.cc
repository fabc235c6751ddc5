#include "collectives/list.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/datatypes.h"
#include "collectives/hash.h"
#include "collectives/list_item.h"

namespace kolo::collectives {
namespace {

using device::Collective;

void mixSide(std::uint64_t& hash, const Side& side) {
  for (const std::uint64_t word :
       {reinterpret_cast<std::uint64_t>(side.data), static_cast<std::uint64_t>(side.datatype),
        static_cast<std::uint64_t>(side.ndim), static_cast<std::uint64_t>(side.axis)})
    mix(hash, word);
  for (int d = 0; d < side.ndim; ++d) {
    mix(hash, side.shape[d]);
    mix(hash, static_cast<std::uint64_t>(side.strides[d]));
  }
  for (const std::uint64_t extent : side.extents) mix(hash, extent);
}

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

// In place: what a rank gives of an item lies where it gets its own block of it.
bool isInPlace(const ListCall& call, const Item& item) {
  if (item.send.datatype != item.recv.datatype) return false;
  const auto at = [&](const Side& side, bool isWhole, bool isOther) {
    if (!isWhole || !isOther) return side.data;
    std::int64_t before = 0;
    for (int i = 0; i < call.rank; ++i) before += static_cast<std::int64_t>(side.extents[static_cast<std::size_t>(i)]);
    return side.data + before * side.strides[side.axis] * static_cast<std::int64_t>(elementBytes(side.datatype));
  };
  const bool sends = device::isIn(call.collective, device::kSendsBlocks),
             receives = device::isIn(call.collective, device::kReceivesBlocks);
  return at(item.send, sends, !receives) == at(item.recv, receives, !sends);
}

// What is written overlaps nothing else, but in place. One sort and one sweep.
Status checkOverlaps(const ListCall& call, const List& list) {
  std::vector<Place> places;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    addPlace(list.items[i].send, i, false, places);
    addPlace(list.items[i].recv, i, true, places);
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  // Of those that began before: what reaches furthest, of all and of those that are written.
  const Place* reach[2] = {nullptr, nullptr};
  for (const Place& place : places) {
    for (const Place* before : {reach[0], reach[1]}) {
      if (before == nullptr || before->end <= place.begin || (!before->isWritten && !place.isWritten)) continue;
      if (before->item == place.item && isInPlace(call, list.items[place.item])) continue;
      const Place& written = place.isWritten ? place : *before;
      const Place& other = place.isWritten ? *before : place;
      return error(
          koloInvalidArgument,
          "the recvbuf of item {} overlaps the {} of item {}: expected buffers apart, or an item in place (its "
          "sendbuf is this rank's own block of its recvbuf, or the reverse, in one datatype)",
          written.item, other.isWritten ? "recvbuf" : "sendbuf", other.item);
    }
    const Place*& furthest = reach[place.isWritten ? 1 : 0];
    if (furthest == nullptr || place.end > furthest->end) furthest = &place;
  }
  return {};
}

// What all ranks have to say alike of an item.
void addDigest(std::uint64_t& digest, const ListCall& call, const Item& item) {
  mix(digest, static_cast<std::uint64_t>(item.transferType) | static_cast<std::uint64_t>(item.recv.datatype) << 8 |
                  std::uint64_t{std::bit_cast<std::uint32_t>(item.scale)} << 32);
  const bool receives = device::isIn(call.collective, device::kReceivesBlocks);
  const Side& whole = receives ? item.recv : item.send;
  for (std::size_t block = 0; block < whole.extents.size(); ++block) mix(digest, whole.elementsOf(block));
}

std::shared_ptr<const List> finish(const ListCall& call, List&& list, std::uint64_t digest) {
  list.digest = digest;
  list.hash = static_cast<std::uint64_t>(call.collective);
  for (const Item& item : list.items) {
    mixSide(list.hash, item.send);
    mixSide(list.hash, item.recv);
    mix(list.hash,
        static_cast<std::uint64_t>(item.transferType) | std::uint64_t{std::bit_cast<std::uint32_t>(item.scale)} << 32);
    list.castsOutput = list.castsOutput || item.recv.datatype != item.transferType;
    list.isInPlace = list.isInPlace || (item.send.data != nullptr && isInPlace(call, item));
  }
  if (list.longest == 0) {
    const Blocks send = blocksOf(list, device::Buffer::kSend), recv = blocksOf(list, device::Buffer::kRecv);
    list.longest = std::max(send.longest, recv.longest);
    list.areAlike = send.areAlike && recv.areAlike;
  }
  return std::make_shared<const List>(std::move(list));
}

}  // namespace

Result<std::shared_ptr<const List>> makeList(const ListCall& call, const koloItem_t* items, std::size_t count) {
  if (items == nullptr && count != 0)
    return error(koloInvalidPointer, "items is NULL, expected an array of {} items", count);
  List list;
  list.items.reserve(count);
  std::uint64_t digest = count;
  for (std::size_t i = 0; i < count; ++i) {
    KOLO_ASSIGN(Item item, readItem(call, items[i], i));
    addDigest(digest, call, item);
    list.items.push_back(std::move(item));
  }
  KOLO_TRY(checkOverlaps(call, list));
  return finish(call, std::move(list), digest);
}

Result<std::shared_ptr<const List>> makeAxisExchange(const ListCall& call, const koloItem_t& item, int splitAxis,
                                                     int concatAxis, const std::size_t* splits,
                                                     const std::size_t* concats) {
  KOLO_ASSIGN(Item read, readItem(call, item, splitAxis, concatAxis, splits, concats));
  List list;
  // Blocks differ from pair to pair; the lengths along both axes, and all other lengths, are alike.
  std::uint64_t digest = 1, others = 1;
  for (int d = 0; d < read.send.ndim; ++d) others *= d == splitAxis || d == concatAxis ? 1 : read.send.shape[d];
  mix(digest, static_cast<std::uint64_t>(read.transferType) | static_cast<std::uint64_t>(read.recv.datatype) << 8 |
                  std::uint64_t{std::bit_cast<std::uint32_t>(read.scale)} << 32);
  mix(digest, others);
  const auto longestOf = [](const std::vector<std::uint64_t>& lengths) { return *std::ranges::max_element(lengths); };
  const auto areAlike = [](const std::vector<std::uint64_t>& lengths) {
    return std::ranges::all_of(lengths, [&](std::uint64_t length) { return length == lengths.front(); });
  };
  const std::uint64_t bothAxes = splitAxis == concatAxis ? 1 : longestOf(read.recv.extents);
  list.longest = longestOf(read.send.extents) * bothAxes * others * elementBytes(read.transferType);
  list.areAlike = areAlike(read.send.extents) && areAlike(read.recv.extents);
  mix(digest, static_cast<std::uint64_t>(splitAxis) << 32 | static_cast<std::uint64_t>(concatAxis));
  for (const std::uint64_t extent : read.send.extents) mix(digest, extent);
  for (const std::uint64_t extent : read.recv.extents) mix(digest, splitAxis == concatAxis ? 0 : extent);
  list.items.push_back(std::move(read));
  KOLO_TRY(checkOverlaps(call, list));
  return finish(call, std::move(list), digest);
}

}  // namespace kolo::collectives
