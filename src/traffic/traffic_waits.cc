// What an operation does while it waits, for peers whose memory is mapped and for posted links, and what it finds
// meanwhile.
#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "traffic/traffic.h"

namespace kolo::traffic {

using device::Fault;
using device::Work;

// Sends what is new on the board to the peers that cannot read it, in each operation in which this rank waits for long:
// one of them may wait for it, though it waits for another. By signals alone, which are whole however the peer reads
// meanwhile.
void Traffic::notify() {
  const links::Board& board = setup_.boards.own();
  const std::uint64_t last = setup_.boards.lastNumber();
  const std::uint64_t oldest = last > device::kMaxOwed ? last - device::kMaxOwed : 0;
  for (std::uint64_t number = std::max(notified_, oldest) + 1; number <= last; ++number) {
    const links::BoardEntry& mine = board.entries[number % links::Board::kEntries];
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank() || !setup_.peers.isOpen(peer) || !setup_.peers[peer].isPosted()) continue;
      links::BoardEntry& theirs = setup_.boards.noticeTo(peer).entries[number % links::Board::kEntries];
      const auto send = [&](device::Counter& word, std::uint64_t value) {
        device::storeRelease(word, value);
        (void)post(peer, {0, nullptr, 0, &word, value}, false);
      };
      send(theirs.sequence, 0);
      send(theirs.signature, mine.signature.value);
      send(theirs.count, mine.count.value);
      send(theirs.sequence, number);  // [board]
    }
  }
  notified_ = last;
}

void Traffic::sayGoodbye() {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank() && setup_.peers.isOpen(peer)) sayGoodbye(peer);
  }
}

// Tells a peer that this rank goes, behind what it was sent before: by a posted link, by each rail.
void Traffic::sayGoodbye(int peer) {
  links::Notice& notice = setup_.boards.noticeTo(peer);
  const std::uint32_t rails = setup_.peers[peer].isPosted() ? railsTo(peer) : 1;
  for (std::uint32_t rail = 0; rail < rails; ++rail) {
    device::storeRelease(notice.left[rail], rails);  // [left]
    if (!setup_.peers[peer].isPosted()) return;
    const device::Post goodbye{rail, nullptr, 0, &notice.left[rail], rails};
    for (int tries = 0; tries < 1000 && setup_.peers.put(peer, goodbye).code() == koloInProgress; ++tries) {  // [left]
      setup_.peers.progress(peer, 1000);
      if (setup_.peers[peer].isHeld) (void)followReroutes();
    }
  }
}

Fault Traffic::checkWait(int peer, executor::WaitState& state, bool isMessage, std::int64_t now) {
  const Fault fault = setup_.waiter.keepWaiting(peer, state, isMessage, now);
  return fault.kind != Fault::kNone ? fault : lookForReroutes(now);
}

Fault Traffic::lookForReroutes(std::int64_t now) {
  if (!mayReroute_ || now - followedNs_ < waiting::kBoardIntervalNs) return {};
  followedNs_ = now;
  return followReroutes();
}

// Messages wait for nobody in particular (-1), or for one peer, which may leave meanwhile, or whose link may be lost.
// What a peer sent before it left is there when it is known to have left: this rank looks once more before it gives up.
Fault Traffic::checkMessages(int peer, executor::WaitState& state, std::int64_t now, bool mayRest) {
  Fault fault = mayRest ? checkWait(peer, state, true, now) : setup_.waiter.check(peer, state, true, now);
  if (!mayRest && fault.kind == Fault::kNone) fault = lookForReroutes(now);
  if (fault.kind != Fault::kNone || now - state.checkedNs < waiting::kBoardIntervalNs) return fault;
  state.checkedNs = now;
  const auto isGone = [&] { return peer >= 0 ? setup_.boards.hasLeft(peer) : setup_.boards.haveAllLeft(); };
  if (isGone()) return std::exchange(state.isKnownToBeGone, true) ? Fault{Fault::kLeft, peer, 0, 0} : Fault{};
  Status link = peer >= 0 ? setup_.peers.state(peer) : Status();
  if (link.ok()) return {};
  const Fault loss = lost(peer, std::move(link));
  return isGone() ? Fault{} : loss;
}

Fault Traffic::keepWaiting(const Work& work, int peer, executor::WaitState& state) {
  if (messages_->goOn()) state.idleNs = 0;
  const std::int64_t now = nowNs();
  const Fault fault = checkWait(peer, state, false, now);
  if (fault.kind != Fault::kNone) return fault;
  if (now - state.checkedNs < waiting::kBoardIntervalNs) return {};
  state.checkedNs = now;
  notify();
  if (Status lostLink = setup_.peers.state(peer); !lostLink.ok()) {
    const Fault lasting = lost(peer, std::move(lostLink));
    if (lasting.kind != Fault::kNone && !setup_.boards.hasLeft(peer)) return lasting;
  }
  if (const std::optional<Fault> found = setup_.boards.problemOf(peer, work)) return *found;
  return setup_.causes.inquire(work, peer, state).value_or(Fault{});
}

}  // namespace kolo::traffic
