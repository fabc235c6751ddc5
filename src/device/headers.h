// Headers (D4): a rank posts one to each peer (announce), and awaits and checks the peer's at once (meet) or later
// (owe).
#pragma once

#include <cstdint>

#include "device/copy_short.h"
#include "device/exchange.h"
#include "device/host_device.h"
#include "device/link.h"
#include "device/offers.h"
#include "device/views.h"
#include "device/work.h"

namespace kolo::device {

// How many chunks were put before header `number`, which is one of the last kHeaderLines that this rank announced.
KOLO_DEVICE std::uint64_t sentBefore(const Link& link, std::uint64_t number) {
  return link.sent - (static_cast<std::uint32_t>(link.sent) - link.headers.sentBefore[number % kHeaderLines]);
}

// The peer has posted header `number`, and so had taken what was put before it. [credit] pairs with the signal of that
// header: the peer's loads from the slots are before it.
KOLO_DEVICE void creditUpTo(Link& link, std::uint64_t number) {
  const std::uint64_t taken = sentBefore(link, number);
  if (taken > link.credited) link.credited = taken;
}

// The header that meet() read; valid during this operation.
template <class Team>
KOLO_DEVICE const Header& headerOf(const Exchange<Team>& exchange, int peer) {
  const Link& link = exchange.linkTo(peer);
  return lineOf(link, link.headers.met);
}

// ---- reading them, by one thread

// Copies the references: the peer can change its line later.
KOLO_DEVICE void takeRefs(Link& link, const Header& line) {
  link.headers.theirSend = {line.refs.sendOffset, line.refs.sendWindow};
  link.headers.theirRecv = {line.refs.recvOffset, line.refs.recvWindow};
}

// Compares the header met last, which is `line`, with `expected`. said: the count in this rank's own header. The result
// is its signature, which the peer can change later.
template <class Team>
KOLO_DEVICE std::uint64_t checkHeader(Exchange<Team>& exchange, const Link& link, const Header& line,
                                      const Expectation& expected, std::uint64_t said) {
  const std::uint64_t word = line.signature, count = line.count, signature = word & ~kWithChunk;
  if (signature != expected.signature || count != expected.count)
    exchange.team().fail({Fault::kMismatch, link.peer, signature, count, expected.signature, said});
  return word;
}

// Takes a header that has arrived, and checks it against this rank's.
template <class Team>
KOLO_DEVICE void takeHeader(Exchange<Team>& exchange, int peer) {
  const Work& work = exchange.work();
  Link& link = exchange.linkTo(peer);
  const Header& line = lineOf(link, ++link.headers.met);
  creditUpTo(link, link.headers.met);
  if (work.direct != Algorithm::kCount) takeRefs(link, line);
  const std::uint64_t word = checkHeader(
      exchange, link, line,
      {work.header.word, work.header.countFrom != nullptr ? work.header.countFrom[peer] : work.header.count},
      work.header.countTo != nullptr ? work.header.countTo[peer] : work.header.count);
  link.headers.chunk = (word & kWithChunk) != 0 ? link.received + 1 : 0;  // [chunk]
}

// Checks owed headers that have come. Leader only.
template <class Team>
KOLO_DEVICE void takeOwed(Exchange<Team>& exchange, int peer) {
  Link& link = exchange.linkTo(peer);
  while (link.headers.owed != 0 &&
         loadAcquire(lineOf(link, link.headers.met + 1).number) == link.headers.met + 1) {  // [header]
    --link.headers.owed;
    const Expectation& expected = link.headers.expected[++link.headers.met % kHeaderLines];
    creditUpTo(link, link.headers.met);
    checkHeader(exchange, link, lineOf(link, link.headers.met), expected, expected.count);
  }
}

// Waits until at most `most` earlier headers of the peer are owed; checks all that have arrived.
template <class Team>
KOLO_DEVICE_CALL bool settle(Exchange<Team>& exchange, int peer, std::uint32_t most) {
  Link& link = exchange.linkTo(peer);
  while (link.headers.owed > most) {
    const std::uint64_t number = link.headers.met + 1;
    if (!exchange.team().waitAtLeast(lineOf(link, number).number, number, link.peer)) return false;  // [header]
    if (exchange.team().leader()) takeOwed(exchange, peer);
    exchange.team().sync();
    if (exchange.failed()) return false;
  }
  return true;
}
// Calls settle() for every peer before a spread(), whose threads cannot wait together. A team of one thread settles
// later.
template <class Team>
KOLO_DEVICE bool settleAll(Exchange<Team>& exchange, std::uint32_t most) {
  const int rank = exchange.work().rank;
  for (int peer = exchange.next(rank); !Exchange<Team>::kIsOneThread && peer != rank; peer = exchange.next(peer)) {
    if (exchange.linkTo(peer).headers.owed > most && !settle(exchange, peer, most)) return false;
  }
  return !exchange.failed();
}

// ---- posting them

// By the leader or in spread(). A link that is made when it is first needed is made now; false: that failed.
template <class Team>
KOLO_DEVICE bool openLink(Exchange<Team>& exchange, Link& link) {
  if constexpr (Team::kOpens) return link.outbox != nullptr || exchange.team().open(link);
  return true;
}
// Opens the operation as announce() does, by one thread: the leader, or one in spread(), after settleAll(kMaxOwed - 1).
// withChunk: the header tells of the next chunk, too, which is in its slot.
template <class Team>
KOLO_DEVICE void announceAlone(Exchange<Team>& exchange, int peer, const void* payload = nullptr,
                               std::uint32_t payloadBytes = 0, bool withChunk = false) {
  const Work& work = exchange.work();
  Link& link = exchange.linkTo(peer);
  if (Exchange<Team>::kIsOneThread && link.headers.owed == kMaxOwed && !settle(exchange, peer, kMaxOwed - 1)) return;
  if (!openLink(exchange, link)) return;
  const std::uint64_t number = ++link.headers.announced;
  Header& line = link.outbox->header[number % kHeaderLines];
  link.headers.sentBefore[number % kHeaderLines] = static_cast<std::uint32_t>(link.sent);
  if (withChunk) ++link.sent;
  line.signature = withChunk ? work.header.word | kWithChunk : work.header.word;
  line.count = work.header.countTo != nullptr ? work.header.countTo[peer] : work.header.count;
  if (payload == nullptr && work.header.pairsFromBytes != 0 && gives(work, work.rank, peer)) {
    if (const Piece piece = exchange.pieceTo(peer); work.fitsHeader(piece.bytes)) {
      payload = piece.data;
      payloadBytes = static_cast<std::uint32_t>(piece.bytes);
    }
  }
  if (payload != nullptr) {
    copyShort(line.payload, payload, payloadBytes);
  } else {
    const WindowRef send = offeredInput(work, peer), recv = offeredOutput(work, peer);
    line.refs = {send.offset, recv.offset, send.index, recv.index};
  }
  exchange.signal(
      link, line.number, number,
      {0, &line, kHeaderBytesBeforeNumber});  // [header], [chunk], [credit]: what is above, and the team's loads and
                                              // stores before, are before a reader's view of this number
}

// Opens the operation towards a peer. Waits only if the peer owes as many headers as it may. In an operation a rank
// posts as many headers to a peer as the peer posts to it, and each must be followed by meet() or owe().
template <class Team>
KOLO_DEVICE_CALL void announce(Exchange<Team>& exchange, int peer, const void* payload = nullptr,
                               std::uint32_t payloadBytes = 0) {
  if (!Exchange<Team>::kIsOneThread) {
    if (exchange.linkTo(peer).headers.owed == kMaxOwed && !settle(exchange, peer, kMaxOwed - 1)) return;
    if (!exchange.team().leader()) return;
  }
  announceAlone(exchange, peer, payload, payloadBytes);
}
template <class Team>
KOLO_DEVICE_CALL void announceAll(Exchange<Team>& exchange) {
  if (!settleAll(exchange, kMaxOwed - 1)) return;
  exchange.team().spread(exchange.work().ranks - 1, [&](int i) { announceAlone(exchange, exchange.peerAt(i)); });
}

// ---- awaiting them

// Waits until the peer has entered the operation too, and checks that it is the same one.
template <class Team>
KOLO_DEVICE_CALL bool meet(Exchange<Team>& exchange, int peer) {
  Link& link = exchange.linkTo(peer);
  if (link.headers.owed != 0 && !settle(exchange, peer, 0)) return false;
  const std::uint64_t number = link.headers.met + 1;
  if (!exchange.team().waitAtLeast(lineOf(link, number).number, number, link.peer)) return false;  // [header]
  if (exchange.team().leader()) takeHeader(exchange, peer);
  exchange.team().sync();
  return !exchange.failed();
}

// Waits as meet() does, by one thread, in spread(); after settleAll(0).
template <class Team>
KOLO_DEVICE void meetAlone(Exchange<Team>& exchange, int peer) {
  const Link& link = exchange.linkTo(peer);
  if (Exchange<Team>::kIsOneThread && link.headers.owed != 0 && !settle(exchange, peer, 0)) return;
  const std::uint64_t number = link.headers.met + 1;
  if (exchange.team().waitAlone(lineOf(link, number).number, number, link.peer))
    takeHeader(exchange, peer);  // [header]
}
template <class Team>
KOLO_DEVICE_CALL bool meetAll(Exchange<Team>& exchange) {
  if (!settleAll(exchange, 0)) return false;
  exchange.team().spread(exchange.work().ranks - 1, [&](int i) { meetAlone(exchange, exchange.peerAt(i)); });
  return !exchange.failed();
}

// Meets each peer that is unmet, all at once. All threads, after a barrier since announce().
template <class Team>
KOLO_DEVICE_CALL bool meetRest(Exchange<Team>& exchange) {
  const int peers = exchange.work().ranks - 1;
  bool isAny = false;
  for (int i = 0; i < peers; ++i) isAny = isAny || isUnmet(exchange.linkTo(exchange.peerAt(i)));
  if (!isAny || exchange.failed()) return !exchange.failed();
  exchange.team().sync();  // all have looked
  if (!settleAll(exchange, 0)) return false;
  exchange.team().spread(peers, [&](int i) {
    if (isUnmet(exchange.linkTo(exchange.peerAt(i)))) meetAlone(exchange, exchange.peerAt(i));
  });
  return !exchange.failed();
}

// Replaces meet() where the peer's header changes nothing here: a later operation, or settle(), reads and checks it.
// REQUIRES: announce() to the peer.
template <class Team>
KOLO_DEVICE void owe(Exchange<Team>& exchange, int peer) {
  if (!exchange.team().leader() || exchange.failed()) return;
  const Work& work = exchange.work();
  Link& link = exchange.linkTo(peer);
  ++link.headers.owed;
  link.headers.expected[link.headers.announced % kHeaderLines] = {
      work.header.word, work.header.countFrom != nullptr ? work.header.countFrom[peer] : work.header.count};
}

// Opens the operation towards some peers, runs an algorithm that exchanges chunks with them, and closes it. No peer is
// waited for before there is something to take from it: awaitSlot() meets it then. Those that sent nothing are met at
// the end, or their headers are left for a later call. met: with all of them, before. each(visit) visits each once.
template <class Team, class Each, class Run>
KOLO_DEVICE void runWith(Exchange<Team>& exchange, bool met, const Each& each, const Run& run) {
  if (!met) each([&](int peer) { announce(exchange, peer); });
  run();
  exchange.team().sync();  // the counters of the last primitive are settled
  const bool defers = defersChecks(exchange.work().sharing.start);
  if (met || (defers && !exchange.team().leader())) return;  // what a peer owes is the leader's to see and change
  each([&](int peer) {
    if (!isUnmet(exchange.linkTo(peer))) return;
    if (defers) owe(exchange, peer);
    else meet(exchange, peer);
  });
}

}  // namespace kolo::device
