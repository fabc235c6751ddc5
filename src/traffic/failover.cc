// How operations go on when the posted link to a peer is lost and another transport reaches it too.
//
// A mirror is what the peer's memory is to be, so all of it may be put again (device/link.h). But what is still on its
// way by the lost link must not arrive after that: a slot would get its old bytes back. So each end first abandons the
// old way, by which nothing arrives then, and tells the other by the new one how often it has done so; it repeats its
// mirror, and goes on, when it has read that the other has done so as often [reroute]. Either may begin: the other
// follows, though its own end may seem to work. And so that it need not be in a call, a thread looks after the links
// between calls: the peer may have to hear again what the last one has put.
#include <condition_variable>

#include "base/caller.h"
#include "base/log.h"
#include "traffic/traffic.h"

namespace kolo::traffic {
namespace {

constexpr std::chrono::milliseconds kCareInterval{50};

}  // namespace

using device::Fault;

// Whether another transport takes over; if not, adds to `why` the reason.
bool Traffic::reroute(int peer, Status& why) {
  if (!setup_.peers[peer].canBeRerouted()) return false;
  const Status done = setup_.peers.reroute(peer, setup_.boards.noticeTo(peer).reroutes);
  if (!done.ok()) why = error(koloRemoteError, "{}; {}", why.message(), done.message());
  return done.ok();
}

// Called now and then while this rank waits, whomever it waits for: the peer may wait for it.
Fault Traffic::followReroutes() {
  if (followsReroutes_) return {};  // repeating waits too
  followsReroutes_ = true;
  Fault fault;
  setup_.peers.listen();
  for (int peer = 0; peer < ranks() && fault.kind == Fault::kNone; ++peer) {
    if (peer == rank() || setup_.peers[peer].isGone) continue;
    const std::uint64_t theirs = device::loadAcquire(setup_.boards.noticeOf(peer).reroutes);  // [reroute]
    const auto behind = [&] { return theirs > setup_.peers[peer].reroutes; };
    if (behind() && !setup_.peers.isOpen(peer)) fault = open(peer);
    while (behind() && fault.kind == Fault::kNone)
      fault = lost(peer, error(koloRemoteError, "rank {} has abandoned its end of the link", peer));
    if (setup_.peers[peer].isHeld && theirs >= setup_.peers[peer].reroutes && fault.kind == Fault::kNone)
      fault = repeat(peer);
    if (setup_.boards.hasLeft(peer) || setup_.peers[peer].isGone) fault = {};  // as in post()
  }
  followsReroutes_ = false;
  return fault;
}

Fault Traffic::repeat(int peer) {
  setup_.peers.release(peer);
  for (const device::Post& request : setup_.layout.requestsFor(setup_.layout.part(setup_.peers.partAt(peer)))) {
    if (const Fault fault = post(peer, request, false); fault.kind != Fault::kNone) return fault;
    if (setup_.peers[peer].isHeld) return {};  // the new link is lost too, and replaced: all again, then
  }
  return messages_->beginAgain(peer);
}

// Between the calls of the communicator's user; a thread that is in a call looks after links itself.
void Traffic::takeCare(const std::stop_token& stop) {
  caller.isLibrarys = true;
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  while (!never.wait_for(lock, stop, kCareInterval, [] { return false; }) && !stop.stop_requested() &&
         !setup_.failure.isSet()) {
    const std::unique_lock held(mutex_, std::try_to_lock);
    // A call that failed has just let go of the links; its buffers are its caller's again.
    if (!held.owns_lock() || setup_.failure.isSet()) continue;
    (void)setup_.peers.progress(-1, 0);
    (void)followReroutes();
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank() || !setup_.peers[peer].canBeRerouted() || setup_.boards.hasLeft(peer)) continue;
      if (Status state = setup_.peers.state(peer); !state.ok()) (void)lost(peer, std::move(state));
    }
    (void)flush(false);  // a wait finds what is lost for good
    setup_.waiter.end();
  }
}

}  // namespace kolo::traffic
