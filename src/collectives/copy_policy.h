// Decides when ranks read and write each other's ordinary memory directly, and when a rank that only gives stages its
// data early. A decision that must be equal on all ranks depends only on values that are.
//
// Thread safety: pure functions of plain data.
#pragma once

#include <cstdint>

#include "device/work.h"

namespace kolo::collectives {

struct CopyPolicy {
  int ranks = 1;
  // Blocks of ordinary memory are read by the peer from this many bytes on. The value is equal on all ranks.
  std::uint64_t singleCopyBytes = UINT64_MAX;
  // Ordinary memory of all peers can be read, whether that pays or not. The value is equal on all ranks.
  bool canReadPeers = false;
  // Ordinary memory of a peer may be written too. The value is equal on all ranks.
  bool canWritePeers = false;
  // Ranks share cores, so a wait costs more than a second copy of a short block, and the user has not asked for single
  // copies. The value is equal on all ranks.
  bool ranksShareCores = false;

  // Whether ordinary inputs of a collective are read by the peers. bytes: of the longest block.
  bool readsPeers(device::Collective collective, std::uint64_t bytes) const;
  // Whether ordinary outputs are written by the peers.
  bool writesPeers(device::Collective collective, std::uint64_t bytes) const;
  // Whether peers load from, and store to, lists whose segments lie in windows.
  bool sharesLists(std::uint64_t bytes) const;
  // The size from which single copies pay, if all ranks meet before any of them reads.
  std::uint64_t exchangeCopyBytes() const;
  // The size from which a pair moves its block by one copy (HeaderTerms::pairsFromBytes).
  std::uint64_t pairsFromBytes(const device::Work& work) const;

  // Whether this rank, which gives a block to the root of a gather, may put it into slots before the root asks for it.
  // Otherwise the root reads it, or this rank has to meet the root first, to learn where the block goes.
  bool mayStageEarly(const device::Work& work) const;
};

// Above this size the receiver reads a block or message in its window. Not measured.
inline constexpr std::uint64_t kEagerWindowBytes = 4096;

}  // namespace kolo::collectives
