#include "gpu/gpu_census.h"

#include <string>

#include "base/identity.h"
#include "links/blob.h"

namespace kolo::gpu {
namespace {

constexpr int kLargeDevice = 64;  // blocks
// What the planner begins with, until there are measured tables: microseconds from a store to its being seen, and GB/s.
constexpr double kFenceUs = 1, kHopOnDeviceUs = 1, kHopBetweenDevicesUs = 2, kHopThroughHostUs = 3;
constexpr double kLinkGBps = 200, kHostGBps = 20, kBlockGBps = 40;
constexpr double kUnknownMemoryGBps = 1000, kUnknownCacheBytes = 32 << 20;

}  // namespace

Result<std::unique_ptr<GpuCensus>> GpuCensus::take(links::Membership& membership, const executor::cuda::Gpu& gpu) {
  GpuEntry entry{};
  std::copy_n(processIdentity().data(), sizeof entry.processId, entry.processId);
  const executor::cuda::Gpu::Description& device = gpu.description();
  entry.device = device.uuid;
  entry.ordinal = gpu.ordinal();
  entry.isSharedByProcesses = gpu.isSharedByProcesses() ? 1 : 0;
  entry.freeBlocks = gpu.freeBlocks();
  entry.memoryGBps = device.memoryGBps > 0 ? device.memoryGBps : kUnknownMemoryGBps;
  entry.cacheBytes = device.cacheBytes > 0 ? device.cacheBytes : kUnknownCacheBytes;
  links::BlobWriter writer;
  writer.put(entry);
  KOLO_ASSIGN(const std::vector<std::string> blobs, membership.allGather(writer.text()));
  std::unique_ptr<GpuCensus> census(new GpuCensus());
  census->rank_ = membership.rank;
  for (const std::string& blob : blobs) census->all_.push_back(links::BlobReader(blob).get<GpuEntry>());
  return census;
}

int GpuCensus::sharing() const {
  return count([&](const GpuEntry& one) {
    return one.isOnDevice(mine()) && (one.isInProcess(mine()) || mine().isSharedByProcesses != 0);
  });
}

int GpuCensus::sharingContext() const {
  return count([&](const GpuEntry& one) { return one.isOnDevice(mine()) && one.isInProcess(mine()); });
}

// Some blocks are left for communicators to come, which would otherwise have none: most of a device that is empty, an
// eighth of what is left of one that is not.
int GpuCensus::fairShare(const executor::cuda::Gpu& gpu, bool mayTakeAll) const {
  const int all = gpu.residentBlocks();
  int free = mine().freeBlocks;
  for (const GpuEntry& one : all_) {
    if (one.isOnDevice(mine())) free = std::min(free, one.freeBlocks);
  }
  mayTakeAll = mayTakeAll || all < kLargeDevice;
  const int usable = mayTakeAll ? free : free == all ? (free - 16) * 3 / 4 : free / 8;
  return std::max(1, usable / sharing());
}

planner::Machine GpuCensus::machine(bool mapsHost) const {
  int crowd = 1;  // ranks on the fullest device
  for (const GpuEntry& one : all_)
    crowd = std::max(crowd, count([&](const GpuEntry& other) { return other.isOnDevice(one); }));
  const bool several = count([&](const GpuEntry& one) { return !one.isOnDevice(mine()); }) > 0;
  double memory = mine().memoryGBps / 2, cache = mine().cacheBytes;
  for (const GpuEntry& one : all_) {
    memory = std::min(memory, one.memoryGBps / 2);  // a copy reads and writes
    cache = std::min(cache, one.cacheBytes);
  }
  planner::Machine machine;
  machine.hopUs = mapsHost ? kHopThroughHostUs : several ? kHopBetweenDevicesUs : kHopOnDeviceUs;
  machine.memoryGBps = mapsHost ? kHostGBps : several ? std::min(memory / crowd, kLinkGBps) : memory / crowd;
  machine.cacheGBps = several || mapsHost ? machine.memoryGBps : 2 * memory / crowd;
  machine.cacheBytes = cache;
  machine.blockGBps = kBlockGBps;
  machine.fenceUs = kFenceUs;
  return machine;
}

}  // namespace kolo::gpu
