// The lists of the peers: where each of the segments of their buffers is, for ranks that read or write there
// themselves.
//
// Thread safety: none; as Traffic.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/segments.h"
#include "links/peers.h"
#include "links/windows.h"

namespace kolo::traffic {

class PeerLists {
 public:
  struct List {
    std::vector<std::uint64_t> memory;
    // All segments lie in windows, and their addresses are those at which this process sees them; else they are the
    // peer's.
    bool isLoadable = false;

    const device::Segments& segments() const { return *reinterpret_cast<const device::Segments*>(memory.data()); }
    // Calls move(address of the peer's, byte of the range, bytes) for each run of memory in the range from `place` on,
    // a logical address of the peer's, until one fails. An error if it isLoadable, for then it has no address of the
    // peer's.
    template <class Move>
    Status eachRun(const unsigned char* place, std::uint64_t bytes, Move&& move) const {
      if (isLoadable) return error(koloInternalError, "a list in windows was to be read through the kernel");
      std::uint32_t last = 0;
      for (std::uint64_t at = 0; at < bytes;) {
        const device::Run run = device::runAt(segments(), place + at, bytes - at, last);
        if (!run.isPlain()) return error(koloInternalError, "a list was offered that cannot be read run by run");
        if (run.data != nullptr) KOLO_TRY(move(reinterpret_cast<std::uint64_t>(run.data), at, run.bytes));
        at += run.bytes;
      }
      return {};
    }
  };

  // A list of a peer, which keeps it where it is until all have said that they are done. It stays here for the
  // operation, and mostly for later ones that use it.
  Result<const List*> fetch(const links::Peer& peer, const device::PeerSegments& theirs, const links::Windows& windows);
  // Another operation begins. windowChanges: Windows::changes().
  void begin(std::uint64_t windowChanges);

 private:
  // Of all lists together, when an operation begins.
  static constexpr std::uint64_t kMostKept = std::uint64_t{128} << 20;

  std::map<std::pair<int, std::uint64_t>, List> lists_;  // by the peer's rank and the list's id
  std::uint64_t bytes_ = 0;                              // of all of them
  std::uint64_t windowChanges_ = 0;
};

}  // namespace kolo::traffic
