// What the ranks of a communicator say of their operations where the others can read it: the number of each operation,
// what this rank has called, whether it has left, and whether it has given up.
//
// A rank writes its own board in its arena. A peer whose memory is mapped is read at its board. A peer by a posted link
// sends what is on its board to this rank's notice of it (links/arena.h).
//
// Thread safety: under the communicator's turn, and with its links held where some are posted. calledAs()
// and lastPosted(): any thread.
// Invariants
//  - Operations are numbered 1, 2, ... alike on all ranks.
//  - An entry of a board is taken only if its number is the same before and after it was read.
#pragma once

#include <cstdint>
#include <optional>

#include "device/work.h"
#include "links/arena.h"
#include "links/peers.h"

namespace kolo::links {

// What a rank has called as one of its operations. word 0: not among its last ones, or not yet.
struct Called {
  std::uint64_t word = 0;
  std::uint64_t count = 0;
};

class Boards {
 public:
  // REQUIRES: peers that outlive this object.
  Boards(Peers& peers, const ArenaLayout& layout, int rank)
      : peers_(peers), layout_(layout), rank_(rank), own_(*reinterpret_cast<Board*>(peers.arena() + layout.boardAt())) {
  }

  // ---- this rank's operations

  // The number of the last operation.
  std::uint64_t lastNumber() const { return number_; }
  // The numbers of the next operations; returns the last of them.
  std::uint64_t takeNumbers(std::uint64_t count) { return number_ += count; }
  // Says what this rank has called as the last operation.
  void post(const device::Work& work);
  Board& own() const { return own_; }
  // What this rank has called as the operation of the number, and the number of its last operation. Any thread.
  Called calledAs(std::uint64_t number) const;
  std::uint64_t lastPosted() const;

  // ---- what peers say

  // REQUIRES: a link that maps the peer's memory.
  Board& of(int peer) const { return *reinterpret_cast<Board*>(peers_[peer].arena + layout_.boardAt()); }
  // What a peer by a posted link has sent.
  const Notice& noticeOf(int peer) const { return *layout_.part(peers_.arena() + layout_.partAt(peer)).notice; }
  // What this rank sends to it, in the mirror; or its notice itself. REQUIRES: a link.
  Notice& noticeTo(int peer) const { return *layout_.part(peers_.partAt(peer)).notice; }
  // Whether the peer has destroyed its communicator. What it sent before can be read then.
  bool hasLeft(int peer) const;
  bool haveAllLeft() const;
  // Whether the peer, for which this rank waits in the operation, has left or has called something else.
  std::optional<device::Fault> problemOf(int peer, const device::Work& work) const;

 private:
  std::optional<device::Fault> check(const BoardEntry& entry, int peer, const device::Work& work) const;

  Peers& peers_;
  const ArenaLayout layout_;
  const int rank_;
  Board& own_;
  std::uint64_t number_ = 0;
};

}  // namespace kolo::links
