// What ranks learn when they wait in vain: whose wait it is that the others follow from, and what a rank in no call has
// called.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "support/known_wait.h"
#include "support/one_core.h"
#include "support/ranks.h"
#include "support/text.h"

using namespace kolo::test;
using namespace std::chrono_literals;

namespace {

void expectWords(Self& self, const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (text.find(word) == std::string::npos) self.fault(KOLO_HERE, word + " is not in: " + text);
  }
}

// The ranks that wait, one after the other.
struct Queue {
  std::atomic<int> waiting{0};  // so many waits are known
  int all = 0;
};
struct Place {
  Queue& queue;
  int number;        // in the queue
  bool isFirstOver;  // this rank's time is over when all wait
  KnownWait wait{};
};

// The progress function of a rank that waits.
void waitInTurn(void* context) {
  Place& place = *static_cast<Place*>(context);
  if (place.wait.becomesKnown()) ++place.queue.waiting;
  if (place.isFirstOver && place.queue.waiting == place.queue.all) koloSetTimeout(1);
}

// Each rank but the idle one receives what nobody sends from the rank after it. They begin in turn, by their places in
// `order`, and have no limit but for one rank, whose time is over when all wait.
void expectBlame(const std::vector<int>& order, int idle, int firstOver, const std::string& begin,
                 const std::string& more) {
  Queue queue;
  queue.all = static_cast<int>(order.size()) - (idle < 0 ? 0 : 1);
  std::vector<Place> places;
  for (std::size_t rank = 0; rank < order.size(); ++rank)
    places.push_back({queue, order[rank], static_cast<int>(rank) == firstOver});
  const World world(static_cast<int>(order.size()));
  world.run([&](Self& self) {
    int value = 0;
    if (self.rank == idle) {
      EXPECT(self, awaitFailure(self.comm) == koloTimeout);
    } else {
      Place& place = places[static_cast<std::size_t>(self.rank)];
      EXPECT_OK(self, koloSetTimeout(0));
      EXPECT_OK(self, koloCommSetProgress(self.comm, waitInTurn, &place));
      while (queue.waiting < place.number) std::this_thread::sleep_for(1ms);
      EXPECT_CODE(self, koloTimeout, koloRecv(&value, 1, koloInt32, (self.rank + 1) % self.ranks, self.comm, nullptr));
      expectWords(self, koloGetLastError(nullptr), {begin, more});
    }
    const std::string told = koloGetLastError(self.comm);
    expectWords(self, told, {begin, more});
    if (told.find(begin) != 0) self.fault(KOLO_HERE, "the cause does not come first: " + told);
  });
}

}  // namespace

TEST_CASE("a timeout names the wait from which the others follow", "[threads][links]") {
  // Rank 0 waits for 1, which waits for 2, which waits for 3, which waits for nobody.
  for (const int firstOver : {0, 1, 2}) {
    expectBlame({0, 1, 2, 3}, 3, firstOver, "rank 2 waited ",
                "for a message from rank 3 on communicator world; rank 3 waits for nobody");
  }
}

TEST_CASE("of waits in a circle the oldest is named first, and then the others") {
  for (const int firstOver : {0, 1, 2})
    expectBlame({1, 0, 2}, -1, firstOver, "rank 1 waited ", "for a message from rank 2 on communicator world; and ");
  for (const int firstOver : {0, 1}) expectBlame({1, 0}, -1, firstOver, "rank 1 waited ", "rank 0 for rank 1");
}

TEST_CASE("a timeout says how far the rank has come that is waited for") {
  koloConfig_t config = defaultConfig();
  config.timeoutMs = 300;
  for (const bool begins : {false, true}) {
    const World world(2, config);
    world.run([&](Self& self) {
      if (begins) {
        EXPECT_OK(self, koloSetTimeout(0));  // what shall succeed has all the time that a busy machine takes
        EXPECT_OK(self, koloBarrier(self.comm, nullptr));
        EXPECT_OK(self, koloSetTimeout(-1));
      }
      if (self.rank == 1) {
        EXPECT(self, awaitFailure(self.comm) == koloTimeout);
      } else {
        EXPECT_CODE(self, koloTimeout, koloBarrier(self.comm, nullptr));
      }
      const std::string told = koloGetLastError(self.comm);
      EXPECT(self, waitedMs(told) >= config.timeoutMs);
      expectWords(self, told,
                  {begins ? "rank 1 has not called it: its last is operation 1" : "rank 1 has called no operation"});
    });
  }
}

// Each way to wait for a rank that never comes.
TEST_CASE("every wait of an operation that is over names the setting for how long it may be", "[links]") {
  constexpr size_t kLarge = 200'000;  // far beyond what goes without the peer
  std::vector<int> out(2 * kLarge, 1), in(2 * kLarge);
  const auto inStream = [&](koloComm_t comm) {
    koloStream_t stream = nullptr;
    koloResult_t result = koloStreamCreate(&stream);
    if (result == koloSuccess) result = koloAllReduce(out.data(), in.data(), 1, koloInt32, koloSum, comm, stream);
    if (result == koloSuccess) result = koloStreamSynchronize(stream);
    if (stream != nullptr) koloStreamDestroy(stream);
    return result;
  };
  const auto inGroup = [&](koloComm_t comm) {
    koloGroupStart();
    koloSend(out.data(), kLarge, koloInt32, 1, comm, nullptr);
    koloRecv(in.data(), kLarge, koloInt32, 1, comm, nullptr);
    return koloGroupEnd();
  };
  const auto sum = [&](koloComm_t comm, size_t count) {
    return koloAllReduce(out.data(), in.data(), count, koloInt32, koloSum, comm, nullptr);
  };
  const auto broadcast = [&](koloComm_t comm, size_t count, int root) {
    return koloBroadcast(out.data(), out.data(), count, koloInt32, root, comm, nullptr);
  };
  // Nothing ends a rank that only gives but that it has run too far ahead.
  const auto ahead = [&](koloComm_t comm) {
    koloResult_t result = koloSuccess;
    for (int i = 0; i < 1000 && result == koloSuccess; ++i) result = broadcast(comm, 1, 0);
    return result;
  };
  const std::vector<std::pair<const char*, std::function<koloResult_t(koloComm_t)>>> waits = {
      {"barrier", [](koloComm_t comm) { return koloBarrier(comm, nullptr); }},
      {"small sum", [&](koloComm_t comm) { return sum(comm, 1); }},
      {"large sum", [&](koloComm_t comm) { return sum(comm, kLarge); }},
      {"from a root", [&](koloComm_t comm) { return broadcast(comm, 1, 1); }},
      {"to others", [&](koloComm_t comm) { return broadcast(comm, kLarge, 0); }},
      {"far ahead", ahead},
      {"at a root", [&](koloComm_t comm) { return koloGather(out.data(), in.data(), 1, koloInt32, 0, comm, nullptr); }},
      {"exchange",
       [&](koloComm_t comm) { return koloAllToAll(out.data(), in.data(), kLarge, koloInt32, comm, nullptr); }},
      {"receive", [&](koloComm_t comm) { return koloRecv(in.data(), 1, koloInt32, 1, comm, nullptr); }},
      {"long send", [&](koloComm_t comm) { return koloSend(out.data(), kLarge, koloInt32, 1, comm, nullptr); }},
      {"both", inGroup},
      {"in a stream", inStream}};
  koloConfig_t config = defaultConfig();
  config.timeoutMs = 100;
  for (const auto& [what, wait] : waits) {
    INFO(what);
    const World world(2, config);
    world.run([&, what = what, &wait = wait](Self& self) {
      const koloResult_t result = self.rank == 0 ? wait(self.comm) : awaitFailure(self.comm);
      if (result != koloTimeout) self.fault(what, "gave " + nameOf(result));
      expectWords(self, koloGetLastError(self.comm), {"the limit is 100 ms (KOLO_TIMEOUT_MS)"});
    });
  }
}

// By a mapped link the board of the rank in no call is read; by a posted one the rank is asked.
TEST_CASE("a rank that has called something else, and is in no call, is found out by who waits for it",
          "[threads][links]") {
  const World world(3);
  std::atomic<bool> given{false};
  world.run([&](Self& self) {
    int mine = self.rank, all[3] = {};
    const auto gather = [&] { return koloGather(&mine, all, 1, koloInt32, 0, self.comm, nullptr); };
    EXPECT_OK(self, gather());
    if (self.rank == 1) {
      EXPECT_OK(self, gather());  // repeats itself, and so waits for nobody
      given = true;
    }
    if (self.rank == 2) {
      while (!given) std::this_thread::yield();
      const auto since = std::chrono::steady_clock::now();
      EXPECT_CODE(self, koloMismatch, koloBroadcast(all, all, 3, koloInt32, 1, self.comm, nullptr));
      EXPECT_WITHIN(self, 10s * kSlowness, since);
    } else {
      EXPECT(self, awaitFailure(self.comm) == koloMismatch);
    }
    expectWords(self, koloGetLastError(self.comm), {"number 2", "rank 2 called broadcast", "rank 1 called gather"});
  });
}

TEST_CASE("a rank that may not wait does what it can do alone, and the rest when it may", "[threads]") {
  for (const size_t count : {size_t{2}, size_t{500}}) {  // in the header, and in one of four slots
    const int atOnce = count == 2 ? 32 : 3;  // the slot of the last call is free once the peer has begun the next
    const World world(2);
    std::atomic<int> stage{0};
    const auto await = [&](int which) {
      while (stage < which) std::this_thread::yield();
    };
    world.run([&](Self& self) {
      std::vector<int> one(count, -1), all(2 * count, 7);
      const auto give = [&](int value) {
        std::fill(all.begin(), all.end(), value);
        return koloScatter(all.data(), one.data(), count, koloInt32, 0, self.comm, nullptr);
      };
      const auto take = [&](int value) {
        one.assign(count, -1);
        EXPECT_OK(self, koloScatter(nullptr, one.data(), count, koloInt32, 0, self.comm, nullptr));
        EXPECT(self, one == std::vector<int>(count, value));
      };
      EXPECT_CODE(self, koloInvalidArgument, koloSetMayWait(2));
      if (self.rank == 1) {
        take(-2);
        stage = 1;
        await(2);
        for (int i = 0; i < atOnce; ++i) take(i);
        EXPECT_OK(self, koloBarrier(self.comm, nullptr));
        stage = 3;
        take(50);
        EXPECT_OK(self, koloBarrier(self.comm, nullptr));
        return;
      }
      EXPECT_OK(self, koloSetMayWait(0));
      EXPECT(self, give(-1) == koloInProgress);  // it is no repeat
      EXPECT_OK(self, koloSetMayWait(1));
      EXPECT_OK(self, give(-2));
      await(1);
      EXPECT_OK(self, koloSetMayWait(0));
      for (int i = 0; i < atOnce; ++i) EXPECT(self, give(i) == koloSuccess);
      EXPECT(self, give(atOnce) == koloInProgress);  // there is no room
      EXPECT(self, koloBarrier(self.comm, nullptr) == koloInProgress);
      EXPECT(self, koloSend(all.data(), 1, koloInt32, 1, self.comm, nullptr) == koloInProgress);
      EXPECT(self, koloRecv(all.data(), 1, koloInt32, 1, self.comm, nullptr) == koloInProgress);
      EXPECT(self, koloGather(all.data(), all.data(), 1, koloInt32, 0, self.comm, nullptr) == koloInProgress);
      stage = 2;
      EXPECT_OK(self, koloSetMayWait(1));
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
      EXPECT_OK(self, koloSetMayWait(0));
      await(3);
      EXPECT(self, give(50) == koloSuccess);  // there is room again
      EXPECT_OK(self, koloSetMayWait(1));
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    });
  }
}

TEST_CASE("a rank that may not wait learns that others have still to come before it can finalise", "[threads]") {
  const World world(3);
  std::atomic<bool> tried{false};
  world.run([&](Self& self) {
    int value = 7;
    const auto broadcast = [&] { return koloBroadcast(&value, &value, 1, koloInt32, 0, self.comm, nullptr); };
    EXPECT_OK(self, broadcast());
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    while (self.rank == 2 && !tried) std::this_thread::yield();
    EXPECT_OK(self, broadcast());
    if (self.rank != 0) return;
    EXPECT_OK(self, koloSetMayWait(0));
    EXPECT(self, koloCommFinalize(self.comm) == koloInProgress);
    EXPECT(self, broadcast() == koloSuccess);  // it was not finalised
    tried = true;
    EXPECT_OK(self, koloSetMayWait(1));
  });
  world.run([&](Self& self) {
    int value = 7;
    if (self.rank != 0) EXPECT_OK(self, koloBroadcast(&value, &value, 1, koloInt32, 0, self.comm, nullptr));
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    EXPECT_OK(self, koloSetMayWait(0));
    EXPECT_OK(self, koloCommFinalize(self.comm));
    EXPECT_CODE(self, koloInvalidUsage, koloBarrier(self.comm, nullptr));
    EXPECT_OK(self, koloSetMayWait(1));
  });
}

// Short blocks go through slots anyway. Where ranks share cores, so do those of a gather up to 128 KiB, which would
// wait for the root's word of where they go. (Where a broadcast may wait, it may be relayed.)
TEST_CASE("a rank that may not wait gives the others what they take later, and has its buffer back") {
  const OneCore one;
  const World world(3);
  constexpr int kRoot = 1, kTimes = 12;
  const auto expectGiven = [&](size_t bytes, koloCollective_t collective, bool atOnce, bool registers) {
    INFO(bytes << " bytes, " << koloCollectiveName(collective) << (registers ? ", registered" : ""));
    world.run([&](Self& self) {
      koloPlan_t plan{};
      EXPECT_OK(self, koloCommGetPlan(self.comm, collective, bytes, koloUint8, koloSum, 0, &plan));
      const std::string algorithm = plan.algorithm;
      const bool mayGive = algorithm == "one_shot" || algorithm == "line";
      const bool isRoot = self.rank == kRoot, gathers = collective == koloCollectiveGather;
      const bool gives = isRoot != gathers, takes = !gives;
      const size_t blocks = collective != koloCollectiveBroadcast && isRoot ? 3 : 1;
      std::vector<unsigned char> given((gathers ? 1 : blocks) * bytes);
      const size_t size = std::max<size_t>((gathers ? blocks : 1) * bytes, 1);
      void* memory = nullptr;
      koloWindow_t window = nullptr;
      EXPECT_OK(self, koloMemAlloc(&memory, size));
      if (registers) EXPECT_OK(self, koloWindowRegister(self.comm, memory, size, &window));
      auto* const taken = static_cast<unsigned char*>(memory);
      const auto move = [&] {
        if (gathers) return koloGather(given.data(), taken, bytes, koloUint8, kRoot, self.comm, nullptr);
        if (collective == koloCollectiveScatter)
          return koloScatter(given.data(), taken, bytes, koloUint8, kRoot, self.comm, nullptr);
        return koloBroadcast(given.data(), taken, bytes, koloUint8, kRoot, self.comm, nullptr);
      };
      for (int i = 1; i <= kTimes; ++i) {
        const auto value = [&](int rank) { return static_cast<unsigned char>(i + 20 * rank); };
        std::fill(given.begin(), given.end(), value(self.rank));
        std::fill_n(taken, size, 0);
        koloResult_t result = koloInProgress;
        if (gives && i % 3 != 0) {  // now and then it may
          EXPECT_OK(self, koloSetMayWait(0));
          result = move();
          EXPECT_OK(self, koloSetMayWait(1));
          if (i > 1 && atOnce && mayGive) EXPECT(self, result == koloSuccess);
        }
        if (result == koloInProgress) result = move();
        EXPECT(self, result == koloSuccess);
        std::fill(given.begin(), given.end(), 0xee);
        for (size_t block = 0; takes && block * bytes < size; ++block) {
          const unsigned char expected = value(gathers ? static_cast<int>(block) : kRoot);
          const auto at = taken + block * bytes;
          EXPECT(self, std::all_of(at, at + bytes, [&](unsigned char each) { return each == expected; }));
        }
        EXPECT_OK(self, koloBarrier(self.comm, nullptr));  // there is room again
      }
      if (registers) EXPECT_OK(self, koloWindowDeregister(self.comm, window));
      EXPECT_OK(self, koloMemFree(memory));
    });
  };
  for (const koloCollective_t collective : {koloCollectiveScatter, koloCollectiveBroadcast, koloCollectiveGather}) {
    for (const bool registers : {false, true}) {
      for (const size_t bytes : {size_t{1}, size_t{8192}, size_t{16383}})
        expectGiven(bytes, collective, true, registers);
      for (const size_t bytes : {size_t{100003}, size_t{131072}})
        expectGiven(bytes, collective, collective == koloCollectiveGather, registers);
      expectGiven(300007, collective, false, registers);
    }
  }
}

// Then it does not offer the segments of a list, for the peers would read them after it has its buffer back.
TEST_CASE("a root that may not wait does not wait for those that would read its list", "[threads]") {
  const OneCore one;
  const World world(3);
  constexpr size_t kBytes = 40000;
  constexpr int kTimes = 6;
  std::atomic<int> left{0};
  world.run([&](Self& self) {
    std::vector<unsigned char> data(kBytes);
    koloItem_t item{};
    item.sendbuf = item.recvbuf = data.data();
    item.count = kBytes;
    item.sendtype = item.transfertype = item.recvtype = koloUint8;
    const auto broadcast = [&] { return koloBroadcastList(&item, 1, 0, self.comm, nullptr); };
    for (int i = 1; i <= kTimes; ++i) {
      const bool isRoot = self.rank == 0;
      std::fill(data.begin(), data.end(), static_cast<unsigned char>(isRoot ? i : 0));
      while (!isRoot && i > 1 && left < i) std::this_thread::yield();  // the root has left its call
      koloResult_t result = koloInProgress;
      if (isRoot && i > 1) {
        EXPECT_OK(self, koloSetMayWait(0));
        result = broadcast();
        EXPECT_OK(self, koloSetMayWait(1));
        left = i;
      }
      if (result == koloInProgress) result = broadcast();
      EXPECT(self, result == koloSuccess);
      EXPECT(self, std::all_of(data.begin(), data.end(), [&](unsigned char each) { return each == i; }));
      if (isRoot) std::fill(data.begin(), data.end(), static_cast<unsigned char>(0xee));
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));  // there is room again
    }
  });
}

// All ranks of a reduce meet, though only one gets something: so there must be room for a header with those, too, whom
// it gives nothing.
TEST_CASE("a rank that may not wait does not wait for ranks that it only meets", "[threads]") {
  constexpr size_t kCount = 500;
  const World world(3);
  std::atomic<bool> tried{false};
  world.run([&](Self& self) {
    std::vector<int> one(2, 1), many(kCount, 1), sum(kCount, 0);
    const auto broadcast = [&] { return koloBroadcast(one.data(), one.data(), 2, koloInt32, 0, self.comm, nullptr); };
    const auto reduce = [&] {
      return koloReduce(many.data(), sum.data(), kCount, koloInt32, koloSum, 1, self.comm, nullptr);
    };
    EXPECT_OK(self, reduce());
    EXPECT_OK(self, broadcast());
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    while (self.rank == 2 && !tried) std::this_thread::yield();
    for (int i = 0; i < 32; ++i) EXPECT_OK(self, broadcast());
    if (self.rank == 0) {
      EXPECT_OK(self, koloSetMayWait(0));
      EXPECT(self, reduce() == koloInProgress);
      EXPECT_OK(self, koloSetMayWait(1));
      tried = true;
    }
    EXPECT_OK(self, reduce());
    if (self.rank == 1) EXPECT(self, sum == std::vector<int>(kCount, 3));
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
  });
}

namespace {

// How often it was called, and what an operation inside it returned.
struct Progress {
  koloComm_t comm = nullptr;
  std::atomic<int> calls{0};
  std::atomic<int> inside{koloSuccess};

  static void make(void* context) {
    auto* self = static_cast<Progress*>(context);
    self->inside = koloBarrier(self->comm, nullptr);
    ++self->calls;
  }
};

}  // namespace

// The peer comes only when it has seen the call, so that without one the ranks would wait for ever.
TEST_CASE("a rank that waits calls the function for progress, in collectives and for messages", "[threads][links]") {
  const World world(2);
  Progress progress;
  world.run([&](Self& self) {
    int value = self.rank;
    const auto awaitCalls = [&](int calls) {
      while (progress.calls < calls) std::this_thread::sleep_for(1ms);
    };
    if (self.rank == 1) {
      awaitCalls(1);
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
      const int before = progress.calls;
      awaitCalls(before + 10);
      EXPECT_OK(self, koloSend(&value, 1, koloInt32, 0, self.comm, nullptr));
      EXPECT_OK(self, koloRecv(&value, 1, koloInt32, 0, self.comm, nullptr));
      std::this_thread::sleep_for(20ms);
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
      return;
    }
    progress.comm = self.comm;
    EXPECT_OK(self, koloCommSetProgress(self.comm, Progress::make, &progress));
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    EXPECT_OK(self, koloRecv(&value, 1, koloInt32, 1, self.comm, nullptr));
    EXPECT(self, value == 1);
    EXPECT(self, progress.inside == koloInvalidUsage);
    EXPECT_OK(self, koloCommSetProgress(self.comm, nullptr, nullptr));
    const int calls = progress.calls;
    EXPECT_OK(self, koloSend(&value, 1, koloInt32, 1, self.comm, nullptr));
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    EXPECT(self, progress.calls == calls);
  });
}

// As above, but the rank waits for what its communicator's own thread executes: for a request, and in a call behind it.
TEST_CASE("a rank that waits for another thread's execution calls the function for progress", "[threads]") {
  const World world(2);
  Progress progress;
  world.run([&](Self& self) {
    if (self.rank == 0) {
      progress.comm = self.comm;
      EXPECT_OK(self, koloCommSetProgress(self.comm, Progress::make, &progress));
    }
    for (int round = 0; round < 10; ++round) {
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
      if (self.rank == 1) {
        const int before = progress.calls;
        while (progress.calls < before + 3) std::this_thread::sleep_for(1ms);
      }
      koloRequest_t request = nullptr;
      EXPECT_OK(self, koloIbarrier(self.comm, &request));
      if (self.rank == 0) {
        std::this_thread::sleep_for(10ms);
        if (round % 2 == 0) EXPECT_OK(self, koloRequestWait(request, -1));
      }
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
      EXPECT_OK(self, koloRequestWait(request, -1));
      EXPECT_OK(self, koloRequestFree(request));
    }
  });
}
