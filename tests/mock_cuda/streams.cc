// Streams, events, and what runs in a stream's order: kernels, counters, and waiting for events of other streams.
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "mock_cuda/world.h"

namespace kolo::test::mock {
namespace {

CUstream handleOf(const std::shared_ptr<Stream>& stream) { return reinterpret_cast<CUstream>(stream.get()); }

bool isLegacy(CUstream handle) { return handle == nullptr || handle == CU_STREAM_LEGACY; }

std::shared_ptr<Event> findEvent(CUevent handle) {
  const auto at = world->events.find(handle);
  return at == world->events.end() ? nullptr : at->second;
}

// ---- streams

// A new queue as long as there may be more of them, else the next in turn, or the one that the fewest streams share.
// With World::mutex held.
std::shared_ptr<Worker> queueFor(int device) {
  const unsigned most = world->properties.connections;
  std::vector<std::shared_ptr<Worker>>& queues = world->queues[device];
  const std::size_t number = world->streamsMade[device]++;
  if (most != 0 && queues.size() == most && world->properties.queuesInTurn) return queues[number % most];
  if (most != 0 && queues.size() == most) {
    return *std::min_element(queues.begin(), queues.end(),
                             [](const auto& a, const auto& b) { return a.use_count() < b.use_count(); });
  }
  const auto queue = std::make_shared<Worker>(&world->broken);
  if (most != 0) queues.push_back(queue);
  return queue;
}

CUresult createStream(CUstream* handle, unsigned flags) {
  const int device = currentDevice();
  const std::lock_guard lock(world->mutex);
  const auto stream = std::make_shared<Stream>(device, flags != CU_STREAM_NON_BLOCKING, queueFor(device));
  *handle = handleOf(stream);
  world->streams[*handle] = stream;
  return CUDA_SUCCESS;
}

// Returns before the stream is done, as the real one does: what it does may wait for what this thread does next.
CUresult destroyStream(CUstream handle) {
  std::vector<std::shared_ptr<Stream>> done;  // joined without the lock
  const std::lock_guard lock(world->mutex);
  const auto at = world->streams.find(handle);
  if (at == world->streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  abandonCapture(*at->second);
  std::vector<std::shared_ptr<Stream>>& dying = world->dying;
  dying.push_back(at->second);
  world->streams.erase(at);
  const auto isDone = [](const std::shared_ptr<Stream>& stream) { return stream->isIdle(); };
  std::copy_if(dying.begin(), dying.end(), std::back_inserter(done), isDone);
  std::erase_if(dying, [&](const auto& stream) { return std::find(done.begin(), done.end(), stream) != done.end(); });
  return CUDA_SUCCESS;
}

// Whether a stream may be asked how far it is.
CUresult mayAsk(CUstream handle, std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(world->mutex);
  stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return conflictsWithCapture(*stream, handle, true) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : world->broken.load();
}

CUresult synchronizeStream(CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = mayAsk(handle, stream); result != CUDA_SUCCESS) return result;
  stream->synchronize();
  return world->broken;
}

CUresult queryStream(CUstream handle) {
  std::shared_ptr<Stream> stream;
  if (const CUresult result = mayAsk(handle, stream); result != CUDA_SUCCESS) return result;
  return stream->isIdle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult synchronizeContext() {
  if (currentDevice() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  synchronizeDevice(currentDevice());
  return world->broken;
}

CUresult streamContext(CUstream handle, CUcontext* context) {
  const std::lock_guard lock(world->mutex);
  const auto stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const int device = stream->device >= 0 ? stream->device : currentDevice();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}

CUresult streamId(CUstream handle, unsigned long long* id) {
  const std::lock_guard lock(world->mutex);
  const auto stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->id == 0) stream->id = ++world->lastId;
  *id = stream->id;
  return CUDA_SUCCESS;
}

CUresult streamFlags(CUstream handle, unsigned* flags) {
  const std::lock_guard lock(world->mutex);
  const auto stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *flags = stream->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  return CUDA_SUCCESS;
}

// ---- kernels and counters

// What is loaded goes into the context's memory, for which the driver waits until nothing uses it.
void loadLazily(const Kernel& kernel) {
  const int device = currentDevice();
  if (!world->properties.lazyLoading || device < 0) return;
  {
    const std::lock_guard lock(world->mutex);
    if (!world->loaded.emplace(device, &kernel).second) return;
  }
  occupyDevice(device);
}

CUresult launch(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                unsigned, CUstream handle, void** arguments, void**) {
  const Kernel& kernel = *reinterpret_cast<const Kernel*>(function);
  loadLazily(kernel);
  waitForRoom(handle);
  const auto run = kernel.prepare(arguments);
  world->parameterBytes += kernel.parameterBytes;
  Grid grid{.blocks = blocks, .blockThreads = std::min(threads, world->properties.blockThreads)};
  const int current = currentDevice();
  std::unique_lock lock(world->mutex);
  const auto stream = findStream(handle);
  if (stream == nullptr || (stream->device >= 0 && current >= 0 && stream->device != current))
    return CUDA_ERROR_INVALID_HANDLE;
  const int device = stream->device >= 0 ? stream->device : current;
  grid.device = device;
  const bool waits = world->properties.blockingLaunches && stream->capture == nullptr;
  const CUresult result = submitLocked(*stream, handle, [run, grid, device]() -> Task {
    ++world->launches;
    return [run, grid, device] {
      {
        const std::lock_guard running(world->mutex);
        world->mostBlocks = std::max(world->mostBlocks, world->blocks[device] += grid.blocks);
      }
      run(grid);
      const std::lock_guard running(world->mutex);
      world->blocks[device] -= grid.blocks;
    };
  });
  lock.unlock();
  if (waits && result == CUDA_SUCCESS) stream->synchronize();
  return result;
}

// Of the attributes the mock knows the domain of memory synchronisation. Of a device that has one domain it is wrong.
CUresult launchEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id != CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN || world->properties.syncDomains < 2 ||
        !world->properties.launchesInDomains)
      return CUDA_ERROR_INVALID_VALUE;
    if (attribute.value.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE) ++world->remoteLaunches;
  }
  return launch(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
                config->blockDimZ, config->sharedMemBytes, config->hStream, arguments, extra);
}

// The pair of a write is its wait here, or the acquire load of a kernel or of the host.
std::atomic_ref<std::uint64_t> counterAt(CUdeviceptr address) {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(address));
}

CUresult writeValue(CUstream handle, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  if (!world->properties.streamMemoryOps) return CUDA_ERROR_NOT_SUPPORTED;
  if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || address % sizeof value != 0) return CUDA_ERROR_INVALID_VALUE;
  return submit(handle, [=]() -> Task { return [=] { counterAt(address).store(value, std::memory_order_release); }; });
}

CUresult waitValue(CUstream handle, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  if (address % sizeof value != 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_STREAM_WAIT_VALUE_GEQ || !world->properties.streamMemoryOps) return CUDA_ERROR_NOT_SUPPORTED;
  const auto reached = [=] {
    return static_cast<std::int64_t>(counterAt(address).load(std::memory_order_acquire) - value) >= 0;
  };
  return submit(handle, [=]() -> Task {
    return [=] {
      for (int polls = 0; !reached() && world->broken == CUDA_SUCCESS; ++polls) {
        if (polls < 1000) sched_yield();
        else std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    };
  });
}

// ---- events

CUresult createEvent(CUevent* handle, unsigned) {
  const auto event = std::make_shared<Event>();
  event->device = currentDevice();
  *handle = reinterpret_cast<CUevent>(event.get());
  const std::lock_guard lock(world->mutex);
  world->events[*handle] = event;
  return CUDA_SUCCESS;
}

CUresult destroyEvent(CUevent handle) {
  const std::lock_guard lock(world->mutex);
  return world->events.erase(handle) == 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

// What records an event when it is executed.
Bind recordOf(const std::shared_ptr<Event>& event) {
  return [event]() -> Task {
    const auto record = event->last = std::make_shared<Record>();
    return [record] { record->completion.finish(); };
  };
}

CUresult recordEvent(CUevent handle, CUstream streamHandle) {
  waitForRoom(streamHandle);
  const std::lock_guard lock(world->mutex);
  const auto event = findEvent(handle);
  const auto stream = findStream(streamHandle);
  if (event == nullptr || stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->device >= 0 && stream->device >= 0 && event->device != stream->device) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) {
    if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->last = std::make_shared<Record>();
    event->last->capture = stream->capture;
    event->last->frontier = stream->frontier;
    return CUDA_SUCCESS;
  }
  return submitLocked(*stream, streamHandle, recordOf(event));
}

CUresult addRecordNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* after, std::size_t count,
                       CUevent eventHandle) {
  const std::lock_guard lock(world->mutex);
  auto* const graph = reinterpret_cast<Graph*>(handle);
  const auto event = findEvent(eventHandle);
  if (world->graphs.count(graph) == 0 || event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Graph::Node added{.after = {}, .bind = recordOf(event), .isAdded = true};
  for (const CUgraphNode* at = after; at != after + count; ++at) {
    if (nodeOf(*at) >= graph->nodes.size()) return CUDA_ERROR_INVALID_VALUE;
    added.after.insert(nodeOf(*at));
  }
  graph->nodes.push_back(std::move(added));
  *node = nodeHandle(graph->nodes.size() - 1);
  return CUDA_SUCCESS;
}

// A stream's wait for an event that was recorded in a capture: it joins.
CUresult joinCapture(Stream& stream, CUstream handle, const Record& record) {
  Capture& capture = *record.capture;
  if (stream.capture != nullptr && stream.capture != record.capture) {
    stream.capture->invalid = true;
    if (capture.ended) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    capture.invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (capture.ended) return CUDA_ERROR_CAPTURED_EVENT;
  if (isLegacy(handle)) {
    capture.invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  stream.frontier.insert(record.frontier.begin(), record.frontier.end());
  if (stream.capture != nullptr) return CUDA_SUCCESS;
  stream.capture = record.capture;
  capture.members.insert(&stream);
  return submitLocked(stream, handle, [] { return Task([] {}); });  // a node that the origin has to wait for
}

CUresult waitEvent(CUstream streamHandle, CUevent handle, unsigned flags) {
  waitForRoom(streamHandle);
  const std::lock_guard lock(world->mutex);
  const auto event = findEvent(handle);
  const auto stream = findStream(streamHandle);
  if (event == nullptr || stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const bool external = flags == CU_EVENT_WAIT_EXTERNAL, capturing = stream->capture != nullptr;
  if (external && !capturing) return CUDA_ERROR_INVALID_VALUE;
  if (!external && event->last != nullptr && event->last->capture != nullptr) {
    return joinCapture(*stream, streamHandle, *event->last);
  }
  if (!external && capturing) {
    if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  const auto wait = [event]() -> Task {
    const auto record = event->last;
    if (record == nullptr || record->capture != nullptr) return [] {};  // never recorded
    return [record] { record->completion.wait(); };
  };
  return submitLocked(*stream, streamHandle, wait, true);
}

// The event's last record; nullptr: never recorded.
CUresult lastRecord(CUevent handle, std::shared_ptr<Record>& record) {
  if (world->broken != CUDA_SUCCESS) return world->broken;
  const std::lock_guard lock(world->mutex);
  const auto event = findEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  record = event->last;
  return record != nullptr && record->capture != nullptr ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

CUresult queryEvent(CUevent handle) {
  std::shared_ptr<Record> record;
  if (const CUresult result = lastRecord(handle, record); result != CUDA_SUCCESS) return result;
  return record == nullptr || record->completion.done() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult synchronizeEvent(CUevent handle) {
  std::shared_ptr<Record> record;
  if (const CUresult result = lastRecord(handle, record); result != CUDA_SUCCESS) return result;
  if (record != nullptr) record->completion.wait();
  return world->broken;
}

}  // namespace

std::shared_ptr<Stream> findStream(CUstream handle) {
  if (!isLegacy(handle) && handle != CU_STREAM_PER_THREAD) {
    const auto at = world->streams.find(handle);
    return at == world->streams.end() ? nullptr : at->second;
  }
  const int device = currentDevice();
  const bool legacy = isLegacy(handle);
  std::shared_ptr<Stream>& own = world->defaults[{device, legacy ? std::thread::id() : std::this_thread::get_id()}];
  if (own == nullptr) own = std::make_shared<Stream>(device, !legacy, queueFor(device));
  return own;
}

CUresult submitLocked(Stream& stream, CUstream handle, Bind bind, bool waits) {
  if (world->broken != CUDA_SUCCESS) return world->broken;
  if (stream.capture != nullptr) {
    if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    std::vector<Graph::Node>& nodes = stream.capture->graph->nodes;
    nodes.push_back({.after = stream.frontier, .bind = std::move(bind), .waits = waits});
    stream.frontier = {nodes.size() - 1};
    return CUDA_SUCCESS;
  }
  if (conflictsWithCapture(stream, handle, true)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  stream.last = stream.worker->enqueue(bind());
  return CUDA_SUCCESS;
}

void waitForRoom(CUstream handle) {
  const unsigned most = world->properties.launchQueue;
  if (most == 0) return;
  std::shared_ptr<Worker> queue;
  int device = -1;
  {
    const std::lock_guard lock(world->mutex);
    const auto stream = findStream(handle);
    if (stream == nullptr || stream->capture != nullptr) return;
    queue = stream->worker;
    device = stream->device >= 0 ? stream->device : currentDevice();
  }
  if (device < 0 || queue->waiting() < most) return;
  const std::lock_guard context(world->contextLocks[static_cast<std::size_t>(device)]);
  queue->awaitRoom(most);
}

CUresult submit(CUstream handle, Bind bind) {
  waitForRoom(handle);
  const std::lock_guard lock(world->mutex);
  const auto stream = findStream(handle);
  return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : submitLocked(*stream, handle, std::move(bind));
}

bool conflictsWithCapture(const Stream& stream, CUstream handle, bool invalidate) {
  if (!isLegacy(handle)) return false;
  bool found = false;
  for (const auto& capture : world->captures) {
    const bool conflicts = std::any_of(capture->members.begin(), capture->members.end(), [&](const Stream* member) {
      return member->blocking && (member->device < 0 || member->device == stream.device);
    });
    found = found || conflicts;
    if (conflicts && invalidate) capture->invalid = true;
  }
  return found;
}

void synchronizeDevice(int device) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard lock(world->mutex);
    const auto take = [&](const std::shared_ptr<Stream>& stream) {
      if (stream->device == device || stream->device < 0) streams.push_back(stream);
    };
    for (const auto& [handle, stream] : world->streams) take(stream);
    for (const auto& [key, stream] : world->defaults) take(stream);
    for (const auto& stream : world->dying) take(stream);
  }
  for (const auto& stream : streams) stream->synchronize();
}

void occupyDevice(int device) {
  if (device < 0) return;
  const std::lock_guard context(world->contextLocks[static_cast<std::size_t>(device)]);
  synchronizeDevice(device);
}

void addStreams(drivers::CudaDriver& d) {
  d.cuStreamCreate = createStream;
  d.cuStreamDestroy = destroyStream;
  d.cuStreamSynchronize = synchronizeStream;
  d.cuStreamQuery = queryStream;
  d.cuCtxSynchronize = synchronizeContext;
  d.cuStreamGetCtx = streamContext;
  d.cuStreamGetId = streamId;
  d.cuStreamGetFlags = streamFlags;
  d.cuStreamWriteValue64 = writeValue;
  d.cuStreamWaitValue64 = waitValue;
  d.cuLaunchKernelEx = launchEx;
}

void addLaunch(CudaForTests& d) { d.cuLaunchKernel = launch; }

void addEvents(drivers::CudaDriver& d) {
  d.cuEventCreate = createEvent;
  d.cuEventDestroy = destroyEvent;
  d.cuEventRecord = recordEvent;
  d.cuGraphAddEventRecordNode = addRecordNode;
  d.cuEventQuery = queryEvent;
  d.cuEventSynchronize = synchronizeEvent;
  d.cuStreamWaitEvent = waitEvent;
}

}  // namespace kolo::test::mock
