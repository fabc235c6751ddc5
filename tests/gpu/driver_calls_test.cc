// What an operation costs the calling thread before anything runs on the device: calls of the driver, switches of the
// context, and bytes of parameters that the driver copies. The numbers are kept here, and may only sink: a larger one
// fails, and so does a smaller one, until it is written down.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/support.h"
#include "support/items.h"

namespace kolo::test {
namespace {

struct Cost {
  std::uint64_t calls = 0, switches = 0, bytes = 0, launches = 0;
  std::string names;
};

Cost costOf(const std::function<koloResult_t()>& call) {
  const std::map<std::string, std::uint64_t> before = MockCuda::calls();
  const std::uint64_t bytes = MockCuda::parameterBytes();
  const koloResult_t result = call();
  Cost cost{.bytes = MockCuda::parameterBytes() - bytes};
  for (const auto& [name, count] : MockCuda::calls()) {
    const std::uint64_t made = count - before.at(name);
    if (made == 0) continue;
    cost.calls += made;
    if (name == "cuCtxPushCurrent") cost.switches += made;
    if (name.starts_with("cuLaunchKernel")) cost.launches += made;
    cost.names += " " + (made > 1 ? std::to_string(made) + " " : std::string()) + name;
  }
  REQUIRE_OK(result);
  return cost;
}

void expectCost(const char* what, const Cost& cost, std::uint64_t calls, std::uint64_t switches, std::uint64_t bytes) {
  std::printf("%-48s %2lu calls, %lu switches, %4lu bytes of parameters:%s\n", what,
              static_cast<unsigned long>(cost.calls), static_cast<unsigned long>(cost.switches),
              static_cast<unsigned long>(cost.bytes), cost.names.c_str());
  INFO(what << ":" << cost.names);
  CHECK(cost.calls == calls);
  CHECK(cost.switches == switches);
  CHECK(cost.bytes == bytes);
}

// Two ranks whose operations one thread calls, one rank's after the other's: a launch waits for nobody.
class Pair {
 public:
  explicit Pair(int resident = 0) : ranks_(oneDevice(2), {.resident = resident}) {}

  const Ranks& ranks() const { return ranks_; }
  koloComm_t comm(int rank) const { return ranks_[rank]; }
  int* data(int rank, std::size_t at = 0) const { return (rank == 0 ? data_ : otherData_).data() + at; }
  int* result(int rank) const { return (rank == 0 ? result_ : otherResult_).data(); }
  const CudaStream& stream(int rank) const { return streams_[rank]; }
  void synchronize() const {
    for (const CudaStream& stream : streams_) stream.synchronize();
  }

  // An all_reduce of data(), in place unless it goes to result().
  koloResult_t allReduce(int rank, bool apart = false) const {
    return koloAllReduce(data(rank), apart ? result(rank) : data(rank), 16, koloInt32, koloSum, comm(rank),
                         stream(rank).get());
  }

  // What rank 0's call costs; rank 1 calls it behind. Both have called it before: buffers, plans and kernels are there.
  Cost costOf(const std::function<koloResult_t(int rank)>& call, bool synchronizes = true) const {
    for (int i = 0; i < 2; ++i) {
      for (int rank = 0; rank < 2; ++rank) REQUIRE_OK(call(rank));
      if (synchronizes) synchronize();
    }
    const Cost cost = test::costOf([&] { return call(0); });
    REQUIRE_OK(call(1));
    synchronize();
    return cost;
  }

 private:
  const CudaStream streams_[2];
  const DeviceBuffer data_{64}, otherData_{64}, result_{64}, otherResult_{64};
  const Ranks ranks_;
};

constexpr MockCuda kRoomy{.multiprocessors = 24, .blockThreads = 2};

}  // namespace

TEST_CASE("what an operation that is launched costs in calls of the driver", "[mock][calls]") {
  const MockScene scene(kRoomy);
  const Pair pair;
  const auto inPlace = [&](int rank) { return pair.allReduce(rank); };
  const auto apart = [&](int rank) { return pair.allReduce(rank, true); };
  const auto broadcast = [&](int rank) {
    return koloBroadcast(pair.data(rank), pair.data(rank), 16, koloInt32, 0, pair.comm(rank), pair.stream(rank).get());
  };
  const auto send = [&](int rank) {
    return rank == 0 ? koloSend(pair.data(0), 16, koloInt32, 1, pair.comm(0), pair.stream(0).get())
                     : koloRecv(pair.data(1), 16, koloInt32, 0, pair.comm(1), pair.stream(1).get());
  };
  const auto receive = [&](int rank) {
    return rank == 0 ? koloRecv(pair.data(0), 16, koloInt32, 1, pair.comm(0), pair.stream(0).get())
                     : koloSend(pair.data(1), 16, koloInt32, 0, pair.comm(1), pair.stream(1).get());
  };
  expectCost("all_reduce, in place", pair.costOf(inPlace), 7, 1, 864);
  expectCost("all_reduce, two buffers", pair.costOf(apart), 8, 1, 864);
  expectCost("broadcast", pair.costOf(broadcast), 7, 1, 864);
  expectCost("send", pair.costOf(send), 7, 1, 864);
  expectCost("recv", pair.costOf(receive), 7, 1, 864);
  expectCost("all_reduce, behind another", pair.costOf(inPlace, false), 7, 1, 864);
}

TEST_CASE("what an operation with windows costs in calls of the driver", "[mock][calls]") {
  const MockScene scene(kRoomy);
  const Pair pair;
  koloWindow_t windows[2][2] = {};
  pair.ranks().run([&](Self& self) {
    EXPECT_OK(self, koloWindowRegister(self.comm, pair.data(self.rank), 64 * sizeof(int), &windows[self.rank][0]));
    EXPECT_OK(self, koloWindowRegister(self.comm, pair.result(self.rank), 64 * sizeof(int), &windows[self.rank][1]));
  });
  const auto call = [&](int rank) { return pair.allReduce(rank, true); };
  expectCost("all_reduce, two windows", pair.costOf(call), 8, 1, 864);
}

TEST_CASE("what a group costs in calls of the driver", "[mock][calls]") {
  const MockScene scene(kRoomy);
  const Pair pair;
  const auto group = [](const std::function<koloResult_t()>& calls) {
    REQUIRE_OK(koloGroupStart());
    REQUIRE_OK(calls());
    return koloGroupEnd();
  };
  const auto add = [&](int rank, std::size_t at) {
    return koloAllReduce(pair.data(rank, at), pair.data(rank, at), 1, koloInt32, koloSum, pair.comm(rank),
                         pair.stream(rank).get());
  };
  const auto several = [&](std::size_t count) {
    return [&, count](int rank) {
      return group([&] {
        for (std::size_t at = 0; at < count; ++at) REQUIRE_OK(add(rank, at));
        return koloSuccess;
      });
    };
  };
  const auto exchange = [&](int rank) {
    return group([&] {
      REQUIRE_OK(koloSend(pair.data(rank), 16, koloInt32, 1 - rank, pair.comm(rank), pair.stream(rank).get()));
      return koloRecv(pair.result(rank), 16, koloInt32, 1 - rank, pair.comm(rank), pair.stream(rank).get());
    });
  };
  expectCost("group of a send and a receive", pair.costOf(exchange), 14, 3, 864);
  expectCost("group of 2 all_reduces", pair.costOf(several(2)), 14, 3, 864);
  expectCost("group of 8 all_reduces", pair.costOf(several(8)), 38, 9, 3320);
  expectCost("group of 9 all_reduces, a list apart", pair.costOf(several(9)), 46, 10, 864);
}

// A list that has been called before is uploaded no more, and asks the driver about each item's buffers alone.
TEST_CASE("S1.5 S2.8 what a list costs in calls of the driver: one launch", "[mock][calls]") {
  const MockScene scene(kRoomy);
  const Pair pair;
  const auto item = [&](int rank, std::size_t at) {
    koloItem_t result{};
    result.sendbuf = result.recvbuf = pair.data(rank, at);
    result.count = 8;
    result.sendtype = result.transfertype = result.recvtype = koloInt32;
    return result;
  };
  const auto list = [&](int rank) {
    const koloItem_t items[] = {item(rank, 0), item(rank, 16), item(rank, 32)};
    return koloAllReduceList(items, 3, koloSum, pair.comm(rank), pair.stream(rank).get());
  };
  const auto gather = [&](int rank) {  // blocks of several lengths
    const std::size_t counts[] = {1, 7};
    koloItem_t divided{};
    divided.sendbuf = pair.data(rank);
    divided.recvbuf = pair.result(rank);
    divided.counts = counts;
    divided.sendtype = divided.transfertype = divided.recvtype = koloInt32;
    return koloAllGatherList(&divided, 1, pair.comm(rank), pair.stream(rank).get());
  };
  const auto several = [&](int count) {
    return [&, count](int rank) {
      REQUIRE_OK(koloGroupStart());
      for (int i = 0; i < count; ++i) REQUIRE_OK(list(rank));
      return koloGroupEnd();
    };
  };
  const Cost ofList = pair.costOf(list), ofGather = pair.costOf(gather);
  expectCost("all_reduce over a list of 3 items, in place", ofList, 9, 1, 864);
  CHECK(ofList.launches == 1);
  expectCost("all_gather over a list, with counts", ofGather, 8, 1, 864);
  CHECK(ofGather.launches == 1);
  expectCost("group of 2 all_reduces over lists", pair.costOf(several(2)), 18, 3, 864);
  expectCost("group of 3 all_reduces over lists, a list apart", pair.costOf(several(3)), 28, 4, 864);
}

TEST_CASE("S1.5 a list of 10,000 items, and 100 lists in turn, are uploaded once", "[mock][calls]") {
  const std::size_t lists = GENERATE(1u, 100u);
  const std::size_t each = lists == 1 ? 10'000 : 50;
  const MockScene scene(kRoomy);
  const Pair pair;
  const DeviceBuffer values[2] = {DeviceBuffer(2 * lists * each), DeviceBuffer(2 * lists * each)};
  for (const DeviceBuffer& value : values) value->fill(1);
  // Every other int is an item, in place. Returns how many uploads the calls made.
  const auto callAll = [&] {
    const std::uint64_t before = MockCuda::calls().at("cuMemcpyHtoDAsync");
    for (std::size_t i = 0; i < lists; ++i) {
      for (int rank = 0; rank < 2; ++rank) {
        std::vector<koloItem_t> items;
        for (std::size_t at = 2 * i * each; items.size() < each; at += 2)
          items.push_back(intItem(values[rank].data() + at, values[rank].data() + at, 1));
        REQUIRE_OK(koloAllReduceList(items.data(), each, koloSum, pair.comm(rank), pair.stream(rank).get()));
      }
    }
    const std::uint64_t uploads = MockCuda::calls().at("cuMemcpyHtoDAsync") - before;
    pair.synchronize();
    return uploads;
  };
  CHECK(callAll() == 2 * lists);  // each rank's table of each list
  for (int i = 0; i < 2; ++i) CHECK(callAll() == 0);
  for (const DeviceBuffer& value : values) {
    std::vector<int> wanted;
    while (wanted.size() < 2 * lists * each) wanted.insert(wanted.end(), {8, 1});
    CHECK(value->read() == wanted);
  }
}

TEST_CASE("what an operation that is captured costs in calls of the driver", "[mock][calls]") {
  const MockScene scene(kRoomy);
  const Pair pair;
  const auto call = [&](int rank) { return pair.allReduce(rank); };
  (void)pair.costOf(call);
  Cost first, second;
  const Graph mine(
      pair.stream(0),
      [&] {
        first = costOf([&] { return call(0); });
        second = costOf([&] { return call(0); });
      },
      CU_STREAM_CAPTURE_MODE_RELAXED);
  const Graph others(
      pair.stream(1),
      [&] {
        for (int i = 0; i < 2; ++i) REQUIRE_OK(call(1));
      },
      CU_STREAM_CAPTURE_MODE_RELAXED);
  mine.launch(pair.stream(0));
  others.launch(pair.stream(1));
  pair.synchronize();
  expectCost("all_reduce, captured, the first of a graph", first, 11, 1, 864);
  expectCost("all_reduce, captured, the next", second, 10, 1, 864);
}

// Of a chain of launches: a wait for what was launched before the graph, the kernels, and one record.
TEST_CASE("what is recorded behind captured launches is not waited for by the next one", "[mock][calls]") {
  const MockScene scene(kRoomy);
  const Pair pair;
  const auto call = [&](int rank) { return pair.allReduce(rank); };
  (void)pair.costOf(call);
  const std::size_t launches = GENERATE(1u, 2u, 5u);
  CUgraph graphs[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    CUDA_OK(cudaForTests().cuStreamBeginCapture(pair.stream(rank).raw(), CU_STREAM_CAPTURE_MODE_RELAXED));
    for (std::size_t i = 0; i < launches; ++i) REQUIRE_OK(call(rank));
    CUDA_OK(cudaForTests().cuStreamEndCapture(pair.stream(rank).raw(), &graphs[rank]));
  }
  for (const CUgraph graph : graphs) {
    CHECK(MockCuda::nodesInARow(graph) == 1 + launches + 1);
    CUDA_OK(cudaForTests().cuGraphDestroy(graph));
  }
}

TEST_CASE("launches are in the remote domain of memory synchronisation, where a device has several", "[mock][calls]") {
  const int domains = GENERATE(0, 1, 4);
  MockCuda properties = kRoomy;
  properties.syncDomains = domains;
  const MockScene scene(properties);
  const Pair pair;
  for (int rank = 0; rank < 2; ++rank) REQUIRE_OK(pair.allReduce(rank));
  pair.synchronize();
  CHECK(MockCuda::launches() > 0);
  CHECK(MockCuda::remoteLaunches() == (domains > 1 ? MockCuda::launches() : 0));
}

TEST_CASE("what an operation of a resident kernel costs in calls of the driver", "[mock][calls]") {
  const std::vector<std::pair<const char*, std::string>> settings = {{"KOLO_TEST_RESIDENT_IDLE_US", "1000000"}};
  const SettingsScope stays(settings);
  const MockScene scene(kRoomy);
  const int resident = GENERATE(1, 2);
  const Pair pair(resident);
  const auto call = [&](int rank) { return pair.allReduce(rank); };
  const Cost first = pair.costOf(call);
  REQUIRE_OK(call(0));
  const Cost next = costOf([&] { return call(0); });
  for (int i = 0; i < 2; ++i) REQUIRE_OK(call(1));
  pair.synchronize();
  if (resident == 1) {
    expectCost("all_reduce, resident, on an idle stream", first, 11, 1, 0);
    expectCost("all_reduce, resident, behind another: launched", next, 10, 1, 864);
  } else {
    expectCost("all_reduce, resident 2, on an idle stream", first, 8, 1, 0);
    expectCost("all_reduce, resident 2, behind another", next, 8, 1, 0);
  }
}

TEST_CASE("what looking for errors costs in calls of the driver", "[mock][calls]") {
  const MockScene scene(kRoomy);
  const Pair pair;
  const auto call = [&](int rank) { return pair.allReduce(rank); };
  (void)pair.costOf(call);
  koloResult_t result = koloSuccess;
  expectCost("koloCommGetAsyncError", costOf([&] { return koloCommGetAsyncError(pair.comm(0), &result); }), 5, 1, 0);
}

TEST_CASE("a buffer's address that is freed and allocated anew is judged anew", "[mock]") {
  const MockScene scene({.devices = 2});
  const Ranks ranks({0});
  const CudaStream stream;
  constexpr std::size_t kBytes = 3 << 20;
  auto before = std::make_unique<DeviceMemory>(0, kBytes);
  unsigned char* const address = before->data();
  const auto call = [&] { return koloAllReduce(address, address, 1, koloInt32, koloSum, ranks[0], stream.get()); };
  REQUIRE_OK(call());
  stream.synchronize();
  before.reset();
  std::vector<std::unique_ptr<DeviceMemory>> after;
  do {
    after.push_back(std::make_unique<DeviceMemory>(1, kBytes));
  } while (after.back()->data() != address && after.size() < 64);
  REQUIRE(after.back()->data() == address);
  CHECK_CODE(koloInvalidPointer, call());
  CHECK(std::string(koloGetLastError(nullptr)).find("memory of device 1") != std::string::npos);
}

// The address sanitizer's allocator does not give the mock the same address again.
#ifndef __SANITIZE_ADDRESS__
TEST_CASE("a stream's handle that is destroyed and made anew is judged anew", "[mock]") {
  const MockScene scene({.devices = 2});
  const Ranks ranks({0});
  const DeviceBuffer value(1);
  auto before = std::make_unique<CudaStream>(0);
  const CUstream handle = before->raw();
  const auto call = [&] {
    return koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0],
                         reinterpret_cast<koloStream_t>(handle));
  };
  REQUIRE_OK(call());
  before->synchronize();
  before.reset();
  std::vector<std::unique_ptr<CudaStream>> after;
  do {
    after.push_back(std::make_unique<CudaStream>(1));
  } while (after.back()->raw() != handle && after.size() < 64);
  REQUIRE(after.back()->raw() == handle);
  CHECK_CODE(koloInvalidArgument, call());
  CHECK(std::string(koloGetLastError(nullptr)).find("device 1") != std::string::npos);
}
#endif

}  // namespace kolo::test
