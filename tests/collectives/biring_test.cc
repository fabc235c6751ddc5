// Which way the halves of a block go in the bidirectional ring's all-gather, and in how many steps: by what a rank
// finds in the staging slots that its neighbours put it into. The results do not tell.
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/host_backend.h"
#include "device/slots.h"
#include "executor/context.h"
#include "world.h"

namespace kolo::tests {
namespace {

constexpr std::size_t kShard = 13;             // bytes, of which the first half has 6
constexpr std::size_t kOlderShard = 64;        // longer, so that it fills as much of a slot as is looked at
constexpr unsigned char kOlder = 0xee;         // what stands in the slots before
using SlotBytes = std::vector<unsigned char>;  // the first kShard ones

// The signals between a rank and a peer, when the rank's operation has ended.
struct NotedSignals {
  const void* inbox = nullptr;      // where the peer signals to this rank
  std::uint64_t arrived = 0;        // the last chunk of which the peer has signalled that it is there
  std::uint64_t received = 0;       // the last one that this rank has waited for and taken
  std::uint64_t givenBack = 0;      // the last one whose slot this rank has signalled to be free
  std::uint64_t sent = 0;           // the last one that this rank has put
  std::uint64_t awaitedCredit = 0;  // the last one whose slot it knew to be free
};

// What the calling thread's rank did in its last all-gather of kShard bytes, by peer.
struct NotedGather {
  std::vector<std::vector<SlotBytes>> received;  // chunk after chunk
  std::vector<std::uint64_t> sent;               // chunks
  std::vector<NotedSignals> signals;
  std::uint64_t slots = 0;
};
thread_local NotedGather lastGather;

// Has all-gathers done by the host executor, and notes what went through the slots.
class GatherNoter final : public executor::Executor {
 public:
  GatherNoter() { comm::HostBackend::useExecutor(this); }
  ~GatherNoter() override { comm::HostBackend::useExecutor(nullptr); }

  void run(const device::Work& work, const executor::Context& context) override {
    const auto ranks = static_cast<std::size_t>(work.ranks);
    std::vector<std::uint64_t> sent(ranks), received(ranks);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      sent[peer] = work.channel.links[peer].sent;
      received[peer] = work.channel.links[peer].received;
    }
    executor::hostExecutor().run(work, context);
    // A peer puts something into the slots again in its next operation. Of the noted kind that is none.
    if (work.recvLayout.block(0).count * work.elementBytes != kShard) return;
    lastGather = {std::vector<std::vector<SlotBytes>>(ranks), std::vector<std::uint64_t>(ranks),
                  std::vector<NotedSignals>(ranks), work.channel.slots};
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      const device::Link& link = work.channel.links[peer];
      lastGather.sent[peer] = link.sent - sent[peer];
      if (link.inbox != nullptr && link.outbox != nullptr) {
        lastGather.signals[peer] = {link.inbox,    device::loadAcquire(device::tailOf(link, link.received)),
                                    link.received, device::loadAcquire(link.outbox->signals.head),
                                    link.sent,     link.credited};
      }
      for (std::uint64_t number = received[peer] + 1; number <= link.received; ++number) {
        const unsigned char* const slot = link.inSlots + number % work.channel.slots * work.channel.slotBytes;
        lastGather.received[peer].emplace_back(slot, slot + kShard);
      }
    }
  }
};

std::vector<unsigned char> shardOf(std::size_t rank) {
  std::vector<unsigned char> shard(kShard);
  for (std::size_t i = 0; i < kShard; ++i) shard[i] = static_cast<unsigned char>(16 * rank + i);
  return shard;
}

// A slot into which one half of a rank's shard has been put.
SlotBytes slotWith(std::size_t rank, bool isFirstHalf) {
  const std::vector<unsigned char> shard = shardOf(rank);
  const auto middle = shard.begin() + kShard / 2;
  SlotBytes slot = isFirstHalf ? SlotBytes(shard.begin(), middle) : SlotBytes(middle, shard.end());
  slot.resize(kShard, kOlder);
  return slot;
}

// Fills the slots, gathers, and says what is wrong with the result.
std::string gatherByBiring(const World& world, int rank, NotedGather& noted) {
  constexpr int kFills = 8;  // each of two chunks or more, for four slots
  const auto ranks = static_cast<std::size_t>(world.ranks());
  const koloComm_t comm = world.comm(rank);
  const std::vector<unsigned char> older(kOlderShard, kOlder), mine = shardOf(static_cast<std::size_t>(rank));
  std::vector<unsigned char> all(ranks * kOlderShard), gathered(ranks * kShard), wanted;
  koloResult_t result = koloCommSetAlgorithm(comm, "all_gather:biring");
  for (int i = 0; i < kFills && result == koloSuccess; ++i)
    result = koloAllGather(older.data(), all.data(), kOlderShard, koloUint8, comm, nullptr);
  if (result == koloSuccess) result = koloAllGather(mine.data(), gathered.data(), kShard, koloUint8, comm, nullptr);
  noted = std::move(lastGather);
  if (result != koloSuccess) return koloGetLastError(nullptr);
  for (std::size_t from = 0; from < ranks; ++from) {
    const std::vector<unsigned char> shard = shardOf(from);
    wanted.insert(wanted.end(), shard.begin(), shard.end());
  }
  return gathered == wanted ? "" : "the shards are not in the order of the ranks";
}

// Of all ranks of a world; checks the results.
std::vector<NotedGather> gatherOn(std::size_t ranks) {
  const GatherNoter noter;
  WorldOptions options;
  options.ranks = static_cast<int>(ranks);
  options.registeredBytes = 0;
  World world(options);
  std::vector<NotedGather> noted(ranks);
  std::vector<std::string> faults(ranks);
  world.run([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    faults[at] = gatherByBiring(world, rank, noted[at]);
  });
  for (const std::string& fault : faults) CHECK(fault == "");
  return noted;
}

TEST_CASE("S3.2 the bidirectional ring gathers in n - 1 steps, second halves to the right and first ones to the left") {
  for (const std::size_t ranks : {3U, 4U, 5U}) {
    const std::vector<NotedGather> noted = gatherOn(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      INFO("rank " << rank << " of " << ranks);
      const std::size_t right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
      std::vector<std::vector<SlotBytes>> wanted(ranks);
      for (std::size_t step = 1; step < ranks; ++step) {
        wanted[left].push_back(slotWith((rank + ranks - step) % ranks, false));
        wanted[right].push_back(slotWith((rank + step) % ranks, true));
      }
      CHECK(noted[rank].received == wanted);
      std::vector<std::uint64_t> sent(ranks);
      sent[left] = sent[right] = ranks - 1;
      CHECK(noted[rank].sent == sent);
    }
  }
}

// Both directions have sent far more chunks than there are slots.
TEST_CASE("S3.4 each direction has signals of its own, waited for before a slot is used again, and none is left over") {
  for (const std::size_t ranks : {3U, 5U}) {
    const std::vector<NotedGather> noted = gatherOn(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
      CHECK(noted[rank].signals[left].inbox != noted[rank].signals[right].inbox);
      for (const std::size_t peer : {left, right}) {
        INFO("rank " << rank << " of " << ranks << ", signals of rank " << peer);
        const NotedSignals& signals = noted[rank].signals[peer];
        REQUIRE(signals.inbox != nullptr);
        REQUIRE(signals.sent > 2 * noted[rank].slots);
        CHECK(signals.awaitedCredit + noted[rank].slots >= signals.sent);
        CHECK(signals.arrived == signals.received);
        CHECK(signals.givenBack == signals.received);
        // What the peer has put in this direction is what has been received.
        CHECK(noted[peer].signals[rank].sent == signals.received);
      }
    }
  }
}

}  // namespace
}  // namespace kolo::tests
