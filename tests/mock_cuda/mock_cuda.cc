#include "mock_cuda/mock_cuda.h"

#include <sched.h>
#include <time.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "drivers/cuda/driver.h"
#include "executor/cuda/block_main.h"
#include "executor/emulated/block_reduce.h"
#include "executor/emulated/emulated_team.h"

extern "C" const unsigned char koloKernels[];   // the image that the library loads

namespace kolo::test {
namespace {

using executor::cuda::LaunchParams;

// ---- blocks

class MockPlatform {
 public:
  struct WaitState {
    std::uint64_t sinceNs = 0;
  };
  struct Block {
    explicit Block(unsigned threads) : threads(threads), barrier(threads) {}
    const unsigned threads;
    executor::BlockBarrier barrier;
    device::Work work;
    device::Fault fault;
  };

  MockPlatform(Block& block, unsigned thread, const LaunchParams& params) : block_(block), thread_(thread), params_(params) {}

  unsigned thread() const { return thread_; }
  unsigned threads() const { return block_.threads; }
  int polls() const { return 16; }
  bool syncOr(bool value) { return block_.barrier.syncOr(thread_, parity_, value); }
  bool claim(std::uint32_t& place) { return std::atomic_ref(place).exchange(1) == 0; }

  device::Fault keepWaiting(int peer, WaitState& state) {
    if (device::loadAcquire(params_.control->stop) != 0 || device::loadAcquire(params_.control->faults) != 0) {
      return {.kind = device::Fault::kAborted, .peer = peer};
    }
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    const auto now = static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
    if (state.sinceNs == 0) state.sinceNs = now;
    if (params_.timeoutNs != 0 && now - state.sinceNs > params_.timeoutNs) return {.kind = device::Fault::kTimeout, .peer = peer};
    sched_yield();
    return {};
  }
  bool read(int, void*, std::uint64_t, std::uint64_t) { return false; }
  void reduce(const device::BlockIndex& index, const device::Work& work, const device::ReduceArgs& args) {
    executor::reduceInBlock(index, static_cast<koloDataType_t>(work.signature.datatype), work.op, args);
  }

 private:
  Block& block_;
  unsigned thread_;
  const LaunchParams& params_;
  unsigned parity_ = 0;
};

void runGrid(const LaunchParams& params, unsigned blocks, unsigned blockThreads) {
  std::vector<std::unique_ptr<MockPlatform::Block>> states;
  for (unsigned block = 0; block < blocks; ++block) states.push_back(std::make_unique<MockPlatform::Block>(blockThreads));
  std::vector<std::thread> threads;
  for (unsigned block = 0; block < blocks; ++block) {
    for (unsigned thread = 0; thread < blockThreads; ++thread) {
      threads.emplace_back([&, block, thread] {
        MockPlatform::Block& state = *states[block];
        MockPlatform platform(state, thread, params);
        executor::cuda::runBlock(platform, params, static_cast<int>(block), state.work, state.fault);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- streams and events

class Stream {
 public:
  Stream() : thread_([this] { work(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void enqueue(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty() && !busy_; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      task();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false, stopping_ = false;
  std::thread thread_;
};

// Counts how often it was recorded and how often a stream has come there.
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0, reached = 0;

  void wait(std::uint64_t number) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached >= number; });
  }
};

// ---- the driver's state

struct World {
  MockCuda properties;
  std::mutex mutex;
  std::map<CUdeviceptr, std::pair<std::size_t, int>> memory;    // bytes and device; -1: the host's
  std::set<CUstream> streams;
  std::set<CUevent> events;
  std::map<int, std::unique_ptr<Stream>> defaults;              // the NULL stream of each device
  std::atomic<int> contexts{0}, modules{0};
  std::atomic<std::uint64_t> launches{0};
  std::map<int, unsigned> blocks;
  std::set<std::pair<int, CUcontext>> reached;
  unsigned mostBlocks = 0;
};
World* world = nullptr;

thread_local std::vector<CUcontext> contexts;

int currentDevice() { return contexts.empty() ? -1 : static_cast<int>(reinterpret_cast<std::uintptr_t>(contexts.back())) - 1; }
bool fails(const char* function) {
  const std::lock_guard lock(world->mutex);
  return world->properties.failing == function;
}
Stream& streamOf(CUstream stream) {
  if (stream != nullptr) return *reinterpret_cast<Stream*>(stream);
  const std::lock_guard lock(world->mutex);
  std::unique_ptr<Stream>& own = world->defaults[currentDevice()];
  if (own == nullptr) own = std::make_unique<Stream>();
  return *own;
}
CUresult allocate(CUdeviceptr* pointer, std::size_t bytes, int device) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, bytes) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(memory, 0xa5, bytes);   // what nobody has written is not zero
  *pointer = reinterpret_cast<CUdeviceptr>(memory);
  const std::lock_guard lock(world->mutex);
  world->memory[*pointer] = {bytes, device};
  return CUDA_SUCCESS;
}
CUresult release(CUdeviceptr pointer) {
  {
    const std::lock_guard lock(world->mutex);
    if (world->memory.erase(pointer) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  std::free(reinterpret_cast<void*>(pointer));
  return CUDA_SUCCESS;
}

#define MOCK_FAILS(name) \
  if (fails(#name)) return CUDA_ERROR_UNKNOWN

// Those that the library calls; another one called is a null pointer, and the test ends there.
drivers::CudaDriver makeDriver() {
  drivers::CudaDriver d;
  d.cuInit = [](unsigned) { return CUDA_SUCCESS; };
  d.cuGetErrorName = [](CUresult, const char** text) { *text = "CUDA_ERROR_MOCK"; return CUDA_SUCCESS; };
  d.cuGetErrorString = [](CUresult, const char** text) { *text = "the mock was told to fail"; return CUDA_SUCCESS; };
  d.cuDeviceGetCount = [](int* count) { *count = world->properties.devices; return CUDA_SUCCESS; };
  d.cuDeviceGet = [](CUdevice* device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; };
  d.cuDeviceGetName = [](char* text, int bytes, CUdevice) { std::snprintf(text, static_cast<std::size_t>(bytes), "Mock GPU"); return CUDA_SUCCESS; };
  d.cuDeviceGetPCIBusId = [](char* text, int bytes, CUdevice device) {
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device));
    return CUDA_SUCCESS;
  };
  d.cuDeviceTotalMem = [](std::size_t* bytes, CUdevice) { *bytes = std::size_t{1} << 30; return CUDA_SUCCESS; };
  d.cuDeviceGetAttribute = [](int* value, CUdevice_attribute which, CUdevice) {
    *value = which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT          ? world->properties.multiprocessors
             : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
                                                                        : 0;
    return CUDA_SUCCESS;
  };
  d.cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice device) {
    MOCK_FAILS(cuDevicePrimaryCtxRetain);
    *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
    ++world->contexts;
    return CUDA_SUCCESS;
  };
  d.cuDevicePrimaryCtxRelease = [](CUdevice) { --world->contexts; return CUDA_SUCCESS; };
  d.cuCtxPushCurrent = [](CUcontext context) { contexts.push_back(context); return CUDA_SUCCESS; };
  d.cuCtxPopCurrent = [](CUcontext*) { contexts.pop_back(); return CUDA_SUCCESS; };
  d.cuModuleLoadData = [](CUmodule* module, const void* image) {
    MOCK_FAILS(cuModuleLoadData);
    if (image != koloKernels) return CUDA_ERROR_INVALID_IMAGE;
    *module = reinterpret_cast<CUmodule>(1);
    ++world->modules;
    return CUDA_SUCCESS;
  };
  d.cuModuleUnload = [](CUmodule) { --world->modules; return CUDA_SUCCESS; };
  d.cuModuleGetFunction = [](CUfunction* function, CUmodule, const char* name) {
    if (std::strcmp(name, "koloRunBlocks") != 0) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(1);
    return CUDA_SUCCESS;
  };
  d.cuOccupancyMaxActiveBlocksPerMultiprocessor = [](int* blocks, CUfunction, int, std::size_t) { *blocks = 1; return CUDA_SUCCESS; };
  d.cuMemAlloc = [](CUdeviceptr* pointer, std::size_t bytes) {
    MOCK_FAILS(cuMemAlloc);
    return allocate(pointer, bytes, currentDevice());
  };
  d.cuMemFree = [](CUdeviceptr pointer) { return release(pointer); };
  d.cuMemHostAlloc = [](void** pointer, std::size_t bytes, unsigned) {
    MOCK_FAILS(cuMemHostAlloc);
    CUdeviceptr place = 0;
    const CUresult result = allocate(&place, bytes, -1);
    *pointer = reinterpret_cast<void*>(place);
    return result;
  };
  d.cuMemFreeHost = [](void* pointer) { return release(reinterpret_cast<CUdeviceptr>(pointer)); };
  d.cuMemcpyHtoD = [](CUdeviceptr to, const void* from, std::size_t bytes) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return CUDA_SUCCESS;
  };
  d.cuMemcpyDtoH = [](void* to, CUdeviceptr from, std::size_t bytes) {
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return CUDA_SUCCESS;
  };
  d.cuMemcpyDtoDAsync = [](CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    streamOf(stream).enqueue([=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
    return CUDA_SUCCESS;
  };
  d.cuMemsetD8Async = [](CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream) {
    streamOf(stream).enqueue([=] { std::memset(reinterpret_cast<void*>(to), value, bytes); });
    return CUDA_SUCCESS;
  };
  d.cuMemcpyHtoDAsync = [](CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    streamOf(stream).enqueue([=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
    return CUDA_SUCCESS;
  };
  d.cuDeviceCanAccessPeer = [](int* possible, CUdevice, CUdevice) {
    *possible = world->properties.peersReach ? 1 : 0;
    return CUDA_SUCCESS;
  };
  d.cuCtxEnablePeerAccess = [](CUcontext context, unsigned) {
    MOCK_FAILS(cuCtxEnablePeerAccess);
    const std::lock_guard lock(world->mutex);
    const bool isNew = world->reached.emplace(currentDevice(), context).second;
    return isNew ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  };
  d.cuPointerGetAttributes = [](unsigned count, CUpointer_attribute* which, void** data, CUdeviceptr pointer) {
    const std::lock_guard lock(world->mutex);
    auto at = world->memory.upper_bound(pointer);
    const bool known = at != world->memory.begin() && pointer < (--at)->first + at->second.first;
    for (unsigned i = 0; i < count; ++i) {
      const int device = known ? at->second.second : -1;
      if (which[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
        *static_cast<unsigned*>(data[i]) = !known ? 0 : device >= 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      } else if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
        *static_cast<int*>(data[i]) = device;
      }
    }
    return CUDA_SUCCESS;
  };
  d.cuStreamCreate = [](CUstream* stream, unsigned) {
    *stream = reinterpret_cast<CUstream>(new Stream);
    const std::lock_guard lock(world->mutex);
    world->streams.insert(*stream);
    return CUDA_SUCCESS;
  };
  d.cuStreamDestroy = [](CUstream stream) {
    {
      const std::lock_guard lock(world->mutex);
      if (world->streams.erase(stream) == 0) return CUDA_ERROR_INVALID_HANDLE;
    }
    delete reinterpret_cast<Stream*>(stream);
    return CUDA_SUCCESS;
  };
  d.cuStreamSynchronize = [](CUstream stream) { streamOf(stream).synchronize(); return CUDA_SUCCESS; };
  d.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) { *status = CU_STREAM_CAPTURE_STATUS_NONE; return CUDA_SUCCESS; };
  d.cuEventCreate = [](CUevent* event, unsigned) {
    MOCK_FAILS(cuEventCreate);
    *event = reinterpret_cast<CUevent>(new Event);
    const std::lock_guard lock(world->mutex);
    world->events.insert(*event);
    return CUDA_SUCCESS;
  };
  d.cuEventDestroy = [](CUevent event) {
    {
      const std::lock_guard lock(world->mutex);
      if (world->events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    }
    delete reinterpret_cast<Event*>(event);
    return CUDA_SUCCESS;
  };
  d.cuEventRecord = [](CUevent event, CUstream stream) {
    auto* const own = reinterpret_cast<Event*>(event);
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(own->mutex);
      number = ++own->recorded;
    }
    streamOf(stream).enqueue([own, number] {
      const std::lock_guard lock(own->mutex);
      own->reached = std::max(own->reached, number);
      own->changed.notify_all();
    });
    return CUDA_SUCCESS;
  };
  d.cuEventQuery = [](CUevent event) {
    auto* const own = reinterpret_cast<Event*>(event);
    const std::lock_guard lock(own->mutex);
    return own->reached >= own->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  };
  d.cuEventSynchronize = [](CUevent event) {
    auto* const own = reinterpret_cast<Event*>(event);
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(own->mutex);
      number = own->recorded;
    }
    own->wait(number);
    return CUDA_SUCCESS;
  };
  d.cuStreamWaitEvent = [](CUstream stream, CUevent event, unsigned) {
    auto* const own = reinterpret_cast<Event*>(event);
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(own->mutex);
      number = own->recorded;
    }
    streamOf(stream).enqueue([own, number] { own->wait(number); });
    return CUDA_SUCCESS;
  };
  d.cuLaunchKernel = [](CUfunction, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream stream,
                        void** arguments, void**) {
    MOCK_FAILS(cuLaunchKernel);
    const auto params = std::make_shared<LaunchParams>(*static_cast<const LaunchParams*>(arguments[0]));
    const int device = currentDevice();
    ++world->launches;
    streamOf(stream).enqueue([params, blocks, device] {
      {
        const std::lock_guard lock(world->mutex);
        world->mostBlocks = std::max(world->mostBlocks, world->blocks[device] += blocks);
      }
      runGrid(*params, blocks, world->properties.blockThreads);
      const std::lock_guard lock(world->mutex);
      world->blocks[device] -= blocks;
    });
    return CUDA_SUCCESS;
  };
  return d;
}

}  // namespace

void MockCuda::install() const {
  static const drivers::CudaDriver driver = makeDriver();
  world = new World;
  world->properties = *this;
  drivers::setCuda(&driver);
}

std::string MockCuda::remove() {
  drivers::setCuda(nullptr);
  world->defaults.clear();
  std::string left;
  const auto say = [&](const char* what, std::size_t count) {
    if (count != 0) left += std::to_string(count) + " " + what + " ";
  };
  say("allocations", world->memory.size());
  say("streams", world->streams.size());
  say("events", world->events.size());
  say("contexts", static_cast<std::size_t>(world->contexts.load()));
  say("modules", static_cast<std::size_t>(world->modules.load()));
  delete world;
  world = nullptr;
  return left;
}

std::uint64_t MockCuda::launches() { return world->launches; }
unsigned MockCuda::mostBlocksAtOnce() {
  const std::lock_guard lock(world->mutex);
  return world->mostBlocks;
}
void MockCuda::failFrom(const std::string& function) {
  const std::lock_guard lock(world->mutex);
  world->properties.failing = function;
}

}  // namespace kolo::test
