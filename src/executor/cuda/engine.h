// One rank's GPU side: what lies on its device between launches, and the launch itself, by a kernel of its own or by
// the resident one.
//
// Thread safety: enqueue() and setWindow() under the communicator's turn; fault(), broken() and stop() from any thread.
// Invariants: between two launches nothing is freed or waited for, because the kernels of other ranks may be waiting
// for this thread's next launch; what has to grow grows beside what it was. setWindow(), in which all ranks are, waits.
// Nor does the end of an Engine wait for others' kernels: what it gives back is kept by the Gpu.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "drivers/cuda/driver.h"
#include "executor/cuda/gpu.h"
#include "executor/cuda/launch_order.h"
#include "executor/cuda/lists.h"
#include "executor/cuda/resident.h"
#include "executor/cuda/tables.h"
#include "memory/device_memory.h"

namespace kolo::executor::cuda {

// Blocks of the resident kernel: one for each part of what is small enough to be worth it.
inline constexpr int kResidentBlocks = 4;

// Where things are in the memory that a rank gives to its peers; the same on all ranks: one part for each peer, which
// it alone writes, in one piece, for a posted link mirrors it. A lane is what a block and those of its number on the
// other ranks have for themselves: one for each channel, then one for each channel of messages.
struct ArenaLayout {
  int ranks = 1;
  int channels = 1;
  int messageChannels = 1;
  std::uint32_t slots = 4;
  std::uint32_t slotBytes = 1 << 17;
  // Of data, in a buffer of packets: twice what a channel has of an operation that has as many channels as it can use
  // (planner::kLeastPartBytes). Lanes of messages have none.
  static constexpr std::uint64_t kPacketBytes = 16 << 10;

  int lanes() const { return channels + messageChannels; }
  std::uint64_t partBytes() const { return packetsIn(channels); }
  std::uint64_t partAt(int peer) const { return partBytes() * static_cast<std::uint64_t>(peer); }
  std::uint64_t bytes() const { return partAt(ranks); }
  // In a part:
  std::uint64_t mailboxIn(int lane) const { return sizeof(device::Mailbox) * static_cast<std::uint64_t>(lane); }
  std::uint64_t trialIn() const { return mailboxIn(lanes()); }  // 64 bytes, to prove a link by
  std::uint64_t leftIn() const { return trialIn() + 64; }       // a counter that the peer sets when it goes [gone]
  std::uint64_t gaveUpIn() const { return leftIn() + sizeof(device::Counter); }  // and when it gives up [gave up]
  std::uint64_t slotsIn(int lane) const;
  std::uint64_t packetsIn(int channel) const;  // the buffers, then what has been unpacked

  // Makes slots smaller, and then channels fewer, until the arena has at most so many bytes, or nothing is left to
  // save.
  void shrinkTo(std::uint64_t mostBytes);
};

class Engine {
 public:
  struct Setup {
    int rank = 0;
    int ranks = 1;
    ArenaLayout layout;
    std::uint32_t windows = 0;   // windows that there can be
    bool sharesContext = false;  // with another rank, a thread of this process
    bool resident = false;       // small launches go to a kernel of kResidentBlocks that stays for idleNs
    // What stands before an operation in its stream can run beside that kernel: the program says so.
    bool residentFollows = false;
    std::uint64_t idleNs = 0;
    // Where links are posted: told before each launch, whose blocks will write requests until they have ended it.
    // again: a graph may launch it at any time from now on.
    std::function<void(unsigned blocks, bool again)> beforeLaunch;
  };
  // Where a pair of ranks writes: `mine` is the peer's part of this rank's arena, `theirs` this rank's part of the
  // peer's, or the mirror of it, as this device sees them.
  struct Pair {
    unsigned char* mine = nullptr;
    unsigned char* theirs = nullptr;
    unsigned char* left = nullptr;  // the word by which this rank is told that the peer has gone
    bool isPosted = false;
    std::uint32_t rails = 1;
  };

  static Result<std::unique_ptr<Engine>> create(const std::shared_ptr<Gpu>& gpu, const Setup& setup);
  ~Engine();

  // Pairs by rank. Before the first launch.
  Status connect(std::span<const Pair> pairs);
  // Begin of a rank's part of a window.
  Status setWindow(int rank, std::uint32_t index, const device::WindowPart& part);

  // The requests of posted links, by channel; for one thread of the host. Empty without Setup::beforeLaunch.
  std::span<device::PostRing> rings() const {
    return {rings_, rings_ != nullptr ? static_cast<std::size_t>(setup_.layout.channels) : 0};
  }
  // there: where kernels find the grid, as long as the engine lives. Before the first launch of an operation over it.
  Status lendGrid(const device::Grid& grid, const device::Grid*& there);
  Status setOrder(const std::vector<int>& ranks);
  const int* order() const { return order_.as<int>(); }

  // Scratch memory, of all channels together.
  Status reserveScratch(std::uint64_t bytes);

  // Points the description of an operation over a list at a table that kernels read. table: what an earlier call for
  // the same list has made, or null, and then it is made. edgesAt: as device::Segments says.
  Status place(device::Work& work, std::uint64_t edgesAt, std::shared_ptr<Table>& table);

  // Whether operations may go to the stream. Changes nothing.
  Status checkStream(CUstream stream) const;
  // Completes the descriptions with what lies on the device, and launches them as one kernel in the stream's order,
  // after what was enqueued before on any stream. The first `messages` are messages. tables: those at which place() has
  // pointed descriptions. In a stream that captures, the launch becomes part of the graph.
  Status enqueue(std::span<device::Work> works, std::uint32_t messages, const HeldTables& tables,
                 std::uint64_t timeoutNs, CUstream stream);

  // Why a block gave up, and in which operation of its channel; the first of this rank's life.
  std::optional<device::Fault> fault() const;
  // What the driver says that went wrong on the device since: success, or an error that ends the context.
  Status broken() const { return launches_.broken(); }
  // Makes all blocks give up, and enqueue() if it waits.
  void stop();
  // Returns when everything enqueued has ended, but for what mayRunUnseen().
  Status drain() { return launches_.drain(); }
  // Whether there was a launch behind which no event could be recorded: nobody can say when it has ended. The
  // communicator has failed.
  bool mayRunUnseen() const { return launches_.mayRunUnseen(); }

 private:
  Engine(std::shared_ptr<Gpu> gpu, const Setup& setup)
      : gpu_(std::move(gpu)), setup_(setup), lists_(gpu_), tables_(gpu_), launches_(gpu_, setup.residentFollows) {}
  Status allocate();
  Status allocateRings();
  Result<void*> lendPinned(std::uint64_t bytes);
  void complete(device::Work& work, bool isMessage) const;
  Status describe(std::span<device::Work> works, std::uint32_t messages, std::uint64_t timeoutNs,
                  std::size_t mostInline, LaunchParams& params, Lists::List** list);
  Status hold(const HeldTables& tables, const LaunchOrder::Capture& capture);
  bool goesToResident(const LaunchParams& params, unsigned blocks, const LaunchOrder::Capture& capture,
                      CUstream stream) const;
  Status ring(const LaunchParams& params, CUstream stream);

  std::shared_ptr<Gpu> gpu_;
  Setup setup_;
  Lent links_;               // device::Link [lanes][ranks]
  Lent channels_;            // ChannelState [channels]
  Lent windows_;             // WindowPart [ranks][windows]
  Lent posts_;               // device::PostBox [channels]
  Lent order_;               // the ranks in the order of rings
  std::vector<Lent> grids_;  // of each device::Grid the lines behind it, their members and the ranks
  device::PostRing* rings_ = nullptr;
  Lent scratch_;
  std::vector<Lent> outgrown_;  // scratch memory of before, which launches of before may use
  std::vector<Lent> pinned_;    // what is pointed to below
  Control* control_ = nullptr;
  Lists lists_;
  Tables tables_;
  LaunchOrder launches_;

  struct ResidentKernel {
    Lent memory;  // Resident
    LaunchParams* places = nullptr;
    CUstream stream = nullptr;
    std::uint64_t given = 0;  // launches
    std::uint64_t instances = 0;
  } resident_;
};

}  // namespace kolo::executor::cuda
