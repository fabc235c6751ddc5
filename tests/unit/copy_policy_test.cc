#include "collectives/copy_policy.h"

#include <catch2/catch.hpp>
#include <cstdint>

namespace kolo::collectives {
namespace {

using device::Collective;

constexpr std::uint64_t kSizes[] = {0, 1, 40, 4096, 8191, 8192, 32768, 65536, 131072, 524288, 524289, 1 << 30};

template <class Check>
void forAll(Check check) {
  for (int collective = 0; collective < static_cast<int>(Collective::kCount); ++collective) {
    for (const std::uint64_t bytes : kSizes) check(static_cast<Collective>(collective), bytes);
  }
}

TEST_CASE("without single copies nobody touches ordinary memory of a peer") {
  CopyPolicy policy{.ranks = 2, .canWritePeers = true};
  forAll([&](Collective collective, std::uint64_t bytes) {
    CHECK_FALSE(policy.readsPeers(collective, bytes));
    CHECK_FALSE(policy.writesPeers(collective, bytes));
  });
}

TEST_CASE("memory of peers is written only where that is possible and cores are not shared") {
  CopyPolicy policy{.ranks = 2, .singleCopyBytes = 8192};
  forAll([&](Collective collective, std::uint64_t bytes) { CHECK_FALSE(policy.writesPeers(collective, bytes)); });
  policy.canWritePeers = policy.ranksShareCores = true;
  forAll([&](Collective collective, std::uint64_t bytes) { CHECK_FALSE(policy.writesPeers(collective, bytes)); });
  policy.ranksShareCores = false;
  CHECK(policy.writesPeers(Collective::kGather, 8192));
  CHECK(policy.writesPeers(Collective::kAllReduce, 65536));
  CHECK_FALSE(policy.writesPeers(Collective::kAllReduce, 32768));
}

TEST_CASE("nothing below the limit is read, and all that has one giver is read above it") {
  const CopyPolicy policy{.ranks = 3, .singleCopyBytes = 8192};
  forAll([&](Collective collective, std::uint64_t bytes) {
    if (bytes < 8192) CHECK_FALSE(policy.readsPeers(collective, bytes));
    if (bytes >= 8192) CHECK(policy.readsPeers(Collective::kBroadcast, bytes));
  });
  CHECK_FALSE(policy.readsPeers(Collective::kAllReduce, 8192));  // of three ranks
}

TEST_CASE("where ranks share cores only longer blocks are worth a meeting") {
  const CopyPolicy policy{.ranks = 4, .singleCopyBytes = 8192, .ranksShareCores = true};
  CHECK_FALSE(policy.readsPeers(Collective::kAllToAll, 8192));
  CHECK(policy.readsPeers(Collective::kAllToAll, 32768));
}

TEST_CASE("where ranks share cores, what is given to the root of a gather is staged early up to a size") {
  CopyPolicy policy{.ranks = 4, .singleCopyBytes = 8192, .ranksShareCores = true};
  const auto mayStage = [&](Collective collective, int rank, std::uint64_t bytes) {
    device::Work work;
    work.signature.collective = collective;
    work.signature.algorithm = device::Algorithm::kOneShot;
    work.direct = device::Algorithm::kOneShot;
    work.ranks = 4;
    work.rank = rank;
    work.root = 1;
    work.sendLayout.count = bytes;
    work.elementBytes = 1;
    work.header.pairsFromBytes = 8192;
    work.sharing.input = device::Offer::kAddress;
    return policy.mayStageEarly(work);
  };
  CHECK(mayStage(Collective::kGather, 0, 32 << 10));
  CHECK_FALSE(mayStage(Collective::kGather, 0, 512 << 10));
  CHECK_FALSE(mayStage(Collective::kGather, 1, 32 << 10));     // the root
  CHECK_FALSE(mayStage(Collective::kBroadcast, 1, 32 << 10));  // the others read there
  policy.ranksShareCores = false;
  CHECK_FALSE(mayStage(Collective::kGather, 0, 32 << 10));
}

TEST_CASE("a pair's limit is above what a header carries") {
  device::Work work;
  work.signature.collective = Collective::kAllToAll;
  CopyPolicy policy{.ranks = 4, .singleCopyBytes = 0};
  CHECK(policy.pairsFromBytes(work) == UINT64_MAX);  // there is no direct form
  work.direct = device::Algorithm::kOneShot;
  CHECK(policy.pairsFromBytes(work) == device::kHeaderPayloadBytes + 1);
  work.sendRef.index = 1;
  CHECK(policy.pairsFromBytes(work) == kEagerWindowBytes + 1);
}

}  // namespace
}  // namespace kolo::collectives
