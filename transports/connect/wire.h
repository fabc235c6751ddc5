// What two ranks tell each other until they have a way that is proven: the address blob, and six messages on each
// connection.
//
//   dialler                                          listener
//   Hello       who I am, whom I want, a share  ->
//                                               <-   Challenge   a share, or why not
//   Claim       proof, and filling              ->
//                                               <-   Reply       proof, and filling
//   Commit      this connection it shall be     ->
//                                               <-   Verdict     it is, or another one
//
// All are fixed-size, little-endian, and from Claim on proven by a key of this connection, from the exchange of shares
// by the communicator's secret (network/key_exchange.h). The filling is as long as several of the connection's largest
// segments, for there are ways that small packets pass and large ones do not (a tunnel whose smaller packet size nobody
// tells the ends).
//
// Thread safety: pure functions and plain data.
#pragma once

#include <bit>
#include <string>
#include <type_traits>
#include <vector>

#include "../common/proof.h"
#include "../common/why.h"
#include "network/key_exchange.h"
#include "network/place.h"

namespace kolo::connect {

using namespace common;
using network::KeyExchange;
using network::Made;
using network::Place;

// Of the messages and of what follows them. Ends of different versions refuse each other, naming both.
inline constexpr std::uint16_t kVersion = 3;

static_assert(std::endian::native == std::endian::little, "what travels is little-endian");

// Of a device: the blob that the core carries to the peers.
struct Address {
  static constexpr char kMagic[9] = "KOLOnetA";
  static constexpr unsigned char kOrdered = 1;     // its places are in an order that the user gave
  static constexpr unsigned char kRailsGiven = 2;  // its rails are what the user said
  static constexpr unsigned char kHasMore = 4;     // it has places for which there was no room
  static constexpr unsigned char kEncrypts = 8;    // KOLO_ENCRYPT=1
  static constexpr unsigned char kHasAes = 16;     // its processor has instructions for AES
  char magic[8];
  std::uint16_t version;
  std::uint16_t port;
  std::uint32_t rank;
  std::uint32_t pid;  // for messages
  Id device;          // random
  Id network;         // equal: one network stack, network::stackName()
  unsigned char flags;
  unsigned char rails;  // connections that it wishes to a peer on another host
  unsigned char places[170];
  Proof proof;
};

// How the payloads of a set of connections are encrypted: the dialler says so, by what both addresses tell.
enum class Cipher : std::uint16_t { kNone = 0, kChaCha20Poly1305 = 1, kAes256Gcm = 2 };

// The first three fields are of every version; the rest is looked at only if the version is ours.
struct Hello {
  static constexpr char kMagic[9] = "KOLOnetH";
  char magic[8];
  std::uint16_t version;
  std::uint16_t rail;  // of the set, below rails; 0 is the first one connected
  std::uint16_t rails;
  Cipher cipher;
  std::uint32_t fromRank;
  std::uint32_t toRank;
  Id from;
  Id to;
  Id set;  // random, one for each time that the dialler dials
  KeyExchange::Share share;
};

enum class Status : std::uint32_t {
  kGoOn = 0,
  kUnknown = 1,    // no such device here: the dialler has reached another process, or the device is closed
  kOutOfFiles = 2  // detail: the limit
};

struct Challenge {
  static constexpr char kMagic[9] = "KOLOnetC";
  char magic[8];
  std::uint16_t version;
  std::uint16_t unused;
  Status status;
  std::uint64_t detail;
  KeyExchange::Share share;
};

struct Claim {
  static constexpr char kMagic[9] = "KOLOnetP";
  char magic[8];
  std::uint64_t filling;  // bytes that follow
  Proof proof;
};

struct Reply {
  static constexpr char kMagic[9] = "KOLOnetR";
  char magic[8];
  std::uint64_t filling;
  Proof proof;
};

struct Commit {
  static constexpr char kMagic[9] = "KOLOnetG";
  char magic[8];
  Proof proof;
};

enum class Decision : std::uint64_t {
  kTaken = 0,     // this connection is part of the way
  kHave = 1,      // there is a way already: use that
  kMineFirst = 2  // the listener is dialling too, and its device's id is the lesser: wait for it
};

struct Verdict {
  static constexpr char kMagic[9] = "KOLOnetV";
  char magic[8];
  Decision decision;
  Proof proof;
};

static_assert(sizeof(Address) == KOLO_TRANSPORT_BLOB_BYTES && std::has_unique_object_representations_v<Address>);
static_assert(std::has_unique_object_representations_v<Hello> && std::has_unique_object_representations_v<Challenge>);
static_assert(std::has_unique_object_representations_v<Claim> && std::has_unique_object_representations_v<Reply> &&
              std::has_unique_object_representations_v<Commit> && std::has_unique_object_representations_v<Verdict>);

// What all versions of Hello and Challenge begin with.
inline constexpr std::size_t kVersionedHead = 10;

inline constexpr std::size_t kMostRails = KOLO_TRANSPORT_MAX_RAILS;
inline constexpr std::size_t kMostFilling = std::size_t{64} << 10;

// Of one connection: both ends' shares, and all that they have said of themselves, are in it.
Key connectionKey(const KeyExchange& mine, const KeyExchange::Share& theirs, const Hello& hello,
                  const Challenge& challenge);

Cipher cipherBetween(const Address& a, const Address& b);

// Bytes of filling that try a connection's largest segments.
std::size_t fillingBytes(int fd);
// Bytes that a listener or dialler of this connection sends, and expects of the other.
void makeFilling(const Key& connections, bool fromDialler, std::vector<unsigned char>* bytes);

}  // namespace kolo::connect
