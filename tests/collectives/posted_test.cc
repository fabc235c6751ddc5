// Collectives over posted links, and over posted links between groups of ranks that share memory: by a transport that
// does everything late and out of order (tests/plugin/late.c).
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <random>

#include "batch.h"

namespace kolo::tests {
namespace {

// The transport whose links are lost, which is loaded while this lives, and what it does on demand.
class Lossy {
 public:
  Lossy() : library_(dlopen(std::getenv("KOLO_TEST_LOSSY_PLUGIN"), RTLD_NOW)) { REQUIRE(library_ != nullptr); }
  ~Lossy() {
    linger(std::chrono::milliseconds(0));
    lose(-1);
    dlclose(library_);
  }
  Lossy(const Lossy&) = delete;
  unsigned long straightBytes() const { return function<unsigned long()>("koloLateStraightBytes")(); }
  void lose(int rank) const { function<void(int)>("koloLateLose")(rank); }
  void linger(std::chrono::milliseconds time) const {
    function<void(int)>("koloLateLinger")(static_cast<int>(time.count()));
  }

 private:
  template <class Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }
  void* const library_;
};

// A thread of the communicator's own looks after links every 50 ms.
constexpr std::chrono::milliseconds kSomeLooks{120};

// Every algorithm of every collective; with counts that differ if `vector`.
void addEveryAlgorithm(Batch& batch, int ranks, bool vector, bool hierarchical) {
  for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
    const auto collective = static_cast<koloCollective_t>(i);
    if (vector && (collective < koloCollectiveAllGather || collective > koloCollectiveScatter)) continue;
    std::vector<std::string> algorithms = algorithmsFor(collective);
    algorithms.push_back("");
    if (hierarchical && isHierarchical(collective, vector)) algorithms.push_back("hierarchical");
    for (const std::string& algorithm : algorithms) {
      Wanted wanted = randomWanted(collective, algorithm, ranks, batch.random());
      wanted.vector = vector;
      if (algorithm == "hierarchical") wanted.count = std::max<std::size_t>(wanted.count, 1);
      batch.add(wanted);
    }
  }
}

TEST_CASE("posted links: every algorithm between ranks that share no memory", "[posted][threads]") {
  const int ranks = GENERATE_RANKS(2, 3, 4, 5, 8, 13);
  const UseExecutor host(0);
  World world({.ranks = ranks, .latePerHost = 1});
  runRounds(world, Rounds(600 + ranks), [&](Batch& batch) {
    addEveryAlgorithm(batch, ranks, false, false);
    addEveryAlgorithm(batch, ranks, true, false);
  });
}

TEST_CASE("posted links: every algorithm between hosts of several ranks", "[posted]") {
  struct Shape {
    int hosts, perHost;
  };
  const Shape shape = GENERATE(Shape{2, 2}, Shape{3, 2}, Shape{2, 3}, Shape{4, 2}, Shape{3, 4}, Shape{5, 3});
  const int ranks = shape.hosts * shape.perHost;
  const UseExecutor host(0);
  World world({.ranks = ranks, .latePerHost = shape.perHost});
  runRounds(world, Rounds(700 + ranks), [&](Batch& batch) {
    addEveryAlgorithm(batch, ranks, false, true);
    addEveryAlgorithm(batch, ranks, true, true);
  });
}

TEST_CASE("posted links: every algorithm on hosts that were given the ranks in turn", "[posted]") {
  struct Shape {
    int hosts, perHost;
  };
  const Shape shape = GENERATE(Shape{2, 2}, Shape{3, 2}, Shape{2, 4});
  const int ranks = shape.hosts * shape.perHost;
  const UseExecutor host(0);
  World world({.ranks = ranks, .latePerHost = shape.perHost, .inTurn = true});
  runRounds(world, Rounds(750 + ranks), [&](Batch& batch) {
    addEveryAlgorithm(batch, ranks, false, false);
    addEveryAlgorithm(batch, ranks, true, false);
  });
}

TEST_CASE("posted links: rings and trees go host by host where the ranks were given to hosts in turn", "[posted]") {
  const std::string algorithm = GENERATE("ring", "biring", "tree", "recursive", "two_shot");
  const UseExecutor host(0);
  World world({.ranks = 6, .latePerHost = 3, .inTurn = true});
  std::vector<Trace> traces(6);
  std::vector<float> sums(6);
  world.run([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    (void)koloCommSetAlgorithm(world.comm(rank), ("all_reduce:" + algorithm).c_str());
    const float own = static_cast<float>(rank + 1);
    (void)koloAllReduce(&own, &sums[at], 1, koloFloat32, koloSum, world.comm(rank), nullptr);
    traces[at] = takeTrace();
  });
  const std::vector<int> byHost = {0, 2, 4, 1, 3, 5};
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    CHECK(sums[rank] == 21);
    CHECK(traces[rank].order == (algorithm == "two_shot" ? std::vector<int>() : byHost));
  }
}

TEST_CASE("posted links: hosts with unequal numbers of ranks", "[posted]") {
  const int ranks = GENERATE_RANKS(3, 5, 7);
  const UseExecutor host(0);
  World world({.ranks = ranks, .latePerHost = 2});
  runRounds(world, Rounds(800 + ranks), [&](Batch& batch) { addEveryAlgorithm(batch, ranks, false, false); });
}

TEST_CASE("posted links: large buffers, and results in rank order", "[posted]") {
  const bool reproducible = GENERATE(false, true);
  const UseExecutor host(0);
  World world({.ranks = 4, .reproducible = reproducible, .staging = "8M", .windowBytes = 24 << 20, .latePerHost = 2});
  runRounds(world, Rounds(900), [](Batch& batch) {
    for (int i = koloCollectiveAllReduce; i <= koloCollectiveScatter; ++i) {
      const auto collective = static_cast<koloCollective_t>(i);
      Wanted wanted = randomWanted(collective, "", 4, batch.random());
      wanted.datatype = koloFloat32;
      wanted.op = koloSum;
      wanted.count = pick(batch.random(), 50000, 200000) / (kSlowdown > 1 ? 4 : 1);
      batch.add(wanted);
    }
  });
}

// Each pair goes over to TCP in the middle of something, and what was under way arrives late, or never.
TEST_CASE("posted links: every algorithm while links are lost and replaced", "[posted][reroute]") {
  struct Shape {
    int ranks, perHost, losesAfter;
  };
  const Shape shape = GENERATE(Shape{2, 1, 10}, Shape{2, 1, 200}, Shape{3, 1, 100}, Shape{4, 2, 300}, Shape{5, 1, 1000},
                               Shape{6, 2, 1});
  const UseExecutor host(0);
  for (Rounds rounds(1000 + shape.ranks); rounds.next();) {
    World world({.ranks = shape.ranks, .latePerHost = shape.perHost, .losesAfter = shape.losesAfter});
    Batch batch(world, rounds.seed());
    addEveryAlgorithm(batch, shape.ranks, false, shape.perHost == 2);
    batch.run();
  }
}

// The transport that may be replaced registers no memory for a single message, but a part of a window.
TEST_CASE("posted links: a long message goes straight where both ends are in windows", "[posted][reroute]") {
  constexpr std::size_t kMessage = 1 << 20, kWindow = 4 << 20;
  const bool sendsFromWindow = GENERATE(true, false), receivesIntoWindow = GENERATE(true, false);
  const UseExecutor host(0);
  World world({.ranks = 2, .windowBytes = kWindow, .latePerHost = 1, .losesAfter = 1 << 30});
  const Lossy lossy;
  const unsigned long before = lossy.straightBytes();
  std::vector<unsigned char> ordinaryOut(kMessage), ordinaryIn(kMessage);
  unsigned char* const out = sendsFromWindow ? world.window(0) + kWindow - kMessage : ordinaryOut.data();
  unsigned char* const in = receivesIntoWindow ? world.window(1) + 12345 : ordinaryIn.data();
  world.run([&](int rank) {
    if (rank == 0) std::fill_n(out, kMessage, static_cast<unsigned char>(0x5c));
    const koloResult_t result = rank == 0 ? koloSend(out, kMessage, koloUint8, 1, world.comm(0), nullptr)
                                          : koloRecv(in, kMessage, koloUint8, 0, world.comm(1), nullptr);
    if (result != koloSuccess) std::abort();
  });
  CHECK(std::all_of(in, in + kMessage, [](unsigned char byte) { return byte == 0x5c; }));
  CHECK(lossy.straightBytes() - before == (sendsFromWindow && receivesIntoWindow ? kMessage : 0));
}

// Of all lengths: in a line, in a slot, in chunks, and put straight into the receiver's buffer: where both ends are in
// windows, or once TCP has taken over. Some of each rank at a time, mostly between the same two, of which some are in
// windows and some are not.
void exchangeMessages(int losesAfter, std::uint64_t seed) {
  constexpr int kRanks = 4, kRounds = 40;
  constexpr std::size_t kMost = 1 << 17, kAtATime = 4;
  const UseExecutor host(0);
  World world({.ranks = kRanks, .latePerHost = 1, .losesAfter = losesAfter});
  std::vector<std::string> wrong(kRanks);
  world.run([&](int rank) {
    std::string& mine = wrong[static_cast<std::size_t>(rank)];
    Random random(seed);  // alike on all ranks
    const koloComm_t comm = world.comm(rank);
    std::vector<unsigned char> ordinary(2 * kAtATime * kMost);
    for (int round = 0; round < kRounds && mine.empty(); ++round) {
      struct Exchange {
        int from;
        unsigned char byte;
        const unsigned char* in;
        std::size_t bytes;
      };
      std::vector<Exchange> exchanges;
      (void)koloGroupStart();
      auto step = static_cast<int>(pick(random, 1, kRanks - 1));
      for (std::size_t i = 0; i < kAtATime; ++i) {
        if (pick(random, 0, 3) == 0) step = static_cast<int>(pick(random, 1, kRanks - 1));
        const std::size_t bytes = std::size_t{1}
                                  << (pick(random, 0, 2) == 0 ? pick(random, 0, 12) : pick(random, 13, 17));
        const bool sendsFromWindow = pick(random, 0, 3) != 0, receivesIntoWindow = pick(random, 0, 3) != 0;
        const int to = (rank + step) % kRanks, from = (rank + kRanks - step) % kRanks;
        const auto byteOf = [&](int sender) {
          return static_cast<unsigned char>(64 * sender + 4 * round + static_cast<int>(i));
        };
        unsigned char* const out = (sendsFromWindow ? world.window(rank) : ordinary.data()) + 2 * i * kMost;
        unsigned char* const in = (receivesIntoWindow ? world.window(rank) : ordinary.data()) + (2 * i + 1) * kMost;
        std::fill_n(out, bytes, byteOf(rank));
        std::fill_n(in, bytes, static_cast<unsigned char>(~byteOf(from)));
        (void)koloSend(out, bytes, koloUint8, to, comm, nullptr);
        (void)koloRecv(in, bytes, koloUint8, from, comm, nullptr);
        exchanges.push_back({from, byteOf(from), in, bytes});
      }
      const koloResult_t result = koloGroupEnd();
      for (const Exchange& exchange : exchanges) {
        const bool isRight = std::all_of(exchange.in, exchange.in + exchange.bytes,
                                         [&](unsigned char byte) { return byte == exchange.byte; });
        if (result == koloSuccess && isRight) continue;
        mine = fmt::format("round {}, {} bytes from {}: {}", round, exchange.bytes, exchange.from,
                           result != koloSuccess ? koloGetLastError(nullptr) : "wrong bytes");
      }
    }
  });
  INFO("links are lost after " << losesAfter << " requests at most");
  for (const std::string& what : wrong) CHECK(what == "");
}

TEST_CASE("posted links: messages while links are lost and replaced", "[posted][reroute]") {
  for (Rounds rounds(1100); rounds.next();) {
    Random random(rounds.seed());
    const auto some = [&] { return static_cast<int>(pick(random, 2, 400)); };
    // Each pair loses its link once.
    for (const int losesAfter : {1, 1000, some(), some(), some()}) exchangeMessages(losesAfter, random());
  }
}

// Between calls, the devices of links that may be replaced are looked after by a thread of the communicator's own. The
// transport ends the program if that comes while another thread is in its device, and takes its time there.
TEST_CASE("posted links: windows come and go between calls", "[posted][reroute][threads]") {
  const int losesAfter = GENERATE(2, 1 << 30);  // soon by TCP, or never
  constexpr std::size_t kMessage = 1 << 20;
  constexpr int kRounds = 4;
  const UseExecutor host(0);
  World world({.ranks = 2, .latePerHost = 1, .losesAfter = losesAfter});
  const Lossy lossy;
  lossy.linger(kSomeLooks);
  std::vector<std::vector<unsigned char>> buffers(2, std::vector<unsigned char>(kMessage));
  std::vector<koloResult_t> results(2, koloSuccess);
  world.run([&](int rank) {
    koloResult_t& result = results[static_cast<std::size_t>(rank)];
    std::vector<unsigned char>& buffer = buffers[static_cast<std::size_t>(rank)];
    const koloComm_t comm = world.comm(rank);
    for (int round = 1; round <= kRounds && result == koloSuccess; ++round) {
      koloWindow_t window = nullptr;
      result = koloWindowRegister(comm, buffer.data(), buffer.size(), &window);
      if (result != koloSuccess) return;
      if (rank == 0) std::fill(buffer.begin(), buffer.end(), static_cast<unsigned char>(round));
      result = rank == 0 ? koloSend(buffer.data(), kMessage, koloUint8, 1, comm, nullptr)
                         : koloRecv(buffer.data(), kMessage, koloUint8, 0, comm, nullptr);
      std::this_thread::sleep_for(kSomeLooks);
      if (result == koloSuccess) result = koloWindowDeregister(comm, window);
    }
  });
  CHECK(results == std::vector<koloResult_t>(2, koloSuccess));
  CHECK(std::all_of(buffers[1].begin(), buffers[1].end(), [](unsigned char byte) { return byte == kRounds; }));
}

// The first window opens the links that nobody has needed before: here that of rank 0 to rank 2.
TEST_CASE("posted links: a window opens links beside the thread that looks after them", "[posted][reroute][threads]") {
  const UseExecutor host(0);
  const Lossy lossy;
  lossy.linger(kSomeLooks);
  World world({.ranks = 3, .latePerHost = 2, .losesAfter = 1 << 30, .connectsAll = 1});
  std::vector<int> sums(3);
  world.run([&](int rank) {
    const int one = 1;
    if (koloAllReduce(&one, &sums[static_cast<std::size_t>(rank)], 1, koloInt32, koloSum, world.comm(rank), nullptr) !=
        koloSuccess)
      std::abort();
  });
  CHECK(sums == std::vector<int>(3, 3));
}

// A send or receive ends by asking whether anything is left for the communicator's own threads to do. It looks at the
// links for that, beside the thread that replaces them: ThreadSanitizer sees whether they keep apart.
TEST_CASE("posted links: a link is replaced right after a message", "[posted][reroute][threads]") {
  const UseExecutor host(0);
  World world({.ranks = 2, .latePerHost = 1, .losesAfter = 1 << 30});
  const Lossy lossy;
  std::vector<koloResult_t> results(2, koloSuccess);
  std::vector<int> words{1, 2};
  world.run([&](int rank) {
    const koloComm_t comm = world.comm(rank);
    koloResult_t& result = results[static_cast<std::size_t>(rank)];
    int* const word = &words[static_cast<std::size_t>(rank)];
    for (int round = 0; round < 2 && result == koloSuccess; ++round) {
      result = rank == round ? koloSend(word, 1, koloInt32, 1 - rank, comm, nullptr)
                             : koloRecv(word, 1, koloInt32, 1 - rank, comm, nullptr);
      if (rank == 1 && round == 0) {
        std::this_thread::sleep_for(kSomeLooks);
        lossy.lose(0);
      }
      std::this_thread::sleep_for((rank == 0 ? 3 : 2) * kSomeLooks);
    }
  });
  CHECK(results == std::vector<koloResult_t>(2, koloSuccess));
  CHECK(words == std::vector<int>{1, 1});
}

// One thread of rank 0 waits for rank 1, and holds the links, which may be replaced, from their other users. Rank 1
// waits for what another thread of rank 0 sends meanwhile: the first one has to start that.
TEST_CASE("posted links: who waits starts what another thread sends meanwhile", "[posted][reroute][threads]") {
  const bool waitsInCollective = GENERATE(false, true);
  const UseExecutor host(0);
  World world({.ranks = 2, .latePerHost = 1, .losesAfter = 1 << 30});
  std::vector<koloResult_t> results(3, koloSuccess);
  std::vector<int> words{7, 0};
  int answer = 0;
  const auto meet = [&](int rank) {
    int word = 1;
    if (waitsInCollective)
      return koloAllReduce(&word, rank == 0 ? &answer : &word, 1, koloInt32, koloSum, world.comm(rank), nullptr);
    word = 2;
    return rank == 0 ? koloRecv(&answer, 1, koloInt32, 1, world.comm(0), nullptr)
                     : koloSend(&word, 1, koloInt32, 0, world.comm(1), nullptr);
  };
  world.run([&](int rank) {
    if (rank == 0) {
      std::thread waiting([&] { results[2] = meet(0); });
      std::this_thread::sleep_for(kSomeLooks);
      results[0] = koloSend(words.data(), 1, koloInt32, 1, world.comm(0), nullptr);
      waiting.join();
    } else {
      results[1] = koloRecv(&words[1], 1, koloInt32, 0, world.comm(1), nullptr);
      if (results[1] == koloSuccess) results[1] = meet(1);
    }
  });
  CHECK(results == std::vector<koloResult_t>(3, koloSuccess));
  CHECK(words[1] == 7);
  CHECK(answer == 2);
}

// The link from rank 0 is lost while it is in no call, and rank 1 in a function of its user's: so the thread of rank
// 0's that replaces the link has to wait until rank 1 follows.
TEST_CASE("posted links: only who is in a call calls its user's function while it waits", "[posted][reroute]") {
  const UseExecutor host(0);
  World world({.ranks = 2, .latePerHost = 1, .losesAfter = 1 << 30});
  const Lossy lossy;
  struct Shared {
    const Lossy& lossy;
    std::thread::id caller{};
    std::atomic<bool> isLost{false};
    std::atomic<int> fromOthers{0};
  } shared{lossy};
  std::vector<koloResult_t> results(2, koloSuccess);
  int word = 7;
  world.run([&](int rank) {
    const koloComm_t comm = world.comm(rank);
    koloResult_t& result = results[static_cast<std::size_t>(rank)];
    result = koloBarrier(comm, nullptr);
    if (rank == 0) {
      shared.caller = std::this_thread::get_id();
      (void)koloCommSetProgress(
          comm,
          [](void* context) {
            Shared& its = *static_cast<Shared*>(context);
            its.fromOthers += std::this_thread::get_id() != its.caller ? 1 : 0;
          },
          &shared);
      while (!shared.isLost) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(3 * kSomeLooks);
      if (result == koloSuccess) result = koloSend(&word, 1, koloInt32, 1, comm, nullptr);
    } else {
      (void)koloCommSetProgress(
          comm,
          [](void* context) {
            Shared& its = *static_cast<Shared*>(context);
            if (its.isLost) return;
            its.lossy.lose(0);
            its.isLost = true;
            std::this_thread::sleep_for(2 * kSomeLooks);
          },
          &shared);
      int got = 0;
      if (result == koloSuccess) result = koloRecv(&got, 1, koloInt32, 0, comm, nullptr);
      if (got != word) result = koloInternalError;
    }
    (void)koloCommSetProgress(comm, nullptr, nullptr);
  });
  CHECK(results == std::vector<koloResult_t>(2, koloSuccess));
  CHECK(shared.fromOthers == 0);
}

}  // namespace
}  // namespace kolo::tests
