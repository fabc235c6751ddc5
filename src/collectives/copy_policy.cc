#include "collectives/copy_policy.h"

#include <algorithm>

#include "device/offers.h"

namespace kolo::collectives {
namespace {

using device::Collective;

// Each limit with the file that has its measurement; the last two have none.
// perf/results/2026-11-23-single-copy-reductions.txt
constexpr std::uint64_t kMostReadForAllReduce = 512 << 10;
constexpr std::uint64_t kMostReadForGather = 128 << 10;
// Where ranks share cores. Below it, a meeting of all ranks costs more than a second copy:
// perf/results/2026-11-23-single-copy-4-ranks.txt
constexpr std::uint64_t kWorthMeeting = 32 << 10;
// From here on the root of a broadcast writes a part of it itself, and each of two ranks folds one half of an
// all-reduce and writes it to the other: perf/results/2026-11-23-single-copy-writing.txt
constexpr std::uint64_t kWorthPushing = 32 << 10;
constexpr std::uint64_t kWorthHalving = 64 << 10;
// Below it, to read where the segments of a list are costs more than a second copy of them.
constexpr std::uint64_t kWorthSharingLists = 4 << 10;
// A block that is given to the root of a gather is staged early up to this size. Not measured size by size;
// perf/results/2026-11-28-ablation-osu.txt has what it gains at 32 KiB ("eager_staging").
constexpr std::uint64_t kMostStagedEarly = 128 << 10;

}  // namespace

// From a size on each rank reads what it needs where it is at first. An algorithm that relays, if it was asked for,
// goes on relaying. The inputs of an all-reduce are read by two ranks only; where results cannot be written, only if
// they stay in the caches, for staging moves less otherwise. Long blocks for one root are copied by the others rather
// than by the root alone.
bool CopyPolicy::readsPeers(Collective collective, std::uint64_t bytes) const {
  if (bytes == 0 || bytes < singleCopyBytes || ranks == 1) return false;
  switch (collective) {
    case Collective::kBroadcast:
    case Collective::kScatter: return true;
    case Collective::kGather: return bytes <= kMostReadForGather && !ranksShareCores;
    case Collective::kAllGather:
    case Collective::kAllToAll: return bytes >= exchangeCopyBytes();
    case Collective::kReduceScatter: return !ranksShareCores;
    case Collective::kAllReduce:
      return ranks == 2 && (bytes <= kMostReadForAllReduce || canWritePeers) && !ranksShareCores;
    default: return false;
  }
}

// All ranks write to the root of a gather at once. The root of a broadcast, which would only wait, does a part of the
// work. Each of two ranks folds one half of an all-reduce.
bool CopyPolicy::writesPeers(Collective collective, std::uint64_t bytes) const {
  if (!canWritePeers || ranksShareCores || bytes == 0 || bytes < singleCopyBytes || ranks == 1) return false;
  switch (collective) {
    case Collective::kGather: return true;
    case Collective::kBroadcast: return bytes >= kWorthPushing;
    case Collective::kAllReduce: return ranks == 2 && bytes >= kWorthHalving;
    default: return false;
  }
}

bool CopyPolicy::sharesLists(std::uint64_t bytes) const {
  return canReadPeers && ranks > 1 && bytes >= kWorthSharingLists;
}

std::uint64_t CopyPolicy::exchangeCopyBytes() const {
  return ranksShareCores ? std::max(singleCopyBytes, kWorthMeeting) : singleCopyBytes;
}

// A block in a window is read there if a message would be; a block of ordinary memory as in the other collectives. The
// senders of a gather have to know the size too, so there it does not depend on the root's buffer. A sender has to wait
// for the root to learn where its block goes, unless it stages early.
std::uint64_t CopyPolicy::pairsFromBytes(const device::Work& work) const {
  if (work.direct == device::Algorithm::kCount) return UINT64_MAX;
  const bool isGather = work.signature.collective == Collective::kGather;
  std::uint64_t from = work.signature.collective == Collective::kAllToAll ? exchangeCopyBytes() : singleCopyBytes;
  if (isGather || work.sendRef.index != 0) from = kEagerWindowBytes + 1;
  if (isGather && ranksShareCores) from = std::max(from, kWorthMeeting);
  return std::max<std::uint64_t>(from, device::kHeaderPayloadBytes + 1);
}

bool CopyPolicy::mayStageEarly(const device::Work& work) const {
  return ranksShareCores && work.signature.collective == Collective::kGather && device::onlyGives(work) &&
         work.signature.algorithm == device::Algorithm::kOneShot && !device::goesThroughSlots(work) &&
         work.partTo(work.root).count * work.elementBytes <= kMostStagedEarly;
}

}  // namespace kolo::collectives
