// Requests: messages and collectives that are started and waited for later, in any order, by any thread, or by nobody.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <random>

#include "each_links.h"
#include "support/ranks.h"
#include "support/seed.h"

using namespace kolo::test;

namespace {

using Clock = std::chrono::steady_clock;

koloResult_t isend(Self& self, const std::vector<int>& data, int peer, int tag, koloRequest_t* request) {
  return koloIsend(data.data(), data.size(), koloInt32, peer, tag, self.comm, request);
}
koloResult_t irecv(Self& self, std::vector<int>& data, int peer, int tag, koloRequest_t* request,
                   koloRecvStatus_t* status = nullptr) {
  return koloIrecv(data.data(), data.size(), koloInt32, peer, tag, status, self.comm, request);
}
koloResult_t finish(koloRequest_t request) {
  const koloResult_t result = koloRequestWait(request, -1);
  koloRequestFree(request);
  return result;
}
std::vector<int> numbers(size_t count, int from) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), from);
  return values;
}
// From short ones, which travel in a line, to those that are fetched or sent in chunks.
constexpr std::array<size_t, 6> kCounts{0, 1, 9, 1000, 30'011, 400'003};

}  // namespace

TEST_CASE("both ranks receive, then send, then wait", "[links]") {
  const size_t count = GENERATE(from_range(kCounts));
  World world(2);
  world.run([&](Self& self) {
    const int peer = 1 - self.rank;
    const std::vector<int> sent = numbers(count, self.rank * 7);
    std::vector<int> received(count, -1);
    koloRequest_t in = nullptr, out = nullptr;
    koloRecvStatus_t status{};
    EXPECT_OK(self, irecv(self, received, peer, 3, &in, &status));
    EXPECT_OK(self, isend(self, sent, peer, 3, &out));
    EXPECT_OK(self, finish(in));
    EXPECT_OK(self, finish(out));
    EXPECT(self, received == numbers(count, peer * 7));
    EXPECT(self, (status.source == peer && status.tag == 3 && status.count == count));
  });
}

TEST_CASE("hundreds of messages under way, waited for in any order", "[threads][links]") {
  const World world(GENERATE(2, 3));
  for (Rounds rounds(10 + world.size()); rounds.next();)
    world.run([&](Self& self) {
      constexpr int kEach = 150;
      struct One {
        std::vector<int> out, in;
        koloRequest_t sent = nullptr, received = nullptr;
        int peer, tag;
      };
      std::vector<One> all;
      for (int peer = 0; peer < self.ranks; ++peer) {
        for (int tag = 0; tag < kEach; ++tag) {
          const size_t count = kCounts[static_cast<size_t>(tag) % (tag % 30 == 0 ? 6 : 4)];
          all.push_back(
              {numbers(count, self.rank * 1000 + tag), std::vector<int>(count, -1), nullptr, nullptr, peer, tag});
        }
      }
      std::mt19937_64 random(10 * rounds.seed() + static_cast<unsigned>(self.rank));
      std::shuffle(all.begin(), all.end(), random);
      for (One& one : all) {
        if (random() % 2 == 0) EXPECT_OK(self, isend(self, one.out, one.peer, one.tag, &one.sent));
        EXPECT_OK(self, irecv(self, one.in, one.peer, one.tag, &one.received));
        if (one.sent == nullptr) EXPECT_OK(self, isend(self, one.out, one.peer, one.tag, &one.sent));
      }
      std::shuffle(all.begin(), all.end(), random);
      for (One& one : all) {
        EXPECT_OK(self, finish(one.received));
        EXPECT_OK(self, finish(one.sent));
        EXPECT(self, one.in == numbers(one.in.size(), one.peer * 1000 + one.tag));
      }
      expectWorks(self);
    });
}

TEST_CASE("tens of thousands of receives are posted ahead") {
  constexpr int kMany = 40'000;
  World world(2);
  world.run([&](Self& self) {
    std::vector<int> received(kMany, -1);
    std::vector<koloRequest_t> requests(kMany);
    if (self.rank == 0) {
      for (std::size_t i = 0; i < kMany; ++i)
        EXPECT_OK(self, koloIrecv(&received[i], 1, koloInt32, 1, 0, nullptr, self.comm, &requests[i]));
    }
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    if (self.rank == 1) {
      for (int i = 0; i < kMany; ++i) EXPECT_OK(self, koloSend(&i, 1, koloInt32, 0, self.comm, nullptr));
    } else {
      for (const koloRequest_t request : requests) EXPECT_OK(self, finish(request));
      EXPECT(self, received == numbers(kMany, 0));
    }
  });
}

TEST_CASE("messages of one tag are matched in the order in which they were sent and received") {
  World world(2);
  world.run([](Self& self) {
    constexpr int kMessages = 40;
    std::array<int, kMessages> values{};
    std::array<koloRequest_t, kMessages> requests{};
    for (int i = 0; i < kMessages; ++i) {
      auto at = static_cast<size_t>(i);
      values[at] = self.rank == 0 ? i : -1;
      if (self.rank == 0) {
        EXPECT_OK(self, koloIsend(&values[at], 1, koloInt32, 1, 5, self.comm, &requests[at]));
      } else {
        EXPECT_OK(self, koloIrecv(&values[at], 1, koloInt32, KOLO_ANY_SOURCE, KOLO_ANY_TAG, nullptr, self.comm,
                                  &requests[at]));
      }
    }
    for (size_t i = kMessages; i-- > 0;) EXPECT_OK(self, finish(requests[i]));
    for (int i = 0; i < kMessages; ++i) EXPECT(self, values[static_cast<size_t>(i)] == i);
  });
}

TEST_CASE("wait any gives those that are done, and passes over NULL", "[threads]") {
  World world(2);
  world.run([](Self& self) {
    int value = 9, index = 7;
    EXPECT_OK(self, koloRequestWaitAny(0, nullptr, -1, &index));
    EXPECT(self, index == -1);
    if (self.rank == 1) {
      EXPECT_OK(self, koloRecv(&value, 1, koloInt32, 0, self.comm, nullptr));  // not before the other has asked
      EXPECT_OK(self, koloSendTag(&value, 1, koloInt32, 0, 2, self.comm, nullptr));
      EXPECT_OK(self, koloSendTag(&value, 1, koloInt32, 0, 1, self.comm, nullptr));
      return;
    }
    std::array<int, 3> received{};
    std::array<koloRequest_t, 4> requests{};
    for (int tag : {1, 2}) {
      const auto at = static_cast<size_t>(tag);
      EXPECT_OK(self, koloIrecv(&received[at], 1, koloInt32, 1, tag, nullptr, self.comm, &requests[at]));
    }
    EXPECT_CODE(self, koloInProgress, koloRequestWaitAny(4, requests.data(), 5, &index));
    EXPECT_CODE(self, koloInProgress, koloRequestTest(requests[1]));
    EXPECT_OK(self, koloSend(&value, 1, koloInt32, 1, self.comm, nullptr));
    for (int left = 2; left > 0; --left) {
      EXPECT_OK(self, koloRequestWaitAny(4, requests.data(), -1, &index));
      EXPECT(self, (index == 1 || index == 2));
      EXPECT_OK(self, koloRequestTest(requests[static_cast<size_t>(index)]));
      EXPECT_OK(self, koloRequestFree(requests[static_cast<size_t>(index)]));
      requests[static_cast<size_t>(index)] = nullptr;
    }
    EXPECT(self, (received[1] == 9 && received[2] == 9));
  });
}

TEST_CASE("messages go on while nobody waits", "[threads][links]") {
  // The sender does nothing more; the receiver only asks. Each has its own thread move the data.
  const size_t count = GENERATE(size_t{1}, size_t{400'003});
  World world(2);
  std::atomic<int> done{0};
  world.run([&](Self& self) {
    const std::vector<int> sent = numbers(count, 4);
    std::vector<int> received(count, -1);
    koloRequest_t request = nullptr;
    if (self.rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_OK(self, isend(self, sent, 1, 0, &request));
    } else {
      EXPECT_OK(self, irecv(self, received, 0, 0, &request));
    }
    std::atomic<bool> told{false};
    EXPECT_OK(self,
              koloRequestNotify(
                  request, [](koloResult_t, const char*, void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; },
                  &told));
    while (!told) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_OK(self, koloRequestTest(request));
    ++done;
    while (done != 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_OK(self, koloRequestFree(request));
    if (self.rank == 1) EXPECT(self, received == sent);
  });
}

TEST_CASE("a collective goes on while nobody waits", "[threads][links]") {
  World world(3);
  world.run([](Self& self) {
    int mine = self.rank + 1, sum = 0;
    koloRequest_t request = nullptr;
    EXPECT_OK(self, koloIallReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, &request));
    while (koloRequestTest(request) == koloInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_OK(self, finish(request));
    EXPECT(self, sum == 6);
  });
}

TEST_CASE("every collective has a form that gives a request", "[threads]") {
  const int ranks = GENERATE(1, 2, 3);
  World world(ranks);
  world.run([](Self& self) {
    const auto n = static_cast<size_t>(self.ranks);
    const int r = self.rank, sum = self.ranks * (self.ranks - 1) / 2, root = self.ranks - 1;
    std::vector<int> mine(n, r), each(n, -1), reduced(n, -1), rooted(n, -1), cast(1, r == root ? 77 : -1),
        scattered(1, -1), all(n, -1);
    std::vector<int> gathered(n, -1), reducedv(1, -1), gatheredv(n, -1), scatteredv(1, -1), allv(n, -1),
        exchanged(n, -1);
    std::vector<size_t> ones(n, 1);
    std::vector<koloRequest_t> requests(14, nullptr);
    koloRequest_t* next = requests.data();
    EXPECT_OK(self, koloIallReduce(mine.data(), reduced.data(), n, koloInt32, koloSum, self.comm, next++));
    EXPECT_OK(self, koloIreduce(mine.data(), rooted.data(), n, koloInt32, koloSum, root, self.comm, next++));
    EXPECT_OK(self, koloIbroadcast(cast.data(), cast.data(), 1, koloInt32, root, self.comm, next++));
    EXPECT_OK(self, koloIallGather(&r, all.data(), 1, koloInt32, self.comm, next++));
    EXPECT_OK(self, koloIreduceScatter(mine.data(), scattered.data(), 1, koloInt32, koloSum, self.comm, next++));
    EXPECT_OK(self, koloIallToAll(mine.data(), each.data(), 1, koloInt32, self.comm, next++));
    EXPECT_OK(self, koloIgather(&r, gathered.data(), 1, koloInt32, root, self.comm, next++));
    std::vector<int> ranked = numbers(n, 0);
    int own = -1, ownv = -1;
    EXPECT_OK(self, koloIscatter(ranked.data(), &own, 1, koloInt32, root, self.comm, next++));
    EXPECT_OK(self, koloIbarrier(self.comm, next++));
    EXPECT_OK(self, koloIallGatherv(&r, allv.data(), ones.data(), nullptr, koloInt32, self.comm, next++));
    EXPECT_OK(self, koloIreduceScatterv(mine.data(), reducedv.data(), ones.data(), nullptr, koloInt32, koloSum,
                                        self.comm, next++));
    EXPECT_OK(self, koloIallToAllv(mine.data(), ones.data(), nullptr, exchanged.data(), ones.data(), nullptr, koloInt32,
                                   self.comm, next++));
    EXPECT_OK(self, koloIgatherv(&r, 1, gatheredv.data(), ones.data(), nullptr, koloInt32, root, self.comm, next++));
    EXPECT_OK(self, koloIscatterv(ranked.data(), ones.data(), nullptr, &ownv, 1, koloInt32, root, self.comm, next++));
    std::fill(ones.begin(), ones.end(), 1000);  // which the calls have read
    std::reverse(requests.begin(), requests.end());
    for (koloRequest_t request : requests) EXPECT_OK(self, finish(request));
    EXPECT(self, reduced == std::vector<int>(n, sum));
    EXPECT(self, cast[0] == 77);
    EXPECT(self, (all == ranked && allv == ranked && each == ranked && exchanged == ranked));
    EXPECT(self, (scattered[0] == sum && reducedv[0] == sum && own == r && ownv == r));
    if (r == root) EXPECT(self, (rooted == std::vector<int>(n, sum) && gathered == ranked && gatheredv == ranked));
  });
}

TEST_CASE("a collective between two messages keeps its place behind an operation of a stream", "[threads][links]") {
  World world(2);
  std::atomic<bool> isBehindStream{false}, isComplete{false};
  world.run([&](Self& self) {
    std::array<int, 3> sums{-1, -1, -1};
    std::array<int, 2> received{-1, -1};
    const auto sum = [&](int& to, koloStream_t stream) {
      EXPECT_OK(self, koloAllReduce(&self.rank, &to, 1, koloInt32, koloSum, self.comm, stream));
    };
    if (self.rank == 0) {
      koloStream_t stream = nullptr;
      std::array<koloRequest_t, 4> requests{};
      const auto start = [&](int& to, koloRequest_t& request) {
        EXPECT_OK(self, koloIallReduce(&self.rank, &to, 1, koloInt32, koloSum, self.comm, &request));
      };
      EXPECT_OK(self, koloStreamCreate(&stream));
      sum(sums[0], stream);
      start(sums[1], requests[0]);
      EXPECT_OK(self, koloIrecv(&received[0], 1, koloInt32, 1, 1, nullptr, self.comm, &requests[1]));
      isBehindStream = true;
      EXPECT_OK(self, koloStreamSynchronize(stream));
      // The first message still stands behind the first request. What follows it has nothing of the stream's before it.
      start(sums[2], requests[2]);
      EXPECT_OK(self, koloIrecv(&received[1], 1, koloInt32, 1, 2, nullptr, self.comm, &requests[3]));
      isComplete = true;
      for (const koloRequest_t request : requests) EXPECT_OK(self, finish(request));
      EXPECT_OK(self, koloStreamDestroy(stream));
      EXPECT(self, (received == std::array<int, 2>{11, 12}));
    } else {
      while (!isBehindStream) std::this_thread::yield();
      sum(sums[0], nullptr);
      while (!isComplete) std::this_thread::yield();
      sum(sums[1], nullptr);
      const int first = 11, second = 12;
      EXPECT_OK(self, koloSendTag(&first, 1, koloInt32, 0, 1, self.comm, nullptr));
      sum(sums[2], nullptr);
      EXPECT_OK(self, koloSendTag(&second, 1, koloInt32, 0, 2, self.comm, nullptr));
    }
    EXPECT(self, (sums == std::array<int, 3>{1, 1, 1}));
  });
}

TEST_CASE("requests, blocking calls and streams keep the order of their calls", "[threads][links]") {
  const World world(GENERATE(2, 3));
  for (Rounds rounds(20 + world.size()); rounds.next();)
    world.run([&](Self& self) {
      koloStream_t stream = nullptr;
      EXPECT_OK(self, koloStreamCreate(&stream));
      constexpr int kRounds = 200;
      std::vector<int> sums(kRounds, -1), mine(kRounds);
      std::vector<koloRequest_t> requests;
      std::mt19937_64 random(rounds.seed());  // the same on all ranks
      for (int i = 0; i < kRounds; ++i) {
        const auto at = static_cast<size_t>(i);
        mine[at] = self.rank + i;
        const auto way = random() % 4;
        if (way == 0) {
          EXPECT_OK(self, koloAllReduce(&mine[at], &sums[at], 1, koloInt32, koloSum, self.comm, nullptr));
        } else if (way == 1) {
          EXPECT_OK(self, koloAllReduce(&mine[at], &sums[at], 1, koloInt32, koloSum, self.comm, stream));
        } else {
          requests.push_back(nullptr);
          EXPECT_OK(self, koloIallReduce(&mine[at], &sums[at], 1, koloInt32, koloSum, self.comm, &requests.back()));
        }
        if (static_cast<int>(random() % 20) == self.rank) std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
      for (koloRequest_t request : requests) EXPECT_OK(self, finish(request));
      EXPECT_OK(self, koloStreamSynchronize(stream));
      EXPECT_OK(self, koloStreamDestroy(stream));
      for (int i = 0; i < kRounds; ++i)
        EXPECT(self, sums[static_cast<size_t>(i)] == self.ranks * (self.ranks - 1) / 2 + self.ranks * i);
    });
}

TEST_CASE("a collective that waits keeps no message of its communicator from going", "[threads][links]") {
  // Rank 0's all-reduce is waited for by its own thread when the message is sent; rank 1 takes that before it joins.
  World world(2);
  world.run([](Self& self) {
    int mine = 1, sum = 0, value = 42;
    koloRequest_t request = nullptr;
    if (self.rank == 0) {
      EXPECT_OK(self, koloIallReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, &request));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_OK(self, koloSend(&value, 1, koloInt32, 1, self.comm, nullptr));
      EXPECT_OK(self, koloRecv(&value, 1, koloInt32, 1, self.comm, nullptr));
    } else {
      EXPECT_OK(self, koloRecv(&value, 1, koloInt32, 0, self.comm, nullptr));
      EXPECT_OK(self, koloSend(&value, 1, koloInt32, 0, self.comm, nullptr));
      EXPECT_OK(self, koloIallReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, &request));
    }
    EXPECT_OK(self, finish(request));
    EXPECT(self, (sum == 2 && value == 42));
  });
}

TEST_CASE("a receive that waits keeps no other thread's call from going", "[threads][links]") {
  World world(2);
  world.run([](Self& self) {
    int answer = -1;
    if (self.rank == 1) {
      EXPECT_OK(self, koloRecvTag(&answer, 1, koloInt32, 0, 1, nullptr, self.comm, nullptr));
      expectWorks(self);
      EXPECT_OK(self, koloSendTag(&answer, 1, koloInt32, 0, 2, self.comm, nullptr));
      return;
    }
    std::vector<std::string> faults;
    std::thread receiver([&] {
      Self other{self.rank, self.ranks, self.comm, {}};
      EXPECT_OK(other, koloRecvTag(&answer, 1, koloInt32, 1, 2, nullptr, other.comm, nullptr));
      faults = other.faults;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it waits by now
    const int question = 5;
    EXPECT_OK(self, koloSendTag(&question, 1, koloInt32, 1, 1, self.comm, nullptr));
    expectWorks(self);
    receiver.join();
    for (const std::string& fault : faults) self.faults.push_back(fault);
    EXPECT(self, answer == 5);
  });
}

TEST_CASE("a message that starts while a collective waits goes on when that has ended", "[threads]") {
  // The collective's thread takes it over, and then leaves it.
  World world(2);
  world.run([](Self& self) {
    int in = 0, out = 7;
    if (self.rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      expectWorks(self);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_OK(self, koloSendTag(&out, 1, koloInt32, 0, 4, self.comm, nullptr));
      return;
    }
    koloRequest_t request = nullptr;
    std::vector<std::string> faults;
    std::thread other([&] {
      Self mine{self.rank, self.ranks, self.comm, {}};
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_OK(mine, koloIrecv(&in, 1, koloInt32, 1, 4, nullptr, mine.comm, &request));
      faults = mine.faults;
    });
    expectWorks(self);
    other.join();
    for (const std::string& fault : faults) self.faults.push_back(fault);
    const auto until = Clock::now() + std::chrono::seconds(5) * kSlowness;
    while (koloRequestTest(request) == koloInProgress && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_OK(self, koloRequestTest(request));
    EXPECT_OK(self, finish(request));
    EXPECT(self, in == 7);
  });
}

TEST_CASE("a notice comes while the communicator's own thread is in a collective", "[threads]") {
  World world(2);
  world.run([](Self& self) {
    int value = 5;
    koloRequest_t barrier = nullptr;
    if (self.rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_OK(self, koloSendTag(&value, 1, koloInt32, 0, 1, self.comm, nullptr));
      EXPECT_OK(self, koloRecvTag(&value, 1, koloInt32, 0, 2, nullptr, self.comm, nullptr));
      EXPECT_OK(self, koloIbarrier(self.comm, &barrier));
      EXPECT_OK(self, finish(barrier));
      return;
    }
    struct Answer {
      koloComm_t comm;
      int value = 0;
      koloRequest_t request = nullptr;
      std::atomic<bool> isStarted{false};
    } answer{.comm = self.comm};
    const auto reply = [](koloResult_t, const char*, void* context) {
      auto& its = *static_cast<Answer*>(context);
      koloIsend(&its.value, 1, koloInt32, 1, 2, its.comm, &its.request);
      its.isStarted = true;
    };
    koloRequest_t question = nullptr;
    EXPECT_OK(self, koloIbarrier(self.comm, &barrier));
    EXPECT_OK(self, koloIrecv(&answer.value, 1, koloInt32, 1, 1, nullptr, self.comm, &question));
    EXPECT_OK(self, koloRequestNotify(question, reply, &answer));
    while (!answer.isStarted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_OK(self, finish(barrier));
    EXPECT_OK(self, finish(answer.request));
    EXPECT_OK(self, finish(question));
  });
}

TEST_CASE("a blocking collective does not overtake a request of its thread that another thread begins", "[threads]") {
  World world(2);
  world.run([](Self& self) {
    const auto ignore = [](koloResult_t, const char*, void*) {};
    for (int round = 0; round < 3000; ++round) {
      int mine = round, sum = 0, cast = self.rank == 0 ? round : -1;
      koloRequest_t request = nullptr;
      EXPECT_OK(self, koloIallReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, &request));
      EXPECT_OK(self, koloRequestNotify(request, ignore, nullptr));
      EXPECT_OK(self, koloBroadcast(&cast, &cast, 1, koloInt32, 0, self.comm, nullptr));
      EXPECT_OK(self, finish(request));
      EXPECT(self, (sum == 2 * round && cast == round));
      if (!self.faults.empty()) return;
    }
  });
}

TEST_CASE("messages of one thread keep their order while others look", "[threads]") {
  World world(2);
  world.run([](Self& self) {
    constexpr int kMessages = 3000;
    std::atomic<bool> isOver{false};
    std::thread other([&] {  // takes the turn for a moment, again and again
      int never = 0;
      koloRequest_t request = nullptr;
      if (koloIrecv(&never, 1, koloInt32, self.rank, 99, nullptr, self.comm, &request) != koloSuccess) return;
      while (!isOver) (void)koloRequestTest(request);
      (void)koloSendTag(&never, 1, koloInt32, self.rank, 99, self.comm, nullptr);
      (void)finish(request);
    });
    std::vector<int> values(kMessages, -1);
    std::vector<koloRequest_t> requests(kMessages);
    for (int i = 0; i < kMessages; ++i) {
      const auto at = static_cast<size_t>(i);
      if (self.rank == 0) values[at] = i;
      if (self.rank == 0) EXPECT_OK(self, koloIsend(&values[at], 1, koloInt32, 1, 5, self.comm, &requests[at]));
      if (self.rank == 1)
        EXPECT_OK(self, koloIrecv(&values[at], 1, koloInt32, 0, 5, nullptr, self.comm, &requests[at]));
    }
    for (koloRequest_t request : requests) EXPECT_OK(self, finish(request));
    isOver = true;
    other.join();
    EXPECT(self, values == numbers(kMessages, 0));
  });
}

TEST_CASE("a call that may not wait executes no request", "[threads]") {
  World world(2);
  std::atomic<bool> asked{false};
  world.run([&](Self& self) {
    koloRequest_t request = nullptr;
    int value = 1;
    while (self.rank == 1 && !asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_OK(self, koloIbarrier(self.comm, &request));
    EXPECT_OK(self, koloSetMayWait(0));
    if (self.rank == 0)
      EXPECT_CODE(self, koloInProgress, koloBroadcast(&value, &value, 1, koloInt32, 0, self.comm, nullptr));
    EXPECT_OK(self, koloSetMayWait(1));
    if (self.rank == 0) EXPECT_CODE(self, koloInProgress, koloRequestTest(request));
    asked = true;
    EXPECT_OK(self, finish(request));
    EXPECT_OK(self, koloBroadcast(&value, &value, 1, koloInt32, 0, self.comm, nullptr));
  });
}

TEST_CASE("an abort does not wait for who waits for a group's part on another communicator", "[threads]") {
  World one(2), other(2);
  one.run([&](Self& self) {
    if (self.rank == 1) return;
    int mine = 1, sum = 0, otherSum = 0;
    koloRequest_t request = nullptr;
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, nullptr));
    EXPECT_OK(self, koloAllReduce(&mine, &otherSum, 1, koloInt32, koloSum, other[0], nullptr));
    EXPECT_OK(self, koloIgroupEnd(&request));
    std::thread waiter([&] { (void)koloRequestWait(request, -1); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_OK(self, koloCommAbort(self.comm));  // while the other part goes on
    one[0] = nullptr;
    EXPECT_OK(self, koloCommAbort(other[0]));
    other[0] = nullptr;
    waiter.join();
    EXPECT_CODE(self, koloAborted, finish(request));
  });
}

TEST_CASE("two communicators, waited for in opposite orders", "[threads][links]") {
  World one(2), other(2);
  one.run([&](Self& self) {
    std::array<koloComm_t, 2> comms{self.comm, other[self.rank]};
    std::array<koloRequest_t, 2> requests{};
    std::array<int, 2> sums{}, mine{1, 10};
    for (size_t i : {0u, 1u})
      EXPECT_OK(self, koloIallReduce(&mine[i], &sums[i], 1, koloInt32, koloSum, comms[i], &requests[i]));
    const size_t first = static_cast<size_t>(self.rank);
    EXPECT_OK(self, finish(requests[first]));
    EXPECT_OK(self, finish(requests[1 - first]));
    EXPECT(self, (sums[0] == 2 && sums[1] == 20));
  });
}

TEST_CASE("a group as one request", "[threads][links]") {
  World one(2), other(2);
  one.run([&](Self& self) {
    const int peer = 1 - self.rank;
    int mine = self.rank + 1, sum = 0, most = 0, in = -1, otherSum = 0;
    koloRequest_t request = nullptr;
    EXPECT_OK(self, koloGroupStart());
    // Not in the same order on both ranks.
    if (self.rank == 0) EXPECT_OK(self, koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, nullptr));
    EXPECT_OK(self, koloRecv(&in, 1, koloInt32, peer, self.comm, nullptr));
    EXPECT_OK(self, koloAllReduce(&mine, &most, 1, koloInt32, koloMax, self.comm, nullptr));
    EXPECT_OK(self, koloAllReduce(&mine, &otherSum, 1, koloInt32, koloSum, other[self.rank], nullptr));
    if (self.rank == 1) EXPECT_OK(self, koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, nullptr));
    EXPECT_OK(self, koloSend(&mine, 1, koloInt32, peer, self.comm, nullptr));
    EXPECT_OK(self, koloIgroupEnd(&request));
    EXPECT_OK(self, finish(request));
    EXPECT(self, (sum == 3 && most == 2 && in == peer + 1 && otherSum == 3));
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloIgroupEnd(&request));
    EXPECT_OK(self, finish(request));
  });
}

TEST_CASE("requests are told apart from what cannot be started or waited for") {
  World world(1);
  koloRequest_t request = nullptr;
  int value = 0, index = 0;
  CHECK_CODE(koloInvalidPointer, koloIallReduce(&value, &value, 1, koloInt32, koloSum, world[0], nullptr));
  CHECK_CODE(koloInvalidPointer, koloIallReduce(nullptr, &value, 1, koloInt32, koloSum, world[0], &request));
  CHECK_CODE(koloInvalidRoot, koloIsend(&value, 1, koloInt32, 4, 0, world[0], &request));
  CHECK(request == nullptr);
  CHECK_CODE(koloInvalidHandle, koloRequestTest(nullptr));
  CHECK_CODE(koloInvalidHandle, koloRequestFree(reinterpret_cast<koloRequest_t>(&value)));
  CHECK_CODE(koloInvalidUsage, koloIgroupEnd(&request));
  REQUIRE_OK(koloGroupStart());
  CHECK_CODE(koloInvalidUsage, koloIallReduce(&value, &value, 1, koloInt32, koloSum, world[0], &request));
  REQUIRE_OK(koloGroupStart());
  CHECK_CODE(koloInvalidUsage, koloIgroupEnd(&request));
  REQUIRE_OK(koloGroupEnd());
  CHECK_CODE(koloInvalidUsage, koloGroupEnd());  // of the call that was refused
  REQUIRE_OK(koloIbarrier(world[0], &request));
  CHECK_CODE(koloInvalidArgument, koloRequestWait(request, -2));
  CHECK_CODE(koloInvalidPointer, koloRequestWaitAny(1, &request, -1, nullptr));
  CHECK_CODE(koloInvalidCount, koloRequestWaitAny(-1, &request, -1, &index));
  REQUIRE_OK(koloRequestWait(request, -1));
  REQUIRE_OK(koloRequestFree(request));
  CHECK_CODE(koloInvalidHandle, koloRequestWait(request, -1));
  CHECK(messageHas("is not a request"));
}

TEST_CASE("a request's function is called once, with the result, and may free the request", "[threads]") {
  World world(2);
  world.run([](Self& self) {
    struct Told {
      koloRequest_t request = nullptr;
      std::atomic<int> calls{0};
      koloResult_t result = koloInProgress;
      std::string message;
    };
    const auto note = [](koloResult_t result, const char* message, void* context) {
      auto& told = *static_cast<Told*>(context);
      told.result = result;
      told.message = message;
      koloRequestFree(told.request);
      ++told.calls;
    };
    const auto await = [](const Told& told) {
      while (told.calls == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    Told collective, late, cut;
    int mine = 1, sum = 0;
    EXPECT_OK(self, koloIallReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, &collective.request));
    EXPECT_OK(self, koloRequestNotify(collective.request, note, &collective));
    await(collective);
    EXPECT(self, (collective.result == koloSuccess && collective.message.empty() && sum == 2));
    EXPECT_OK(self, koloIbarrier(self.comm, &late.request));
    EXPECT_OK(self, koloRequestWait(late.request, -1));
    EXPECT_OK(self, koloRequestNotify(late.request, note, &late));
    EXPECT(self, late.calls == 1);
    const std::array<int, 2> two{1, 2};
    int room = 0;
    if (self.rank == 0) {
      EXPECT_OK(self, koloSendTag(two.data(), 2, koloInt32, 1, 6, self.comm, nullptr));
    } else {
      EXPECT_OK(self, koloIrecv(&room, 1, koloInt32, 0, 6, nullptr, self.comm, &cut.request));
      EXPECT_OK(self, koloRequestNotify(cut.request, note, &cut));
      await(cut);
      EXPECT(self, (cut.result == koloTruncated && cut.message.find("has room for") != std::string::npos));
    }
    EXPECT(self, (collective.calls == 1 && late.calls == 1));
    struct Ending {
      koloComm_t comm;
      std::atomic<int> result{-1};
    } ending{self.comm};
    koloRequest_t last = nullptr;
    EXPECT_OK(self, koloIbarrier(self.comm, &last));
    EXPECT_OK(self, koloRequestNotify(
                        last,
                        [](koloResult_t, const char*, void* its) {
                          auto& its_ = *static_cast<Ending*>(its);
                          its_.result = koloCommDestroy(its_.comm);
                        },
                        &ending));
    EXPECT_OK(self, finish(last));
    while (ending.result == -1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT(self, ending.result == koloInvalidUsage);
    expectWorks(self);
  });
}

TEST_CASE("a window is registered by a request, in the order of the calls, if some rank has memory for it",
          "[threads][links]") {
  constexpr size_t kBytes = 1 << 20;
  World world(3);
  world.run([](Self& self) {
    void* memory = nullptr;
    EXPECT_OK(self, koloMemAlloc(&memory, kBytes));
    int usual = -1;  // of a window that a blocking call registers
    koloWindow_t blocking = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, memory, kBytes, &blocking));
    EXPECT_OK(self, koloWindowIsZeroCopy(blocking, &usual));
    EXPECT_OK(self, koloWindowDeregister(self.comm, blocking));
    for (const int who : {-1, 0, 2, 3}) {  // nobody, one, or all
      const bool gives = who == self.rank || who == 3;
      int mine = self.rank, before = -1, after = -1, isZeroCopy = -1;
      auto window = reinterpret_cast<koloWindow_t>(1);
      std::array<koloRequest_t, 3> all{};
      EXPECT_OK(self, koloIallReduce(&mine, &before, 1, koloInt32, koloSum, self.comm, &all[0]));
      EXPECT_OK(self, koloIwindowRegister(self.comm, gives ? memory : nullptr, gives ? kBytes : 0, &window, &all[1]));
      EXPECT_OK(self, koloIallReduce(&mine, &after, 1, koloInt32, koloMax, self.comm, &all[2]));
      if (who == 2) {
        EXPECT_OK(self, koloBarrier(self.comm, nullptr));
        EXPECT(self, window != nullptr);
      }
      for (const koloRequest_t each : all) EXPECT_OK(self, finish(each));
      EXPECT(self, (before == 3 && after == 2));
      EXPECT(self, (window != nullptr) == (who >= 0));
      if (window == nullptr) continue;
      EXPECT_OK(self, koloWindowIsZeroCopy(window, &isZeroCopy));
      EXPECT(self, isZeroCopy == usual);
      EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    }
    koloWindow_t window = nullptr;
    koloRequest_t request = nullptr;
    EXPECT(self, koloIwindowRegister(self.comm, memory, kBytes, nullptr, &request) == koloInvalidPointer);
    EXPECT(self, koloIwindowRegister(self.comm, nullptr, kBytes, &window, &request) == koloInvalidPointer);
    EXPECT(self, koloIwindowRegister(self.comm, memory, kBytes, &window, nullptr) == koloInvalidPointer);
    EXPECT_OK(self, koloMemFree(memory));
  });
}

namespace {

// Calls that wait for all ranks by the control plane, or by bulletins.
void registerWindow(Self& self) {
  int memory = 0;
  koloWindow_t window = nullptr;
  EXPECT_OK(self, koloWindowRegister(self.comm, &memory, sizeof memory, &window));
  EXPECT_OK(self, koloWindowDeregister(self.comm, window));
}
void startToRegisterWindow(Self& self) {
  int memory = 0;
  koloWindow_t window = nullptr;
  koloRequest_t request = nullptr;
  EXPECT_OK(self, koloIwindowRegister(self.comm, &memory, sizeof memory, &window, &request));
  EXPECT_OK(self, finish(request));
  EXPECT_OK(self, koloWindowDeregister(self.comm, window));
}
void split(Self& self) {
  koloComm_t part = nullptr;
  EXPECT_OK(self, koloCommSplit(self.comm, 0, self.rank, &part, nullptr));
  EXPECT_OK(self, koloCommDestroy(part));
}
void makeGroup(Self& self) {
  const std::array<int, 3> ranks{2, 1, 0};
  koloComm_t group = nullptr;
  EXPECT_OK(self, koloCommCreateGroup(self.comm, ranks.data(), 3, nullptr, &group, nullptr));
  EXPECT_OK(self, koloCommDestroy(group));
}

void shrink(Self& self) {
  koloComm_t rest = nullptr;
  EXPECT_OK(self, koloCommShrink(self.comm, nullptr, 0, &rest, nullptr));
  EXPECT_OK(self, koloCommDestroy(rest));
}
void agree(Self& self) {
  std::uint64_t flags = 5;
  EXPECT_OK(self, koloCommAgree(self.comm, &flags));
}

}  // namespace

TEST_CASE("a rank's messages go on while it waits for the others in another call", "[threads][links]") {
  runOverEachLinks(3, [](Self& self) {
    const std::vector<int> sent = numbers(400'003, 1);
    for (void (*const call)(Self&) : {registerWindow, startToRegisterWindow, split, makeGroup, shrink, agree}) {
      std::vector<int> got(sent.size());
      koloRequest_t request = nullptr;
      // Rank 0 does not wait for its messages; rank 1 does, before it makes the call that rank 0 waits in.
      if (self.rank == 0) EXPECT_OK(self, isend(self, sent, 1, 7, &request));
      if (self.rank == 1)
        EXPECT_OK(self, koloRecvTag(got.data(), got.size(), koloInt32, 0, 7, nullptr, self.comm, nullptr));
      call(self);
      if (self.rank == 0) EXPECT_OK(self, finish(request));
      if (self.rank == 0) EXPECT_OK(self, irecv(self, got, 1, 8, &request));
      if (self.rank == 1) EXPECT_OK(self, koloSendTag(sent.data(), sent.size(), koloInt32, 0, 8, self.comm, nullptr));
      call(self);
      if (self.rank == 0) EXPECT_OK(self, finish(request));
      EXPECT(self, (self.rank == 2 || got == sent));
    }
  });
}

TEST_CASE("what a rank has sent on a stream comes though it waits for the others in another call", "[threads][links]") {
  runOverEachLinks(3, [](Self& self) {
    const std::vector<int> sent = numbers(3'001, 1);
    koloStream_t stream = nullptr;
    EXPECT_OK(self, koloStreamCreate(&stream));
    for (void (*const call)(Self&) : {registerWindow, startToRegisterWindow, split, makeGroup, shrink, agree}) {
      for (const bool isGrouped : {false, true}) {
        std::vector<int> got(sent.size());
        if (self.rank == 0) {
          if (isGrouped) EXPECT_OK(self, koloGroupStart());
          EXPECT_OK(self, koloSendTag(sent.data(), sent.size(), koloInt32, 1, 7, self.comm, stream));
          if (isGrouped) EXPECT_OK(self, koloGroupEnd());
          EXPECT_OK(self, koloStreamSynchronize(stream));
        }
        if (self.rank == 1)
          EXPECT_OK(self,
                    koloRecvTag(got.data(), got.size(), koloInt32, KOLO_ANY_SOURCE, 7, nullptr, self.comm, nullptr));
        call(self);
        EXPECT(self, (self.rank != 1 || got == sent));
      }
    }
    EXPECT_OK(self, koloStreamDestroy(stream));
  });
}

TEST_CASE("freed requests go on", "[threads][links]") {
  World world(2);
  world.run([](Self& self) {
    const std::vector<int> sent = numbers(400'003, 1);
    std::vector<int> received(sent.size(), -1);
    const int peer = 1 - self.rank;
    std::array<koloRequest_t, 3> requests{};
    int mine = 1, sum = 0;
    EXPECT_OK(self, irecv(self, received, peer, 0, &requests[0]));
    EXPECT_OK(self, isend(self, sent, peer, 0, &requests[1]));
    EXPECT_OK(self, koloIallReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, &requests[2]));
    for (koloRequest_t request : requests) EXPECT_OK(self, koloRequestFree(request));
    EXPECT_OK(self, koloCommFinalize(self.comm));
    EXPECT(self, (received == sent && sum == 2));
  });
}

TEST_CASE("the end of a communicator waits for its requests, but not for messages that nobody sent",
          "[threads][links]") {
  World world(2);
  world.run([&](Self& self) {
    int mine = 1, sum = 0, never = 0;
    koloRequest_t collective = nullptr, receive = nullptr;
    EXPECT_OK(self, koloIrecv(&never, 1, koloInt32, 1 - self.rank, 0, nullptr, self.comm, &receive));
    EXPECT_OK(self, koloIallReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, &collective));
    EXPECT_OK(self, koloCommDestroy(self.comm));
    world[self.rank] = nullptr;
    EXPECT_OK(self, finish(collective));
    EXPECT_CODE(self, koloAborted, finish(receive));
    EXPECT(self, sum == 2);
  });
}

TEST_CASE("an abort ends requests that nobody waits for, and those that threads wait for", "[threads][links]") {
  World world(2);
  std::atomic<int> started{0};
  world.run([&](Self& self) {
    int in = 0, other = 0, sum = 0;
    koloRequest_t receive = nullptr, waited = nullptr, collective = nullptr;
    EXPECT_OK(self, koloIrecv(&in, 1, koloInt32, 1 - self.rank, 0, nullptr, self.comm, &receive));
    EXPECT_OK(self, koloIrecv(&other, 1, koloInt32, 1 - self.rank, 1, nullptr, self.comm, &waited));
    if (self.rank == 0) EXPECT_OK(self, koloIallReduce(&in, &sum, 1, koloInt32, koloSum, self.comm, &collective));
    std::thread waiter([&] { (void)koloRequestWait(waited, -1); });
    for (++started; started < 2;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (self.rank == 1) {
      EXPECT_OK(self, koloCommAbort(self.comm));
      world[1] = nullptr;
    }
    waiter.join();
    EXPECT_CODE(self, koloAborted, finish(waited));
    EXPECT_CODE(self, koloAborted, finish(receive));
    if (collective != nullptr) EXPECT_CODE(self, koloAborted, finish(collective));
  });
}

TEST_CASE("an operation's own deadline") {
  World world(2);
  SECTION("of a message that nobody waits for") {
    world.run([](Self& self) {
      if (self.rank != 0) return;
      int never = 0;
      koloRequest_t request = nullptr;
      EXPECT_OK(self, koloSetTimeout(50));
      EXPECT_OK(self, koloIrecv(&never, 1, koloInt32, 1, 0, nullptr, self.comm, &request));
      EXPECT_OK(self, koloSetTimeout(-1));
      while (koloRequestTest(request) == koloInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_CODE(self, koloTimeout, koloRequestTest(request));
      EXPECT(self, messageHas("the limit is 50 ms (koloSetTimeout)"));
      EXPECT_CODE(self, koloTimeout, finish(request));
    });
  }
  SECTION("the communicator's, where a message has none of its own") {
    koloConfig_t config = defaultConfig();
    config.timeoutMs = 50;
    World hasty(2, config);
    hasty.run([](Self& self) {
      if (self.rank != 0) return;
      int never = 0;
      koloRequest_t request = nullptr;
      EXPECT_OK(self, koloIrecv(&never, 1, koloInt32, 1, 0, nullptr, self.comm, &request));
      while (koloRequestTest(request) == koloInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_CODE(self, koloTimeout, koloRequestTest(request));
      EXPECT(self, messageHas("the limit is 50 ms (KOLO_TIMEOUT_MS)"));
      EXPECT_CODE(self, koloTimeout, finish(request));
    });
  }
  SECTION("of a message, while another thread waits for something else") {
    const bool inCollective = GENERATE(false, true);
    world.run([&](Self& self) {
      if (self.rank != 0) return;
      int never = 0, other = 0;
      koloRequest_t request = nullptr;
      EXPECT_OK(self, koloSetTimeout(100));
      EXPECT_OK(self, koloIrecv(&never, 1, koloInt32, 1, 0, nullptr, self.comm, &request));
      EXPECT_OK(self, koloSetTimeout(-1));
      EXPECT_CODE(
          self, koloTimeout,
          inCollective ? koloBarrier(self.comm, nullptr) : koloRecv(&other, 1, koloInt32, 1, self.comm, nullptr));
      EXPECT_CODE(self, koloTimeout, finish(request));
    });
  }
  SECTION("of a blocking collective, and of one on a stream") {
    const bool onStream = GENERATE(false, true);
    world.run([&](Self& self) {
      if (self.rank != 0) return;
      int mine = 0, sum = 0;
      koloStream_t stream = nullptr;
      if (onStream) EXPECT_OK(self, koloStreamCreate(&stream));
      EXPECT_OK(self, koloSetTimeout(50));
      const koloResult_t result = koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, stream);
      EXPECT_OK(self, koloSetTimeout(-1));
      EXPECT(self, (onStream ? koloStreamSynchronize(stream) : result) == koloTimeout);
      EXPECT(self, messageHas("the limit is 50 ms (koloSetTimeout)"));
      if (onStream) EXPECT_OK(self, koloStreamDestroy(stream));
    });
  }
  SECTION("longer than the communicator's") {
    koloConfig_t config = defaultConfig();
    config.timeoutMs = 40;
    World hasty(2, config);
    hasty.run([](Self& self) {
      EXPECT_OK(self, koloSetTimeout(0));
      if (self.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      expectWorks(self);
      int value = 3;
      if (self.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (self.rank == 1) EXPECT_OK(self, koloSend(&value, 1, koloInt32, 0, self.comm, nullptr));
      if (self.rank == 0) EXPECT_OK(self, koloRecv(&value, 1, koloInt32, 1, self.comm, nullptr));
      EXPECT_OK(self, koloSetTimeout(-1));
    });
  }
  CHECK_CODE(koloInvalidArgument, koloSetTimeout(-2));
}

TEST_CASE("events mark places in streams", "[threads]") {
  World world(2);
  std::atomic<bool> asked{false};
  world.run([&](Self& self) {
    std::array<koloStream_t, 2> streams{};
    koloEvent_t event = nullptr;
    for (koloStream_t& stream : streams) EXPECT_OK(self, koloStreamCreate(&stream));
    EXPECT_OK(self, koloEventCreate(&event));
    EXPECT_OK(self, koloEventQuery(event));  // never recorded
    EXPECT_OK(self, koloEventSynchronize(event));
    int mine = self.rank + 1, sum = 0, most = 0;
    while (self.rank == 1 && !asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_OK(self, koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, streams[0]));
    EXPECT_OK(self, koloEventRecord(event, streams[0]));
    if (self.rank == 0) EXPECT_CODE(self, koloInProgress, koloEventQuery(event));
    asked = true;
    EXPECT_OK(self, koloStreamWaitEvent(streams[1], event));
    EXPECT_OK(self,
              koloAllReduce(&sum, &most, 1, koloInt32, koloMax, self.comm, streams[1]));  // of what the first one gives
    EXPECT_OK(self, self.rank == 0 ? koloEventSynchronize(event) : koloStreamWaitEvent(nullptr, event));
    EXPECT_OK(self, koloEventQuery(event));
    EXPECT(self, sum == 3);
    EXPECT_OK(self, koloEventDestroy(event));
    EXPECT_OK(self, koloStreamSynchronize(streams[1]));
    EXPECT(self, most == 3);
    for (koloStream_t stream : streams) EXPECT_OK(self, koloStreamDestroy(stream));
    EXPECT_CODE(self, koloInvalidHandle, koloEventRecord(event, nullptr));
  });
}

TEST_CASE("threads start and wait for requests on one communicator", "[threads][links]") {
  World world(2);
  world.run([](Self& self) {
    constexpr int kThreads = 4, kRounds = 50;
    std::array<std::vector<std::string>, kThreads> faults;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Self mine{self.rank, self.ranks, self.comm, {}};
        const int peer = 1 - self.rank;
        for (int i = 0; i < kRounds; ++i) {
          const std::vector<int> sent = numbers(kCounts[static_cast<size_t>(i) % 5], t * 100 + i);
          std::vector<int> received(sent.size(), -1);
          koloRequest_t in = nullptr, out = nullptr;
          EXPECT_OK(mine, irecv(mine, received, peer, t, &in));
          EXPECT_OK(mine, isend(mine, sent, peer, t, &out));
          EXPECT_OK(mine, finish(out));
          EXPECT_OK(mine, finish(in));
          EXPECT(mine, received == sent);
        }
        faults[static_cast<size_t>(t)] = mine.faults;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& each : faults) self.faults.insert(self.faults.end(), each.begin(), each.end());
  });
}

TEST_CASE("wait all waits for all, passes over NULL, and gives the first error", "[threads][links]") {
  World world(2), other(2);
  world.run([&](Self& self) {
    const int peer = 1 - self.rank;
    std::vector<int> received(8, -1), sums(2, -1);
    std::vector<koloRequest_t> requests(11, nullptr);
    for (int i = 0; i < 8; ++i)
      EXPECT_OK(self, koloIrecv(&received[static_cast<size_t>(i)], 1, koloInt32, peer, i, nullptr, self.comm,
                                &requests[static_cast<size_t>(i)]));
    // Nothing has been sent yet.
    EXPECT_CODE(self, koloInProgress, koloRequestWaitAll(8, requests.data(), 0));
    EXPECT_OK(self, koloBarrier(other[self.rank], nullptr));
    // On two communicators, each rank in another order.
    for (int k = 0; k < 2; ++k) {
      const bool isFirst = (k + self.rank) % 2 == 0;
      EXPECT_OK(self,
                koloIallReduce(&self.rank, &sums[isFirst ? 0 : 1], 1, koloInt32, koloSum,
                               isFirst ? self.comm : other[self.rank], &requests[static_cast<size_t>(8 + 2 * k)]));
    }
    for (int i = 7; i >= 0; --i) EXPECT_OK(self, koloSendTag(&i, 1, koloInt32, peer, i, self.comm, nullptr));
    EXPECT_OK(self, koloRequestWaitAll(11, requests.data(), -1));
    for (int i = 0; i < 8; ++i) EXPECT(self, received[static_cast<size_t>(i)] == i);
    EXPECT(self, sums == std::vector<int>(2, 1));
    EXPECT_OK(self, koloRequestWaitAll(11, requests.data(), 0));  // a finished one again
    for (const koloRequest_t request : requests)
      if (request != nullptr) EXPECT_OK(self, koloRequestFree(request));
    EXPECT_OK(self, koloRequestWaitAll(0, nullptr, -1));
    // One of them fails, and the others are done all the same.
    int mine = self.rank, longer[2] = {}, shorter = 0;
    koloRequest_t two[2] = {};
    if (self.rank == 0) {
      EXPECT_OK(self, koloIrecv(&shorter, 1, koloInt32, peer, 1, nullptr, self.comm, &two[0]));
      EXPECT_OK(self, koloIrecv(longer, 1, koloInt32, peer, 2, nullptr, self.comm, &two[1]));
    } else {
      EXPECT_OK(self, koloIsend(longer, 2, koloInt32, peer, 1, self.comm, &two[0]));
      EXPECT_OK(self, koloIsend(&mine, 1, koloInt32, peer, 2, self.comm, &two[1]));
    }
    EXPECT_CODE(self, self.rank == 0 ? koloTruncated : koloSuccess, koloRequestWaitAll(2, two, -1));
    for (const koloRequest_t request : two) {
      EXPECT(self, koloRequestTest(request) != koloInProgress);
      EXPECT_OK(self, koloRequestFree(request));
    }
    EXPECT(self, self.rank == 1 || longer[0] == 1);
    EXPECT_CODE(self, koloInvalidCount, koloRequestWaitAll(-1, two, -1));
    EXPECT_CODE(self, koloInvalidPointer, koloRequestWaitAll(2, nullptr, -1));
    EXPECT_CODE(self, koloInvalidArgument, koloRequestWaitAll(0, nullptr, -2));
    EXPECT_CODE(self, koloInvalidHandle, koloRequestWaitAll(2, two, -1));
  });
}
