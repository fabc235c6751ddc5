// The lists of operations of launches that do not fit a kernel's parameters, and what their v-variants point to.
//
// Thread safety: under the communicator's turn.
// Invariants: pinned memory is allocated by allocate() alone, since the driver may wait for kernels, and they for what
// this thread launches next. What is needed beyond that is mapped memory of the device, for which it waits for none.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/work.h"
#include "drivers/cuda/driver.h"
#include "executor/cuda/gpu.h"

namespace kolo::executor::cuda {

class Lists {
 public:
  struct List {
    unsigned char* begin = nullptr;
    bool isOnDevice = false;
    CUevent used = nullptr;                      // to be recorded after a launch from it that is not captured
    std::shared_ptr<std::atomic<bool>> inGraph;  // until the graph that launches from it is gone

    const device::Work* works() const { return reinterpret_cast<const device::Work*>(begin); }
  };

  explicit Lists(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  Lists(const Lists&) = delete;
  ~Lists();

  Status allocate();
  // Bytes of the arrays that a v-variant's description points to.
  static std::uint64_t arrayBytes(const device::Work& work);
  // One of at least so many bytes, whose last launch has ended and that no graph launches from.
  Result<List*> take(std::uint64_t bytes);
  // The descriptions, and behind them the arrays that they point to; `bytes` of both.
  Status put(std::span<device::Work> works, std::uint64_t bytes, const List& list) const;
  // The launch becomes part of the graph.
  Status keepForGraph(List& list, CUgraph graph);
  // Kernels may use them when this object has gone.
  void setMayStayInUse();

 private:
  // The lists of one length. They are used in turn, and launches end in their order: so the next is free before the
  // others.
  struct Shelf {
    std::vector<std::unique_ptr<List>> lists;
    std::size_t next = 0;
  };
  Status add(Lent memory, std::uint64_t bytes, bool areOnDevice);
  List* freeOf(Shelf& shelf) const;

  std::shared_ptr<Gpu> gpu_;
  std::vector<Lent> memory_;
  std::map<std::uint64_t, Shelf> shelves_;  // by the bytes of a list
};

// Calls `tell` when the graph, and all that was made of it, is gone; it may call nothing of CUDA.
Status tellWhenGone(const drivers::CudaDriver& driver, CUgraph graph, std::function<void()> tell);

}  // namespace kolo::executor::cuda
