// Primary contexts: who holds them, which one is a thread's, and what goes with one whose last holder releases it.
#include <algorithm>

#include "mock_cuda/world.h"

namespace kolo::test::mock {
namespace {

thread_local std::vector<CUcontext> contexts;  // pushed; the last one is current

CUcontext contextOf(int device) { return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1); }

std::atomic<int>& holdersOf(int device) { return world->contexts[static_cast<std::size_t>(device)]; }

bool isHeld(CUcontext context) {
  const int device = deviceOf(context);
  return device >= 0 && device < world->properties.devices && holdersOf(device) > 0;
}

CUresult retain(CUcontext* context, CUdevice device) {
  if (device < 0 || device >= world->properties.devices) return CUDA_ERROR_INVALID_DEVICE;
  *context = contextOf(device);
  ++holdersOf(device);
  return CUDA_SUCCESS;
}

CUresult release(CUdevice device) {
  if (device < 0 || device >= world->properties.devices) return CUDA_ERROR_INVALID_DEVICE;
  int holders = holdersOf(device);
  do {
    if (holders == 0) return CUDA_ERROR_INVALID_CONTEXT;
  } while (!holdersOf(device).compare_exchange_weak(holders, holders - 1));
  if (holders == 1) resetContext(device);
  return CUDA_SUCCESS;
}

CUresult push(CUcontext context) {
  if (!isHeld(context)) return CUDA_ERROR_INVALID_CONTEXT;
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult pop(CUcontext* context) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

// Gives the members for which isOf says so to `taken`, and says how many there were.
template <class Map, class IsOf>
void lose(Map& map, const IsOf& isOf, const char* what, std::vector<typename Map::mapped_type>& taken,
          std::string& lost) {
  std::size_t count = 0;
  for (auto at = map.begin(); at != map.end();) {
    if (!isOf(at->second)) {
      ++at;
      continue;
    }
    taken.push_back(at->second);
    at = map.erase(at);
    ++count;
  }
  if (count != 0) lost += " " + std::to_string(count) + " " + what;
}

}  // namespace

// Memory that is mapped by handles, and that of pools, belong to the device and stay. What the ranges of the others
// name stays mapped in this process: a kernel of the mock that still uses it would take the process with it.
void resetContext(int device) {
  std::string lost;
  std::vector<std::shared_ptr<Stream>> streams;  // ended without the lock
  std::vector<std::shared_ptr<Event>> events;
  std::vector<Range> ranges;
  std::vector<int> modules;
  const std::lock_guard lock(world->mutex);
  lose(
      world->memory, [device](const Range& range) { return range.context == device; }, "ranges of memory", ranges,
      lost);
  lose(
      world->streams, [device](const auto& stream) { return stream->device == device; }, "streams", streams, lost);
  lose(
      world->events, [device](const auto& event) { return event->device == device; }, "events", events, lost);
  lose(
      world->modules, [device](int owner) { return owner == device; }, "modules", modules, lost);
  for (const auto& stream : streams) {
    abandonCapture(*stream);
    world->dying.push_back(stream);
  }
  if (!lost.empty())
    world->lost +=
        "the context of device " + std::to_string(device) + " was reset by its last release, with" + lost + " ";
}

CUcontext currentContext() { return contexts.empty() || !isHeld(contexts.back()) ? nullptr : contexts.back(); }

int deviceOf(CUcontext context) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1; }

void addContexts(drivers::CudaDriver& d) {
  d.cuDevicePrimaryCtxRetain = retain;
  d.cuDevicePrimaryCtxRelease = release;
  d.cuCtxPushCurrent = push;
  d.cuCtxPopCurrent = pop;
  d.cuCtxGetDevice = [](CUdevice* device) {
    *device = currentDevice();
    return *device < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  };
  d.cuCtxEnablePeerAccess = [](CUcontext context, unsigned) {
    const std::lock_guard lock(world->mutex);
    const bool isNew = world->reached.emplace(currentDevice(), context).second;
    return isNew ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  };
}

}  // namespace kolo::test::mock
