// The internal window of a communicator: for each rank one stretch of shared memory with what its peers write there.
// Its layout is the same on all ranks, so a peer's pointer is enough to make a link.
//
//   board   what this rank is doing, written by itself, for peers that wait in vain and for kolo-info
//   calls   one word for each peer, which sets it before its first message: a rank looks into the lanes of those alone
//   parts   one for each peer, which alone writes there. A posted link mirrors this rank's part of the peer's arena:
//     mailbox  header lines and counters (device/link.h)
//     lane     point-to-point lines (device/message.h)
//     notice   of a peer by a posted link: what it waits in, as its board cannot be read from here
//     slots    staging for collectives; as many for eager messages and as many for streams
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "device/link.h"
#include "device/message.h"

namespace kolo::links {

// The last operations of a rank. Fields are counters so that a peer may read while the rank writes: it takes an entry
// only if its sequence is the same before and after.
struct BoardEntry {
  device::Counter sequence;  // of the operation, 1, 2, ...; 0: none
  device::Counter signature;
  device::Counter count;
};

struct alignas(64) Board {
  static constexpr int kEntries = 4 * device::kMaxOwed;  // a rank may be as far ahead of one that reads
  std::array<BoardEntry, kEntries> entries;
  device::Counter left;    // 1: the rank has destroyed its communicator
  device::Counter gaveUp;  // 1: it has left an operation with an error, and its buffers are the caller's again
  device::Counter writes;  // peer + 1 while the rank writes in a peer's ordinary memory; 0: it does not
  alignas(64) device::Counter asleep;  // an executor::AsleepWord, which peers look at often
};

// What is sent of a board to a peer by a posted link, when its writer has waited for a while.
struct alignas(64) Notice {
  std::array<BoardEntry, Board::kEntries> entries;
  device::Counter left[device::kMaxRails];  // by each rail: 1, behind all that came by it before
  device::Counter reroutes;  // how often the peer has abandoned its way to this rank for another (failover.cc)
};

struct ArenaLayout {
  // One rank's part of another's arena, by pointers into it or into a mirror of it.
  struct Part {
    device::Mailbox* mailbox;
    device::MessageLane* lane;
    Notice* notice;
    unsigned char* slots;
    unsigned char* eagerSlots;
    unsigned char* streamSlots;
  };

  int ranks = 1;
  // Chunk k goes by rail k % rails and stands in slot k % slots: what is put into a slot goes by one rail, so that a
  // repeated request is overtaken by nothing newer for the same slot.
  static constexpr std::uint32_t kSlots = 4;
  static_assert(kSlots % device::kMaxRails == 0);
  std::uint32_t slots = kSlots;
  std::uint32_t slotBytes = 1 << 17;

  // Slots such that a rank's staging stays under stagingBytes.
  static ArenaLayout make(int ranks, std::uint64_t stagingBytes);

  std::uint64_t boardAt() const { return 0; }
  std::uint64_t callAt(int peer) const {
    return sizeof(Board) + sizeof(device::Counter) * static_cast<std::uint64_t>(peer);
  }
  std::uint64_t partAt(int peer) const;
  std::uint64_t partBytes() const;
  Part part(unsigned char* begin) const;
  // The requests that bring over all of a part as it is, in this order: each counter after what it announces.
  std::vector<device::Post> requestsFor(const Part& mirror) const;
  std::uint64_t bytes() const { return partAt(ranks); }
  // Makes an arena that was used before like a new one: all is zero but the slots, which are read only after they have
  // been written.
  void clear(unsigned char* arena) const;
};

}  // namespace kolo::links
