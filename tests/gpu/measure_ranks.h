// Ranks on one GPU whose operations are timed: threads of this process, or processes of their own.
//
// Thread safety: a Rank and its Buffers belong to the thread that runs the rank's body; Meeting: all functions, by
// every rank once.
#pragma once

#include <cuda.h>
#include <kolo/kolo.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "drivers/cuda/driver.h"
#include "mock_cuda/device_memory.h"

namespace kolo::test {

const drivers::CudaDriver& driver();

// Says on stderr what was being measured and what failed, and ends the process with status 1.
[[noreturn]] void fail(const std::string& what);
void check(CUresult result, const char* what);
void check(koloResult_t result, const char* what);
void nowMeasuring(const std::string& what);  // for such messages

// Where ranks meet, be they threads or processes: lies in memory that all share. It spins, so that all leave it at
// nearly one time.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {}
  void wait();
  double most(int rank, double mine);  // of what all ranks give

 private:
  static constexpr int kMostRanks = 16;
  int ranks_;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> turn_{0};
  std::atomic<double> given_[kMostRanks] = {};
};

struct Setup {
  int device = 0;
  int ranks = 2;
  bool resident = false;
  std::chrono::milliseconds timeout{20000};  // of an operation
  std::function<void()> prepare = [] {};     // in a process of its own, before it first uses CUDA
  std::function<void()> finish = [] {};      // there, at the end
};

struct Rank {
  int number, ranks, device;
  Meeting& meeting;
  koloComm_t comm = nullptr;
  CUstream stream = nullptr;

  koloStream_t koloStream() const { return reinterpret_cast<koloStream_t>(stream); }
  void synchronize() const { check(drivers::cuda().value()->cuStreamSynchronize(stream), "cuStreamSynchronize"); }
  void expectNoError() const;
};

// Runs the body on every rank, with a communicator and a stream of its own, and returns when all have ended.
void onThreads(const Setup& setup, const std::function<void(Rank&)>& body);
// REQUIRES: this process has not used CUDA. False if a process failed; the others are then ended.
[[nodiscard]] bool onProcesses(const Setup& setup, const std::function<void(Rank&)>& body);

// One rank's two buffers: in windows, or ordinary memory without. Made and destroyed by all ranks together.
class Buffers {
 public:
  Buffers(Rank& rank, std::size_t bytes, bool registered, koloDataType_t datatype = koloFloat32);  // or bfloat16
  ~Buffers();
  Buffers(const Buffers&) = delete;

  void* send() const { return send_; }
  void* recv() const { return recv_; }
  koloDataType_t datatype() const { return datatype_; }
  std::size_t elementBytes() const { return datatype_ == koloFloat32 ? 4 : 2; }
  void spoil() const;  // recv, so that what is not written is found
  // How many of the elements looked at (the first and last of `bytes`) are not the sum of all ranks' inputs.
  int wrongSums(std::size_t bytes) const;

 private:
  void* allocate() const;
  void free(void* memory) const;
  void fill() const;

  Rank& rank_;
  std::size_t bytes_;
  bool registered_;
  koloDataType_t datatype_;
  void *send_ = nullptr, *recv_ = nullptr;
  koloWindow_t sendWindow_ = nullptr, recvWindow_ = nullptr;
};

// How operations are timed: one after the other into a stream, with one wait at the end (what a launch costs where the
// host is ahead); with a wait after each (what one waits for an operation); captured in a graph, which is replayed.
enum class Way { kStream, kWaited, kGraph };
const char* nameOf(Way way);

struct Timing {
  double us;       // of one operation by the slowest rank: the median of the rounds
  double leastUs;  // the best round
  int calls;       // in a round
};

// Collective over the ranks. As many operations as fit into the budget, in rounds that all ranks begin together. By the
// host's clock, from the first call to the end of the stream: what a caller sees, launches included. The device's
// events would leave out what the host does before the first kernel, and cannot be compared between the streams of
// ranks.
Timing timed(Rank& rank, Way way, double budgetMs, const std::function<void()>& enqueue);

}  // namespace kolo::test
