// A rank of a communicator whose buffers lie in a GPU's memory: what it has beside the host's side, and how its
// operations get onto a CUDA stream.
//
// Thread safety: stop(), fault() and checkBuffer() from any thread; the rest under the communicator's turn.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/work.h"
#include "executor/cuda/engine.h"
#include "gpu/gpu_census.h"
#include "gpu/gpu_host_path.h"
#include "gpu/proxy.h"
#include "links/peers.h"
#include "planner/planner.h"

namespace kolo::gpu {

class GpuRank {
 public:
  struct Wishes {
    int device = 0;
    int mostChannels = 0;      // 0: as many as pay
    int resident = 0;          // as koloConfig_t's: not 0: small launches go to a kernel that stays
    std::uint64_t idleNs = 0;  // for so long
    std::string transports;    // names; empty: all
    std::string nearNics;      // as nearNics() says (links/hosts.h)
    // Called by a thread of the rank's own, if it has one (gpu/proxy.h), when fault() has something to tell.
    std::function<void()> onFault;
  };

  // Collective; every rank gives its device. Pairs of ranks reach each other's memory directly, or through pinned
  // memory of the host, by mapped or by posted links.
  static Result<std::unique_ptr<GpuRank>> connect(links::Membership& membership, const Wishes& wishes);
  ~GpuRank();

  const executor::cuda::Gpu& gpu() const { return *gpu_; }
  // What lies on the device, and launches.
  executor::cuda::Engine& engine() const { return *engine_; }
  // How this rank's device reaches the others' memory; windows are made with it.
  links::Peers& peers() const { return *direct_; }
  // As the planner sees it, but for the hosts; the same on all ranks.
  planner::Machine machine() const;
  // Of each rank, the least one that it reaches by mapped links, itself included: their GPUs are of one host.
  const std::vector<int>& leaders() const { return leaders_; }
  // The transports in use: "p2p", "p2p+tcp", or "self" with one rank.
  std::string transportNames() const;
  int messageChannels() const { return layout_.messageChannels; }  // that a message may use
  // Whether the range is memory of this rank's device; why not, in the words of the caller's argument.
  Status checkBuffer(const char* name, const void* buffer, std::uint64_t bytes) const;
  // Unique for the allocation in which the address lies, over the life of the process; 0: none.
  std::uint64_t allocationId(const void* address) const;
  // Why a kernel gave up, or that a request of one could not be carried out.
  std::optional<device::Fault> fault() const;
  // Why the posted link to a peer was lost.
  Status lossOf(int peer) const { return proxy_ != nullptr ? proxy_->lossOf(peer) : Status(); }
  // Its kernels end, and nothing is launched any more: others may have the blocks, a communicator of the survivors
  // above all.
  void stop();
  // Tells the others' kernels, when this rank's own have ended, that there will be no more of them.
  void leave();
  // Ends the thread that calls onFault. Nothing is enqueued any more; with `failed` nothing that was sent need arrive
  // either.
  void close(bool failed);
  // Gives up memory that kernels have used, after they have been drained. A kernel whose end the driver cannot tell may
  // still use it: then it stays until the last communicator of the process on this device has gone.
  void release(std::shared_ptr<const void> used);

 private:
  GpuRank(links::Membership& membership, const Wishes& wishes) : membership_(membership), wishes_(wishes) {}
  // The steps of connect().
  Status greet();
  Status takeBlocks();
  Status connectArenas();
  Status proveLinks();
  Status connectThroughHost();
  Status findLeaders();
  Status makeEngine();
  void startProxy();

  Result<links::Given> makeArena();
  Result<executor::cuda::Engine::Pair> pairWith(int peer) const;
  std::string whyNotResident(bool sharesContext);
  bool isPosted(int peer) const { return hostPath_ != nullptr && hostPath_->isPosted(peer); }
  bool posts() const { return hostPath_ != nullptr && hostPath_->posts(); }

  links::Membership& membership_;
  const Wishes wishes_;
  std::shared_ptr<executor::cuda::Gpu> gpu_;
  std::unique_ptr<GpuCensus> census_;
  std::atomic<int> taken_{0};  // blocks of the device
  executor::cuda::ArenaLayout layout_;
  std::shared_ptr<memory::DeviceMemory> arena_;
  std::unique_ptr<links::Peers> direct_;
  std::vector<std::string> reached_;  // by rank, '0' or '1' for each peer: whether directly
  bool allDirect_ = false;
  std::unique_ptr<GpuHostPath> hostPath_;  // where there are pairs without a direct way
  std::vector<int> leaders_;
  bool mapsHost_ = false;  // some pair maps memory of the host, because nothing better reaches it
  bool hasResidentStream_ = false;
  std::unique_ptr<executor::cuda::Engine> engine_;
  std::unique_ptr<Proxy> proxy_;  // where links are posted
};

}  // namespace kolo::gpu
