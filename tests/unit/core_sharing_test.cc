#include "waiting/core_sharing.h"

#include <catch2/catch.hpp>

namespace kolo::test {
namespace {

constexpr std::int64_t kAlone = 300, kTurn = 6'000, kSlice = 2'800'000;  // nanoseconds that a yield takes

waiting::CoreSharing after(int yields, std::int64_t ns) {
  waiting::CoreSharing sharing;
  for (int i = 0; i < yields; ++i) sharing.yielded(ns);
  return sharing;
}

TEST_CASE("a core is thought to be shared when some yields in a row let somebody else have a turn") {
  CHECK_FALSE(waiting::CoreSharing().isLikely());
  CHECK_FALSE(after(1, kTurn).isLikely());
  CHECK(after(10, kTurn).isLikely());
  CHECK_FALSE(after(1000, kAlone).isLikely());
}

TEST_CASE("a core that is shared no longer is found out as fast, however long it was shared") {
  waiting::CoreSharing sharing = after(1000, kTurn);
  int yields = 0;
  for (; sharing.isLikely(); ++yields) sharing.yielded(kAlone);
  CHECK(yields <= 10);
}

TEST_CASE("a turn in vain now and then changes nothing") {
  waiting::CoreSharing sharing = after(10, kTurn);
  for (int i = 0; i < 1000; ++i) {
    sharing.yielded(i % 3 == 0 ? kAlone : kTurn);
    REQUIRE(sharing.isLikely());
  }
}

TEST_CASE("nobody yields in advance to somebody who computes as long as he may") {
  waiting::CoreSharing sharing = after(1000, kTurn);
  sharing.yielded(kSlice);
  CHECK_FALSE(sharing.isLikely());
  CHECK_FALSE(after(1000, kSlice).isLikely());
}

}  // namespace
}  // namespace kolo::test
