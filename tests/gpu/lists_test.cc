// Lists of items on GPUs: where they may stand, and their tables, which lie in the device's memory and are uploaded
// once. tests/collectives has the results of every collective over lists.
#include "executor/cuda/lists.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <thread>
#include <vector>

#include "gpu/support.h"
#include "support/items.h"
#include "support/rank_counts.h"

namespace kolo::test {
namespace {

// The first and the last int of a buffer, in place, as two items.
koloResult_t addUpEnds(const DeviceBuffer& values, std::size_t ints, koloComm_t comm, const CudaStream& stream) {
  const koloItem_t items[] = {intItem(values.data(), values.data(), 1),
                              intItem(values.data() + ints - 1, values.data() + ints - 1, 1)};
  return koloAllReduceList(items, 2, koloSum, comm, stream.get());
}

int powerOf(int base, int exponent) { return exponent == 0 ? 1 : base * powerOf(base, exponent - 1); }

}  // namespace

TEST_CASE("lists on several streams of one communicator run in the order of their calls", "[device][lists]") {
  const int n = GENERATE_RANKS(1, 2, 3);
  const int resident = GENERATE(0, 2);
  const DeviceScene scene(mockFor(n, resident != 0));
  Ranks ranks(oneDevice(n), {.resident = resident});
  ranks.run([&](Self& self) {
    const DeviceBuffer values(100);
    const CudaStream streams[3];
    values->fill(1);
    ranks.together();
    for (int i = 0; i < 12; ++i) {
      const CudaStream& stream = streams[i % 3];
      if (i % 4 != 3) {
        EXPECT_OK(self, addUpEnds(values, 100, self.comm, stream));
        continue;
      }
      // Not over a list, between those that are.
      EXPECT_OK(self, koloAllReduce(values.data(), values.data(), 1, koloInt32, koloSum, self.comm, stream.get()));
      EXPECT_OK(self,
                koloAllReduce(values.data() + 99, values.data() + 99, 1, koloInt32, koloSum, self.comm, stream.get()));
    }
    for (const CudaStream& stream : streams) stream.synchronize();
    EXPECT(self, values->read(0) == powerOf(n, 12));
    EXPECT(self, values->read(99) == powerOf(n, 12));
    EXPECT(self, values->read(50) == 1);
  });
}

TEST_CASE("a group of lists, single calls and messages is one launch", "[mock][lists]") {
  const int lists = GENERATE(1, 2, 9);
  const MockScene scene({.multiprocessors = 4});
  Ranks ranks({0, 0});
  const std::uint64_t before = MockCuda::launches();
  ranks.run([&](Self& self) {
    const auto each = static_cast<std::size_t>(lists);
    const DeviceBuffer send(40), recv(40 * each), sum(10), message(10);
    const CudaStream stream;
    std::vector<int> values(40);
    std::iota(values.begin(), values.end(), 100 * self.rank);
    send->write(values);
    ranks.together();
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloSend(send.data(), 10, koloInt32, 1 - self.rank, self.comm, stream.get()));
    EXPECT_OK(self, koloRecv(message.data(), 10, koloInt32, 1 - self.rank, self.comm, stream.get()));
    for (std::size_t i = 0; i < each; ++i) {
      int* const to = recv.data() + 40 * i;
      const koloItem_t items[] = {intItem(send.data(), to + 20, 20), intItem(send.data() + 20, to, 20)};
      EXPECT_OK(self, koloAllReduceList(items, 2, koloSum, self.comm, stream.get()));
    }
    EXPECT_OK(self, koloAllReduce(send.data(), sum.data(), 10, koloInt32, koloMax, self.comm, stream.get()));
    EXPECT_OK(self, koloGroupEnd());
    stream.synchronize();
    bool right = true;
    for (int j = 0; j < 40; ++j) {
      for (std::size_t i = 0; i < each; ++i)
        right = right && recv.data()[40 * i + static_cast<std::size_t>((j + 20) % 40)] == 2 * j + 100;
    }
    for (int j = 0; j < 10; ++j)
      right = right && sum.data()[j] == 100 + j && message.data()[j] == 100 * (1 - self.rank) + j;
    EXPECT(self, right);
  });
  CHECK(MockCuda::launches() - before == 2);
}

TEST_CASE("a list that is captured runs at each replay, whatever lists are called meanwhile", "[device][lists]") {
  const int n = GENERATE(1, 2);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  ranks.run([&](Self& self) {
    const DeviceBuffer values(300), others(300);
    const CudaStream stream;
    values->fill(1);
    others->fill(0);
    ranks.together();
    {
      const Graph graph(
          stream,
          [&] {
            for (int i = 0; i < 2; ++i) EXPECT_OK(self, addUpEnds(values, 300, self.comm, stream));
          },
          CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
      for (std::size_t round = 0; round < 3; ++round) {
        graph.launch(stream);
        // Each is another list, so that there are new tables.
        for (std::size_t i = 2; i < 52; ++i) EXPECT_OK(self, addUpEnds(others, i + 50 * round, self.comm, stream));
      }
      graph.launch(stream);
      stream.synchronize();
    }
    EXPECT(self, values->read(0) == powerOf(n, 8));
    EXPECT(self, values->read(299) == powerOf(n, 8));
    EXPECT_OK(self, addUpEnds(values, 300, self.comm, stream));
    stream.synchronize();
    EXPECT(self, values->read(0) == powerOf(n, 9));
  });
}

// A reduction of the program's own is prepared anew for each call, so that each list has a table of its own, and those
// of earlier calls are used again when the device has done with them.
TEST_CASE("hundreds of lists may be ahead of the device", "[device][lists]") {
  constexpr int kCalls = 400;
  const DeviceScene scene(mockFor(2));
  Ranks ranks(oneDevice(2));
  ranks.run([&](Self& self) {
    const DeviceBuffer values(2 * kCalls), sums(2 * kCalls);
    const CudaStream stream;
    std::vector<int> numbers(2 * kCalls);
    std::iota(numbers.begin(), numbers.end(), 1000 * self.rank);
    values->write(numbers);
    koloRedOp_t twice{};
    const int two = 2;
    EXPECT_OK(self, koloRedOpCreatePreMulSum(&twice, &two, koloInt32, koloScalarHostImmediate, self.comm));
    ranks.together();
    if (self.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (std::size_t i = 0; i < kCalls; ++i) {
      const koloItem_t items[] = {intItem(values.data() + i, sums.data() + kCalls + i, 1),
                                  intItem(values.data() + kCalls + i, sums.data() + i, 1)};
      EXPECT_OK(self, koloAllReduceList(items, 2, twice, self.comm, stream.get()));
    }
    stream.synchronize();
    EXPECT_OK(self, koloRedOpDestroy(twice, self.comm));
    const std::vector<int> found = sums->read();
    bool right = true;
    for (int i = 0; i < 2 * kCalls; ++i)
      right = right && found[static_cast<std::size_t>(i)] == 4 * ((i + kCalls) % (2 * kCalls)) + 2000;
    EXPECT(self, right);
  });
}

TEST_CASE("a list that is new allocates nothing for which the driver may wait", "[mock][queues][lists]") {
  const MockScene scene({.multiprocessors = 8, .blockThreads = 1, .allocationWaits = true});
  constexpr std::size_t kLists = 40;
  const DeviceBuffer values[2] = {DeviceBuffer(kLists + 2), DeviceBuffer(kLists + 2)};
  const CudaStream streams[2];
  for (const DeviceBuffer& value : values) value->fill(1);
  const Ranks ranks(oneDevice(2));
  const auto call = [&](int rank) {
    for (std::size_t i = 2; i < kLists + 2; ++i)
      CHECK_CODE(koloSuccess, addUpEnds(values[rank], i, ranks[rank], streams[rank]));
  };
  CHECK(endsSoon([&] { call(0); }));
  call(1);
  for (const CudaStream& stream : streams) stream.synchronize();
  for (const DeviceBuffer& value : values) {
    CHECK(value->read(1) == 2);
    CHECK(value->read(kLists) == 2);
    CHECK(value->read(kLists + 1) == 1);
  }
}

// The mock's memory can be read by anybody; a GPU's cannot by the host.
TEST_CASE("the host does not read the table of a list", "[mock][lists]") {
  constexpr std::uint64_t lengths[4] = {};
  device::Work work;
  work.ranks = 4;
  for (device::Layout* const layout : {&work.sendLayout, &work.recvLayout}) layout->counts = layout->displs = lengths;
  CHECK(executor::cuda::Lists::arrayBytes(work) == 4 * sizeof lengths);
  const device::Segments inTable;
  work.segments = &inTable;
  CHECK(executor::cuda::Lists::arrayBytes(work) == 0);
}

TEST_CASE("an item that does not belong on the GPU is refused by its number", "[mock][lists]") {
  const MockScene scene({.devices = 2, .multiprocessors = 2});
  const Ranks ranks({0});
  const DeviceBuffer mine(12), elsewhere(4, 1);
  const CudaStream stream;
  int host[4] = {};
  const std::uint64_t before = MockCuda::launches();
  const auto call = [&](const koloItem_t& second) {
    const koloItem_t items[] = {intItem(mine.data(), mine.data() + 4, 4), second};
    return koloAllGatherList(items, 2, ranks[0], stream.get());
  };
  CHECK(call(intItem(mine.data(), host, 2)) == koloInvalidPointer);
  CHECK(messageHas("item 1: recvbuf is "));
  CHECK(messageHas("host memory: expected memory of device 0"));
  CHECK(call(intItem(host, mine.data() + 8, 2)) == koloInvalidPointer);
  CHECK(messageHas("item 1: sendbuf is "));
  CHECK(call(intItem(elsewhere.data(), mine.data() + 8, 2)) == koloInvalidPointer);
  CHECK(messageHas("memory of device 1: expected memory of device 0"));
  CHECK(call(intItem(host, host, 0)) == koloSuccess);  // has no elements
  stream.synchronize();
  CHECK(MockCuda::launches() - before == 1);
}

}  // namespace kolo::test
