// Point to point: what is sent arrives, in order, with its tag, at every size and from every place.
#include <algorithm>
#include <atomic>
#include <numeric>

#include "support/ranks.h"

using namespace kolo::test;

namespace {

std::vector<unsigned char> pattern(size_t bytes, int seed) {
  std::vector<unsigned char> data(bytes);
  for (size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<unsigned char>(i * 7 + i / 251 + static_cast<size_t>(seed) * 31);
  return data;
}

// Around each border of the protocol: inline, page, slot.
std::vector<size_t> sizes() {
  std::vector<size_t> all = {0, 1, 7, 31, 32, 33, 63, 64, 65, 4095, 4096, 4097};
  for (const size_t slot : {size_t{16} << 10, size_t{64} << 10, size_t{128} << 10, size_t{256} << 10}) {
    all.insert(all.end(), {slot - 1, slot, slot + 1});
  }
  all.push_back((1 << 20) + 3);
  if (!kSanitized) all.push_back((5 << 20) + 1);
  return all;
}

// Memory of both ranks, each of which lies in a window or not. Registration is collective, so a rank without takes part
// with nothing.
class Buffer {
 public:
  Buffer(Self& self, size_t bytes, bool registered) : self_(self) {
    void* memory = nullptr;
    EXPECT_OK(self, koloMemAlloc(&memory, bytes));
    data_ = static_cast<unsigned char*>(memory);
    EXPECT_OK(self, koloWindowRegister(self.comm, registered ? data_ : nullptr, registered ? bytes : 0, &window_));
  }
  ~Buffer() {
    EXPECT_OK(self_, koloWindowDeregister(self_.comm, window_));
    EXPECT_OK(self_, koloMemFree(data_));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  unsigned char* data() { return data_; }

 private:
  Self& self_;
  unsigned char* data_ = nullptr;
  koloWindow_t window_ = nullptr;
};

// The communicator has failed, and all its ranks live.
void expectNoneDead(koloComm_t comm) {
  CHECK(awaitFailure(comm) == koloRemoteError);
  int dead[3] = {}, count = -1;
  REQUIRE_OK(koloCommFailedRanks(comm, dead, &count));
  CHECK(count == 0);
}

}  // namespace

TEST_CASE("messages of every size arrive whole, from and into windows or ordinary memory", "[links]") {
  for (const int mode : {0, 1, 2, 3}) {
    const bool sendRegistered = (mode & 1) != 0, recvRegistered = (mode & 2) != 0;
    INFO("send registered " << sendRegistered << ", receive registered " << recvRegistered);
    World world(2);
    world.run([&](Self& self) {
      constexpr size_t kMost = (6 << 20) + 64;
      Buffer buffer(self, kMost, self.rank == 0 ? sendRegistered : recvRegistered);
      int seed = 0;
      for (const size_t bytes : sizes()) {
        for (const size_t offset : {size_t{0}, size_t{13}}) {
          const std::vector<unsigned char> expected = pattern(bytes, ++seed);
          unsigned char* at = buffer.data() + offset;
          if (self.rank == 0) {
            std::copy(expected.begin(), expected.end(), at);
            EXPECT_OK(self, koloSend(at, bytes, koloUint8, 1, self.comm, nullptr));
          } else {
            std::fill(at, at + bytes + 16, 0xee);
            EXPECT_OK(self, koloRecv(at, bytes, koloUint8, 0, self.comm, nullptr));
            if (!std::equal(expected.begin(), expected.end(), at))
              self.fault(KOLO_HERE, std::to_string(bytes) + " bytes");
            EXPECT(self, std::all_of(at + bytes, at + bytes + 16, [](unsigned char c) { return c == 0xee; }));
          }
        }
      }
    });
  }
}

TEST_CASE("messages with one tag arrive in the order sent", "[links]") {
  World world(2);
  world.run([](Self& self) {
    for (int i = 0; i < 300; ++i) {
      const size_t count = i % 3 == 0 ? 1 : i % 3 == 1 ? 100 : 40000;
      std::vector<int> data(count, i);
      if (self.rank == 0) {
        EXPECT_OK(self, koloSendTag(data.data(), count, koloInt32, 1, 5, self.comm, nullptr));
      } else {
        std::fill(data.begin(), data.end(), -1);
        EXPECT_OK(self, koloRecvTag(data.data(), count, koloInt32, 0, 5, nullptr, self.comm, nullptr));
        EXPECT(self, data.front() == i && data.back() == i);
      }
    }
  });
}

TEST_CASE("a receive takes the message with its tag, whatever came before") {
  World world(2);
  world.run([](Self& self) {
    constexpr int kTags[] = {0, 1, 7, KOLO_MAX_TAG};
    if (self.rank == 0) {
      for (const int tag : kTags) EXPECT_OK(self, koloSendTag(&tag, 1, koloInt32, 1, tag, self.comm, nullptr));
    } else {
      for (int i = 3; i >= 0; --i) {
        int value = -1;
        koloRecvStatus_t status{};
        EXPECT_OK(self, koloRecvTag(&value, 1, koloInt32, 0, kTags[i], &status, self.comm, nullptr));
        EXPECT(self, value == kTags[i] && status.tag == kTags[i] && status.source == 0 && status.count == 1);
      }
    }
  });
}

TEST_CASE("any-source and any-tag receives tell where each message came from", "[threads][links]") {
  for (const int ranks : {2, 4, 8}) {
    World world(ranks);
    world.run([](Self& self) {
      if (self.rank != 0) {
        for (int i = 0; i < 5; ++i) {
          const int value = self.rank * 100 + i;
          EXPECT_OK(self, koloSendTag(&value, 1, koloInt32, 0, i, self.comm, nullptr));
        }
        return;
      }
      std::vector<int> next(static_cast<size_t>(self.ranks), 0);
      for (int i = 0; i < 5 * (self.ranks - 1); ++i) {
        int value = -1;
        koloRecvStatus_t status{-5, -5, 99};
        EXPECT_OK(self, koloRecvTag(&value, 1, koloInt32, KOLO_ANY_SOURCE, KOLO_ANY_TAG, &status, self.comm, nullptr));
        EXPECT(self, status.source >= 1 && status.source < self.ranks && status.count == 1);
        if (status.source < 0 || status.source >= self.ranks) return;
        EXPECT(self, value == status.source * 100 + status.tag);
        EXPECT(self, status.tag == next[static_cast<size_t>(status.source)]++);
      }
    });
  }
}

TEST_CASE("a shorter message says its length, a longer one is truncated and the rest is lost", "[links]") {
  World world(2);
  for (const size_t sent : {size_t{3}, size_t{900}, size_t{300000}}) {
    world.run([&](Self& self) {
      std::vector<int> data(sent, 9);
      if (self.rank == 0) {
        EXPECT_OK(self, koloSendTag(data.data(), sent, koloInt32, 1, 1, self.comm, nullptr));
        EXPECT_OK(self, koloSendTag(data.data(), sent, koloInt32, 1, 2, self.comm, nullptr));
      } else {
        std::vector<int> room(sent + 10, -1);
        koloRecvStatus_t status{};
        EXPECT_OK(self, koloRecvTag(room.data(), sent + 5, koloInt32, 0, 1, &status, self.comm, nullptr));
        EXPECT(self, status.count == sent && room[sent - 1] == 9 && room[sent] == -1);
        std::fill(room.begin(), room.end(), -1);
        EXPECT_CODE(self, koloTruncated,
                    koloRecvTag(room.data(), sent - 2, koloInt32, 0, 2, &status, self.comm, nullptr));
        EXPECT(self, messageHas("tag 2"));
        EXPECT(self, room[sent - 2] == -1 && room[0] == 9);
      }
      expectWorks(self);
    });
  }
}

TEST_CASE("a plain receive refuses a count or datatype that is not the sender's, and the communicator lives on") {
  World world(2);
  world.run([](Self& self) {
    for (const size_t sent : {size_t{4}, size_t{1000}, size_t{100000}}) {
      std::vector<int> data(sent + 8, 1);
      if (self.rank == 0) {
        for (int i = 0; i < 3; ++i) EXPECT_OK(self, koloSend(data.data(), sent, koloInt32, 1, self.comm, nullptr));
      } else {
        EXPECT_CODE(self, koloMismatch, koloRecv(data.data(), sent + 1, koloInt32, 0, self.comm, nullptr));
        EXPECT(self, messageHas("rank 0 sent count") && messageHas("rank 1 receives count"));
        EXPECT_CODE(self, koloMismatch, koloRecv(data.data(), sent - 1, koloInt32, 0, self.comm, nullptr));
        EXPECT_CODE(self, koloMismatch, koloRecv(data.data(), sent, koloFloat32, 0, self.comm, nullptr));
        EXPECT(self, messageHas("int32") && messageHas("float32"));
      }
      expectWorks(self);
    }
  });
}

TEST_CASE("a rank sends to itself, before or after it receives, at every size") {
  for (const int ranks : {1, 2}) {
    World world(ranks);
    world.run([](Self& self) {
      for (const size_t bytes : sizes()) {
        const std::vector<unsigned char> sent = pattern(bytes, self.rank);
        std::vector<unsigned char> got(bytes + 1, 0xee);
        EXPECT_OK(self, koloGroupStart());
        const bool receiveFirst = bytes % 2 == 0;
        if (receiveFirst) EXPECT_OK(self, koloRecv(got.data(), bytes, koloUint8, self.rank, self.comm, nullptr));
        EXPECT_OK(self, koloSend(sent.data(), bytes, koloUint8, self.rank, self.comm, nullptr));
        if (!receiveFirst) EXPECT_OK(self, koloRecv(got.data(), bytes, koloUint8, self.rank, self.comm, nullptr));
        EXPECT_OK(self, koloGroupEnd());
        EXPECT(self, std::equal(sent.begin(), sent.end(), got.begin()) && got.back() == 0xee);
      }
      int one = 1, two = 0;
      EXPECT_OK(self, koloSendTag(&one, 1, koloInt32, self.rank, 3, self.comm, nullptr));
      EXPECT_OK(self, koloRecvTag(&two, 1, koloInt32, KOLO_ANY_SOURCE, KOLO_ANY_TAG, nullptr, self.comm, nullptr));
      EXPECT(self, two == 1);
    });
  }
}

TEST_CASE("two hundred unexpected messages wait for their receives", "[threads][links]") {
  for (const size_t count : {size_t{1}, size_t{2000}}) {
    World world(2);
    world.run([&](Self& self) {
      constexpr int kMessages = 200;
      std::vector<int> data(count);
      // A group, because a sender may wait for room at a receiver that has not called.
      if (self.rank == 0) {
        std::vector<std::vector<int>> all;
        for (int i = 0; i < kMessages; ++i) all.emplace_back(count, i);
        EXPECT_OK(self, koloGroupStart());
        for (int i = 0; i < kMessages; ++i) {
          EXPECT_OK(self, koloSendTag(all[static_cast<size_t>(i)].data(), count, koloInt32, 1, i, self.comm, nullptr));
        }
        EXPECT_OK(self, koloGroupEnd());
      } else {
        for (int i = kMessages - 1; i >= 0; --i) {
          EXPECT_OK(self, koloRecvTag(data.data(), count, koloInt32, 0, i, nullptr, self.comm, nullptr));
          EXPECT(self, data.front() == i && data.back() == i);
        }
      }
      expectWorks(self);
    });
  }
}

TEST_CASE("messages both ways at once do not deadlock in a group", "[threads][links]") {
  for (const int ranks : {2, 3, 8}) {
    World world(ranks);
    world.run([](Self& self) {
      const int right = (self.rank + 1) % self.ranks, left = (self.rank + self.ranks - 1) % self.ranks;
      for (const size_t count : {size_t{1}, size_t{5000}, size_t{400000}}) {
        std::vector<int> toRight(count, self.rank), toLeft(count, self.rank + 100), fromLeft(count), fromRight(count);
        EXPECT_OK(self, koloGroupStart());
        EXPECT_OK(self, koloSendTag(toRight.data(), count, koloInt32, right, 1, self.comm, nullptr));
        EXPECT_OK(self, koloSendTag(toLeft.data(), count, koloInt32, left, 2, self.comm, nullptr));
        EXPECT_OK(self, koloRecvTag(fromRight.data(), count, koloInt32, right, 2, nullptr, self.comm, nullptr));
        EXPECT_OK(self, koloRecvTag(fromLeft.data(), count, koloInt32, left, 1, nullptr, self.comm, nullptr));
        EXPECT_OK(self, koloGroupEnd());
        EXPECT(self, fromLeft.front() == left && fromLeft.back() == left);
        EXPECT(self, fromRight.front() == right + 100 && fromRight.back() == right + 100);
      }
    });
  }
}

TEST_CASE("messages and collectives mix without disturbing each other", "[threads][links]") {
  World world(3);
  world.run([](Self& self) {
    for (int round = 0; round < 30; ++round) {
      std::vector<int> data(static_cast<size_t>(round * 700 + 1), self.rank);
      if (self.rank == 0) {
        EXPECT_OK(self, koloSend(data.data(), 1, koloInt32, 2, self.comm, nullptr));
      }
      expectWorks(self);
      if (self.rank == 2) {
        int value = -1;
        EXPECT_OK(self, koloRecv(&value, 1, koloInt32, 0, self.comm, nullptr));
        EXPECT(self, value == 0);
      }
      std::vector<int> sum(data.size());
      EXPECT_OK(self, koloAllReduce(data.data(), sum.data(), data.size(), koloInt32, koloSum, self.comm, nullptr));
      EXPECT(self, sum.front() == 3 && sum.back() == 3);
    }
  });
}

TEST_CASE("a rank that sends without end does not keep a receive from any source from hearing the others",
          "[threads][links]") {
  World world(3);
  std::atomic<bool> heard{false};
  world.run([&](Self& self) {
    constexpr int kServer = 1, kMore = 0, kLast = 1;
    int value = self.rank;
    if (self.rank == 0) {
      while (!heard) EXPECT_OK(self, koloSendTag(&value, 1, koloInt32, kServer, kMore, self.comm, nullptr));
      EXPECT_OK(self, koloSendTag(&value, 1, koloInt32, kServer, kLast, self.comm, nullptr));
    } else if (self.rank == 2) {
      EXPECT_OK(self, koloSend(&value, 1, koloInt32, kServer, self.comm, nullptr));
    } else {
      koloRecvStatus_t status{};
      while (status.tag != kLast) {
        EXPECT_OK(self, koloRecvTag(&value, 1, koloInt32, KOLO_ANY_SOURCE, KOLO_ANY_TAG, &status, self.comm, nullptr));
        EXPECT(self, value == status.source);
        if (status.source == 2) heard = true;
      }
    }
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
  });
  CHECK(heard);
}

TEST_CASE(
    "what a rank sent is received though it has destroyed its communicator since; what it did not send is not waited "
    "for",
    "[threads][links]") {
  constexpr size_t kBytes = 3000;
  World world(3);
  for (const int rank : {0, 2}) {
    std::thread sender([&] {
      const std::vector<unsigned char> data = pattern(kBytes, rank);
      for (int i = 0; i < 3; ++i) koloSendTag(data.data(), kBytes, koloUint8, 1, i, world[rank], nullptr);
      koloCommDestroy(std::exchange(world[rank], nullptr));
    });
    sender.join();
  }
  std::vector<unsigned char> received(kBytes);
  for (int i = 0; i < 6; ++i) {
    koloRecvStatus_t status{};
    REQUIRE_OK(koloRecvTag(received.data(), kBytes, koloUint8, KOLO_ANY_SOURCE, i / 2, &status, world[1], nullptr));
    CHECK(received == pattern(kBytes, status.source));
  }
  const int source = GENERATE(0, KOLO_ANY_SOURCE);
  CHECK_CODE(koloRemoteError, koloRecvTag(received.data(), kBytes, koloUint8, source, 0, nullptr, world[1], nullptr));
  CHECK(messageHas(source == 0 ? "rank 0 destroyed its communicator world while rank 1 waited"
                               : "every other rank destroyed its communicator"));
  expectNoneDead(world[1]);
}

TEST_CASE("a long message to a rank that has destroyed its communicator is an error, not a wait without end",
          "[links]") {
  World world(2);
  std::thread([&] { koloCommDestroy(std::exchange(world[1], nullptr)); }).join();
  const std::vector<unsigned char> data(1 << 20);
  CHECK_CODE(koloRemoteError, koloSend(data.data(), data.size(), koloUint8, 1, world[0], nullptr));
  CHECK(messageHas("rank 1 destroyed its communicator world while rank 0 waited"));
  expectNoneDead(world[0]);
}
