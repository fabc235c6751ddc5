#include "traffic/peer_lists.h"

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

}  // namespace

void PeerLists::begin(std::uint64_t windowChanges) {
  if (windowChanges == windowChanges_ && bytes_ <= kMostKept) return;
  windowChanges_ = windowChanges;
  lists_.clear();
  bytes_ = 0;
}

Result<const PeerLists::List*> PeerLists::fetch(const links::Peer& peer, const device::PeerSegments& theirs,
                                                const links::Windows& windows) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 36;
  const auto [place, isNew] = lists_.try_emplace({theirs.peer, theirs.id});
  List& list = place->second;
  if (!isNew) return &list;
  const Status status = [&]() -> Status {
    Segments head;
    KOLO_TRY(peer.link->read(&head, theirs.address, sizeof head));
    if (!head.isWhole() || head.bytes > kMost || head.id != theirs.id)
      return error(koloInternalError, "rank {} offered a list at an address where there is none", theirs.peer);
    list.memory.resize(head.bytes / sizeof(std::uint64_t));
    return peer.link->read(list.memory.data(), theirs.address, head.bytes);
  }();
  if (!status.ok()) {
    lists_.erase(place);
    return status;
  }
  bytes_ += list.memory.size() * sizeof(std::uint64_t);
  list.isLoadable = mapSegments(list.memory, theirs.peer, windows);
  return &list;
}

}  // namespace kolo::traffic
