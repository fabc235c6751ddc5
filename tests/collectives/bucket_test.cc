// Lists as buckets have them: ten thousand items at once, more lists than are remembered, and what an executor is given
// of a bucket: the memory of its items, and no other.

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/prepared_operations.h"
#include "comm/host_backend.h"
#include "device/segments.h"
#include "executor/context.h"
#include "support/items.h"
#include "world.h"

namespace kolo::tests {
namespace {

using test::intItem;

// Calls body(rank) on each rank, and checks that no rank has a fault to tell.
void expectOnEach(World& world, const std::function<std::string(int)>& body) {
  std::vector<std::string> faults(static_cast<std::size_t>(world.ranks()));
  world.run([&](int rank) { faults[static_cast<std::size_t>(rank)] = body(rank); });
  for (const std::string& fault : faults) CHECK(fault == "");
}

// Whether the kernel lets ranks read tables of each other's lists.
bool canReadByKernel() {
  int from = 7, to = 0;
  const iovec local{&to, sizeof to}, remote{&from, sizeof from};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(sizeof to) && to == 7;
}

// Ten thousand items of ints, some of them empty. Behind each buffer is an int that belongs to none.
class ManyItems {
 public:
  static constexpr std::size_t kItems = 10'000;

  // blocks: of each item's receive buffer.
  ManyItems(int* begin, std::size_t blocks) : blocks_(blocks), begin_(begin), end_(begin) {
    for (std::size_t i = 0; i < kItems; ++i) {
      const std::size_t count = i % 97 == 0 ? 0 : 1 + i * 5 % 7;
      items_.push_back(intItem(end_, end_ + count + 1, count));
      end_ += count + 1 + count * blocks + 1;
    }
  }
  const std::vector<koloItem_t>& items() const { return items_; }
  int* end() const { return end_; }

  void fill(int rank, int round) const {
    std::fill(begin_, end_, kNobodys);
    for (std::size_t i = 0; i < kItems; ++i) {
      for (std::size_t k = 0; k < items_[i].count; ++k) sendOf(i)[k] = valueOf(rank, round, i, k);
    }
  }
  // "", or what is wrong with what a rank has received. isSum: of all ranks' items; else these one behind the other.
  std::string difference(int rank, int ranks, int round, bool isSum) const {
    for (std::size_t i = 0; i < kItems; ++i) {
      const std::size_t count = items_[i].count;
      const auto* const recv = static_cast<const int*>(items_[i].recvbuf);
      if (sendOf(i)[count] != kNobodys || recv[count * blocks_] != kNobodys)
        return fmt::format("rank {}, round {}: an int behind item {} was changed", rank, round, i);
      for (std::size_t k = 0; k < count * blocks_; ++k) {
        const int wanted =
            isSum ? sumOf(ranks, round, i, k) : valueOf(static_cast<int>(k / count), round, i, k % count);
        if (recv[k] != wanted)
          return fmt::format("rank {}, round {}: item {}, element {}: {} instead of {}", rank, round, i, k, recv[k],
                             wanted);
      }
    }
    return {};
  }

 private:
  static constexpr int kNobodys = -1;

  static int valueOf(int rank, int round, std::size_t item, std::size_t element) {
    return static_cast<int>((item * 11 + element * 3) % 100'003) + 1'000'000 * round + 10'000'000 * rank;
  }
  static int sumOf(int ranks, int round, std::size_t item, std::size_t element) {
    int sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += valueOf(rank, round, item, element);
    return sum;
  }
  int* sendOf(std::size_t item) const { return static_cast<int*>(const_cast<void*>(items_[item].sendbuf)); }

  std::size_t blocks_;
  int *begin_, *end_;
  std::vector<koloItem_t> items_;
};

// Three lists in turn, `rounds` times, with other numbers each time.
std::string callManyItems(World& world, int rank, int rounds) {
  auto* const window = reinterpret_cast<int*>(world.window(rank));
  const auto ranks = static_cast<std::size_t>(world.ranks());
  const ManyItems gathered(window, ranks), others(gathered.end(), ranks), summed(others.end(), 1);
  if (summed.end() > window + world.windowBytes() / sizeof(int)) return "the window is too short";
  for (int round = 0; round < rounds; ++round) {
    for (const ManyItems* const list : {&gathered, &others, &summed}) {
      const bool isSum = list == &summed;
      const std::vector<koloItem_t>& items = list->items();
      const koloComm_t comm = world.comm(rank);
      list->fill(rank, round);
      const koloResult_t result = isSum ? koloAllReduceList(items.data(), items.size(), koloSum, comm, nullptr)
                                        : koloAllGatherList(items.data(), items.size(), comm, nullptr);
      if (result != koloSuccess) return koloGetLastError(nullptr);
      std::string fault = list->difference(rank, world.ranks(), round, isSum);
      if (!fault.empty()) return fault;
    }
  }
  return {};
}

TEST_CASE("S1.5 ten thousand items in one list, and again in turn with ten thousand others") {
  for (const std::size_t registered : {std::size_t{SIZE_MAX}, std::size_t{0}}) {
    INFO(registered << " bytes registered");
    World world({.ranks = 3, .registeredBytes = registered});
    expectOnEach(world, [&](int rank) { return callManyItems(world, rank, 2); });
  }
}

// The items as a hundred lists in turn, twice.
std::string callBuckets(World& world, int rank) {
  constexpr std::size_t kBuckets = 100, kEach = ManyItems::kItems / kBuckets;
  const ManyItems list(reinterpret_cast<int*>(world.window(rank)), 1);
  for (int round = 0; round < 2; ++round) {
    list.fill(rank, round);
    for (std::size_t first = 0; first < ManyItems::kItems; first += kEach) {
      if (koloAllReduceList(list.items().data() + first, kEach, koloSum, world.comm(rank), nullptr) != koloSuccess)
        return koloGetLastError(nullptr);
    }
    if (std::string fault = list.difference(rank, world.ranks(), round, true); !fault.empty()) return fault;
  }
  return {};
}

TEST_CASE("S1.5 ten thousand items in one list and in a hundred, again: over tcp links and over posted ones") {
  for (const bool posts : {false, true}) {
    INFO("over posted links: " << posts);
    WorldOptions options;
    if (posts) options.latePerHost = 1;
    else options.transports = "tcp";
    World world(options);
    expectOnEach(world, [&](int rank) { return callManyItems(world, rank, 2); });
    expectOnEach(world, [&](int rank) { return callBuckets(world, rank); });
  }
}

// Forgotten lists are laid out anew, where tables of others were: a peer that keeps tables must not take one for
// another.
TEST_CASE("S1.5 more different lists than are remembered, again and in turn: peers read each one's own table") {
  constexpr std::size_t kLists = collectives::PreparedOperations::kMost + 50, kCount = 700;
  constexpr int kTurns = 2;
  const bool canRead = canReadByKernel();
  const UseExecutor host(0);
  World world(WorldOptions{});
  expectOnEach(world, [&](int rank) -> std::string {
    const koloComm_t comm = world.comm(rank);
    if (koloCommSetAlgorithm(comm, "all_gather:one_shot") != koloSuccess) return koloGetLastError(nullptr);
    const auto ranks = static_cast<std::size_t>(world.ranks());
    int* const send = reinterpret_cast<int*>(world.window(rank));
    int *const first = send + kLists + 2 * kCount, *const second = first + ranks * kCount;
    for (std::size_t i = 0; i < kLists + 2 * kCount; ++i) send[i] = 100'000 * rank + static_cast<int>(i);
    for (std::size_t call = 0; call < kTurns * kLists; ++call) {
      const std::size_t from = call % kLists;  // where the list begins, by which it differs from the others
      const koloItem_t items[] = {intItem(send + from, second, kCount), intItem(send + from + kCount, first, kCount)};
      std::fill_n(first, 2 * ranks * kCount, -1);
      if (koloAllGatherList(items, 2, comm, nullptr) != koloSuccess) return koloGetLastError(nullptr);
      if (canRead && !takeTrace().zeroCopy) return fmt::format("rank {}, list {}: went through staging", rank, from);
      for (std::size_t k = 0; k < ranks * kCount; ++k) {
        const int wanted = static_cast<int>(100'000 * (k / kCount) + from + k % kCount);
        if (second[k] == wanted && first[k] == wanted + static_cast<int>(kCount)) continue;
        return fmt::format("rank {}, list {}, element {}: {} and {} where {} was expected", rank, from, k, second[k],
                           first[k], wanted);
      }
    }
    return {};
  });
}

// ---- what an executor is given

using Memory = std::pair<const unsigned char*, std::uint64_t>;  // from where on, and how many bytes

// The last list of the calling thread.
struct NotedList {
  std::vector<Memory> read, written;  // by their addresses
  bool isZeroCopy = false;            // with some peer
};
thread_local NotedList lastNoted;

// Has lists done by the host executor, and notes what these are.
class ListNoter final : public executor::Executor {
 public:
  ListNoter() { comm::HostBackend::useExecutor(this); }
  ~ListNoter() override { comm::HostBackend::useExecutor(nullptr); }

  void run(const device::Work& work, const executor::Context& context) override {
    lastNoted = {};
    if (work.segments != nullptr) {
      lastNoted.read = memoryOf(*work.segments, device::Buffer::kSend);
      lastNoted.written = memoryOf(*work.segments, device::Buffer::kRecv);
    }
    const std::uint64_t before = endedDirectly(work);
    executor::hostExecutor().run(work, context);
    lastNoted.isZeroCopy = endedDirectly(work) != before;
  }

 private:
  static std::vector<Memory> memoryOf(const device::Segments& list, device::Buffer buffer) {
    std::vector<Memory> all;
    for (std::uint32_t i = 0; i < list.countOf(buffer); ++i) {
      const device::Extent extent = device::extentOf(list, list.of(buffer)[i]);
      all.emplace_back(extent.begin, extent.bytes);
    }
    std::sort(all.begin(), all.end());
    return all;
  }
  // Only where a rank uses another's buffer do the two end by counting.
  static std::uint64_t endedDirectly(const device::Work& work) {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < work.ranks; ++rank)
      sum += work.channel.links[rank].finished + work.channel.links[rank].taken;
    return sum;
  }
};

// An array of which the elements of a column follow each other.
constexpr std::size_t kTurnedRows = 20, kTurnedColumns = 30;
constexpr std::size_t kTurnedShape[] = {kTurnedRows, kTurnedColumns};
constexpr std::ptrdiff_t kTurnedStrides[] = {1, kTurnedRows};
constexpr koloArray_t kTurned{2, kTurnedShape, kTurnedStrides};

// A bucket of several datatypes in a rank's window. In one item elements are converted on the way, and one is an array
// by columns on the side where it is one block.
class MixedBucket {
 public:
  MixedBucket(unsigned char* window, int rank, int ranks, bool gathers)
      : at_(window), rank_(rank), ranks_(static_cast<std::size_t>(ranks)), gathers_(gathers) {
    add(koloInt32, koloInt32, 701);
    add(koloUint8, koloUint8, 333);
    add(koloFloat32, koloBfloat16, 500);
    add(koloFloat32, koloFloat32, kTurnedRows * kTurnedColumns, &kTurned);
  }
  const std::vector<koloItem_t>& items() const { return items_; }

  void fill() const {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      for (std::size_t k = 0; k < (gathers_ ? 1 : ranks_) * part.count; ++k)
        put(part.datatype, gathers_ ? placeInOne(part, k) : placeInAll(part, k), valueOf(rank_, i, k));
      for (std::size_t k = 0; k < (gathers_ ? ranks_ : 1) * part.count; ++k)
        put(part.datatype, gathers_ ? placeInAll(part, k) : placeInOne(part, k), 99);
    }
  }
  // The gathered items, or the rank's part of their sums.
  std::string difference() const {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      for (std::size_t k = 0; k < (gathers_ ? ranks_ : 1) * part.count; ++k) {
        int wanted = gathers_ ? valueOf(static_cast<int>(k / part.count), i, k % part.count) : 0;
        for (std::size_t rank = 0; rank < ranks_ && !gathers_; ++rank)
          wanted += valueOf(static_cast<int>(rank), i, static_cast<std::size_t>(rank_) * part.count + k);
        const int found = get(part.datatype, gathers_ ? placeInAll(part, k) : placeInOne(part, k));
        if (found != wanted)
          return fmt::format("rank {}: item {}, element {}: {} instead of {}", rank_, i, k, found, wanted);
      }
    }
    return {};
  }
  // Where the items are: on the side of one block, and on that of a block for each rank.
  std::vector<Memory> ones() const {
    std::vector<Memory> all;
    for (const Part& part : parts_) all.emplace_back(part.one, bytesOf(part));
    std::sort(all.begin(), all.end());
    return all;
  }
  std::vector<Memory> blocks() const {
    std::vector<Memory> all;
    for (const Part& part : parts_) {
      for (std::size_t block = 0; block < ranks_; ++block)
        all.emplace_back(part.all + block * bytesOf(part), bytesOf(part));
    }
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  struct Part {
    koloDataType_t datatype;
    std::size_t count;  // of a block
    unsigned char *one, *all;
    bool isTurned;  // in `one`
  };

  void add(koloDataType_t datatype, koloDataType_t transfer, std::size_t count, const koloArray_t* array = nullptr) {
    Part part{datatype, count, nullptr, nullptr, array != nullptr};
    part.one = take(bytesOf(part));
    part.all = take(bytesOf(part) * ranks_);
    parts_.push_back(part);
    koloItem_t item{};
    item.sendbuf = gathers_ ? part.one : part.all;
    item.recvbuf = gathers_ ? part.all : part.one;
    item.count = count;
    item.sendtype = item.recvtype = datatype;
    item.transfertype = transfer;
    (gathers_ ? item.sendarray : item.recvarray) = array;
    items_.push_back(item);
  }
  unsigned char* take(std::size_t bytes) {
    unsigned char* const begin = at_;
    at_ += (bytes + 63) / 64 * 64 + 64;  // so that none touches another
    return begin;
  }
  static std::size_t bytesOf(const Part& part) { return part.count * koloDataTypeSize(part.datatype); }
  static unsigned char* placeInAll(const Part& part, std::size_t element) {
    return part.all + element * koloDataTypeSize(part.datatype);
  }
  static unsigned char* placeInOne(const Part& part, std::size_t element) {
    const std::size_t at = part.isTurned ? element / kTurnedColumns + element % kTurnedColumns * kTurnedRows : element;
    return part.one + at * koloDataTypeSize(part.datatype);
  }
  static int valueOf(int rank, std::size_t item, std::size_t element) {
    return static_cast<int>((static_cast<std::size_t>(rank) * 5 + item * 3 + element * 7) % 23);
  }
  static void put(koloDataType_t datatype, unsigned char* at, int value) {
    const auto real = static_cast<float>(value);
    if (datatype == koloUint8) *at = static_cast<unsigned char>(value);
    else if (datatype == koloInt32) std::memcpy(at, &value, sizeof value);
    else std::memcpy(at, &real, sizeof real);
  }
  static int get(koloDataType_t datatype, const unsigned char* at) {
    int value = *at;
    float real = 0;
    if (datatype == koloInt32) std::memcpy(&value, at, sizeof value);
    if (datatype == koloFloat32) {
      std::memcpy(&real, at, sizeof real);
      value = static_cast<int>(real);
    }
    return value;
  }

  unsigned char* at_;
  int rank_;
  std::size_t ranks_;
  bool gathers_;
  std::vector<Part> parts_;
  std::vector<koloItem_t> items_;
};

std::string callMixedBucket(World& world, int rank, bool gathers, bool isZeroCopy) {
  const koloComm_t comm = world.comm(rank);
  if (koloCommSetAlgorithm(comm, gathers ? "all_gather:one_shot" : "reduce_scatter:one_shot") != koloSuccess)
    return koloGetLastError(nullptr);
  const MixedBucket bucket(world.window(rank), rank, world.ranks(), gathers);
  const std::vector<koloItem_t>& items = bucket.items();
  for (int turn = 0; turn < 2; ++turn) {  // the second time it is a repeat
    bucket.fill();
    const koloResult_t result = gathers ? koloAllGatherList(items.data(), items.size(), comm, nullptr)
                                        : koloReduceScatterList(items.data(), items.size(), koloSum, comm, nullptr);
    if (result != koloSuccess) return koloGetLastError(nullptr);
    if (lastNoted.read != (gathers ? bucket.ones() : bucket.blocks()))
      return fmt::format("rank {}, turn {}: what is read is not the items' memory", rank, turn);
    if (lastNoted.written != (gathers ? bucket.blocks() : bucket.ones()))
      return fmt::format("rank {}, turn {}: what is written is not the items' memory", rank, turn);
    if (isZeroCopy && !lastNoted.isZeroCopy) return fmt::format("rank {}, turn {}: went through staging", rank, turn);
    if (std::string fault = bucket.difference(); !fault.empty()) return fault;
  }
  return {};
}

TEST_CASE("S2.8 a bucket is not packed: executors read and write the items' own memory, and peers read it there") {
  const bool canRead = canReadByKernel();
  for (const bool gathers : {true, false}) {
    for (const bool inWindows : {true, false}) {
      INFO(gathers << " " << inWindows);
      const ListNoter noter;
      WorldOptions options;
      options.ranks = 3;
      if (!inWindows) options.registeredBytes = 0;
      World world(options);
      expectOnEach(world, [&](int rank) { return callMixedBucket(world, rank, gathers, inWindows && canRead); });
    }
  }
}

}  // namespace
}  // namespace kolo::tests
