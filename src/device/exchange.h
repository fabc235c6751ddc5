// One operation as one team carries it out: the team, the description of the operation, and this rank's link to each
// peer. What algorithms do with it are free functions, a file for each idea:
//   headers.h        opening the operation towards peers, and meeting them
//   offers.h         what headers say of buffers, and which path follows
//   peer_memory.h    reading and writing buffers of peers
//   slots.h          staging in the receiver's memory
//   chunks.h         the verbs of rings and trees: send, receive, fold, forward
//   packets.h        small operations, whose data and headers go in packets
//   peers_at_once.h  staging with several peers in one step; opening the operation with the first chunks
//   folds.h          copies and reductions
//   message_steps.h  the steps of messages
//
// All are templates over the team: a host thread, an emulated block, a CUDA block. A team offers
//   kIsOneThread, kFoldBytes               bytes that a fold of peers' memory takes at a time
//   kPosts                                 whether it serves posted links too:
//   void post(link, post)                  hands a request to the link's transport, or fails; by one thread, or in
//                                          spread()
//   kWakes                                 whether peers by mapped links may sleep:
//   void wake(link)                        wakes the peer, if it sleeps, behind what was written for it
//   kOpens                                 whether links are made when they are first needed:
//   bool open(link)                        makes the link, if it has no outbox yet, or fails; by one thread
//   bool leader()                          true on one of its threads
//   void sync()                            barrier of its threads; memory before is visible after
//   bool leaderSays(value)                 a barrier; what the leader said
//   FoldLists& lists()                     all threads have the same
//   bool waitAtLeast(counter, target, peer)  all threads call; false, on all, once the operation has failed
//   bool failed()                          the same on all threads between two syncs
//   void spread(count, body)               body(i) for each i below count, by several threads at once; then a barrier
//   bool waitAlone(counter, target, peer)  in such a body: as waitAtLeast, for the calling thread
//   kPackets                               whether operations may go in packets; if so:
//   void divide(count, body)               as spread(), without the barrier
//   LoadedPacket waitPacket(packet, number, peer)    as waitAlone(), for a packet: what has come
//   void fail(fault)                       by the leader or in such a body, before a sync
//   void took(course)                      how the data of the operation goes
//   void copy(dst, src, bytes, streaming), void reduce(ReduceArgs)   all threads call; no barrier inside
//   kServesLists                           whether buffers may be lists of segments; if so:
//   void moveRows(RowMove), void reduceAs(datatype, ReduceArgs)      as copy() and reduce()
//   kReadsLists                            whether the lists of peers may be read and written where they are; if so:
//   void readList(list, to, place, bytes), void writeList(...)   as read() and write(), of a peer's list
//   const Segments* loadableList(list)     by one thread: a peer's list that needs neither; nullptr: it does
//
// After a failure every primitive returns at once and the algorithm runs to its end without touching data, so that no
// algorithm needs an error path. What was received is then undefined, and the operation returns an error.
#pragma once

#include <cstdint>

#include "device/host_device.h"
#include "device/link.h"
#include "device/views.h"
#include "device/work.h"

namespace kolo::device {

template <class Team>
class Exchange {
 public:
  static constexpr bool kIsOneThread = Team::kIsOneThread;

  KOLO_DEVICE Exchange(Team& team, const Work& work) : team_(team), work_(work) {}

  KOLO_DEVICE Team& team() const { return team_; }
  KOLO_DEVICE const Work& work() const { return work_; }
  KOLO_DEVICE bool failed() const { return team_.failed(); }

  // Peers are numbered as in the work, whose ranks may be a part of the communicator's.
  KOLO_DEVICE Link& linkTo(int peer) const {
    return work_.channel.links[work_.steps.members != nullptr ? work_.steps.members[peer] : peer];
  }
  KOLO_DEVICE int next(int rank) const { return nextRank(rank, work_.ranks); }
  // The i-th of the others, on the ring.
  KOLO_DEVICE int peerAt(int i) const { return ringRank(work_.rank, i + 1, work_.ranks); }

  // At most so many bytes come from each peer in this operation, in chunks of which only the last may be shorter:
  // chunks for half of the slots need no credits, for this rank's next header shows that they have been taken. All
  // threads call.
  KOLO_DEVICE void expectAtMost(std::uint64_t bytes) {
    givesCredits_ = bytes > std::uint64_t{work_.channel.slots / 2} * work_.channel.chunkBytes;
  }
  KOLO_DEVICE bool givesCredits() const { return givesCredits_; }

  KOLO_DEVICE std::uint64_t bytesOf(std::uint64_t elements) const { return work_.bytesOf(elements); }
  KOLO_DEVICE std::uint64_t chunkElements() const { return work_.channel.chunkBytes / work_.elementBytes; }

  // What this rank has for a peer, and where what it gets from it is to lie; of itself, too.
  KOLO_DEVICE Piece pieceTo(int peer) const {
    const ConstPiece input = work_.input(work_.partTo(peer));
    return {const_cast<unsigned char*>(input.data), input.bytes};
  }
  KOLO_DEVICE Piece pieceFrom(int peer) const { return work_.output(work_.partFrom(peer)); }

  // Tells the peer, by a counter in its memory, what this rank has written there before: on a mapped link by a release
  // store. On a posted one the mirror is changed, and a request brings over its data and then the counter. By one
  // thread.
  KOLO_DEVICE void signal(Link& link, Counter& counter, std::uint64_t value, const Post& request = {}) const {
    fenceStores();
    signalFenced(link, counter, value, request);
  }
  // One of several signals behind one fenceStores() by the same thread.
  KOLO_DEVICE void signalFenced(Link& link, Counter& counter, std::uint64_t value, const Post& request = {}) const {
    storeFenced(counter, value);
    if constexpr (Team::kPosts) {
      if (link.isPosted) {
        return team_.post(link, {request.rail, request.data, request.bytes, &counter, value, request.more});
      }
    }
    if constexpr (Team::kWakes) team_.wake(link);
  }

 private:
  Team& team_;
  const Work& work_;
  bool givesCredits_ = true;
};

}  // namespace kolo::device
