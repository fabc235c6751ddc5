// What the suites of the GPU share. Tests of the mock run on mocked GPUs always; tests of devices run on those too,
// unless KOLO_TEST_GPU says which GPU of this machine to use. Its memory is not the host's: what tests look at is
// copied.
//
// Thread safety: a Ranks belongs to the test's thread, everything else to whichever uses it.
#pragma once

#include <kolo/kolo.h>

#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "drivers/cuda/driver.h"
#include "mock_cuda/cuda_for_tests.h"
#include "mock_cuda/device_memory.h"
#include "mock_cuda/mock_cuda.h"
#include "support/ranks.h"
#include "support/settings_scope.h"
#include "support/watchdog.h"

namespace kolo::test {

// What is not to hang, and takes milliseconds, has ended after this.
inline constexpr std::chrono::seconds kSoon{8 * kSlowness};

// KOLO_TEST_GPU.
bool hasRealDevice();
// That one, or the first of the mock.
int testDevice();
// For so many ranks.
std::vector<int> oneDevice(int ranks);

const drivers::CudaDriver& driver();
// Ends the process, in words, if a call of the driver has failed.
void mustSucceed(CUresult result, const char* what);
#define CUDA_OK(call) ::kolo::test::mustSucceed((call), KOLO_HERE ": " #call)

// A mock on which each rank has two blocks to itself.
inline MockCuda mockFor(int ranks, bool resident = false) {
  return {.multiprocessors = ranks * (resident ? 6 : 2), .blockThreads = 2};
}

// Mocked GPUs, whatever this machine has; REQUIRES: a test with the tag [mock].
class MockScene {
 public:
  explicit MockScene(const MockCuda& mock = {}) { mock.install(); }
  ~MockScene();
  MockScene(const MockScene&) = delete;
};

// The GPU to test on; where it is mocked, with these properties.
class DeviceScene {
 public:
  explicit DeviceScene(const MockCuda& mock = {});

 private:
  std::unique_ptr<MockScene> mocked_;
};

// Ints in a device's memory.
class DeviceInts {
 public:
  DeviceInts(int device, void* memory, std::size_t count)
      : device_(device), data_(static_cast<int*>(memory)), count_(count) {}

  int* data() const { return data_; }
  void write(const std::vector<int>& values, std::size_t at = 0) const;
  void write(int value, std::size_t at = 0) const { write(std::vector<int>{value}, at); }
  void fill(int value) const { write(std::vector<int>(count_, value)); }
  std::vector<int> read(std::size_t at, std::size_t count) const;
  std::vector<int> read() const { return read(0, count_); }
  int read(std::size_t at) const { return read(at, 1).front(); }

 private:
  int device_;
  int* data_;
  std::size_t count_;
};

// Of its own memory, from cuMemAlloc.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t ints, int device = testDevice())
      : memory_(device, ints * sizeof(int)), ints_(device, memory_.data(), ints) {}
  const DeviceInts* operator->() const { return &ints_; }
  int* data() const { return ints_.data(); }

 private:
  DeviceMemory memory_;
  DeviceInts ints_;
};

// Does not wait for other streams: ranks that share a device need such.
class CudaStream {
 public:
  explicit CudaStream(int device = testDevice(), unsigned flags = CU_STREAM_NON_BLOCKING);
  ~CudaStream() { destroy(); }
  CudaStream(const CudaStream&) = delete;

  CUstream raw() const { return stream_; }
  koloStream_t get() const { return reinterpret_cast<koloStream_t>(stream_); }
  // Also when what runs in it has given up: that is told by the communicator.
  void synchronize() const;
  void destroy();

 private:
  int device_;
  CUstream stream_ = nullptr;
};

// A graph of what `body` enqueues on the stream.
class Graph {
 public:
  Graph(const CudaStream& stream, const std::function<void()>& body,
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL);
  ~Graph();
  Graph(const Graph&) = delete;
  void launch(const CudaStream& stream) const;

 private:
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

struct RanksOptions {
  int timeoutMs = 20000 * kSlowness;
  const char* transports = "";
  std::vector<const char*> transportsOf;  // by rank, instead; empty: the same for all
  int resident = KOLO_CONFIG_UNDEF_INT;   // as koloConfig_t's
  bool mayFail = false;                   // the test looks at the results
};

// Ranks that are threads of this process, rank r on device devices[r].
class Ranks {
 public:
  explicit Ranks(const std::vector<int>& devices, const RanksOptions& options = {});
  ~Ranks();
  Ranks(const Ranks&) = delete;

  int size() const { return static_cast<int>(comms.size()); }
  koloComm_t operator[](int rank) const { return comms[static_cast<std::size_t>(rank)]; }
  // Calls body(self) on a thread for each rank, and asserts that none has found a fault.
  void run(const std::function<void(Self&)>& body) const {
    const FreeingLater later;
    runOn(comms, body);
  }
  // In run(): returns when all ranks have called it. Around what may wait for the device, and so for the other ranks'
  // kernels.
  void together() { barrier_.arrive_and_wait(); }

  std::vector<koloComm_t> comms;
  std::vector<koloResult_t> results;  // of their making
  std::vector<std::string> messages;

 private:
  void each(const std::function<void(std::size_t)>& body) const;

  std::barrier<> barrier_;
};

// The error that a communicator has failed with, or is going to hear of from another rank; koloSuccess if there is none
// for long.
koloResult_t errorHeard(koloComm_t comm);

// What is written to standard error while body() runs. Call from the main thread.
std::string writtenBy(const std::function<void()>& body);

// Calls function while the test's time for what is not to hang runs; false if it took longer.
bool endsSoon(const std::function<void()>& function);

}  // namespace kolo::test
