// What the files of the mock share: the state of the driver that they play.
//
// Thread safety: World::mutex guards what is not atomic or said to be constant. It may be held when a Worker's or a
// Completion's own mutex is taken, never the other way round; tasks and destructors of user objects run with none held.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "drivers/cuda/driver.h"
#include "mock_cuda/cuda_for_tests.h"
#include "mock_cuda/mock_cuda.h"
#include "mock_cuda/slices.h"

namespace kolo::test::mock {

// ---- execution (workers.cc)

using Task = std::function<void()>;
using Broken = std::atomic<CUresult>;  // CUDA_SUCCESS as long as nothing is broken

// A thread that runs tasks in their order. Of a broken device it runs none.
class Worker {
 public:
  explicit Worker(const Broken* broken);  // nullptr: never broken
  ~Worker();                              // after all tasks
  Worker(const Worker&) = delete;

  std::uint64_t enqueue(Task task);  // its number: 1, 2, ...
  bool hasFinished(std::uint64_t task);
  void synchronize(std::uint64_t task);  // with that one and those before, or until the device is broken
  void synchronize();                    // with all that was enqueued before
  std::uint64_t waiting();               // tasks that have not finished
  void awaitRoom(std::uint64_t most);    // until fewer than these are waiting, or the device is broken

 private:
  void work();
  void run(Task task);
  bool isBroken() const { return broken_ != nullptr && *broken_ != CUDA_SUCCESS; }

  const Broken* broken_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::uint64_t enqueued_ = 0, finished_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

// Something that happens once.
class Completion {
 public:
  void finish();
  bool done();
  void wait();  // or until the device is broken

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

// ---- streams, events, graphs (streams.cc, capture.cc, graphs.cc)

// Makes a task of an operation, at each of its executions; called with World::mutex held.
using Bind = std::function<Task()>;
using Nodes = std::set<std::size_t>;  // places in Graph::nodes

struct UserObject {
  std::atomic<unsigned> references;
  CUhostFn destroy;
  void* data;
};

struct Graph {
  struct Node {
    Nodes after;
    Bind bind;
    bool waits = false;    // for an external event
    bool isAdded = false;  // to the graph, beside what streams have captured: no stream has to join it
  };
  std::vector<Node> nodes;                           // a node comes after all that it depends on
  std::vector<std::shared_ptr<UserObject>> objects;  // gives back its references with the last copy of the graph
  bool capturing = true;
};

inline CUgraphNode nodeHandle(std::size_t node) { return reinterpret_cast<CUgraphNode>(node + 1); }
inline std::size_t nodeOf(CUgraphNode handle) { return reinterpret_cast<std::size_t>(handle) - 1; }

struct GraphExec {
  std::shared_ptr<const Graph> graph;
  std::shared_ptr<Completion> last;  // of the last launch: it does not run beside itself
};

struct Stream;
struct Capture {
  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream* origin = nullptr;
  std::set<Stream*> members;  // the origin and who has joined
  Graph* graph = nullptr;
  bool invalid = false, ended = false;
};

struct Stream {
  explicit Stream(int device, bool blocking, std::shared_ptr<Worker> worker)
      : device(device), blocking(blocking), worker(std::move(worker)) {}
  bool isIdle() const { return worker->hasFinished(last); }
  void synchronize() const { worker->synchronize(last); }
  const int device;      // -1: made without a context; taken for the current device's
  const bool blocking;   // waits for the legacy stream, on a real GPU
  std::uint64_t id = 0;  // unlike the handle, never used again; 0: not asked for yet
  std::shared_ptr<Capture> capture;
  Nodes frontier;                        // in a capture: what the next node depends on
  const std::shared_ptr<Worker> worker;  // the queue, which other streams may share
  std::atomic<std::uint64_t> last{0};    // its last task there
};

// One cuEventRecord: real, or in a capture and then only a place in it.
struct Record {
  Completion completion;
  std::shared_ptr<Capture> capture;
  Nodes frontier;
};

struct Event {
  int device = -1;
  std::shared_ptr<Record> last;  // nullptr: never recorded
};

// ---- memory (memory.cc, virtual_memory.cc, ipc.cc)

inline constexpr std::size_t kGranularity = 64 * 1024;
inline constexpr std::size_t kDeviceBytes = std::size_t{1} << 30;

// Memory of a device, wherever it is mapped: a file without a name, closed with the object.
struct Physical {
  ~Physical();
  int file = -1;
  std::size_t bytes = 0;
  int device = 0;
  std::uint64_t id = 0;    // in the file's name too
  bool shareable = false;  // as a file descriptor
  bool forNics = false;    // made for them
};
std::shared_ptr<Physical> makePhysical(int device, std::size_t bytes, bool shareable);  // nullptr: no memory
// Takes over the file, which has to be the mock's. `id`: which one it has to be; 0: any.
std::shared_ptr<Physical> adoptPhysical(int file, std::uint64_t id);

enum class Kind { kDevice, kPool, kHost, kRegistered, kImported, kMapped };

// A range of addresses that the driver knows.
struct Range {
  Kind kind = Kind::kDevice;
  std::size_t bytes = 0;
  std::uint64_t id = 0;                  // another for every range that there ever was
  std::shared_ptr<Physical> physical;    // of device memory
  std::set<int> access;                  // devices; of what is mapped
  std::pair<int, std::uint64_t> origin;  // process and id there; of what is imported
  unsigned uses = 0;                     // of what is imported
  int context = -1;                      // device in whose context it was made and goes with; -1: in none

  bool onDevice() const { return physical != nullptr; }
};
using Ranges = std::map<CUdeviceptr, Range>;

Ranges::iterator findRange(CUdeviceptr address);  // that has the address in it; with World::mutex held, as the next two
int ownerOf(CUdeviceptr address);                 // device; -1: the host
bool mayUse(int device, CUdeviceptr address, std::size_t bytes);

// ---- kernels (kernels.cc)

struct Grid {
  unsigned blocks = 0, blockThreads = 0;
  int device = 0;
};
struct Kernel {
  const char* name;
  std::size_t parameterBytes;  // that the driver copies for each launch
  // Copies the parameters; what comes back runs a grid and returns when it has ended.
  std::function<void(const Grid&)> (*prepare)(void** arguments);
};
const Kernel* findKernel(const char* name);

// ---- contexts (contexts.cc)

// A context's last holder has released it: what was made in it is gone, as from a real one.
void resetContext(int device);

// ---- everything

struct World {
  Slices slices;
  MockCuda properties;  // constant but for `failing` and `blockingLaunches`
  CUresult failure = CUDA_ERROR_UNKNOWN;
  Broken broken{CUDA_SUCCESS};
  std::atomic<bool> calledFromDestructor{false};
  std::atomic<std::uint64_t> launches{0}, remoteLaunches{0}, parameterBytes{0}, userObjects{0}, lastId{0};
  std::vector<std::atomic<int>> contexts;  // holders of each device's primary context
  std::vector<std::mutex>
      contextLocks;  // each call in a context passes it; who waits for room in a queue has it. Taken with none held
  Worker janitor{nullptr};  // calls the destructors of user objects

  std::mutex mutex;
  Ranges memory;
  std::map<CUdeviceptr, std::size_t> reservations;
  std::map<CUmemGenericAllocationHandle, std::pair<std::shared_ptr<Physical>, unsigned>> handles;  // and references
  std::set<std::pair<int, CUcontext>> reached;
  std::map<CUstream, std::shared_ptr<Stream>> streams;
  std::map<std::pair<int, std::thread::id>, std::shared_ptr<Stream>>
      defaults;                                // of a device: the legacy one, those of threads
  std::vector<std::shared_ptr<Stream>> dying;  // destroyed, but not done
  std::map<CUevent, std::shared_ptr<Event>> events;
  std::set<std::shared_ptr<Capture>> captures;
  std::set<Graph*> graphs;
  std::set<GraphExec*> execs;
  std::map<CUmodule, int> modules;                             // and whose context they are in
  std::set<std::pair<int, const Kernel*>> loaded;              // in which device's context
  std::map<int, std::vector<std::shared_ptr<Worker>>> queues;  // of each device, where they are counted
  std::map<int, std::size_t> streamsMade;                      // of each device, ever
  std::string lost;                                            // what was still there when contexts were reset
  std::map<int, unsigned> blocks;                              // running, of each device
  unsigned mostBlocks = 0;
};
extern World* world;  // nullptr: not installed

CUcontext currentContext();  // nullptr: none, or its last holder has released it
int deviceOf(CUcontext context);
inline int currentDevice() { return deviceOf(currentContext()); }  // -1: none

// With World::mutex held. nullptr: there is no such stream.
std::shared_ptr<Stream> findStream(CUstream handle);
// Returns when the stream's queue has room; without World::mutex. What is submitted then may find it full again: that
// counts as one more.
void waitForRoom(CUstream handle);
// In the stream's order, or into its capture.
CUresult submit(CUstream handle, Bind bind);
// The same with World::mutex held and a stream at hand. waits: for an event.
CUresult submitLocked(Stream& stream, CUstream handle, Bind bind, bool waits = false);
// Whether the legacy stream would wait for one that is being captured: an error, which ends the capture if `invalidate`
// says so.
bool conflictsWithCapture(const Stream& stream, CUstream handle, bool invalidate);
// Until all streams of the device are idle.
void synchronizeDevice(int device);
// The same with the context's lock, which no call in the context passes meanwhile. device -1: nothing.
void occupyDevice(int device);
// Whether this thread must not call now what might wait; ends the captures that forbid it.
bool forbiddenByCapture();
// Takes the stream out of its capture, which is then over or invalid.
void abandonCapture(Stream& stream);

// Parts of the table.
void addContexts(drivers::CudaDriver& driver);
void addMemory(drivers::CudaDriver& driver);
void addVirtualMemory(drivers::CudaDriver& driver);
void addIpc(drivers::CudaDriver& driver);
void addCopies(drivers::CudaDriver& driver);
void addStreams(drivers::CudaDriver& driver);
void addEvents(drivers::CudaDriver& driver);
void addCapture(drivers::CudaDriver& driver);
void addGraphs(drivers::CudaDriver& driver);
void addCapture(CudaForTests& table);
void addGraphs(CudaForTests& table);
void addLaunch(CudaForTests& table);
void addMemoryInfo(CudaForTests& table);
const CudaForTests& mockedForTests();

extern thread_local bool insideDestructor;  // of a user object

}  // namespace kolo::test::mock
