// The path of a block between two ranks, where each block has one of its own: with a root, and where only the two ranks
// of a pair know how long the block is. Both ranks must come to the same path, each from what it knows: its own side of
// the block, and what the peer's header says.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>

#include "device/host_device.h"

namespace kolo::device {

enum class Path : std::uint8_t {
  kInline,     // with the header
  kStaged,     // through slots: the giver fills them, the receiver empties them
  kPeerReads,  // the receiver reads it where it is, in a window or in ordinary memory
  kPeerWrites  // the giver writes it where it goes: to the root of a gather
};

// What decides. Each fact is known to both ranks, or comes to the other one with the header.
struct BlockFacts {
  bool fitsHeader = false;       // it is so short that it goes with its pair's header
  bool hasOwnPath = false;       // else the algorithm moves all blocks alike, through slots
  bool isStagedEarly = false;    // the giver has filled slots without waiting for the receiver's header
  bool mayBeWritten = false;     // it goes to the root of a gather, and is long enough
  bool outputIsOffered = false;  // the receiver's header says where it goes; read only if mayBeWritten
  bool inputIsOffered = false;   // the giver's header says where it is
};

KOLO_DEVICE constexpr Path pathOf(const BlockFacts& block) {
  if (block.fitsHeader) return Path::kInline;
  if (!block.hasOwnPath || block.isStagedEarly) return Path::kStaged;
  if (block.mayBeWritten && block.outputIsOffered) return Path::kPeerWrites;
  return block.inputIsOffered ? Path::kPeerReads : Path::kStaged;
}

}  // namespace kolo::device
