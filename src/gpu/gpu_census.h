// What the ranks of a communicator on GPUs tell each other of their devices before anything is made.
//
// Thread safety: immutable once taken.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/status.h"
#include "executor/cuda/gpu.h"
#include "links/peers.h"
#include "planner/planner.h"

namespace kolo::gpu {

// What one rank tells.
struct GpuEntry {
  unsigned char processId[16];
  CUuuid device;
  std::int32_t ordinal;
  std::int32_t isSharedByProcesses;
  double memoryGBps;        // reads and writes together
  double cacheBytes;        // L2
  std::int32_t freeBlocks;  // before any rank of this communicator has taken some

  bool isInProcess(const GpuEntry& other) const {
    return std::memcmp(processId, other.processId, sizeof processId) == 0;
  }
  bool isOnDevice(const GpuEntry& other) const { return std::memcmp(&device, &other.device, sizeof device) == 0; }
};

class GpuCensus {
 public:
  // Collective.
  static Result<std::unique_ptr<GpuCensus>> take(links::Membership& membership, const executor::cuda::Gpu& gpu);

  const GpuEntry& operator[](int rank) const { return all_[static_cast<std::size_t>(rank)]; }
  const GpuEntry& mine() const { return all_[static_cast<std::size_t>(rank_)]; }
  // Ranks whose kernels run beside this rank's on its device, itself included; and those of this process among them.
  int sharing() const;
  int sharingContext() const;
  // This rank's share of the blocks that are free on its device. mayTakeAll: the user has said how many blocks the
  // communicator is to use.
  int fairShare(const executor::cuda::Gpu& gpu, bool mayTakeAll) const;
  // Memory and hops, as the planner sees them. mapsHost: some pair of ranks exchanges data through the host's memory.
  planner::Machine machine(bool mapsHost) const;

 private:
  GpuCensus() = default;
  template <class Predicate>
  int count(Predicate&& predicate) const {
    return static_cast<int>(std::count_if(all_.begin(), all_.end(), predicate));
  }

  int rank_ = 0;
  std::vector<GpuEntry> all_;
};

}  // namespace kolo::gpu
