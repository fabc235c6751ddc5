// Operations in packets on blocks that host threads play, over links whose memory is the test's: these have no slots,
// so that whatever went there would end the test.
#include "device/packets.h"

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "emulated/emulated_executor.h"

namespace kolo::device {
namespace {

constexpr std::uint64_t kMostBytes = 256;
constexpr std::uint64_t kBufferPackets = packetsFor(kMostBytes);
constexpr int kInts = 50;

class YieldingOwner final : public executor::LinkOwner {
 public:
  Fault keepWaiting(const Work&, int peer, executor::WaitState&) override {
    std::this_thread::yield();
    return std::chrono::steady_clock::now() < until_ ? Fault{} : Fault{.kind = Fault::kTimeout, .peer = peer};
  }
  Fault open(Link&) override { return {}; }
  Fault post(const Work&, const Link&, const Post&) override { return {}; }
  bool progress(int) override { return false; }
  int looks() const override { return 0; }
  bool read(int, void*, std::uint64_t, std::uint64_t) override { return false; }
  bool write(int, std::uint64_t, const void*, std::uint64_t) override { return false; }
  bool readList(const PeerSegments&, void*, const unsigned char*, std::uint64_t) override { return false; }
  bool writeList(const PeerSegments&, const unsigned char*, const void*, std::uint64_t) override { return false; }
  const Segments* loadableList(const PeerSegments&) override { return nullptr; }

 private:
  std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::now() + std::chrono::seconds(60);
};

// What one rank gets from another.
struct Inbox {
  Mailbox mailbox{};
  std::array<std::array<Packet, kBufferPackets>, kPacketBuffers> packets{};
  std::array<unsigned char, kMostBytes> unpacked{};
};

// Ranks, each of which has an operation to carry out.
class Party {
 public:
  explicit Party(int ranks) : ranks_(ranks), inboxes_(at(ranks * ranks)), links_(at(ranks)), works_(at(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      links_[at(rank)].resize(at(ranks));
      for (int peer = 0; peer < ranks; ++peer) connect(rank, peer);
    }
  }

  // The faults, by rank.
  std::vector<Fault> run() {
    std::vector<Fault> faults(at(ranks_));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        Work& work = works_[at(rank)];
        work.channel.fault = &faults[at(rank)];
        YieldingOwner owner;
        executor::makeEmulatedExecutor(3)->run(work, {.owner = &owner});
      });
    }
    for (std::thread& thread : threads) thread.join();
    return faults;
  }

  Work& describe(int rank, Collective collective, const int* from, int* to) {
    Work& work = works_[at(rank)] = {};
    work.signature.collective = collective;
    work.signature.algorithm = Algorithm::kOneShot;
    work.signature.datatype = koloInt32;
    work.header.word = work.signature.pack();
    work.header.count = work.sendLayout.count = work.recvLayout.count = kInts;
    work.elementBytes = sizeof(int);
    work.rank = rank;
    work.ranks = ranks_;
    work.send = reinterpret_cast<const unsigned char*>(from);
    work.recv = reinterpret_cast<unsigned char*>(to);
    work.channel.links = links_[at(rank)].data();
    work.channel.packetBytes = kMostBytes;
    work.channel.slots = 4;
    work.channel.chunkBytes = work.channel.slotBytes = 4096;
    return work;
  }
  Link& link(int from, int to) { return links_[at(from)][at(to)]; }
  const Inbox& inbox(int reader, int writer) { return inboxes_[at(reader * ranks_ + writer)]; }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  void connect(int rank, int peer) {
    Inbox& mine = inboxes_[at(rank * ranks_ + peer)];
    Inbox& theirs = inboxes_[at(peer * ranks_ + rank)];
    Link& link = links_[at(rank)][at(peer)];
    link.peer = peer;
    link.inbox = &mine.mailbox;
    link.outbox = &theirs.mailbox;
    for (std::size_t i = 0; i < kPacketBuffers; ++i) {
      link.packets.in[i] = mine.packets[i].data();
      link.packets.out[i] = theirs.packets[i].data();
    }
    link.packets.unpacked = mine.unpacked.data();
  }

  int ranks_;
  std::vector<Inbox> inboxes_;
  std::vector<std::vector<Link>> links_;
  std::vector<Work> works_;
};

int valueOf(int rank, int i, int round) { return 1000 * rank + 7 * i + round; }

TEST_CASE("packets: an all-reduce sends no signal, for none follows its data", "[threads]") {
  const int ranks = GENERATE(2, 3, 7);
  Party party(ranks);
  std::vector<std::vector<int>> buffers(static_cast<std::size_t>(ranks), std::vector<int>(kInts));
  (void)executor::takeMostSignals();
  for (int round = 0; round < 5; ++round) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int>& buffer = buffers[static_cast<std::size_t>(rank)];
      for (int i = 0; i < kInts; ++i) buffer[static_cast<std::size_t>(i)] = valueOf(rank, i, round);
      party.describe(rank, Collective::kAllReduce, buffer.data(), buffer.data());
    }
    for (const Fault& fault : party.run()) CHECK(fault.kind == Fault::kNone);
    std::vector<int> expected(kInts);
    for (int rank = 0; rank < ranks; ++rank) {
      for (int i = 0; i < kInts; ++i) expected[static_cast<std::size_t>(i)] += valueOf(rank, i, round);
    }
    for (const std::vector<int>& buffer : buffers) CHECK(buffer == expected);
  }
  CHECK(executor::takeMostSignals() == 0);
  CHECK(party.link(0, 1).headers.met == 5);
  CHECK(party.inbox(0, 1).mailbox.header[1].number.value == 0);
}

TEST_CASE("packets: numbers go on where their low bits begin anew, over what is left of old ones", "[threads]") {
  Party party(2);
  for (const int rank : {0, 1}) party.link(rank, 1 - rank).packets.exchanged = (std::uint64_t{1} << 32) - 3;
  for (int round = 0; round < 6; ++round) {
    std::array<std::vector<int>, 2> buffers;
    for (const int rank : {0, 1}) {
      std::vector<int>& buffer = buffers[static_cast<std::size_t>(rank)];
      for (int i = 0; i < kInts; ++i) buffer.push_back(valueOf(rank, i, round));
      party.describe(rank, Collective::kAllReduce, buffer.data(), buffer.data());
    }
    for (const Fault& fault : party.run()) CHECK(fault.kind == Fault::kNone);
    CHECK(buffers[0] == buffers[1]);
    CHECK(buffers[0][3] == valueOf(0, 3, round) + valueOf(1, 3, round));
  }
}

// Of a rank whose header comes as a line, and of one whose header comes in packets.
TEST_CASE("packets: ranks of which one calls what does not go in packets are told, both", "[threads]") {
  const Collective other = GENERATE(Collective::kBarrier, Collective::kAllReduce);
  Party party(2);
  std::array<std::array<int, kInts>, 2> buffers{};
  party.describe(0, Collective::kAllReduce, buffers[0].data(), buffers[0].data());
  Work& work = party.describe(1, other, buffers[1].data(), buffers[1].data());
  work.channel.packetBytes = 0;
  work.signature.algorithm = Algorithm::kRecursive;
  work.header.word = work.signature.pack();
  std::vector<unsigned char> slots(std::size_t{4} * 4096);
  for (const int rank : {0, 1}) {
    party.link(rank, 1 - rank).inSlots = party.link(rank, 1 - rank).outSlots = slots.data();
  }
  const std::vector<Fault> faults = party.run();
  CHECK(faults[0].kind == Fault::kMismatch);
  CHECK(faults[1].kind == Fault::kMismatch);
  CHECK(Signature::unpack(faults[0].signature).algorithm == Algorithm::kRecursive);
  CHECK(Signature::unpack(faults[1].signature).algorithm == Algorithm::kOneShot);
}

// One of them awaits packets that the other never writes. An early buffer would have them: it is filled to its end.
TEST_CASE("packets: ranks that call different operations in packets are told, both", "[threads]") {
  const std::uint64_t before = GENERATE(0, 4);
  Party party(2);
  for (const int rank : {0, 1}) party.link(rank, 1 - rank).packets.exchanged = before;
  std::array<std::array<int, kInts>, 2> buffers{};
  party.describe(0, Collective::kAllReduce, buffers[0].data(), buffers[0].data());
  Work& work = party.describe(1, Collective::kAllReduce, buffers[1].data(), buffers[1].data());
  work.header.count = work.sendLayout.count = work.recvLayout.count = kInts - 9;
  const std::vector<Fault> faults = party.run();
  CHECK(faults[0].kind == Fault::kMismatch);
  CHECK(faults[0].count == kInts - 9);
  CHECK(faults[1].kind == Fault::kMismatch);
  CHECK(faults[1].count == kInts);
}

TEST_CASE("packets: a root gives its data and takes nothing but the others' fronts", "[threads]") {
  constexpr int kRanks = 4, kRoot = 2;
  Party party(kRanks);
  std::array<std::array<int, kInts>, kRanks> buffers{};
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < kInts; ++i) buffers[kRoot][static_cast<std::size_t>(i)] = valueOf(kRoot, i, round);
    for (int rank = 0; rank < kRanks; ++rank) {
      int* const buffer = buffers[static_cast<std::size_t>(rank)].data();
      Work& work = party.describe(rank, Collective::kBroadcast, buffer, buffer);
      work.root = kRoot;
    }
    for (const Fault& fault : party.run()) CHECK(fault.kind == Fault::kNone);
    for (const auto& buffer : buffers) CHECK(buffer == buffers[kRoot]);
  }
  CHECK(party.link(kRoot, 0).packets.exchanged == 4);
  CHECK(party.link(0, 1).packets.exchanged == 0);
}

}  // namespace
}  // namespace kolo::device
