#include "traffic/peer_lists.h"

#include <algorithm>

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
bool isSound(const Segment& segment, const device::Strides* strides, std::uint64_t count) {
  if (segment.elementBytes == 0 || segment.transferElementBytes == 0 || segment.strides > count) return false;
  if (segment.strides == 0) return true;
  const device::Strides& rows = strides[segment.strides - 1];
  return rows.rowElements != 0 && rows.ndim >= 1 && rows.ndim <= device::kMostDimensions &&
         std::find(rows.shape, rows.shape + rows.ndim, 0) == rows.shape + rows.ndim;
}

// The table. The peer may have given up, and freed it, before it was read or while it was: then it is seen to be none.
Status read(const links::Peer& peer, const device::PeerSegments& theirs, std::vector<std::uint64_t>& memory) {
  const auto none = [&] {
    return error(koloInternalError, "rank {} offered a list at an address where there is none", theirs.peer);
  };
  Segments head;
  KOLO_TRY(peer.link->read(&head, theirs.address, sizeof head));
  if (!isSound(head, theirs)) return none();
  memory.resize(head.bytes / sizeof(std::uint64_t));
  KOLO_TRY(peer.link->read(memory.data(), theirs.address, head.bytes));
  const auto& list = *reinterpret_cast<const Segments*>(memory.data());
  if (!isSound(list, theirs) || list.bytes != head.bytes) return none();
  const Segment* const segments = list.of(Buffer::kSend);
  const std::uint64_t strides =
      (list.bytes - sizeof list - (std::uint64_t{list.sends} + list.recvs) * sizeof(Segment)) / sizeof(device::Strides);
  const auto* const all = reinterpret_cast<const device::Strides*>(segments + list.sends + list.recvs);
  const bool areSound = std::all_of(segments, segments + list.sends + list.recvs,
                                    [&](const Segment& segment) { return isSound(segment, all, strides); });
  return areSound ? Status() : none();
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
