// A device whose primary context is in use: its kernels, what it lends of its memory, and how a thread comes into its
// context.
//
// Thread safety: all functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "drivers/cuda/driver.h"
#include "executor/cuda/resident.h"
#include "memory/device_memory.h"

namespace kolo::executor::cuda {

class Gpu;

// Memory that a Gpu lends; it goes back with the object. Movable; not copyable.
class Lent {
 public:
  // kMapped: of the device too, where it can be by the virtual memory API, for which the driver waits for no kernel,
  // and in large pieces. kHost: pinned, at the same address for the device.
  enum class Where { kDevice, kMapped, kHost };

  Lent() = default;
  Lent(Lent&& other) noexcept { *this = static_cast<Lent&&>(other); }
  Lent& operator=(Lent&& other) noexcept;
  ~Lent();

  template <class T = unsigned char>
  T* as() const {
    return reinterpret_cast<T*>(begin_);
  }
  std::uint64_t bytes() const { return bytes_; }
  // It may still be in use when it goes back: nobody gets it as long as the Gpu lives.
  void setMayStayInUse() { mayStayInUse_ = true; }

 private:
  friend class Gpu;
  std::shared_ptr<Gpu> gpu_;
  bool mayStayInUse_ = false;
  Where where_ = Where::kDevice;
  std::uint64_t bytes_ = 0;
  unsigned char* begin_ = nullptr;
};

// A device whose primary context is in use, with the kernels loaded into it. One for each device, as long as anybody
// needs it.
class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  // REQUIRES: assemble() before the device is used, if it must.
  static Result<std::shared_ptr<Gpu>> open(int ordinal);
  ~Gpu();

  // Whether the library has no machine code for the device, so that its driver has to assemble the kernels. That takes
  // minutes at the first use of a machine, which the other ranks have to know before.
  bool mustAssemble() const { return !isReady_.load(std::memory_order_acquire); }  // [ready]
  // Returns when the kernels are there. Thread-safe: one thread has the driver assemble them, and others wait for that.
  Status assemble();

  const drivers::CudaDriver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  CUcontext context() const { return context_; }
  // A launch of what `params` describes. REQUIRES: the context.
  Status launch(const LaunchParams& params, unsigned blocks, CUstream stream) const;
  // As launch(), where some operations are over lists of items. REQUIRES: they are apart, or kFewWorks at most.
  Status launchLists(const LaunchParams& params, unsigned blocks, CUstream stream) const;
  // The resident kernel. REQUIRES: the context.
  Status launchResident(const ServeParams& serve, unsigned blocks, CUstream stream) const;
  // 0: the driver does not tell.
  struct Description {
    CUuuid uuid{};
    double memoryGBps = 0;  // reads and writes together, as the hardware's clock and width say
    double cacheBytes = 0;  // of L2
  };
  const Description& description() const { return description_; }
  // Whether kernels of several processes may run on it side by side (MPS), instead of in turns.
  bool isSharedByProcesses() const { return mps_; }

  // Whether streams can ring a resident kernel's doorbell, and wait for its count.
  bool canRing() const { return canRing_; }
  // Whether a launch returns only when the kernel has ended, because of CUDA_LAUNCH_BLOCKING or a tool that has kernels
  // run one after the other.
  bool launchesBlock() const { return launchesBlock_; }

  // Blocks of the kernels that are resident at once when nothing else runs.
  int residentBlocks() const { return residentBlocks_; }
  // The resident blocks that no communicator has taken. All blocks that wait for each other must be resident together,
  // also those of several communicators: so each communicator takes some when it is made. Thread-safe.
  int freeBlocks() const { return residentBlocks_ - taken_.load(std::memory_order_relaxed); }
  // Takes up to `wanted`; how many it got.
  int take(int wanted);
  void giveBack(int blocks) { taken_.fetch_sub(blocks, std::memory_order_relaxed); }

  // Reserves two queues of the hardware for a resident kernel: its stream takes one, and the stream of the program that
  // rings it another. Returns whether there are two: streams that share a queue may wait for each other.
  bool takeResidentStream();
  void giveBackResidentStream() { residentStreams_.fetch_sub(1, std::memory_order_relaxed); }

  // At least so many bytes, not zeroed, for a communicator's own purposes. Memory that comes back is kept for the next
  // call that asks for as much: the driver frees memory when all kernels have ended, and those of another communicator
  // may wait for what this thread launches next. Thread-safe.
  Result<Lent> lend(Lent::Where where, std::uint64_t bytes);
  // Keeps what a kernel may still use as long as the Gpu lives; what came first goes first. Thread-safe.
  void keep(std::shared_ptr<const void> memory);

  // Zeroes, or copies; done when it returns, and not waiting for any kernel: others may be waiting for this thread.
  Status clear(CUdeviceptr to, std::uint64_t bytes) const;
  Status upload(CUdeviceptr to, const void* from, std::uint64_t bytes) const;
  // A line of 64 bytes, by a kernel: the driver's copies may take another way than kernels do, through the host's
  // memory even. Both are memory of devices, or lent of the host.
  Status moveLine(void* to, const void* from) const;

  // A thread's visit: the device's context is the thread's for a scope. Inside of a visit another one is free, so that
  // a call of the library with many steps switches once; and what the driver says of a buffer or a stream it is asked
  // once, for the caller cannot free either meanwhile. REQUIRES: what is called in the scope leaves the thread's stack
  // of contexts as it was.
  class Visit {
   public:
    explicit Visit(const Gpu& gpu) : gpu_(gpu), before_(gpu.enter()) {}
    ~Visit() { gpu_.leave(before_); }
    Visit(const Visit&) = delete;

   private:
    const Gpu& gpu_;
    const Gpu* const before_;
  };
  // A visit in two halves: leave() is given what enter() returned.
  const Gpu* enter() const;
  void leave(const Gpu* before) const;

  // A visit in which calls are allowed that a capture elsewhere in the thread forbids: what they are made for is not
  // part of it. The driver forbids what may wait (allocating, freeing, asking events and streams how far they are), not
  // launches.
  class Current {
   public:
    explicit Current(const Gpu& gpu) : visit_(gpu), driver_(gpu.driver_), wasRelaxed_(relax(gpu.driver_, mode_)) {}
    ~Current() { restore(driver_, mode_, wasRelaxed_); }
    Current(const Current&) = delete;

   private:
    static bool relax(const drivers::CudaDriver& driver, CUstreamCaptureMode& mode);
    static void restore(const drivers::CudaDriver& driver, CUstreamCaptureMode mode, bool wasRelaxed);

    const Visit visit_;
    const drivers::CudaDriver& driver_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool wasRelaxed_;
  };

  // What the driver knows about the memory at an address.
  struct Allocation {
    unsigned type = 0;          // CUmemorytype; 0: unknown to the driver
    int ordinal = -1;           // of the device
    unsigned long long id = 0;  // of the allocation, another for each over the life of the process
  };
  Result<Allocation> allocationAt(const void* address) const;

  // Unlike its handle, never used again. What else there is to know of a stream never changes, and so is kept by its
  // id.
  Result<unsigned long long> idOf(CUstream stream) const;
  Result<CUcontext> contextOf(CUstream stream) const;
  Result<unsigned> flagsOf(CUstream stream) const;

 private:
  friend class Lent;
  Result<unsigned char*> allocate(Lent::Where where, std::uint64_t bytes);
  void free(Lent::Where where, unsigned char* memory) const;
  Gpu(const drivers::CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  void takeBack(const Lent& lent);
  Status load();
  Status prepare();
  std::string howToHaveKernels() const;
  Status noKernels(CUresult code) const;
  int attribute(CUdevice_attribute which, int unknown) const;
  Status launch(const LaunchParams& params, const ServeParams& serve, unsigned blocks, CUstream stream) const;
  Status launchFew(CUfunction kernel, const LaunchParams& params, unsigned blocks, CUstream stream) const;
  Status launchKernel(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream, void** arguments) const;
  Status tryKernels();
  Status tryLaunches(Control& control, ServeParams serve);

  const drivers::CudaDriver& driver_;
  int ordinal_;
  CUdevice device_ = 0;
  Description description_;
  bool mps_ = false;
  bool canRing_ = false;
  bool hasDomains_ = false;  // of memory synchronisation
  bool launchesBlock_ = false;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction runFew_ = nullptr, runBlocks_ = nullptr, runLists_ = nullptr, moveLine_ = nullptr;
  CUstream copies_ = nullptr;  // apart from all others
  int residentBlocks_ = 0;
  std::atomic<int> taken_{0}, residentStreams_{0};
  std::atomic<bool> isReady_{false};  // [ready] all above, but for what is taken
  std::optional<Status> assembled_;   // what came of it, for the threads that come later
  std::mutex mutex_;                  // of what follows
  std::map<std::pair<Lent::Where, std::uint64_t>, std::vector<unsigned char*>>
      idle_;                                                        // what was lent and came back, by its bytes
  std::vector<std::pair<Lent::Where, unsigned char*>> stillInUse_;  // what came back and is lent no more
  std::vector<memory::DeviceMemory> mapped_;                        // all that is mapped
  std::vector<std::shared_ptr<const void>> kept_;
};

}  // namespace kolo::executor::cuda
