// Ranks that are processes without MPS have a device in turns. Nothing may need the other in the middle of a turn, and
// an operation should take few: the mock gives the device from grid to grid when all blocks of one wait.
#include <catch2/catch.hpp>

#include "support.h"

namespace kolo::test {
namespace {

// Of one all_reduce, after another has met everybody.
std::uint64_t slicesOf(const Ranks& ranks, std::size_t ints) {
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;
  std::vector<std::unique_ptr<CudaStream>> streams;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    buffers.push_back(std::make_unique<DeviceBuffer>(ints));
    streams.push_back(std::make_unique<CudaStream>());
    (*buffers.back())->fill(rank + 1);
  }
  const std::uint64_t before = MockCuda::slices();
  // From one thread: the ranks' grids are there together, as in the middle of a program.
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    REQUIRE(koloAllReduce(buffers[at]->data(), buffers[at]->data(), ints, koloInt32, koloSum, ranks[rank],
                          streams[at]->get()) == koloSuccess);
  }
  for (const auto& stream : streams) stream->synchronize();
  for (const auto& buffer : buffers) CHECK((*buffer)->read(ints - 1) == ranks.size() * (ranks.size() + 1) / 2);
  return MockCuda::slices() - before;
}

}  // namespace

TEST_CASE("an all_reduce of up to 1 MiB takes a few turns of the device", "[mock]") {
  const std::size_t bytes = GENERATE(4, 8192, 65536, 1 << 20);
  const MockScene scene({.multiprocessors = 64, .blockThreads = 1, .timeSlices = true});
  const Ranks ranks({0, 0});
  const std::uint64_t first = slicesOf(ranks, bytes / sizeof(int)), second = slicesOf(ranks, bytes / sizeof(int));
  INFO(bytes << " bytes: " << first << " and " << second << " turns");
  CHECK(first <= 6);
  CHECK(second <= 6);
}

TEST_CASE("every algorithm ends on a device that is had in turns", "[mock]") {
  const MockScene scene({.multiprocessors = 12, .blockThreads = 1, .timeSlices = true});
  const Ranks ranks({0, 0, 0});
  for (const char* algorithm : {"one_shot", "two_shot", "ring", "biring", "recursive", "tree"}) {
    INFO(algorithm);
    for (const koloComm_t comm : ranks.comms) {
      REQUIRE(koloCommSetAlgorithm(comm, (std::string("all_reduce:") + algorithm).c_str()) == koloSuccess);
    }
    for (const std::size_t ints : {std::size_t{100}, std::size_t{700'000}}) CHECK(slicesOf(ranks, ints) > 0);
  }
}

}  // namespace kolo::test
