// What a rank keeps of its peers' lists: the tables that peers offered, by id, up to a number of bytes.
#include "traffic/peer_lists.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "comm/factory.h"
#include "support/text.h"

namespace kolo::traffic {
namespace {

// The table of a list of rank 1: in the memory of this process, as both ranks are threads of it.
class OfferedTable {
 public:
  explicit OfferedTable(std::uint32_t segments)
      : memory_((sizeof(device::Segments) + segments * sizeof(device::Segment)) / sizeof(std::uint64_t)) {
    device::Segments head;
    head.bytes = memory_.size() * sizeof(std::uint64_t);
    head.sends = segments;
    std::memcpy(memory_.data(), &head, sizeof head);
    for (std::uint32_t i = 0; i < segments; ++i) {
      device::Segment segment;
      segment.begin = std::uint64_t{i} * device::kSegmentGrain;
      segment.bytes = device::kSegmentGrain;
      segment.data = place(0);
      std::memcpy(memory_.data() + (sizeof head + i * sizeof segment) / sizeof(std::uint64_t), &segment,
                  sizeof segment);
    }
  }

  device::Segments& head() { return *reinterpret_cast<device::Segments*>(memory_.data()); }
  // From now on it is the table of another list, whose first segment lies at this place.
  device::PeerSegments offer(std::uint64_t id, std::size_t first) {
    head().id = id;
    const_cast<device::Segment*>(head().of(device::Buffer::kSend))->data = place(first);
    return {1, reinterpret_cast<std::uint64_t>(memory_.data()), id};
  }
  static unsigned char* place(std::size_t number) {
    static std::array<unsigned char, 8> places{};
    return &places[number];
  }

 private:
  std::vector<std::uint64_t> memory_;
};

// What rank 0 keeps of it.
class Keeper {
 public:
  Keeper() {
    comm::Options options;
    options.name = "world";
    options.transports = "shm";
    options.timeoutMs = 10000;
    Result<std::vector<comm::Owned>> created = comm::createAll(2, options);
    REQUIRE(created.status().message() == "");
    ranks_ = created.take();
    REQUIRE(peer().link != nullptr);
  }
  // Not where the kernel keeps a process from reading memory by an address.
  bool canRead() {
    const Status& reads = peer().link->reads();
    if (!reads.ok()) WARN(reads.message());
    return reads.ok();
  }
  void begin(std::uint64_t windowChanges = 0) { lists_.begin(windowChanges); }
  Result<const PeerLists::List*> fetch(const device::PeerSegments& offered) {
    return lists_.fetch(peer(), offered, windows_);
  }
  // Where its first segment lies, as it is known here.
  const unsigned char* firstOf(const device::PeerSegments& offered) {
    const Result<const PeerLists::List*> list = fetch(offered);
    REQUIRE(list.status().message() == "");
    CHECK_FALSE(list.value()->isLoadable);  // there are no windows
    return list.value()->segments().of(device::Buffer::kSend)->data;
  }

 private:
  const links::Peer& peer() { return ranks_.front()->peers()[1]; }

  std::vector<comm::Owned> ranks_;
  links::Windows windows_;
  PeerLists lists_;
};

// A table is read again only if it has been dropped: so it shows what the peer has there meanwhile.
TEST_CASE("S1.5 tables of peers' lists are kept up to 128 MiB, and all of them until an operation has ended") {
  constexpr std::uint32_t kSegments = (16 << 20) / sizeof(device::Segment) + 1;  // 16 MiB, and a little more
  Keeper keeper;
  if (!keeper.canRead()) return;
  OfferedTable table(kSegments);
  keeper.begin();
  std::uint64_t id = 1;
  CHECK(keeper.firstOf(table.offer(1, 0)) == table.place(0));
  const PeerLists::List* const first = keeper.fetch(table.offer(1, 1)).value();
  while (id < 7) (void)keeper.firstOf(table.offer(++id, 2));
  keeper.begin();
  CHECK(keeper.firstOf(table.offer(1, 1)) == table.place(0));
  // One operation more, with lists that do not fit. It may still use what it has fetched.
  while (id < 10) (void)keeper.firstOf(table.offer(++id, 2));
  CHECK(keeper.fetch(table.offer(1, 1)).value() == first);
  CHECK(keeper.firstOf(table.offer(1, 1)) == table.place(0));
  keeper.begin();
  CHECK(keeper.firstOf(table.offer(1, 1)) == table.place(1));
  CHECK(keeper.firstOf(table.offer(7, 3)) == table.place(3));
  // The bytes of those that were dropped do not count any more.
  keeper.begin();
  CHECK(keeper.firstOf(table.offer(1, 4)) == table.place(1));
  CHECK(keeper.firstOf(table.offer(7, 4)) == table.place(3));
}

TEST_CASE("S1.5 tables of peers' lists are read again when the windows have changed") {
  Keeper keeper;
  if (!keeper.canRead()) return;
  OfferedTable table(3);
  keeper.begin(5);
  CHECK(keeper.firstOf(table.offer(1, 0)) == table.place(0));
  keeper.begin(5);
  CHECK(keeper.firstOf(table.offer(1, 1)) == table.place(0));
  CHECK(keeper.firstOf(table.offer(2, 1)) == table.place(1));  // another list, at the same address
  keeper.begin(6);
  CHECK(keeper.firstOf(table.offer(1, 2)) == table.place(2));
}

// The peer has given up its operation, and its table, before it was read.
TEST_CASE("S1.5 what is no table of the list that a peer offered is not kept, and is an error") {
  const std::vector<std::function<void(device::Segments&)>> changes = {
      [](device::Segments& head) { head.id = 2; },
      [](device::Segments& head) { head.sends = 4; },
      [](device::Segments& head) { head.bytes += 8; },
      [](device::Segments& head) { head.bytes = device::kMostListBytes + 8; },
      [](device::Segments& head) { const_cast<device::Segment*>(head.of(device::Buffer::kSend))[2].elementBytes = 0; },
      [](device::Segments& head) { const_cast<device::Segment*>(head.of(device::Buffer::kSend))[1].strides = 1; }};
  Keeper keeper;
  if (!keeper.canRead()) return;
  for (const auto& change : changes) {
    OfferedTable table(3);
    const device::PeerSegments offered = table.offer(1, 0);
    change(table.head());
    keeper.begin();
    const Status status = keeper.fetch(offered).status();
    CHECK(status.code() == koloInternalError);
    CHECK(test::contains(status.message(), "rank 1 offered a list at an address where there is none"));
  }
  OfferedTable table(3);
  CHECK(keeper.firstOf(table.offer(1, 6)) == table.place(6));
}

}  // namespace
}  // namespace kolo::traffic
