// Operations in packets: small ones whose data goes in packets that carry their own number (device/atomics.h). There is
// no fence, and no signal behind the data: a rank waits once, for the data itself. Twice the bytes go over the links. A
// link of packets goes through mapped memory.
//
// An operation has one step or two. In a step each pair of ranks that would exchange headers fills a buffer of the
// other one's memory instead. The buffer begins with a front, which says what the header would, so that ranks that
// called different things learn so (packet_front.h). Data follows both ways, one way, or none does. In a tree what a
// rank gives its children may be made of what they gave it.
//
// Invariants
//  - The buffers that a pair exchanges are numbered 1, 2, 3, ... on both sides alike, each way as many; buffer k lies
//    in place k % kPacketBuffers. The memory holds nothing but packets, and zeros at first.
//  - A rank writes the fronts of a step before it waits for anything of the step. So ranks that called different things
//    see each other's fronts, whatever data they wait for.
//  - A rank ends a step when it has taken each peer's buffer, its front at least, though it may have nothing else to
//    take. So it fills buffer k only after it has taken the front of the peer's buffer k - 1, which the peer wrote
//    after all of its threads had taken buffer k - 2. Two places are enough: what is overwritten has been taken. The
//    order of the peer's loads and its next packets is not the memory model's, for nothing is released: a thread writes
//    them behind a barrier behind the polling loops of all threads, and none of these ends before it has loaded the
//    number that it awaits. A load that took what is written later would depend on itself.
//  - The low 32 bits of the number tell buffers apart, for every kCleanEvery buffers both places are filled to their
//    end, by a rank that gives nothing too. So no packet is older than that by the time its number comes again.
//    tests/unit/packet_model_test.cc tries all interleavings.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/host_device.h"
#include "device/packet_front.h"
#include "device/packs.h"
#include "device/views.h"
#include "device/work.h"

namespace kolo::device {

inline constexpr std::uint64_t kCleanEvery = std::uint64_t{1} << 24;

// The packets that are written into buffer `number`, `bytes` bytes of data in it.
KOLO_DEVICE std::uint64_t packetsWritten(std::uint64_t number, std::uint64_t bytes, std::uint64_t mostBytes) {
  return packetsFor(number % kCleanEvery < kPacketBuffers ? mostBytes : bytes);
}

// Bytes [begin, begin + 8) of a piece, 0 behind its end.
KOLO_DEVICE std::uint64_t packetData(const ConstPiece& piece, std::uint64_t begin) {
  if (begin + kPacketData <= piece.bytes) return loadElement<std::uint64_t>(piece.data + begin);
  if (begin >= piece.bytes) return 0;
  return loadBytes(piece.data + begin, static_cast<unsigned>(piece.bytes - begin));
}
KOLO_DEVICE void putData(const Piece& piece, std::uint64_t begin, std::uint64_t data) {
  if (begin + kPacketData <= piece.bytes) storeElement(piece.data + begin, data);
  else storeBytes(piece.data + begin, data, static_cast<unsigned>(piece.bytes - begin));
}

// ---- the peers of an operation, or of a step of it: FoldLists::packets

template <class Team>
KOLO_DEVICE_CALL void putFronts(Exchange<Team>& exchange, int count) {
  const PacketPeer* const peers = exchange.team().lists().packets;
  exchange.team().divide(count * kFrontPackets, [&](int i) {
    const PacketPeer& peer = peers[i / kFrontPackets];
    const int word = i % kFrontPackets;
    const std::uint64_t said = frontWord(frontTo(exchange.work(), *peer.link), word);
    storePacket(peer.out[word], packetOf(said, peer.number));  // [packet]
  });
}

// Opens the operation, or a step of it, towards peerAt(i) for each i below `count`: each gets the front of a buffer.
// pieceFor(peer) is going to follow, when it is put; pieceFrom(peer) gets what the peer sends, when it is taken. Both
// are of at most Channel::packetBytes, or empty. All threads; false after a failure.
template <class Team, class PeerAt, class PieceFor, class PieceFrom>
KOLO_DEVICE bool openPackets(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const PieceFor& pieceFor,
                             const PieceFrom& pieceFrom) {
  if (!settleAll(exchange, 0)) return false;
  PacketPeer* const peers = exchange.team().lists().packets;
  exchange.team().spread(count, [&](int i) {
    const int peer = peerAt(i);
    Link& link = exchange.linkTo(peer);
    const std::uint64_t number = link.packets.exchanged + 1;
    peers[i] = {.link = &link,
                .in = packetsFrom(link, number),
                .out = packetsTo(link, number),
                .given = pieceFor(peer),
                .taken = pieceFrom(peer),
                .number = shortOf(number)};
  });
  putFronts(exchange, count);
  return !exchange.failed();
}

// Peers [first, last) get what there is for them. Each has to get its part before the step is closed, an empty one too.
template <class Team>
KOLO_DEVICE_CALL void putPackets(Exchange<Team>& exchange, int first, int last) {
  KOLO_ROLLED
  for (int k = first; k < last; ++k) {
    const PacketPeer& peer = exchange.team().lists().packets[k];
    const std::uint64_t count = packetsWritten(peer.number, peer.given.bytes, exchange.work().channel.packetBytes);
    exchange.team().divide(static_cast<int>(count) - kFrontPackets, [&](int i) {
      const std::uint64_t data = packetData(peer.given, static_cast<std::uint64_t>(i) * kPacketData);
      storePacket(peer.out[kFrontPackets + i], packetOf(data, peer.number));  // [packet]
    });
  }
}

// Takes packet i of peers [first, first + kPeersAtOnce), as far as they are below `last` and send as much: the loads
// wait for each other once.
inline constexpr int kPeersAtOnce = 4;
template <class Team>
KOLO_DEVICE void takePacket(Exchange<Team>& exchange, int i, int first, int last) {
  const PacketPeer* const peers = exchange.team().lists().packets + first;
  const std::uint64_t begin = static_cast<std::uint64_t>(i) * kPacketData;
  const auto isSent = [&](int k) { return first + k < last && begin < peers[k].taken.bytes; };
  LoadedPacket loaded[kPeersAtOnce];
  KOLO_UNROLLED
  for (int k = 0; k < kPeersAtOnce; ++k) {
    if (isSent(k)) loaded[k] = loadPacket(peers[k].in[kFrontPackets + i]);  // [packet]
  }
  KOLO_UNROLLED
  for (int k = 0; k < kPeersAtOnce; ++k) {
    if (!isSent(k)) continue;
    const PacketPeer& peer = peers[k];
    if (!loaded[k].has(peer.number)) {
      loaded[k] = exchange.team().waitPacket(peer.in[kFrontPackets + i], peer.number, peer.link->peer);  // [packet]
      if (!loaded[k].has(peer.number)) return;
    }
    putData(peer.taken, begin, loaded[k].data());
  }
}

// Takes what peers [first, last) send. All threads; a barrier has to follow.
template <class Team>
KOLO_DEVICE_CALL void takePackets(Exchange<Team>& exchange, int first, int last) {
  std::uint64_t longest = 0;
  for (int k = first; k < last; ++k) {
    const std::uint64_t bytes = exchange.team().lists().packets[k].taken.bytes;
    longest = bytes > longest ? bytes : longest;
  }
  exchange.team().divide(static_cast<int>((longest + kPacketData - 1) / kPacketData), [&](int i) {
    KOLO_ROLLED
    for (int k = first; k < last; k += kPeersAtOnce) takePacket(exchange, i, k, last);
  });
}

// Takes the front of a peer's buffer, and compares it with this rank's; by one thread.
template <class Team>
KOLO_DEVICE void checkFront(Exchange<Team>& exchange, const PacketPeer& peer) {
  const Work& work = exchange.work();
  PacketFront theirs{};
  if (!readFront(*peer.link, theirs)) {
    for (int i = 0; i < kFrontPackets; ++i) {
      if (!exchange.team().waitPacket(peer.in[i], peer.number, peer.link->peer).has(peer.number)) return;  // [packet]
    }
    readFront(*peer.link, theirs);
  }
  if (!(theirs == frontTo(work, *peer.link)))
    exchange.team().fail(mismatchWith(work, peer.link->peer, theirs.signature, theirs.count));
}

// Ends the step towards the first `count` peers. All threads; false after a failure. REQUIRES: what they send has been
// taken, and what there is for them has been put.
template <class Team>
KOLO_DEVICE_CALL bool closePackets(Exchange<Team>& exchange, int count) {
  const PacketPeer* const peers = exchange.team().lists().packets;
  exchange.team().spread(count, [&](int i) { checkFront(exchange, peers[i]); });
  if (exchange.failed()) return false;
  exchange.team().spread(count, [&](int i) {
    Link& link = *peers[i].link;
    ++link.packets.exchanged;
    ++link.headers.met;
    link.headers.sentBefore[++link.headers.announced % kHeaderLines] = static_cast<std::uint32_t>(link.sent);
  });
  return true;
}

// A whole step: all that is given has been read before anything is taken.
template <class Team, class PeerAt, class PieceFor, class PieceFrom>
KOLO_DEVICE bool exchangePackets(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const PieceFor& pieceFor,
                                 const PieceFrom& pieceFrom) {
  if (!openPackets(exchange, count, peerAt, pieceFor, pieceFrom)) return false;
  putPackets(exchange, 0, count);
  exchange.team().sync();
  takePackets(exchange, 0, count);
  return closePackets(exchange, count);
}

// ---- data that is folded: it is put together in this rank's memory first

template <class Team>
KOLO_DEVICE unsigned char* unpackedFrom(const Exchange<Team>& exchange, int peer) {
  return exchange.linkTo(peer).packets.unpacked;
}
// Folds what all peers have sent with this rank's own, in rank order.
template <class Team>
KOLO_DEVICE_CALL void foldUnpacked(Exchange<Team>& exchange, const ConstPiece& own, void* output) {
  const Work& work = exchange.work();
  const void** const inputs = exchange.team().lists().inputs;
  exchange.team().spread(work.ranks,
                         [&](int rank) { inputs[rank] = rank == work.rank ? own.data : unpackedFrom(exchange, rank); });
  fold(exchange, &output, 1, inputs, work.ranks, work.rank, own.bytes, true, work.streaming);
}

}  // namespace kolo::device
