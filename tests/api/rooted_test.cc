// Collectives with a root, repeated and mixed with others, on different buffers: what a root gives before the others
// ask for it is what it had then.
#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <vector>

#include "support/one_core.h"
#include "support/ranks.h"
#include "support/seed.h"

using namespace kolo::test;

namespace {

using Random = std::mt19937_64;
using Bytes = std::vector<unsigned char>;

enum class Kind { kBroadcast, kScatter, kScatterv, kGather, kAllReduce, kBarrier };
constexpr Kind kKinds[] = {Kind::kBroadcast, Kind::kScatter,   Kind::kScatterv,
                           Kind::kGather,    Kind::kAllReduce, Kind::kBarrier};

constexpr size_t kMost = 140000;  // bytes of a block
constexpr int kTurns = 60;

// One of those that are called again and again; the same on all ranks.
struct Template {
  Template(Random& random, int ranks)
      : kind(kKinds[random() % std::size(kKinds)]), root(static_cast<int>(random() % static_cast<unsigned>(ranks))) {
    constexpr size_t kSizes[] = {1, 40, 41, 4096, 8191, 8192, 16384, 16385, 65536, 131072, 131073};
    constexpr size_t kMixed[] = {0, 5, 40, 41, 1000, 9000, 20000, kMost};
    for (int i = 0; i < ranks; ++i) counts.push_back(kMixed[random() % std::size(kMixed)]);
    if (kind != Kind::kScatterv) std::fill(counts.begin(), counts.end(), kSizes[random() % std::size(kSizes)]);
    // Where functions without counts have them, one behind the other; else with gaps.
    for (int i = 0; i < ranks; ++i)
      displs.push_back(static_cast<size_t>(i) * (kind == Kind::kScatterv ? kMost : counts[0]));
  }
  Kind kind;
  int root;
  std::vector<size_t> counts, displs;
};

unsigned char valueOf(int turn, int from, int to, size_t at) {
  return static_cast<unsigned char>(turn * 31 + from * 7 + to * 13 + static_cast<int>(at * 5 + (at >> 8)));
}

// A rank's part of one call.
class Rank {
 public:
  Rank(Self& self, std::uint64_t seed)
      : self_(self), own_(seed * 100 + static_cast<unsigned>(self.rank)),
        bytes_(kMost * static_cast<size_t>(self.ranks)) {
    for (int i = 0; i < 2; ++i) {
      void* memory = nullptr;
      EXPECT_OK(self, koloMemAlloc(&memory, bytes_));
      EXPECT_OK(self, koloWindowRegister(self.comm, memory, bytes_, &windows_[i]));
      inWindow_[i] = static_cast<unsigned char*>(memory);
      ordinary_[i].resize(bytes_);
    }
  }
  ~Rank() {
    for (int i = 0; i < 2; ++i) {
      EXPECT_OK(self_, koloWindowDeregister(self_.comm, windows_[i]));
      koloMemFree(inWindow_[i]);
    }
  }
  Rank(const Rank&) = delete;

  // usesWindow: for the buffer to send from, and the one to receive in.
  void call(const Template& its, int turn, const std::array<bool, 2>& usesWindow) {
    unsigned char* const send = usesWindow[0] ? inWindow_[0] : ordinary_[0].data();
    unsigned char* const recv = usesWindow[1] ? inWindow_[1] : ordinary_[1].data();
    const bool isRoot = self_.rank == its.root;
    const bool sendsBlocks = its.kind == Kind::kScatter || its.kind == Kind::kScatterv;
    const auto eachBlock = [&](bool severalOnes, const auto& visit) {
      for (int i = 0; i < (severalOnes ? self_.ranks : 1); ++i) {
        const auto at = static_cast<size_t>(i);
        visit(i, severalOnes ? its.displs[at] : 0, its.counts[severalOnes ? at : static_cast<size_t>(self_.rank)]);
      }
    };
    eachBlock(sendsBlocks, [&](int to, size_t begin, size_t count) {
      for (size_t i = 0; i < count; ++i) send[begin + i] = valueOf(turn, self_.rank, sendsBlocks ? to : 0, i);
    });
    std::fill(recv, recv + bytes_, 0x5a);
    const bool mayWait = own_() % 2 == 0;
    EXPECT_OK(self_, koloSetMayWait(mayWait ? 1 : 0));
    koloResult_t result = invoke(its, send, recv);
    EXPECT_OK(self_, koloSetMayWait(1));
    if (result == koloInProgress && !mayWait) result = invoke(its, send, recv);
    if (result != koloSuccess) self_.fault(KOLO_HERE, koloGetLastError(nullptr));
    if (isRoot) std::fill(send, send + bytes_, 0xee);  // the call has returned: it may be used again
    const auto expect = [&](size_t begin, size_t count, const auto& value) {
      for (size_t i = 0; i < count; ++i) {
        if (recv[begin + i] == value(i)) continue;
        self_.fault(KOLO_HERE, "turn " + std::to_string(turn) + ", kind " + std::to_string(static_cast<int>(its.kind)) +
                                   ", " + std::to_string(count) + " bytes from root " + std::to_string(its.root) +
                                   ": wrong from " + std::to_string(begin + i) + " on");
        return;
      }
    };
    switch (its.kind) {
      case Kind::kBroadcast: expect(0, its.counts[0], [&](size_t i) { return valueOf(turn, its.root, 0, i); }); break;
      case Kind::kScatter:
      case Kind::kScatterv:
        expect(0, its.counts[static_cast<size_t>(self_.rank)],
               [&](size_t i) { return valueOf(turn, its.root, self_.rank, i); });
        break;
      case Kind::kGather:
        eachBlock(true, [&](int from, size_t begin, size_t count) {
          if (isRoot) expect(begin, count, [&](size_t i) { return valueOf(turn, from, 0, i); });
        });
        break;
      case Kind::kAllReduce:
        expect(0, its.counts[0], [&](size_t i) {
          int sum = 0;
          for (int from = 0; from < self_.ranks; ++from) sum += valueOf(turn, from, 0, i);
          return static_cast<unsigned char>(sum);
        });
        break;
      case Kind::kBarrier: break;
    }
  }

 private:
  koloResult_t invoke(const Template& its, unsigned char* send, unsigned char* recv) {
    const size_t count = its.counts[0];
    switch (its.kind) {
      case Kind::kBroadcast: return koloBroadcast(send, recv, count, koloUint8, its.root, self_.comm, nullptr);
      case Kind::kScatter: return koloScatter(send, recv, count, koloUint8, its.root, self_.comm, nullptr);
      case Kind::kScatterv:
        return koloScatterv(send, its.counts.data(), its.displs.data(), recv,
                            its.counts[static_cast<size_t>(self_.rank)], koloUint8, its.root, self_.comm, nullptr);
      case Kind::kGather: return koloGather(send, recv, count, koloUint8, its.root, self_.comm, nullptr);
      case Kind::kAllReduce: return koloAllReduce(send, recv, count, koloUint8, koloSum, self_.comm, nullptr);
      case Kind::kBarrier: break;
    }
    return koloBarrier(self_.comm, nullptr);
  }

  Self& self_;
  Random own_;
  size_t bytes_;
  std::array<koloWindow_t, 2> windows_{};
  std::array<unsigned char*, 2> inWindow_{};
  std::array<Bytes, 2> ordinary_;
};

void callAgainAndAgain(int ranks, std::uint64_t seed) {
  INFO(ranks << " ranks");
  const World world(ranks);
  world.run([&](Self& self) {
    Random shared(seed);
    Rank rank(self, seed);
    std::vector<Template> templates;
    std::vector<std::array<bool, 2>> places;  // of this rank's buffers
    Random own(seed * 1000 + static_cast<unsigned>(self.rank));
    const auto make = [&] { return Template(shared, self.ranks); };
    for (int i = 0; i < 4; ++i) {  // as many as a communicator remembers
      templates.push_back(make());
      places.push_back({own() % 2 == 0, own() % 2 == 0});
    }
    for (int turn = 0; turn < kTurns; ++turn) {
      const size_t which = shared() % templates.size();
      rank.call(templates[which], turn, places[which]);
      if (shared() % 20 == 0) templates[which] = make();
    }
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
  });
}

}  // namespace

TEST_CASE("collectives with a root, repeated and mixed, move what the root had when it called",
          "[threads][links][optimised]") {
  for (Rounds rounds(1); rounds.next();) {
    callAgainAndAgain(2, rounds.seed());
    const OneCore one;
    callAgainAndAgain(2, rounds.seed() + 10);
    callAgainAndAgain(4, rounds.seed() + 20);
  }
}

// The first call checks that all ranks call the same; who only gives need not wait for that again. A rank that waited
// would wait for ever here. Not over posted links, some of which go on only while the peer is inside a call.
TEST_CASE("ranks that only give, along rings and trees, do not wait for those that come later", "[threads]") {
  const std::string algorithm = GENERATE("ring", "tree", "double_tree");
  const bool gathers = GENERATE(false, true);
  INFO((gathers ? "reduce by " : "broadcast by ") << algorithm);
  constexpr int kRoot = 1, kCount = 1000;
  const World world(3, configWithAlgorithm(((gathers ? "reduce:" : "broadcast:") + algorithm).c_str()));
  std::atomic<int> given{0};
  world.run([&](Self& self) {
    const bool isRoot = self.rank == kRoot, gives = isRoot != gathers;
    std::vector<int> own(kCount), result(kCount);  // a call is a repeated one if its buffers are, too
    for (int round = 1; round <= 50; ++round) {
      own.assign(kCount, isRoot || gathers ? round + self.rank : 0);
      result = own;
      if (!gives && round > 1) {
        while (given < (round - 1) * (gathers ? 2 : 1)) std::this_thread::yield();
      }
      EXPECT_OK(self, gathers
                          ? koloReduce(own.data(), result.data(), kCount, koloInt32, koloSum, kRoot, self.comm, nullptr)
                          : koloBroadcast(own.data(), result.data(), kCount, koloInt32, kRoot, self.comm, nullptr));
      if (gives && round > 1) ++given;
      if (isRoot || !gathers) EXPECT(self, result == std::vector<int>(kCount, gathers ? 3 * round + 3 : round + kRoot));
    }
  });
}

// By every algorithm, and over lists: a rank that is not the root gives NULL, or a buffer that stays as it is.
TEST_CASE("S4.3 of a reduce and of a gather, ranks that are not the root get nothing, and need no receive buffer",
          "[links]") {
  const std::vector<std::string> algorithms = {
      "", "reduce:one_shot", "reduce:two_shot", "reduce:ring", "reduce:tree", "gather:one_shot", "gather:tree"};
  constexpr int kRanks = 4, kRoot = 2;
  for (const std::string& algorithm : algorithms) {
    const World world(kRanks, configWithAlgorithm(algorithm.c_str()));
    INFO("algorithm " << algorithm);
    world.run([&](Self& self) {
      for (const size_t count : {size_t{1}, size_t{999}, size_t{40000}}) {
        for (const bool isList : {false, true}) {
          std::vector<int> send(count, self.rank + 1), recv(kRanks * count, -7);
          const bool isRoot = self.rank == kRoot;
          int* const place = isRoot || self.rank % 2 == 0 ? recv.data() : nullptr;
          koloItem_t item{};
          item.sendbuf = send.data();
          item.recvbuf = place;
          item.count = count;
          item.sendtype = item.transfertype = item.recvtype = koloInt32;
          const auto isAll = [&](size_t from, size_t n, int value) {
            const auto begin = recv.begin() + static_cast<std::ptrdiff_t>(from);
            return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(n), [&](int at) { return at == value; });
          };
          EXPECT_OK(self, isList
                              ? koloReduceList(&item, 1, koloSum, kRoot, self.comm, nullptr)
                              : koloReduce(send.data(), place, count, koloInt32, koloSum, kRoot, self.comm, nullptr));
          EXPECT(self, isAll(0, count, isRoot ? 10 : -7));
          EXPECT(self, isAll(count, 3 * count, -7));
          EXPECT_OK(self, isList ? koloGatherList(&item, 1, kRoot, self.comm, nullptr)
                                 : koloGather(send.data(), place, count, koloInt32, kRoot, self.comm, nullptr));
          for (int rank = 0; rank < kRanks && isRoot; ++rank)
            EXPECT(self, isAll(static_cast<size_t>(rank) * count, count, rank + 1));
          EXPECT(self, isRoot || isAll(0, kRanks * count, -7));
          EXPECT(self, send == std::vector<int>(count, self.rank + 1));
        }
      }
    });
  }
}
