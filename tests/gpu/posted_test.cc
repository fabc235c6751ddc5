// Ranks whose GPUs are reached by posted links, by a transport that does everything late (tests/plugin/late.c): from
// pinned memory, through the proxy thread. The suite gpu-posted runs all of device_test.cc over such links; here is
// what is theirs alone.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "executor/cuda/engine.h"
#include "gpu/support.h"

namespace kolo::test {
namespace {

// Ranks in groups of so many are a "host" each, for the communicators that are made while it lives.
class LateHosts {
 public:
  explicit LateHosts(int perHost, const char* transports = "late,shm")
      : settings_({{"KOLO_TRANSPORT_PLUGINS", plugin()},
                   {"KOLO_TRANSPORTS", transports},
                   {"KOLO_TEST_CONNECT_ALL_RANKS", "1000"},  // its hosts are none that can be told beforehand
                   {"KOLO_TEST_LATE_PER_HOST", std::to_string(perHost)}}),
        library_(dlopen(plugin(), RTLD_NOW | RTLD_LOCAL)) {
    REQUIRE(library_ != nullptr);
  }
  ~LateHosts() {
    lose(-1);
    dlclose(library_);
  }
  LateHosts(const LateHosts&) = delete;

  // From now on nothing goes to or from this rank.
  void lose(int rank) const { reinterpret_cast<void (*)(int)>(dlsym(library_, "koloLateLose"))(rank); }
  // Calls of deviceProgress so far.
  unsigned long calls() const { return reinterpret_cast<unsigned long (*)()>(dlsym(library_, "koloLateCalls"))(); }

 private:
  static const char* plugin() {
    const char* const path = std::getenv("KOLO_TEST_LATE_PLUGIN");
    REQUIRE(path != nullptr);
    return path;
  }

  SettingsScope settings_;
  void* library_ = nullptr;
};

std::string lastError(koloComm_t comm) { return koloGetLastError(comm); }

void addUp(Self& self, const DeviceBuffer& value, std::size_t count, const CudaStream& stream) {
  EXPECT_OK(self, koloAllReduce(value.data(), value.data(), count, koloInt32, koloSum, self.comm, stream.get()));
}

}  // namespace

TEST_CASE("GPUs of one host are mapped, those of others posted to, and the plan knows of the hosts", "[mock][posted]") {
  const bool resident = GENERATE(false, true);
  const MockScene scene({.devices = 2, .multiprocessors = resident ? 12 : 4, .peersReach = false});
  const LateHosts hosts(2, "late,shm,p2p");
  Ranks ranks({0, 0, 1, 1}, {.resident = resident});
  ranks.run([&](Self& self) {
    const int device = self.rank / 2;
    constexpr std::size_t kCount = 40'000;
    const DeviceBuffer value(kCount, device);
    const CudaStream stream(device);
    koloPlan_t plan{};
    EXPECT_OK(self, koloCommGetPlan(self.comm, koloCollectiveAllReduce, kCount, koloInt32, koloSum, 0, &plan));
    EXPECT(self, std::string(plan.transport) == "p2p+late");
    for (const char* algorithm : {"", "all_reduce:hierarchical", "all_reduce:ring", "all_reduce:one_shot"}) {
      EXPECT_OK(self, koloCommSetAlgorithm(self.comm, algorithm));
      EXPECT_OK(self, koloCommGetPlan(self.comm, koloCollectiveAllReduce, kCount, koloInt32, koloSum, 0, &plan));
      if (*algorithm != '\0') EXPECT(self, std::string(algorithm).find(plan.algorithm) != std::string::npos);
      std::vector<int> values(kCount);
      for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<int>(i) + self.rank;
      value->write(values);
      addUp(self, value, kCount, stream);
      addUp(self, value, 5, stream);
      stream.synchronize();
      const std::vector<int> got = value->read();
      bool right = true;
      for (std::size_t i = 0; i < kCount; ++i)
        right = right && got[i] == (4 * static_cast<int>(i) + 6) * (i < 5 ? 4 : 1);
      EXPECT(self, right);
    }
  });
}

TEST_CASE("a window between hosts is staged", "[device][posted]") {
  const DeviceScene scene(mockFor(2));
  const LateHosts hosts(1);
  Ranks ranks(oneDevice(2));
  ranks.run([&](Self& self) {
    const DeviceBuffer value(1000);
    const CudaStream stream;
    koloWindow_t window = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, value.data(), 4000, &window));
    int zeroCopy = 1;
    EXPECT_OK(self, koloWindowIsZeroCopy(window, &zeroCopy));
    EXPECT(self, zeroCopy == 0);
    value->fill(self.rank + 1);
    addUp(self, value, 1000, stream);
    stream.synchronize();
    EXPECT(self, value->read(999) == 3);
    EXPECT_OK(self, koloWindowDeregister(self.comm, window));
  });
}

TEST_CASE("the proxy sleeps when nothing is under way, and is there again for the next launch", "[device][posted]") {
  const DeviceScene scene(mockFor(2));
  const LateHosts hosts(1);
  Ranks ranks(oneDevice(2));
  for (int round = 0; round < 3; ++round) {
    ranks.run([&](Self& self) {
      const DeviceBuffer value(50'000);
      const CudaStream stream;
      value->fill(1);
      addUp(self, value, 50'000, stream);
      stream.synchronize();
      EXPECT(self, value->read(49'999) == 2);
    });
    // Within a moment; on a busy machine it may have had a pause before.
    bool sleeps = false;
    for (const auto end = std::chrono::steady_clock::now() + kSoon;
         !sleeps && std::chrono::steady_clock::now() < end;) {
      const unsigned long before = hosts.calls();
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      sleeps = hosts.calls() == before;
    }
    CHECK(sleeps);
  }
}

TEST_CASE("a link that is lost ends the kernels that wait for it, and all ranks hear which and in what",
          "[device][posted][failure]") {
  const bool message = GENERATE(false, true);
  const bool resident = GENERATE(false, true);
  const DeviceScene scene(mockFor(3, resident));
  const LateHosts hosts(1);
  Ranks ranks(oneDevice(3), {.resident = resident});
  const DeviceBuffer value(3);
  const CudaStream stream;
  CHECK_CODE(koloSuccess,
             message ? koloRecv(value.data(), 1, koloInt32, 2, ranks[0], stream.get())
                     : koloReduce(value.data(), value.data(), 1, koloInt32, koloSum, 0, ranks[0], stream.get()));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the kernel waits, or does not yet
  hosts.lose(2);
  CHECK(endsSoon([&] { stream.synchronize(); }));
  for (int rank = 0; rank < 3; ++rank)
    CHECK(errorHeard(ranks[rank]) == koloRemoteError);  // although nobody asks rank 0
  INFO(lastError(ranks[0]));
  const std::string operation = message ? "send_recv (operation 1 " : "reduce (operation 1 ";
  CHECK(lastError(ranks[0]).find("rank 0 has no link to rank 2 in " + operation) != std::string::npos);
  CHECK(lastError(ranks[0]).find("the test has cut the link to rank 2") != std::string::npos);
}

TEST_CASE("what a kernel has sent before it ended, and cannot arrive, is a failure of its operation",
          "[device][posted][failure]") {
  const DeviceScene scene(mockFor(2));
  const LateHosts hosts(1);
  Ranks ranks(oneDevice(2));
  const DeviceBuffer value(10);
  const CudaStream stream;
  hosts.lose(1);
  CHECK_CODE(koloSuccess,
             koloSend(value.data(), 10, koloInt32, 1, ranks[0], stream.get()));  // fits the slots: nobody waits
  CHECK(endsSoon([&] { stream.synchronize(); }));
  CHECK(errorHeard(ranks[1]) == koloRemoteError);
  CHECK(errorHeard(ranks[0]) == koloRemoteError);
  INFO(lastError(ranks[0]));
  CHECK(lastError(ranks[0]).find("rank 0 has no link to rank 1 in send_recv (operation 1 ") != std::string::npos);
}

TEST_CASE("what a rank gives to its peers, and mirrors of theirs, is bounded however many they are", "[mock][posted]") {
  const std::uint64_t most = std::uint64_t{512} << 20;
  for (const int ranks : {2, 8, 64, 512}) {
    executor::cuda::ArenaLayout layout{.ranks = ranks, .channels = 32, .messageChannels = 8};
    layout.shrinkTo(most);
    INFO(ranks << ": " << layout.channels << " channels, slots of " << layout.slotBytes);
    CHECK(layout.bytes() <= most);
    CHECK(layout.channels >= layout.messageChannels);
    if (ranks <= 8) CHECK((layout.channels == 32 && layout.slotBytes == 1 << 17));
    // Parts and what is in them follow each other.
    CHECK(layout.partAt(ranks) == layout.bytes());
    CHECK(layout.leftIn() >= layout.trialIn() + 64);
    CHECK(layout.slotsIn(0) >= layout.leftIn() + 64);
  }
}

TEST_CASE("a rank that goes while others still owe it nothing leaves no failure behind", "[device][posted]") {
  const DeviceScene scene(mockFor(2));
  const LateHosts hosts(1);
  for (int round = 0; round < 10 / kSlowness + 1; ++round) {
    Ranks ranks(oneDevice(2));
    ranks.run([&](Self& self) {
      const DeviceBuffer value(30'000);
      const CudaStream stream;
      value->fill(self.rank == 0 ? 7 : 0);
      for (int i = 0; i < 3; ++i) {
        EXPECT_OK(self, koloBroadcast(value.data(), value.data(), 30'000, koloInt32, 0, self.comm, stream.get()));
      }
      stream.synchronize();
      EXPECT(self, value->read(29'999) == 7);
      EXPECT_OK(self, koloCommDestroy(self.comm));  // the root, which waits for nobody, often first
    });
    ranks.comms.assign(2, nullptr);
  }
}

}  // namespace kolo::test
