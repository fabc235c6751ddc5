// The life of communicators: split, shrink, finalise, destroy, abort; and those of one rank.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "support/collectives_table.h"
#include "support/one_core.h"
#include "support/ranks.h"
#include "support/settings.h"

using namespace kolo::test;
using Clock = std::chrono::steady_clock;

namespace {

// What a communicator's ranks are, as seen by one that is not part of the World's numbering.
void expectIs(Self& self, koloComm_t comm, int rank, int ranks) {
  int gotRank = -1, gotRanks = -1;
  EXPECT_OK(self, koloCommUserRank(comm, &gotRank));
  EXPECT_OK(self, koloCommCount(comm, &gotRanks));
  if (gotRank != rank || gotRanks != ranks) {
    self.fault(KOLO_HERE, "is rank " + std::to_string(gotRank) + " of " + std::to_string(gotRanks) + ", expected " +
                              std::to_string(rank) + " of " + std::to_string(ranks));
  }
  Self part{rank, ranks, comm, {}};
  expectWorks(part);
  self.faults.insert(self.faults.end(), part.faults.begin(), part.faults.end());
}

}  // namespace

TEST_CASE("a communicator says how many cores its ranks may use together") {
  const auto expectCores = [](int expected) {
    const World world(3);
    world.run([&](Self& self) {
      int cores = 0;
      EXPECT_OK(self, koloCommCores(self.comm, &cores));
      EXPECT(self, cores == expected);
    });
  };
  cpu_set_t allowed;
  REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  {
    const OneCore one;
    expectCores(1);
  }
  const World world(1);
  world.run([&](Self& self) {
    int cores = 0;
    EXPECT_OK(self, koloCommCores(self.comm, &cores));
    EXPECT(self, cores >= 1 && cores <= CPU_COUNT(&allowed));  // less by a quota
  });
}

TEST_CASE("version, names and phrases are there for every value") {
  int version = 0;
  REQUIRE_OK(koloGetVersion(&version));
  CHECK(version == KOLO_VERSION_CODE);
  for (int code = 0; code < koloNumResults; ++code) {
    INFO(code);
    CHECK(std::string(koloGetErrorString(static_cast<koloResult_t>(code))) != "unknown result code");
  }
  CHECK(koloGetErrorString(koloNumResults) != nullptr);
  CHECK(koloGetErrorString(static_cast<koloResult_t>(-7)) != nullptr);
  for (int type = 0; type < koloNumDatatypes; ++type) {
    CHECK(koloDataTypeSize(static_cast<koloDataType_t>(type)) > 0);
    CHECK(koloDataTypeName(static_cast<koloDataType_t>(type)) != nullptr);
  }
  CHECK(koloDataTypeSize(koloComplex128) == 16);
  CHECK(koloDataTypeSize(koloNumDatatypes) == 0);
  CHECK(koloDataTypeName(koloNumDatatypes) == nullptr);
  for (int op = 0; op < koloNumOps; ++op) CHECK(koloRedOpName(static_cast<koloRedOp_t>(op)) != nullptr);
  CHECK(koloRedOpName(koloNumOps) == nullptr);
  for (int c = 0; c < koloNumCollectives; ++c) CHECK(koloCollectiveName(static_cast<koloCollective_t>(c)) != nullptr);
  CHECK(koloCollectiveName(koloNumCollectives) == nullptr);
}

TEST_CASE("a communicator of one rank does everything by itself") {
  World world(1);
  world.run([](Self& self) {
    expectIs(self, self.comm, 0, 1);
    for (const Collective& collective : collectives()) {
      for (const size_t count : {size_t{1}, size_t{10}, size_t{300000}}) {
        std::vector<int> send(count, 42), recv(count, -1);
        Arguments arguments;
        arguments.send = send.data();
        arguments.recv = recv.data();
        arguments.count = count;
        arguments.comm = self.comm;
        EXPECT_OK(self, collective.call(arguments));
        EXPECT(self, recv == send);
        arguments.recv = send.data();
        EXPECT_OK(self, collective.call(arguments));
        EXPECT(self, send.front() == 42 && send.back() == 42);
      }
    }
    const size_t counts[] = {3}, displs[] = {2};
    const std::vector<int> send = {1, 2, 3, 4, 5};
    std::vector<int> recv(5, -1);
    EXPECT_OK(self, koloAllGatherv(send.data(), recv.data(), counts, displs, koloInt32, self.comm, nullptr));
    EXPECT(self, (recv == std::vector<int>{-1, -1, 1, 2, 3}));
    recv.assign(5, -1);
    EXPECT_OK(self,
              koloReduceScatterv(send.data(), recv.data(), counts, displs, koloInt32, koloSum, self.comm, nullptr));
    EXPECT(self, (recv == std::vector<int>{3, 4, 5, -1, -1}));
    recv.assign(5, -1);
    EXPECT_OK(self,
              koloAllToAllv(send.data(), counts, nullptr, recv.data(), counts, displs, koloInt32, self.comm, nullptr));
    EXPECT(self, (recv == std::vector<int>{-1, -1, 1, 2, 3}));
    recv.assign(5, -1);
    EXPECT_OK(self, koloGatherv(send.data(), 3, recv.data(), counts, displs, koloInt32, 0, self.comm, nullptr));
    EXPECT(self, (recv == std::vector<int>{-1, -1, 1, 2, 3}));
    recv.assign(5, -1);
    EXPECT_OK(self, koloScatterv(send.data(), counts, displs, recv.data(), 3, koloInt32, 0, self.comm, nullptr));
    EXPECT(self, (recv == std::vector<int>{3, 4, 5, -1, -1}));
    koloComm_t child = nullptr, rest = nullptr;
    EXPECT_OK(self, koloCommSplit(self.comm, 3, 0, &child, nullptr));
    expectIs(self, child, 0, 1);
    EXPECT_OK(self, koloCommShrink(child, nullptr, 0, &rest, nullptr));
    expectIs(self, rest, 0, 1);
    EXPECT_OK(self, koloCommDestroy(child));
    EXPECT_OK(self, koloCommDestroy(rest));
  });
}

TEST_CASE("splits overlap, leave ranks out, and order by key and then by rank", "[threads][links]") {
  World world(5);
  world.run([](Self& self) {
    koloComm_t reversed = nullptr, same = nullptr, parity = nullptr, none = reinterpret_cast<koloComm_t>(&self);
    EXPECT_OK(self, koloCommSplit(self.comm, 0, -self.rank, &reversed, nullptr));
    EXPECT_OK(self, koloCommSplit(self.comm, 7, 0, &same, nullptr));
    EXPECT_OK(self, koloCommSplit(self.comm, self.rank % 2, 0, &parity, nullptr));
    EXPECT_OK(self, koloCommSplit(self.comm, self.rank == 2 ? KOLO_SPLIT_NOCOLOR : 1, self.rank, &none, nullptr));
    expectIs(self, reversed, 4 - self.rank, 5);
    expectIs(self, same, self.rank, 5);
    expectIs(self, parity, self.rank / 2, self.rank % 2 == 0 ? 3 : 2);
    if (self.rank == 2) {
      EXPECT(self, none == KOLO_COMM_NULL);
    } else {
      expectIs(self, none, self.rank > 2 ? self.rank - 1 : self.rank, 4);
      EXPECT_OK(self, koloCommDestroy(none));
    }
    koloComm_t grandchild = nullptr;
    EXPECT_OK(self, koloCommSplit(reversed, 0, 0, &grandchild, nullptr));
    expectIs(self, grandchild, 4 - self.rank, 5);
    // Children outlive their parents.
    EXPECT_OK(self, koloCommDestroy(reversed));
    expectIs(self, grandchild, 4 - self.rank, 5);
    EXPECT_OK(self, koloCommDestroy(grandchild));
    EXPECT_OK(self, koloCommDestroy(same));
    EXPECT_OK(self, koloCommDestroy(parity));
    expectWorks(self);
  });
}

TEST_CASE("the failure of a child leaves the parent alone", "[links]") {
  World world(3);
  world.run([](Self& self) {
    koloComm_t child = nullptr;
    EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &child, nullptr));
    int value = 1, sum = 0;
    const size_t count = self.rank == 1 ? 0 : 1;
    (void)koloAllReduce(&value, &sum, count, koloInt32, koloSum, child, nullptr);
    EXPECT_CODE(self, koloMismatch, awaitFailure(child));
    koloResult_t async = koloInternalError;
    EXPECT_OK(self, koloCommGetAsyncError(self.comm, &async));
    EXPECT(self, async == koloSuccess);
    expectWorks(self);
    EXPECT_OK(self, koloCommDestroy(child));
    expectWorks(self);
  });
}

TEST_CASE("the abort of one of many children leaves its siblings, its parent and its own children alone",
          "[threads][links]") {
  World world(3);
  world.run([](Self& self) {
    koloComm_t child = nullptr, sibling = nullptr, grandchild = nullptr;
    EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &child, nullptr));
    EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &sibling, nullptr));
    EXPECT_OK(self, koloCommSplit(child, 0, 0, &grandchild, nullptr));
    EXPECT_OK(self, koloBarrier(sibling, nullptr));  // whose end says that no split is under way
    if (self.rank == 1) {
      EXPECT_OK(self, koloCommAbort(child));
    } else {
      EXPECT_CODE(self, koloAborted, koloBarrier(child, nullptr));
      EXPECT(self, messageHas("rank 1 called koloCommAbort"));
      koloComm_t none = nullptr;
      EXPECT_CODE(self, koloAborted, koloCommSplit(child, 0, 0, &none, nullptr));
      EXPECT_OK(self, koloCommDestroy(child));
    }
    expectIs(self, sibling, self.rank, 3);
    expectIs(self, grandchild, self.rank, 3);
    expectWorks(self);
    EXPECT_OK(self, koloCommDestroy(sibling));
    EXPECT_OK(self, koloCommDestroy(grandchild));
  });
}

TEST_CASE("an abort ends the splits of those who wait for the rank, the first one and a later one", "[threads]") {
  for (const bool isFirst : {true, false}) {
    World world(3);
    if (!isFirst) {
      world.run([](Self& self) {
        koloComm_t child = nullptr;
        EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &child, nullptr));
        EXPECT_OK(self, koloCommDestroy(child));
      });
    }
    world.run([](Self& self) {
      koloComm_t child = nullptr;
      if (self.rank == 1) {
        EXPECT_OK(self, koloCommAbort(self.comm));
        self.comm = nullptr;
      } else {
        EXPECT_CODE(self, koloAborted, koloCommSplit(self.comm, 0, 0, &child, nullptr));
        EXPECT(self, messageHas("rank 1 called koloCommAbort"));
      }
    });
  }
}

TEST_CASE("a split ends for those who wait for a rank that destroys the communicator, and what they share lives on",
          "[threads]") {
  koloConfig_t config = defaultConfig();
  config.transports = "shm";  // over a network nobody hears of that before the time is over
  World world(3, config);
  world.run([](Self& self) {
    koloComm_t parent = nullptr, child = nullptr, none = nullptr;
    EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &parent, nullptr));
    EXPECT_OK(self, koloCommSplit(parent, 0, 0, &child, nullptr));
    if (self.rank != 1) {
      EXPECT_CODE(self, koloRemoteError, koloCommSplit(parent, 0, 0, &none, nullptr));
      EXPECT(self, messageHas("rank 1 has destroyed its communicator") || messageHas("has given up on this: rank 1"));
    }
    EXPECT_OK(self, koloCommDestroy(parent));
    expectIs(self, child, self.rank, 3);
    expectWorks(self);
    EXPECT_OK(self, koloCommDestroy(child));
  });
}

TEST_CASE("a split, and the end of the communicator in another thread, come one after the other", "[threads]") {
  World world(3);
  world.run([](Self& self) {
    for (int round = 0; round < 20; ++round) {
      koloComm_t parent = nullptr, child = nullptr;
      EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &parent, nullptr));
      std::thread other([&] { EXPECT_OK(self, koloCommFinalize(parent)); });
      EXPECT_OK(self, koloCommSplit(parent, 0, 0, &child, nullptr));
      other.join();
      expectIs(self, child, self.rank, 3);
      EXPECT_OK(self, koloCommDestroy(child));
      EXPECT_OK(self, koloCommDestroy(parent));
      expectWorks(self);
    }
  });
}

TEST_CASE("a split that a rank cannot take part in fails on all ranks, who can split again") {
  World world(3);
  world.run([](Self& self) {
    for (int round = 0; round < 3; ++round) {
      koloConfig_t config = defaultConfig();
      if (self.rank == round) config.timeoutMs = -5;
      koloComm_t child = nullptr;
      EXPECT_CODE(self, koloInvalidArgument, koloCommSplit(self.comm, 0, 0, &child, &config));
      EXPECT(self, messageHas("timeoutMs is -5"));
      EXPECT(self, self.rank == round || messageHas(("on rank " + std::to_string(round)).c_str()));
      config = defaultConfig();
      config.reproducible = self.rank == round ? 1 : 0;
      EXPECT_CODE(self, koloMismatch, koloCommSplit(self.comm, 0, 0, &child, &config));
      EXPECT(self, messageHas("settings differ"));
      EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &child, nullptr));
      expectIs(self, child, self.rank, 3);
      EXPECT_OK(self, koloCommDestroy(child));
    }
  });
}

TEST_CASE("a split that a rank is late for fails with its name and the setting, and the next one works") {
  withSettings({{"KOLO_INIT_TIMEOUT_MS", "2000"}}, [] {
    koloConfig_t config = defaultConfig();
    config.transports = "shm";  // the control plane has other words for it
    World world(3, config);
    std::atomic<int> gaveUp{0};
    world.run([&](Self& self) {
      koloComm_t child = nullptr;
      EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &child, nullptr));
      EXPECT_OK(self, koloCommDestroy(child));
      if (self.rank == 2) {
        while (gaveUp < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_CODE(self, koloTimeout, koloCommSplit(self.comm, 0, 0, &child, nullptr));
        EXPECT(self, messageHas("has given up on this: waited 2000 ms (KOLO_INIT_TIMEOUT_MS) for rank 2"));
      } else {
        EXPECT_CODE(self, koloTimeout, koloCommSplit(self.comm, 0, 0, &child, nullptr));
        EXPECT(self, messageHas("rank 2") && messageHas("KOLO_INIT_TIMEOUT_MS"));
        ++gaveUp;
      }
      expectWorks(self);
      EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &child, nullptr));
      expectIs(self, child, self.rank, 3);
      EXPECT_OK(self, koloCommDestroy(child));
    });
  });
}

TEST_CASE("memory that a destroyed communicator used is used again, whatever was left in it", "[threads]") {
  World world(4);
  world.run([](Self& self) {
    std::vector<int> values(30000), sums(values.size());
    for (int round = 0; round < 60; ++round) {
      koloComm_t child = nullptr;
      EXPECT_OK(self, koloCommSplit(self.comm, round % 3 == 0 ? self.rank % 2 : 0, 0, &child, nullptr));
      int ranks = 0, one = 1;
      EXPECT_OK(self, koloCommCount(child, &ranks));
      // What is sent and not received, given and not taken, stays behind.
      EXPECT_OK(self, koloSend(&one, 1, koloInt32, 0, child, nullptr));
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = round + static_cast<int>(i);
      const bool aborts = round % 5 == 4;
      const koloResult_t result =
          koloAllReduce(values.data(), sums.data(), values.size() >> round % 4 * 3, koloInt32, koloSum, child, nullptr);
      // Rank 0 aborts when its own part is over.
      EXPECT(self, result == koloSuccess || (aborts && result == koloAborted));
      EXPECT(self, result != koloSuccess || sums[7] == ranks * (round + 7));
      if (aborts && self.rank == 0) {
        EXPECT_OK(self, koloCommAbort(child));
      } else {
        (void)koloCommDestroy(child);  // of one that a peer aborts, an error
      }
    }
    expectWorks(self);
  });
}

TEST_CASE("communicators that share links read by them in several threads at once", "[threads]") {
  withSettings({{"KOLO_SINGLE_COPY_BYTES", "0"}}, [] {
    World world(2);
    world.run([](Self& self) {
      constexpr std::size_t kChildren = 4, kCount = 20000;
      std::array<koloComm_t, kChildren> children{};
      for (koloComm_t& child : children) EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &child, nullptr));
      std::atomic<int> wrong{0};
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < kChildren; ++t) {
        threads.emplace_back([&, t] {
          const int mine = 10 * self.rank + static_cast<int>(t);
          std::vector<int> send(kCount, mine), recv(2 * kCount);
          for (int round = 0; round < 10; ++round) {
            std::fill(recv.begin(), recv.end(), -1);
            const koloResult_t result =
                koloAllGather(send.data(), recv.data(), kCount, koloInt32, children[t], nullptr);
            const int other = 10 - 10 * self.rank + static_cast<int>(t);
            if (result != koloSuccess || recv[static_cast<std::size_t>(1 - self.rank) * kCount + 7] != other) ++wrong;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT(self, wrong == 0);
      for (const koloComm_t child : children) EXPECT_OK(self, koloCommDestroy(child));
    });
  });
}

TEST_CASE("a split may ask for other transports than its parent's, and its windows are its own", "[links]") {
  World world(2);
  world.run([](Self& self) {
    koloConfig_t config = defaultConfig();
    config.transports = "tcp";
    koloComm_t apart = nullptr, child = nullptr;
    EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &apart, &config));
    expectIs(self, apart, self.rank, 2);
    EXPECT_OK(self, koloCommSplit(apart, 0, 0, &child, nullptr));
    expectIs(self, child, self.rank, 2);
    EXPECT_OK(self, koloCommDestroy(child));
    EXPECT_OK(self, koloCommDestroy(apart));
    koloComm_t children[2] = {};
    koloWindow_t windows[2] = {};
    void* memory[2] = {};
    for (int i = 0; i < 2; ++i) {
      EXPECT_OK(self, koloCommSplit(self.comm, 0, -self.rank, &children[i], nullptr));
      EXPECT_OK(self, koloMemAlloc(&memory[i], 4096));
      EXPECT_OK(self, koloWindowRegister(children[i], memory[i], 4096, &windows[i]));
    }
    for (int i = 0; i < 2; ++i) {
      auto* const values = static_cast<int*>(memory[i]);
      values[0] = values[1] = self.rank + i;
      EXPECT_OK(self, koloAllReduce(values, values + 512, 512, koloInt32, koloSum, children[i], nullptr));
      EXPECT(self, values[512] == 1 + 2 * i);
    }
    EXPECT_OK(self, koloWindowDeregister(children[0], windows[0]));
    for (int i = 0; i < 2; ++i) {
      EXPECT_OK(self, koloCommDestroy(children[i]));
      EXPECT_OK(self, koloMemFree(memory[i]));
    }
  });
}

TEST_CASE("shrink leaves the excluded out, also of a communicator that has failed", "[links]") {
  World world(4);
  world.run([](Self& self) {
    koloComm_t rest = nullptr;
    const int excluded[] = {2};
    if (self.rank != 2) {
      EXPECT_OK(self, koloCommShrink(self.comm, excluded, 1, &rest, nullptr));
      expectIs(self, rest, self.rank > 2 ? self.rank - 1 : self.rank, 3);
    }
    // Now the parent fails; shrinking goes on from it.
    int value = 1, sum = 0;
    (void)koloAllReduce(&value, &sum, self.rank == 0 ? size_t{0} : size_t{1}, koloInt32, koloSum, self.comm, nullptr);
    EXPECT(self, awaitFailure(self.comm) == koloMismatch);
    koloComm_t all = nullptr;
    if (self.rank != 2) {
      EXPECT_OK(self, koloCommShrink(self.comm, excluded, 1, &all, nullptr));
      expectIs(self, all, self.rank > 2 ? self.rank - 1 : self.rank, 3);
      EXPECT_OK(self, koloCommDestroy(all));
      EXPECT_OK(self, koloCommDestroy(rest));
    }
  });
}

namespace {

// A progress function: the rank waits.
void noteWait(void* waits) { *static_cast<std::atomic<bool>*>(waits) = true; }

// Ranks 0 and 1 wait while a thread of rank 2's aborts: how long after that the later of them knows.
Clock::duration abortUnder(const std::string& what) {
  std::array<std::atomic<bool>, 2> waits{};
  World world(3);
  std::atomic<std::int64_t> abortedAt{0};
  std::array<Clock::duration, 2> late{};
  std::thread aborter([&] {
    while (!waits[0] || !waits[1]) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    abortedAt = Clock::now().time_since_epoch().count();
    koloCommAbort(world[2]);
    world[2] = nullptr;
  });
  runOn({world[0], world[1]}, [&](Self& self) {
    std::vector<int> send(10000), recv(10000);
    std::atomic<bool>& mine = waits[static_cast<size_t>(self.rank)];
    EXPECT_OK(self, koloCommSetProgress(self.comm, noteWait, &mine));
    if (what == "all_reduce") {
      EXPECT_CODE(self, koloAborted,
                  koloAllReduce(send.data(), recv.data(), 10000, koloInt32, koloSum, self.comm, nullptr));
    } else if (what == "barrier") {
      EXPECT_CODE(self, koloAborted, koloBarrier(self.comm, nullptr));
    } else if (what == "recv") {
      EXPECT_CODE(self, koloAborted, koloRecv(recv.data(), 10000, koloInt32, 2, self.comm, nullptr));
    } else if (what == "any source") {
      EXPECT_CODE(self, koloAborted,
                  koloRecvTag(recv.data(), 1, koloInt32, KOLO_ANY_SOURCE, 0, nullptr, self.comm, nullptr));
    } else {
      koloStream_t stream = nullptr;
      EXPECT_OK(self, koloStreamCreate(&stream));
      EXPECT_OK(self, koloBarrier(self.comm, stream));
      mine = true;  // or will: the stream's thread calls no progress function
      EXPECT_CODE(self, koloAborted, koloStreamSynchronize(stream));
      EXPECT_OK(self, koloStreamDestroy(stream));
    }
    EXPECT(self, messageHas("rank 2 called koloCommAbort"));
    late[static_cast<size_t>(self.rank)] = Clock::now().time_since_epoch() - Clock::duration(abortedAt);
    EXPECT_CODE(self, koloAborted, koloBarrier(self.comm, nullptr));
  });
  aborter.join();
  return std::max(late[0], late[1]);
}

}  // namespace

TEST_CASE("abort from another thread ends every rank's wait within a second", "[threads][links][optimised]") {
  constexpr Clock::duration kMost = std::chrono::seconds(kSlowness);
  for (const char* what : {"all_reduce", "barrier", "recv", "stream", "any source"}) {
    INFO(what);
    CHECK(abortUnder(what) < kMost);
  }
}

TEST_CASE("a rank's own wait ends when another of its threads aborts", "[threads][links]") {
  std::atomic<bool> waiting{false};
  World world(2);
  REQUIRE_OK(koloCommSetProgress(world[0], noteWait, &waiting));
  koloResult_t result = koloSuccess;
  std::thread waiter([&] { result = koloBarrier(world[0], nullptr); });
  while (!waiting) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  REQUIRE_OK(koloCommAbort(world[0]));
  world[0] = nullptr;
  place(KOLO_HERE ": joining the waiter");
  waiter.join();
  CHECK(result == koloAborted);
  CHECK(awaitFailure(world[1]) == koloAborted);
  CHECK_CODE(koloAborted, koloBarrier(world[1], nullptr));
}

namespace {

// A progress function that gives up: its thread need not wait any longer.
void giveUp(void* comm) { (void)koloCommRevoke(static_cast<koloComm_t>(comm), "it took too long"); }

}  // namespace

TEST_CASE("a progress function, or one that watches, ends what it is part of, on all ranks, for its reason",
          "[threads][links]") {
  const auto set = GENERATE(false, true) ? koloCommSetProgress : koloCommSetWatch;
  World world(3);
  world.run([&](Self& self) {
    int send = 1, recv = 0;
    if (self.rank == 0) EXPECT_OK(self, set(self.comm, giveUp, self.comm));
    // The others wait for rank 2, in a collective and for a message.
    if (self.rank == 2) EXPECT(self, awaitFailure(self.comm) == koloAborted);
    const koloResult_t result = self.rank == 1 ? koloRecv(&recv, 1, koloInt32, 2, self.comm, nullptr)
                                               : koloAllReduce(&send, &recv, 1, koloInt32, koloSum, self.comm, nullptr);
    EXPECT(self, result == koloAborted);
    EXPECT(self, messageHas("rank 0 called koloCommRevoke"));
    EXPECT(self, messageHas("it took too long"));
    const int excluded[] = {2};
    koloComm_t rest = nullptr;
    if (self.rank != 2) {
      EXPECT_OK(self, koloCommShrink(self.comm, excluded, 1, &rest, nullptr));
      EXPECT_OK(self, koloAllReduce(&send, &recv, 1, koloInt32, koloSum, rest, nullptr));
      EXPECT_OK(self, koloCommDestroy(rest));
    }
  });
}

TEST_CASE("a communicator is revoked from another thread, once", "[threads]") {
  std::atomic<bool> waiting{false};
  World world(2);
  REQUIRE_OK(koloCommSetProgress(world[0], noteWait, &waiting));
  koloResult_t result = koloSuccess;
  std::string message;
  std::thread waiter([&] {
    result = koloBarrier(world[0], nullptr);
    message = koloGetLastError(nullptr);
  });
  while (!waiting) std::this_thread::yield();
  REQUIRE_OK(koloCommRevoke(world[0], "first"));
  REQUIRE_OK(koloCommRevoke(world[0], "second"));
  waiter.join();
  CHECK(result == koloAborted);
  CHECK(message.find("first") != std::string::npos);
  CHECK(awaitFailure(world[1]) == koloAborted);
  CHECK_CODE(koloAborted, koloBarrier(world[1], nullptr));
}

TEST_CASE("the end of a communicator that waits is revoked, and aborted", "[threads]") {
  for (const bool aborts : {false, true}) {
    std::atomic<bool> waiting{false};
    World world(2);
    const koloComm_t comm = std::exchange(world[0], nullptr);
    REQUIRE_OK(koloCommSetProgress(comm, noteWait, &waiting));
    const std::vector<int> data(1'000'000);
    koloRequest_t request = nullptr;  // for which the other rank has no receive
    REQUIRE_OK(koloIsend(data.data(), data.size(), koloInt32, 1, 0, comm, &request));
    koloResult_t result = koloSuccess;
    std::thread ender([&] { result = koloCommDestroy(comm); });
    while (!waiting) std::this_thread::yield();
    if (aborts) {
      REQUIRE_OK(koloCommAbort(comm));
    } else {
      REQUIRE_OK(koloCommRevoke(comm, "enough"));
    }
    ender.join();
    CHECK(result == koloAborted);
    CHECK_CODE(koloAborted, koloRequestWait(request, -1));
    REQUIRE_OK(koloRequestFree(request));
    CHECK_CODE(koloInvalidHandle, koloCommDestroy(comm));
    CHECK_CODE(koloAborted, koloBarrier(world[1], nullptr));
  }
}

TEST_CASE("a communicator that is taken away under the feet of other threads' calls is refused to them, not freed",
          "[threads][optimised]") {
  for (int round = 0; round < (kSanitized ? 20 : 100); ++round) {
    World world(2);
    const koloComm_t comm = world[0];
    std::atomic<int> ready{0};
    std::atomic<bool> wrong{false};
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i) {
      callers.emplace_back([&, i] {
        ++ready;
        for (koloResult_t result = koloSuccess; result == koloSuccess;) {
          int value = 0;
          result = i == 0 ? koloBarrier(comm, nullptr) : koloCommCount(comm, &value);
          if (result == koloSuccess && i != 0 && value != 2) wrong = true;
          if (result != koloSuccess && result != koloAborted && result != koloInvalidHandle) wrong = true;
        }
      });
    }
    std::thread other([&] {
      while (koloBarrier(world[1], nullptr) == koloSuccess) {
      }
    });
    while (ready < 3) std::this_thread::yield();
    REQUIRE_OK(koloCommAbort(comm));
    world[0] = nullptr;
    for (std::thread& caller : callers) caller.join();
    other.join();
    CHECK(!wrong);
  }
}

// The group has only noted its operations: it must not hold up who takes the communicator away.
TEST_CASE("a communicator and a stream can be taken away while another thread has them in an open group", "[threads]") {
  World world(2);
  koloStream_t stream = nullptr;
  REQUIRE_OK(koloStreamCreate(&stream));
  int value = 0;
  REQUIRE_OK(koloGroupStart());
  REQUIRE_OK(koloAllReduce(&value, &value, 1, koloInt32, koloSum, world[0], nullptr));
  std::thread([&] { CHECK_CODE(koloSuccess, koloCommAbort(world[0])); }).join();
  world[0] = nullptr;
  CHECK_CODE(koloInvalidHandle, koloGroupEnd());
  CHECK(messageHas("destroyed before koloGroupEnd"));
  World other(1);
  REQUIRE_OK(koloGroupStart());
  REQUIRE_OK(koloAllReduce(&value, &value, 1, koloInt32, koloSum, other[0], stream));
  std::thread([&] { CHECK_CODE(koloSuccess, koloStreamDestroy(stream)); }).join();
  CHECK_CODE(koloInvalidHandle, koloGroupEnd());
  CHECK_CODE(koloSuccess, koloBarrier(other[0], nullptr));
}

TEST_CASE("a forked child has none of its parent's communicators, streams and windows") {
  World world(2);
  koloStream_t stream = nullptr;
  REQUIRE_OK(koloStreamCreate(&stream));
  const pid_t child = fork();
  if (child == 0) {
    int value = 0;
    const bool refused = koloAllReduce(&value, &value, 1, koloInt32, koloSum, world[0], nullptr) == koloInvalidHandle &&
                         messageHas("forked") && koloCommDestroy(world[1]) == koloInvalidHandle &&
                         koloStreamSynchronize(stream) == koloInvalidHandle &&
                         koloCommAbort(world[0]) == koloInvalidHandle;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  world.run([](Self& self) { expectWorks(self); });
  REQUIRE_OK(koloStreamDestroy(stream));
}

TEST_CASE("of several threads that destroy one communicator at a time, one does", "[threads]") {
  for (int round = 0; round < 20; ++round) {
    World world(1);
    const koloComm_t comm = world[0];
    std::atomic<int> destroyed{0}, refused{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        const koloResult_t result = koloCommDestroy(comm);
        if (result == koloSuccess) ++destroyed;
        if (result == koloInvalidHandle) ++refused;
      });
    }
    for (std::thread& thread : threads) thread.join();
    world[0] = nullptr;
    CHECK(destroyed == 1);
    CHECK(refused == 2);
  }
}

TEST_CASE("a finalised communicator refuses operations and can still be asked and destroyed") {
  World world(2);
  world.run([](Self& self) {
    expectWorks(self);
    EXPECT_OK(self, koloCommFinalize(self.comm));
    int value = 1;
    EXPECT_CODE(self, koloInvalidUsage, koloAllReduce(&value, &value, 1, koloInt32, koloSum, self.comm, nullptr));
    EXPECT(self, messageHas("finalised"));
    EXPECT_CODE(self, koloInvalidUsage, koloSend(&value, 1, koloInt32, 0, self.comm, nullptr));
    int rank = -1;
    EXPECT_OK(self, koloCommUserRank(self.comm, &rank));
    EXPECT(self, rank == self.rank);
  });
}

TEST_CASE("koloGetLastError is the calling thread's own") {
  World world(1);
  CHECK_CODE(koloInvalidHandle, koloBarrier(nullptr, nullptr));
  const std::string mine = koloGetLastError(nullptr);
  std::string theirs = "unset";
  std::thread other([&] { theirs = koloGetLastError(nullptr); });
  other.join();
  CHECK(theirs.empty());
  CHECK(mine.find("koloBarrier") != std::string::npos);
  CHECK(koloGetLastError(nullptr) == mine);
  CHECK(koloGetLastError(world[0]) != nullptr);
}

TEST_CASE("two worlds of one process know nothing of each other", "[threads]") {
  World one(2), two(3);
  std::thread other([&] {
    two.run([](Self& self) {
      for (int i = 0; i < 50; ++i) expectWorks(self);
    });
  });
  one.run([](Self& self) {
    for (int i = 0; i < 50; ++i) expectWorks(self);
  });
  other.join();
}

TEST_CASE("communicators come and go many times", "[threads][links]") {
  const auto cycle = [] {
    World world(2);
    world.run([](Self& self) {
      expectWorks(self);
      koloComm_t child = nullptr;
      EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &child, nullptr));
      EXPECT_OK(self, koloCommDestroy(child));
    });
  };
  for (int i = 0; i < (kSanitized ? 10 : 50); ++i) cycle();
}
