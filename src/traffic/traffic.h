// What a rank does by its links: requests to the transports of posted links, reads and writes of a peer's ordinary
// memory, waits for peers, and the replacement of links that are lost.
//
// Executors know this object as the owner of the links. Messages use it too.
//
// Thread safety: under the communicator's turn, and while hold() is held where links may be replaced: a thread of this
// object looks after them between calls (traffic/failover.cc). posts() and mayReroute(): any thread. links(),
// beginLists() and offersMemory(): under the turn alone.
// Invariants
//  - Every function that waits ends as Waiter says.
//  - After releaseBuffers() no peer writes in this rank's buffers any more, and what a peer reads there does not count.
//  - A link's counters are by the rails of the first link to the peer, whatever has come in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "executor/context.h"
#include "failure/cause.h"
#include "failure/failure_state.h"
#include "failure/reasons.h"
#include "links/arena.h"
#include "links/boards.h"
#include "links/peers.h"
#include "links/windows.h"
#include "traffic/peer_lists.h"
#include "waiting/waiter.h"

namespace kolo::traffic {

// The messages of a rank, as its traffic sees them.
class MessageEngine {
 public:
  // Goes on with what can go on, while the rank waits for something else.
  virtual bool goOn() = 0;
  // The link to a peer has been replaced: what is of messages, and may be lost, is said once more.
  virtual device::Fault beginAgain(int peer) = 0;

 protected:
  ~MessageEngine() = default;
};

class Traffic final : public executor::LinkOwner {
 public:
  // All of them outlive the traffic.
  struct Setup {
    int rank = 0;
    const links::ArenaLayout& layout;
    links::Peers& peers;
    const links::Windows& windows;
    links::Boards& boards;
    waiting::Waiter& waiter;
    const failure::FailureState& failure;
    failure::CauseFinder& causes;
    failure::Reasons& reasons;
    bool posts = false;          // some links are posted; the same on all ranks
    bool canWritePeers = false;  // peers may write in this process's ordinary memory
    bool wasDumpable = false;    // this process, when the communicator was made
  };
  explicit Traffic(const Setup& setup);

  // From here on messages go on while the rank waits, and links that are lost are replaced.
  void begin(MessageEngine& messages);
  // Nobody looks after the links any more.
  void end() { caretaker_ = {}; }

  std::vector<device::Link>& links() { return links_; }
  // Whether some links are posted; the same on all ranks.
  bool posts() const { return setup_.posts; }
  // Whether a posted link that is lost may be replaced by one of another transport.
  bool mayReroute() const { return mayReroute_; }
  // Keeps the caretaker from posted links, while the calling thread uses them.
  [[nodiscard]] std::unique_lock<std::mutex> hold() {
    return mayReroute_ ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
  }

  // ---- for executors

  device::Fault open(device::Link& link) override;
  device::Fault post(const device::Work& work, const device::Link& link, const device::Post& post) override;
  bool progress(int peer) override { return setup_.waiter.progress(peer); }
  int looks() const override { return setup_.waiter.looks(); }
  device::Fault keepWaiting(const device::Work& work, int peer, executor::WaitState& state) override;
  bool read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) override;
  bool write(int peer, std::uint64_t to, const void* from, std::uint64_t bytes) override;
  bool readList(const device::PeerSegments& list, void* to, const unsigned char* place, std::uint64_t bytes) override;
  bool writeList(const device::PeerSegments& list, const unsigned char* place, const void* from,
                 std::uint64_t bytes) override;
  const device::Segments* loadableList(const device::PeerSegments& list) override;
  // Before an operation in which peers' lists are read.
  void beginLists() { lists_.begin(setup_.windows.changes()); }

  // ---- for messages, which are of no collective

  // Opens the link to a peer: kNone, or why not.
  device::Fault open(int peer) { return open(links_[static_cast<std::size_t>(peer)]); }
  // Of the first link to the peer. REQUIRES: open(peer).
  std::uint32_t railsTo(int peer) const { return links_[static_cast<std::size_t>(peer)].railMask + 1; }
  // kNone, or why the request cannot be made.
  device::Fault post(int peer, const device::Post& post, bool isMessage = true);
  // Of a message that has been read out of the peer's memory (device::mayHaveChanged), and where it lies if it is in a
  // window (device::placeIn).
  bool mayHaveChanged(int peer) const { return device::mayHaveChanged(links_[static_cast<std::size_t>(peer)]); }
  const unsigned char* placeIn(int peer, const device::WindowRef& ref, std::uint64_t bytes) const {
    return device::placeIn(links_[static_cast<std::size_t>(peer)], ref, 0, bytes);
  }
  // In a wait for a message; peer -1: for any. kNone, or why to give up. now: the time, as nowNs() says it. mayRest:
  // the calling thread has nothing better to do, and leaves its core to others for a moment.
  device::Fault checkMessages(int peer, executor::WaitState& state, std::int64_t now, bool mayRest = true);

  // ---- for both

  // In any wait: kNone, or why to give up. peer -1: for nobody in particular. now: the time, as nowNs() says it.
  device::Fault checkWait(int peer, executor::WaitState& state, bool isMessage, std::int64_t now);
  // Until all requests go on without this rank's help.
  device::Fault flush(bool isMessage);
  // A posted link is lost, or could not be opened: kAborted if that is known to be a part of something larger; kNone if
  // what was to be done may be tried again, for the peer is reached otherwise.
  device::Fault lost(int peer, Status why);
  // Whether peers may still read and write this process's ordinary memory, if they could when the communicator was
  // made. Costs a system call.
  bool offersMemory();
  // The buffers of an operation that failed are the caller's again.
  void releaseBuffers();
  // Tells all peers that this rank goes, behind what they were sent before.
  void sayGoodbye();

 private:
  int rank() const { return setup_.rank; }
  Status writeTo(int peer, std::uint64_t to, const unsigned char* from, std::uint64_t bytes);
  int ranks() const { return setup_.peers.ranks(); }
  void aim(device::Link& link);
  void notify();
  void sayGoodbye(int peer);
  void awaitWriters();
  // ---- links that are lost: failover.cc
  device::Fault lookForReroutes(std::int64_t nowNs);
  device::Fault followReroutes();
  bool reroute(int peer, Status& why);
  device::Fault repeat(int peer);
  void takeCare(const std::stop_token& stop);

  const Setup setup_;
  MessageEngine* messages_ = nullptr;  // null until begin()
  std::vector<device::Link> links_;
  PeerLists lists_;
  std::uint64_t notified_ = 0;   // the last operation of which peers by posted links have been told
  bool saysUndumpable_ = true;   // where this process is no longer dumpable, and that is still to be told
  std::int64_t followedNs_ = 0;  // when it was last looked whether peers have abandoned their links
  bool followsReroutes_ = false;
  bool mayReroute_ = false;
  std::mutex mutex_;
  std::jthread caretaker_;  // last, for it uses the rest
};

}  // namespace kolo::traffic
