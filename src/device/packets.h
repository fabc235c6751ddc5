// Operations in packets: small ones whose data goes in packets that carry their own number (device/atomics.h). There is
// no fence, and no signal behind the data: a rank waits once, for the data itself. Twice the bytes go over the links. A
// link of packets goes through mapped memory.
//
// Each pair of ranks that would exchange headers fills a buffer of the other one's memory instead. The buffer begins
// with a front, which says what the header would, so that ranks that called different things learn so (packet_front.h).
//
// Invariants
//  - The buffers that a pair exchanges are numbered 1, 2, 3, ... on both sides alike, each way as many; buffer k lies
//  in
//    place k % kPacketBuffers. The memory holds nothing but packets, and zeros at first.
//  - A rank ends an operation when it has taken the peer's buffer, its front at least. So it fills buffer k only after
//  it
//    has taken the peer's buffer k - 1, whose packets the peer wrote after all of its threads had taken buffer k - 2.
//    Two places are enough: what is overwritten has been taken.
//    The order of the peer's loads and its next packets is not the memory model's, for nothing is released: a thread
//    writes them behind a barrier behind the polling loops of all threads, and none of these ends before it has loaded
//    the number that it awaits. A load that took what is written later would depend on itself.
//  - The low 32 bits of the number tell buffers apart, for every kCleanEvery buffers both places are filled to their
//  end.
//    So no packet is older than that by the time its number comes again.
//    tests/unit/packet_model_test.cc tries all interleavings.
#pragma once

#include <cstdint>

#include "device/exchange.h"
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

// What this rank's header says to a peer in this operation.
template <class Team>
KOLO_DEVICE PacketFront frontTo(const Exchange<Team>& exchange, const Link& link) {
  const Work& work = exchange.work();
  return {work.header.word, work.header.count, link.headers.announced + 1};
}

// A peer's buffer gets its front and the piece.
template <class Team>
KOLO_DEVICE_CALL void putPackets(Exchange<Team>& exchange, int peer, const ConstPiece& piece) {
  const Link& link = exchange.linkTo(peer);
  const std::uint64_t number = link.packets.exchanged + 1;
  Packet* const packets = packetsTo(link, number);
  const PacketFront front = frontTo(exchange, link);
  const std::uint64_t count = packetsWritten(number, piece.bytes, exchange.work().channel.packetBytes);
  exchange.team().divide(static_cast<int>(count), [&](int i) {
    const std::uint64_t data = i < kFrontPackets
                                   ? frontWord(front, i)
                                   : packetData(piece, static_cast<std::uint64_t>(i - kFrontPackets) * kPacketData);
    storePacket(packets[i], packetOf(data, shortOf(number)));  // [packet]
  });
}

// The front of the peer's buffer, by one thread.
template <class Team>
KOLO_DEVICE void checkFront(Exchange<Team>& exchange, int peer) {
  const Work& work = exchange.work();
  const Link& link = exchange.linkTo(peer);
  const std::uint64_t number = link.packets.exchanged + 1;
  const Packet* const packets = packetsFrom(link, number);
  std::uint64_t words[kFrontPackets];
  KOLO_UNROLLED
  for (int i = 0; i < kFrontPackets; ++i) {
    LoadedPacket loaded;
    if (!exchange.team().waitPacket(packets[i], shortOf(number), loaded, link.peer)) return;  // [packet]
    words[i] = loaded.data();
  }
  const PacketFront mine = frontTo(exchange, link);
  if (words[0] != mine.signature || words[1] != mine.count || words[2] != mine.header)
    exchange.team().fail(mismatchWith(work, link.peer, words[0], words[1]));
}

// Takes the data of the buffers of peers [first, first + kPeersAtOnce) that there are, packet i of each: the loads wait
// for each other once. pieceFrom(peer): where the data goes.
inline constexpr int kPeersAtOnce = 4;
template <class Team, class PeerAt, class PieceFrom>
KOLO_DEVICE void takePacket(Exchange<Team>& exchange, int i, int first, int count, const PeerAt& peerAt,
                            const PieceFrom& pieceFrom) {
  const std::uint64_t begin = static_cast<std::uint64_t>(i) * kPacketData;
  LoadedPacket loaded[kPeersAtOnce];
  const auto isThere = [&](int k) { return first + k < count && begin < pieceFrom(peerAt(first + k)).bytes; };
  const auto packetAt = [&](const Link& link) -> const Packet& {
    return packetsFrom(link, link.packets.exchanged + 1)[kFrontPackets + i];
  };
  KOLO_UNROLLED
  for (int k = 0; k < kPeersAtOnce; ++k) {
    if (isThere(k)) loaded[k] = loadPacket(packetAt(exchange.linkTo(peerAt(first + k))));
  }
  KOLO_UNROLLED
  for (int k = 0; k < kPeersAtOnce; ++k) {
    if (!isThere(k)) continue;
    const Link& link = exchange.linkTo(peerAt(first + k));
    const std::uint32_t number = shortOf(link.packets.exchanged + 1);
    if (!loaded[k].has(number) && !exchange.team().waitPacket(packetAt(link), number, loaded[k], link.peer))
      return;  // [packet]
    putData(pieceFrom(peerAt(first + k)), begin, loaded[k].data());
  }
}

// Opens the operation towards `count` peers and carries it out: each gets pieceFor(peer), and pieceFrom(peer) gets what
// it sends, both of at most Channel::packetBytes, or empty. All that is given has been read before anything is taken.
// All threads; false after a failure. [packet] needs no order of anything but the words themselves.
template <class Team, class PeerAt, class PieceFor, class PieceFrom>
KOLO_DEVICE bool exchangePackets(Exchange<Team>& exchange, int count, const PeerAt& peerAt, const PieceFor& pieceFor,
                                 const PieceFrom& pieceFrom) {
  Team& team = exchange.team();
  if (!settleAll(exchange, 0)) return false;
  std::uint64_t longest = 0;
  KOLO_ROLLED
  for (int i = 0; i < count; ++i) {
    putPackets(exchange, peerAt(i), pieceFor(peerAt(i)));
    const std::uint64_t bytes = pieceFrom(peerAt(i)).bytes;
    longest = bytes > longest ? bytes : longest;
  }
  team.sync();
  team.divide(static_cast<int>((longest + kPacketData - 1) / kPacketData), [&](int i) {
    KOLO_ROLLED
    for (int first = 0; first < count; first += kPeersAtOnce) takePacket(exchange, i, first, count, peerAt, pieceFrom);
  });
  team.divide(count, [&](int i) { checkFront(exchange, peerAt(i)); });
  team.sync();
  if (exchange.failed()) return false;
  team.spread(count, [&](int i) {
    Link& link = exchange.linkTo(peerAt(i));
    ++link.packets.exchanged;
    ++link.headers.met;
    link.headers.sentBefore[++link.headers.announced % kHeaderLines] = static_cast<std::uint32_t>(link.sent);
  });
  return true;
}

}  // namespace kolo::device
