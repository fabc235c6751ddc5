// Ranks that do not call the same operation: an error on all of them, with both sides in words, and never a hang.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "support/collectives_table.h"
#include "support/known_wait.h"
#include "support/ranks.h"
#include "support/text.h"

using namespace kolo::test;

namespace {

// Each rank calls call(self); afterwards every rank has koloMismatch: from the call, or from the next one where its
// part was over before anybody noticed. The text holds both `words`.
void expectMismatch(int ranks, const koloConfig_t& config, const std::function<koloResult_t(Self&)>& call,
                    const std::vector<const char*>& words) {
  World world(ranks, config);
  std::atomic<int> entered{0};
  world.run([&](Self& self) {
    place(KOLO_HERE ": the mismatched operation", self.rank);
    koloResult_t result = call(self);
    if (result == koloSuccess && awaitFailure(self.comm) != koloSuccess) result = koloBarrier(self.comm, nullptr);
    if (result != koloMismatch) self.fault(KOLO_HERE, "got " + nameOf(result) + ": " + koloGetLastError(nullptr));
    const std::string text = koloGetLastError(self.comm);
    for (const char* word : words) {
      if (text.find(word) == std::string::npos) self.fault(KOLO_HERE, std::string(word) + " is not in: " + text);
    }
    ++entered;
    // It stays that way.
    EXPECT_CODE(self, koloMismatch, koloBarrier(self.comm, nullptr));
  });
  CHECK(entered == ranks);
}

std::string labelled(const char* what, const std::string& algorithm, int ranks) {
  return std::string(what) + ", " + algorithm + ", " + std::to_string(ranks) + " ranks";
}

struct Case {
  const char* collective;
  const char* algorithm;
};
// Every algorithm of every collective.
const std::vector<Case> kCases = {
    {"all_reduce", "one_shot"},   {"all_reduce", "two_shot"},      {"all_reduce", "ring"},
    {"all_reduce", "biring"},     {"all_reduce", "recursive"},     {"all_reduce", "tree"},
    {"reduce", "one_shot"},       {"reduce", "two_shot"},          {"reduce", "ring"},
    {"reduce", "tree"},           {"broadcast", "one_shot"},       {"broadcast", "two_shot"},
    {"broadcast", "ring"},        {"broadcast", "tree"},           {"all_gather", "one_shot"},
    {"all_gather", "ring"},       {"all_gather", "biring"},        {"all_gather", "recursive"},
    {"all_gather", "bruck"},      {"reduce_scatter", "one_shot"},  {"reduce_scatter", "ring"},
    {"reduce_scatter", "biring"}, {"reduce_scatter", "recursive"}, {"all_to_all", "one_shot"},
    {"all_to_all", "bruck"},      {"all_to_all", "pairwise"},      {"gather", "one_shot"},
    {"gather", "tree"},           {"scatter", "one_shot"},         {"scatter", "tree"},
};

const Collective& byName(const std::string& name) {
  for (const Collective& collective : collectives()) {
    if (name == collective.name) return collective;
  }
  FAIL("no collective " << name);
  return collectives()[0];
}

// The last rank spoils one argument of the collective: in the first call, or in one that repeats it.
void spoilEach(const char* what, const std::vector<int>& rankCounts, size_t count,
               const std::function<void(Arguments&)>& spoil, const std::vector<const char*>& words,
               const std::function<bool(const Collective&)>& applies, bool repeats = false) {
  for (const Case& one : kCases) {
    const Collective& collective = byName(one.collective);
    if (!applies(collective)) continue;
    const std::string algorithm = std::string(one.collective) + ":" + one.algorithm;
    for (const int ranks : rankCounts) {
      INFO(labelled(what, algorithm, ranks));
      std::atomic<int> done{0};
      expectMismatch(
          ranks, configWithAlgorithm(algorithm.c_str()),
          [&](Self& self) {
            std::vector<char> send(count * 16 * static_cast<size_t>(ranks)), recv(send.size());
            Arguments arguments;
            arguments.send = send.data();
            arguments.recv = recv.data();
            arguments.count = count;
            arguments.comm = self.comm;
            if (repeats) EXPECT_OK(self, collective.call(arguments));
            for (++done; done < ranks;) std::this_thread::yield();  // or one that still waits would fail, too
            if (self.rank == ranks - 1) spoil(arguments);
            return collective.call(arguments);
          },
          words);
    }
  }
}

bool always(const Collective&) { return true; }

}  // namespace

TEST_CASE("counts that differ are a mismatch on all ranks, for every algorithm") {
  extendDeadline(std::chrono::seconds(60));
  const std::vector<int> ranks = kSanitized ? std::vector{3} : std::vector{2, 3, 5};
  spoilEach(
      "count", ranks, 5000, [](Arguments& a) { a.count = 4999; }, {"5000", "4999", "rank"}, always);
}

TEST_CASE("datatypes that differ are a mismatch on all ranks, for every algorithm", "[links]") {
  spoilEach(
      "datatype", {3}, 5000, [](Arguments& a) { a.datatype = koloFloat32; }, {"int32", "float32"}, always);
}

TEST_CASE("reductions that differ are a mismatch on all ranks, for every algorithm") {
  spoilEach(
      "op", {3}, 5000, [](Arguments& a) { a.op = koloMax; }, {"sum", "max"},
      [](const Collective& c) { return c.reduces; });
}

TEST_CASE("roots that differ are a mismatch on all ranks, for every algorithm") {
  spoilEach(
      "root", {2, 5}, 5000, [](Arguments& a) { a.root = 1; }, {"root 0", "root 1"},
      [](const Collective& c) { return c.hasRoot; });
}

// In a repeated call what a rank gives may be under way before it looks at what the others call, up to a few chunks.
TEST_CASE("a repeated call that differs is a mismatch on all ranks, for every algorithm") {
  extendDeadline(std::chrono::seconds(60));
  for (const size_t count : {size_t{5000}, size_t{200'000}}) {
    spoilEach(
        "repeated, count", {3}, count, [](Arguments& a) { a.count = 0; }, {"count 0", "rank"}, always, true);
    spoilEach(
        "repeated, root", {2, 3}, count, [](Arguments& a) { a.root = 1; }, {"root 0", "root 1"},
        [](const Collective& c) { return c.hasRoot; }, true);
  }
}

TEST_CASE("small operations that differ are a mismatch too, where the planner chooses") {
  for (const Collective& collective : collectives()) {
    for (const int ranks : {2, 3, 5}) {
      INFO(collective.name << ", " << ranks << " ranks");
      expectMismatch(ranks, defaultConfig(),
                     [&](Self& self) {
                       std::vector<int> send(64), recv(64);
                       Arguments arguments;
                       arguments.send = send.data();
                       arguments.recv = recv.data();
                       arguments.count = self.rank == 0 ? 2 : 3;
                       arguments.comm = self.comm;
                       return collective.call(arguments);
                     },
                     {"count 2", "count 3"});
    }
  }
}

TEST_CASE("counts in different size classes, for which the planner chooses differently, are a mismatch") {
  for (const Collective& collective : collectives()) {
    INFO(collective.name);
    expectMismatch(3, defaultConfig(),
                   [&](Self& self) {
                     const size_t count = self.rank == 1 ? 1 : 300000;
                     std::vector<char> send(count * 12), recv(count * 12);
                     Arguments arguments;
                     arguments.send = send.data();
                     arguments.recv = recv.data();
                     arguments.count = count;
                     arguments.comm = self.comm;
                     return collective.call(arguments);
                   },
                   {"300000"});
  }
}

TEST_CASE("different collectives are a mismatch, for every pair") {
  for (const Collective& one : collectives()) {
    for (const Collective& other : collectives()) {
      if (&one == &other) continue;
      INFO(one.name << " against " << other.name);
      expectMismatch(2, defaultConfig(),
                     [&](Self& self) {
                       std::vector<int> send(4096), recv(4096);
                       Arguments arguments;
                       arguments.send = send.data();
                       arguments.recv = recv.data();
                       arguments.count = 1000;
                       arguments.comm = self.comm;
                       return (self.rank == 0 ? one : other).call(arguments);
                     },
                     {one.name, other.name});
    }
  }
}

TEST_CASE("a barrier against a collective is a mismatch") {
  for (const char* barrier : {"barrier:line", "barrier:tree", "barrier:recursive"}) {
    for (const int ranks : {2, 3, 5}) {
      INFO(labelled("barrier", barrier, ranks));
      expectMismatch(ranks, configWithAlgorithm(barrier),
                     [](Self& self) {
                       std::vector<int> send(1000), recv(1000);
                       return self.rank == 1 ? koloBarrier(self.comm, nullptr)
                                             : koloAllReduce(send.data(), recv.data(), 1000, koloInt32, koloSum,
                                                             self.comm, nullptr);
                     },
                     {"barrier", "all_reduce"});
    }
  }
}

TEST_CASE("an operation that one rank calls once more than the others is a mismatch", "[threads][links]") {
  expectMismatch(3, defaultConfig(),
                 [](Self& self) {
                   std::vector<int> send(1000), recv(1000);
                   if (self.rank == 2) {
                     const koloResult_t result = koloBarrier(self.comm, nullptr);
                     if (result != koloSuccess) return result;
                   }
                   return koloAllReduce(send.data(), recv.data(), 1000, koloInt32, koloSum, self.comm, nullptr);
                 },
                 {"barrier", "all_reduce"});
}

TEST_CASE("algorithms forced differently on different ranks are a mismatch") {
  for (const char* other : {"all_reduce:ring", "all_reduce:tree", "all_reduce:recursive", "all_reduce:one_shot"}) {
    INFO(other);
    expectMismatch(3, defaultConfig(),
                   [&](Self& self) {
                     std::vector<int> send(50000), recv(50000);
                     const koloResult_t set =
                         koloCommSetAlgorithm(self.comm, self.rank == 0 ? other : "all_reduce:two_shot");
                     if (set != koloSuccess) return set;
                     return koloAllReduce(send.data(), recv.data(), 50000, koloInt32, koloSum, self.comm, nullptr);
                   },
                   {"two_shot"});
  }
}

TEST_CASE("counts of v-variants that differ between ranks are a mismatch on all ranks") {
  const std::vector<std::pair<const char*, std::function<koloResult_t(Self&, const std::vector<size_t>&)>>> calls = {
      {"all_gatherv",
       [](Self& self, const std::vector<size_t>& counts) {
         std::vector<int> send(64), recv(256);
         return koloAllGatherv(send.data(), recv.data(), counts.data(), nullptr, koloInt32, self.comm, nullptr);
       }},
      {"reduce_scatterv",
       [](Self& self, const std::vector<size_t>& counts) {
         std::vector<int> send(256), recv(64);
         return koloReduceScatterv(send.data(), recv.data(), counts.data(), nullptr, koloInt32, koloSum, self.comm,
                                   nullptr);
       }},
  };
  for (const auto& [name, call] : calls) {
    for (const int ranks : {2, 3, 5}) {
      INFO(name << ", " << ranks << " ranks");
      expectMismatch(ranks, defaultConfig(),
                     [&, &call = call](Self& self) {
                       std::vector<size_t> counts(static_cast<size_t>(ranks), 10);
                       if (self.rank == 1) counts[0] = 11;
                       return call(self, counts);
                     },
                     {});
    }
  }
}

TEST_CASE("an all-to-all block that is sent and expected in different lengths is a mismatch on all ranks", "[links]") {
  for (const int ranks : {2, 3, 5}) {
    INFO(ranks << " ranks");
    expectMismatch(ranks, defaultConfig(),
                   [&](Self& self) {
                     std::vector<int> send(256), recv(256);
                     std::vector<size_t> sends(static_cast<size_t>(ranks), 10), receives(sends);
                     if (self.rank == 0) sends[1] = 12;
                     return koloAllToAllv(send.data(), sends.data(), nullptr, recv.data(), receives.data(), nullptr,
                                          koloInt32, self.comm, nullptr);
                   },
                   {"12", "10"});
  }
}

TEST_CASE("a gatherv or scatterv block whose length root and rank see differently is a mismatch on all ranks",
          "[threads][links]") {
  for (const bool gather : {true, false}) {
    for (const int ranks : {2, 3, 5}) {
      INFO((gather ? "gatherv, " : "scatterv, ") << ranks << " ranks");
      expectMismatch(ranks, defaultConfig(),
                     [&](Self& self) {
                       std::vector<int> send(256), recv(256);
                       const std::vector<size_t> counts(static_cast<size_t>(ranks), 10);
                       const size_t mine = self.rank == ranks - 1 ? 9 : 10;
                       return gather ? koloGatherv(send.data(), mine, recv.data(), counts.data(), nullptr, koloInt32, 0,
                                                   self.comm, nullptr)
                                     : koloScatterv(send.data(), counts.data(), nullptr, recv.data(), mine, koloInt32,
                                                    0, self.comm, nullptr);
                     },
                     {"10", "9"});
    }
  }
}

TEST_CASE("a mismatch in a group or on a stream is reported by the group's end or the stream", "[threads]") {
  for (const bool onStream : {false, true}) {
    INFO((onStream ? "stream" : "group"));
    expectMismatch(3, defaultConfig(),
                   [&](Self& self) {
                     std::vector<int> send(100), recv(100), more(100);
                     koloStream_t stream = nullptr;
                     if (onStream) EXPECT_OK(self, koloStreamCreate(&stream));
                     EXPECT_OK(self, koloGroupStart());
                     EXPECT_OK(self,
                               koloAllReduce(send.data(), recv.data(), 100, koloInt32, koloSum, self.comm, stream));
                     EXPECT_OK(self, koloAllReduce(send.data(), more.data(), self.rank == 1 ? 50 : 60, koloInt32,
                                                   koloSum, self.comm, stream));
                     koloResult_t result = koloGroupEnd();
                     if (onStream) {
                       EXPECT(self, result == koloSuccess);
                       result = koloStreamDestroy(stream);
                     }
                     return result;
                   },
                   {"50", "60"});
  }
}

TEST_CASE("a wait in vain ends with a timeout that names the rank waited for") {
  koloConfig_t config = defaultConfig();
  config.timeoutMs = 200;
  config.name = "patience";
  for (const int hasty : {0, 1}) {  // its time begins when the other one waits, who has all the time there is
    struct Other {
      KnownWait wait;
      std::atomic<bool> isKnown{false};
    } other;
    const auto look = [](void* context) {
      auto& its = *static_cast<Other*>(context);
      if (its.wait.becomesKnown()) its.isKnown = true;
    };
    World world(3, config);
    world.run([&](Self& self) {
      if (self.rank == 1 - hasty) {
        EXPECT_OK(self, koloSetTimeout(0));
        EXPECT_OK(self, koloCommSetProgress(self.comm, look, &other));
      }
      while (self.rank == hasty && !other.isKnown) std::this_thread::yield();
      if (self.rank == 2) EXPECT(self, awaitFailure(self.comm) == koloTimeout);
      EXPECT_CODE(self, koloTimeout, koloBarrier(self.comm, nullptr));
      const std::string text = koloGetLastError(nullptr);
      if (text.find(" ms for rank 2") == std::string::npos || text.find("patience") == std::string::npos) {
        self.fault(KOLO_HERE, "the message is: " + text);
      }
    });
  }
}

TEST_CASE("waiting for a message that nobody sends ends with a timeout") {
  koloConfig_t config = defaultConfig();
  config.timeoutMs = 200;
  for (const int source : {1, KOLO_ANY_SOURCE}) {
    World world(2, config);
    world.run([&](Self& self) {
      int value = 0;
      if (self.rank == 0) {
        EXPECT_CODE(self, koloTimeout, koloRecvTag(&value, 1, koloInt32, source, 3, nullptr, self.comm, nullptr));
        EXPECT(self, waitedMs(koloGetLastError(nullptr)) >= config.timeoutMs && messageHas(" ms for a message"));
      }
    });
  }
}

TEST_CASE("a rank that destroys its communicator while others wait for it is named", "[threads][links]") {
  World world(3);
  std::thread third([&] {
    koloCommDestroy(world[2]);
    world[2] = nullptr;
  });
  third.join();
  runOn({world[0], world[1]}, [](Self& self) {
    koloResult_t result = koloBarrier(self.comm, nullptr);
    EXPECT(self, result == koloRemoteError);
    if (std::string(koloGetLastError(nullptr)).find("rank 2") == std::string::npos) {
      self.fault(KOLO_HERE, koloGetLastError(nullptr));
    }
  });
}

// A rank that only gives does not wait for the others when it repeats a call: it runs ahead, and still learns of a
// mismatch.
TEST_CASE("a giver that repeats itself runs ahead of a receiver that does nothing yet", "[threads][links]") {
  constexpr int kAhead = 32;
  // In the line, and in a slot, of which there are four; that of the first call is free once the receiver has begun the
  // next.
  for (const size_t count : {size_t{2}, size_t{500}}) {
    const int ahead = count == 2 ? kAhead : 3;
    World world(2);
    std::atomic<bool> given{false};
    world.run([&](Self& self) {
      std::vector<int> values(count, self.rank == 0 ? 7 : 0);
      const auto broadcast = [&] {
        return koloBroadcast(values.data(), values.data(), count, koloInt32, 0, self.comm, nullptr);
      };
      EXPECT_OK(self, broadcast());
      while (self.rank == 1 && !given) std::this_thread::yield();
      for (int i = 0; i < ahead; ++i) {
        if (self.rank == 1) values.assign(count, 0);
        EXPECT_OK(self, broadcast());
        EXPECT(self, values == std::vector<int>(count, 7));
      }
      given = true;
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    });
  }
}

// The same with counts of each rank's own: what is remembered is the call and all its numbers, not where the arrays
// lie.
TEST_CASE("a giver that repeats a call with counts runs ahead, as long as the numbers are the same",
          "[threads][links]") {
  constexpr int kAhead = 3;  // slots
  World world(2);
  std::atomic<int> given{0};
  world.run([&](Self& self) {
    std::vector<int> values(10), received(4);
    const auto scatter = [&](size_t its, const size_t* displs) {
      const size_t counts[] = {1, its};
      std::fill(received.begin(), received.end(), -1);
      EXPECT_OK(self, koloScatterv(values.data(), counts, displs, received.data(), counts[self.rank], koloInt32, 0,
                                   self.comm, nullptr));
    };
    const auto expect = [&](size_t its, int first) {
      if (self.rank == 0) its = 1, first = values[0];
      for (size_t i = 0; i < received.size(); ++i)
        EXPECT(self, received[i] == (i < its ? first + static_cast<int>(i) : -1));
    };
    const size_t inARow[] = {0, 1}, apart[] = {0, 5};
    for (int round = 1; round <= 3; ++round) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = 100 * round + static_cast<int>(i);
      scatter(4, nullptr);
      expect(4, 100 * round + 1);
      while (self.rank == 1 && given < round) std::this_thread::yield();
      for (int i = 0; i < kAhead; ++i) scatter(4, i % 2 == 0 ? inARow : nullptr);  // the root does not wait
      expect(4, 100 * round + 1);
      if (self.rank == 0) given = round;
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
      scatter(4, apart);
      expect(4, 100 * round + 5);
      scatter(3, apart);
      expect(3, 100 * round + 5);
      scatter(0, apart);
      expect(0, 0);
      EXPECT_OK(self, koloBarrier(self.comm, nullptr));
    }
  });
}

TEST_CASE("counts that no longer match after many repeats are a mismatch on all ranks") {
  for (const int ranks : {2, 3}) {
    INFO(ranks << " ranks");
    expectMismatch(
        ranks, KOLO_CONFIG_INITIALIZER,
        [](Self& self) {
          int send[6] = {}, recv[6] = {};
          size_t counts[3] = {2, 2, 2};
          for (int i = 0; i < 50; ++i) {
            const koloResult_t result = koloScatterv(send, counts, nullptr, recv, 2, koloInt32, 0, self.comm, nullptr);
            if (result != koloSuccess) return result;
          }
          counts[1] = 1;
          koloResult_t result = koloScatterv(send, counts, nullptr, recv, 2, koloInt32, 0, self.comm, nullptr);
          if (result == koloSuccess) result = koloBarrier(self.comm, nullptr);
          return result;
        },
        {"count 2", "count 1", "number 51", "scatterv"});
  }
}

TEST_CASE("a giver that repeats some calls in turn runs ahead, and each brings its own data") {
  constexpr int kCalls = 3;
  World world(2);
  std::atomic<bool> given{false};
  world.run([&](Self& self) {
    int values[kCalls][kCalls] = {};
    const auto broadcast = [&](int which) {
      for (int& value : values[which]) value = self.rank == 0 ? which + 1 : 0;
      EXPECT_OK(self, koloBroadcast(values[which], values[which], static_cast<size_t>(which + 1), koloInt32, 0,
                                    self.comm, nullptr));
      for (int i = 0; i <= which; ++i) EXPECT(self, values[which][i] == which + 1);
    };
    for (int i = 0; i < kCalls; ++i) broadcast(i);
    while (self.rank == 1 && !given) std::this_thread::yield();
    for (int i = 0; i < 32; ++i) broadcast(i % kCalls);
    given = true;
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
  });
}

TEST_CASE("a mismatch after many repeats reaches the giver by its next calls", "[links]") {
  for (const int ranks : {2, 3}) {
    INFO(ranks << " ranks");
    expectMismatch(ranks, KOLO_CONFIG_INITIALIZER,
                   [](Self& self) {
                     int value[3] = {};
                     for (int i = 0; i < 50; ++i) {
                       const koloResult_t result = koloBroadcast(value, value, 2, koloInt32, 0, self.comm, nullptr);
                       if (result != koloSuccess) return result;
                     }
                     const size_t count = self.rank == 1 ? 3 : 2;
                     return koloBroadcast(value, value, count, koloInt32, 0, self.comm, nullptr);
                   },
                   {"count 2", "count 3", "number 51", "broadcast"});
  }
}

TEST_CASE("a giver that learns of a mismatch only when it leaves is told by koloCommFinalize or koloCommDestroy",
          "[threads][links]") {
  for (const bool finalizes : {false, true}) {
    World world(2);
    std::atomic<bool> given{false};
    world.run([&](Self& self) {
      int value[3] = {};
      EXPECT_OK(self, koloBroadcast(value, value, 2, koloInt32, 0, self.comm, nullptr));
      if (self.rank == 1) {
        while (!given) std::this_thread::yield();
        EXPECT_CODE(self, koloMismatch, koloBroadcast(value, value, 3, koloInt32, 0, self.comm, nullptr));
        return;
      }
      EXPECT_OK(self, koloBroadcast(value, value, 2, koloInt32, 0, self.comm, nullptr));
      given = true;
      if (finalizes) {
        EXPECT_CODE(self, koloMismatch, koloCommFinalize(self.comm));
      } else {
        const koloComm_t comm = self.comm;
        EXPECT_CODE(self, koloMismatch, koloCommDestroy(comm));
        EXPECT(self, messageHas("count 3"));
      }
    });
    if (!finalizes) world[0] = nullptr;
  }
}

namespace {

// Items of a list, one of which a rank gives otherwise.
struct Items {
  std::vector<float> memory = std::vector<float>(20000);
  const size_t shape[2] = {6, 6};
  const koloArray_t array{2, shape, nullptr};
  const float scale = 4, minus = -1;
  std::vector<koloItem_t> items;

  explicit Items(size_t n) {
    for (size_t i = 0; i < n; ++i) {
      koloItem_t item{};
      item.count = 10 + i;
      item.sendbuf = memory.data() + i * 1000;
      item.recvbuf = memory.data() + 10000 + i * 1000;
      item.sendtype = item.transfertype = item.recvtype = koloFloat32;
      items.push_back(item);
    }
  }
  // An array all ranks' parts of which make one of 6 x 6 elements.
  void useArray(size_t item, int axis) {
    items[item].recvarray = &array;
    items[item].axis = axis;
  }
};

struct ListFault {
  const char* what;
  void (*spoil)(Items&);
  std::vector<const char*> words;
};

const std::vector<ListFault> kListFaults = {
    {"count", [](Items& its) { its.items[3].count = 40; }, {"item 3: ", "gave 13 elements", "gave 40 elements"}},
    {"transfertype",
     [](Items& its) { its.items[2].transfertype = koloBfloat16; },
     {"item 2: ", "gave transfertype float32", "gave transfertype bfloat16"}},
    {"recvtype",
     [](Items& its) { its.items[0].recvtype = koloFloat16; },
     {"item 0: ", "gave recvtype float32", "gave recvtype float16"}},
    {"scale", [](Items& its) { its.items[4].scale = &its.scale; }, {"item 4: ", "gave scale 1", "gave scale 4"}},
    {"signs of two scales",
     [](Items& its) { its.items[1].scale = its.items[3].scale = &its.minus; },
     {"item 1: ", "gave scale 1", "gave scale -1"}},
    {"number", [](Items& its) { its.items.pop_back(); }, {"gave 5 items", "gave 4"}},
};

}  // namespace

TEST_CASE("S1.5 lists that differ are a mismatch on all ranks, which names the item and both sides") {
  for (const char* algorithm : {"", "all_reduce:ring", "all_reduce:one_shot"}) {
    for (const ListFault& fault : kListFaults) {
      for (const int ranks : {2, 4}) {
        INFO(algorithm << ", " << fault.what << ", " << ranks << " ranks");
        expectMismatch(
            ranks, configWithAlgorithm(algorithm),
            [&](Self& self) {
              Items its(5);
              if (self.rank == ranks - 1) fault.spoil(its);
              return koloAllReduceList(its.items.data(), its.items.size(), koloSum, self.comm, nullptr);
            },
            fault.words);
      }
    }
  }
}

TEST_CASE("S0.6 ranks that cut an array along different axes get an error that says so", "[links]") {
  expectMismatch(3, defaultConfig(),
                 [&](Self& self) {
                   Items its(3);
                   its.useArray(1, self.rank == 1 ? 1 : 0);
                   return koloAllGatherList(its.items.data(), its.items.size(), self.comm, nullptr);
                 },
                 {"item 1: ", "axis 0 of an array of shape (6, 6)", "axis 1 of an array of shape (6, 6)"});
  expectMismatch(3, defaultConfig(),
                 [&](Self& self) {
                   Items its(1);
                   const int axis = self.rank == 2 ? 1 : 0;
                   return koloReshard(its.items.data(), &its.array, 1 - axis, axis, nullptr, nullptr, self.comm,
                                      nullptr);
                 },
                 {"the array cut along axis 0", "the array cut along axis 1"});
  expectMismatch(2, defaultConfig(),
                 [&](Self& self) {
                   Items its(1);
                   const size_t even[2] = {3, 3}, other[2] = {2, 4};
                   return koloReshard(its.items.data(), &its.array, 0, 1, nullptr, self.rank == 0 ? even : other,
                                      self.comm, nullptr);
                 },
                 {"rank 0 gave length 3 of rank 0 along axis 1, rank 1 gave length 2 of rank 0 along axis 1"});
}

// Through one answer for thousands of items, as the control plane's messages are bounded.
TEST_CASE("S1.5 in lists of thousands of items the one that differs is found") {
  constexpr size_t kItems = 40000;
  expectMismatch(2, defaultConfig(),
                 [&](Self& self) {
                   std::vector<int> send(kItems, 1), recv(kItems);
                   std::vector<koloItem_t> items(kItems);
                   for (size_t i = 0; i < kItems; ++i) {
                     items[i].sendbuf = &send[i];
                     items[i].recvbuf = &recv[i];
                     items[i].count = self.rank == 1 && i == 39000 ? 0 : 1;
                     items[i].sendtype = items[i].transfertype = items[i].recvtype = koloInt32;
                   }
                   return koloAllReduceList(items.data(), kItems, koloSum, self.comm, nullptr);
                 },
                 {"item 39000: rank 0 gave 1 elements, rank 1 gave 0 elements"});
}

TEST_CASE("S1.7 ranks that give other counts in an exchange of a list get an error that names item and rank") {
  expectMismatch(2, defaultConfig(),
                 [&](Self& self) {
                   std::vector<int> send(9), recv(12);
                   const size_t counts[] = {3, 6}, other[] = {6, 3};
                   koloItem_t item = KOLO_ITEM_INITIALIZER;
                   item.sendbuf = send.data();
                   item.recvbuf = recv.data();
                   item.counts = self.rank == 0 ? counts : other;
                   item.sendtype = koloInt32;
                   return koloAllToAllList(&item, 1, self.comm, nullptr);
                 },
                 {"item 0: rank 0 gave 3 elements for rank 0, rank 1 gave 6 elements for rank 0"});
}

// The part that differs is the first thing that the message says of the operations, and no digest is in it.
TEST_CASE("a mismatch's message begins with what differs") {
  const auto expectBegin = [](const std::function<koloResult_t(Self&)>& call, const std::string& begin) {
    World world(2, configWithAlgorithm("all_reduce:ring,all_gather:ring"));
    world.run([&](Self& self) {
      EXPECT_CODE(self, koloMismatch, call(self));
      const std::string message = koloGetLastError(self.comm);
      const size_t at = message.find(begin), rest = message.find("the ranks called different operations");
      const bool isFirst = at != std::string::npos && rest != std::string::npos && at < rest && at <= 24;
      if (!isFirst || message.find("digest") != std::string::npos) self.fault(KOLO_HERE, message);
    });
  };
  std::vector<int> send(4000, 1), lists(4000, 1);
  const auto reduces = [&](Self& self, size_t count, koloDataType_t datatype, koloRedOp_t op) {
    std::vector<int> recv(4000);
    return koloAllReduce(send.data(), recv.data(), count, datatype, op, self.comm, nullptr);
  };
  expectBegin([&](Self& self) { return reduces(self, self.rank == 0 ? 999 : 1000, koloInt32, koloSum); }, "count 999");
  expectBegin([&](Self& self) { return reduces(self, 999, self.rank == 0 ? koloInt32 : koloFloat32, koloSum); },
              "int32");
  expectBegin([&](Self& self) { return reduces(self, 999, koloInt32, self.rank == 0 ? koloSum : koloMax); }, "sum");
  expectBegin(
      [&](Self& self) {
        std::vector<int> recv(8000);
        return self.rank == 0 ? reduces(self, 999, koloInt32, koloSum)
                              : koloAllGather(send.data(), recv.data(), 999, koloInt32, self.comm, nullptr);
      },
      "all_reduce");
  expectBegin(
      [&](Self& self) {
        Items its(3);
        if (self.rank == 1) its.items[2].transfertype = koloBfloat16;
        return koloAllReduceList(its.items.data(), its.items.size(), koloSum, self.comm, nullptr);
      },
      "item 2: rank 0 gave transfertype float32, rank 1 gave transfertype bfloat16");
  expectBegin(
      [&](Self& self) {
        std::vector<int> recv(8000);
        const size_t counts[] = {1000, self.rank == 0 ? 10u : 20u};
        return koloAllGatherv(send.data(), recv.data(), counts, nullptr, koloInt32, self.comm, nullptr);
      },
      "gave different counts");
}
