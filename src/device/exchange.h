// What algorithms are written in: headers, slots, windows and reductions, for one operation of one team.
//
// Template over the team: a host thread, an emulated block, a CUDA block. A team offers
//   kIsOneThread, kFoldBytes               bytes that a fold of peers' memory takes at a time
//   kPosts                                 whether it serves posted links too, and steps among a part of the ranks:
//   void post(link, post)                  hands a request to the link's transport, or fails; by one thread, or in
//                                          spread()
//   kOpens                                 whether links are made when they are first needed:
//   bool open(link)                        makes the link, if it has no outbox yet, or fails; by one thread
//   bool leader()                          true on one of its threads
//   void sync()                            barrier of its threads; memory before is visible after
//   bool waitAtLeast(counter, target, peer)  all threads call; false, on all, once the operation has failed
//   bool failed()                          the same on all threads between two syncs
//   void spread(count, body)               body(i) for each i below count, by several threads at once; then a barrier
//   bool waitAlone(counter, target, peer)  in such a body: as waitAtLeast, for the calling thread
//   void fail(fault)                       by the leader or in such a body, before a sync
//   void copy(dst, src, bytes, streaming), void reduce(ReduceArgs)   all threads call; no barrier inside
//   kServesLists                           whether buffers may be lists of segments; if so:
//   void moveRows(RowMove), void reduceAs(datatype, ReduceArgs)      likewise
//   void readList(peer, to, list, place, bytes), void writeList(...)  as read() and write(), of a peer's list
//
// After a failure every primitive returns at once and the algorithm runs to its end without touching data, so that no
// algorithm needs an error path. What was received is then undefined, and the operation returns an error.
#pragma once

#include <cstdint>

#include "device/copy_short.h"
#include "device/host_device.h"
#include "device/link.h"
#include "device/path.h"
#include "device/pieces.h"
#include "device/segment_moves.h"
#include "device/shares.h"
#include "device/work.h"

namespace kolo::device {

template <class Team>
class Exchange {
 public:
  KOLO_DEVICE Exchange(Team& team, const Work& work) : team_(team), work_(work) {}

  KOLO_DEVICE Team& team() { return team_; }
  KOLO_DEVICE const Work& work() const { return work_; }
  KOLO_DEVICE bool failed() { return team_.failed(); }

  // ---- headers

  // Opens the operation towards a peer. Waits only if as many headers as may be are owed by it. As often as the peer
  // announces itself to this rank; meet() or owe() must follow.
  KOLO_DEVICE_CALL void announce(int peer, const void* payload = nullptr, std::uint32_t payloadBytes = 0) {
    const Link& link = linkTo(peer);
    if (link.owed == kMaxOwed && !settle(peer, kMaxOwed - 1)) return;
    if (team_.leader()) writeHeader(peer, payload, payloadBytes);
  }
  // The same by one thread, in spread(); after settleAll(kMaxOwed - 1).
  KOLO_DEVICE void announceAlone(int peer, const void* payload = nullptr, std::uint32_t payloadBytes = 0) {
    if (kIsOneThread && linkTo(peer).owed == kMaxOwed && !settle(peer, kMaxOwed - 1)) return;
    writeHeader(peer, payload, payloadBytes);
  }
  KOLO_DEVICE void writeHeader(int peer, const void* payload, std::uint32_t payloadBytes) {
    Link& link = linkTo(peer);
    if constexpr (Team::kOpens) {
      if (link.outbox == nullptr && !team_.open(link)) return;
    }
    const std::uint64_t number = ++link.announced;
    Header& line = link.outbox->header[number % kHeaderLines];
    line.signature = work_.word;
    line.count = work_.countTo != nullptr ? work_.countTo[peer] : work_.headerCount;
    if (payload == nullptr && work_.pairsFromBytes != 0 && gives(work_, work_.rank, peer)) {
      if (const Piece piece = pieceTo(peer); isShort(piece)) {
        payload = piece.data;
        payloadBytes = static_cast<std::uint32_t>(piece.bytes);
      }
    }
    if (payload != nullptr) {
      copyShort(line.payload, payload, payloadBytes);
    } else {
      const WindowRef send = offeredInput(peer), recv = offeredOutput(peer);
      line.refs = {send.offset, recv.offset, send.index, givesAheadTo(peer) ? kGivenAhead : recv.index};
    }
    signal(link, line.number, number, 0, &line,
           kHeaderBytesBeforeNumber);  // [header] everything above is visible to whoever reads this number
  }

  // Waits until the peer has entered the operation too, and checks that it is the same one.
  KOLO_DEVICE_CALL bool meet(int peer) {
    Link& link = linkTo(peer);
    if (link.owed != 0 && !settle(peer, 0)) return false;
    const std::uint64_t number = link.met + 1;
    if (!team_.waitAtLeast(lineOf(link, number).number, number, link.peer)) return false;  // [header]
    if (team_.leader()) takeHeader(peer);
    team_.sync();
    return !team_.failed();
  }

  // The same by one thread, in spread(); after settleAll(0).
  KOLO_DEVICE void meetAlone(int peer) {
    const Link& link = linkTo(peer);
    if (kIsOneThread && link.owed != 0 && !settle(peer, 0)) return;
    const std::uint64_t number = link.met + 1;
    if (team_.waitAlone(lineOf(link, number).number, number, link.peer)) takeHeader(peer);  // [header]
  }

  // Instead of meet(), where nothing in the peer's header changes what this rank does: the header is read and checked
  // in a later operation, or by settle(). REQUIRES: announced.
  KOLO_DEVICE void owe(int peer) {
    if (!team_.leader() || team_.failed()) return;
    Link& link = linkTo(peer);
    ++link.owed;
    link.expected[link.announced % kHeaderLines] = {
        work_.word, work_.countFrom != nullptr ? work_.countFrom[peer] : work_.headerCount};
  }

  // Waits until the peer owes at most `most` headers of earlier operations; takes those that are there anyway.
  KOLO_DEVICE_CALL bool settle(int peer, std::uint32_t most) {
    Link& link = linkTo(peer);
    while (link.owed > most) {
      const std::uint64_t number = link.met + 1;
      if (!team_.waitAtLeast(lineOf(link, number).number, number, link.peer)) return false;  // [header]
      if (team_.leader()) takeOwed(peer);
      team_.sync();
      if (team_.failed()) return false;
    }
    return true;
  }

  // The header read by meet(); stays readable during this operation.
  KOLO_DEVICE const Header& headerOf(int peer) const {
    const Link& link = linkTo(peer);
    return lineOf(link, link.met);
  }

  KOLO_DEVICE_CALL void announceAll() {
    if (!settleAll(kMaxOwed - 1)) return;
    team_.spread(work_.ranks - 1, [&](int i) { announceAlone(peerAt(i)); });
  }
  KOLO_DEVICE_CALL bool meetAll() {
    if (!settleAll(0)) return false;
    team_.spread(work_.ranks - 1, [&](int i) { meetAlone(peerAt(i)); });
    return !team_.failed();
  }
  // settle() with every peer, before a spread(): threads that are apart there cannot wait together. One thread settles
  // as it goes.
  KOLO_DEVICE bool settleAll(std::uint32_t most) {
    for (int peer = next(work_.rank); !kIsOneThread && peer != work_.rank; peer = next(peer)) {
      if (linkTo(peer).owed > most && !settle(peer, most)) return false;
    }
    return !team_.failed();
  }
  // The i-th of the others, on the ring.
  KOLO_DEVICE int peerAt(int i) const { return ringRank(work_.rank, i + 1, work_.ranks); }

  // Meets those peers whom this rank has announced itself to and not met yet. All threads; after a barrier since
  // announce().
  KOLO_DEVICE_CALL bool meetRest() {
    bool good = !team_.failed();
    for (int peer = next(work_.rank); peer != work_.rank && good; peer = next(peer)) {
      const Link& link = linkTo(peer);
      if (link.met + link.owed < link.announced) good = meet(peer);
    }
    return good;
  }

  // ---- windows; after meet(peer). What is called the peer's input or output is the part that concerns this rank: all
  // of a buffer that is not divided, else its own block, wherever that lies. Of its own this rank sees likewise what is
  // for itself.

  KOLO_DEVICE bool sendIsShared(int peer) const { return sendRefOf(peer).index != 0; }
  KOLO_DEVICE bool recvIsShared(int peer) const { return recvRefOf(peer).index != 0; }
  // Where [begin, begin + bytes) of it lies, as this process sees it; nullptr, after a failure, if the peer has
  // registered no such memory. REQUIRES: it is shared.
  KOLO_DEVICE const unsigned char* sendOf(int peer, std::uint64_t begin, std::uint64_t bytes) {
    return peer == work_.rank ? pieceTo(peer).data + begin : placeOf(peer, linkTo(peer).theirSend, begin, bytes);
  }
  KOLO_DEVICE unsigned char* recvOf(int peer, std::uint64_t begin, std::uint64_t bytes) {
    return peer == work_.rank ? pieceFrom(peer).data + begin : placeOf(peer, linkTo(peer).theirRecv, begin, bytes);
  }
  // Whether the peer's input may be taken, by whatever way.
  KOLO_DEVICE bool sendIsReadable(int peer) const { return isGiven(sendRefOf(peer)); }
  // Whether something may be put into the peer's output, likewise.
  KOLO_DEVICE bool recvIsWritable(int peer) const { return isGiven(recvRefOf(peer)); }
  // Whether this rank's output is its input, or a part of one lies in the other.
  KOLO_DEVICE bool isInPlace() const {
    return work_.segments != nullptr ? work_.segments->isInPlace != 0 : work_.send == work_.recv;
  }
  // Elements of an output that is not divided.
  KOLO_DEVICE std::uint64_t outputElements() const {
    return work_.segments != nullptr ? work_.segments->recvBytes : work_.recvLayout.block(0).count;
  }
  // Whether the peer's input is its output.
  KOLO_DEVICE bool isInPlace(int peer) const {
    const WindowRef send = sendRefOf(peer), recv = recvRefOf(peer);
    return send.index == recv.index && send.offset == recv.offset;
  }
  // What this rank has for a peer, and where what it gets from it is to lie; of itself, too.
  KOLO_DEVICE Piece pieceTo(int peer) const {
    const Range part = work_.partTo(peer);
    return {const_cast<unsigned char*>(work_.send) + bytesOf(part.begin), bytesOf(part.count)};
  }
  KOLO_DEVICE Piece pieceFrom(int peer) const {
    const Range part = work_.partFrom(peer);
    return {work_.recv + bytesOf(part.begin), bytesOf(part.count)};
  }
  // What it has for itself.
  KOLO_DEVICE_CALL void copyOwn() {
    const Piece to = pieceFrom(work_.rank);
    copy(to.data, pieceTo(work_.rank).data, to.bytes, work_.streaming);
  }
  // Copies [begin, begin + bytes) of a rank's input. REQUIRES: readable; met. All threads call.
  KOLO_DEVICE_CALL void take(unsigned char* dst, int peer, std::uint64_t begin, std::uint64_t bytes) {
    if constexpr (Team::kServesLists) {
      if (work_.segments != nullptr && peer != work_.rank) {
        if (bytes != 0 && !team_.failed())
          SegmentMoves<Team>(team_, work_).take(dst, theirSegments(peer), inputPlace(begin), bytes);
        return;
      }
    }
    copy(dst, bring(dst, peer, begin, bytes), bytes, work_.streaming);  // nothing to copy if it has been read to there
  }
  // Where [begin, begin + bytes) of a rank's input lies: in place, or in `scratch`, where it has been read to.
  // REQUIRES: readable; met. After a barrier since `scratch` was used; another must follow.
  KOLO_DEVICE_CALL const unsigned char* bring(unsigned char* scratch, int peer, std::uint64_t begin,
                                              std::uint64_t bytes) {
    if (peer == work_.rank || sendIsShared(peer)) return sendOf(peer, begin, bytes);
    if (bytes == 0 || team_.failed()) return scratch;
    if constexpr (Team::kServesLists) {
      if (work_.segments != nullptr) {
        team_.readList(linkTo(peer).peer, scratch, sendRefOf(peer).offset, inputPlace(begin), bytes);
        return scratch;
      }
    }
    team_.read(linkTo(peer).peer, scratch, sendRefOf(peer).offset + begin, bytes);
    return scratch;
  }

  // Copies into a peer's output, from `begin` on. REQUIRES: writable; met. All threads call.
  KOLO_DEVICE_CALL void put(int peer, std::uint64_t begin, const unsigned char* src, std::uint64_t bytes) {
    if constexpr (Team::kServesLists) {
      if (work_.segments != nullptr) {
        if (bytes != 0 && !team_.failed())
          SegmentMoves<Team>(team_, work_).put(theirSegments(peer), outputPlace(begin), src, bytes);
        return;
      }
    }
    if (recvIsShared(peer)) {
      copy(recvOf(peer, begin, bytes), src, bytes, work_.streaming);
    } else if (bytes != 0 && !team_.failed()) {
      team_.write(linkTo(peer).peer, recvRefOf(peer).offset + begin, src, bytes);
    }
  }

  // ---- blocks that have a path of their own (device/path.h)

  // One block: where it lies here, and its path.
  struct Transfer {
    Piece piece;
    Path path;
  };
  // From this rank to a peer. After meet(peer), if this rank may have to write there.
  KOLO_DEVICE Transfer transferTo(int peer) const {
    const Piece piece = pieceTo(peer);
    return {piece, pathTo(peer, piece)};
  }
  // From a peer to this rank. After meet(peer).
  KOLO_DEVICE Transfer transferFrom(int peer) const {
    const Piece piece = pieceFrom(peer);
    return {piece, pathFrom(peer, piece)};
  }
  // What came with headers, from those peers of which transferFrom() says so.
  KOLO_DEVICE void takeFromHeaders() {
    team_.spread(work_.ranks - 1, [&](int i) {
      const Piece to = pieceFrom(peerAt(i));
      if (isShort(to)) copyLine(to.data, headerOf(peerAt(i)).payload, to.bytes);
    });
  }
  // What came with one. REQUIRES: transferFrom(peer) is `to`, by its header.
  KOLO_DEVICE void takeFromHeader(int peer, const Piece& to) {
    team_.spread(1, [&](int) { copyLine(to.data, headerOf(peer).payload, to.bytes); });
  }

  // Ends a direct operation: this rank touches the peers' buffers no more; waits until they say the same.
  KOLO_DEVICE_CALL void finishAll() {
    team_.sync();
    team_.spread(work_.ranks - 1, [&](int i) { sayDone(linkTo(peerAt(i))); });
    team_.spread(work_.ranks - 1, [&](int i) { awaitDone(linkTo(peerAt(i))); });
    // Behind all of that: what a third rank has put into this rank's output, it may have read from a peer that had
    // given up meanwhile.
    team_.spread(work_.ranks - 1, [&](int i) { confirm(linkTo(peerAt(i))); });
  }
  // The halves of it, for where only one rank of a pair touches the other's buffers: that one says when it is done, the
  // other waits. After a failure nothing is said: something has not been done. hasRead: in the peer's buffer; else it
  // has written there.
  KOLO_DEVICE_CALL void sayFinished(int peer, bool hasRead) {
    team_.sync();
    team_.spread(1, [&](int) {
      if (hasRead) confirm(linkTo(peer));
      if (!team_.failed()) sayDone(linkTo(peer));
    });
  }
  // With those peers of which it is so.
  template <class Condition>
  KOLO_DEVICE void awaitFinished(Condition condition) {
    team_.sync();
    team_.spread(work_.ranks - 1, [&](int i) {
      if (condition(peerAt(i))) awaitDone(linkTo(peerAt(i)));
    });
  }

  // ---- slots: staging in the receiver's memory

  // Waits for a free slot at the peer; the caller fills it and publishes. nullptr after a failure.
  KOLO_DEVICE_CALL unsigned char* acquireSlot(int peer) {
    Link& link = linkTo(peer);
    team_.sync();  // the counters of the last primitive are settled
    const std::uint64_t number = link.sent + 1;
    if (number > link.credited + work_.slots) {
      const Counter& head = link.inbox->signals.head;
      if (!team_.waitAtLeast(head, number - work_.slots, link.peer)) return nullptr;  // [credit]
      if (team_.leader()) link.credited = loadAcquire(head);                          // [credit]
    }
    if (team_.failed()) return nullptr;
    return link.outSlots + number % work_.slots * work_.slotBytes;
  }
  // bytes: of the slot that have been filled.
  KOLO_DEVICE_CALL void publishSlot(int peer, std::uint64_t bytes) {
    team_.sync();
    if (!team_.leader() || team_.failed()) return;
    Link& link = linkTo(peer);
    const std::uint64_t number = ++link.sent;
    const std::uint32_t rail = static_cast<std::uint32_t>(number) & link.railMask;
    // [chunk] after the team's stores into the slot
    signal(link, link.outbox->signals.tail[rail], number, rail, link.outSlots + number % work_.slots * work_.slotBytes,
           bytes);
  }
  // Waits for the peer's next chunk. nullptr after a failure.
  KOLO_DEVICE_CALL const unsigned char* awaitSlot(int peer) {
    Link& link = linkTo(peer);
    team_.sync();
    const std::uint64_t number = link.received + 1;
    if (!team_.waitAtLeast(tailOf(link, number), number, link.peer)) return nullptr;  // [chunk]
    return link.inSlots + number % work_.slots * work_.slotBytes;
  }
  KOLO_DEVICE_CALL void releaseSlot(int peer) {
    team_.sync();
    if (!team_.leader() || team_.failed()) return;
    Link& link = linkTo(peer);
    credit(link, ++link.received);  // after the team's loads from the slot
  }

  // ---- messages: each direction of a pair has numbers of its own; nothing here waits

  // Leader only.
  KOLO_DEVICE void announceMessage(int peer, const MessageFlow& flow) {
    Link& link = linkTo(peer);
    const std::uint64_t number = ++link.announced;
    Header& line = link.outbox->header[number % kHeaderLines];
    line.signature = flow.word;
    line.count = flow.count;
    line.refs = {flow.ref.index != 0 ? flow.ref.offset : 0, 0, flow.ref.index, 0};
    signal(link, line.number, number, 0, &line, kHeaderBytesBeforeNumber);  // [header]
  }
  KOLO_DEVICE bool hasHeader(int peer) {
    const Link& link = linkTo(peer);
    return team_.isAtLeast(lineOf(link, link.met + 1).number, link.met + 1);  // [header]
  }
  // Leader only. REQUIRES: hasHeader().
  KOLO_DEVICE void takeMessageHeader(int peer, const MessageFlow& flow) {
    ++linkTo(peer).met;
    takeRefs(peer);
    check(peer, {flow.word, flow.count}, flow.count);
  }
  KOLO_DEVICE bool hasFreeSlot(int peer) {
    const Link& link = linkTo(peer);
    return team_.isAtLeast(link.inbox->signals.head,
                           link.sent + 1 < work_.slots ? 0 : link.sent + 1 - work_.slots);  // [credit]
  }
  KOLO_DEVICE bool hasChunk(int peer) {
    const Link& link = linkTo(peer);
    return team_.isAtLeast(tailOf(link, link.received + 1), link.received + 1);  // [chunk]
  }
  // The receiver's word that it has taken a message out of this rank's window; the sender counts them. Waits if the
  // sender had its buffer back meanwhile, and then fails.
  KOLO_DEVICE void sayTaken(int peer) {
    team_.sync();
    if (!team_.leader() || team_.failed()) return;
    Link& link = linkTo(peer);
    confirm(link);
    if (team_.failed()) return;
    signal(link, link.outbox->signals.done, ++link.taken);  // [done] after all loads by this team
  }
  KOLO_DEVICE bool isTaken(int peer) {
    const Link& link = linkTo(peer);
    return team_.isAtLeast(link.inbox->signals.done, link.finished + 1);  // [done]
  }

  // ---- chunks: the verbs that rings and trees are made of. 0 bytes: nothing happens, on either side.

  // The peer gets this rank's contribution: src, with its scale applied.
  KOLO_DEVICE_CALL void send(int peer, const unsigned char* src, std::uint64_t bytes) {
    if (bytes == 0) return;
    if (unsigned char* slot = acquireSlot(peer)) {
      contribute(slot, src, bytes);
      publishSlot(peer, bytes);
    }
  }
  // As send, of data that is a result already.
  KOLO_DEVICE_CALL void forward(int peer, const unsigned char* src, std::uint64_t bytes) {
    if (bytes == 0) return;
    if (unsigned char* slot = acquireSlot(peer)) {
      move(slot, src, bytes, false);
      publishSlot(peer, bytes);
    }
  }
  KOLO_DEVICE_CALL void recv(int peer, unsigned char* dst, std::uint64_t bytes) {
    if (bytes == 0) return;
    if (const unsigned char* slot = awaitSlot(peer)) {
      move(dst, slot, bytes, work_.streaming);
      releaseSlot(peer);
    }
  }
  // dst and the next rank get what the previous one sent.
  KOLO_DEVICE_CALL void recvForward(int from, int to, unsigned char* dst, std::uint64_t bytes) {
    if (bytes == 0) return;
    const unsigned char* slot = awaitSlot(from);
    unsigned char* next = slot != nullptr ? acquireSlot(to) : nullptr;
    if (next == nullptr) return;
    void* outputs[] = {next, dst};
    const void* inputs[] = {slot};
    fold(outputs, 2, inputs, 1, -1, bytes, false, false);
    publishSlot(to, bytes);
    releaseSlot(from);
  }
  // The next rank gets the previous one's partial result, of `before` ranks, with this rank's contribution folded in.
  KOLO_DEVICE_CALL void recvReduceSend(int from, int to, const unsigned char* own, std::uint64_t bytes, int before) {
    if (bytes == 0) return;
    const unsigned char* slot = awaitSlot(from);
    unsigned char* next = slot != nullptr ? acquireSlot(to) : nullptr;
    if (next == nullptr) return;
    void* outputs[] = {next};
    foldOwn(outputs, 1, slot, before, own, bytes, false);
    publishSlot(to, bytes);
    releaseSlot(from);
  }
  // dst gets the finished result; the previous rank has sent the partial result of all others.
  KOLO_DEVICE_CALL void recvReduce(int from, unsigned char* dst, const unsigned char* own, std::uint64_t bytes) {
    if (bytes == 0) return;
    if (const unsigned char* slot = awaitSlot(from)) {
      void* outputs[] = {dst};
      foldOwn(outputs, 1, slot, work_.ranks - 1, own, bytes, work_.streaming);
      releaseSlot(from);
    }
  }
  // dst and the next rank get the finished result; the previous rank has sent the partial result of all others.
  KOLO_DEVICE_CALL void recvReduceForward(int from, int to, unsigned char* dst, const unsigned char* own,
                                          std::uint64_t bytes) {
    if (bytes == 0) return;
    const unsigned char* slot = awaitSlot(from);
    unsigned char* next = slot != nullptr ? acquireSlot(to) : nullptr;
    if (next == nullptr) return;
    void* outputs[] = {dst, next};
    foldOwn(outputs, 2, slot, work_.ranks - 1, own, bytes, false);
    publishSlot(to, bytes);
    releaseSlot(from);
  }

  // Sends `out` and receives `in`, both or either, slot by slot in turn. Peers may be equal. Pieces are packed: a slot
  // carries as many as fit, so both sides must list the same bytes in the same order. outAt(i) and inAt(i) give piece
  // i. A byte of `out` is read before the byte of `in` at the same position of the stream is written. Sending is some
  // chunks ahead of receiving (Work::chunksAtOnce): a wire that has a latency is kept busy, and with one more slot than
  // these nobody waits for a slot that is not emptied.
  template <class OutAt, class InAt>
  KOLO_DEVICE void exchange(int to, int outPieces, OutAt outAt, int from, int inPieces, InAt inAt) {
    PieceStream<OutAt> out(outPieces, outAt);
    PieceStream<InAt> in(inPieces, inAt);
    bool sending = true, receiving = true;
    for (std::uint32_t turn = 1; sending || receiving; turn += turn < work_.chunksAtOnce ? 1 : 0) {
      if (sending) sending = sendSome(to, out);
      if (receiving && turn == work_.chunksAtOnce) receiving = recvSome(from, in);
    }
    team_.sync();
  }

  // ---- arithmetic

  KOLO_DEVICE std::uint64_t bytesOf(std::uint64_t elements) const { return elements * work_.elementBytes; }
  KOLO_DEVICE std::uint64_t chunkElements() const { return work_.chunkBytes / work_.elementBytes; }

  // Copy of this rank's input, with its scale applied.
  KOLO_DEVICE_CALL void contribute(unsigned char* dst, const unsigned char* src, std::uint64_t bytes) {
    if (!work_.scaled) {
      move(dst, src, bytes, false);
      return;
    }
    void* outputs[] = {dst};
    const void* inputs[] = {src};
    fold(outputs, 1, inputs, 1, 0, bytes, false, false);
  }

  // The weight of a partial result in a fold: see device/shares.h.
  KOLO_DEVICE float shareOf(int ranks) const { return device::shareOf(work_, ranks); }

  // outputs = fold of inputs in their order; input `own` is this rank's, still without its scale (-1: none is); last:
  // the fold is complete, so avg divides; parts: of which partial results it is made, if not of inputs of the work
  // alone.
  KOLO_DEVICE_CALL void fold(void* const* outputs, int outputCount, const void* const* inputs, int inputCount, int own,
                             std::uint64_t bytes, bool last, bool streaming, FoldParts parts = {}) {
    if (team_.failed()) return;
    if constexpr (Team::kServesLists) {
      if (work_.segments != nullptr) {
        foldSegments(outputs, outputCount, inputs, inputCount, own, bytes, last, streaming, parts);
        return;
      }
    }
    ReduceArgs args{.dst = outputs,
                    .dstCount = outputCount,
                    .src = inputs,
                    .srcCount = inputCount,
                    .count = bytes / work_.elementBytes,
                    .scale = work_.scaled && own >= 0 ? work_.scalar : nullptr,
                    .scaledSource = work_.scaled ? own : -1,
                    .divisor = last ? work_.divisor : 1,
                    .streaming = streaming};
    foldShares(work_, last, parts, args);
    team_.reduce(args);
  }

  // At most a header's payload; by one thread.
  KOLO_DEVICE void copyLine(unsigned char* dst, const unsigned char* src, std::uint64_t bytes) {
    if (dst != src && !team_.failed()) copyShort(dst, src, static_cast<std::uint32_t>(bytes));
  }

  KOLO_DEVICE void copy(unsigned char* dst, const unsigned char* src, std::uint64_t bytes, bool streaming) {
    if (bytes != 0 && dst != src && !team_.failed()) move(dst, src, bytes, streaming);
  }

 private:
  static constexpr bool kIsOneThread = Team::kIsOneThread;

  // All that is copied between buffers and slots.
  KOLO_DEVICE void move(unsigned char* dst, const unsigned char* src, std::uint64_t bytes, bool streaming) {
    if constexpr (Team::kServesLists) {
      if (work_.segments != nullptr) return moveSegments(dst, src, bytes, streaming);
    }
    team_.copy(dst, src, bytes, streaming);
  }
  KOLO_APART void moveSegments(unsigned char* dst, const unsigned char* src, std::uint64_t bytes, bool streaming) {
    SegmentMoves<Team>(team_, work_).copy(dst, src, bytes, streaming);
  }
  KOLO_APART void foldSegments(void* const* outputs, int outputCount, const void* const* inputs, int inputCount,
                               int own, std::uint64_t bytes, bool last, bool streaming, const FoldParts& parts) {
    SegmentMoves<Team>(team_, work_).fold(outputs, outputCount, inputs, inputCount, own, bytes, last, streaming, parts);
  }

  // outputs = the partial result of `before` ranks, which lies in a slot, with this rank's contribution folded in.
  KOLO_DEVICE_CALL void foldOwn(void* const* outputs, int outputCount, const unsigned char* slot, int before,
                                const unsigned char* own, std::uint64_t bytes, bool streaming) {
    const void* inputs[] = {slot, own};
    const float weights[] = {shareOf(before), 1};
    fold(outputs, outputCount, inputs, 2, 1, bytes, before + 1 == work_.ranks, streaming, {weights, before + 1});
  }

  // Peers are numbered as in the work, whose ranks may be a part of the communicator's.
  KOLO_DEVICE Link& linkTo(int peer) const {
    if constexpr (Team::kPosts) {
      if (work_.members != nullptr) return work_.links[work_.members[peer]];
    }
    return work_.links[peer];
  }

  // Tells the peer, by a counter in its memory, what this rank has written there before: on a mapped link by a release
  // store. On a posted one the mirror is changed, and a request brings over `bytes` bytes from `data` on and then the
  // counter. By one thread.
  KOLO_DEVICE void signal(Link& link, Counter& counter, std::uint64_t value, std::uint32_t rail = 0,
                          const void* data = nullptr, std::uint64_t bytes = 0) {
    storeRelease(counter, value);
    if constexpr (Team::kPosts) {
      if (link.isPosted) team_.post(link, Post{rail, data, bytes, &counter, value});
    }
  }
  // `number` chunks of the peer's have been taken out of their slots. The peer may need to know it for another chunk:
  // of this operation, and then this rank is going to wait for that chunk; or of a later one, in which this rank first
  // writes its header. Either brings the credit over if it has been kept until then, to go together with something
  // else.
  KOLO_DEVICE void credit(Link& link, std::uint64_t number) {
    Counter& head = link.outbox->signals.head;
    storeRelease(head, number);  // [credit]
    if constexpr (Team::kPosts) {
      if (link.isPosted) team_.post(link, Post{.counter = &head, .value = number, .more = More::kLater});
    }
  }
  // The counter that says that chunk `number` is there.
  KOLO_DEVICE static const Counter& tailOf(const Link& link, std::uint64_t number) {
    return link.inbox->signals.tail[number & link.railMask];
  }

  // What a header says about the part of a buffer that concerns the peer: its place in a window, or its address.
  KOLO_DEVICE WindowRef offered(const WindowRef& ref, const unsigned char* buffer, const Range& part,
                                bool byAddress) const {
    if (work_.givesAhead || buffer == nullptr || (ref.index == 0 && !byAddress)) return {};
    if (bytesOf(part.count) < work_.pairsFromBytes) return {};
    return {(ref.index != 0 ? ref.offset : reinterpret_cast<std::uint64_t>(buffer)) + bytesOf(part.begin), ref.index};
  }
  // Of buffers that are lists: where the segments are. Blocks lie in the logical buffers of all ranks as in this one's.
  KOLO_DEVICE WindowRef offeredList(bool byAddress) const {
    if (!byAddress || !work_.offersMemory) return {};
    return {reinterpret_cast<std::uint64_t>(work_.segments), 0};
  }
  KOLO_DEVICE PeerSegments theirSegments(int peer) const { return {linkTo(peer).peer, sendRefOf(peer).offset}; }
  // Byte `begin` of what a peer has for this rank, in the peer's logical buffer.
  KOLO_DEVICE const unsigned char* inputPlace(std::uint64_t begin) const { return pieceTo(work_.rank).data + begin; }
  KOLO_DEVICE const unsigned char* outputPlace(std::uint64_t begin) const { return pieceFrom(work_.rank).data + begin; }
  KOLO_DEVICE WindowRef offeredInput(int peer) const {
    if (!work_.shareable) return {};
    if (work_.segments != nullptr) return offeredList(work_.readsPeers);
    return offered(work_.sendRef, work_.send, work_.partTo(peer), work_.readsPeers && work_.offersMemory);
  }
  KOLO_DEVICE WindowRef offeredOutput(int peer) const {
    if (!work_.shareable) return {};
    if (work_.segments != nullptr) return offeredList(work_.writesPeers);
    return offered(work_.recvRef, work_.recv, work_.partFrom(peer), work_.writesPeers && work_.offersMemory);
  }
  // Nobody reads which output a rank offers to the root of a gather: there it can say that its block does not wait for
  // the root's.
  KOLO_DEVICE bool givesAheadTo(int peer) const {
    return work_.givesAhead && peer == work_.root && work_.signature.collective == Collective::kGather;
  }
  KOLO_DEVICE bool isGivenAhead(int peer) const { return linkTo(peer).theirRecv.index == kGivenAhead; }
  KOLO_DEVICE WindowRef sendRefOf(int peer) const {
    return peer == work_.rank ? offeredInput(peer) : linkTo(peer).theirSend;
  }
  KOLO_DEVICE WindowRef recvRefOf(int peer) const {
    return peer == work_.rank ? offeredOutput(peer) : linkTo(peer).theirRecv;
  }
  KOLO_DEVICE unsigned char* placeOf(int peer, const WindowRef& ref, std::uint64_t begin, std::uint64_t bytes) {
    unsigned char* const place = placeIn(linkTo(peer), ref, begin, bytes);
    if (place == nullptr && bytes != 0)
      team_.fail({.kind = Fault::kCorrupt, .peer = linkTo(peer).peer, .signature = ref.index, .count = ref.offset});
    return place;
  }
  // The peer's output is looked at only where this rank may have to write there, for otherwise the peer need not have
  // been met.
  KOLO_DEVICE Path pathTo(int peer, const Piece& piece) const {
    const bool mayBeWritten = mayBeWrittenToRoot(piece);
    return pathOf({.fitsHeader = isShort(piece),
                   .hasOwnPath = blocksHaveOwnPaths(),
                   .isStagedEarly = givesAheadTo(peer),
                   .mayBeWritten = mayBeWritten,
                   .outputIsOffered = mayBeWritten && recvIsWritable(peer),
                   .inputIsOffered = isGiven(offeredInput(peer))});
  }
  KOLO_DEVICE Path pathFrom(int peer, const Piece& piece) const {
    return pathOf({.fitsHeader = isShort(piece),
                   .hasOwnPath = blocksHaveOwnPaths(),
                   .isStagedEarly = isGivenAhead(peer),
                   .mayBeWritten = mayBeWrittenToRoot(piece),
                   .outputIsOffered = isGiven(offeredOutput(peer)),
                   .inputIsOffered = sendIsReadable(peer)});
  }
  KOLO_DEVICE bool blocksHaveOwnPaths() const {
    return work_.pairsFromBytes != 0 || isIn(work_.signature.collective, kMeetsRootOnly);
  }
  // Whether what goes to the root is written into its buffer, if that may be.
  KOLO_DEVICE bool mayBeWrittenToRoot(const Piece& piece) const {
    return work_.signature.collective == Collective::kGather && work_.direct != Algorithm::kCount &&
           piece.bytes >= work_.pairsFromBytes;
  }
  KOLO_DEVICE bool isShort(const Piece& piece) const { return work_.fitsHeader(piece.bytes); }
  KOLO_DEVICE static bool isGiven(const WindowRef& ref) { return ref.index != 0 || ref.offset != 0; }

  KOLO_DEVICE int next(int rank) const { return nextRank(rank, work_.ranks); }

  KOLO_DEVICE static const Header& lineOf(const Link& link, std::uint64_t number) {
    return link.inbox->header[number % kHeaderLines];
  }

  // The peer's header has come: checks that it says what this rank says.
  KOLO_DEVICE void takeHeader(int peer) {
    ++linkTo(peer).met;
    if (work_.direct != Algorithm::kCount || blocksHaveOwnPaths()) takeRefs(peer);
    check(peer, {work_.word, work_.countFrom != nullptr ? work_.countFrom[peer] : work_.headerCount},
          work_.countTo != nullptr ? work_.countTo[peer] : work_.headerCount);
  }

  // The line lies in memory that the peer may write at any time.
  KOLO_DEVICE void takeRefs(int peer) {
    const Header& line = headerOf(peer);
    Link& link = linkTo(peer);
    link.theirSend = {line.refs.sendOffset, line.refs.sendWindow};
    link.theirRecv = {line.refs.recvOffset, line.refs.recvWindow};
  }

  // The header met last against what it is to say; `said` is the count that this rank announced. By one thread.
  KOLO_DEVICE void check(int peer, const Expectation& expected, std::uint64_t said) {
    const Header& line = headerOf(peer);
    if (line.signature == expected.signature && line.count == expected.count) return;
    team_.fail({Fault::kMismatch, linkTo(peer).peer, line.signature, line.count, expected.signature, said});
  }
  // All headers owed that have arrived. Leader only.
  KOLO_DEVICE void takeOwed(int peer) {
    Link& link = linkTo(peer);
    while (link.owed != 0 && loadAcquire(lineOf(link, link.met + 1).number) == link.met + 1) {  // [header]
      --link.owed;
      const Expectation& expected = link.expected[++link.met % kHeaderLines];
      check(peer, expected, expected.count);
    }
  }

  // What has been read in the peer's buffers was what the peer had there for this operation; otherwise this rank waits
  // for the reason of the failure.
  KOLO_DEVICE void confirm(const Link& link) {
    if (!team_.failed() && mayHaveChanged(link))
      (void)team_.waitAlone(link.inbox->signals.done, ~std::uint64_t{0}, link.peer);
  }
  // By one thread, in spread().
  KOLO_DEVICE void sayDone(Link& link) {
    signal(link, link.outbox->signals.done, ++link.taken);
  }  // [done] after all loads and stores by this team
  KOLO_DEVICE void awaitDone(Link& link) {
    ++link.finished;
    team_.waitAlone(link.inbox->signals.done, link.finished, link.peer);  // [done]
  }

  // One slot's worth; false when there was nothing left.
  template <class At>
  KOLO_DEVICE bool sendSome(int peer, PieceStream<At>& stream) {
    if (!stream.skipEmpty()) return false;
    unsigned char* slot = acquireSlot(peer);
    if (slot == nullptr) return false;
    std::uint64_t filled = 0;
    stream.takeChunk(work_.chunkBytes, [&](std::uint64_t place, unsigned char* data, std::uint64_t bytes) {
      move(slot + place, data, bytes, false);
      filled = place + bytes;
    });
    publishSlot(peer, filled);
    return true;
  }
  template <class At>
  KOLO_DEVICE bool recvSome(int peer, PieceStream<At>& stream) {
    if (!stream.skipEmpty()) return false;
    const unsigned char* slot = awaitSlot(peer);
    if (slot == nullptr) return false;
    stream.takeChunk(work_.chunkBytes, [&](std::uint64_t place, unsigned char* data, std::uint64_t bytes) {
      move(data, slot + place, bytes, work_.streaming);
    });
    releaseSlot(peer);
    return true;
  }
  Team& team_;
  const Work& work_;
};

}  // namespace kolo::device
