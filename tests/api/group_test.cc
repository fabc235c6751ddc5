// Groups: one thread for all ranks, any order, several communicators, streams, errors inside.
#include <algorithm>
#include <array>
#include <numeric>

#include "support/collectives_table.h"
#include "support/ranks.h"

using namespace kolo::test;

TEST_CASE("one thread drives all ranks of koloCommInitAll in one group", "[threads]") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    World world(ranks);
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{100000}}) {
      std::vector<std::vector<int>> send, recv;
      for (int rank = 0; rank < ranks; ++rank) {
        send.emplace_back(count, rank + 1);
        recv.emplace_back(count, -1);
      }
      REQUIRE_OK(koloGroupStart());
      for (int rank = 0; rank < ranks; ++rank) {
        const auto at = static_cast<size_t>(rank);
        REQUIRE_OK(koloAllReduce(send[at].data(), recv[at].data(), count, koloInt32, koloSum, world[rank], nullptr));
      }
      REQUIRE_OK(koloGroupEnd());
      for (const std::vector<int>& result : recv) {
        CHECK(std::all_of(result.begin(), result.end(), [&](int value) { return value == ranks * (ranks + 1) / 2; }));
      }
    }
  }
}

TEST_CASE("one thread drives all ranks through streams, one for each rank", "[threads]") {
  constexpr int kRanks = 3;
  World world(kRanks);
  std::vector<koloStream_t> streams(kRanks);
  for (koloStream_t& stream : streams) REQUIRE_OK(koloStreamCreate(&stream));
  std::vector<int> data(kRanks, 1);
  for (int round = 0; round < 20; ++round) {
    REQUIRE_OK(koloGroupStart());
    for (int rank = 0; rank < kRanks; ++rank) {
      int* mine = &data[static_cast<size_t>(rank)];
      REQUIRE_OK(koloAllReduce(mine, mine, 1, koloInt32, koloSum, world[rank], streams[static_cast<size_t>(rank)]));
    }
    REQUIRE_OK(koloGroupEnd());
    for (koloStream_t stream : streams) REQUIRE_OK(koloStreamSynchronize(stream));
    CHECK(data == std::vector<int>(kRanks, kRanks));
    std::fill(data.begin(), data.end(), 1);
  }
  for (koloStream_t stream : streams) REQUIRE_OK(koloStreamDestroy(stream));
}

TEST_CASE("all collectives and messages in one group, in another order on each rank", "[threads][links]") {
  for (const int ranks : {2, 3, 5}) {
    World world(ranks);
    world.run([](Self& self) {
      const auto n = static_cast<size_t>(self.ranks);
      constexpr size_t kCount = 500;
      std::vector<std::vector<int>> send(8, std::vector<int>(kCount * n, self.rank + 1));
      std::vector<std::vector<int>> recv(8, std::vector<int>(kCount * n, -1));
      std::vector<int> out(kCount, self.rank), in(kCount, -1);
      const int right = (self.rank + 1) % self.ranks, left = (self.rank + self.ranks - 1) % self.ranks;
      std::vector<size_t> order(10);
      std::iota(order.begin(), order.end(), size_t{0});
      std::rotate(order.begin(), order.begin() + self.rank * 3 % 10, order.end());
      if (self.rank % 2 == 1) std::reverse(order.begin(), order.end());
      EXPECT_OK(self, koloGroupStart());
      for (const size_t what : order) {
        if (what == 8) {
          EXPECT_OK(self, koloSend(out.data(), kCount, koloInt32, right, self.comm, nullptr));
        } else if (what == 9) {
          EXPECT_OK(self, koloRecv(in.data(), kCount, koloInt32, left, self.comm, nullptr));
        } else {
          Arguments arguments;
          arguments.send = send[what].data();
          arguments.recv = recv[what].data();
          arguments.count = kCount;
          arguments.comm = self.comm;
          EXPECT_OK(self, collectives()[what].call(arguments));
        }
      }
      EXPECT_OK(self, koloGroupEnd());
      const int sum = self.ranks * (self.ranks + 1) / 2;
      EXPECT(self, recv[0][kCount - 1] == sum);
      EXPECT(self, recv[1][kCount - 1] == (self.rank == 0 ? sum : -1));
      EXPECT(self, recv[2][kCount - 1] == 1);
      EXPECT(self, recv[3][kCount * n - 1] == self.ranks);
      EXPECT(self, recv[4][kCount - 1] == sum);
      EXPECT(self, recv[5][kCount * n - 1] == self.ranks);
      EXPECT(self, recv[6][kCount * n - 1] == (self.rank == 0 ? self.ranks : -1));
      EXPECT(self, recv[7][kCount - 1] == 1);
      EXPECT(self, in.front() == left && in.back() == left);
    });
  }
}

TEST_CASE("many equal operations in one group keep their order") {
  World world(3);
  world.run([](Self& self) {
    constexpr size_t kOperations = 200;
    std::vector<int> send(kOperations), recv(kOperations, -1);
    for (size_t i = 0; i < kOperations; ++i) send[i] = static_cast<int>(i) * (self.rank + 1);
    EXPECT_OK(self, koloGroupStart());
    for (size_t i = 0; i < kOperations; ++i) {
      EXPECT_OK(self, koloAllReduce(&send[i], &recv[i], 1, koloInt32, koloSum, self.comm, nullptr));
    }
    EXPECT_OK(self, koloGroupEnd());
    for (size_t i = 0; i < kOperations; ++i) EXPECT(self, recv[i] == static_cast<int>(i) * 6);
  });
}

TEST_CASE("a group over overlapping communicators runs, whatever order each rank names them in", "[threads]") {
  World world(3);
  std::vector<std::array<koloComm_t, 3>> pairs(3);  // by rank: communicators without rank 0, 1, 2
  world.run([&](Self& self) {
    for (int without = 0; without < 3; ++without) {
      const int color = self.rank == without ? KOLO_SPLIT_NOCOLOR : 0;
      koloComm_t made = nullptr;
      EXPECT_OK(self, koloCommSplit(self.comm, color, 0, &made, nullptr));
      EXPECT(self, (made == nullptr) == (self.rank == without));
      pairs[static_cast<size_t>(self.rank)][static_cast<size_t>(without)] = made;
    }
    for (int round = 0; round < 20; ++round) {
      std::array<int, 4> send{}, recv{};
      send.fill(self.rank + 1);
      EXPECT_OK(self, koloGroupStart());
      for (size_t i = 0; i < 4; ++i) {
        const size_t which = (self.rank == 1 ? 3 - i : i + static_cast<size_t>(self.rank)) % 4;
        koloComm_t comm = which == 3 ? self.comm : pairs[static_cast<size_t>(self.rank)][which];
        if (comm == nullptr) continue;
        EXPECT_OK(self, koloAllReduce(&send[which], &recv[which], 1, koloInt32, koloSum, comm, nullptr));
      }
      EXPECT_OK(self, koloGroupEnd());
      EXPECT(self, recv[3] == 6);
      for (size_t without = 0; without < 3; ++without) {
        if (static_cast<int>(without) != self.rank) EXPECT(self, recv[without] == 6 - static_cast<int>(without) - 1);
      }
    }
    for (koloComm_t comm : pairs[static_cast<size_t>(self.rank)]) {
      if (comm != nullptr) EXPECT_OK(self, koloCommDestroy(comm));
    }
  });
}

TEST_CASE("nested groups run at the end of the outermost") {
  World world(2);
  world.run([](Self& self) {
    int send = self.rank + 1, first = -1, second = -1;
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloAllReduce(&send, &first, 1, koloInt32, koloSum, self.comm, nullptr));
    EXPECT_OK(self, koloGroupEnd());
    EXPECT(self, first == -1);
    EXPECT_OK(self, koloAllReduce(&send, &second, 1, koloInt32, koloMax, self.comm, nullptr));
    EXPECT(self, second == -1);
    EXPECT_OK(self, koloGroupEnd());
    EXPECT(self, first == 3 && second == 2);
  });
}

TEST_CASE("an empty group does nothing") {
  REQUIRE_OK(koloGroupStart());
  REQUIRE_OK(koloGroupEnd());
}

TEST_CASE("sends and receives in a group meet in every order", "[threads][links]") {
  World world(2);
  std::vector<int> order = {0, 1, 2, 3};
  do {
    world.run([&](Self& self) {
      const int other = 1 - self.rank;
      std::array<std::vector<int>, 4> data;
      for (std::vector<int>& one : data) one.assign(3000, -1);
      for (const size_t i : {0, 1}) std::fill(data[i].begin(), data[i].end(), self.rank * 10 + static_cast<int>(i));
      EXPECT_OK(self, koloGroupStart());
      for (int i = 0; i < 4; ++i) {
        const auto what = static_cast<size_t>(order[static_cast<size_t>(self.rank == 0 ? i : 3 - i)]);
        if (what < 2) {
          EXPECT_OK(self,
                    koloSendTag(data[what].data(), 3000, koloInt32, other, static_cast<int>(what), self.comm, nullptr));
        } else {
          EXPECT_OK(self, koloRecvTag(data[what].data(), 3000, koloInt32, other, static_cast<int>(what) - 2, nullptr,
                                      self.comm, nullptr));
        }
      }
      EXPECT_OK(self, koloGroupEnd());
      EXPECT(self, data[2].back() == other * 10 && data[3].back() == other * 10 + 1);
    });
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("koloGroupEnd returns the first refusal of its group and runs nothing") {
  World world(2);
  world.run([](Self& self) {
    int send = 1, recv = -1;
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloAllReduce(&send, &recv, 1, koloInt32, koloSum, self.comm, nullptr));
    EXPECT_CODE(self, koloInvalidRoot, koloBroadcast(&send, &recv, 1, koloInt32, 9, self.comm, nullptr));
    EXPECT_CODE(self, koloInvalidPointer, koloAllReduce(nullptr, &recv, 1, koloInt32, koloSum, self.comm, nullptr));
    EXPECT_CODE(self, koloInvalidRoot, koloGroupEnd());
    EXPECT(self, messageHas("root is 9"));
    EXPECT(self, recv == -1);
    expectWorks(self);
  });
}

TEST_CASE("two streams for one communicator in one group are refused") {
  World world(2);
  world.run([](Self& self) {
    koloStream_t one = nullptr, two = nullptr;
    EXPECT_OK(self, koloStreamCreate(&one));
    EXPECT_OK(self, koloStreamCreate(&two));
    int send = 1, recv = -1;
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloAllReduce(&send, &recv, 1, koloInt32, koloSum, self.comm, one));
    const koloResult_t second = koloAllReduce(&send, &recv, 1, koloInt32, koloSum, self.comm, two);
    EXPECT(self, second == koloSuccess || second == koloInvalidUsage);
    EXPECT_CODE(self, koloInvalidUsage, koloGroupEnd());
    EXPECT(self, messageHas("stream"));
    EXPECT(self, recv == -1);
    EXPECT_OK(self, koloStreamDestroy(one));
    EXPECT_OK(self, koloStreamDestroy(two));
    expectWorks(self);
  });
}

TEST_CASE("initialisations in a group happen at its end, side by side", "[threads]") {
  koloUniqueId id;
  REQUIRE_OK(koloGetUniqueId(&id));
  std::array<koloComm_t, 3> comms{};
  REQUIRE_OK(koloGroupStart());
  for (int rank = 0; rank < 3; ++rank) REQUIRE_OK(koloCommInitRank(&comms[static_cast<size_t>(rank)], 3, id, rank));
  CHECK(comms[0] == nullptr);
  REQUIRE_OK(koloGroupEnd());
  runOn({comms.begin(), comms.end()}, expectWorks);
  for (koloComm_t comm : comms) REQUIRE_OK(koloCommDestroy(comm));
}

TEST_CASE("a stream of a group may end while another part of the group waits", "[threads]") {
  World world(2), other(2);
  koloStream_t stream = nullptr;
  REQUIRE_OK(koloStreamCreate(&stream));
  const std::array<int, 4> in{1, 2, 3, 4};
  std::array<int, 4> out{};
  const auto addUp = [&](koloComm_t comm, std::size_t i, koloStream_t on) {
    return koloAllReduce(&in[i], &out[i], 1, koloInt32, koloSum, comm, on);
  };
  std::array<koloResult_t, 4> results{};
  std::thread grouping([&] {
    results = {koloGroupStart(), addUp(world[0], 0, stream), addUp(other[0], 1, nullptr), koloGroupEnd()};
  });
  CHECK_CODE(koloSuccess, addUp(world[1], 2, nullptr));  // with what runs on the stream, which has begun then
  CHECK_CODE(koloSuccess, koloStreamDestroy(stream));
  CHECK_CODE(koloSuccess, addUp(other[1], 3, nullptr));  // the group ends behind this
  grouping.join();
  for (const koloResult_t result : results) CHECK(result == koloSuccess);
  CHECK(out == std::array<int, 4>{4, 6, 4, 6});
}

TEST_CASE("a reduction handle destroyed inside the group that uses it still serves the group") {
  World world(2);
  world.run([](Self& self) {
    const int scalar = 3;
    int send = 2, recv = -1;
    koloRedOp_t op = koloSum;
    EXPECT_OK(self, koloRedOpCreatePreMulSum(&op, &scalar, koloInt32, koloScalarHostImmediate, self.comm));
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloAllReduce(&send, &recv, 1, koloInt32, op, self.comm, nullptr));
    EXPECT_OK(self, koloRedOpDestroy(op, self.comm));
    EXPECT_OK(self, koloGroupEnd());
    EXPECT(self, recv == 12);
  });
}
