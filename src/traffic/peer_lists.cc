#include "traffic/peer_lists.h"

namespace kolo::traffic {

Result<const device::Segments*> PeerLists::fetch(const links::Peer& peer, int rank, std::uint64_t address) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 36;
  const auto [place, isNew] = fetched_.try_emplace(rank);
  std::vector<std::uint64_t>& memory = place->second;
  const auto asList = [&] { return reinterpret_cast<const device::Segments*>(memory.data()); };
  if (!isNew) return asList();
  const Status status = [&]() -> Status {
    device::Segments head;
    KOLO_TRY(peer.link->read(&head, address, sizeof head));
    if (!head.isWhole() || head.bytes > kMost)
      return error(koloInternalError, "rank {} offered a list at an address where there is none", rank);
    memory.resize(head.bytes / sizeof(std::uint64_t));
    return peer.link->read(memory.data(), address, head.bytes);
  }();
  if (status.ok()) return asList();
  fetched_.erase(place);
  return status;
}

}  // namespace kolo::traffic
