// A communicator whose ranks are threads of this process, with a registered window on each rank, and the means to see
// which algorithm really ran.
//
// Thread safety: a World belongs to the test's thread; the body given to run() is called on one thread for each rank.
#pragma once

#include <kolo/kolo.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/work.h"
#include "mock_cuda/device_memory.h"

namespace kolo::tests {

using test::CurrentDevice;
using test::DeviceMemory;

// A factor for numbers of cases and times: smaller under sanitizers.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowdown = 6;
#else
inline constexpr int kSlowdown = 1;
#endif

// From how many bytes on ordinary memory is read where it is, if the machine lets one process read another's.
inline constexpr std::size_t kSingleCopyBytes = 8192;

struct WorldOptions {
  int ranks = 2;
  bool reproducible = false;
  std::string staging = "64K";                                // KOLO_STAGING_BYTES: with 64K a slot has 4096 bytes
  std::string streaming = "4M";                               // KOLO_TEST_STREAMING_BYTES
  std::string singleCopy = std::to_string(kSingleCopyBytes);  // KOLO_SINGLE_COPY_BYTES
  std::size_t windowBytes = 8 << 20;
  std::size_t registeredBytes = SIZE_MAX;  // of that, from its begin on; 0: nothing
  bool registersFirst = false;             // rank 0 alone gives memory to the window
  int device = KOLO_HOST;                  // else: all ranks on this CUDA device, each with a stream of its own
  int latePerHost = 0;  // > 0: posted links, late ones, between groups of so many ranks (tests/plugin/late.c)
  bool inTurn = false;  // those hosts are given the ranks in turn: a host's ranks do not follow each other
  int losesAfter = 0;   // > 0: their links are lost after so many requests at most, and TCP takes over
  int connectsAll =
      1000;  // KOLO_TEST_CONNECT_ALL_RANKS of posted links: their hosts are none that can be told beforehand
  bool resident = false;   // small operations to a kernel that stays on the device
  std::string transports;  // KOLO_TRANSPORTS; "": as ever
  std::vector<int> mesh;   // not empty: made along all axes of a mesh of these lengths, by koloMeshComm
  bool isGroup = false;    // of a world in another order: by koloCommCreateGroup instead of a split
};

// A thread for each rank. They stay: a world has many short runs, and new threads would take longer than these do.
class RankThreads {
 public:
  explicit RankThreads(int ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;

  // Calls body(rank) on each. Whether all have returned in time.
  bool run(const std::function<void(int)>& body, std::chrono::milliseconds limit);

 private:
  void serve(int rank);

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* body_ = nullptr;  // null: they end
  int runs_ = 0, running_ = 0;                      // runs that have begun; ranks that have not returned
  std::vector<std::thread> threads_;
};

class World {
 public:
  explicit World(const WorldOptions& options);
  // The ranks of `parent` in another order: rank r of this is rank order[r] of the parent.
  World(World& parent, const std::vector<int>& order, const WorldOptions& options);
  ~World();
  World(const World&) = delete;

  int ranks() const { return static_cast<int>(comms_.size()); }
  koloComm_t comm(int rank) const { return comms_[static_cast<std::size_t>(rank)]; }
  bool reproducible() const { return options_.reproducible; }
  bool posts() const { return options_.latePerHost > 0; }
  bool copiesByDefault() const { return options_.singleCopy == "-1"; }  // by processor, and whether ranks share cores
  bool isMesh() const { return !options_.mesh.empty(); }
  bool isOnGpu() const { return options_.device >= 0; }
  koloStream_t stream(int rank) const { return isOnGpu() ? streams_[static_cast<std::size_t>(rank)] : nullptr; }
  // Returns when the rank's stream has done everything.
  void synchronize(int rank) const;
  std::size_t windowBytes() const { return options_.windowBytes; }
  unsigned char* window(int rank) const { return windows_[static_cast<std::size_t>(rank)]; }
  // On a GPU: the window in its memory, of which window() is the copy that tests see.
  unsigned char* deviceWindow(int rank) const { return deviceWindows_[static_cast<std::size_t>(rank)]->data(); }
  int device() const { return options_.device; }

  // Calls body(rank) on the thread of each rank and returns when all have returned. Prints state() and aborts if that
  // takes more than a minute.
  void run(const std::function<void(int)>& body, const std::function<std::string()>& state = {});

 private:
  void makeMesh();
  void openWindows();
  void openStreams();
  void closeStreams();

  WorldOptions options_;
  RankThreads threads_;
  std::vector<koloComm_t> comms_;
  std::vector<unsigned char*> windows_;
  std::vector<koloWindow_t> handles_;
  std::vector<koloStream_t> streams_;
  std::vector<std::unique_ptr<DeviceMemory>> deviceWindows_;
};

// What the last operation of the calling thread was executed by.
struct Trace {
  bool ran = false;                                         // false: one rank alone needs no executor
  device::Algorithm algorithm = device::Algorithm::kCount;  // as agreed in the headers
  bool zeroCopy = false;                                    // with some peer
  std::vector<int> order;                                   // of the ranks, if they were numbered anew
};
Trace takeTrace();

// While it lives, operations are executed by emulated blocks of this many threads; 0: by the host executor.
class UseExecutor {
 public:
  explicit UseExecutor(unsigned threads);
  ~UseExecutor();
};

}  // namespace kolo::tests
