// The path between ranks on GPUs through pinned memory of the host, for pairs without a direct one: memory that both
// map, or a posted link from mirror to arena. Where NICs reach the GPU's memory (links/gpu_direct.h), mirror and arena
// of a posted link are there.
//
// Thread safety: made by one thread, and immutable from then on, but for what its Peers do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "executor/cuda/engine.h"
#include "gpu/departures.h"
#include "gpu/gpu_census.h"
#include "gpu/pinned.h"
#include "links/gpu_direct.h"
#include "links/peers.h"
#include "memory/device_memory.h"

namespace kolo::gpu {

class GpuHostPath {
 public:
  struct Setup {
    std::shared_ptr<memory::DeviceMemory> arena;  // of this rank, in its GPU's memory
    std::string transports, nearNics;             // as GpuRank::Wishes says
  };
  // Collective. direct: the peers that are reached without it. What is referred to lives as long as anybody calls
  // functions of this object.
  static Result<std::unique_ptr<GpuHostPath>> make(links::Membership& membership,
                                                   std::shared_ptr<executor::cuda::Gpu> gpu,
                                                   const executor::cuda::ArenaLayout& layout, const GpuCensus& census,
                                                   const links::Peers& direct, Setup setup);

  links::Peers& peers() const { return *throughHost_; }
  const Departures& departures() const { return *departures_; }
  Departures& departures() { return *departures_; }
  bool isPosted(int peer) const { return (*throughHost_)[peer].isPosted(); }
  // Whether the links to some peers are posted.
  bool posts() const;
  // Where the kernels of this rank and of a peer that is reached by this path write. REQUIRES: the peer is.
  Result<executor::cuda::Engine::Pair> pairWith(int peer) const;

 private:
  // Of the host; pinned only if somebody writes there, and then as long as any rank of this process holds it.
  struct HostArena {
    std::shared_ptr<const void> memory;
    Pinned pinned;
  };
  static constexpr char kIntoDevice = 1, kFromDevice = 2;

  GpuHostPath(links::Membership& membership, std::shared_ptr<executor::cuda::Gpu> gpu,
              const executor::cuda::ArenaLayout& layout, const GpuCensus& census, const links::Peers& direct,
              Setup setup)
      : membership_(membership), gpu_(std::move(gpu)), layout_(layout), census_(census), direct_(direct),
        setup_(std::move(setup)) {}
  Status connect();
  Status connectWith(const links::GpuDirect* gpuDirect);
  Result<links::Given> makeArena();
  Status learnInboxes();
  Result<std::string> provePosted();
  bool receivesOnDevice(int peer) const { return (inboxes_[static_cast<std::size_t>(peer)] & kIntoDevice) != 0; }
  bool sendsFromDevice(int peer) const { return (*throughHost_)[peer].mirror.isOnDevice; }
  template <class Predicate>
  std::string listOf(Predicate&& predicate) const;
  void tellPaths() const;
  Status pin(void* memory, std::uint64_t bytes);
  Status pinAll();

  links::Membership& membership_;
  const std::shared_ptr<executor::cuda::Gpu> gpu_;
  const executor::cuda::ArenaLayout layout_;
  const GpuCensus& census_;
  const links::Peers& direct_;
  const Setup setup_;
  std::string inboxes_;         // by rank: whether it writes into this one's GPU's memory, and out of its own
  bool usesGpuDirect_ = false;  // any pair of ranks
  // What goes last comes first.
  std::unique_ptr<links::GpuDirect> gpuDirect_;
  std::shared_ptr<HostArena> hostArena_;
  std::unique_ptr<links::Peers> throughHost_;
  std::unique_ptr<Departures> departures_;
  std::vector<Pinned> pinned_;  // arenas of other processes, mirrors, departures
};

}  // namespace kolo::gpu
