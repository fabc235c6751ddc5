// The order of a rank's launches over streams, captures and graphs, and how far the rank is ahead of its device.
//
// Thread safety: under the communicator's turn; broken() from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/atomics.h"
#include "drivers/cuda/driver.h"
#include "executor/cuda/gpu.h"

namespace kolo::executor::cuda {

class LaunchOrder {
 public:
  // Where a launch goes: into a stream, or into the graph that the stream captures.
  struct Capture {
    bool active = false;
    std::uint64_t id = 0;
    CUgraph graph = nullptr;
    unsigned long long stream = 0;  // id
  };

  // countsGraphs: the end of graphs that have launches matters.
  LaunchOrder(std::shared_ptr<Gpu> gpu, bool countsGraphs) : gpu_(std::move(gpu)), countsGraphs_(countsGraphs) {}
  LaunchOrder(const LaunchOrder&) = delete;
  ~LaunchOrder();
  Status allocate();

  Result<Capture> captureOf(CUstream stream) const;
  // Whether the stream's own order is enough for what is not captured: it comes after the last launch, or there was
  // none.
  bool isInOrder(const Capture& capture) const;
  // Whether the last launch has ended.
  bool isOver() const { return gpu_->driver().cuEventQuery(last_) == CUDA_SUCCESS; }
  // The number of the next launch that is not captured; and of one that has ended, and all before it.
  std::uint64_t next() const { return passed_ + 1; }
  std::uint64_t lastEnded() const;

  // Before a launch that is not captured: waits until the rank is not too far ahead of its device, or `stop` is set.
  Status awaitMilestone(const device::Counter& stop) const;
  // Around what is launched: it comes after all launches before, and before all to come.
  Status begin(CUstream stream, const Capture& capture);
  Status end(CUstream stream, const Capture& capture);

  // Engine's functions of the same names.
  bool mayRunUnseen() const { return unrecorded_ != 0; }
  Status broken() const;
  Status drain() const;
  // Whether no kernel of this rank's runs any more, nor will.
  bool hasEnded() const;

 private:
  // The last launch in a capture, inside of it.
  struct CapturedLaunch {
    std::uint64_t capture = 0;  // id
    CUevent event = nullptr;
    CUgraphNode record = nullptr;  // of last_, behind it
  };
  static constexpr std::size_t kMostCaptures = 16;  // that may be interleaved: nobody tells when one has ended

  bool mayReplay() const;
  Status countGraph(CUgraph graph);
  const CapturedLaunch* lastIn(const Capture& capture) const;
  Status setLastIn(const Capture& capture, CUstream stream, CUgraphNode record);
  Result<CUgraphNode> addRecord(const Capture& capture, CUstream stream) const;
  Status record(CUstream stream, const Capture& capture);
  Status passMilestone(CUstream stream);

  std::shared_ptr<Gpu> gpu_;
  bool countsGraphs_;
  CUevent last_ = nullptr;                // after the last launch, or replay of one
  std::vector<CapturedLaunch> captures_;  // the one with the newest launch first; those that have ended among them
  unsigned long long lastStream_ = 0;     // its id: handles are used again
  std::atomic<bool> launched_{false};
  bool captured_ = false;                     // replays may come at any time, or may have come
  std::shared_ptr<std::atomic<int>> graphs_;  // those that there are with launches, if they are counted
  bool replaysAreOver_ = false;               // the next plain launch comes after all replays that there will have been
  bool orderedSince_ = false;                 // such a one has come
  int unrecorded_ = 0;                        // launches behind which last_ was not recorded

  // The driver lets a thread that finds a full queue (about 1,024 entries; a launch takes up to three, and a program's
  // own kernels stand between) wait with the context's lock: a rank of the same process could not launch what is waited
  // for. So the engine waits before that, without any lock.
  static constexpr std::uint64_t kMilestone = 32;  // launches
  static constexpr std::size_t kMilestones = 3;    // that may lie ahead: 127 launches at most
  static_assert((kMilestones + 1) * kMilestone <= kResidentPlaces, "a resident kernel has a place for each launch");
  std::array<CUevent, kMilestones> milestones_{};  // after launch 32 m, in place m % 3
  std::uint64_t passed_ = 0;                       // launches, but for captured ones
};

}  // namespace kolo::executor::cuda
