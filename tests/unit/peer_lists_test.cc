// What a rank keeps of its peers' lists: the tables that peers offered, by id, up to a number of bytes.
#include "traffic/peer_lists.h"

#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "comm/factory.h"
#include "support/seed.h"
#include "support/text.h"

namespace kolo::traffic {
namespace {

// The table of a list of rank 1: in the memory of this process, as both ranks are threads of it.
class OfferedTable {
 public:
  explicit OfferedTable(std::uint32_t segments, bool isStrided = false)
      : memory_((sizeof(device::Segments) + segments * sizeof(device::Segment) +
                 (isStrided ? sizeof(device::Strides) : 0)) /
                sizeof(std::uint64_t)) {
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
    if (!isStrided) return;
    strides() = {.rowElements = 8, .ndim = 2, .shape = {4, 2}, .strides = {-64, 16}};
    segment(0).strides = 1;
  }

  device::Segment& segment(std::uint32_t number) {
    return const_cast<device::Segment*>(head().of(device::Buffer::kSend))[number];
  }
  device::Strides& strides() { return *reinterpret_cast<device::Strides*>(&segment(head().sends)); }
  // All of it, a word each.
  std::vector<std::uint64_t>& words() { return memory_; }

  device::Segments& head() { return *reinterpret_cast<device::Segments*>(memory_.data()); }
  // From now on it is the table of another list, whose first segment lies at this place.
  device::PeerSegments offer(std::uint64_t id, std::size_t first) {
    head().id = id;
    segment(0).data = place(first);
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
  // As if it had never been read.
  Result<const PeerLists::List*> fetchAnew(const device::PeerSegments& offered) {
    lists_.begin(++changes_);
    return fetch(offered);
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
  std::uint64_t changes_ = 1000;
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
  using Table = OfferedTable;
  const std::vector<std::function<void(Table&)>> changes = {
      [](Table& table) { table.head().id = 2; }, [](Table& table) { table.head().sends = 5; },
      [](Table& table) { table.head().bytes += 8; },
      [](Table& table) { table.head().bytes = device::kMostListBytes + 8; },
      // elements that are none of their datatype
      [](Table& table) { table.segment(2).elementBytes = 0; },
      [](Table& table) { table.segment(2).transferElementBytes = 0; },
      [](Table& table) { table.segment(1).elementBytes = 64; }, [](Table& table) { table.segment(1).datatype = 200; },
      [](Table& table) { table.segment(1).transferType = 200; },
      [](Table& table) { table.segment(1).transferType = koloUint8; },  // no cast leads there
      [](Table& table) {
        table.segment(1).datatype = table.segment(1).transferType = koloFloat32;
        table.segment(1).elementBytes = table.segment(1).transferElementBytes = 4;
        table.segment(1).bytes = 62;
      },
      // places in the logical buffer
      [](Table& table) { table.segment(1).bytes = 0; }, [](Table& table) { table.segment(1).begin += 8; },
      [](Table& table) { table.segment(1).begin = 0; }, [](Table& table) { table.segment(1).bytes = 65; },
      [](Table& table) { table.segment(2).bytes = UINT64_MAX - 63; },
      [](Table& table) { table.segment(2).begin = device::kLogicalRecv; },
      // strides
      [](Table& table) { table.segment(1).strides = 2; }, [](Table& table) { table.segment(0).first = 1; },
      [](Table& table) { table.segment(0).first = UINT64_MAX; }, [](Table& table) { table.strides().rowElements = 0; },
      [](Table& table) { table.strides().rowElements = std::uint64_t{1} << 63; },
      [](Table& table) { table.strides().ndim = -1; },
      [](Table& table) { table.strides().ndim = device::kMostDimensions + 1; },
      [](Table& table) { table.strides().shape[1] = 0; },
      [](Table& table) { table.strides().shape[1] = 1; },  // fewer elements than the segment has
      [](Table& table) { table.strides().shape[0] = std::uint64_t{1} << 62; },
      [](Table& table) { table.strides().strides[0] = INT64_MIN; },
      [](Table& table) {
        table.strides().shape[0] = std::uint64_t{1} << 32;
        table.strides().strides[0] = std::int64_t{1} << 32;
      },
      // addresses below the first and behind the last that there can be
      [](Table& table) { table.segment(0).data = reinterpret_cast<unsigned char*>(0x12); },
      [](Table& table) { table.segment(1).data = reinterpret_cast<unsigned char*>(UINT64_MAX - 62); }};
  Keeper keeper;
  if (!keeper.canRead()) return;
  for (const auto& change : changes) {
    INFO("change " << &change - changes.data());
    OfferedTable table(3, true);
    const device::PeerSegments offered = table.offer(1, 0);
    change(table);
    keeper.begin();
    const Status status = keeper.fetch(offered).status();
    CHECK(status.code() == koloInternalError);
    CHECK(test::contains(status.message(), "rank 1 offered a list at an address where there is none"));
  }
  OfferedTable table(3, true);
  CHECK(keeper.firstOf(table.offer(1, 6)) == table.place(6));
}

// Whether all runs of the segment lie in the memory that windows are asked about; of segments with very many runs, the
// first ones.
bool staysInside(const device::Segments& list, device::Buffer buffer, const device::Segment& segment) {
  const device::Extent extent = device::extentOf(list, segment);
  std::uint32_t last = 0;
  std::uint64_t at = 0;
  for (int runs = 0; at < segment.bytes && runs < 1000; ++runs) {
    const unsigned char* const place = device::logicalBegin(buffer) + segment.begin + at;
    const device::Run run = device::runAt(list, place, segment.bytes - at, last);
    if (run.bytes == 0 || run.rowBytes == 0 || run.segment != &segment) return false;
    const std::uint64_t row = run.rowBytes / segment.transferElementBytes * segment.elementBytes;
    const auto rows = static_cast<std::int64_t>(run.bytes / run.rowBytes);
    for (const std::int64_t each : {std::int64_t{0}, rows - 1}) {
      const auto offset = static_cast<std::uint64_t>(run.data + each * run.stride - extent.begin);
      if (offset > extent.bytes || row > extent.bytes - offset) return false;
    }
    at += run.bytes;
  }
  return true;
}

// A table with some words altered, to numbers near which calculations go wrong, is refused, or leads nowhere else.
TEST_CASE("tables altered at random are refused, or their runs stay where they say", "[lies][fuzz]") {
  Keeper keeper;
  if (!keeper.canRead()) return;
  for (test::Rounds rounds(950); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    for (int i = 0; i < 200; ++i) {
      OfferedTable table(3, true);
      const device::PeerSegments offered = table.offer(1, 0);
      for (std::uint64_t changes = random() % 3 + 1; changes > 0; --changes) {
        std::uint64_t& word = table.words()[random() % table.words().size()];
        const std::uint64_t numbers[] = {random(), random() % 256, word ^ (std::uint64_t{1} << random() % 64), word + 1,
                                         word - 1, UINT64_MAX,     std::uint64_t{1} << random() % 64};
        word = numbers[random() % std::size(numbers)];
      }
      keeper.begin();
      const Result<const PeerLists::List*> list = keeper.fetchAnew(offered);
      if (!list.ok()) continue;
      const device::Segments& read = list.value()->segments();
      for (const auto buffer : {device::Buffer::kSend, device::Buffer::kRecv}) {
        for (std::uint32_t at = 0; at < read.countOf(buffer); ++at)
          REQUIRE(staysInside(read, buffer, read.of(buffer)[at]));
      }
    }
  }
}

}  // namespace
}  // namespace kolo::traffic
