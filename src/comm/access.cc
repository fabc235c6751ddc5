// What a rank does by its links besides waiting: requests to the transports of posted links, reads and writes of a
// peer's ordinary memory, and the end of both when an operation fails.
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "comm/communicator.h"

namespace kolo::comm {
namespace {

using device::Fault;
using device::Work;

// Of two who store each one of two counters and then load the other, one at least sees what the other has stored.
void storeInOneOrder(device::Counter& counter, std::uint64_t value) { std::atomic_ref(counter.value).store(value); }
std::uint64_t loadInOneOrder(const device::Counter& counter) {
  return std::atomic_ref(const_cast<std::uint64_t&>(counter.value)).load();
}

}  // namespace

// ---- posted links

Fault Communicator::post(const Work&, const device::Link& link, const device::Post& post) {
  return this->post(link.peer, post, false);
}

Fault Communicator::post(int peer, const device::Post& post, bool isMessage) {
  executor::WaitState state;
  for (;;) {
    Status accepted = peers_->put(peer, post);
    if (accepted.ok()) return {};
    const bool isBusy = accepted.code() == koloInProgress && !(*peers_)[peer].isHeld;
    const Fault fault = (*peers_)[peer].isGone              ? Fault{Fault::kLost, peer, 0, 0}
                        : accepted.code() == koloInProgress ? checkWait(peer, state, isMessage)
                                                            : lost(peer, std::move(accepted));
    // Whoever waits for a peer that has left, or is reached by no transport any more, finds out; it may need nothing
    // more, and have gone.
    if (!isBusy && (boards_->hasLeft(peer) || (*peers_)[peer].isGone)) return {};
    if (fault.kind != Fault::kNone) return fault;
  }
}

// Before a rank leaves an operation its requests must need no help of its: it may not come back for a long time.
Fault Communicator::flush(bool isMessage) {
  executor::WaitState state;
  while (!peers_->isFlushed()) {
    const int peer = peers_->unflushed();
    if ((*peers_)[peer].isHeld && boards_->hasLeft(peer)) peers_->release(peer);
    if (peers_->progress(peer, 0)) continue;
    if (const Fault fault = checkWait(peer, state, isMessage); fault.kind != Fault::kNone) return fault;
  }
  return {};
}

// A rank that dies closes all that it had open, in any order: what the control plane says about it is worth a moment.
// But not if it is still reached otherwise.
Fault Communicator::lost(int peer, Status why) {
  constexpr int kRounds = 100;
  const timespec nap{0, 5'000'000};
  if (reroute(peer, why)) return {};
  for (int i = 0; i < kRounds && !failed() && !boards_->hasLeft(peer); ++i) {
    nanosleep(&nap, nullptr);
    (void)peers_->progress(-1, 0);  // what it said before is still to be taken
  }
  if (!failed()) causes_->awaitNewsOfHub();
  if (failed()) return {Fault::kAborted, peer, 0, 0};
  reasons_.noteLostLink(std::move(why));
  return {Fault::kLost, peer, 0, 0};
}

bool Communicator::read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) {
  reasons_.noteAccess((*peers_)[peer].link->read(to, from, bytes));
  return reasons_.access().ok();
}

bool Communicator::write(int peer, std::uint64_t to, const void* from, std::uint64_t bytes) {
  constexpr std::uint64_t kPiece = 4 << 20;
  Status status;
  for (std::uint64_t done = 0; done < bytes && status.ok(); done += kPiece) {
    storeInOneOrder(boards_->own().writes, static_cast<std::uint64_t>(peer) + 1);  // [writes] before [gave up] is read
    const bool hasGivenUp = loadInOneOrder(boards_->of(peer).gaveUp) != 0;         // [gave up]
    if (!hasGivenUp && !failed()) {
      status = (*peers_)[peer].link->write(to + done, static_cast<const unsigned char*>(from) + done,
                                           std::min(kPiece, bytes - done));
    } else {
      status = Status(koloRemoteError, "the operation has failed");
    }
    device::storeRelease(boards_->own().writes, 0);  // [writes] after what was written
  }
  reasons_.noteAccess(std::move(status));
  return reasons_.access().ok();
}

bool isDumpable() { return prctl(PR_GET_DUMPABLE) == 1; }

// The kernel lets others at the memory of a process that is dumpable. A program may end that when it likes: by prctl,
// or by another user or fewer capabilities. Nobody tells this rank, so it asks before it offers anything; the peers see
// in its headers and lines that nothing is offered. Where peers could read without that (by CAP_SYS_PTRACE), nothing
// changes.
bool Communicator::offersMemory() {
  if (!wasDumpable_ || isDumpable()) return true;
  if (std::exchange(saysUndumpable_, false)) {
    log::info(
        "rank {}: this process is no longer dumpable (prctl PR_SET_DUMPABLE, or a change of its user), so that others "
        "may not read its memory: ordinary buffers go through staging",
        rank());
  }
  return false;
}

// ---- the end of reads and writes

// The caller may do with its buffers what it likes, though peers may still read there. Whoever has read looks at this
// afterwards; whoever writes says so and looks at this before, so that either the writer sees it, or the writer is seen
// here and waited for.
void Communicator::releaseBuffers() {
  storeInOneOrder(boards_->own().gaveUp, 1);  // [gave up] before [writes] is read
  device::fence();                            // before what the caller writes
  if (site_.copies.canWritePeers) awaitWriters();
}

Status Communicator::giveUpMessages(const Fault& fault, int peer) {
  Status why = conclusions_->ofMessages(fault, peer);
  releaseBuffers();  // behind that, for peers that find the mark wait for the reason
  return why;
}

// A piece takes a millisecond or so. A process that was killed in the middle has left the kernel before others hear of
// its death; its mark stays, though. One that is stopped just there, or waits for its pages, is not waited for longer
// than this.
void Communicator::awaitWriters() {
  constexpr std::int64_t kLongestNs = 2'000'000'000, kOfTheDeadNs = 50'000'000;
  const timespec nap{0, 100'000};
  const std::int64_t begin = nowNs();
  const auto writesHere = [&](int peer) {
    return peer != rank() && peers_->isOpen(peer) && !(*peers_)[peer].isPosted() &&
           loadInOneOrder(boards_->of(peer).writes) == static_cast<std::uint64_t>(rank()) + 1;  // [writes]
  };
  for (int peer = 0; peer < ranks(); ++peer) {
    while (writesHere(peer) && nowNs() - begin < (failure_.isReported(peer) ? kOfTheDeadNs : kLongestNs))
      nanosleep(&nap, nullptr);
  }
}

}  // namespace kolo::comm
