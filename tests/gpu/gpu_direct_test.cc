// Ranks whose GPUs are reached by InfiniBand, both mocked: NICs read and write the GPUs' memory where that is possible,
// by either way, and pinned memory of the host elsewhere, with the same results. The suite gpu-direct runs all of
// device_test.cc so.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "gpu/support.h"
#include "mock_verbs/mock_verbs.h"
#include "process/job.h"

namespace kolo::test {
namespace {

using Strings = std::vector<std::string>;

// Descriptors of memory of mocked GPUs: its own, and those that were exported.
int filesOfGpus() {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    count += std::filesystem::read_symlink(file, gone).string().find("kolo-mock-gpu") != std::string::npos ? 1 : 0;
  }
  return count;
}

// Mocked NICs and GPUs; when it ends, all that was made of them must have been given back.
class Scene {
 public:
  Scene(const MockCuda& gpu, const MockVerbs& nics, const std::string& wish)
      : settings_({{"KOLO_TRANSPORTS", "ib"}, {"KOLO_GPUDIRECT", wish}, {"KOLO_TEST_CONNECT_ALL_RANKS", "1000"}}),
        gpu_((nics.install(), gpu)) {}
  ~Scene() {
    CHECK(MockVerbs::remove() == "");
    CHECK(filesOfGpus() == 0);
  }
  Scene(const Scene&) = delete;

 private:
  SettingsScope settings_;
  MockScene gpu_;
};

MockCuda gpuFor(int ranks, bool resident = false) {
  return {.multiprocessors = ranks * (resident ? 6 : 2), .blockThreads = 2};
}

// Sums, broadcasts and messages, short and long.
void exchange(const Ranks& ranks) {
  ranks.run([](Self& self) {
    constexpr std::size_t kCount = 40'000;
    const DeviceBuffer value(kCount), other(kCount);
    const CudaStream stream;
    const int right = (self.rank + 1) % self.ranks, left = (self.rank + self.ranks - 1) % self.ranks;
    for (const char* algorithm : {"", "all_reduce:ring", "all_reduce:one_shot"}) {
      EXPECT_OK(self, koloCommSetAlgorithm(self.comm, algorithm));
      for (const std::size_t count : {std::size_t{1}, std::size_t{700}, kCount}) {
        value->fill(self.rank + 1);
        EXPECT_OK(self, koloAllReduce(value.data(), other.data(), count, koloInt32, koloSum, self.comm, stream.get()));
        EXPECT_OK(self, koloBroadcast(value.data(), value.data(), count, koloInt32, 1, self.comm, stream.get()));
        stream.synchronize();
        EXPECT(self, other->read(0, count) == std::vector<int>(count, self.ranks * (self.ranks + 1) / 2));
        EXPECT(self, value->read(0, count) == std::vector<int>(count, 2));
        value->fill(10 * self.rank);
        EXPECT_OK(self, koloGroupStart());
        EXPECT_OK(self, koloSend(value.data(), count, koloInt32, right, self.comm, stream.get()));
        EXPECT_OK(self, koloRecv(other.data(), count, koloInt32, left, self.comm, stream.get()));
        EXPECT_OK(self, koloGroupEnd());
        stream.synchronize();
        EXPECT(self, other->read(0, count) == std::vector<int>(count, 10 * left));
      }
    }
  });
}

}  // namespace

TEST_CASE("NICs reach the GPU's memory by a dma-buf, else by peer memory, else not, and results are the same",
          "[mock][gpudirect]") {
  struct Case {
    const char* name;
    MockCuda gpu;
    MockVerbs nics;
    const char* wish;
    bool byDmaBuf, byAddress;
  };
  const bool resident = GENERATE(false, true);
  const MockCuda gpu = gpuFor(3, resident);
  const auto with = [](auto properties, auto change) {
    change(properties);
    return properties;
  };
  const MockCuda withoutDmaBuf = with(gpu, [](MockCuda& it) { it.dmaBuf = false; });
  const MockVerbs nicsWithoutDmaBuf{.dmaBuf = false}, without{.dmaBuf = false, .peerMemory = false};
  const Case one = GENERATE_COPY(
      Case{"both", gpu, {}, "auto", true, false}, Case{"the GPU exports none", withoutDmaBuf, {}, "auto", false, true},
      Case{"the NIC takes none", gpu, nicsWithoutDmaBuf, "auto", false, true},
      Case{"neither", gpu, without, "auto", false, false},
      Case{"no peer memory either",
           with(withoutDmaBuf, [](MockCuda& it) { it.peerMemory = false; }),
           {},
           "auto",
           false,
           false},
      Case{"no order", with(gpu, [](MockCuda& it) { it.ordersWrites = false; }), {}, "auto", false, false},
      Case{"memory that is not from the virtual memory API",
           with(gpu, [](MockCuda& it) { it.sharesByFile = false; }),
           {},
           "auto",
           true,
           false},
      Case{"off", gpu, {}, "off", false, false}, Case{"forced dma-buf", gpu, {}, "dmabuf", true, false},
      Case{"forced peer memory", gpu, {}, "peermem", false, true});
  INFO(one.name << ", resident " << resident);
  const Scene scene(one.gpu, one.nics, one.wish);
  {
    const Ranks ranks(oneDevice(3), {.resident = resident});
    // An arena with each NIC for each rank, and a mirror for each of its peers.
    const int all = one.nics.nics * 3 * 3;
    CHECK(MockVerbs::deviceRegistrations(true) == (one.byDmaBuf ? all : 0));
    CHECK(MockVerbs::deviceRegistrations(false) == (one.byAddress ? all : 0));
    exchange(ranks);
  }
  CHECK(MockVerbs::registrations() == 0);
}

TEST_CASE("a forced way to the GPU's memory that is not possible is an error that says why",
          "[mock][gpudirect][failure]") {
  struct Case {
    MockCuda gpu;
    MockVerbs nics;
    const char *wish, *why;
  };
  MockCuda withoutDmaBuf = gpuFor(2), withoutPeerMemory = gpuFor(2), withoutOrder = gpuFor(2);
  withoutDmaBuf.dmaBuf = withoutPeerMemory.peerMemory = withoutOrder.ordersWrites = false;
  const Case one = GENERATE_COPY(
      Case{withoutDmaBuf, {}, "dmabuf", "device 0 exports no dma-buf"},
      Case{gpuFor(2), {.dmaBuf = false}, "dmabuf", "it takes Linux 5.12"},
      Case{withoutPeerMemory, {}, "peermem", "device 0 does not support peer memory"},
      Case{gpuFor(2), {.peerMemory = false}, "peermem", "nvidia-peermem"},
      Case{withoutOrder, {}, "dmabuf", "device 0 does not promise that its kernels see what a NIC writes in order"});
  const Scene scene(one.gpu, one.nics, one.wish);
  const Ranks ranks(oneDevice(2), {.mayFail = true});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    INFO(ranks.messages[rank]);
    CHECK(ranks.results[rank] == koloUnsupported);
    CHECK(ranks.messages[rank].find(std::string("KOLO_GPUDIRECT is ") + one.wish) != std::string::npos);
    CHECK(ranks.messages[rank].find("is reached by transport ib") != std::string::npos);
    CHECK(ranks.messages[rank].find(one.why) != std::string::npos);
  }
}

TEST_CASE("NICs that lose what they write into GPUs' memory, in silence, are found out before they are used",
          "[mock][gpudirect][failure]") {
  const bool forced = GENERATE(false, true);
  const Scene scene(gpuFor(3), {.losesDeviceWrites = true}, forced ? "dmabuf" : "auto");
  const Ranks ranks(oneDevice(3), {.mayFail = true});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    INFO(ranks.messages[rank]);
    CHECK(ranks.results[rank] == (forced ? koloUnsupported : koloSuccess));
    if (forced) CHECK(ranks.messages[rank].find("does not arrive (PCIe access control") != std::string::npos);
  }
  CHECK(MockVerbs::deviceRegistrations(true) == 0);
  if (!forced) exchange(ranks);
}

TEST_CASE("a registration that fails in the middle leaves nothing behind, and what it was for goes through the host",
          "[mock][gpudirect][failure]") {
  const int after =
      GENERATE(0, 1, 2, 3, 4, 5, 6, 7, 100);  // of 8: an arena and a mirror of two ranks, with two NICs each
  const bool forced = GENERATE(false, true);
  INFO("after " << after << ", forced " << forced);
  const Scene scene(gpuFor(2), {.peerMemory = false}, forced ? "dmabuf" : "auto");
  MockVerbs::failCall("regDmabufMr", ENOMEM, after);
  const Ranks ranks(oneDevice(2), {.mayFail = true});
  const bool fails = forced && after < 8;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    INFO(ranks.messages[rank]);
    CHECK(ranks.results[rank] == (fails ? koloUnsupported : koloSuccess));
    if (fails) CHECK(ranks.messages[rank].find("Cannot allocate memory") != std::string::npos);
  }
  if (fails) return;
  // Only what is registered with both NICs counts: some ends are in the GPU's memory then and others not.
  CHECK(MockVerbs::deviceRegistrations(true) <= std::min(after, 8));
  CHECK(MockVerbs::deviceRegistrations(true) % 2 == 0);
  exchange(ranks);
}

TEST_CASE("some peers by InfiniBand into the GPU's memory and others by TCP into the host's", "[mock][gpudirect]") {
  const bool forced = GENERATE(false, true);
  const Scene scene(gpuFor(4), {}, forced ? "dmabuf" : "auto");
  const SettingsScope lo({{"KOLO_TCP_INTERFACES", std::string("lo")}});
  const Ranks ranks(oneDevice(4), {.transportsOf = {"ib,tcp", "tcp", "ib,tcp", "ib,tcp"}, .mayFail = true});
  for (std::size_t rank = 0; rank < 4; ++rank) {
    INFO(ranks.messages[rank]);
    CHECK(ranks.results[rank] == (forced ? koloUnsupported : koloSuccess));
    if (forced) CHECK(ranks.messages[rank].find("transport tcp takes no memory of GPUs") != std::string::npos);
  }
  if (forced) return;
  CHECK(MockVerbs::deviceRegistrations(true) ==
        2 * 3 * 3);  // three ranks' arenas and two mirrors of each, with two NICs
  exchange(ranks);
}

TEST_CASE("a link into the GPU's memory that is lost ends the kernels that wait for it", "[mock][gpudirect][failure]") {
  const Scene scene(gpuFor(2), {}, "dmabuf");
  const Ranks ranks(oneDevice(2));
  const DeviceBuffer value(1000);
  const CudaStream stream;
  CHECK_CODE(koloSuccess, koloAllReduce(value.data(), value.data(), 1000, koloInt32, koloSum, ranks[0], stream.get()));
  for (const int nic : {0, 1}) MockVerbs::setPortDown(nic, true);
  CHECK(endsSoon([&] { stream.synchronize(); }));
  for (int rank = 0; rank < 2; ++rank) CHECK(errorHeard(ranks[rank]) == koloRemoteError);
}

// Not under the thread sanitizer: the credits that let a kernel write a slot of a mirror again are written by another
// process, which it does not see, and so it takes the NIC's earlier read of that slot for a race.
#ifndef __SANITIZE_THREAD__
TEST_CASE("processes by InfiniBand into each other's GPU's memory", "[mock][processes][gpudirect]") {
  const MockVerbs nics;
  nics.install();
  for (const char* wish : {"dmabuf", "peermem"}) {
    const Environment environment{{"KOLO_MOCK_VERBS", std::getenv("KOLO_MOCK_VERBS")}, {"KOLO_GPUDIRECT", wish}};
    for (const int ranks : {2, 3}) {
      INFO(wish << ", " << ranks << " ranks");
      extendDeadline(120s);
      Job job(ranks, "collectives", {"5003", "two-hosts"}, environment);
      job.expectSuccess();
    }
  }
  CHECK(MockVerbs::remove() == "");
}
#endif

TEST_CASE("a process that is killed, whose GPU's memory others write to, is named, and they go on",
          "[mock][processes][gpudirect]") {
  const MockVerbs nics;
  nics.install();
  const int ranks = GENERATE(2, 3);
  for (const Strings& words : {Strings{"two-hosts"}, Strings{"two-hosts", "resident"}}) {
    Job job(ranks, "waitInVain", words,
            {{"KOLO_MOCK_VERBS", std::getenv("KOLO_MOCK_VERBS")},
             {"KOLO_GPUDIRECT", "dmabuf"},
             {"KOLO_GPU_CHANNELS", "1"}});
    job.waitForLine("ready");
    job[ranks - 1].signal(SIGKILL);
    CHECK(job.wait(ranks - 1).killedBy(SIGKILL));
    for (int rank = 0; rank < ranks - 1; ++rank) {
      const Ended ended = job.wait(rank);
      INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
      CHECK(ended.exitedWith(0));
      CHECK(ended.output.find("failed " + std::to_string(koloRemoteError)) != std::string::npos);
      CHECK(ended.output.find("rank " + std::to_string(ranks - 1)) != std::string::npos);
    }
  }
  CHECK(MockVerbs::remove() == "");
}

}  // namespace kolo::test
