// Streams: order, query, several of them, and communicators driven from several threads.
#include <array>
#include <atomic>
#include <chrono>
#include <numeric>

#include "support/ranks.h"

using namespace kolo::test;

TEST_CASE("operations of a stream run in their order", "[threads][links]") {
  World world(3);
  world.run([](Self& self) {
    koloStream_t stream = nullptr;
    EXPECT_OK(self, koloStreamCreate(&stream));
    EXPECT_OK(self, koloStreamQuery(stream));
    // Each step needs the result of the one before.
    std::vector<int> values(101, 0);
    values[0] = 1;
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      EXPECT_OK(self, koloAllReduce(&values[i], &values[i + 1], 1, koloInt32, i % 16 == 0 ? koloSum : koloMax,
                                    self.comm, stream));
    }
    EXPECT_OK(self, koloStreamSynchronize(stream));
    EXPECT_OK(self, koloStreamQuery(stream));
    EXPECT(self, values.back() == 3 * 3 * 3 * 3 * 3 * 3 * 3);
    EXPECT_OK(self, koloStreamDestroy(stream));
  });
}

TEST_CASE("a stream is in progress until the last rank has called") {
  World world(2);
  std::atomic<bool> asked{false};
  world.run([&](Self& self) {
    koloStream_t stream = nullptr;
    EXPECT_OK(self, koloStreamCreate(&stream));
    if (self.rank == 0) {
      EXPECT_OK(self, koloBarrier(self.comm, stream));
      EXPECT_CODE(self, koloInProgress, koloStreamQuery(stream));
      asked = true;
    } else {
      while (!asked) std::this_thread::yield();
      EXPECT_OK(self, koloBarrier(self.comm, stream));
    }
    EXPECT_OK(self, koloStreamSynchronize(stream));
    EXPECT_OK(self, koloStreamDestroy(stream));
  });
}

TEST_CASE("several streams on one communicator, issued in the same order on all ranks", "[threads]") {
  World world(3);
  world.run([](Self& self) {
    std::array<koloStream_t, 3> streams{};
    for (koloStream_t& stream : streams) EXPECT_OK(self, koloStreamCreate(&stream));
    std::vector<int> send(90), recv(90, -1);
    std::iota(send.begin(), send.end(), self.rank);
    for (size_t i = 0; i < send.size(); ++i) {
      EXPECT_OK(self, koloAllReduce(&send[i], &recv[i], 1, koloInt32, koloSum, self.comm, streams[i * i % 3]));
      if (i % 10 == 0) expectWorks(self);
    }
    for (koloStream_t stream : streams) EXPECT_OK(self, koloStreamSynchronize(stream));
    for (size_t i = 0; i < send.size(); ++i) EXPECT(self, recv[i] == 3 * static_cast<int>(i) + 3);
    for (koloStream_t stream : streams) EXPECT_OK(self, koloStreamDestroy(stream));
  });
}

TEST_CASE("destroying a stream or a communicator waits for what was issued", "[threads]") {
  for (const bool streamFirst : {true, false}) {
    World world(2);
    world.run([&](Self& self) {
      koloStream_t stream = nullptr;
      EXPECT_OK(self, koloStreamCreate(&stream));
      std::vector<int> data(20000, 1);
      for (int i = 0; i < 5; ++i) {
        EXPECT_OK(self, koloAllReduce(data.data(), data.data(), data.size(), koloInt32, koloSum, self.comm, stream));
      }
      if (streamFirst) {
        EXPECT_OK(self, koloStreamDestroy(stream));
        EXPECT(self, data.front() == 32 && data.back() == 32);
      } else {
        EXPECT_OK(self, koloCommFinalize(self.comm));
        EXPECT(self, data.front() == 32 && data.back() == 32);
        EXPECT_CODE(self, koloInvalidUsage, koloBarrier(self.comm, stream));
        EXPECT_OK(self, koloStreamDestroy(stream));
      }
    });
  }
}

TEST_CASE("overlapping communicators driven from different threads at the same time", "[threads][links]") {
  World world(4);
  world.run([](Self& self) {
    koloComm_t twin = nullptr, half = nullptr;
    EXPECT_OK(self, koloCommSplit(self.comm, 0, self.ranks - self.rank, &twin, nullptr));
    EXPECT_OK(self, koloCommSplit(self.comm, self.rank / 2, 0, &half, nullptr));
    const auto drive = [&](koloComm_t comm, int sum, std::vector<std::string>& faults) {
      Self part{self.rank, self.ranks, comm, {}};
      for (int i = 0; i < 60; ++i) {
        std::vector<int> send(i % 2 == 0 ? 1 : 5000, self.rank + 1), recv(send.size());
        EXPECT_OK(part, koloAllReduce(send.data(), recv.data(), send.size(), koloInt32, koloSum, comm, nullptr));
        EXPECT(part, recv.front() == sum && recv.back() == sum);
      }
      faults = part.faults;
    };
    std::array<std::vector<std::string>, 3> faults;
    std::thread one([&] { drive(twin, 10, faults[0]); }),
        two([&] { drive(half, self.rank / 2 == 0 ? 3 : 7, faults[1]); });
    drive(self.comm, 10, faults[2]);
    one.join();
    two.join();
    for (const auto& found : faults) self.faults.insert(self.faults.end(), found.begin(), found.end());
    EXPECT_OK(self, koloCommDestroy(twin));
    EXPECT_OK(self, koloCommDestroy(half));
  });
}

TEST_CASE("a stream shared by several communicators runs their operations in its order", "[threads]") {
  World one(2), two(2);
  one.run([&](Self& self) {
    koloStream_t stream = nullptr;
    EXPECT_OK(self, koloStreamCreate(&stream));
    int value = 1;
    for (int i = 0; i < 10; ++i) {
      EXPECT_OK(self,
                koloAllReduce(&value, &value, 1, koloInt32, koloSum, i % 2 == 0 ? self.comm : two[self.rank], stream));
    }
    EXPECT_OK(self, koloStreamSynchronize(stream));
    EXPECT(self, value == 1024);
    EXPECT_OK(self, koloStreamDestroy(stream));
  });
}

TEST_CASE("a reduction handle destroyed while its operation waits on a stream still serves it", "[threads]") {
  World world(2);
  std::atomic<bool> destroyed{false};
  world.run([&](Self& self) {
    koloStream_t stream = nullptr;
    EXPECT_OK(self, koloStreamCreate(&stream));
    const int scalar = 5;
    int first = 1, send = 2, recv = -1;
    koloRedOp_t op = koloSum;
    EXPECT_OK(self, koloRedOpCreatePreMulSum(&op, &scalar, koloInt32, koloScalarHostImmediate, self.comm));
    if (self.rank == 1) {
      while (!destroyed) std::this_thread::yield();
    }
    EXPECT_OK(self, koloAllReduce(&first, &first, 1, koloInt32, koloSum, self.comm, stream));
    EXPECT_OK(self, koloAllReduce(&send, &recv, 1, koloInt32, op, self.comm, stream));
    EXPECT_OK(self, koloRedOpDestroy(op, self.comm));
    destroyed = true;
    EXPECT_OK(self, koloStreamDestroy(stream));
    EXPECT(self, recv == 20);
  });
}

TEST_CASE("threads that share one communicator of one rank take turns", "[threads]") {
  World world(1);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        int send = t * 1000 + i, recv = -1;
        if (koloAllReduce(&send, &recv, 1, koloInt32, koloSum, world[0], nullptr) != koloSuccess || recv != send)
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

namespace {

// Threads that drive the same communicators, each by groups over all of them.
template <class Body>
void groupsFromThreads(World& world, Body body) {
  world.run([&](Self& self) {
    std::array<koloComm_t, 3> comms{self.comm, nullptr, nullptr};
    for (std::size_t i = 1; i < comms.size(); ++i) EXPECT_OK(self, koloCommSplit(self.comm, 0, 0, &comms[i], nullptr));
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < 200; ++round) {
          if (!body(self.rank, t, round, comms)) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT(self, wrong == 0);
    for (std::size_t i = 1; i < comms.size(); ++i) EXPECT_OK(self, koloCommDestroy(comms[i]));
  });
}

}  // namespace

// Each communicator executes the groups' parts in the order in which it got them, which differs between communicators:
// a group that is first in one may be last in another.
TEST_CASE("threads that end groups of collectives over the same communicators do not wait for each other in a circle",
          "[threads]") {
  World world(2);
  groupsFromThreads(world, [](int, int, int, const std::array<koloComm_t, 3>& comms) {
    std::array<int, 3> sums{};
    const int one = 1;
    bool isRight = koloGroupStart() == koloSuccess;
    for (std::size_t i = 0; i < comms.size(); ++i) {
      isRight = koloAllReduce(&one, &sums[i], 1, koloInt32, koloSum, comms[i], nullptr) == koloSuccess && isRight;
    }
    isRight = koloGroupEnd() == koloSuccess && isRight;
    return isRight && sums == std::array{2, 2, 2};
  });
}

// The threads of one rank come to a communicator in another order than those of the other rank.
TEST_CASE("threads that end groups of messages over the same communicators do not hold up each other's messages",
          "[threads][links]") {
  World world(2);
  groupsFromThreads(world, [](int rank, int thread, int round, const std::array<koloComm_t, 3>& comms) {
    std::array<int, 3> received{};
    const int sent = 1000 * thread + round;
    bool isRight = koloGroupStart() == koloSuccess;
    for (std::size_t i = 0; i < comms.size(); ++i) {
      isRight = koloSendTag(&sent, 1, koloInt32, 1 - rank, thread, comms[i], nullptr) == koloSuccess && isRight;
      isRight = koloRecvTag(&received[i], 1, koloInt32, 1 - rank, thread, nullptr, comms[i], nullptr) == koloSuccess &&
                isRight;
    }
    isRight = koloGroupEnd() == koloSuccess && isRight;
    return isRight && received == std::array{sent, sent, sent};
  });
}

TEST_CASE("a stream waits for a message, and what stands behind it keeps nobody from moving the message",
          "[threads][links]") {
  World world(2);
  world.run([](Self& self) {
    koloStream_t stream = nullptr;
    EXPECT_OK(self, koloStreamCreate(&stream));
    int mine = self.rank + 1, sum = 0, got = 0;
    if (self.rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the message comes late
      EXPECT_OK(self, koloSend(&mine, 1, koloInt32, 1, self.comm, stream));
    } else {
      EXPECT_OK(self, koloRecv(&got, 1, koloInt32, 0, self.comm, stream));
    }
    EXPECT_OK(self, koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, stream));
    EXPECT_OK(self, koloStreamSynchronize(stream));
    EXPECT(self, sum == 3 && (self.rank == 0 || got == 1));
    EXPECT_OK(self, koloStreamDestroy(stream));
  });
}

TEST_CASE(
    "a stream waits for a message that does not come, and its deadline ends that although more stands behind it") {
  World world(2);
  world.run([](Self& self) {
    koloStream_t stream = nullptr;
    EXPECT_OK(self, koloStreamCreate(&stream));
    int mine = 1, sum = 0, got = 0;
    if (self.rank == 1) {
      EXPECT_OK(self, koloSetTimeout(300));
      EXPECT_OK(self, koloRecv(&got, 1, koloInt32, 0, self.comm, stream));
      EXPECT_OK(self, koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, stream));
      EXPECT_CODE(self, koloTimeout, koloStreamSynchronize(stream));
      EXPECT_OK(self, koloSetTimeout(-1));
    }
    EXPECT_OK(self, koloStreamDestroy(stream));
  });
}
