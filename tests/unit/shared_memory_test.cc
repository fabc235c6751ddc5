#include "memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

using kolo::memory::SharedMemory;

namespace {

std::size_t openFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

SharedMemory created(std::size_t bytes) {
  auto memory = SharedMemory::create(bytes, "test");
  REQUIRE(memory.status().message() == "");
  return memory.take();
}

}  // namespace

TEST_CASE("shared memory is zero, page-aligned and rounded up to pages", "[memory]") {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const SharedMemory memory = created(page + 1);
  CHECK(memory.bytes() == 2 * page);
  CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % page == 0);
  CHECK(std::all_of(memory.data(), memory.data() + memory.bytes(), [](unsigned char byte) { return byte == 0; }));
}

TEST_CASE("nobody who has the file makes it shorter, or longer", "[memory][lies]") {
  const SharedMemory memory = created(100);
  const auto bytes = static_cast<off_t>(memory.bytes());
  CHECK(ftruncate(memory.fd(), 0) != 0);
  CHECK(ftruncate(memory.fd(), 2 * bytes) != 0);
  CHECK(fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
  memory.data()[memory.bytes() - 1] = 1;
  CHECK(memory.discard(0, memory.bytes()));  // pages may still go
}

TEST_CASE("another mapping of the file sees the same bytes", "[memory]") {
  const SharedMemory memory = created(100);
  auto* const again =
      static_cast<unsigned char*>(mmap(nullptr, memory.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0));
  REQUIRE(again != MAP_FAILED);
  memory.data()[99] = 7;
  CHECK(again[99] == 7);
  again[0] = 8;
  CHECK(memory.data()[0] == 8);
  munmap(again, memory.bytes());
}

TEST_CASE("large memory takes pages only when touched", "[memory]") {
  const SharedMemory memory = created(std::size_t{1} << 30);
  struct stat info {};
  REQUIRE(fstat(memory.fd(), &info) == 0);
  CHECK(info.st_blocks == 0);
  memory.data()[(std::size_t{1} << 30) - 1] = 1;
  REQUIRE(fstat(memory.fd(), &info) == 0);
  CHECK(info.st_blocks > 0);
}

TEST_CASE("address space may be larger than the machine's memory, and gives parts of that back", "[memory]") {
#ifdef __SANITIZE_THREAD__
  return;  // its address space has no room for that
#endif
  constexpr std::size_t kBytes = std::size_t{1} << 42;
  CHECK(SharedMemory::create(kBytes, "test").status().code() == koloOutOfMemory);
  auto reserved = SharedMemory::create(1, "test", kBytes);
  REQUIRE(reserved.status().message() == "");
  const SharedMemory memory = reserved.take();
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  CHECK(memory.bytes() == kBytes + page);
  unsigned char* const at = memory.data() + kBytes / 2;
  std::fill(at, at + 3 * page, 1);
  CHECK_FALSE(memory.discard(kBytes / 2 + 1, 2 * page));  // one whole page
  CHECK(at[page - 1] == 1);
  CHECK(std::all_of(at + page, at + 2 * page, [](unsigned char byte) { return byte == 0; }));
  CHECK(at[2 * page] == 1);
  CHECK(memory.discard(0, memory.bytes()));
  struct stat info {};
  REQUIRE(fstat(memory.fd(), &info) == 0);
  CHECK(info.st_blocks == 0);
}

TEST_CASE("zero bytes are an empty object without a file", "[memory]") {
  const SharedMemory memory = created(0);
  CHECK(memory.data() == nullptr);
  CHECK(memory.bytes() == 0);
  CHECK(memory.fd() == -1);
}

TEST_CASE("moving leaves one owner, and the file is closed with it", "[memory]") {
  const std::size_t files = openFiles();
  {
    SharedMemory first = created(4096);
    SharedMemory second = created(4096);
    unsigned char* const data = first.data();
    second = std::move(first);
    CHECK(second.data() == data);
    CHECK(first.fd() == -1);
    SharedMemory third(std::move(second));
    CHECK(third.data() == data);
    CHECK(openFiles() == files + 1);
    third = SharedMemory();
    CHECK(openFiles() == files);
  }
  CHECK(openFiles() == files);
}

TEST_CASE("memory that is not there is out of memory, at once", "[memory]") {
  const std::size_t files = openFiles();
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX / 2, std::size_t{1} << 50}) {
    const auto memory = SharedMemory::create(bytes, "test");
    CHECK(memory.status().code() == koloOutOfMemory);
  }
  CHECK(kolo::memory::allocate(std::size_t{1} << 50).status().code() == koloOutOfMemory);
  CHECK(openFiles() == files);
}

TEST_CASE("a file size limit is an error and not a signal", "[memory]") {
  const pid_t child = fork();  // limits and signals of this process stay as they are
  if (child == 0) {
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    const bool small = SharedMemory::create(4096, "test").ok();
    const auto large = SharedMemory::create(2 << 20, "test");
    const bool refused = large.status().code() == koloOutOfMemory &&
                         large.status().message().find("file size limit") != std::string::npos;
    _exit(small && refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a long name is shortened", "[memory]") {
  CHECK(SharedMemory::create(1, std::string(1000, 'x').c_str()).ok());
}

TEST_CASE("what lies inside an allocated block is found with its offset, and nothing else", "[memory]") {
  const auto allocated = kolo::memory::allocate(8192);
  REQUIRE(allocated.ok());
  auto* const block = static_cast<unsigned char*>(allocated.value());
  const auto inside = kolo::memory::findBacking(block + 100, 8092);
  REQUIRE(inside.has_value());
  CHECK(inside->fdOffset == 100);
  CHECK(inside->fd >= 0);
  CHECK(kolo::memory::findBacking(block, 8192).has_value());
  CHECK_FALSE(kolo::memory::findBacking(block + 100, 8093).has_value());
  CHECK_FALSE(kolo::memory::findBacking(block + 100, SIZE_MAX).has_value());
  CHECK_FALSE(kolo::memory::findBacking(block - 1, 1).has_value());
  CHECK_FALSE(kolo::memory::findBacking(block + 8192, 1).has_value());
  int local = 0;
  CHECK_FALSE(kolo::memory::findBacking(&local, sizeof local).has_value());
  REQUIRE(kolo::memory::release(block).ok());
  CHECK_FALSE(kolo::memory::findBacking(block, 1).has_value());
}

TEST_CASE("releasing what was not allocated is refused", "[memory]") {
  const auto allocated = kolo::memory::allocate(4096);
  REQUIRE(allocated.ok());
  auto* const block = static_cast<unsigned char*>(allocated.value());
  int local = 0;
  CHECK(kolo::memory::release(&local).code() == koloInvalidPointer);
  CHECK(kolo::memory::release(block + 64).code() == koloInvalidPointer);
  CHECK(kolo::memory::release(block).ok());
  CHECK(kolo::memory::release(block).code() == koloInvalidPointer);
  CHECK(kolo::memory::release(nullptr).ok());
  CHECK(kolo::memory::allocate(0).value() == nullptr);
}

TEST_CASE("blocks are allocated, found and released by many threads", "[memory][threads]") {
  const std::size_t files = openFiles();
  std::vector<int> bad(4, 0);
  std::vector<std::thread> threads;
  for (int& count : bad) {
    threads.emplace_back([&count] {
      for (int i = 0; i < 100; ++i) {
        const auto block = kolo::memory::allocate(4096 * (1 + i % 3));
        if (!block.ok() || !kolo::memory::findBacking(block.value(), 4096)) ++count;
        if (!block.ok() || !kolo::memory::release(block.value()).ok()) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : bad) CHECK(count == 0);
  CHECK(openFiles() == files);
}
