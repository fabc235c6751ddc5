// Operations in packets on blocks that host threads play, over links whose memory is the test's: these have no slots,
// so that whatever went there would end the test.
#include "device/packets.h"

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "emulated/emulated_executor.h"

namespace kolo::device {
namespace {

constexpr std::uint64_t kMostBytes = 256;
constexpr std::uint64_t kBufferPackets = packetsFor(kMostBytes);
constexpr int kInts = 50;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

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

// An operation on bytes.
struct Call {
  Collective collective;
  Algorithm algorithm;
  int root, bytes;
};
void describe(Party& party, int rank, const Call& call, const unsigned char* from, unsigned char* to) {
  Work& work = party.describe(rank, call.collective, nullptr, nullptr);
  work.signature.algorithm = call.algorithm;
  work.signature.datatype = koloUint8;
  work.root = call.root;
  work.signature.root = static_cast<std::uint32_t>(call.root);
  work.header.word = work.signature.pack();
  work.header.count = work.sendLayout.count = work.recvLayout.count = static_cast<std::uint64_t>(call.bytes);
  work.elementBytes = 1;
  work.send = from;
  work.recv = to;
}

constexpr std::size_t kRoom = 280;  // of a buffer, with what lies around it
using Bytes = std::array<unsigned char, kRoom>;

// What the buffer of a rank that has an output holds afterwards.
Bytes expectedOf(const Call& call, const std::vector<Bytes>& inputs, std::size_t offset, const Bytes& before) {
  Bytes expected = before;
  for (std::size_t i = offset; i < offset + static_cast<std::size_t>(call.bytes); ++i) {
    unsigned sum = 0;
    for (const Bytes& input : inputs) sum += input[i];
    const bool isMoved = call.collective == Collective::kBroadcast;
    expected[i] = static_cast<unsigned char>(isMoved ? inputs[static_cast<std::size_t>(call.root)][i] : sum);
  }
  return expected;
}

TEST_CASE("packets: two-shots and trees of any length and root, in place and not", "[threads]") {
  const int ranks = GENERATE(2, 3, 5, 8);
  Party party(ranks);
  std::mt19937 random(static_cast<unsigned>(ranks));
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  (void)executor::takeMostSignals();
  for (int round = 0; round < 30; ++round) {
    const Call call{std::array{Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast}[at(below(3))],
                    std::array{Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kTree}[at(below(3))], below(ranks),
                    below(3) == 0 ? below(9) : below(257)};
    const std::size_t offset = at(below(16));
    const bool inPlace = below(2) == 0;
    std::vector<Bytes> inputs(at(ranks)), outputs(at(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      for (unsigned char& byte : inputs[at(rank)]) byte = static_cast<unsigned char>(random());
      outputs[at(rank)].fill(7);
    }
    std::vector<Bytes> sent = inputs;
    std::vector<Bytes>& received = inPlace ? sent : outputs;
    const std::vector<Bytes> before = received;
    for (int rank = 0; rank < ranks; ++rank)
      describe(party, rank, call, sent[at(rank)].data() + offset, received[at(rank)].data() + offset);
    INFO("round " << round << ", collective " << static_cast<int>(call.collective) << ", algorithm "
                  << static_cast<int>(call.algorithm) << ", " << call.bytes << " bytes, root " << call.root);
    for (const Fault& fault : party.run()) CHECK(fault.kind == Fault::kNone);
    for (int rank = 0; rank < ranks; ++rank) {
      const bool hasOutput = call.collective != Collective::kReduce || rank == call.root;
      CHECK(received[at(rank)] == (hasOutput ? expectedOf(call, inputs, offset, before[at(rank)]) : before[at(rank)]));
    }
  }
  CHECK(executor::takeMostSignals() == 0);
}

// Of each pair one rank, or both, would wait for data that the other one does not send.
TEST_CASE("packets: ranks whose steps differ are told, both", "[threads]") {
  struct Pair {
    Call one, other;
  };
  const auto [one, other] = GENERATE(
      Pair{{Collective::kReduce, Algorithm::kTree, 0, 200}, {Collective::kReduce, Algorithm::kTree, 1, 200}},
      Pair{{Collective::kBroadcast, Algorithm::kTree, 0, 200}, {Collective::kBroadcast, Algorithm::kTree, 1, 200}},
      Pair{{Collective::kAllReduce, Algorithm::kTree, 0, 200}, {Collective::kAllReduce, Algorithm::kTwoShot, 0, 200}},
      Pair{{Collective::kBroadcast, Algorithm::kTwoShot, 1, 200}, {Collective::kReduce, Algorithm::kTwoShot, 0, 200}},
      Pair{{Collective::kReduce, Algorithm::kOneShot, 0, 200}, {Collective::kReduce, Algorithm::kTree, 0, 90}});
  const std::uint64_t before = GENERATE(0, 4);  // buffers: the first ones are filled to their end
  Party party(2);
  std::array<Bytes, 2> buffers{};
  for (const int rank : {0, 1}) {
    party.link(rank, 1 - rank).packets.exchanged = before;
    describe(party, rank, rank == 0 ? one : other, buffers[at(rank)].data(), buffers[at(rank)].data());
  }
  const std::vector<Fault> faults = party.run();
  CHECK(faults[0].kind == Fault::kMismatch);
  CHECK(faults[1].kind == Fault::kMismatch);
  CHECK(Signature::unpack(faults[0].signature).algorithm == other.algorithm);
  CHECK(Signature::unpack(faults[1].signature).algorithm == one.algorithm);
}

TEST_CASE("packets: the root of a tree takes its neighbours' fronts, and nobody else's", "[threads]") {
  Party party(4);
  std::array<Bytes, 4> buffers{};
  for (int round = 0; round < 4; ++round) {
    for (int rank = 0; rank < 4; ++rank) {
      unsigned char* const buffer = buffers[at(rank)].data();
      describe(party, rank, {Collective::kBroadcast, Algorithm::kTree, 0, 100}, buffer, buffer);
    }
    for (const Fault& fault : party.run()) CHECK(fault.kind == Fault::kNone);
  }
  CHECK(party.link(0, 1).packets.exchanged == 4);
  CHECK(party.link(0, 2).packets.exchanged == 4);
  CHECK(party.link(2, 3).packets.exchanged == 4);
  CHECK(party.link(0, 3).packets.exchanged == 0);
  CHECK(party.link(0, 3).headers.met == 0);
}

}  // namespace
}  // namespace kolo::device
