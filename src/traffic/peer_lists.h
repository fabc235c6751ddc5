// The lists of the peers: where each of the segments of their buffers is, for whoever reads or writes there itself.
//
// Thread safety: none; as Traffic.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "device/segments.h"
#include "links/peers.h"

namespace kolo::traffic {

class PeerLists {
 public:
  // The list of a peer, whose device::Segments are at `address` there. It is fetched once in an operation: a peer keeps
  // it where it is until all have said that they are done.
  Result<const device::Segments*> fetch(const links::Peer& peer, int rank, std::uint64_t address);
  // Another operation begins: lists may have changed.
  void forget() { fetched_.clear(); }

  // Calls move(address of the peer's, byte of the range, bytes) for each run of memory in the range from `place` on, a
  // logical address of the peer's, until one fails.
  template <class Move>
  static Status eachRun(const device::Segments& list, const unsigned char* place, std::uint64_t bytes, Move&& move) {
    for (std::uint64_t at = 0; at < bytes;) {
      const device::Run run = device::runAt(list, place + at, bytes - at);
      if (!run.isPlain()) return error(koloInternalError, "a list was offered that cannot be read run by run");
      if (run.data != nullptr) KOLO_TRY(move(reinterpret_cast<std::uint64_t>(run.data), at, run.bytes));
      at += run.bytes;
    }
    return {};
  }

 private:
  std::unordered_map<int, std::vector<std::uint64_t>> fetched_;  // by the peer's rank
};

}  // namespace kolo::traffic
