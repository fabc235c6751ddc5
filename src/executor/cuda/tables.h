// The tables of lists of items (device::Segments, and the lengths of the ranks' blocks) in the memory of a device: each
// is uploaded once, and every launch that repeats the list reads it there.
//
// Thread safety: under the communicator's turn.
// Invariants: as those of Lists: all memory is mapped memory of the device, for which the driver waits for no kernel. A
// table's place is given to another one when nobody holds the table, the last launch that reads it has ended, and every
// graph that launches from it is gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/work.h"
#include "drivers/cuda/driver.h"
#include "executor/cuda/gpu.h"

namespace kolo::executor::cuda {

// One table. Its holders may launch from it.
struct Table {
  unsigned char* begin = nullptr;
  std::uint64_t lastLaunch = 0;              // that reads it and is not captured: its number
  std::uint64_t capture = 0;                 // the id of the last capture that has a launch from it
  std::shared_ptr<std::atomic<int>> graphs;  // that launch from it; null: there was none
};

using HeldTables = std::vector<std::shared_ptr<Table>>;

class Tables {
 public:
  explicit Tables(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  Tables(const Tables&) = delete;

  // Uploads what the description of a list points to. edgesAt: as device::Segments says, in this rank's scratch memory.
  // ended: the number of the last launch that is known to have ended.
  Result<std::shared_ptr<Table>> make(const device::Work& work, std::uint64_t edgesAt, std::uint64_t ended);
  // The description, of the list that the table was made of, points into the table from now on.
  static void use(const Table& table, device::Work& work);
  // A launch from the table becomes part of the graph.
  Status keepForGraph(Table& table, std::uint64_t capture, CUgraph graph) const;
  // Kernels may use them when this object has gone.
  void setMayStayInUse();

 private:
  using Shelf = std::vector<std::shared_ptr<Table>>;  // those of one length
  Result<std::shared_ptr<Table>> find(std::uint64_t bytes, std::uint64_t ended);

  std::shared_ptr<Gpu> gpu_;
  std::vector<Lent> memory_;
  std::map<std::uint64_t, Shelf> shelves_;  // by the bytes of a table
};

}  // namespace kolo::executor::cuda
