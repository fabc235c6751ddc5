// What the tcp transport promises beyond the contract, in its parts: frames, checksums, memories, and what its settings
// change.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "../../transports/tcp/crc32c.h"
#include "../../transports/tcp/parser.h"
#include "../../transports/tcp/sender.h"
#include "base/settings.h"
#include "posted_pair.h"
#include "support/seed.h"

namespace kolo::contract {
namespace {

using connect::Cipher;
using tcp::Direction;
using tcp::Frame;
using tcp::Seal;

const common::Key kConnection{{1, 2, 3}};

Direction direction(Cipher cipher = Cipher::kNone) { return {kConnection, 0, true, cipher}; }

void prove(Frame& frame, std::uint64_t number) { frame.tag = Seal(direction()).tag(frame, number); }

// A memory with something around it, as a receiver has registered it.
struct Target {
  explicit Target(std::size_t bytes) : all(bytes + 128, kUntouched), bytes_(bytes) {
    number = memories.add(all.data() + 64, bytes);
  }
  unsigned char* data() { return all.data() + 64; }
  bool isSafe() const {
    const auto untouched = [&](std::size_t from) {
      return std::all_of(all.begin() + static_cast<std::ptrdiff_t>(from),
                         all.begin() + static_cast<std::ptrdiff_t>(from + 64),
                         [](unsigned char byte) { return byte == kUntouched; });
    };
    return untouched(0) && untouched(64 + bytes_);
  }
  std::vector<unsigned char> all;
  std::size_t bytes_;
  tcp::Memories memories;
  std::uint64_t number;
};

Frame frameTo(std::uint64_t memory, std::uint64_t offset, std::uint64_t bytes, std::uint64_t number = 0) {
  Frame frame{};
  frame.mark = Frame::kMark;
  frame.memory = memory;
  frame.offset = offset;
  frame.bytes = bytes;
  prove(frame, number);
  return frame;
}

std::vector<unsigned char> bytesOf(const Frame& frame, std::size_t payload, unsigned char fill) {
  std::vector<unsigned char> bytes(sizeof frame + payload, fill);
  std::memcpy(bytes.data(), &frame, sizeof frame);
  return bytes;
}

const char* feedAll(tcp::Parser& parser, const std::vector<unsigned char>& bytes) {
  return parser.feed(bytes.data(), bytes.size());
}

// What a parser says to one frame that a function has spoiled.
template <class Spoil>
std::string verdictOn(Target& target, Spoil&& spoil, std::uint64_t number = 0) {
  tcp::Parser parser(target.memories, direction());
  Frame frame = frameTo(target.number, 0, 8);
  frame.flags = Frame::kSignals;
  frame.signalMemory = target.number;
  frame.signalOffset = 8;
  spoil(frame);
  prove(frame, number);
  const char* const wrong = feedAll(parser, bytesOf(frame, std::min<std::size_t>(frame.bytes, 4096), 1));
  return wrong != nullptr ? wrong : "";
}

std::vector<unsigned char> drain(int fd) {
  std::vector<unsigned char> all;
  unsigned char part[65536];
  for (ssize_t got; (got = recv(fd, part, sizeof part, MSG_DONTWAIT)) > 0;) all.insert(all.end(), part, part + got);
  return all;
}

}  // namespace

TEST_CASE("checksums are CRC-32C, by instruction and by table, in pieces and at once", "[tcp][optimised]") {
  CHECK(tcp::crc32c(0, "123456789", 9) == 0xe3069283u);
  const unsigned char zeros[32] = {};
  CHECK(tcp::crc32c(0, zeros, 32) == 0x8a9136aau);
  std::vector<unsigned char> bytes(1000);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(3));
  for (std::size_t from = 0; from < 9; ++from) {
    for (const std::size_t count : {0u, 1u, 7u, 8u, 9u, 60u, 64u, 500u, 900u}) {
      const std::uint32_t whole = tcp::crc32c(0, bytes.data() + from, count);
      CHECK(whole == tcp::crc32cByTable(0, bytes.data() + from, count));
      const std::size_t cut = count / 3;
      CHECK(whole == tcp::crc32c(tcp::crc32c(0, bytes.data() + from, cut), bytes.data() + from + cut, count - cut));
    }
  }
}

TEST_CASE("a number of a memory that was given back is not valid again", "[tcp]") {
  tcp::Memories memories;
  unsigned char some[16];
  const std::uint64_t first = memories.add(some, 16);
  CHECK(memories.find(first)->at(16, 0) != nullptr);
  CHECK(memories.find(first)->at(0, 17) == nullptr);
  CHECK(memories.find(first)->at(UINT64_MAX, 2) == nullptr);
  CHECK(memories.find(first)->at(2, UINT64_MAX) == nullptr);
  memories.remove(first);
  CHECK(memories.find(first) == nullptr);
  const std::uint64_t second = memories.add(some, 16);
  CHECK(first != second);
  CHECK(memories.find(first) == nullptr);
  CHECK(memories.find(second) != nullptr);
  CHECK(memories.find(0) == nullptr);
  CHECK(memories.find(UINT64_MAX) == nullptr);
}

namespace {

void feedInPieces(std::uint64_t seed) {
  std::vector<unsigned char> stream;
  std::uint64_t number = 0;
  const auto build = [&](Target& target) {
    stream.clear();
    number = target.number;
    std::uint32_t sequence = 0;
    for (const std::size_t bytes : {0u, 1u, 64u, 700u, 0u, 3u}) {
      Frame frame = frameTo(number, 100 * sequence, bytes, sequence);
      frame.flags = Frame::kSignals | Frame::kPayloadChecked;
      frame.signalMemory = number;
      frame.signalOffset = 2000;
      frame.signal = sequence + 1;
      const std::vector<unsigned char> payload(bytes, static_cast<unsigned char>(sequence + 1));
      frame.payloadCrc = tcp::crc32c(0, payload.data(), bytes);
      prove(frame, sequence);
      const auto all = bytesOf(frame, bytes, static_cast<unsigned char>(sequence + 1));
      stream.insert(stream.end(), all.begin(), all.end());
      ++sequence;
    }
  };
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < 100; ++turn) {
    Target target(2048);
    // The memory is not aligned by itself; the signal must be.
    if (reinterpret_cast<std::uintptr_t>(target.data()) % 8 != 0) continue;
    build(target);
    tcp::Parser parser(target.memories, direction());
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t most = turn == 0 ? 1 : 1 + random() % 200;
      const std::size_t step = std::min<std::size_t>(most, stream.size() - at);
      // As the device does: part of a payload directly, the rest through the buffer.
      const std::size_t direct = turn % 2 == 0 ? std::min(step, parser.room().size()) : 0;
      if (direct > 0) {
        std::memcpy(parser.room().data(), stream.data() + at, direct);
        REQUIRE(parser.filled(direct) == nullptr);
      }
      REQUIRE(parser.feed(stream.data() + at + direct, step - direct) == nullptr);
      at += step;
    }
    CHECK(parser.isBetweenFrames());
    CHECK(target.isSafe());
    CHECK(target.data()[100] == 2);
    CHECK(target.data()[263] == 3);
    CHECK(target.data()[300 + 699] == 4);
    CHECK(target.data()[2000] == 6);
  }
}

}  // namespace

TEST_CASE("frames may come cut anywhere", "[tcp]") {
  for (test::Rounds rounds(7); rounds.next();) feedInPieces(rounds.seed());
}

TEST_CASE("a frame with anything wrong is refused before it does harm", "[tcp]") {
  Target target(4096);
  CHECK(verdictOn(target, [](Frame&) {}) == "");
  CHECK(verdictOn(target, [](Frame& f) { f.mark ^= 1; }) == "does not begin as a frame does");
  CHECK(verdictOn(target, [](Frame& f) { f.flags |= 0x80; }) == "does not begin as a frame does");
  for (const std::uint64_t number : {std::uint64_t{1}, std::uint64_t{1} << 32, UINT64_MAX})
    CHECK(verdictOn(
              target, [](Frame&) {}, number)
              .find("not its next one") != std::string::npos);
  CHECK(verdictOn(target, [](Frame& f) { f.memory ^= 1; }) == "goes to memory that is not registered, or no longer");
  CHECK(verdictOn(target, [](Frame& f) { f.offset = 4089; }) == "goes outside of the memory that it names");
  CHECK(verdictOn(target, [](Frame& f) { f.offset = UINT64_MAX; }) == "goes outside of the memory that it names");
  CHECK(verdictOn(target, [](Frame& f) { f.bytes = UINT64_MAX; }) == "goes outside of the memory that it names");
  CHECK(verdictOn(target, [](Frame& f) { f.signalMemory ^= 1; }) ==
        "signals into memory that is not registered, or no longer");
  CHECK(verdictOn(target, [](Frame& f) { f.signalOffset = 4089; }) == "signals outside of the memory that it names");
  CHECK(verdictOn(target, [](Frame& f) { f.signalOffset = 9; }) == "signals to a word that is not aligned");
  CHECK(verdictOn(target, [](Frame& f) { f.flags |= Frame::kPayloadChecked; }).find("wrong checksum") !=
        std::string::npos);
  CHECK(target.isSafe());
}

TEST_CASE("any bit altered in a header is noticed", "[tcp]") {
  Target target(4096);
  const Frame good = frameTo(target.number, 0, 8);
  for (std::size_t bit = 0; bit < 8 * sizeof good; ++bit) {
    std::vector<unsigned char> bytes = bytesOf(good, 8, 1);
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    tcp::Parser parser(target.memories, direction());
    CHECK(feedAll(parser, bytes) != nullptr);
  }
}

namespace {

void feedGarbage(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < 500; ++turn) {
    Target target(256);
    tcp::Parser parser(target.memories, direction());
    std::vector<unsigned char> bytes(random() % 400);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    if (turn % 2 == 0 && bytes.size() >= sizeof(Frame)) {  // a frame that is right but for where it goes
      Frame frame;
      std::memcpy(&frame, bytes.data(), sizeof frame);
      frame.mark = Frame::kMark;
      frame.flags &= Frame::kAllFlags;
      frame.memory = random() % 2 == 0 ? target.number : frame.memory;
      frame.bytes >>= random() % 64;
      frame.offset >>= random() % 64;
      prove(frame, 0);
      std::memcpy(bytes.data(), &frame, sizeof frame);
    }
    (void)feedAll(parser, bytes);
    CHECK(target.isSafe());
  }
}

}  // namespace

TEST_CASE("garbage does no harm", "[tcp]") {
  for (test::Rounds rounds(11); rounds.next();) feedGarbage(rounds.seed());
}

namespace {

void queueBehindFullConnection(Cipher cipher) {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  tcp::Sender sender(direction(cipher));
  tcp::Load one, other;
  std::vector<unsigned char> large(std::size_t{3} << 20, 1);
  Target target(8 << 20);
  REQUIRE(sender.put(frameTo(target.number, 0, large.size()), large.data(), &one) == tcp::Sender::Outcome::kAccepted);
  CHECK(sender.flush(pair[0]));
  CHECK(one.queued == 1);  // more than the socket takes
  for (std::uint64_t i = 0; i < 5; ++i) {
    const std::vector<unsigned char> small(100, static_cast<unsigned char>(i));
    sender.put(frameTo(target.number, (4 << 20) + 100 * i, 100), large.data(), i % 2 == 0 ? &one : &other);
  }
  sender.put(frameTo(target.number, 5 << 20, large.size()), large.data(), &one);  // too much to be kept
  CHECK(one.queued == 5);
  sender.release(&one);
  std::fill(large.begin() + 200, large.end(), 9);  // its owner may do so now
  tcp::Parser parser(target.memories, direction(cipher));
  for (int i = 0; i < 1000 && !sender.isEmpty(); ++i) {
    REQUIRE(feedAll(parser, drain(pair[1])) == nullptr);
    sender.flush(pair[0]);
  }
  REQUIRE(feedAll(parser, drain(pair[1])) == nullptr);
  CHECK(parser.isBetweenFrames());
  CHECK(other.unfinished == 0);
  CHECK(std::count(target.data(), target.data() + large.size(), 1) == static_cast<std::ptrdiff_t>(large.size()));
  CHECK(std::count(target.data() + (4 << 20), target.data() + (4 << 20) + 500, 1) == 500);
  CHECK(target.data()[5 << 20] == kUntouched);
  ::close(pair[0]);
  ::close(pair[1]);
}

std::vector<Cipher> ciphers() {
  std::vector<Cipher> some = {Cipher::kChaCha20Poly1305};
  if (crypto_aead_aes256gcm_is_available() != 0) some.push_back(Cipher::kAes256Gcm);
  return some;
}

// What a sender makes of payloads of these sizes, one after the other in the target's memory, with a signal each.
std::vector<unsigned char> sentBy(tcp::Sender& sender, const Target& target, const std::vector<std::size_t>& sizes,
                                  const std::vector<unsigned char>& payload) {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  tcp::Load load;
  std::uint64_t at = 8, n = 0;
  std::vector<unsigned char> stream;
  const auto take = [&] {
    const std::vector<unsigned char> some = drain(pair[1]);
    stream.insert(stream.end(), some.begin(), some.end());
  };
  for (const std::size_t bytes : sizes) {
    Frame frame = frameTo(target.number, at, bytes);
    frame.flags = Frame::kSignals;
    frame.signalMemory = target.number;
    frame.signal = ++n;
    REQUIRE(sender.put(frame, payload.data() + at, &load) == tcp::Sender::Outcome::kAccepted);
    at += bytes;
  }
  while (!sender.isEmpty()) {
    sender.flush(pair[0]);
    take();
  }
  CHECK(load.unfinished == 0);
  CHECK(load.queued == 0);
  ::close(pair[0]);
  ::close(pair[1]);
  return stream;
}

std::vector<unsigned char> somePayload(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<unsigned char> payload(bytes);
  for (unsigned char& byte : payload) byte = static_cast<unsigned char>(random());
  return payload;
}

}  // namespace

TEST_CASE("what is queued behind a full connection is sent in order, and closing a link takes its part out", "[tcp]") {
  queueBehindFullConnection(Cipher::kNone);
  for (const Cipher cipher : ciphers()) queueBehindFullConnection(cipher);
}

TEST_CASE("encrypted frames may come cut anywhere, and nothing of a payload stands in what travels", "[tcp]") {
  for (test::Rounds rounds(3); rounds.next();) {
    for (const Cipher cipher : ciphers()) {
      const std::vector<std::size_t> sizes = {0,      1, 8, 700, Seal::kPiece - 1, Seal::kPiece, Seal::kPiece + 1,
                                              300000, 0, 5};
      const std::size_t all = 8 + std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
      const std::vector<unsigned char> payload = somePayload(all, rounds.seed());
      std::mt19937_64 random(rounds.seed());
      Target target(all);
      if (reinterpret_cast<std::uintptr_t>(target.data()) % 8 != 0) continue;
      tcp::Sender sender(direction(cipher));
      const std::vector<unsigned char> stream = sentBy(sender, target, sizes, payload);
      for (std::size_t at = 9; at + 8 <= all; at += 97)
        CHECK(memmem(stream.data(), stream.size(), &payload[at], 8) == nullptr);
      tcp::Parser parser(target.memories, direction(cipher));
      for (std::size_t at = 0; at < stream.size();) {
        CHECK(parser.room().empty());
        const std::size_t most = 1 + random() % (random() % 2 == 0 ? 100 : 100000);
        const std::size_t step = std::min(most, stream.size() - at);
        REQUIRE(parser.feed(stream.data() + at, step) == nullptr);
        at += step;
      }
      CHECK(parser.isBetweenFrames());
      CHECK(target.isSafe());
      CHECK(target.data()[0] == sizes.size());
      CHECK(std::equal(payload.begin() + 8, payload.end(), target.data() + 8));
    }
  }
}

TEST_CASE("an encrypted payload that was altered is refused, and nothing of its piece is seen", "[tcp]") {
  const std::vector<std::size_t> sizes = {2 * Seal::kPiece};
  const std::vector<unsigned char> payload = somePayload(8 + sizes[0], 1);
  for (const Cipher cipher : ciphers()) {
    for (const std::size_t at : {std::size_t{0}, Seal::kPiece - 1, Seal::kPiece, Seal::kPiece + Seal::kTag - 1}) {
      Target target(8 + sizes[0]);
      tcp::Sender sender(direction(cipher));
      std::vector<unsigned char> stream = sentBy(sender, target, sizes, payload);
      stream[sizeof(Frame) + Seal::kPiece + Seal::kTag + at] ^= 1;  // in the second piece
      tcp::Parser parser(target.memories, direction(cipher));
      const char* const wrong = feedAll(parser, stream);
      REQUIRE(wrong != nullptr);
      CHECK(std::string(wrong).find("altered") != std::string::npos);
      CHECK(std::equal(payload.begin() + 8, payload.begin() + 8 + Seal::kPiece, target.data() + 8));
      const unsigned char* const second = target.data() + 8 + Seal::kPiece;
      CHECK(std::all_of(second, second + Seal::kPiece, [&](unsigned char byte) { return byte == *second; }));
      CHECK(target.data()[0] == kUntouched);  // no signal
    }
  }
}

TEST_CASE("what was sealed for one rail, direction, cipher or connection passes for no other", "[tcp]") {
  const std::vector<unsigned char> payload = somePayload(64, 2);
  const common::Key another{{1, 2, 4}};
  const Direction made = direction(ciphers().back());
  Direction otherRail = made, back = made;
  otherRail.rail = 1;
  back.isDiallers = false;
  const Direction otherConnection{another, made.rail, made.isDiallers, made.cipher};
  for (const Direction& taken : {otherRail, back, otherConnection}) {
    Target target(64);
    tcp::Sender sender(made);
    tcp::Parser parser(target.memories, taken);
    CHECK(feedAll(parser, sentBy(sender, target, {8}, payload)) != nullptr);
  }
  // By its tag alone: the header's keys are the same for all ciphers.
  Target target(64);
  tcp::Sender sender(made);
  tcp::Parser parser(target.memories, direction(Cipher::kNone));
  const std::vector<unsigned char> stream = sentBy(sender, target, {8}, payload);
  (void)feedAll(parser, stream);
  CHECK(!std::equal(payload.begin() + 8, payload.begin() + 16, target.data() + 8));
}

TEST_CASE("two ranks encrypt by AES where both processors have it, and only if both are to encrypt", "[tcp]") {
  using connect::Address;
  const auto with = [](int flags) {
    Address address{};
    address.flags = static_cast<unsigned char>(flags);
    return address;
  };
  constexpr int kBoth = Address::kEncrypts | Address::kHasAes;
  CHECK(cipherBetween(with(kBoth), with(kBoth)) == Cipher::kAes256Gcm);
  CHECK(cipherBetween(with(kBoth), with(Address::kEncrypts)) == Cipher::kChaCha20Poly1305);
  CHECK(cipherBetween(with(Address::kEncrypts), with(kBoth)) == Cipher::kChaCha20Poly1305);
  CHECK(cipherBetween(with(Address::kHasAes), with(kBoth)) == Cipher::kNone);
}

// contract-encrypted runs it where the environment says "yes".
TEST_CASE("a rank tells its peers that it encrypts, by whatever word the setting is switched on", "[tcp][posted]") {
  Rank rank;
  REQUIRE_OK(rank.open("tcp", {}));
  connect::Address address;
  REQUIRE(common::fromBlob(rank.address(), &address));
  CHECK(((address.flags & connect::Address::kEncrypts) != 0) == (settings::integer("KOLO_ENCRYPT") != 0));
}

TEST_CASE("a rank that encrypts and one that does not refuse each other by the setting's name", "[tcp]") {
  for (const bool mine : {true, false}) {
    HostOptions here, there;
    std::strcpy(mine ? here.settings : there.settings, "KOLO_ENCRYPT=1");
    there.rank = 1;
    Pair pair("tcp");
    Rank rank;
    Peer peer;
    REQUIRE_OK(rank.open("tcp", here));
    accepted(peer.open("tcp", there));
    const auto link = rank.openLink(peer.address(), accepted(peer.registerMemory(kPage)).blob);
    CHECK(link.status().code() == koloUnreachable);
    CHECK(link.status().message().find("KOLO_ENCRYPT") != std::string::npos);
  }
}

TEST_CASE("the queue of a rail has an end", "[tcp]") {
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  tcp::Sender sender(direction());
  tcp::Load load;
  std::vector<unsigned char> large(std::size_t{1} << 20);
  std::size_t accepted = 0;
  while (sender.put(frameTo(1, 0, large.size()), large.data(), &load) == tcp::Sender::Outcome::kAccepted) {
    ++accepted;
    sender.flush(pair[0]);
  }
  CHECK(accepted >= tcp::Sender::kMostQueued);
  CHECK(accepted <= tcp::Sender::kMostQueued + 8);
  CHECK(load.queued == tcp::Sender::kMostQueued);
  ::close(pair[1]);
  CHECK(sender.flush(pair[0]) == false);
  CHECK(sender.broken() != 0);
  sender.abandon();
  CHECK(load.unfinished == 0);
  ::close(pair[0]);
}

TEST_CASE("payloads are checked, lent to the kernel, encrypted, or sent by four connections if the settings say so",
          "[tcp]") {
  for (const char* const settings :
       {"KOLO_TCP_CHECKSUM=1", "KOLO_TEST_TCP_ZEROCOPY_BYTES=1000", "KOLO_TCP_SOCKETS=4",
        "KOLO_TCP_CHECKSUM=1 KOLO_TEST_TCP_ZEROCOPY_BYTES=0 KOLO_TCP_SOCKETS=2",
        "KOLO_ENCRYPT=1 KOLO_TEST_TCP_ZEROCOPY_BYTES=0", "KOLO_ENCRYPT=1 KOLO_TCP_SOCKETS=4"}) {
    DYNAMIC_SECTION(settings) {
      HostOptions options;
      std::strcpy(options.settings, settings);
      PostedPair pair("tcp", options);
      pair.startAnswering(300, 1 << 20);
      CHECK(sendPostedPings(pair.end(), 300, 1 << 20) == "");
      accepted(pair.peer.receive());
    }
  }
}

TEST_CASE("what was accepted reaches a peer that takes nothing for long, and then sends, though the device is closed",
          "[tcp]") {
  constexpr std::uint64_t kEach = 1 << 19, kPuts = 4;  // more than the peer's kernel takes for it
  PostedPair pair("tcp");
  std::memset(pair.rank.data(pair.outbox), 1, kMostPayload);
  pair.peer.pause();
  for (std::uint64_t n = 0; n < kPuts; ++n) {
    const PutOptions put{
        .memory = pair.outbox, .bytes = kEach, .to = kSignals + n * kEach, .signalTo = 8, .signal = n + 1};
    REQUIRE_OK(pair.rank.put(pair.link, put));
  }
  while (pair.rank.queued(pair.link) != 0) pair.rank.progress(1, 1000);
  const auto begun = std::chrono::steady_clock::now();
  pair.rank.close();
  CHECK_WITHIN(std::chrono::seconds(8), begun);
  pair.peer.resume();
  (void)pair.peer.put(pair.theirLink,
                      {.memory = pair.theirOutbox, .signalTo = 8, .signal = 1});  // a closed connection would be reset
  CHECK(accepted(pair.awaitThere(8, kPuts)).value == 0);
  CHECK(pair.peer.value(Op::kCount, pair.theirInbox, 1, kSignals) ==
        kInbox - kSignals - kPuts * kEach);  // bytes that are not 1
}

TEST_CASE("both directions have as many connections as the lesser of both wishes", "[tcp]") {
  for (const auto& [here, there, expected] : {std::tuple{4, 2, 2u}, {1, 4, 1u}, {4, 4, 4u}, {3, 4, 2u}, {0, 4, 1u}}) {
    Pair pair("tcp");
    Rank rank;
    Peer peer;
    HostOptions mine, theirs;
    std::snprintf(mine.settings, sizeof mine.settings, "KOLO_TCP_SOCKETS=%d", here);
    std::snprintf(theirs.settings, sizeof theirs.settings, "KOLO_TCP_SOCKETS=%d", there);
    theirs.rank = 1;
    REQUIRE_OK(rank.open("tcp", mine));
    accepted(peer.open("tcp", theirs));
    const std::size_t memory = registered(rank, kPage);
    const std::size_t files = openFiles();
    const std::size_t link = linked(rank, peer.address(), accepted(peer.registerMemory(kPage)).blob);
    CHECK(rank.rails(link) == expected);
    const std::uint64_t other = accepted(peer.link(rank.address(), rank.descriptor(memory))).value;
    CHECK(peer.value(Op::kRails, other) == expected);
    CHECK(openFiles() == files + expected);  // one set serves both directions
  }
}

// The checksum is made when the put is accepted: bytes that are changed before they are over are found out.
TEST_CASE("with checksums, bytes that change on their way drop the link and are not announced", "[tcp]") {
  HostOptions options;
  std::strcpy(options.settings, "KOLO_TCP_CHECKSUM=1");
  PostedPair pair("tcp", options);
  for (int i = 0; i < 8; ++i) {
    REQUIRE_OK(pair.rank.put(
        pair.link, {.memory = pair.outbox, .bytes = kMostPayload, .to = kSignals, .signalTo = 8, .signal = 1}));
  }
  REQUIRE(pair.rank.queued(pair.link) > 1);
  std::memset(pair.rank.data(pair.outbox), 0x55, kMostPayload);
  pair.peer.send({Op::kAwaitSignal, pair.theirInbox, 8, 2, pair.theirLink});
  while (pair.rank.state(pair.link).ok()) pair.rank.progress(1, 1000);
  const Reply reply = pair.peer.receive();
  CHECK(reply.code == koloRemoteError);
  CHECK(std::string(reply.message).find("wrong checksum") != std::string::npos);
}

TEST_CASE("what was accepted reaches a peer whose own payload was half there when its memory was deregistered",
          "[tcp]") {
  constexpr std::size_t kBytes = 1 << 20;  // a kernel takes it, and the other does not yet
  PostedPair pair("tcp");
  accepted(pair.peer.put(pair.theirLink, {.memory = pair.theirOutbox, .bytes = kMostPayload, .to = kSignals}));
  progressFor(pair.rank, 1, 20);
  REQUIRE_OK(
      pair.rank.put(pair.link, {.memory = pair.outbox, .bytes = kBytes, .to = kSignals, .signalTo = 8, .signal = 1}));
  std::thread closing([&] { pair.rank.close(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const Reply reply = pair.awaitThere(8, 1);
  closing.join();
  accepted(reply);
}

}  // namespace kolo::contract
