// The block's text, by one host thread that plays the block's threads one after the other: what each of them does is
// independent of the others, which the in-place cases prove.
#include "device/block_ops.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "device/copy_short.h"
#include "emulated/block_reduce.h"
#include "executor/host/reduce.h"
#include "reduce_fixture.h"

namespace kolo::test {
namespace {

using device::ReduceOp;

using device::BlockIndex;

template <class Body>
void play(unsigned threads, bool backwards, Body&& body) {
  for (unsigned i = 0; i < threads; ++i) body(BlockIndex{backwards ? threads - 1 - i : i, threads});
}

template <class T>
void compareWithHost(koloDataType_t datatype, ReduceOp op, const Setup& setup) {
  INFO("datatype " << datatype << " op " << static_cast<int>(op));
  std::vector<unsigned char> host;
  REQUIRE(faultOf<T>(setup, op, executor::reduceKernel(datatype, op), &host) == "");
  for (const unsigned threads : {1u, 3u, 32u}) {
    std::vector<unsigned char> block;
    const auto reduce = [&](const device::ReduceArgs& args) {
      play(threads, setup.seed % 2 == 0,
           [&](const BlockIndex& block) { executor::reduceInBlock(block, datatype, op, args); });
    };
    INFO(threads << " threads");
    REQUIRE(faultOf<T>(setup, op, reduce, &block) == "");
    for (std::uint64_t i = 0; i < setup.count; ++i) {
      if (!oracle::same(oracle::elementAt<T>(host.data(), i), oracle::elementAt<T>(block.data(), i))) FAIL(i);
    }
  }
}

template <class T, ReduceOp kOp>
void checkAgainstHost(koloDataType_t datatype, const Setup& setup) {
  if constexpr (device::isDefinedFor<T>(kOp)) compareWithHost<T>(datatype, kOp, setup);
}

// setupFor(size of an element) for every datatype and operation.
template <ReduceOp kOp, class SetupFor>
void forOperation(SetupFor&& setupFor) {
  forEachDatatype([&](auto tag, koloDataType_t datatype) {
    using T = typename decltype(tag)::type;
    for (const Setup& setup : setupFor(sizeof(T))) checkAgainstHost<T, kOp>(datatype, setup);
  });
}
template <class SetupFor>
void forAll(SetupFor&& setupFor) {
  forOperation<ReduceOp::kSum>(setupFor);
  forOperation<ReduceOp::kProd>(setupFor);
  forOperation<ReduceOp::kMax>(setupFor);
  forOperation<ReduceOp::kMin>(setupFor);
  forOperation<ReduceOp::kLogicalAnd>(setupFor);
  forOperation<ReduceOp::kLogicalOr>(setupFor);
  forOperation<ReduceOp::kLogicalXor>(setupFor);
  forOperation<ReduceOp::kBitAnd>(setupFor);
  forOperation<ReduceOp::kBitOr>(setupFor);
  forOperation<ReduceOp::kBitXor>(setupFor);
}

TEST_CASE("a block folds every datatype and operation as the host does", "[block][optimised]") {
  forAll([](std::size_t size) {
    const std::size_t shifted = size % 16;
    return std::vector<Setup>{
        {.count = 0},
        {.count = 1},
        {.count = 523, .sources = {shifted, shifted}, .destinations = {shifted, shifted}, .seed = 2},
        {.count = 1201, .sources = {0, 0, 0}, .inPlace = 1},
        {.count = 211, .sources = {1, 0, 5}, .destinations = {3}, .inPlace = 2, .seed = 4},
        // As buffers of elements lie: at multiples of these, whatever the others' are.
        {.count = 419, .sources = {shifted, 0, 3 * size % 16}, .destinations = {0, shifted, 2 * size % 16}, .seed = 5},
        {.count = 307, .sources = {0, 8, 8}, .destinations = {8, 0}, .inPlace = 1, .seed = 6}};
  });
}

TEST_CASE("a block scales and divides as the host does", "[block][optimised]") {
  forOperation<ReduceOp::kSum>([](std::size_t size) {
    std::vector<Setup> setups = {{.count = 700, .scaledSource = 1},
                                 {.count = 77, .sources = {size}, .scaledSource = 0}};
    return setups;
  });
  forEachDatatype([](auto tag, koloDataType_t datatype) {
    using T = typename decltype(tag)::type;
    if (!device::isAverageDefined(datatype)) return;
    checkAgainstHost<T, ReduceOp::kSum>(datatype, {.count = 700, .sources = {0, 0, 0}, .divisor = 3});
    checkAgainstHost<T, ReduceOp::kSum>(datatype, {.count = 333, .sources = {0, 1}, .divisor = 7});
    if constexpr (device::kIsNarrowFloat<T>) {
      checkAgainstHost<T, ReduceOp::kSum>(datatype, {.count = 519, .divisor = 8, .weights = {4, 2}});
      checkAgainstHost<T, ReduceOp::kSum>(
          datatype, {.count = 101, .sources = {3, 0}, .divisor = 12, .weights = {2, 1}, .unit = 0.25f});
    }
  });
}

TEST_CASE("a block copies at any size and misalignment", "[block]") {
  for (const unsigned threads : {1u, 3u, 32u}) {
    for (const std::size_t bytes : {0u, 1u, 15u, 16u, 17u, 31u, 32u, 33u, 47u, 48u, 49u, 100u, 4099u}) {
      for (std::size_t to = 0; to < 16; ++to) {
        for (std::size_t from = 0; from < 16; ++from) {
          Buffer src(bytes, from), dst(bytes, to);
          for (std::size_t i = 0; i < bytes; ++i) src.data()[i] = static_cast<unsigned char>(i * 7 + 1);
          play(threads, to % 2 == 0,
               [&](const BlockIndex& team) { device::blockCopy(team, dst.data(), src.data(), bytes, false); });
          INFO(threads << " threads, " << bytes << " bytes from " << from << " to " << to);
          CHECK((bytes == 0 || std::memcmp(dst.data(), src.data(), bytes) == 0));
          CHECK(dst.guardsIntact());
        }
      }
    }
  }
}

TEST_CASE("a line's payload is copied at any size and misalignment, as the host does and as a GPU does", "[block]") {
  for (std::uint32_t bytes = 0; bytes <= 64; ++bytes) {
    for (std::size_t to = 0; to < 8; ++to) {
      for (std::size_t from = 0; from < 8; ++from) {
        Buffer src(bytes, from), dst(bytes, to), again(bytes, to);
        for (std::size_t i = 0; i < bytes; ++i) src.data()[i] = static_cast<unsigned char>(i * 7 + 1);
        device::copyByTwoMoves(dst.data(), src.data(), bytes);
        device::copyByAlignment(again.data(), src.data(), bytes);
        INFO(bytes << " bytes from " << from << " to " << to);
        CHECK((bytes == 0 || std::memcmp(dst.data(), src.data(), bytes) == 0));
        CHECK((bytes == 0 || std::memcmp(again.data(), src.data(), bytes) == 0));
        CHECK((dst.guardsIntact() && again.guardsIntact()));
      }
    }
  }
}

TEST_CASE("an element is loaded and stored at any address as a GPU does", "[block]") {
  forEachDatatype([](auto tag, koloDataType_t datatype) {
    using T = typename decltype(tag)::type;
    for (std::size_t at = 0; at < 16; ++at) {
      Buffer from(sizeof(T), at), to(sizeof(T), 15 - at);
      for (std::size_t i = 0; i < sizeof(T); ++i) from.data()[i] = static_cast<unsigned char>(i * 7 + 1);
      device::storeElement<T, false>(to.data(), device::loadElement<T, false>(from.data()));
      INFO("datatype " << datatype << " at " << at);
      CHECK((std::memcmp(from.data(), to.data(), sizeof(T)) == 0 && to.guardsIntact()));
    }
  });
}

// A page between two that nobody may touch.
class LonelyPage {
 public:
  static constexpr std::size_t kBytes = 4096;
  LonelyPage()
      : pages_(static_cast<unsigned char*>(mmap(nullptr, 3 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(pages_ != MAP_FAILED);
    REQUIRE(mprotect(pages_ + kBytes, kBytes, PROT_READ | PROT_WRITE) == 0);
  }
  ~LonelyPage() { munmap(pages_, 3 * kBytes); }
  unsigned char* data() const { return pages_ + kBytes; }

 private:
  unsigned char* pages_;
};

TEST_CASE("a block reads nothing beside its sources", "[block]") {
  const LonelyPage one, other;
  for (std::size_t i = 0; i < LonelyPage::kBytes; ++i) {
    one.data()[i] = static_cast<unsigned char>(i % 61);
    other.data()[i] = static_cast<unsigned char>(i % 67);
  }
  for (std::size_t to = 0; to < 16; ++to) {
    for (const std::size_t less : {0u, 1u, 8u, 4052u, 4080u}) {
      const std::size_t bytes = LonelyPage::kBytes - less;
      const unsigned char* const atEnd = one.data() + less;
      Buffer copied(bytes, to), added(bytes, to);
      play(32, false, [&](const BlockIndex& team) { device::blockCopy(team, copied.data(), atEnd, bytes, false); });
      void* outputs[] = {added.data()};
      const void* inputs[] = {atEnd, other.data()};
      const device::ReduceArgs args{.dst = outputs, .dstCount = 1, .src = inputs, .srcCount = 2, .count = bytes};
      play(32, false, [&](const BlockIndex& team) { executor::reduceInBlock(team, koloUint8, ReduceOp::kSum, args); });
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < bytes; ++i)
        wrong += copied.data()[i] != atEnd[i] || added.data()[i] != atEnd[i] + other.data()[i];
      INFO(bytes << " bytes to " << to);
      CHECK((wrong == 0 && copied.guardsIntact() && added.guardsIntact()));
    }
  }
}

}  // namespace
}  // namespace kolo::test
