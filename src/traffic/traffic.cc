#include "traffic/traffic.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/quiet_thread.h"
#include "common/clock.h"
#include "links/surroundings.h"

namespace kolo::traffic {
namespace {

using device::Fault;
using device::Work;

// Of two ranks that each store one of two counters and then load the other counter, at least one sees what the other
// has stored.
void storeInOneOrder(device::Counter& counter, std::uint64_t value) { std::atomic_ref(counter.value).store(value); }
std::uint64_t loadInOneOrder(const device::Counter& counter) {
  return std::atomic_ref(const_cast<std::uint64_t&>(counter.value)).load();
}

}  // namespace

// ---- making and opening them

Traffic::Traffic(const Setup& setup) : setup_(setup) {
  links_.resize(static_cast<std::size_t>(ranks()));
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank()) continue;
    device::Link& link = links_[static_cast<std::size_t>(peer)];
    const links::ArenaLayout::Part in = setup_.layout.part(setup_.peers.arena() + setup_.layout.partAt(peer));
    link.peer = peer;
    link.inbox = in.mailbox;
    link.inSlots = in.slots;
    link.windows = setup_.windows.tableOf(peer);
    if (setup_.peers.isOpen(peer)) aim(link);
  }
}

void Traffic::begin(MessageEngine& messages) {
  messages_ = &messages;
  mayReroute_ = posts() && setup_.peers.mayReroute();
  if (mayReroute_) caretaker_ = startQuietly<std::jthread>([this](const std::stop_token& stop) { takeCare(stop); });
}

// Where an open link leads.
void Traffic::aim(device::Link& link) {
  const links::ArenaLayout::Part out = setup_.layout.part(setup_.peers.partAt(link.peer));
  link.outbox = out.mailbox;
  link.outSlots = out.slots;
  link.isPosted = setup_.peers[link.peer].isPosted();
  link.marks.gaveUp = link.isPosted ? nullptr : &setup_.boards.of(link.peer).gaveUp;
  link.marks.asleep = link.isPosted ? nullptr : &setup_.boards.of(link.peer).asleep;
  link.railMask = setup_.peers[link.peer].link->rails() - 1;
}

Fault Traffic::open(device::Link& link) {
  if (link.outbox != nullptr)
    return {};  // its rails are counted as they were at first, whatever link has come in its place
  Status opened = setup_.peers.open(link.peer);
  if (opened.ok() && !setup_.posts && setup_.peers[link.peer].isPosted()) {
    opened = error(koloUnreachable, "rank {} maps the memory of others on this host, but not that of rank {}", rank(),
                   link.peer);
  }
  if (!opened.ok()) return lost(link.peer, std::move(opened));
  aim(link);
  return {};
}

// ---- posted links

Fault Traffic::post(const Work&, const device::Link& link, const device::Post& post) {
  return this->post(link.peer, post, false);
}

Fault Traffic::post(int peer, const device::Post& post, bool isMessage) {
  executor::WaitState state;
  for (;;) {
    Status accepted = setup_.peers.put(peer, post);
    if (accepted.ok()) return {};
    const bool isBusy = accepted.code() == koloInProgress && !setup_.peers[peer].isHeld;
    const Fault fault = setup_.peers[peer].isGone           ? Fault{Fault::kLost, peer, 0, 0}
                        : accepted.code() == koloInProgress ? checkWait(peer, state, isMessage, nowNs())
                                                            : lost(peer, std::move(accepted));
    // A peer that left may have needed nothing more, so that is no failure here. A wait for it finds out.
    if (!isBusy && (setup_.boards.hasLeft(peer) || setup_.peers[peer].isGone)) return {};
    if (fault.kind != Fault::kNone) return fault;
  }
}

// Before a rank leaves an operation its requests must need no help of its: it may not come back for a long time.
Fault Traffic::flush(bool isMessage) {
  executor::WaitState state;
  while (!setup_.peers.isFlushed()) {
    const int peer = setup_.peers.unflushed();
    if (setup_.peers[peer].isHeld && setup_.boards.hasLeft(peer)) setup_.peers.release(peer);
    if (setup_.peers.progress(peer, 0)) continue;
    if (const Fault fault = checkWait(peer, state, isMessage, nowNs()); fault.kind != Fault::kNone) return fault;
  }
  return {};
}

// A rank that dies closes all that it had open, in any order: what the control plane says about it is worth a moment.
// But not if it is still reached otherwise.
Fault Traffic::lost(int peer, Status why) {
  constexpr int kRounds = 100;
  const timespec nap{0, 5'000'000};
  if (reroute(peer, why)) return {};
  for (int i = 0; i < kRounds && !setup_.failure.isSet() && !setup_.boards.hasLeft(peer); ++i) {
    nanosleep(&nap, nullptr);
    (void)setup_.peers.progress(-1, 0);  // what it said before is still to be taken
  }
  if (!setup_.failure.isSet()) setup_.causes.awaitNewsOfHub();
  if (setup_.failure.isSet()) return {Fault::kAborted, peer, 0, 0};
  setup_.reasons.noteLostLink(peer, why);
  return {Fault::kLost, peer, 0, 0};
}

bool Traffic::read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) {
  setup_.reasons.noteAccess(setup_.peers[peer].link->read(to, from, bytes));
  return setup_.reasons.access().ok();
}

bool Traffic::readList(const device::PeerSegments& list, void* to, const unsigned char* place, std::uint64_t bytes) {
  const links::Peer& theirs = setup_.peers[list.peer];
  setup_.reasons.noteAccess([&]() -> Status {
    KOLO_ASSIGN(const PeerLists::List* const known, lists_.fetch(theirs, list, setup_.windows));
    return known->eachRun(place, bytes, [&](std::uint64_t from, std::uint64_t at, std::uint64_t count) {
      return theirs.link->read(static_cast<unsigned char*>(to) + at, from, count);
    });
  }());
  return setup_.reasons.access().ok();
}

bool Traffic::writeList(const device::PeerSegments& list, const unsigned char* place, const void* from,
                        std::uint64_t bytes) {
  setup_.reasons.noteAccess([&]() -> Status {
    KOLO_ASSIGN(const PeerLists::List* const known, lists_.fetch(setup_.peers[list.peer], list, setup_.windows));
    return known->eachRun(place, bytes, [&](std::uint64_t to, std::uint64_t at, std::uint64_t count) {
      return writeTo(list.peer, to, static_cast<const unsigned char*>(from) + at, count);
    });
  }());
  return setup_.reasons.access().ok();
}

const device::Segments* Traffic::loadableList(const device::PeerSegments& list) {
  const auto known = lists_.fetch(setup_.peers[list.peer], list, setup_.windows);
  return known.ok() && known.value()->isLoadable ? &known.value()->segments() : nullptr;
}

bool Traffic::write(int peer, std::uint64_t to, const void* from, std::uint64_t bytes) {
  setup_.reasons.noteAccess(writeTo(peer, to, static_cast<const unsigned char*>(from), bytes));
  return setup_.reasons.access().ok();
}

Status Traffic::writeTo(int peer, std::uint64_t to, const unsigned char* from, std::uint64_t bytes) {
  constexpr std::uint64_t kPiece = 4 << 20;
  Status status;
  for (std::uint64_t done = 0; done < bytes && status.ok(); done += kPiece) {
    storeInOneOrder(setup_.boards.own().writes,
                    static_cast<std::uint64_t>(peer) + 1);                       // [writes] before [gave up] is read
    const bool hasGivenUp = loadInOneOrder(setup_.boards.of(peer).gaveUp) != 0;  // [gave up]
    if (!hasGivenUp && !setup_.failure.isSet()) {
      status = setup_.peers[peer].link->write(to + done, from + done, std::min(kPiece, bytes - done));
    } else {
      status = Status(koloRemoteError, "the operation has failed");
    }
    device::storeRelease(setup_.boards.own().writes, 0);  // [writes] after what was written
  }
  return status;
}

// The kernel lets others at the memory of a process that is dumpable. A program may end that when it likes: by prctl,
// or by another user or fewer capabilities. Nobody tells this rank, so it asks before it offers anything; the peers see
// in its headers and lines that nothing is offered. Where peers could read without that (by CAP_SYS_PTRACE), nothing
// changes.
bool Traffic::offersMemory() {
  if (!setup_.wasDumpable || links::isDumpable()) return true;
  if (std::exchange(saysUndumpable_, false)) {
    log::info(
        "rank {}: this process is no longer dumpable (prctl PR_SET_DUMPABLE, or a change of its user), so that others "
        "may not read its memory: ordinary buffers go through staging",
        rank());
  }
  return false;
}

// ---- the end of reads and writes

// The caller may do with its buffers what it likes, though peers may still read there. A peer that has read looks at
// this mark afterwards. A peer that writes says so and looks at the mark before, so that either the writer sees the
// mark, or the writer is seen here and waited for.
void Traffic::releaseBuffers() {
  storeInOneOrder(setup_.boards.own().gaveUp, 1);  // [gave up] before [writes] is read
  device::fence();                                 // before what the caller writes
  if (setup_.canWritePeers) awaitWriters();
}

// A piece takes a millisecond or so. A process that was killed in the middle has left the kernel before others hear of
// its death; its mark stays, though. One that is stopped just there, or waits for its pages, is not waited for longer
// than this.
void Traffic::awaitWriters() {
  constexpr std::int64_t kLongestNs = 2'000'000'000, kOfTheDeadNs = 50'000'000;
  const timespec nap{0, 100'000};
  const std::int64_t begin = nowNs();
  const auto writesHere = [&](int peer) {
    return peer != rank() && setup_.peers.isOpen(peer) && !setup_.peers[peer].isPosted() &&
           loadInOneOrder(setup_.boards.of(peer).writes) == static_cast<std::uint64_t>(rank()) + 1;  // [writes]
  };
  for (int peer = 0; peer < ranks(); ++peer) {
    while (writesHere(peer) && nowNs() - begin < (setup_.failure.isReported(peer) ? kOfTheDeadNs : kLongestNs))
      nanosleep(&nap, nullptr);
  }
}

}  // namespace kolo::traffic
