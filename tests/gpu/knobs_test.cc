// Conditions of overrides on GPUs, and the line that is written for each call there, as tests/api/knobs_test.cc has
// them on the host.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gpu/support.h"
#include "support/items.h"

namespace kolo::test {
namespace {

// The log's debug level while it lives.
class DebugLevel {
 public:
  DebugLevel() : setting_({std::pair{"KOLO_DEBUG", std::string("debug")}}) { log::threshold = -1; }
  DebugLevel(const DebugLevel&) = delete;

 private:
  struct Reread {
    ~Reread() { log::threshold = -1; }
  };
  Reread afterwards_;  // the level is read again when the setting is as it was
  SettingsScope setting_;
};

std::string writtenAtDebugLevelBy(const std::function<void()>& body) {
  const DebugLevel level;
  return writtenBy(body);
}

// How many lines of the text say that a call took the algorithm, and end with the words about its elements.
int linesOf(const std::string& text, const std::string& collectiveAndAlgorithm, std::string_view end) {
  std::istringstream lines(text);
  int found = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool isOfCall = line.find("debug: " + collectiveAndAlgorithm) != std::string::npos;
    found += isOfCall && std::string_view(line).ends_with(end) ? 1 : 0;
  }
  return found;
}

std::string planned(koloComm_t comm, std::size_t count, koloRedOp_t op, bool registered = false) {
  koloPlan_t plan{};
  REQUIRE_OK(koloCommGetPlan(comm, koloCollectiveAllReduce, count, koloInt32, op, registered ? 1 : 0, &plan));
  return plan.algorithm;
}

// All-reduces of so many ones, and expects their sum or maximum.
void reduceOnes(Self& self, std::size_t count, koloRedOp_t op, const DeviceBuffer& values, const CudaStream& stream) {
  values->fill(1);
  EXPECT_OK(self, koloAllReduce(values.data(), values.data(), count, koloInt32, op, self.comm, stream.get()));
  stream.synchronize();
  EXPECT(self, values->read(0, count) == std::vector<int>(count, op == koloSum ? self.ranks : 1));
}

}  // namespace

TEST_CASE("S0.1 on GPUs an algorithm is forced by ranks, elements and reduction", "[device][knobs]") {
  const int n = GENERATE(2, 3);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  const std::string said = writtenAtDebugLevelBy([&] {
    ranks.run([&](Self& self) {
      const DeviceBuffer values(5001);
      const CudaStream stream;
      ranks.together();
      const char* const rule = "all_reduce:one_shot,all_reduce:ring/ranks=3-/elements=5001-/op=sum";
      EXPECT_OK(self, koloCommSetAlgorithm(self.comm, rule));
      for (const std::size_t count : {5000u, 5001u}) {
        for (const koloRedOp_t op : {koloSum, koloMax}) reduceOnes(self, count, op, values, stream);
      }
      EXPECT_CODE(self, koloInvalidArgument, koloCommSetAlgorithm(self.comm, "all_reduce:ring/size=3"));
      EXPECT(self, messageHas("\"size=3\" is no condition"));
    });
  });
  INFO(said);
  const std::string ofRanks = std::to_string(n) + " x ";
  const std::string ofLongSum = n == 3 ? "ring" : "one_shot";
  CHECK(linesOf(said, "all_reduce: one_shot", ofRanks + "5000 int32, sum") == n);
  CHECK(linesOf(said, "all_reduce: one_shot", ofRanks + "5000 int32, max") == n);
  CHECK(linesOf(said, "all_reduce: " + ofLongSum, ofRanks + "5001 int32, sum") == n);
  CHECK(linesOf(said, "all_reduce: one_shot", ofRanks + "5001 int32, max") == n);
  CHECK(planned(ranks[0], 5001, koloSum) == ofLongSum);
  CHECK(planned(ranks[0], 5001, koloMax) == "one_shot");
}

TEST_CASE("S0.1 on GPUs the log says what goes in packets, and what does not", "[mock][knobs]") {
  const MockScene scene(mockFor(3));
  Ranks ranks({0, 0, 0});
  const std::string said = writtenAtDebugLevelBy([&] {
    ranks.run([&](Self& self) {
      const DeviceBuffer values(50'000, 0);
      const CudaStream stream(0);
      ranks.together();
      EXPECT_OK(self, koloCommSetAlgorithm(self.comm, "all_reduce:one_shot"));
      for (const std::size_t count : {256u, 50'000u}) reduceOnes(self, count, koloSum, values, stream);
    });
  });
  INFO(said);
  CHECK(linesOf(said, "all_reduce: one_shot in packets", "3 x 256 int32, sum") == 3);
  CHECK(linesOf(said, "all_reduce: one_shot in packets", "3 x 50000 int32, sum") == 0);
  CHECK(linesOf(said, "all_reduce: one_shot", "3 x 50000 int32, sum") == 3);
}

TEST_CASE("S0.1 on GPUs two-shots and trees go in packets, as long as their pieces fit", "[mock][knobs]") {
  const MockScene scene(mockFor(3));
  const std::string algorithm = GENERATE("two_shot", "tree");
  Ranks ranks({0, 0, 0});
  const std::string said = writtenAtDebugLevelBy([&] {
    ranks.run([&](Self& self) {
      const DeviceBuffer values(50'000, 0);
      const CudaStream stream(0);
      ranks.together();
      EXPECT_OK(self, koloCommSetAlgorithm(self.comm, ("all_reduce:" + algorithm).c_str()));
      for (const std::size_t count : {256u, 50'000u}) reduceOnes(self, count, koloSum, values, stream);
    });
  });
  INFO(said);
  CHECK(linesOf(said, "all_reduce: " + algorithm + " in packets", "3 x 256 int32, sum") == 3);
  CHECK(linesOf(said, "all_reduce: " + algorithm + " in packets", "3 x 50000 int32, sum") == 0);
}

TEST_CASE("S0.1 on GPUs an algorithm is forbidden by ranks, elements and reduction", "[device][knobs]") {
  const DeviceScene scene(mockFor(2));
  Ranks ranks(oneDevice(2));
  const std::string usual = planned(ranks[0], 5000, koloMax);
  REQUIRE(planned(ranks[0], 4999, koloMax) == usual);
  REQUIRE(planned(ranks[0], 5000, koloSum) == usual);
  const std::string forbidden = "all_reduce:^" + usual + "/ranks=2/elements=5000-/op=max";
  const std::string said = writtenAtDebugLevelBy([&] {
    ranks.run([&](Self& self) {
      const DeviceBuffer values(5000);
      const CudaStream stream;
      ranks.together();
      EXPECT_OK(self, koloCommSetAlgorithm(self.comm, forbidden.c_str()));
      reduceOnes(self, 4999, koloMax, values, stream);
      reduceOnes(self, 5000, koloSum, values, stream);
      reduceOnes(self, 5000, koloMax, values, stream);
    });
  });
  INFO(usual << "\n" << said);
  CHECK(linesOf(said, "all_reduce: " + usual, "2 x 4999 int32, max") == 2);
  CHECK(linesOf(said, "all_reduce: " + usual, "2 x 5000 int32, sum") == 2);
  CHECK(linesOf(said, "all_reduce: " + usual, "2 x 5000 int32, max") == 0);
  CHECK(linesOf(said, "all_reduce: ", "2 x 5000 int32, max") == 2);
}

TEST_CASE("S0.1 S1.1 on GPUs an algorithm is forced for registered buffers alone", "[device][windows][knobs]") {
  constexpr std::size_t kCount = 5000;
  const int n = GENERATE(2, 3);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  const std::string said = writtenAtDebugLevelBy([&] {
    ranks.run([&](Self& self) {
      const char* const rule = "all_reduce:ring/registered=no,all_reduce:one_shot/registered=yes";
      EXPECT_OK(self, koloCommSetAlgorithm(self.comm, rule));
      void* memory = nullptr;
      EXPECT_OK(self, koloMemAllocOn(&memory, 2 * kCount * sizeof(int), testDevice()));
      koloWindow_t window = nullptr;
      EXPECT_OK(self, koloWindowRegister(self.comm, memory, 2 * kCount * sizeof(int), &window));
      const DeviceInts inWindow(testDevice(), memory, 2 * kCount);
      const DeviceBuffer values(kCount);
      const CudaStream stream;
      inWindow.fill(2);
      ranks.together();
      EXPECT_OK(self, koloAllReduce(inWindow.data(), inWindow.data() + kCount, kCount, koloInt32, koloSum, self.comm,
                                    stream.get()));
      stream.synchronize();
      EXPECT(self, inWindow.read(0, kCount) == std::vector<int>(kCount, 2));
      EXPECT(self, inWindow.read(kCount, kCount) == std::vector<int>(kCount, 2 * self.ranks));
      // In place, what the peers read is replaced when they have read it.
      for (int factor = 1; factor < 5; ++factor) {
        EXPECT_OK(self, koloAllReduce(inWindow.data(), inWindow.data(), kCount - 2, koloInt32, koloSum, self.comm,
                                      stream.get()));
        stream.synchronize();
        const int wanted = 2 * static_cast<int>(std::pow(self.ranks, factor));
        EXPECT(self, inWindow.read(0, kCount - 2) == std::vector<int>(kCount - 2, wanted));
      }
      reduceOnes(self, kCount - 1, koloSum, values, stream);
      ranks.together();
      EXPECT_OK(self, koloWindowDeregister(self.comm, window));
      EXPECT_OK(self, koloMemFree(memory));
    });
  });
  INFO(said);
  const std::string either = "all_reduce: ring (one_shot if all buffers lie in windows)";
  const std::string ofRanks = std::to_string(n) + " x ";
  CHECK(linesOf(said, either, ofRanks + "5000 int32, sum") == n);
  CHECK(linesOf(said, either, ofRanks + "4998 int32, sum") == 4 * n);
  CHECK(linesOf(said, "all_reduce: ring, ", ofRanks + "4999 int32, sum") == n);
  CHECK(planned(ranks[0], kCount, koloSum) == "ring");
  CHECK(planned(ranks[0], kCount, koloSum, true) == "one_shot");
}

TEST_CASE("S0.7 on GPUs, too, one line for each call has the algorithm, ranks x elements and the datatype",
          "[device][knobs]") {
  constexpr int kCalls = 5;
  const int resident = GENERATE(0, 2);
  const DeviceScene scene(mockFor(3, resident != 0));
  Ranks ranks(oneDevice(3), {.resident = resident});
  const std::string said = writtenAtDebugLevelBy([&] {
    ranks.run([&](Self& self) {
      const DeviceBuffer data(4000);
      const CudaStream stream;
      int* const values = data.data();
      data->fill(1);
      EXPECT_OK(self, koloCommSetAlgorithm(self.comm, "all_reduce:ring,broadcast:tree,all_gather:ring"));
      ranks.together();
      // Repeated calls have their lines too.
      for (int i = 0; i < kCalls; ++i)
        EXPECT_OK(self, koloAllReduce(values, values, 1000, koloInt32, koloMax, self.comm, stream.get()));
      EXPECT_OK(self, koloBroadcast(values, values, 4000, koloUint8, 1, self.comm, stream.get()));
      EXPECT_OK(self, koloBarrier(self.comm, stream.get()));
      EXPECT_OK(self, koloAllGather(values, values, 0, koloInt8, self.comm, stream.get()));
      koloItem_t items[] = {intItem(values, values, 100), intItem(values + 100, values + 100, 100)};
      EXPECT_OK(self, koloAllReduceList(items, 2, koloSum, self.comm, stream.get()));
      items[1].sendtype = items[1].transfertype = items[1].recvtype = koloUint32;
      EXPECT_OK(self, koloBroadcastList(items, 2, 0, self.comm, stream.get()));
      // The parts of a group as well, of which there is one launch.
      EXPECT_OK(self, koloGroupStart());
      EXPECT_OK(self, koloAllReduce(values, values, 700, koloInt32, koloMin, self.comm, stream.get()));
      EXPECT_OK(self, koloReduce(values, values, 600, koloInt32, koloSum, 0, self.comm, stream.get()));
      EXPECT_OK(self, koloGroupEnd());
      stream.synchronize();
    });
  });
  INFO(said);
  CHECK(linesOf(said, "all_reduce: ring", ", 3 x 1000 int32, max") == 3 * kCalls);
  CHECK(linesOf(said, "broadcast: tree", ", 3 x 4000 uint8") == 3);
  CHECK(linesOf(said, "barrier: ", ", 3 ranks") == 3);
  CHECK(linesOf(said, "all_gather: ", ", 3 x 0 int8") == 3);
  CHECK(linesOf(said, "all_reduce: ", " bytes in 2 items of int32, sum") == 3);
  CHECK(linesOf(said, "broadcast: ", " bytes in 2 items of several types") == 3);
  CHECK(linesOf(said, "all_reduce: ring", ", 3 x 700 int32, min") == 3);
  CHECK(linesOf(said, "reduce: ", ", 3 x 600 int32, sum") == 3);
}

}  // namespace kolo::test
