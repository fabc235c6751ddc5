// A rank of a communicator whose buffers lie in a GPU's memory: what it has beside the host's side, and how its
// operations get onto a CUDA stream.
//
// Thread safety: stop(), fault(), broken() and checkBuffer() from any thread; the rest under the communicator's turn.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/work.h"
#include "links/peers.h"
#include "planner/planner.h"

namespace kolo::executor::cuda {
struct Table;
}

namespace kolo::gpu {

// Of lists of items, in the memory of a rank's device; null: not made yet.
using Table = std::shared_ptr<executor::cuda::Table>;

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

  virtual ~GpuRank() = default;

  // Collective; every rank gives its device. Pairs of ranks reach each other's memory directly, or through pinned
  // memory of the host, by mapped or by posted links.
  static Result<std::unique_ptr<GpuRank>> connect(links::Membership& membership, const Wishes& wishes);

  // How this rank's device reaches the others' memory; windows are made with it.
  virtual links::Peers& peers() const = 0;
  // As the planner sees it, but for the hosts; the same on all ranks.
  virtual planner::Machine machine() const = 0;
  // Of each rank, the least one that it reaches by mapped links, itself included: their GPUs are of one host.
  virtual const std::vector<int>& leaders() const = 0;
  // In which order rings go; order() is where kernels find it, null if it was never set.
  virtual Status setOrder(const std::vector<int>& ranks) = 0;
  virtual const int* order() const = 0;
  // The shape of the hosts, for hierarchical operations. Before the first of them, whose descriptions are given
  // hosts().
  virtual Status setHosts(const device::Hosts& hosts) = 0;
  virtual const device::Hosts* hosts() const = 0;
  // The shape of a mesh, for operations along its axes. Before the first of them, whose descriptions are given mesh().
  virtual Status setMesh(const device::Mesh& mesh) = 0;
  virtual const device::Mesh* mesh() const = 0;
  // The transports in use: "p2p", "p2p+tcp", or "self" with one rank.
  virtual std::string transportNames() const = 0;
  virtual int messageChannels() const = 0;  // that a message may use
  // Collective: a rank's part of a window.
  virtual Status setWindow(int rank, std::uint32_t index, const device::WindowPart& part) = 0;
  // Scratch memory, of all channels together.
  virtual Status reserveScratch(std::uint64_t bytes) = 0;
  // Points the description of an operation over a list at a table in the device's memory: that which an earlier call
  // for the same list has made, or a new one, which is uploaded. edgesAt: as device::Segments says.
  virtual Status place(device::Work& work, std::uint64_t edgesAt, Table& table) = 0;
  // Whether the range is memory of this rank's device; why not, in the words of the caller's argument.
  virtual Status checkBuffer(const char* name, const void* buffer, std::uint64_t bytes) const = 0;
  // Unique for the allocation in which the address lies, over the life of the process; 0: none.
  virtual std::uint64_t allocationId(const void* address) const = 0;
  // stream: a CUstream.
  virtual Status checkStream(void* stream) const = 0;
  // The first `messages` of the works are messages. tables: those of works over lists.
  virtual Status enqueue(std::span<device::Work> works, std::uint32_t messages, const std::vector<Table>& tables,
                         int timeoutMs, void* stream) = 0;
  // Why a kernel gave up, or that a request of one could not be carried out.
  virtual std::optional<device::Fault> fault() const = 0;
  // Why the posted link to a peer was lost.
  virtual Status lossOf(int peer) const = 0;
  // An error of the device's own: an illegal address in anybody's kernel, say.
  virtual Status broken() const = 0;
  virtual void stop() = 0;
  // Tells the others' kernels, when this rank's own have ended, that there will be no more of them.
  virtual void leave() = 0;
  // Ends the thread that calls onFault. Nothing is enqueued any more; with `failed` nothing that was sent need arrive
  // either.
  virtual void close(bool failed) = 0;
  virtual Status drain() = 0;
  // Gives up memory that kernels have used, after drain(). A kernel whose end the driver cannot tell may still use it:
  // then it stays until the last communicator of the process on this device has gone.
  virtual void release(std::shared_ptr<const void> used) = 0;

  // enter() makes the device's context the calling thread's, and returns the one before; exit() restores that. Calls
  // between them switch no more.
  virtual const void* enter() const = 0;
  virtual void exit(const void* before) const = 0;
};

}  // namespace kolo::gpu
