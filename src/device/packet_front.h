// What the first packets of a buffer say: what a header line would. And how a rank that waits for a header in one form
// learns that the peer has written it in the other, because the two have called different things.
#pragma once

#include <cstdint>

#include "device/atomics.h"
#include "device/host_device.h"
#include "device/link.h"
#include "device/work.h"

namespace kolo::device {

struct PacketFront {
  std::uint64_t signature, count, header;  // header: its number

  KOLO_DEVICE bool operator==(const PacketFront& other) const {
    return signature == other.signature && count == other.count && header == other.header;
  }
};
inline constexpr int kFrontPackets = 3;

// What this rank's header says to a peer in this operation.
KOLO_DEVICE PacketFront frontTo(const Work& work, const Link& link) {
  return {work.header.word, work.header.count, link.headers.announced + 1};
}

KOLO_DEVICE std::uint64_t frontWord(const PacketFront& front, int i) {
  return i == 0 ? front.signature : i == 1 ? front.count : front.header;
}

// ---- buffer `number` of a pair; the packets of a buffer have the low bits of its number

KOLO_DEVICE const Packet* packetsFrom(const Link& link, std::uint64_t number) {
  return link.packets.in[number % kPacketBuffers];
}
KOLO_DEVICE Packet* packetsTo(const Link& link, std::uint64_t number) {
  return link.packets.out[number % kPacketBuffers];
}
KOLO_DEVICE std::uint32_t shortOf(std::uint64_t number) { return static_cast<std::uint32_t>(number); }

// Packets that so many bytes take, with the front.
KOLO_DEVICE constexpr std::uint64_t packetsFor(std::uint64_t bytes) {
  return kFrontPackets + (bytes + kPacketData - 1) / kPacketData;
}

// ---- by a thread that waits; `peer` is the communicator's number

KOLO_DEVICE Fault mismatchWith(const Work& work, int peer, std::uint64_t signature, std::uint64_t count) {
  return {Fault::kMismatch, peer, signature, count, work.header.word, work.header.count};
}

// The front of the peer's next buffer; false: it has not come whole.
KOLO_DEVICE bool readFront(const Link& link, PacketFront& front) {
  const std::uint64_t number = link.packets.exchanged + 1;
  const Packet* const packets = packetsFrom(link, number);
  LoadedPacket loaded[kFrontPackets];
  KOLO_UNROLLED
  for (int i = 0; i < kFrontPackets; ++i) loaded[i] = loadPacket(packets[i]);  // [packet]
  front = {loaded[0].data(), loaded[1].data(), loaded[2].data()};
  return loaded[0].has(shortOf(number)) && loaded[1].has(shortOf(number)) && loaded[2].has(shortOf(number));
}

// Of a rank whose header of this operation is a line, and that waits for the peer: a fault, if the peer's header of the
// same number has come in packets. One of another number is of a later operation, which the peer may be in already.
KOLO_DEVICE Fault packetsInstead(const Work& work, int peer) {
  const Link& link = work.channel.links[peer];
  PacketFront front{};
  if (link.packets.in[0] == nullptr || !isUnmet(link) || !readFront(link, front)) return {};
  return front.header == link.headers.met + 1 ? mismatchWith(work, peer, front.signature, front.count) : Fault{};
}

// Of a rank whose operation is in packets, and that waits for one of them: a fault, if the peer's header has come as a
// line, or says something else than this rank's. What the peer then sends may not have the packet.
KOLO_DEVICE Fault otherHeader(const Work& work, int peer) {
  const Link& link = work.channel.links[peer];
  const Header& line = lineOf(link, link.headers.met + 1);
  if (loadAcquire(line.number) >= link.headers.met + 1)  // [header]
    return mismatchWith(work, peer, line.signature & ~kWithChunk, line.count);
  PacketFront front{};
  const bool isOther = readFront(link, front) && !(front == frontTo(work, link));
  return isOther ? mismatchWith(work, peer, front.signature, front.count) : Fault{};
}

}  // namespace kolo::device
