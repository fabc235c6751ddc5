// Windows of memory that the ranks have mapped themselves, which each rank gives up alone.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "sums.h"
#include "support/ranks.h"
#include "support/settings.h"

using namespace kolo::test;

namespace abandoning {
namespace {

// The first half of the memory is summed into the second, as a list of one item.
void sumListAndExpect(Self& self, int* memory, size_t elements) {
  koloItem_t item{};
  item.sendbuf = memory;
  item.recvbuf = memory + elements / 2;
  item.count = elements / 2;
  item.sendtype = item.transfertype = item.recvtype = koloInt32;
  std::fill(memory, memory + elements / 2, self.rank + 1);
  std::fill(memory + elements / 2, memory + elements, -1);
  EXPECT_OK(self, koloAllReduceList(&item, 1, koloSum, self.comm, nullptr));
  EXPECT(self, std::all_of(memory + elements / 2, memory + elements, [](int value) { return value == 3; }));
}

// Memory that is mapped twice: by its rank, and by another one.
class TwoViews {
 public:
  explicit TwoViews(size_t elements) : bytes_(elements * sizeof(int)) {
    REQUIRE(ftruncate(file_, static_cast<off_t>(bytes_)) == 0);
    own_ = map(nullptr, MAP_SHARED, file_);
    seen_ = map(nullptr, MAP_SHARED, file_);
    REQUIRE((own_ != MAP_FAILED && seen_ != MAP_FAILED));
  }
  ~TwoViews() {
    munmap(own_, bytes_);
    munmap(seen_, bytes_);
    close(file_);
  }
  TwoViews(const TwoViews&) = delete;

  int* own() const { return static_cast<int*>(own_); }
  void* seen() const { return seen_; }
  size_t bytes() const { return bytes_; }
  // The other rank sees it no more, and can touch nothing there.
  bool part() { return mprotect(seen_, bytes_, PROT_NONE) == 0; }
  // At the rank's address lies ordinary memory from now on; or, the rank's view of others.
  bool replaceOwn() { return map(own_, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1) == own_; }
  bool replaceOwn(const TwoViews& others) { return map(own_, MAP_SHARED | MAP_FIXED, others.file_) == own_; }

 private:
  void* map(void* at, int flags, int file) const { return mmap(at, bytes_, PROT_READ | PROT_WRITE, flags, file, 0); }

  int file_ = memfd_create("kolo-test-views", 0);
  size_t bytes_;
  void *own_ = nullptr, *seen_ = nullptr;
};

// own: where this rank has its memory now, if that is not where its views were made.
koloWindow_t registerViews(Self& self, const TwoViews* const (&views)[2], int* own = nullptr) {
  void* parts[2];
  size_t bytes[2];
  for (int rank = 0; rank < 2; ++rank) {
    parts[rank] = rank == self.rank ? views[rank]->own() : views[rank]->seen();
    bytes[rank] = views[rank]->bytes();
  }
  if (own != nullptr) parts[self.rank] = own;
  koloWindow_t window = nullptr;
  EXPECT_OK(self, koloWindowRegisterMapped(self.comm, parts, bytes, &window));
  return window;
}

}  // namespace

TEST_CASE("memory that the ranks have mapped themselves is abandoned while another thread is in a collective",
          "[threads]") {
  constexpr size_t kElements = 40000;
  World world(2);
  TwoViews views[2] = {TwoViews(kElements), TwoViews(kElements)};
  std::atomic<bool> isAbandoned{false};
  std::atomic<int> parted{0};
  world.run([&](Self& self) {
    const koloWindow_t window = registerViews(self, {&views[0], &views[1]});
    int* const buffer = views[self.rank].own();
    sumAndExpect(self, buffer, buffer + kElements / 2, kElements / 2);
    const int one = 1;
    int sum = 0;
    koloResult_t result = koloSuccess;
    const auto meet = [&] { result = koloAllReduce(&one, &sum, 1, koloInt32, koloSum, self.comm, nullptr); };
    if (self.rank == 0) {
      std::thread waiting(meet);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // then it is there
      EXPECT_OK(self, koloWindowAbandon(self.comm, window));
      isAbandoned = true;
      waiting.join();
    } else {
      while (!isAbandoned) std::this_thread::yield();
      EXPECT_OK(self, koloWindowAbandon(self.comm, window));
      meet();
    }
    EXPECT(self, result == koloSuccess && sum == 2);
    EXPECT(self, views[1 - self.rank].part());
    ++parted;
    while (parted != 2) std::this_thread::yield();
    sumAndExpect(self, buffer, buffer + kElements / 2, kElements / 2);
    sumAndExpect(self, buffer + 1, buffer + kElements / 2, kElements / 2 - 1);
  });
}

TEST_CASE("memory that the ranks have mapped themselves is used for those who have not abandoned it", "[threads]") {
  constexpr size_t kElements = 40000;
  World world(2);
  const TwoViews views[2] = {TwoViews(kElements), TwoViews(kElements)};
  world.run([&](Self& self) {
    const koloWindow_t window = registerViews(self, {&views[0], &views[1]});
    if (self.rank == 0) EXPECT_OK(self, koloWindowAbandon(self.comm, window));
    std::vector<int> other(kElements);
    int* const buffer = self.rank == 0 ? other.data() : views[1].own();
    for (int i = 0; i < 3; ++i) sumAndExpect(self, buffer, buffer + kElements / 2, kElements / 2);
    // A new window does not get the place of one that is in use.
    const koloWindow_t next = registerViews(self, {&views[0], &views[1]});
    sumAndExpect(self, views[self.rank].own(), views[self.rank].own() + kElements / 2, kElements / 2);
    sumAndExpect(self, buffer, buffer + kElements / 2, kElements / 2);
    if (self.rank == 1) EXPECT_OK(self, koloWindowAbandon(self.comm, window));
    EXPECT_OK(self, koloWindowDeregister(self.comm, next));
    int zeroCopy = 0;
    EXPECT_CODE(self, koloInvalidHandle, koloWindowAbandon(self.comm, window));
    EXPECT_CODE(self, koloInvalidHandle, koloWindowDeregister(self.comm, window));
    EXPECT_CODE(self, koloInvalidHandle, koloWindowIsZeroCopy(window, &zeroCopy));
  });
}

TEST_CASE("windows that all ranks have abandoned make room, in whatever order each of them did it") {
  World world(2);
  const TwoViews views[2] = {TwoViews(1000), TwoViews(1000)};
  world.run([&](Self& self) {
    for (int i = 0; i < 2100; ++i) {  // a communicator can have 4096
      koloWindow_t windows[2] = {registerViews(self, {&views[0], &views[1]}),
                                 registerViews(self, {&views[0], &views[1]})};
      if (self.rank == i % 2) std::swap(windows[0], windows[1]);
      for (koloWindow_t each : windows) EXPECT_OK(self, koloWindowAbandon(self.comm, each));
      if (!self.faults.empty()) break;
    }
    sumAndExpect(self, views[self.rank].own(), views[self.rank].own() + 500, 500);
  });
}

TEST_CASE("a window is abandoned on its communicator, and if its memory was mapped by the ranks themselves") {
  World world(1), other(1);
  std::vector<int> memory(100);
  void* const part = memory.data();
  const size_t bytes = 400;
  koloWindow_t mapped = nullptr, registered = nullptr;
  REQUIRE_OK(koloWindowRegisterMapped(world[0], &part, &bytes, &mapped));
  REQUIRE_OK(koloWindowRegister(world[0], memory.data(), 400, &registered));
  CHECK_CODE(koloInvalidHandle, koloWindowAbandon(other[0], mapped));
  CHECK_CODE(koloInvalidHandle, koloWindowAbandon(nullptr, mapped));
  CHECK_CODE(koloInvalidUsage, koloWindowAbandon(world[0], registered));
  CHECK_CODE(koloSuccess, koloWindowAbandon(world[0], mapped));
  CHECK_CODE(koloSuccess, koloWindowDeregister(world[0], registered));
}

TEST_CASE("memory that lies where an abandoned window was is not taken for the window's, in lists either") {
  constexpr size_t kElements = 40000;
  withSettings({{"KOLO_SINGLE_COPY_BYTES", "4096"}}, [] {
    World world(2);
    TwoViews views[2] = {TwoViews(kElements), TwoViews(kElements)};
    const TwoViews later(kElements);
    world.run([&](Self& self) {
      const koloWindow_t window = registerViews(self, {&views[0], &views[1]});
      int* const memory = views[self.rank].own();
      for (int i = 0; i < 2; ++i) sumListAndExpect(self, memory, kElements);
      // Only rank 1 abandons the window, and has ordinary memory at its address.
      if (self.rank == 1) {
        EXPECT_OK(self, koloWindowAbandon(self.comm, window));
        EXPECT(self, views[1].replaceOwn());
      }
      for (int i = 0; i < 2; ++i) sumListAndExpect(self, memory, kElements);
      // Then another window.
      if (self.rank == 1) EXPECT(self, views[1].replaceOwn(later));
      const koloWindow_t next = registerViews(self, {&views[0], &later}, memory);
      for (int i = 0; i < 2; ++i) sumListAndExpect(self, memory, kElements);
      if (self.rank == 0) EXPECT_OK(self, koloWindowAbandon(self.comm, window));
      EXPECT_OK(self, koloWindowDeregister(self.comm, next));
    });
  });
}

TEST_CASE("memory under an abandoned window may be freed") {
  World world(1);
  void* part = nullptr;
  REQUIRE_OK(koloMemAlloc(&part, 4096));
  const size_t bytes = 4096;
  koloWindow_t window = nullptr;
  REQUIRE_OK(koloWindowRegisterMapped(world[0], &part, &bytes, &window));
  CHECK_CODE(koloInvalidUsage, koloMemFree(part));
  CHECK_CODE(koloSuccess, koloWindowAbandon(world[0], window));
  CHECK_CODE(koloSuccess, koloMemFree(part));
}

}  // namespace abandoning
