// One rank's GPU side: memory that the peers' blocks reach, the state between launches, and the launch itself.
//
// Thread safety: enqueue() and setWindow() under the communicator's turn; fault() and stop() from any thread.
// Invariants: between two launches nothing is freed or waited for, because the kernels of other ranks may be waiting for this thread's
// next launch; what has to grow grows beside what it was. setWindow(), in which all ranks are, waits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "drivers/cuda/driver.h"
#include "executor/cuda/launch_params.h"

namespace kolo::executor::cuda {

// Where things are in the memory that a rank gives to its peers; the same on all ranks.
struct ArenaLayout {
  int ranks = 1;
  int channels = 1;
  std::uint32_t slots = 4;
  std::uint32_t slotBytes = 1 << 16;

  std::uint64_t mailboxAt(int channel, int peer) const;
  std::uint64_t slotsAt(int channel, int peer) const;
  std::uint64_t bytes() const;
};

// A device whose primary context is in use, with the kernels loaded into it. One for each device, as long as anybody needs it.
class Gpu {
 public:
  static Result<std::shared_ptr<Gpu>> open(int ordinal);
  ~Gpu();

  const drivers::CudaDriver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  CUfunction kernel() const { return kernel_; }
  // Blocks of the kernel that are resident at once when nothing else runs.
  int residentBlocks() const { return residentBlocks_; }

  // Lets this device's kernels use the peer's memory, for good.
  Status reach(const Gpu& peer) const;
  // Zeroes, or copies from the host; done when it returns, and not waiting for any kernel: others may be waiting for this thread.
  Status clear(CUdeviceptr to, std::uint64_t bytes) const;
  Status copy(CUdeviceptr to, const void* from, std::uint64_t bytes) const;

  // Makes the device's context the thread's, for a scope.
  class Current {
   public:
    explicit Current(const Gpu& gpu) : gpu_(gpu) { gpu_.driver_.cuCtxPushCurrent(gpu_.context_); }
    ~Current() { gpu_.driver_.cuCtxPopCurrent(nullptr); }
    Current(const Current&) = delete;

   private:
    const Gpu& gpu_;
  };

 private:
  Gpu(const drivers::CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status load();

  const drivers::CudaDriver& driver_;
  int ordinal_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  CUstream copies_ = nullptr;   // apart from all others
  int residentBlocks_ = 0;
};

// Memory of a device, freed with the object.
class DeviceMemory {
 public:
  static Result<DeviceMemory> allocate(std::shared_ptr<Gpu> gpu, std::uint64_t bytes);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  template <class T>
  T* as() const { return reinterpret_cast<T*>(address_); }

 private:
  std::shared_ptr<Gpu> gpu_;
  CUdeviceptr address_ = 0;
};

class Engine {
 public:
  struct Setup {
    int device = 0;
    int rank = 0;
    int ranks = 1;
    int channels = 1;
    std::uint32_t windows = 0;     // windows that there can be
    bool sharesDevice = false;     // with another rank
  };

  static Result<std::unique_ptr<Engine>> create(const std::shared_ptr<Gpu>& gpu, const Setup& setup);
  ~Engine();

  const ArenaLayout& layout() const { return layout_; }
  // What the peers' blocks write to, also after this rank has nothing more to do: a receiver's last credit, say.
  const std::shared_ptr<DeviceMemory>& arena() const { return arena_; }

  // Takes hold of the arenas of all ranks, which are as many as ranks. Before the first launch.
  Status connect(std::vector<std::shared_ptr<DeviceMemory>> arenas);
  // Begin of a rank's part of a window.
  Status setWindow(int rank, std::uint32_t index, unsigned char* begin);

  // Scratch memory, of all channels together.
  Status reserveScratch(std::uint64_t bytes);

  // Completes the descriptions with what lies on the device, and launches them as one kernel in the stream's order, after what was
  // enqueued before on any stream.
  Status enqueue(std::span<device::Work> works, std::uint64_t timeoutNs, CUstream stream);

  // Why a block gave up, and in which operation of its channel; the first of this rank's life.
  std::optional<device::Fault> fault() const;
  // Makes all blocks give up.
  void stop();
  // Returns when everything enqueued has ended.
  Status drain();

 private:
  // Pinned memory for a launch that does not fit a kernel's parameters.
  struct Buffer {
    unsigned char* memory = nullptr;
    std::uint64_t bytes = 0;
    CUevent used = nullptr;
  };

  Engine(std::shared_ptr<Gpu> gpu, const Setup& setup);
  Status allocate();
  Result<Buffer*> takeBuffer(std::uint64_t bytes);
  void complete(device::Work& work) const;

  std::shared_ptr<Gpu> gpu_;
  Setup setup_;
  ArenaLayout layout_;
  std::shared_ptr<DeviceMemory> arena_;
  std::vector<std::shared_ptr<DeviceMemory>> arenas_;   // of all ranks
  DeviceMemory links_;        // device::Link [channels][ranks]
  DeviceMemory channels_;     // Channel [channels]
  DeviceMemory windows_;      // unsigned char* [ranks][windows]
  DeviceMemory scratch_;
  std::uint64_t scratchBytes_ = 0;
  std::vector<DeviceMemory> outgrown_;   // kept: freeing may wait for kernels, and they for what this thread does next
  Control* control_ = nullptr;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  CUevent last_ = nullptr;    // after the last launch outside of captures
  bool launched_ = false;
};

}  // namespace kolo::executor::cuda
