// Reading and writing buffers of peers, in windows or by their address; and how a pair agrees that neither touches the
// other's buffers any more. REQUIRES: met.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/folds.h"
#include "device/host_device.h"
#include "device/link.h"
#include "device/offers.h"
#include "device/segment_moves.h"
#include "device/views.h"
#include "device/work.h"

namespace kolo::device {

template <class Team>
KOLO_DEVICE unsigned char* placeOf(const Exchange<Team>& exchange, int peer, const WindowRef& ref, std::uint64_t begin,
                                   std::uint64_t bytes) {
  const Link& link = exchange.linkTo(peer);
  unsigned char* const place = placeIn(link, ref, begin, bytes);
  if (place == nullptr && bytes != 0)
    exchange.team().fail({.kind = Fault::kCorrupt, .peer = link.peer, .signature = ref.index, .count = ref.offset});
  return place;
}
// Where bytes [begin, begin + bytes) of a peer's output, or of a rank's input, lie, as this process sees it; nullptr,
// after a failure, if the peer has registered no such memory. REQUIRES: it is offered in a window.
template <class Team>
KOLO_DEVICE unsigned char* recvOf(const Exchange<Team>& exchange, int peer, std::uint64_t begin, std::uint64_t bytes) {
  return placeOf(exchange, peer, exchange.linkTo(peer).headers.theirRecv, begin, bytes);
}
template <class Team>
KOLO_DEVICE const unsigned char* sendOf(const Exchange<Team>& exchange, int peer, std::uint64_t begin,
                                        std::uint64_t bytes) {
  return peer == exchange.work().rank ? exchange.pieceTo(peer).after(begin).data
                                      : placeOf(exchange, peer, exchange.linkTo(peer).headers.theirSend, begin, bytes);
}

// The peer's list, if buffers are lists: one table has its input and its output. REQUIRES: its input is offered.
template <class Team>
KOLO_DEVICE PeerSegments theirSegments(const Exchange<Team>& exchange, int peer) {
  const Link& link = exchange.linkTo(peer);
  return {link.peer, link.headers.theirSend.offset, link.headers.theirRecv.offset};
}
template <class Team>
KOLO_DEVICE bool isListOf(const Exchange<Team>& exchange, int peer) {
  if constexpr (Team::kReadsLists) return exchange.work().segments != nullptr && peer != exchange.work().rank;
  return false;
}

// A peer's list whose segments can be loaded from and stored to: they lie in windows, and its `data` are where this
// process sees them. nullptr: they are to be read and written by the transport. REQUIRES: isListOf(). All threads call.
template <class Team>
KOLO_DEVICE const Segments* loadableList(const Exchange<Team>& exchange, int peer) {
  if constexpr (Team::kReadsLists) {
    Link& link = exchange.linkTo(peer);
    exchange.team().sync();  // all are done with the last one
    exchange.team().spread(1, [&](int) { link.list = exchange.team().loadableList(theirSegments(exchange, peer)); });
    exchange.team().sync();
    return link.list;
  }
  return nullptr;
}
// Where logical address `place` lies in memory. bytes: how much is asked for; becomes how much of that follows there as
// it is transferred: all of it, what there is of the segment with the gap behind it, or 0. So no element is cut.
KOLO_DEVICE unsigned char* plainRun(const Segments& list, const unsigned char* place, std::uint64_t& bytes) {
  std::uint32_t found = 0;
  const Run run = runAt(list, place, bytes, found);
  std::uint64_t follow = run.isPlain() ? run.bytes : 0;
  if (run.segment != nullptr && byteOf(place) + follow == endOf(*run.segment)) {
    follow = inGrains(endOf(*run.segment)) - byteOf(place);
  } else if (follow < bytes) {
    follow = 0;
  }
  if (follow < bytes) bytes = follow;
  return run.data;
}

// Where a rank's input lies in memory from byte `begin` on, as it is transferred. bytes: how much of it is asked for;
// becomes how much of that follows there; 0: it has to be read first. REQUIRES: readable. All threads call.
template <class Team>
KOLO_DEVICE_CALL const unsigned char* inMemory(const Exchange<Team>& exchange, int peer, std::uint64_t begin,
                                               std::uint64_t& bytes) {
  if (peer == exchange.work().rank || offerOf(exchange.linkTo(peer).headers.theirSend) == Offer::kWindow)
    return sendOf(exchange, peer, begin, bytes);
  if constexpr (Team::kReadsLists) {
    if (isListOf(exchange, peer) && bytes != 0) {
      if (const Segments* const list = loadableList(exchange, peer)) {
        return plainRun(*list, exchange.pieceTo(exchange.work().rank).after(begin).data, bytes);
      }
    }
  }
  bytes = 0;
  return nullptr;
}
// Where a rank's input lies from byte `begin` on, as much of it as `scratch` has room for: in place, or in `scratch`,
// where it has been read to. REQUIRES: readable. After a barrier since `scratch` was used; another must follow.
template <class Team>
KOLO_DEVICE_CALL const unsigned char* bring(const Exchange<Team>& exchange, Piece scratch, int peer,
                                            std::uint64_t begin) {
  std::uint64_t bytes = scratch.bytes;
  const unsigned char* const place = inMemory(exchange, peer, begin, bytes);
  if (bytes == scratch.bytes) return place;
  if (exchange.failed()) return scratch.data;
  if constexpr (Team::kReadsLists) {
    if (isListOf(exchange, peer)) {
      const unsigned char* const logical = exchange.pieceTo(exchange.work().rank).after(begin).data;
      if (const Segments* const list = loadableList(exchange, peer)) {
        SegmentMoves<Team>(exchange.team(), exchange.work()).load(scratch, *list, logical);
      } else {
        exchange.team().readList(theirSegments(exchange, peer), scratch.data, logical, scratch.bytes);
      }
      return scratch.data;
    }
  }
  const Link& link = exchange.linkTo(peer);
  exchange.team().read(link.peer, scratch.data, link.headers.theirSend.offset + begin, scratch.bytes);
  return scratch.data;
}
// Fills `dst` from a rank's input, from byte `begin` of that on. REQUIRES: readable. All threads call.
template <class Team>
KOLO_DEVICE_CALL void take(const Exchange<Team>& exchange, Piece dst, int peer, std::uint64_t begin) {
  if constexpr (Team::kReadsLists) {
    if (isListOf(exchange, peer)) {
      const unsigned char* const place = exchange.pieceTo(exchange.work().rank).after(begin).data;
      SegmentMoves<Team> moves(exchange.team(), exchange.work());
      if (const Segments* const list = loadableList(exchange, peer)) return moves.load(dst, *list, place);
      return moves.take(dst, theirSegments(exchange, peer), place);
    }
  }
  copy(exchange, dst.data, bring(exchange, dst, peer, begin), dst.bytes,
       exchange.work().streaming);  // nothing to copy if it has been read to there
}
// Where a fold can store a peer's output from byte `begin` on, as it stores its own; nullptr: the result must be put
// there. All threads call.
template <class Team>
KOLO_DEVICE_CALL unsigned char* storesAt(const Exchange<Team>& exchange, int peer, std::uint64_t begin,
                                         std::uint64_t bytes) {
  if (offerOf(exchange.linkTo(peer).headers.theirRecv) == Offer::kWindow) return recvOf(exchange, peer, begin, bytes);
  if constexpr (Team::kReadsLists) {
    if (isListOf(exchange, peer)) {
      const unsigned char* const place = exchange.pieceFrom(exchange.work().rank).after(begin).data;
      if (const Segments* const list = loadableList(exchange, peer)) {
        std::uint64_t follow = bytes;
        unsigned char* const inMemory = plainRun(*list, place, follow);
        return follow == bytes ? inMemory : nullptr;
      }
    }
  }
  return nullptr;
}
// Copies into a peer's output, from byte `begin` of that on. REQUIRES: writable. All threads call.
template <class Team>
KOLO_DEVICE_CALL void put(const Exchange<Team>& exchange, int peer, std::uint64_t begin, ConstPiece src) {
  if constexpr (Team::kReadsLists) {
    if (isListOf(exchange, peer)) {
      unsigned char* const place = exchange.pieceFrom(exchange.work().rank).after(begin).data;
      SegmentMoves<Team> moves(exchange.team(), exchange.work());
      if (const Segments* const list = loadableList(exchange, peer)) return moves.store(*list, place, src);
      return moves.put(theirSegments(exchange, peer), place, src);
    }
  }
  const Link& link = exchange.linkTo(peer);
  if (offerOf(link.headers.theirRecv) == Offer::kWindow) {
    copy(exchange, recvOf(exchange, peer, begin, src.bytes), src.data, src.bytes, exchange.work().streaming);
  } else if (src.bytes != 0 && !exchange.failed()) {
    exchange.team().write(link.peer, link.headers.theirRecv.offset + begin, src.data, src.bytes);
  }
}

// ---- the end

// After reads of the peer's buffers. If these may have changed meanwhile, this rank waits for the reason of the
// failure, and so the operation fails. REQUIRES: fenceStores() by this thread, after a barrier since the team's reads.
template <class Team>
KOLO_DEVICE void confirm(const Exchange<Team>& exchange, const Link& link) {
  if (!exchange.failed() && mayHaveChanged(link))
    (void)exchange.team().waitAlone(link.inbox->signals.done, ~std::uint64_t{0}, link.peer);
}
// By one thread, in spread(). REQUIRES: fenceStores() by it, after a barrier since the team's loads and stores: [done]
// is after these, and pairs with the acquiring load of the peer that waits before it uses its buffers again.
template <class Team>
KOLO_DEVICE void sayDone(const Exchange<Team>& exchange, Link& link) {
  exchange.signalFenced(link, link.outbox->signals.done, ++link.taken);  // [done]
}
template <class Team>
KOLO_DEVICE void awaitDone(const Exchange<Team>& exchange, Link& link) {
  ++link.finished;
  exchange.team().waitAlone(link.inbox->signals.done, link.finished, link.peer);  // [done]
}

// Ends a direct operation: this rank touches the peers' buffers no more; waits until they say the same.
template <class Team>
KOLO_DEVICE_CALL void finishAll(Exchange<Team>& exchange) {
  const int peers = exchange.work().ranks - 1;
  const auto linkAt = [&](int i) -> Link& { return exchange.linkTo(exchange.peerAt(i)); };
  exchange.team().sync();
  exchange.team().spread(peers, [&](int i) {
    fenceStores();
    sayDone(exchange, linkAt(i));
  });
  exchange.team().spread(peers, [&](int i) { awaitDone(exchange, linkAt(i)); });
  // Behind all of that: what a third rank has put into this rank's output, it may have read from a peer that had given
  // up meanwhile. Of what this rank has read itself, the marks come behind the fence: a thread confirms the links on
  // which it has said that it is done. Of what a third rank has read, they come behind the load of that rank's [done],
  // and the barrier.
  exchange.team().spread(peers, [&](int i) { confirm(exchange, linkAt(i)); });
}
// The halves of it, for where only one rank of a pair touches the other's buffers: that one says when it is done, the
// other waits. After a failure nothing is said: something has not been done. hasRead: in the peer's buffer; else it has
// written there.
template <class Team>
KOLO_DEVICE_CALL void sayFinished(Exchange<Team>& exchange, int peer, bool hasRead) {
  exchange.team().sync();
  exchange.team().spread(1, [&](int) {
    fenceStores();
    if (hasRead) confirm(exchange, exchange.linkTo(peer));
    if (!exchange.failed()) sayDone(exchange, exchange.linkTo(peer));
  });
}
// With those peers of which it is so.
template <class Team, class Condition>
KOLO_DEVICE void awaitFinished(Exchange<Team>& exchange, Condition condition) {
  exchange.team().sync();
  exchange.team().spread(exchange.work().ranks - 1, [&](int i) {
    if (condition(exchange.peerAt(i))) awaitDone(exchange, exchange.linkTo(exchange.peerAt(i)));
  });
}

}  // namespace kolo::device
