// What two ranks tell each other over the connection that transports/connect has made and proven: first how their queue
// pairs reach each other, later which of them are closed.
//
//   dialler                                                    answerer
//   Offer    my ports                                      ->
//                                                          <-  Answer   my ports; which of them belong together;
//                                                                       my queue pairs
//   Start    my queue pairs, which take what you write     ->
//                                                          <-  Proven   those by which my trial writes were
//                                                                       acknowledged
//   Proven   the same of mine, among those                 ->
//   Closed   of one lane: nothing that comes by it is taken any more   (either side, at any time after)
//
// All are one fixed-size, little-endian structure, proven by the key of that connection.
//
// Thread safety: plain data.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../common/proof.h"
#include "../common/why.h"

namespace kolo::ib {

using namespace common;

inline constexpr std::size_t kMostPorts = 4;  // of a rank
inline constexpr std::size_t kMostNics = 4;   // as many as a koloTransportKey has keys for
inline constexpr std::size_t kMostLanes = KOLO_TRANSPORT_MAX_RAILS;

// A port, as its peers reach it.
struct PortAddress {
  unsigned char gid[16];
  std::uint16_t lid;    // of InfiniBand; 0: RoCE
  std::uint8_t kind;    // drivers::GidType
  std::uint8_t mtu;     // ibv_mtu
  std::uint8_t nic;     // which of the rank's: its keys stand there
  std::uint8_t prefix;  // bits of the gid that name the network of a RoCE port; 0: unknown
  std::uint8_t isFar;   // others of the rank's ports are nearer to it
  std::uint8_t unused[1];
};

// Of one lane: the queue pair of the sender of this.
struct PairAddress {
  std::uint32_t number;
  std::uint32_t sequence;       // of the first packet that it sends
  std::uint8_t port, peerPort;  // of its sender, and of its receiver
  std::uint16_t room;           // packets that may be sent to it before it tells that some were taken (packets.h)
};

// Where peers may write: an address of the process, and a key for each of its NICs.
struct Target {
  std::uint64_t address;
  std::uint32_t keys[kMostNics];
};
static_assert(sizeof(Target) == KOLO_TRANSPORT_KEY_BYTES);

enum class Kind : std::uint8_t { kOffer = 1, kAnswer = 2, kStart = 3, kProven = 4, kClosed = 5 };

struct Message {
  static constexpr char kMagic[9] = "KOLOibM2";
  char magic[8];
  Kind kind;
  std::uint8_t lane;   // Closed
  std::uint8_t lanes;  // Answer, Start
  std::uint8_t mask;   // Proven: a bit for each lane
  std::uint8_t ports;  // Offer, Answer
  std::uint8_t rails;  // Offer, Answer: what the user wishes; 0: as many as there are
  std::uint8_t unused[2];
  PortAddress port[kMostPorts];
  PairAddress pair[kMostLanes];
  Target probe;         // Offer, Answer: where trial writes go, a word for each lane, and one more
  std::uint64_t nonce;  // Offer, Answer: what is written there, plus the lane's number
  Proof proof;
};
static_assert(std::has_unique_object_representations_v<Message>);

// What one peer writes into a rank's memory besides what the core puts: a word for each lane's trial write; one that is
// rewritten when a completion is wanted and there is nothing else to send; one that says the same as Closed, in case
// that the connection has failed with the port: a bit for each lane, and above these the reader's nonce; and for each
// lane how many packets have been taken, plus the reader's nonce.
inline constexpr std::size_t kProbeBytes = 128;
inline constexpr std::size_t kMarkerAt = 8 * kMostLanes;
inline constexpr std::size_t kClosedAt = kMarkerAt + 8;
inline constexpr std::size_t kCreditsAt = 64;
static_assert(kClosedAt + 8 <= kCreditsAt && kCreditsAt + 8 * kMostLanes <= kProbeBytes);
inline constexpr std::uint64_t kClosedBits = (1u << kMostLanes) - 1;

}  // namespace kolo::ib
