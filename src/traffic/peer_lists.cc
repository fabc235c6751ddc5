#include "traffic/peer_lists.h"

#include <algorithm>

#include "base/datatypes.h"
#include "device/row_move.h"

namespace kolo::traffic {
namespace {

using device::Buffer;
using device::Segment;
using device::Segments;

// Gives the segments the addresses at which this process sees them, if it sees all of them.
bool mapSegments(std::vector<std::uint64_t>& memory, int rank, const links::Windows& windows) {
  auto& list = *reinterpret_cast<Segments*>(memory.data());
  auto* const segments = const_cast<Segment*>(list.of(Buffer::kSend));
  std::vector<unsigned char*> places(std::size_t{list.sends} + list.recvs);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const device::Extent extent = device::extentOf(list, segments[i]);
    unsigned char* const place = windows.placeOf(rank, reinterpret_cast<std::uint64_t>(extent.begin), extent.bytes);
    if (place == nullptr) return false;
    places[i] = place + (segments[i].data - extent.begin);
  }
  for (std::size_t i = 0; i < places.size(); ++i) segments[i].data = places[i];
  return true;
}

bool isSound(const Segments& list, const device::PeerSegments& theirs) {
  return list.id == theirs.id && list.bytes <= device::kMostListBytes && list.isWhole();
}
// Whether there are addresses from the one so far below the segment's data to the one so far above it.
bool hasAddresses(const Segment& segment, std::int64_t low, std::uint64_t high) {
  const auto data = reinterpret_cast<std::uint64_t>(segment.data);
  std::uint64_t end = 0;
  return !__builtin_add_overflow(data, low, &end) && !__builtin_add_overflow(data, high, &end);
}
// Whether the elements, and the bytes of memory that they lie among, are numbers that can be; extentOf() and
// runInRows() then calculate without overflow. elements: how many the segment has from its first one on.
bool isSound(const device::Strides& rows, const Segment& segment, std::uint64_t elements) {
  if (rows.rowElements == 0 || rows.ndim < 1 || rows.ndim > device::kMostDimensions) return false;
  std::uint64_t there = rows.rowElements;
  std::int64_t low = 0, high = 0;
  if (__builtin_mul_overflow(rows.rowElements, std::uint64_t{segment.elementBytes}, &high)) return false;
  for (std::int64_t d = 0; d < rows.ndim; ++d) {
    std::int64_t reach = 0;
    if (rows.shape[d] == 0 || __builtin_mul_overflow(there, rows.shape[d], &there) ||
        __builtin_mul_overflow(rows.shape[d] - 1, rows.strides[d], &reach))
      return false;
    std::int64_t& end = reach < 0 ? low : high;
    if (__builtin_add_overflow(end, reach, &end)) return false;
  }
  std::int64_t bytes = 0;
  return !__builtin_sub_overflow(high, low, &bytes) && segment.first <= there && elements <= there - segment.first &&
         hasAddresses(segment, low, static_cast<std::uint64_t>(high));
}

// previousEnd: of the segments before this one of its buffer, in whole grains.
bool isSound(const Segment& segment, const device::Strides* strides, std::uint64_t count, std::uint64_t previousEnd) {
  const auto isOf = [](std::uint8_t datatype, std::uint8_t bytes) {
    return datatype < koloNumDatatypes && bytes == elementBytes(static_cast<koloDataType_t>(datatype));
  };
  if (!isOf(segment.datatype, segment.elementBytes) || !isOf(segment.transferType, segment.transferElementBytes) ||
      (segment.isCast() && !device::isCastDefined(static_cast<koloDataType_t>(segment.datatype),
                                                  static_cast<koloDataType_t>(segment.transferType))))
    return false;
  if (segment.begin % device::kSegmentGrain != 0 || segment.begin < previousEnd || segment.bytes == 0 ||
      segment.bytes % segment.transferElementBytes != 0 || segment.begin >= device::kLogicalRecv ||
      segment.bytes > device::kLogicalRecv - segment.begin || segment.strides > count)
    return false;
  const std::uint64_t elements = segment.bytes / segment.transferElementBytes;
  if (segment.strides != 0) return isSound(strides[segment.strides - 1], segment, elements);
  std::uint64_t bytes = 0;
  return !__builtin_mul_overflow(elements, std::uint64_t{segment.elementBytes}, &bytes) &&
         hasAddresses(segment, 0, bytes);
}

// Of one buffer: datatypes that there are, in elements of their size, one segment behind the other.
bool isSound(const Segments& list, Buffer buffer) {
  const Segment* const segments = list.of(buffer);
  const Segment* const behind = list.of(Buffer::kSend) + list.sends + list.recvs;
  const auto* const strides = reinterpret_cast<const device::Strides*>(behind);
  const auto* const end = reinterpret_cast<const unsigned char*>(&list) + list.bytes;
  const auto count =
      static_cast<std::uint64_t>(end - reinterpret_cast<const unsigned char*>(strides)) / sizeof *strides;
  std::uint64_t previousEnd = 0;
  return std::all_of(segments, segments + list.countOf(buffer), [&](const Segment& segment) {
    if (!isSound(segment, strides, count, previousEnd)) return false;
    previousEnd = device::inGrains(device::endOf(segment));
    return true;
  });
}

// Takes memory as it comes: the peer's number alone takes none.
Status readInPieces(const links::Peer& peer, std::uint64_t from, std::uint64_t bytes,
                    std::vector<std::uint64_t>& memory) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  for (std::uint64_t at = 0; at < bytes; at += kPiece) {
    const std::uint64_t piece = std::min(kPiece, bytes - at);
    memory.resize((at + piece) / sizeof(std::uint64_t));
    KOLO_TRY(peer.link->read(reinterpret_cast<unsigned char*>(memory.data()) + at, from + at, piece));
  }
  return {};
}

// The table. The peer may have given up, and freed it, before it was read or while it was: then it is seen to be none.
Status read(const links::Peer& peer, const device::PeerSegments& theirs, std::vector<std::uint64_t>& memory) {
  const auto none = [&] {
    return error(koloInternalError, "rank {} offered a list at an address where there is none", theirs.peer);
  };
  Segments head;
  KOLO_TRY(peer.link->read(&head, theirs.address, sizeof head));
  if (!isSound(head, theirs)) return none();
  KOLO_TRY(readInPieces(peer, theirs.address, head.bytes, memory));
  const auto& list = *reinterpret_cast<const Segments*>(memory.data());
  if (!isSound(list, theirs) || list.bytes != head.bytes) return none();
  return isSound(list, Buffer::kSend) && isSound(list, Buffer::kRecv) ? Status() : none();
}

}  // namespace

void PeerLists::begin(std::uint64_t windowChanges) {
  if (windowChanges == windowChanges_ && bytes_ <= kMostKept) return;
  windowChanges_ = windowChanges;
  lists_.clear();
  bytes_ = 0;
}

Result<const PeerLists::List*> PeerLists::fetch(const links::Peer& peer, const device::PeerSegments& theirs,
                                                const links::Windows& windows) {
  const std::pair key(theirs.peer, theirs.id);
  if (const auto known = lists_.find(key); known != lists_.end()) return &known->second;
  List list;
  KOLO_TRY(read(peer, theirs, list.memory));
  list.isLoadable = mapSegments(list.memory, theirs.peer, windows);
  bytes_ += list.memory.size() * sizeof(std::uint64_t);
  return &lists_.emplace(key, std::move(list)).first->second;
}

}  // namespace kolo::traffic
