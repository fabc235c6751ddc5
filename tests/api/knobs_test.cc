// Conditions of overrides, the line that is written for each call, and device strings.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/ranks.h"
#include "support/settings.h"

using namespace kolo::test;

namespace {

std::string planned(koloComm_t comm, size_t count, koloRedOp_t op, int registered) {
  koloPlan_t plan{};
  REQUIRE_OK(koloCommGetPlan(comm, koloCollectiveAllReduce, count, koloFloat32, op, registered, &plan));
  return plan.algorithm;
}

std::string textOf(const std::string& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// The file to which a process with these settings writes its lines: it has the name from them.
std::string debugFile(const char* name) {
  const char* const given = std::getenv("KOLO_DEBUG_FILE");
  return given != nullptr ? given : std::string("/tmp/kolo-") + name + "-" + std::to_string(getpid());
}

// How often the text has the line.
int countIn(const std::string& text, const std::string& line) {
  int found = 0;
  for (size_t at = text.find(line); at != std::string::npos; at = text.find(line, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("S0.1 koloCommSetAlgorithm forces an algorithm by ranks, elements and reduction") {
  World world(3);
  world.run([](Self& self) {
    const char* const rule = "all_reduce:one_shot,all_reduce:ring/ranks=3-/elements=5001-/op=sum";
    EXPECT_OK(self, koloCommSetAlgorithm(self.comm, rule));
    for (const size_t count : {5000u, 5001u}) {
      std::vector<float> buffer(count, 1);
      EXPECT_OK(self, koloAllReduce(buffer.data(), buffer.data(), count, koloFloat32, koloSum, self.comm, nullptr));
      EXPECT(self, buffer == std::vector<float>(count, 3));
      EXPECT_OK(self, koloAllReduce(buffer.data(), buffer.data(), count, koloFloat32, koloMax, self.comm, nullptr));
      EXPECT(self, buffer == std::vector<float>(count, 3));
    }
    EXPECT_CODE(self, koloInvalidArgument, koloCommSetAlgorithm(self.comm, "all_reduce:ring/size=3"));
    EXPECT(self, messageHas("\"size=3\" is no condition"));
  });
  CHECK(planned(world[0], 5000, koloSum, 0) == "one_shot");
  CHECK(planned(world[0], 5001, koloSum, 0) == "ring");
  CHECK(planned(world[0], 5001, koloMax, 0) == "one_shot");
}

TEST_CASE("S1.1 an override for registered buffers changes nothing for others", "[links]") {
  World world(2);
  const std::string usual = planned(world[0], 1 << 18, koloSum, 0);
  world.run([](Self& self) {
    const char* const rule =
        "all_reduce:one_shot/bytes=-2M/op=sum/registered=yes,all_reduce:two_shot/bytes=2097153-/registered=yes";
    EXPECT_OK(self, koloCommSetAlgorithm(self.comm, rule));
    void* memory = nullptr;
    constexpr size_t kMost = 1 << 20;
    EXPECT_OK(self, koloMemAlloc(&memory, 2 * kMost * sizeof(float)));
    koloWindow_t window = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, memory, 2 * kMost * sizeof(float), &window));
    for (const size_t count : {size_t{2}, size_t{1000}, kMost}) {
      auto* const send = static_cast<float*>(memory);
      std::fill(send, send + count, 1.5f);
      EXPECT_OK(self, koloAllReduce(send, send + kMost, count, koloFloat32, koloSum, self.comm, nullptr));
      EXPECT(self, send[kMost] == 3 && send[kMost + count - 1] == 3);
      std::vector<float> plain(count, 1);
      EXPECT_OK(self, koloAllReduce(plain.data(), plain.data(), count, koloFloat32, koloSum, self.comm, nullptr));
      EXPECT(self, plain == std::vector<float>(count, 2));
    }
    EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    EXPECT_OK(self, koloMemFree(memory));
  });
  CHECK(planned(world[0], 1 << 18, koloSum, 0) == usual);
  koloPlan_t plan{};
  REQUIRE_OK(koloCommGetPlan(world[0], koloCollectiveAllReduce, 1 << 18, koloFloat32, koloSum, 1, &plan));
  if (plan.zeroCopy == 0) return;  // the ranks do not map each other's memory
  CHECK(std::string(plan.algorithm) == "one_shot");
  CHECK(planned(world[0], 1 << 20, koloSum, 1) == "two_shot");
}

TEST_CASE("S0.7 at the debug level one line for each call has the algorithm, ranks x elements and the datatype") {
  const std::string file = debugFile("knobs-test");
  withSettings({{"KOLO_DEBUG", "debug"}, {"KOLO_DEBUG_FILE", file}}, [&] {
    (void)std::remove(file.c_str());
    World world(3, configWithAlgorithm("all_reduce:ring,broadcast:tree,all_gather:ring"));
    constexpr int kCalls = 5;
    world.run([](Self& self) {
      std::vector<double> data(3000, 1);
      // Repeated calls have their lines too.
      for (int i = 0; i < kCalls; ++i)
        EXPECT_OK(self, koloAllReduce(data.data(), data.data(), 1000, koloFloat64, koloMax, self.comm, nullptr));
      EXPECT_OK(self, koloBroadcast(data.data(), data.data(), 4000, koloUint8, 1, self.comm, nullptr));
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
      koloRequest_t request = nullptr;
      EXPECT_OK(self, koloIallGather(data.data(), data.data(), 0, koloInt8, self.comm, &request));
      EXPECT_OK(self, koloRequestWait(request, -1));
      EXPECT_OK(self, koloRequestFree(request));
      koloItem_t items[2] = {};
      for (koloItem_t& item : items) {
        item.sendbuf = item.recvbuf = data.data() + 100 * (&item - items);
        item.count = 100;
        item.sendtype = item.transfertype = item.recvtype = koloFloat64;
      }
      EXPECT_OK(self, koloAllReduceList(items, 2, koloSum, self.comm, nullptr));
      items[1].sendtype = items[1].transfertype = items[1].recvtype = koloInt64;
      EXPECT_OK(self, koloBroadcastList(items, 2, 0, self.comm, nullptr));
      EXPECT_OK(self, koloSetMayWait(0));
      EXPECT_OK(self, koloSetMayWait(1));
    });
    const std::string text = textOf(file);
    INFO(text);
    CHECK(countIn(text, "debug: all_reduce: ring, 3 x 1000 float64, max\n") == 3 * kCalls);
    CHECK(countIn(text, ": broadcast: tree") == 6);
    CHECK(countIn(text, ", 3 x 4000 uint8\n") == 3);
    CHECK(countIn(text, ": barrier: ") == 3);
    CHECK(countIn(text, ", 3 x 0 int8\n") == 3);
    CHECK(countIn(text, " bytes in 2 items of float64, sum\n") == 3);
    CHECK(countIn(text, " bytes in 2 items of several types\n") == 3);
    (void)std::remove(file.c_str());
  });
}

TEST_CASE("S0.7 between windows the line says which algorithm ran") {
  const std::string file = debugFile("windows-test");
  withSettings({{"KOLO_DEBUG", "debug"}, {"KOLO_DEBUG_FILE", file}}, [&] {
    (void)std::remove(file.c_str());
    World world(3, configWithAlgorithm("all_reduce:ring,all_reduce:one_shot/registered=yes"));
    world.run([](Self& self) {
      constexpr size_t kCount = 2000;
      void* memory = nullptr;
      koloWindow_t window = nullptr;
      EXPECT_OK(self, koloMemAlloc(&memory, 2 * kCount * sizeof(float)));
      EXPECT_OK(self, koloWindowRegister(self.comm, memory, 2 * kCount * sizeof(float), &window));
      auto* const inWindow = static_cast<float*>(memory);
      std::vector<float> plain(2 * kCount, 1);
      std::fill(inWindow, inWindow + 2 * kCount, 1.0F);
      const auto reduce = [&](float* send, float* recv, size_t count) {
        EXPECT_OK(self, koloAllReduce(send, recv, count, koloFloat32, koloSum, self.comm, nullptr));
      };
      reduce(inWindow, inWindow + kCount, kCount);
      reduce(inWindow, inWindow, kCount - 1);
      reduce(plain.data(), plain.data() + kCount, kCount - 2);
      // All have to lie there.
      reduce(self.rank == 1 ? plain.data() : inWindow, inWindow + kCount, kCount - 3);
      EXPECT_OK(self, koloWindowDeregister(self.comm, window));
      EXPECT_OK(self, koloMemFree(memory));
    });
    const std::string text = textOf(file);
    INFO(text);
    CHECK(countIn(text, "debug: all_reduce: one_shot between windows, 3 x 2000 float32, sum\n") == 3);
    CHECK(countIn(text, "debug: all_reduce: one_shot between windows, 3 x 1999 float32, sum\n") == 3);
    CHECK(countIn(text, "debug: all_reduce: ring, 3 x 1998 float32, sum\n") == 3);
    CHECK(countIn(text, "debug: all_reduce: ring, 3 x 1997 float32, sum\n") == 3);
    (void)std::remove(file.c_str());
  });
}

TEST_CASE("S0.7 messages, and forms with counts that each rank knows alone, have a line too") {
  const std::string file = debugFile("messages-test");
  withSettings({{"KOLO_DEBUG", "debug"}, {"KOLO_DEBUG_FILE", file}}, [&] {
    (void)std::remove(file.c_str());
    World world(2);
    world.run([](Self& self) {
      int values[9] = {};
      koloRequest_t request = nullptr;
      if (self.rank == 0) {
        EXPECT_OK(self, koloSend(values, 7, koloInt32, 1, self.comm, nullptr));
        EXPECT_OK(self, koloIsend(values, 5, koloInt32, 1, 3, self.comm, &request));
        EXPECT_OK(self, koloRequestWait(request, -1));
        EXPECT_OK(self, koloRequestFree(request));
      } else {
        EXPECT_OK(self, koloRecv(values, 7, koloInt32, 0, self.comm, nullptr));
        EXPECT_OK(self, koloRecvTag(values, 9, koloInt32, KOLO_ANY_SOURCE, KOLO_ANY_TAG, nullptr, self.comm, nullptr));
      }
      const size_t counts[] = {2, 6};
      EXPECT_OK(self,
                koloScatterv(values, counts, nullptr, values, counts[self.rank], koloInt32, 0, self.comm, nullptr));
    });
    const std::string text = textOf(file);
    INFO(text);
    CHECK(countIn(text, "debug: send: 7 int32 to rank 1, tag 0\n") == 1);
    CHECK(countIn(text, "debug: recv: 7 int32 from rank 0, tag 0\n") == 1);
    CHECK(countIn(text, "debug: send: 5 int32 to rank 1, tag 3\n") == 1);
    CHECK(countIn(text, "debug: recv: 9 int32 from rank any, tag any\n") == 1);
    CHECK(countIn(text, ", 2 x up to 6 int32\n") == 2);
    (void)std::remove(file.c_str());
  });
}

TEST_CASE("S0.1 the environment forces, allows and forbids algorithms, by ranks and elements") {
  const std::string file = debugFile("environment-test");
  withSettings({{"KOLO_DEBUG", "debug"},
                {"KOLO_DEBUG_FILE", file},
                {"KOLO_ALGORITHM",
                 "all_reduce:one_shot,all_reduce:ring/ranks=3-/elements=5001-,reduce:^tree,reduce:^ring,"
                 "reduce:^double_tree,reduce:^two_shot"}},
               [&] {
                 (void)std::remove(file.c_str());
                 for (const int ranks : {2, 3}) {
                   World world(ranks);
                   world.run([](Self& self) {
                     std::vector<float> values(6000, 1);
                     for (const size_t count : {size_t{5000}, size_t{5001}})
                       EXPECT_OK(self, koloAllReduce(values.data(), values.data(), count, koloFloat32, koloMax,
                                                     self.comm, nullptr));
                     EXPECT_OK(self, koloReduce(values.data(), values.data(), 6000, koloFloat32, koloMax, 0, self.comm,
                                                nullptr));
                   });
                 }
                 const std::string text = textOf(file);
                 INFO(text);
                 // Both sizes on two ranks, the smaller one on three.
                 CHECK(countIn(text, "debug: all_reduce: one_shot") == 2 * 2 + 3);
                 CHECK(countIn(text, "debug: all_reduce: one_shot, 3 x 5000 float32, max\n") == 3);
                 CHECK(countIn(text, "debug: all_reduce: ring, 3 x 5001 float32, max\n") == 3);
                 CHECK(countIn(text, "debug: reduce: one_shot") == 5);
                 (void)std::remove(file.c_str());
               });
}

TEST_CASE("S4.8 KOLO_DEVICE takes a device string") {
  withSettings({{"KOLO_DEVICE", "cpu0"}}, [] { World(2).run(expectWorks); });
}

TEST_CASE("S4.8 a device string chooses device and stream") {
  struct Case {
    const char* text;
    int device, stream;
  };
  const Case cases[] = {{"gpu0", 0, 0},        {"gpu0:1", 0, 1},       {"gpu3:12", 3, 12},
                        {"cuda1", 1, 0},       {"gpu", 0, 0},          {"gpu:2", 0, 2},
                        {"cpu", KOLO_HOST, 0}, {"cpu0", KOLO_HOST, 0}, {"cpu7:3", KOLO_HOST, 3}};
  for (const Case& each : cases) {
    INFO(each.text);
    int device = -9, stream = -9;
    REQUIRE_OK(koloDeviceParse(each.text, &device, &stream));
    CHECK(device == each.device);
    CHECK(stream == each.stream);
  }
  // Whatever this machine has.
  int device = -9, stream = -9;
  for (const char* text : {"xpu0:1", "xpu:1", "xpux:1"}) {
    REQUIRE_OK(koloDeviceParse(text, &device, &stream));
    CHECK((device == KOLO_HOST || device == 0));
    CHECK(stream == 1);
  }
  REQUIRE_OK(koloDeviceParse("gpu2", &device, nullptr));
  CHECK(device == 2);
}

// An operation on the stream that one string chooses does not wait for what another string's stream has to do first.
TEST_CASE(
    "S4.8 a device string chooses the memory of a communicator, and which of a program's streams an operation takes",
    "[threads]") {
  koloConfig_t config = defaultConfig();
  std::array<int, 2> numbers{-1, -1};
  REQUIRE_OK(koloDeviceParse("cpu0", &config.device, &numbers[0]));
  REQUIRE_OK(koloDeviceParse("cpu0:1", &config.device, &numbers[1]));
  World late(2, config), ready(2, config);
  std::atomic<bool> isReady{false};
  late.run([&](Self& self) {
    std::array<koloStream_t, 2> streams{};
    for (koloStream_t& stream : streams) EXPECT_OK(self, koloStreamCreate(&stream));
    const koloStream_t first = streams[static_cast<size_t>(numbers[0])],
                       other = streams[static_cast<size_t>(numbers[1])];
    const int mine = self.rank + 1;
    int lateSum = -1, readySum = -1;
    if (self.rank == 0) EXPECT_OK(self, koloAllReduce(&mine, &lateSum, 1, koloInt32, koloSum, self.comm, first));
    EXPECT_OK(self, koloAllReduce(&mine, &readySum, 1, koloInt32, koloSum, ready[self.rank], other));
    EXPECT_OK(self, koloStreamSynchronize(other));
    EXPECT(self, readySum == 3);
    if (self.rank == 0) {
      EXPECT_CODE(self, koloInProgress, koloStreamQuery(first));
      isReady = true;
    } else {
      while (!isReady) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_OK(self, koloAllReduce(&mine, &lateSum, 1, koloInt32, koloSum, self.comm, first));
    }
    EXPECT_OK(self, koloStreamSynchronize(first));
    EXPECT(self, lateSum == 3);
    for (const koloStream_t stream : streams) EXPECT_OK(self, koloStreamDestroy(stream));
  });
}

TEST_CASE("S4.8 other device strings are refused, and nothing is written") {
  int device = -9, stream = -9;
  for (const char* text : {"", "gpu0:", "gpu0:x", "gpu-1", "gpu0:-1", "gpu0:1:2", "gpux", "0", ":1", "tpu0", "GPU0",
                           "gpu 0", "gpu99999999999", "xpux1", "cpu0 "}) {
    INFO(text);
    CHECK_CODE(koloInvalidArgument, koloDeviceParse(text, &device, &stream));
    CHECK(messageHas((std::string("device \"") + text + "\": expected cpu, gpu, cuda or xpu").c_str()));
  }
  CHECK_CODE(koloInvalidArgument, koloDeviceParse("gpu0:1", &device, nullptr));
  CHECK(messageHas("names stream 1, and stream is NULL"));
  CHECK_CODE(koloInvalidPointer, koloDeviceParse(nullptr, &device, &stream));
  CHECK_CODE(koloInvalidPointer, koloDeviceParse("gpu0", nullptr, &stream));
  CHECK(device == -9);
  CHECK(stream == -9);
}
