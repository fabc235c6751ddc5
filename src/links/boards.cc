#include "links/boards.h"

#include <algorithm>

namespace kolo::links {

using device::Fault;
using device::Work;

namespace {

// Nothing: the entry is of another operation, or is being written.
std::optional<Called> readEntry(const BoardEntry& entry, std::uint64_t number) {
  const std::uint64_t before = device::loadAcquire(entry.sequence);  // [board]
  const Called called{device::loadAcquire(entry.signature), device::loadAcquire(entry.count)};
  if (before != number || device::loadAcquire(entry.sequence) != before) return std::nullopt;
  return called;
}

}  // namespace

void Boards::post(const Work& work) {
  BoardEntry& entry = own_.entries[number_ % Board::kEntries];
  device::storeRelease(entry.sequence, 0);  // a reader that sees the new fields sees this, or the new sequence
  device::storeRelease(entry.signature, work.header.word);
  device::storeRelease(entry.count, work.header.count);
  device::storeRelease(entry.sequence, number_);  // [board]
}

Called Boards::calledAs(std::uint64_t number) const {
  return readEntry(own_.entries[number % Board::kEntries], number).value_or(Called());
}

std::uint64_t Boards::lastPosted() const {
  std::uint64_t last = 0;
  for (const BoardEntry& entry : own_.entries) last = std::max(last, device::loadAcquire(entry.sequence));
  return last;
}

// What an entry of a peer's board says about the operation in which this rank waits.
std::optional<Fault> Boards::check(const BoardEntry& entry, int peer, const Work& work) const {
  const std::optional<Called> theirs = readEntry(entry, number_);
  if (!theirs || theirs->word == work.header.word) return std::nullopt;
  return Fault{Fault::kMismatch, peer, theirs->word, theirs->count, work.header.word, work.header.count};
}

// A peer whose memory is not mapped sends its board when it waits too.
std::optional<Fault> Boards::problemOf(int peer, const Work& work) const {
  if (hasLeft(peer)) return Fault{Fault::kLeft, peer, 0, 0};
  if (!peers_.isOpen(peer)) return std::nullopt;
  if (peers_[peer].isPosted()) return check(noticeOf(peer).entries[number_ % Board::kEntries], peer, work);
  const Board& board = of(peer);
  if (device::loadAcquire(board.left) != 0) return Fault{Fault::kLeft, peer, 0, 0};  // [left]
  return check(board.entries[number_ % Board::kEntries], peer, work);
}

// By a posted link: whether the goodbye has come by each rail, and with it all that the peer had sent; the first says
// how many rails there are, for this rank may have no link to the peer. A peer that has left needs nothing more: what
// cannot be put any more is not missed, and a rank that waits for it finds out.
bool Boards::hasLeft(int peer) const {
  const Notice& notice = noticeOf(peer);
  const std::uint64_t rails = device::loadAcquire(notice.left[0]);  // [left]
  for (std::uint64_t rail = 1; rail < std::min<std::uint64_t>(rails, device::kMaxRails); ++rail) {
    if (device::loadAcquire(notice.left[rail]) == 0) return false;  // [left]
  }
  return rails != 0;
}

bool Boards::haveAllLeft() const {
  for (int peer = 0; peer < peers_.ranks(); ++peer) {
    if (peer != rank_ && !hasLeft(peer)) return false;
  }
  return true;
}

}  // namespace kolo::links
