// Memory and windows.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sums.h"
#include "support/collectives_table.h"
#include "support/ranks.h"
#include "support/settings.h"

using namespace kolo::test;

namespace {

int* allocate(Self& self, size_t elements) {
  void* memory = nullptr;
  EXPECT_OK(self, koloMemAlloc(&memory, elements * sizeof(int)));
  return static_cast<int*>(memory);
}

}  // namespace

TEST_CASE("registered buffers work at any offsets, different on each rank", "[threads]") {
  for (const int ranks : {1, 2, 3, 5}) {
    World world(ranks);
    world.run([](Self& self) {
      constexpr size_t kElements = 100000;
      int* send = allocate(self, kElements);
      int* recv = allocate(self, kElements);
      koloWindow_t windows[2] = {};
      EXPECT_OK(self, koloWindowRegister(self.comm, send, kElements * sizeof(int), &windows[0]));
      EXPECT_OK(self, koloWindowRegister(self.comm, recv, kElements * sizeof(int), &windows[1]));
      int zeroCopy = 0;
      EXPECT_OK(self, koloWindowIsZeroCopy(windows[0], &zeroCopy));
      EXPECT(self, zeroCopy == 1);
      for (const size_t count : {size_t{1}, size_t{17}, size_t{1000}, size_t{50000}}) {
        const auto shift = static_cast<size_t>(self.rank) * 1237;
        sumAndExpect(self, send + shift, recv + 3 * shift, count);
        sumAndExpect(self, send + 2 * shift, send + 2 * shift, count);
      }
      for (koloWindow_t window : windows) EXPECT_OK(self, koloWindowDeregister(self.comm, window));
      EXPECT_OK(self, koloMemFree(send));
      EXPECT_OK(self, koloMemFree(recv));
    });
  }
}

TEST_CASE("S1.2 S1.3 an operation whose buffer leaves the window, or is registered on some ranks only, still works",
          "[threads][links]") {
  World world(3);
  world.run([](Self& self) {
    constexpr size_t kElements = 50000;
    int* memory = allocate(self, kElements);
    std::vector<int> plain(kElements);
    koloWindow_t window = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, memory, kElements / 2 * sizeof(int), &window));
    sumAndExpect(self, memory + kElements / 2 - 100, memory, 200 + 0);
    sumAndExpect(self, memory, self.rank == 1 ? plain.data() : memory + kElements / 4, kElements / 4);
    sumAndExpect(self, self.rank == 2 ? plain.data() : memory, plain.data() + kElements / 2, kElements / 4);
    EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    EXPECT_OK(self, koloMemFree(memory));
  });
}

TEST_CASE("ordinary memory registers and is zero-copy between threads") {
  World world(2);
  world.run([](Self& self) {
    std::vector<int> memory(10000);
    koloWindow_t window = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, memory.data(), memory.size() * sizeof(int), &window));
    int zeroCopy = 0;
    EXPECT_OK(self, koloWindowIsZeroCopy(window, &zeroCopy));
    EXPECT(self, zeroCopy == 1);
    sumAndExpect(self, memory.data() + 7, memory.data() + 5000, 4000);
    EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    sumAndExpect(self, memory.data() + 7, memory.data() + 5000, 4000);
  });
}

TEST_CASE(
    "memory that the ranks have mapped themselves is zero-copy, unless one sees it otherwise than another gives it") {
  World world(3);
  std::vector<int> memory[3] = {std::vector<int>(30000), std::vector<int>(), std::vector<int>(20000)};
  enum class Sight { kRight, kOtherBytes, kNotMapped };
  for (const Sight sight : {Sight::kRight, Sight::kOtherBytes, Sight::kNotMapped}) {
    world.run([&](Self& self) {
      void* parts[3];
      size_t bytes[3];
      for (size_t i = 0; i < 3; ++i) {
        parts[i] = memory[i].data();
        bytes[i] = memory[i].size() * sizeof(int);
      }
      if (self.rank == 2 && sight == Sight::kOtherBytes) bytes[0] /= 2;
      if (self.rank == 2 && sight == Sight::kNotMapped) parts[0] = nullptr;
      koloWindow_t window = nullptr;
      EXPECT_OK(self, koloWindowRegisterMapped(self.comm, parts, bytes, &window));
      int zeroCopy = -1;
      EXPECT_OK(self, koloWindowIsZeroCopy(window, &zeroCopy));
      EXPECT(self, zeroCopy == (sight == Sight::kRight ? 1 : 0));
      std::vector<int> plain(20000);
      int* const buffer = self.rank == 1 ? plain.data() : memory[self.rank].data();
      sumAndExpect(self, buffer + 1, buffer + 10001, 9000);
      EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    });
  }
}

TEST_CASE("parts of a window may differ in size, and be empty", "[links]") {
  World world(3);
  world.run([](Self& self) {
    const size_t elements = self.rank == 1 ? 0 : 1000 + static_cast<size_t>(self.rank) * 5000;
    int* memory = allocate(self, elements);
    EXPECT(self, (memory == nullptr) == (self.rank == 1));
    koloWindow_t window = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, memory, elements * sizeof(int), &window));
    std::vector<int> plain(2000);
    int* buffer = self.rank == 1 ? plain.data() : memory;
    sumAndExpect(self, buffer, buffer + 500, 500);
    EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    EXPECT_OK(self, koloMemFree(memory));
  });
}

TEST_CASE("S1.3 memory registered twice, and on two communicators, works until its last window is gone", "[links]") {
  World world(2);
  world.run([](Self& self) {
    constexpr size_t kElements = 20000;
    int* memory = allocate(self, kElements);
    koloComm_t child = nullptr;
    EXPECT_OK(self, koloCommSplit(self.comm, 0, -self.rank, &child, nullptr));
    koloWindow_t first = nullptr, second = nullptr, childs = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, memory, kElements * sizeof(int), &first));
    EXPECT_OK(self, koloWindowRegister(self.comm, memory, kElements * sizeof(int), &second));
    EXPECT_OK(self, koloWindowRegister(child, memory, kElements * sizeof(int), &childs));
    EXPECT(self, first != second);
    sumAndExpect(self, memory, memory + kElements / 2, 9000);
    EXPECT_OK(self, koloWindowDeregister(self.comm, first));
    sumAndExpect(self, memory, memory + kElements / 2, 9000);
    EXPECT_CODE(self, koloInvalidHandle, koloWindowDeregister(self.comm, first));
    EXPECT_CODE(self, koloInvalidHandle, koloWindowDeregister(child, second));
    EXPECT_OK(self, koloWindowDeregister(self.comm, second));
    sumAndExpect(self, memory, memory + kElements / 2, 9000);
    EXPECT_OK(self, koloWindowDeregister(child, childs));
    EXPECT_OK(self, koloCommDestroy(child));
    EXPECT_OK(self, koloMemFree(memory));
  });
}

TEST_CASE("windows come and go while others stay", "[threads][links]") {
  World world(2);
  world.run([](Self& self) {
    int* memory = allocate(self, 8192);
    std::vector<koloWindow_t> windows;
    for (int round = 0; round < 5; ++round) {
      for (size_t i = 0; i < 8; ++i) {
        koloWindow_t window = nullptr;
        EXPECT_OK(self, koloWindowRegister(self.comm, memory + i * 1024, 1024 * sizeof(int), &window));
        windows.push_back(window);
      }
      for (size_t i = 0; i < 8; ++i) sumAndExpect(self, memory + i * 1024 + 1, memory + (i + 3) % 8 * 1024 + 600, 300);
      while (windows.size() > 4) {
        EXPECT_OK(self, koloWindowDeregister(self.comm, windows[windows.size() / 2]));
        windows.erase(windows.begin() + static_cast<std::ptrdiff_t>(windows.size() / 2));
      }
    }
    for (koloWindow_t window : windows) EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    EXPECT_OK(self, koloMemFree(memory));
  });
}

TEST_CASE("S1.2 windows that the ranks deregister in different orders are a mismatch, and both stay") {
  World world(2);
  world.run([](Self& self) {
    int* memory = allocate(self, 2000);
    koloWindow_t windows[2] = {};
    EXPECT_OK(self, koloWindowRegister(self.comm, memory, 4000, &windows[0]));
    EXPECT_OK(self, koloWindowRegister(self.comm, memory + 1000, 4000, &windows[1]));
    EXPECT_CODE(self, koloMismatch, koloWindowDeregister(self.comm, windows[self.rank]));
    // Both by what this rank knows of them.
    const auto place = [&](int window) {
      std::ostringstream text;
      text << "of 4000 bytes at " << static_cast<const void*>(memory + 1000 * window);
      return text.str();
    };
    const std::string own = "rank " + std::to_string(self.rank) + " deregisters its window " + place(self.rank);
    const std::string other = "the one that has " + place(1 - self.rank).substr(3);
    EXPECT(self, messageHas(own.c_str()) && messageHas(other.c_str()));
    sumAndExpect(self, memory, memory + 1000, 1000);
    for (koloWindow_t window : windows) EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    EXPECT_OK(self, koloMemFree(memory));
  });
}

TEST_CASE("a window whose communicator is gone is a dead handle") {
  koloWindow_t window = nullptr;
  std::vector<int> memory(100);
  {
    World world(1);
    REQUIRE_OK(koloWindowRegister(world[0], memory.data(), 400, &window));
  }
  int zeroCopy = 7;
  CHECK_CODE(koloInvalidHandle, koloWindowIsZeroCopy(window, &zeroCopy));
  CHECK(zeroCopy == 7);
  World other(1);
  CHECK_CODE(koloInvalidHandle, koloWindowDeregister(other[0], window));
}

// The sanitizers see whether a question touches what another thread is just freeing.
TEST_CASE("a thread asks about a window that another one deregisters", "[threads]") {
  World world(1);
  std::vector<int> memory(100);
  std::atomic<koloWindow_t> current{nullptr};
  std::atomic<bool> isOver{false};
  int strange = 0;
  std::thread asking([&] {
    while (!isOver) {
      int zeroCopy = 7;
      const koloWindow_t window = current;
      std::this_thread::yield();
      if (window == nullptr) continue;
      const koloResult_t result = koloWindowIsZeroCopy(window, &zeroCopy);
      const bool isKnown = result == koloSuccess && (zeroCopy == 0 || zeroCopy == 1);
      if (!isKnown && result != koloInvalidHandle) ++strange;
    }
  });
  koloResult_t result = koloSuccess;
  for (int i = 0; i < 2000 && result == koloSuccess; ++i) {
    koloWindow_t window = nullptr;
    result = koloWindowRegister(world[0], memory.data(), 400, &window);
    current = window;
    if (result == koloSuccess) result = koloWindowDeregister(world[0], window);
  }
  isOver = true;
  asking.join();
  CHECK(result == koloSuccess);
  CHECK(strange == 0);
}

TEST_CASE("a NULL buffer with bytes is no window") {
  World world(1);
  koloWindow_t window = nullptr;
  CHECK_CODE(koloInvalidPointer, koloWindowRegister(world[0], nullptr, 10, &window));
  CHECK(window == nullptr);
}

TEST_CASE("S1.4 every collective works on windows, plainly and in place", "[threads][links]") {
  for (const int ranks : {2, 3, 5}) {
    World world(ranks);
    world.run([](Self& self) {
      const auto n = static_cast<size_t>(self.ranks), me = static_cast<size_t>(self.rank);
      constexpr size_t kMost = 20000;
      const size_t elements = kMost * n * 2 + 1000;
      int* memory = allocate(self, elements);
      koloWindow_t window = nullptr;
      EXPECT_OK(self, koloWindowRegister(self.comm, memory, elements * sizeof(int), &window));
      for (const size_t count : {size_t{2}, size_t{999}, kMost}) {
        for (const bool inPlace : {false, true}) {
          for (const Collective& collective : collectives()) {
            int* send = memory + 3 * me;
            int* recv = memory + kMost * n + 500 + 7 * me;
            const bool root = self.rank == 0 || !collective.hasRoot;
            if (inPlace) {
              recv = send;
              if (collective.recvDivided && !collective.sendDivided) send = recv + me * count;
              if (collective.sendDivided && !collective.recvDivided) recv = send + me * count;
              if (!root && collective.hasRoot) recv = memory + kMost * n + 500;
            }
            const size_t sendBlocks = collective.sendDivided ? n : 1;
            for (size_t b = 0; b < sendBlocks; ++b) {
              std::fill(send + b * count, send + (b + 1) * count, static_cast<int>(me * 10 + b));
            }
            Arguments arguments;
            arguments.send = send;
            arguments.recv = recv;
            arguments.count = count;
            arguments.comm = self.comm;
            EXPECT_OK(self, collective.call(arguments));
            const bool hasResult = root || !(collective.reduces || collective.recvDivided);
            const size_t recvBlocks = !hasResult ? 0 : collective.recvDivided ? n : 1;
            bool good = true;
            for (size_t b = 0; b < recvBlocks; ++b) {
              int expected = 0;
              if (collective.reduces) {
                for (size_t r = 0; r < n; ++r) expected += static_cast<int>(r * 10 + (collective.sendDivided ? me : 0));
              } else {
                const size_t from = collective.recvDivided ? b : 0;
                expected = static_cast<int>(from * 10 + (collective.sendDivided ? me : 0));
              }
              const int* block = recv + b * count;
              good = good && std::all_of(block, block + count, [&](int value) { return value == expected; });
            }
            if (!good) {
              self.fault(KOLO_HERE, std::string(collective.name) + ", count " + std::to_string(count) +
                                        (inPlace ? ", in place" : ""));
            }
            EXPECT_OK(self, koloBarrier(self.comm, nullptr));
          }
        }
      }
      EXPECT_OK(self, koloWindowDeregister(self.comm, window));
      EXPECT_OK(self, koloMemFree(memory));
    });
  }
}

TEST_CASE("memory under a window is not freed before the window is") {
  World world(2);
  world.run([](Self& self) {
    int* const memory = allocate(self, 1000);
    koloWindow_t window = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, memory + 10, 40, &window));
    EXPECT_CODE(self, koloInvalidUsage, koloMemFree(memory));
    EXPECT(self, messageHas("koloWindowDeregister"));
    sumAndExpect(self, memory + 10, memory + 12, 1);  // it is still there
    EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    EXPECT_OK(self, koloMemFree(memory));
  });
}

TEST_CASE("windows of a failed communicator can be given up, and the memory under them") {
  World world(2);
  world.run([](Self& self) {
    int* const memory = allocate(self, 1000);
    koloWindow_t window = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, memory, 4000, &window));
    EXPECT_CODE(
        self, koloMismatch,
        koloAllReduce(memory, memory, static_cast<size_t>(1 + self.rank), koloInt32, koloSum, self.comm, nullptr));
    EXPECT_CODE(self, koloMismatch, koloWindowDeregister(self.comm, window));
    EXPECT_OK(self, koloMemFree(memory));
  });
}

TEST_CASE("a window larger than the address space is refused") {
  World world(1);
  int value = 0;
  koloWindow_t window = nullptr;
  for (const size_t bytes : {static_cast<size_t>(-1), static_cast<size_t>(PTRDIFF_MAX) + 1}) {
    CHECK_CODE(koloInvalidCount, koloWindowRegister(world[0], &value, bytes, &window));
  }
}

// The root gives up, because rank 2 has called something else, and uses its buffer for other things while rank 1 still
// reads there. Rank 1 must not take what it finds for the root's data.
TEST_CASE("data of a rank that has given up meanwhile are not taken for those of the operation", "[optimised]") {
  if (kSanitized) return;  // it is a race, outside Kolo
  static constexpr int kValue = 1234567;
  constexpr size_t kCount = 6'000'000;
  using Call = koloResult_t (*)(Self&, const int*, int*);
  const std::pair<const char*, Call> calls[] = {
      {"broadcast", [](Self& self, const int* send,
                       int* recv) { return koloBroadcast(send, recv, kCount, koloInt32, 0, self.comm, nullptr); }},
      {"scatter", [](Self& self, const int* send,
                     int* recv) { return koloScatter(send, recv, kCount / 3, koloInt32, 0, self.comm, nullptr); }},
      {"scatterv", [](Self& self, const int* send, int* recv) {
         const size_t counts[] = {0, kCount, 0};
         return koloScatterv(send, counts, nullptr, recv, counts[self.rank], koloInt32, 0, self.comm, nullptr);
       }}};
  withSettings({{"KOLO_SINGLE_COPY_BYTES", "4096"}}, [&] {
    for (const auto& [name, call] : calls) {
      for (const bool inWindow : {true, false}) {
        INFO(name << (inWindow ? " in a window" : " in ordinary memory"));
        World world(3);
        std::atomic<bool> entering{false};
        std::atomic<int> over{0};
        world.run([&](Self& self) {
          std::vector<int> ordinary(kCount, kValue), received(kCount, kValue);
          int* const memory = allocate(self, kCount);
          std::fill(memory, memory + kCount, kValue);
          koloWindow_t window = nullptr;
          EXPECT_OK(self, koloWindowRegister(self.comm, memory, kCount * sizeof(int), &window));
          EXPECT_OK(self, koloBarrier(self.comm, nullptr));
          int* const send = inWindow ? memory : ordinary.data();
          koloResult_t result = koloSuccess;
          if (self.rank == 2) {
            result = koloAllReduce(send, received.data(), 1, koloInt32, koloMax, self.comm, nullptr);
          } else {
            while (self.rank == 0 && !entering) std::this_thread::yield();
            entering = true;
            result = call(self, send, received.data());
          }
          if (self.rank == 0) std::fill(send, send + kCount, -1);
          const bool isWhole = std::all_of(received.begin(), received.end(), [](int value) { return value == kValue; });
          EXPECT(self, result != koloSuccess || (self.rank == 1 && isWhole));
          for (++over; over < 3;) std::this_thread::yield();
          while (koloBarrier(self.comm, nullptr) == koloSuccess) {
          }
          EXPECT(self, koloWindowDeregister(self.comm, window) != koloSuccess);
          EXPECT_OK(self, koloMemFree(memory));
        });
      }
    }
  });
}

// Rank 1 gives up while rank 2 is late; the root finds out while it writes the beginning of everybody's buffer. What it
// has not written, it must not say to be there.
TEST_CASE(
    "the root of a broadcast that fails while it writes into others' buffers does not say that it has written there",
    "[optimised]") {
  using namespace std::chrono_literals;
  constexpr size_t kCount = 600'000;
  for (int trial = 0; trial < 3; ++trial) {
    World world(3);
    std::atomic<int> over{0};
    world.run([&](Self& self) {
      koloConfig_t config = KOLO_CONFIG_INITIALIZER;
      config.timeoutMs = self.rank == 1 ? 300 * kSlowness : 0;
      koloComm_t comm = nullptr;
      EXPECT_OK(self, koloCommSplit(self.comm, 0, self.rank, &comm, &config));
      int* const memory = allocate(self, kCount);
      koloWindow_t window = nullptr;
      EXPECT_OK(self, koloWindowRegister(comm, memory, kCount * sizeof(int), &window));
      std::fill(memory, memory + kCount, self.rank == 0 ? 7 : -1);
      EXPECT_OK(self, koloSetTimeout(0));  // what shall succeed has all the time that a busy machine takes
      EXPECT_OK(self, koloBarrier(comm, nullptr));
      EXPECT_OK(self, koloSetTimeout(-1));
      if (self.rank == 2) std::this_thread::sleep_for(340ms * kSlowness);
      const koloResult_t result = koloBroadcast(memory, memory, kCount, koloInt32, 0, comm, nullptr);
      EXPECT(self, result != koloSuccess || std::all_of(memory, memory + kCount, [](int value) { return value == 7; }));
      for (++over; over < 3;) std::this_thread::yield();
      (void)koloWindowDeregister(comm, window);
      EXPECT_OK(self, koloMemFree(memory));
      (void)koloCommAbort(comm);
    });
  }
}

// The root of a gather gives up, for the last rank calls something else, while another writes a long block into its
// buffer, which is the caller's again then: of each page it changes a number.
TEST_CASE("nobody writes into ordinary memory of a root that has given up", "[optimised]") {
  constexpr size_t kPage = 4096 / sizeof(int), kPages = 8000;
  withSettings({{"KOLO_SINGLE_COPY_BYTES", "4096"}}, [] {
    for (int trial = 0; trial < 20; ++trial) {
      World world(3);
      std::atomic<bool> entering{false};
      std::atomic<int> over{0};
      world.run([&](Self& self) {
        const size_t counts[] = {0, kPages * kPage, 0};
        std::vector<int> block(self.rank == 1 ? counts[1] : 1, 7), all(self.rank == 0 ? counts[1] : 1, 0);
        EXPECT_OK(self, koloBarrier(self.comm, nullptr));
        if (self.rank == 1) entering = true;
        while (self.rank == 2 && !entering) std::this_thread::yield();
        if (self.rank == 2) std::this_thread::sleep_for(std::chrono::microseconds(200 * trial));
        const koloResult_t result =
            self.rank == 2 ? koloAllReduce(block.data(), all.data(), 1, koloInt32, koloMax, self.comm, nullptr)
                           : koloGatherv(block.data(), counts[self.rank], all.data(), counts, nullptr, koloInt32, 0,
                                         self.comm, nullptr);
        EXPECT(self, result != koloSuccess || self.rank == 1);
        for (size_t page = 0; self.rank == 0 && page < kPages; ++page) all[page * kPage] = -1;
        for (++over; over < 3;) std::this_thread::yield();
        for (size_t page = 0; self.rank == 0 && page < kPages; ++page) EXPECT(self, all[page * kPage] == -1);
      });
    }
  });
}

// The others do not answer in time. They still have the window: nothing may go on.
TEST_CASE("a rank that deregisters a window alone gets an error and may free its memory") {
  withSettings({{"KOLO_INIT_TIMEOUT_MS", "2000"}}, [] {
    World world(2);
    std::atomic<bool> over{false};
    world.run([&](Self& self) {
      int* const memory = allocate(self, 10);
      koloWindow_t window = nullptr;
      EXPECT_OK(self, koloWindowRegister(self.comm, memory, 10 * sizeof(int), &window));
      if (self.rank == 1) {
        while (!over) std::this_thread::yield();
      }
      const koloResult_t result = koloWindowDeregister(self.comm, window);
      EXPECT(self, self.rank == 1 ? result != koloSuccess : result == koloTimeout);
      EXPECT(self, koloWindowDeregister(self.comm, window) == koloInvalidHandle);
      EXPECT_OK(self, koloMemFree(memory));
      int value = 0;
      EXPECT(self, koloBroadcast(&value, &value, 1, koloInt32, 1, self.comm, nullptr) != koloSuccess);
      over = true;
    });
  });
}

// Whether the root's data are in a window, read where they are, or staged is decided from the headers, of which ranks
// with ordinary buffers read the root's alone; nobody may wait for one that has gone.
TEST_CASE("broadcasts of which any of the ranks have registered their buffers, read where they are and staged",
          "[threads][optimised]") {
  constexpr size_t kCount = 10'000;  // long enough for the root to write a part itself
  for (const char* from : {"0", "9223372036854775807"}) {
    withSettings({{"KOLO_SINGLE_COPY_BYTES", from}}, [] {
      World world(3);
      world.run([&](Self& self) {
        int* const memory = allocate(self, kCount);
        std::vector<int> gathered(3 * kCount);
        for (int registered = 0; registered < 8; ++registered) {
          const bool mine = (registered >> self.rank & 1) != 0;
          koloWindow_t window = nullptr;
          EXPECT_OK(self,
                    koloWindowRegister(self.comm, mine ? memory : nullptr, mine ? kCount * sizeof(int) : 0, &window));
          for (int root = 0; root < 3; ++root) {
            for (int round = 0; round < 3; ++round) {
              std::fill(memory, memory + kCount, self.rank == root ? 100 * root + round : -1);
              EXPECT_OK(self, koloBroadcast(memory, memory, kCount, koloInt32, root, self.comm, nullptr));
              EXPECT(self,
                     std::all_of(memory, memory + kCount, [&](int value) { return value == 100 * root + round; }));
            }
          }
          std::fill(memory, memory + kCount, self.rank);
          EXPECT_OK(self, koloAllGather(memory, gathered.data(), kCount, koloInt32, self.comm, nullptr));
          for (size_t i = 0; i < gathered.size(); ++i) EXPECT(self, gathered[i] == static_cast<int>(i / kCount));
          EXPECT_OK(self, koloWindowDeregister(self.comm, window));
        }
        EXPECT_OK(self, koloMemFree(memory));
      });
    });
  }
}

// Likewise of all-reduces: each of two ranks writes its half of the result where the other wants it, in a window or
// not.
TEST_CASE(
    "all-reduces of two ranks of which any have registered their buffers, in place or not, written where they are and "
    "staged",
    "[threads][optimised]") {
  for (const char* from : {"0", "9223372036854775807"}) {
    withSettings({{"KOLO_SINGLE_COPY_BYTES", from}}, [] {
      World world(2);
      world.run([&](Self& self) {
        for (const size_t count : {size_t{16'384}, size_t{20'001}, size_t{300'007}}) {
          int* const memory = allocate(self, 2 * count);
          for (int registered = 0; registered < 4; ++registered) {
            const bool mine = (registered >> self.rank & 1) != 0;
            koloWindow_t window = nullptr;
            EXPECT_OK(self, koloWindowRegister(self.comm, mine ? memory : nullptr, mine ? 2 * count * sizeof(int) : 0,
                                               &window));
            for (const int inPlace : {0, 1, 2, 3}) {  // by rank
              int* const send = memory;
              int* const recv = (inPlace >> self.rank & 1) != 0 ? memory : memory + count;
              for (int round = 0; round < 2; ++round) {
                std::fill(memory, memory + 2 * count, -1);
                for (size_t i = 0; i < count; ++i) send[i] = static_cast<int>(i) * (self.rank + 1) + round;
                EXPECT_OK(self, koloAllReduce(send, recv, count, koloInt32, koloSum, self.comm, nullptr));
                size_t wrong = 0;
                for (size_t i = 0; i < count; ++i) wrong += recv[i] != static_cast<int>(i) * 3 + 2 * round ? 1 : 0;
                EXPECT(self, wrong == 0);
              }
            }
            EXPECT_OK(self, koloWindowDeregister(self.comm, window));
          }
          EXPECT_OK(self, koloMemFree(memory));
        }
      });
    });
  }
}
