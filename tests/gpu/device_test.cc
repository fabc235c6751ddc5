// Ranks that are threads and share a GPU, real or mocked: streams, captured graphs, the resident kernel, messages,
// windows, and what becomes of kernels that wait when something fails. tests/collectives has the collectives
// themselves.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/settings.h"
#include "gpu/support.h"
#include "support/rank_counts.h"

namespace kolo::test {
namespace {

// For the communicators that are made while it lives.
class ScopedSetting {
 public:
  ScopedSetting(const char* name, const char* value) : name_(name) {
    ::setenv(name, value, 1);
    settings::reload();
  }
  ~ScopedSetting() {
    ::unsetenv(name_);
    settings::reload();
  }
  ScopedSetting(const ScopedSetting&) = delete;

 private:
  const char* name_;
};

int sumOfRanks(int ranks) { return ranks * (ranks - 1) / 2; }
int power(int base, int exponent) { return exponent == 0 ? 1 : base * power(base, exponent - 1); }

// value[i] = first + i
std::vector<int> counting(int first, std::size_t count) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

koloResult_t addUp(const DeviceBuffer& value, std::size_t count, const Self& self, const CudaStream& stream,
                   koloRedOp_t op = koloSum) {
  return koloAllReduce(value.data(), value.data(), count, koloInt32, op, self.comm, stream.get());
}

}  // namespace

TEST_CASE("operations on several streams of one communicator run in the order of their calls",
          "[device][smoke][streams]") {
  const int n = GENERATE_RANKS(1, 2, 3, 4);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  ranks.run([&](Self& self) {
    const DeviceBuffer value(4);
    const CudaStream streams[3];
    value->write(1);
    ranks.together();
    for (int i = 0; i < 12; ++i) EXPECT_OK(self, addUp(value, 1, self, streams[i % 3]));
    for (const CudaStream& stream : streams) stream.synchronize();
    EXPECT(self, value->read(0) == power(n, 12));
  });
}

TEST_CASE("a rank may be hundreds of operations ahead of the others", "[device][streams]") {
  const int n = GENERATE(2, 3);
  const int resident = GENERATE(0, 1, 2);
  const DeviceScene scene(mockFor(n, resident != 0));
  Ranks ranks(oneDevice(n), {.resident = resident});
  ranks.run([&](Self& self) {
    constexpr int kOperations = 200;  // more than the places of a resident kernel and the lines of a mailbox
    const DeviceBuffer data(kOperations), sums(kOperations);
    const CudaStream stream;
    data->write(counting(self.rank, kOperations));
    ranks.together();
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * self.rank));
    for (int i = 0; i < kOperations; ++i) {
      EXPECT_OK(self, koloAllReduce(data.data() + i, sums.data() + i, 1, koloInt32, koloSum, self.comm, stream.get()));
    }
    stream.synchronize();
    bool right = true;
    const std::vector<int> got = sums->read();
    for (int i = 0; i < kOperations; ++i) right = right && got[static_cast<std::size_t>(i)] == n * i + sumOfRanks(n);
    EXPECT(self, right);
  });
}

TEST_CASE("a group may hold operations of two communicators, in any order", "[device][streams]") {
  const int n = GENERATE(1, 2, 3);
  const bool resident = GENERATE(false, true);
  const bool captured = GENERATE(false, true);
  const ScopedSetting channels("KOLO_GPU_CHANNELS", "1");
  const DeviceScene scene(mockFor(2 * n, resident));
  Ranks ranks(oneDevice(n), {.resident = resident});
  ranks.run([&](Self& self) {
    const DeviceBuffer value(1), other(1);
    const CudaStream stream;
    koloComm_t child = nullptr;
    EXPECT_OK(self, koloCommSplit(self.comm, 0, self.rank, &child, nullptr));
    value->write(1);
    other->write(2);
    ranks.together();
    const auto call = [&] {
      EXPECT_OK(self, koloGroupStart());
      for (int i = 0; i < 2; ++i) {
        const bool first = (i + self.rank) % 2 == 0;
        const DeviceBuffer& buffer = first ? value : other;
        EXPECT_OK(self, koloAllReduce(buffer.data(), buffer.data(), 1, koloInt32, koloSum, first ? self.comm : child,
                                      stream.get()));
      }
      EXPECT_OK(self, koloGroupEnd());
    };
    if (captured) {
      const Graph graph(stream, call, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
      for (int i = 0; i < 5; ++i) graph.launch(stream);
      stream.synchronize();
    } else {
      for (int i = 0; i < 5; ++i) call();
      stream.synchronize();
    }
    EXPECT(self, value->read(0) == power(n, 5));
    EXPECT(self, other->read(0) == 2 * power(n, 5));
    EXPECT_OK(self, koloCommDestroy(child));
  });
}

TEST_CASE("a communicator may go while kernels of another wait for what the same thread calls next",
          "[device][streams]") {
  const bool resident = GENERATE(false, true);
  const ScopedSetting channels("KOLO_GPU_CHANNELS", "1");  // there are two communicators
  const DeviceScene scene(mockFor(4, resident));
  const DeviceBuffer values(2);
  const CudaStream streams[2];
  values->fill(1);
  Ranks stay(oneDevice(2), {.resident = resident}), go(oneDevice(2), {.resident = resident});
  const auto call = [&](int rank) {
    int* const value = values.data() + rank;
    CHECK_CODE(koloSuccess, koloAllReduce(value, value, 1, koloInt32, koloSum, stay[rank], streams[rank].get()));
  };
  call(0);
  CHECK(endsSoon([&] {
    for (koloComm_t& comm : go.comms) {
      CHECK_CODE(koloSuccess, koloCommDestroy(comm));
      comm = nullptr;
    }
  }));
  call(1);
  for (const CudaStream& stream : streams) stream.synchronize();
  CHECK(values->read() == std::vector<int>{2, 2});
}

// ---- captured graphs

namespace {

// Each rank's message goes to its right.
void exchangeInGraph(Self& self, const CudaStream& stream, int operations, const DeviceBuffer& data,
                     const DeviceBuffer& sums) {
  const int right = (self.rank + 1) % self.ranks, left = (self.rank + self.ranks - 1) % self.ranks;
  EXPECT_OK(self, koloGroupStart());
  for (int i = 0; i < operations; ++i) {
    EXPECT_OK(self, koloAllReduce(data.data() + i, sums.data() + i, 1, koloInt32, koloSum, self.comm, stream.get()));
  }
  EXPECT_OK(self, koloSend(data.data(), 1, koloInt32, right, self.comm, stream.get()));
  EXPECT_OK(self, koloRecv(sums.data() + 99, 1, koloInt32, left, self.comm, stream.get()));
  EXPECT_OK(self, koloGroupEnd());
}

void replayBesidePlainCalls(Self& self, const Graph& graph, const CudaStream& stream, const CudaStream& other,
                            int operations, const DeviceBuffer& data, const DeviceBuffer& sums) {
  const DeviceInts plain(testDevice(), data.data() + 99, 1);
  const int left = (self.rank + self.ranks - 1) % self.ranks;
  for (int replay = 0; replay < 4; ++replay) {
    data->write(counting(10 * replay + self.rank, static_cast<std::size_t>(operations)));
    plain.write(replay + self.rank);
    graph.launch(stream);
    EXPECT_OK(self, koloAllReduce(plain.data(), plain.data(), 1, koloInt32, koloSum, self.comm, other.get()));
    stream.synchronize();
    other.synchronize();
    const std::vector<int> got = sums->read();
    bool right = true;
    for (int i = 0; i < operations; ++i) {
      right = right && got[static_cast<std::size_t>(i)] == self.ranks * (10 * replay + i) + sumOfRanks(self.ranks);
    }
    EXPECT(self, right);
    EXPECT(self, got[99] == 10 * replay + left);
    EXPECT(self, plain.read(0) == self.ranks * replay + sumOfRanks(self.ranks));
  }
}

void captureOn(int n) {
  const int operations = GENERATE(1, 40);  // 40: the list of them is in pinned memory
  const bool resident = GENERATE(false, true);
  const DeviceScene scene(mockFor(n, resident));
  Ranks ranks(oneDevice(n), {.resident = resident});
  ranks.run([&](Self& self) {
    const DeviceBuffer data(100), sums(100);
    const CudaStream stream, other;
    for (int captured = 0; captured < 3; ++captured) {  // graphs come and go; their buffers are used again
      ranks.together();  // while one thread captures, the others must not wait for the device: that is what `global`
                         // means
      const Graph graph(stream, [&] { exchangeInGraph(self, stream, operations, data, sums); });
      ranks.together();
      replayBesidePlainCalls(self, graph, stream, other, operations, data, sums);
    }
  });
}

}  // namespace

TEST_CASE("captured operations and groups run on what is there at each replay, beside plain ones on other streams",
          "[device][capture]") {
  captureOn(GENERATE_RANKS(1, 2, 3, 4));
}

// A device may run out of queues for streams (tests/gpu/driver_queues_test.cc): apart.
TEST_CASE("captured operations of many ranks run beside plain ones", "[device][many][slow]") { captureOn(8); }

TEST_CASE("ranks may capture side by side, and replay many times without waiting", "[device][capture]") {
  const int n = GENERATE_RANKS(2, 4);
  const bool resident = GENERATE(false, true);
  const DeviceScene scene(mockFor(n, resident));
  Ranks ranks(oneDevice(n), {.resident = resident});
  ranks.run([&](Self& self) {
    const DeviceBuffer value(1);
    const CudaStream stream;
    value->write(1);
    EXPECT_OK(self, addUp(value, 1, self, stream));
    const Graph graph(
        stream, [&] { EXPECT_OK(self, addUp(value, 1, self, stream)); }, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    for (int replay = 0; replay < 10; ++replay) graph.launch(stream);
    EXPECT_OK(self, addUp(value, 1, self, stream));
    stream.synchronize();
    EXPECT(self, value->read(0) == power(n, 12));
  });
}

TEST_CASE("what one rank replays another may call", "[device][smoke][capture]") {
  const int n = GENERATE_RANKS(2, 3, 4);
  const bool resident = GENERATE(false, true);
  const DeviceScene scene(mockFor(n, resident));
  Ranks ranks(oneDevice(n), {.resident = resident});
  ranks.run([&](Self& self) {
    const DeviceBuffer value(20'000);
    const CudaStream stream;
    value->write(1);
    value->write(1, 19'999);
    ranks.together();
    const auto call = [&] {
      EXPECT_OK(self, addUp(value, 1, self, stream));
      EXPECT_OK(self, addUp(value, 20'000, self, stream, koloMax));
    };
    const Graph graph(stream, call, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    for (int round = 0; round < 9; ++round) {
      if ((round / 2 + self.rank) % 2 == 0) graph.launch(stream);
      else call();
      if (round % 4 == 0) stream.synchronize();
    }
    stream.synchronize();
    EXPECT(self, value->read(0) == power(n, 9));
  });
}

TEST_CASE("every collective can be captured, large ones too", "[device][capture]") {
  const int n = GENERATE(2, 3);
  const std::size_t count = GENERATE(1, 20'001);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  ranks.run([&](Self& self) {
    const std::size_t all = static_cast<std::size_t>(n) * count;
    const DeviceBuffer send(all);
    std::vector<std::unique_ptr<DeviceBuffer>> recv;
    for (int i = 0; i < 8; ++i) recv.push_back(std::make_unique<DeviceBuffer>(all));
    const CudaStream stream;
    const auto to = [&](int i) { return recv[static_cast<std::size_t>(i)]->data(); };
    ranks.together();
    const Graph graph(stream, [&] {
      int* const from = send.data();
      const koloStream_t on = stream.get();
      EXPECT_OK(self, koloAllReduce(from, to(0), count, koloInt32, koloSum, self.comm, on));
      EXPECT_OK(self, koloReduce(from, to(1), count, koloInt32, koloMax, 0, self.comm, on));
      EXPECT_OK(self, koloBroadcast(from, to(2), count, koloInt32, n - 1, self.comm, on));
      EXPECT_OK(self, koloAllGather(from, to(3), count, koloInt32, self.comm, on));
      EXPECT_OK(self, koloReduceScatter(from, to(4), count, koloInt32, koloSum, self.comm, on));
      EXPECT_OK(self, koloBarrier(self.comm, on));
      EXPECT_OK(self, koloAllToAll(from, to(5), count, koloInt32, self.comm, on));
      EXPECT_OK(self, koloGather(from, to(6), count, koloInt32, 0, self.comm, on));
      EXPECT_OK(self, koloScatter(from, to(7), count, koloInt32, 0, self.comm, on));
    });
    ranks.together();
    for (int replay = 0; replay < 3; ++replay) {
      // Block b of rank r: 100 r + b, and the replay.
      std::vector<int> values(all);
      const auto of = [&](int rank, int block) { return 1000 * replay + 100 * rank + block; };
      for (std::size_t i = 0; i < all; ++i) values[i] = of(self.rank, static_cast<int>(i / count));
      send->write(values);
      graph.launch(stream);
      stream.synchronize();
      const auto last = [&](int i, int block) {
        return (*recv[static_cast<std::size_t>(i)])->read((static_cast<std::size_t>(block) + 1) * count - 1);
      };
      const int sum = n * 1000 * replay + 100 * sumOfRanks(n);
      EXPECT(self, last(0, 0) == sum);
      EXPECT(self, (self.rank != 0 || last(1, 0) == of(n - 1, 0)));
      EXPECT(self, last(2, 0) == of(n - 1, 0));
      EXPECT(self, last(4, 0) == sum + n * self.rank);
      EXPECT(self, last(7, 0) == of(0, self.rank));
      for (int block = 0; block < n; ++block) {
        EXPECT(self, last(3, block) == of(block, 0));
        EXPECT(self, last(5, block) == of(block, self.rank));
        EXPECT(self, (self.rank != 0 || last(6, block) == of(block, 0)));
      }
    }
  });
}

TEST_CASE("a capture may fork: operations of one communicator in two of its streams are one after the other",
          "[device][capture]") {
  const int n = GENERATE(1, 2, 3);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  ranks.run([&](Self& self) {
    const DeviceBuffer value(1);
    const CudaStream stream, side;
    CUevent fork = nullptr, join = nullptr;
    {
      const CurrentDevice current(testDevice());
      CUDA_OK(driver().cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
      CUDA_OK(driver().cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    }
    ranks.together();
    const Graph graph(stream, [&] {
      CUDA_OK(driver().cuEventRecord(fork, stream.raw()));
      CUDA_OK(driver().cuStreamWaitEvent(side.raw(), fork, 0));
      for (int i = 0; i < 3; ++i) {
        EXPECT_OK(self, addUp(value, 1, self, stream));
        EXPECT_OK(self, addUp(value, 1, self, side));
      }
      CUDA_OK(driver().cuEventRecord(join, side.raw()));
      CUDA_OK(driver().cuStreamWaitEvent(stream.raw(), join, 0));
    });
    ranks.together();
    for (int replay = 0; replay < 3; ++replay) {
      value->write(1);
      graph.launch(stream);
      stream.synchronize();
      EXPECT(self, value->read(0) == power(n, 6));
    }
    const CurrentDevice current(testDevice());
    CUDA_OK(driver().cuEventDestroy(fork));
    CUDA_OK(driver().cuEventDestroy(join));
  });
}

namespace {

// A capture of two streams that ends when all that is in it has been called; then a graph to be launched.
class ForkedCapture {
 public:
  ForkedCapture() {
    const CurrentDevice current(testDevice());
    CUDA_OK(driver().cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    CUDA_OK(cudaForTests().cuStreamBeginCapture(stream.raw(), CU_STREAM_CAPTURE_MODE_RELAXED));
    CUDA_OK(driver().cuEventRecord(event_, stream.raw()));
    CUDA_OK(driver().cuStreamWaitEvent(side.raw(), event_, 0));
  }
  void end() {
    const CurrentDevice current(testDevice());
    CUDA_OK(driver().cuEventRecord(event_, side.raw()));
    CUDA_OK(driver().cuStreamWaitEvent(stream.raw(), event_, 0));
    CUDA_OK(cudaForTests().cuStreamEndCapture(stream.raw(), &graph_));
    CUDA_OK(cudaForTests().cuGraphInstantiate(&executable_, graph_, 0));
  }
  ~ForkedCapture() {
    const CurrentDevice current(testDevice());
    CUDA_OK(cudaForTests().cuGraphExecDestroy(executable_));
    CUDA_OK(cudaForTests().cuGraphDestroy(graph_));
    CUDA_OK(driver().cuEventDestroy(event_));
  }
  ForkedCapture(const ForkedCapture&) = delete;
  void launch() const {
    const CurrentDevice current(testDevice());
    CUDA_OK(cudaForTests().cuGraphLaunch(executable_, stream.raw()));
  }

  const CudaStream stream, side;

 private:
  CUevent event_ = nullptr;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

}  // namespace

TEST_CASE("captures may be interleaved: what is in each comes one after the other in every replay",
          "[device][capture]") {
  const int n = GENERATE(1, 2, 3);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  ranks.run([&](Self& self) {
    const DeviceBuffer values(40);
    ranks.together();
    {
      ForkedCapture captures[2];
      for (int i = 0; i < 3; ++i) {
        for (int which = 0; which < 2; ++which) {
          for (const CudaStream* stream : {&captures[which].stream, &captures[1 - which].side}) {
            int* const value = values.data() + (stream == &captures[0].stream || stream == &captures[0].side ? 0 : 20);
            EXPECT_OK(self, koloAllReduce(value, value, 20, koloInt32, koloSum, self.comm, stream->get()));
          }
        }
      }
      for (ForkedCapture& capture : captures) capture.end();
      ranks.together();
      for (int replay = 0; replay < 3; ++replay) {
        values->fill(1);
        for (const ForkedCapture& capture : captures) capture.launch();
        for (const ForkedCapture& capture : captures) capture.stream.synchronize();
        EXPECT(self, values->read(0) == power(n, 6));
        EXPECT(self, values->read(39) == power(n, 6));
      }
      ranks.together();
    }
  });
}

// ---- the resident kernel

namespace {

void servesAndRetires(int n) {
  const DeviceScene scene(mockFor(n, true));
  Ranks ranks(oneDevice(n), {.resident = true});
  ranks.run([&](Self& self) {
    const DeviceBuffer value(300'000);
    const CudaStream streams[2];
    ranks.together();
    for (int i = 0; i < 60; ++i) {
      const CudaStream& stream = streams[i / 7 % 2];
      // Now and then one that is too large, and a pause longer than the idle time.
      const std::size_t count = i % 10 == 9 ? 300'000 : 100;
      value->write(self.rank + i, count - 1);
      EXPECT_OK(self, addUp(value, count, self, stream, koloMax));
      stream.synchronize();
      EXPECT(self, value->read(count - 1) == n - 1 + i);
      if (i % 20 == self.rank) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  });
}

}  // namespace

TEST_CASE("a resident kernel serves what is small, retires when nothing comes, and comes back",
          "[device][smoke][resident]") {
  servesAndRetires(GENERATE_RANKS(1, 2, 3, 4));
}

// A device may run out of queues for streams (tests/gpu/driver_queues_test.cc): apart.
TEST_CASE("resident kernels of many ranks serve what is small", "[device][many][slow]") { servesAndRetires(8); }

namespace {

// What waits for the device to be idle, or may.
enum class Pause { kSynchronizeDevice, kFreeMemory, kDestroyStream, kDestroyCommunicator, kRegisterWindow };

void pauseBy(Pause pause, Self& self, std::optional<CudaStream>& stream, koloComm_t* child) {
  const CurrentDevice current(testDevice());
  switch (pause) {
    case Pause::kSynchronizeDevice: CUDA_OK(driver().cuCtxSynchronize()); break;
    case Pause::kFreeMemory: {
      CUdeviceptr memory = 0;
      CUDA_OK(driver().cuMemAlloc(&memory, 1 << 20));
      CUDA_OK(driver().cuMemFree(memory));
      break;
    }
    case Pause::kDestroyStream: stream.emplace(); break;
    case Pause::kDestroyCommunicator:
      if (*child != nullptr) EXPECT_OK(self, koloCommDestroy(*child));
      *child = nullptr;
      break;
    case Pause::kRegisterWindow: {
      const DeviceBuffer memory(1000);
      koloWindow_t window = nullptr;
      EXPECT_OK(self, koloWindowRegister(self.comm, memory.data(), 4000, &window));
      EXPECT_OK(self, koloWindowDeregister(self.comm, window));
      break;
    }
  }
}

void isNotKept(int n) {
  const Pause pause = GENERATE(Pause::kSynchronizeDevice, Pause::kFreeMemory, Pause::kDestroyStream,
                               Pause::kDestroyCommunicator, Pause::kRegisterWindow);
  const ScopedSetting channels("KOLO_GPU_CHANNELS", "1");  // there are two communicators
  const DeviceScene scene(mockFor(2 * n, true));
  Ranks ranks(oneDevice(n), {.resident = true});
  ranks.run([&](Self& self) {
    const DeviceBuffer value(1), other(1);
    std::optional<CudaStream> stream(std::in_place);
    const CudaStream side;
    koloComm_t child = nullptr;
    if (pause == Pause::kDestroyCommunicator) EXPECT_OK(self, koloCommSplit(self.comm, 0, self.rank, &child, nullptr));
    value->write(1);
    ranks.together();
    for (int i = 0; i < 3; ++i) {
      for (int again = 0; again < 2; ++again) EXPECT_OK(self, addUp(value, 1, self, *stream));
      // Beside a second one.
      if (child != nullptr)
        EXPECT_OK(self, koloAllReduce(other.data(), other.data(), 1, koloInt32, koloSum, child, side.get()));
      ranks.together();  // who waits for the device waits for the others' operations too
      EXPECT(self, endsSoon([&] { pauseBy(pause, self, stream, &child); }));
      ranks.together();
    }
    EXPECT_OK(self, addUp(value, 1, self, *stream));  // after those in streams that are gone
    stream->synchronize();
    side.synchronize();
    EXPECT(self, value->read(0) == power(n, 7));
  });
}

}  // namespace

TEST_CASE("what waits for the device is not kept by a resident kernel", "[device][resident]") {
  isNotKept(GENERATE_RANKS(1, 2, 3, 4));
}

// A device may run out of queues for streams (tests/gpu/driver_queues_test.cc): apart.
TEST_CASE("what waits for the device is not kept by resident kernels of many ranks", "[device][many][slow]") {
  isNotKept(8);
}

TEST_CASE("messages and collectives of groups, forks of streams and long pauses, by a resident kernel",
          "[device][resident]") {
  const int n = GENERATE_RANKS(2, 3, 4);
  const DeviceScene scene(mockFor(n, true));
  Ranks ranks(oneDevice(n), {.resident = true});
  ranks.run([&](Self& self) {
    const DeviceBuffer data(100), sums(100);
    const CudaStream stream, other;
    const int left = (self.rank + n - 1) % n;
    ranks.together();
    for (int round = 0; round < 20; ++round) {
      const int operations = round % 5 + 1;
      data->write(counting(round + self.rank, 100));
      exchangeInGraph(self, stream, operations, data, sums);
      EXPECT_OK(self, koloAllReduce(data.data() + 50, sums.data() + 50, 1, koloInt32, koloSum, self.comm, other.get()));
      stream.synchronize();
      other.synchronize();
      EXPECT(self,
             sums->read(static_cast<std::size_t>(operations) - 1) == n * (round + operations - 1) + sumOfRanks(n));
      EXPECT(self, sums->read(99) == round + left);
      EXPECT(self, sums->read(50) == n * (round + 50) + sumOfRanks(n));
      if (round % 4 == self.rank) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the others' blocks wait
    }
  });
}

TEST_CASE("a communicator may go while its resident kernel is there, or be aborted while it waits",
          "[device][resident]") {
  const int n = GENERATE_RANKS(2, 3, 4);
  const bool aborted = GENERATE(false, true);
  const DeviceScene scene(mockFor(n, true));
  const DeviceBuffer values(8);
  const std::vector<CudaStream> streams(static_cast<std::size_t>(n));
  Ranks ranks(oneDevice(n), {.resident = true});
  const auto call = [&](int rank) {
    int* const value = values.data() + rank;
    return koloAllReduce(value, value, 1, koloInt32, koloSum, ranks[rank],
                         streams[static_cast<std::size_t>(rank)].get());
  };
  ranks.run([&](Self& self) { EXPECT_OK(self, call(self.rank)); });
  if (!aborted) return;
  CHECK_CODE(koloSuccess, call(0));
  CHECK(endsSoon([&] {
    CHECK_CODE(koloSuccess, koloCommAbort(ranks[0]));
    ranks.comms[0] = nullptr;
    streams[0].synchronize();
  }));
}

TEST_CASE("a resident kernel is given nothing that waits for another stream, which may wait for what it holds",
          "[mock]") {
  const MockScene scene(mockFor(1, true));
  Ranks ranks(oneDevice(1), {.resident = true});
  const CudaStream busy, idle, opener;
  const DeviceBuffer gate(2), value(1);
  gate->fill(0);
  value->write(1);
  const auto call = [&](const CudaStream& stream) {
    CHECK_CODE(koloSuccess, koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream.get()));
  };
  CUDA_OK(driver().cuStreamWaitValue64(busy.raw(), reinterpret_cast<CUdeviceptr>(gate.data()), 1,
                                       CU_STREAM_WAIT_VALUE_GEQ));
  call(busy);  // launched, when the gate is open
  call(idle);  // after it
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(MockCuda::mostBlocksAtOnce() ==
        1);  // of the launches with which a device is begun; a resident kernel has two here
  CUDA_OK(driver().cuStreamWriteValue64(opener.raw(), reinterpret_cast<CUdeviceptr>(gate.data()), 1,
                                        CU_STREAM_WRITE_VALUE_DEFAULT));
  idle.synchronize();
  CHECK(value->read(0) == 1);
  call(idle);  // now it is
  idle.synchronize();
  CHECK(MockCuda::mostBlocksAtOnce() == 2);
}

TEST_CASE(
    "a resident kernel is given nothing by streams that wait for the default stream, which may wait for what it holds",
    "[mock]") {
  const MockScene scene(mockFor(1, true));
  Ranks ranks(oneDevice(1), {.resident = true});
  const DeviceBuffer value(1);
  value->write(1);
  const CudaStream waits(testDevice(), CU_STREAM_DEFAULT), alone;
  const auto blocksOf = [&](const CudaStream& stream) {
    CHECK_CODE(koloSuccess, koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream.get()));
    stream.synchronize();
    return MockCuda::mostBlocksAtOnce();
  };
  CHECK(blocksOf(waits) == 1);  // of its own launch; a resident kernel has two here
  CHECK(blocksOf(alone) > 1);
}

TEST_CASE(
    "a resident kernel is launched once for many operations, and does not stay for its idle time when its rank goes",
    "[mock]") {
  constexpr int kRounds = 20;
  constexpr std::chrono::seconds kIdle{1};
  const ScopedSetting longest("KOLO_TEST_RESIDENT_IDLE_US", "1000000");  // kIdle
  const MockScene scene(mockFor(3, true));
  extendDeadline(std::chrono::seconds(60));
  int quick = 0;  // rounds in which none can have stayed
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    Ranks ranks(oneDevice(3), {.resident = true});
    const std::uint64_t before = MockCuda::launches();
    ranks.run([&](Self& self) {
      const DeviceBuffer value(1);
      const CudaStream stream;
      for (int i = 0; i < 30; ++i) {
        EXPECT_OK(self, addUp(value, 1, self, stream));
        stream.synchronize();  // what stands behind other work in its stream is launched
      }
      ranks.together();
      if (self.rank == 0) EXPECT(self, MockCuda::launches() - before < 30);  // of 90 operations
      EXPECT_OK(self, koloCommDestroy(self.comm));  // before the buffers go, which waits for the device
    });
    ranks.comms.assign(3, nullptr);
    if (std::chrono::steady_clock::now() - begin < kIdle) ++quick;
  }
  CHECK(quick > kRounds / 2);
}

// ---- messages

namespace {

// Rank r's message to each rank, itself included, is `count` + peer elements of 1000 r + peer.
class Exchange {
 public:
  Exchange(Self& self, std::size_t count)
      : self_(self), count_(count), send_(static_cast<std::size_t>(self.ranks) * (count + 16)),
        recv_(bytes() / sizeof(int)) {}

  std::size_t bytes() const { return static_cast<std::size_t>(self_.ranks) * (count_ + 16) * sizeof(int); }
  const DeviceBuffer& send() const { return send_; }
  const DeviceBuffer& recv() const { return recv_; }

  // Ranks list their messages in different orders.
  void call(int round) {
    std::vector<int> values(bytes() / sizeof(int));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 1000 * self_.rank + static_cast<int>(i / (count_ + 16)) + round;
    send_->write(values);
    recv_->fill(-1);
    const int n = self_.ranks, rank = self_.rank;
    EXPECT_OK(self_, koloGroupStart());
    for (int i = 0; i < n; ++i) {
      const int to = (rank + i * (rank % 2 == 0 ? 1 : n - 1)) % n, from = (rank * 2 + i) % n;
      EXPECT_OK(self_, koloSend(send_.data() + place(to), length(to), koloInt32, to, self_.comm, stream_.get()));
      EXPECT_OK(self_, koloRecv(recv_.data() + place(from), length(rank), koloInt32, from, self_.comm, stream_.get()));
    }
    EXPECT_OK(self_, koloGroupEnd());
  }
  void verify(int round) {
    stream_.synchronize();
    const std::vector<int> got = recv_->read();
    bool right = true;
    for (int peer = 0; peer < self_.ranks; ++peer) {
      for (std::size_t i = 0; i < count_ + 16; ++i) {
        const int expected = i < length(self_.rank) ? 1000 * peer + self_.rank + round : -1;
        right = right && got[place(peer) + i] == expected;
      }
    }
    EXPECT(self_, right);
  }

 private:
  std::size_t place(int peer) const { return static_cast<std::size_t>(peer) * (count_ + 16); }
  std::size_t length(int receiver) const { return count_ + static_cast<std::size_t>(receiver); }

  Self& self_;
  std::size_t count_;
  const DeviceBuffer send_, recv_;
  const CudaStream stream_;
};

}  // namespace

TEST_CASE("messages of a group go on side by side, whatever their order and length", "[device][messages]") {
  const int n = GENERATE_RANKS(1, 2, 3, 4, 8);
  const std::size_t count = GENERATE(0, 1, 1000, 100'000);
  const int registered = GENERATE(0, 1, 2);  // buffers that lie in windows
  if (n == 8 && (count > 1000 || registered == 1) && !hasRealDevice()) return;
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  ranks.run([&](Self& self) {
    Exchange exchange(self, count);
    koloWindow_t windows[2] = {};
    for (int i = 0; i < registered; ++i) {
      const DeviceBuffer& buffer = i == 0 ? exchange.send() : exchange.recv();
      EXPECT_OK(self, koloWindowRegister(self.comm, buffer.data(), exchange.bytes(), &windows[i]));
    }
    ranks.together();
    for (int round = 0; round < 2; ++round) {
      exchange.call(round);
      exchange.verify(round);
    }
    koloResult_t result = koloSuccess;
    EXPECT_OK(self, koloCommGetAsyncError(self.comm, &result));
    EXPECT(self, result == koloSuccess);
    for (int i = 0; i < registered; ++i) EXPECT_OK(self, koloWindowDeregister(self.comm, windows[i]));
  });
}

TEST_CASE("messages match in their order over calls and groups, and may wait for slots", "[device][smoke][messages]") {
  const bool resident = GENERATE(false, true);
  const DeviceScene scene(mockFor(2, resident));
  Ranks ranks(oneDevice(2), {.resident = resident});
  constexpr std::size_t kLong = 150'000;  // more than the slots hold
  ranks.run([&](Self& self) {
    const DeviceBuffer a(kLong), b(kLong), c(kLong);
    const CudaStream stream;
    const koloStream_t on = stream.get();
    a->fill(self.rank == 0 ? 1 : 0);
    b->fill(self.rank == 0 ? 2 : 0);
    c->fill(self.rank == 1 ? 3 : 0);
    ranks.together();
    if (self.rank == 0) {
      EXPECT_OK(self, koloSend(a.data(), 10, koloInt32, 1, self.comm, on));
      EXPECT_OK(self, koloGroupStart());
      EXPECT_OK(self, koloSend(b.data(), kLong, koloInt32, 1, self.comm, on));
      EXPECT_OK(self, koloRecv(c.data(), kLong, koloInt32, 1, self.comm, on));
      EXPECT_OK(self, koloGroupEnd());
    } else {
      EXPECT_OK(self, koloGroupStart());
      EXPECT_OK(self, koloRecv(a.data(), 10, koloInt32, 0, self.comm, on));
      EXPECT_OK(self, koloSend(c.data(), kLong, koloInt32, 0, self.comm, on));
      EXPECT_OK(self, koloRecv(b.data(), kLong, koloInt32, 0, self.comm, on));
      EXPECT_OK(self, koloGroupEnd());
    }
    // And a collective in one group with messages.
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloAllReduce(a.data() + 100, a.data() + 100, 1, koloInt32, koloSum, self.comm, on));
    if (self.rank == 0) EXPECT_OK(self, koloSend(a.data(), 1, koloInt32, 1, self.comm, on));
    if (self.rank == 1) EXPECT_OK(self, koloRecv(a.data() + 50, 1, koloInt32, 0, self.comm, on));
    EXPECT_OK(self, koloGroupEnd());
    stream.synchronize();
    EXPECT(self, a->read(9) == 1);
    EXPECT(self, b->read(kLong - 1) == 2);
    EXPECT(self, c->read(kLong - 1) == 3);
    EXPECT(self, a->read(50) == 1);
    EXPECT(self, a->read(100) == 1);
  });
}

TEST_CASE("a message whose count differs is told on both ranks", "[device][messages]") {
  const DeviceScene scene(mockFor(2));
  Ranks ranks(oneDevice(2), {.timeoutMs = 3000 * kSlowness});
  ranks.run([&](Self& self) {
    const DeviceBuffer value(4);
    const CudaStream stream;
    ranks.together();
    if (self.rank == 0) EXPECT_OK(self, koloSend(value.data(), 2, koloInt32, 1, self.comm, stream.get()));
    if (self.rank == 1) EXPECT_OK(self, koloRecv(value.data(), 3, koloInt32, 0, self.comm, stream.get()));
    stream.synchronize();
  });
  koloResult_t result = koloSuccess;
  CHECK_CODE(koloSuccess, koloCommGetAsyncError(ranks[1], &result));
  CHECK(result == koloMismatch);
  INFO(koloGetLastError(ranks[1]));
  CHECK(std::string(koloGetLastError(ranks[1])).find("send_recv(int32, count 2)") != std::string::npos);
  CHECK(errorHeard(ranks[0]) == koloMismatch);  // the sender has long been done
}

// ---- windows

namespace {

enum class Memory { kOwn, kDriver, kPool };

void* allocate(Memory kind, std::size_t bytes, int device) {
  void* memory = nullptr;
  if (kind == Memory::kOwn && koloMemAllocOn(&memory, bytes, device) != koloSuccess) return nullptr;
  if (kind == Memory::kPool) return reinterpret_cast<void*>(MockCuda::poolMemory(device, bytes));
  if (kind == Memory::kOwn) return memory;
  const CurrentDevice current(device);
  CUdeviceptr pointer = 0;
  CUDA_OK(driver().cuMemAlloc(&pointer, bytes));
  return reinterpret_cast<void*>(pointer);
}

void freeOfDriver(void* memory, int device) {
  const CurrentDevice current(device);
  CUDA_OK(driver().cuMemFree(reinterpret_cast<CUdeviceptr>(memory)));
}

void useWindow(Ranks& ranks, Self& self, Memory kind, int device, bool expectZeroCopy) {
  constexpr std::size_t kBytes = 1 << 20, kCount = 200'000;
  void* const memory = allocate(kind, kBytes, device);
  koloWindow_t window = nullptr;
  EXPECT(self, memory != nullptr);
  EXPECT_OK(self, koloWindowRegister(self.comm, memory, kBytes, &window));
  int zeroCopy = 2;
  EXPECT_OK(self, koloWindowIsZeroCopy(window, &zeroCopy));
  EXPECT(self, zeroCopy == (expectZeroCopy ? 1 : 0));
  const CudaStream stream(device);
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, kCount}) {
    // Offsets differ from rank to rank.
    const DeviceInts data(device, static_cast<int*>(memory) + 4 * self.rank, count);
    data.write(counting(self.rank, count));
    EXPECT_OK(self, koloAllReduce(data.data(), data.data(), count, koloInt32, koloSum, self.comm, stream.get()));
    stream.synchronize();
    bool right = true;
    const std::vector<int> got = data.read();
    for (std::size_t i = 0; i < count; ++i)
      right = right && got[i] == self.ranks * static_cast<int>(i) + sumOfRanks(self.ranks);
    EXPECT(self, right);
  }
  ranks.together();
  if (kind == Memory::kDriver) {
    freeOfDriver(memory, device);
    ranks.together();  // before anybody has the address again
    EXPECT_CODE(self, koloInvalidPointer,
                koloAllReduce(memory, memory, 10, koloInt32, koloSum, self.comm, stream.get()));
    EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    return;
  }
  if (kind == Memory::kOwn) EXPECT_CODE(self, koloInvalidUsage, koloMemFree(memory));  // a window lies over it
  EXPECT_OK(self, koloWindowDeregister(self.comm, window));
  if (kind == Memory::kPool) freeOfDriver(memory, device);
  else EXPECT_OK(self, koloMemFree(memory));
}

}  // namespace

TEST_CASE("windows over memory of Kolo's and of the driver's, and over what has been freed", "[device][windows]") {
  const int n = GENERATE_RANKS(1, 2, 3, 4, 8);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  ranks.run([&](Self& self) {
    for (const Memory kind : {Memory::kOwn, Memory::kDriver, Memory::kOwn})
      useWindow(ranks, self, kind, testDevice(), true);
  });
}

TEST_CASE("windows between two devices; memory of a pool is staged", "[mock]") {
  const MockScene scene({.devices = 2});
  Ranks ranks({0, 1});
  ranks.run([&](Self& self) {
    for (const Memory kind : {Memory::kOwn, Memory::kDriver, Memory::kPool}) {
#ifdef __SANITIZE_THREAD__
      // Ranks order their accesses by counters that each maps at an address of its own, which the sanitizer takes for
      // two places; the driver's memory has one address for both.
      if (kind == Memory::kDriver) continue;
#endif
      useWindow(ranks, self, kind, self.rank, kind != Memory::kPool);
    }
  });
}

// The kernels of its neighbours run, and could write: the buffers of the rank that is late are in a window.
TEST_CASE("S3.3 on GPUs nobody writes into a rank's buffer before that rank has called", "[device][smoke][windows]") {
  constexpr std::size_t kCount = 20'000;
  const std::string algorithm = GENERATE("biring", "ring", "one_shot");
  INFO(algorithm);
  const DeviceScene scene(mockFor(3));
  Ranks ranks(oneDevice(3));
  std::atomic<int> entered{0};
  ranks.run([&](Self& self) {
    EXPECT_OK(self, koloCommSetAlgorithm(self.comm, ("all_gather:" + algorithm).c_str()));
    void* const memory = allocate(Memory::kOwn, 4 * kCount * sizeof(int), testDevice());
    koloWindow_t window = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, memory, 4 * kCount * sizeof(int), &window));
    const DeviceInts mine(testDevice(), memory, kCount);
    const DeviceInts all(testDevice(), mine.data() + kCount, 3 * kCount);
    const CudaStream stream;
    mine.write(counting(self.rank, kCount));
    all.fill(-1);
    ranks.together();
    if (self.rank == 2) {
      while (entered < 2) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      EXPECT(self, all.read() == std::vector<int>(3 * kCount, -1));
    }
    EXPECT_OK(self, koloAllGather(mine.data(), all.data(), kCount, koloInt32, self.comm, stream.get()));
    ++entered;
    stream.synchronize();
    std::vector<int> expected;
    for (int rank = 0; rank < 3; ++rank) {
      const std::vector<int> block = counting(rank, kCount);
      expected.insert(expected.end(), block.begin(), block.end());
    }
    EXPECT(self, all.read() == expected);
    ranks.together();
    EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    EXPECT_OK(self, koloMemFree(memory));
  });
}

// ---- failure while kernels wait

TEST_CASE("a rank that never calls makes the others' kernels give up, and says so asynchronously",
          "[device][failure]") {
  const int n = GENERATE(2, 3);
  const bool resident = GENERATE(false, true);
  const DeviceScene scene(mockFor(n, resident));
  Ranks ranks(oneDevice(n), {.timeoutMs = 200, .resident = resident});
  const DeviceBuffer value(1);
  const CudaStream stream;
  CHECK_CODE(koloSuccess, koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream.get()));
  CHECK(endsSoon([&] { stream.synchronize(); }));  // because the kernel has a deadline
  koloResult_t result = koloSuccess;
  CHECK_CODE(koloSuccess, koloCommGetAsyncError(ranks[0], &result));
  CHECK(result == koloTimeout);
  CHECK(std::string(koloGetLastError(ranks[0])).find("rank 0 waited 200 ms for rank ") != std::string::npos);
  CHECK(std::string(koloGetLastError(ranks[0])).find("the limit is 200 ms (KOLO_TIMEOUT_MS)") != std::string::npos);
  CHECK_CODE(koloTimeout, koloAllReduce(value.data(), value.data(), 1, koloInt32, koloSum, ranks[0], stream.get()));
  for (int rank = 1; rank < n; ++rank) CHECK(errorHeard(ranks[rank]) != koloSuccess);
}

TEST_CASE("koloCommAbort ends kernels that wait, here and on the other ranks", "[device][failure]") {
  const int n = GENERATE_RANKS(2, 3, 4);
  const int culprit = GENERATE(0, 1);
  const bool resident = GENERATE(false, true);
  const DeviceScene scene(mockFor(n, resident));
  const DeviceBuffer values(8);
  const std::vector<CudaStream> streams(static_cast<std::size_t>(n));
  Ranks ranks(oneDevice(n), {.resident = resident});
  const auto waits = [n](int rank) { return rank != n - 1; };  // the last rank does not call
  for (int rank = 0; rank < n; ++rank) {
    int* const value = values.data() + rank;
    const koloStream_t stream = streams[static_cast<std::size_t>(rank)].get();
    if (waits(rank)) CHECK_CODE(koloSuccess, koloAllReduce(value, value, 1, koloInt32, koloSum, ranks[rank], stream));
  }
  CHECK(endsSoon([&] {
    CHECK_CODE(koloSuccess, koloCommAbort(ranks[culprit]));
    ranks.comms[static_cast<std::size_t>(culprit)] = nullptr;
    for (const CudaStream& stream : streams) stream.synchronize();
  }));
  for (int rank = 0; rank < n; ++rank) {
    if (rank != culprit) CHECK(errorHeard(ranks[rank]) == koloAborted);
  }
}

// Rank 0's kernel is held up in its stream while rank 1's gives up, because of rank 2, and its program writes the
// buffer.
TEST_CASE("nothing is taken out of a window in which a rank that has given up may write again",
          "[device][failure][windows]") {
  constexpr std::size_t kCount = 100'000;
  const bool message = GENERATE(true, false);
  INFO((message ? "a message" : "a broadcast"));
  const DeviceScene scene(mockFor(3));
  Ranks ranks(oneDevice(3), {.timeoutMs = 300 * kSlowness});
  const DeviceBuffer given(kCount), taken(kCount), other(kCount), gate(2);
  const CudaStream late, early, opener;
  given->fill(1);
  taken->fill(0);
  gate->fill(0);
  ranks.run([&](Self& self) {
    const DeviceBuffer& mine = self.rank == 0 ? taken : self.rank == 1 ? given : other;
    koloWindow_t window = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, mine.data(), kCount * sizeof(int), &window));
  });
  CUDA_OK(driver().cuStreamWaitValue64(late.raw(), reinterpret_cast<CUdeviceptr>(gate.data()), 1,
                                       CU_STREAM_WAIT_VALUE_GEQ));
  if (message) {
    CHECK_CODE(koloSuccess, koloRecv(taken.data(), kCount, koloInt32, 1, ranks[0], late.get()));
    CHECK_CODE(koloSuccess, koloGroupStart());
    CHECK_CODE(koloSuccess, koloSend(given.data(), kCount, koloInt32, 0, ranks[1], early.get()));
    CHECK_CODE(koloSuccess, koloRecv(other.data(), 1, koloInt32, 2, ranks[1], early.get()));
    CHECK_CODE(koloSuccess, koloGroupEnd());
  } else {
    CHECK_CODE(koloSuccess, koloBroadcast(taken.data(), taken.data(), kCount, koloInt32, 1, ranks[0], late.get()));
    CHECK_CODE(koloSuccess, koloBroadcast(given.data(), other.data(), kCount, koloInt32, 1, ranks[1], early.get()));
  }
  early.synchronize();  // its time is over
  given->fill(2);
  CUDA_OK(driver().cuStreamWriteValue64(opener.raw(), reinterpret_cast<CUdeviceptr>(gate.data()), 1,
                                        CU_STREAM_WRITE_VALUE_DEFAULT));
  late.synchronize();
  koloResult_t result = koloSuccess;
  CHECK_CODE(koloSuccess, koloCommGetAsyncError(ranks[0], &result));  // nobody but rank 0 can have told it
  CHECK(result == koloTimeout);
}

TEST_CASE("a rank that has gone is told to those whose kernels wait for it", "[device][smoke][failure]") {
  const bool message = GENERATE(false, true);
  const bool resident = GENERATE(false, true);
  const DeviceScene scene(mockFor(2, resident));
  const DeviceBuffer value(1);
  const CudaStream stream;
  Ranks ranks(oneDevice(2), {.resident = resident});
  CHECK_CODE(koloSuccess,
             message ? koloRecv(value.data(), 1, koloInt32, 1, ranks[0], stream.get())
                     : koloReduce(value.data(), value.data(), 1, koloInt32, koloSum, 0, ranks[0], stream.get()));
  CHECK_CODE(koloSuccess, koloCommDestroy(ranks[1]));
  ranks.comms[1] = nullptr;
  CHECK(endsSoon([&] { stream.synchronize(); }));
  koloResult_t result = koloSuccess;
  CHECK_CODE(koloSuccess, koloCommGetAsyncError(ranks[0], &result));
  CHECK(result == koloRemoteError);
  const std::string said = koloGetLastError(ranks[0]);
  INFO(said);
  CHECK(said.find("rank 1 destroyed its communicator while rank 0 waited for it in ") != std::string::npos);
  CHECK(said.find(message ? "send_recv (operation 1 " : "reduce (operation 1 ") != std::string::npos);
}

TEST_CASE("the operation that failed is named, not one that was enqueued after it", "[device][failure]") {
  const DeviceScene scene(mockFor(2, false));
  const DeviceBuffer value(1);
  const CudaStream stream;
  Ranks ranks(oneDevice(2), {.timeoutMs = 200});
  CHECK_CODE(koloSuccess, koloReduce(value.data(), value.data(), 1, koloInt32, koloMax, 0, ranks[0], stream.get()));
  CHECK_CODE(koloSuccess, koloBroadcast(value.data(), value.data(), 1, koloInt32, 0, ranks[0], stream.get()));
  stream.synchronize();
  koloResult_t result = koloSuccess;
  CHECK_CODE(koloSuccess, koloCommGetAsyncError(ranks[0], &result));
  const std::string said = koloGetLastError(ranks[0]);
  INFO(said);
  CHECK(said.find("reduce (operation 1 ") != std::string::npos);
  CHECK(said.find("reduce(int32, max, root 0, count 1)") != std::string::npos);
}

namespace {

// The rank has heard of a mismatch, whose text has both sides.
void expectMismatch(Self& self, const char* one, const char* other) {
  koloResult_t result = koloSuccess;
  EXPECT_OK(self, koloCommGetAsyncError(self.comm, &result));
  EXPECT(self, result == koloMismatch);
  const std::string message = koloGetLastError(self.comm);
  EXPECT(self, message.find(one) != std::string::npos);
  EXPECT(self, message.find(other) != std::string::npos);
}

}  // namespace

// Both fill all slots of the other before they look at what it calls. The shorter buffers go in packets: by a tree each
// root waits for no data, and each other rank for that of its root.
TEST_CASE("two roots of more than the slots hold, and of less, are told, on both ranks", "[device][failure]") {
  const std::size_t count = GENERATE(1'000'000u, 300u);
  const char* const algorithm = GENERATE("broadcast:tree", "broadcast:ring");
  const DeviceScene scene(mockFor(2));
  Ranks ranks(oneDevice(2), {.timeoutMs = 20'000 * kSlowness});
  for (int rank = 0; rank < 2; ++rank) CHECK_CODE(koloSuccess, koloCommSetAlgorithm(ranks[rank], algorithm));
  ranks.run([&](Self& self) {
    const DeviceBuffer value(count);
    const CudaStream stream;
    ranks.together();
    EXPECT_OK(self, koloBroadcast(value.data(), value.data(), count, koloInt32, self.rank, self.comm, stream.get()));
    stream.synchronize();
    expectMismatch(self, "root 0", "root 1");
  });
}

TEST_CASE("ranks that call different things are told, on all ranks", "[device][failure]") {
  const bool resident = GENERATE(false, true);
  const DeviceScene scene(mockFor(2, resident));
  Ranks ranks(oneDevice(2), {.timeoutMs = 2000 * kSlowness, .resident = resident});
  ranks.run([&](Self& self) {
    const DeviceBuffer value(4);
    const CudaStream stream;
    ranks.together();
    EXPECT_OK(self, addUp(value, self.rank == 0 ? 2 : 3, self, stream));
    stream.synchronize();
    expectMismatch(self, "count 2", "count 3");
  });
}

}  // namespace kolo::test
