#include "executor/cuda/engine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/log.h"

extern "C" const unsigned char koloKernels[];

namespace kolo::executor::cuda {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t roundUp(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

// Bytes of the arrays that a v-variant's description points to; and the arrays, copied to `to`, if there is a place.
std::uint64_t takeArrays(device::Work& work, unsigned char* to) {
  std::uint64_t bytes = 0;
  const auto take = [&](const std::uint64_t*& array) {
    if (array == nullptr) return;
    const std::uint64_t size = static_cast<std::uint64_t>(work.ranks) * sizeof *array;
    if (to != nullptr) array = static_cast<const std::uint64_t*>(std::memcpy(to + bytes, array, size));
    bytes += size;
  };
  take(work.sendLayout.counts);
  take(work.sendLayout.displs);
  take(work.recvLayout.counts);
  take(work.recvLayout.displs);
  take(work.countTo);
  take(work.countFrom);
  return bytes;
}

}  // namespace

std::uint64_t ArenaLayout::mailboxAt(int channel, int peer) const {
  return (static_cast<std::uint64_t>(channel) * static_cast<std::uint64_t>(ranks) + static_cast<std::uint64_t>(peer)) *
         sizeof(device::Mailbox);
}
std::uint64_t ArenaLayout::slotsAt(int channel, int peer) const {
  const std::uint64_t pair = static_cast<std::uint64_t>(channel) * static_cast<std::uint64_t>(ranks) + static_cast<std::uint64_t>(peer);
  return roundUp(mailboxAt(channels, 0), kPage) + pair * slots * slotBytes;
}
std::uint64_t ArenaLayout::bytes() const { return slotsAt(channels, 0); }

// ---- the device

Result<std::shared_ptr<Gpu>> Gpu::open(int ordinal) {
  static auto* const mutex = new std::mutex;
  static auto* const open = new std::map<std::pair<const drivers::CudaDriver*, int>, std::weak_ptr<Gpu>>;
  KOLO_ASSIGN(const drivers::CudaDriver* const driver, drivers::cuda());
  const std::lock_guard lock(*mutex);
  std::weak_ptr<Gpu>& known = (*open)[{driver, ordinal}];
  if (std::shared_ptr<Gpu> gpu = known.lock()) return gpu;
  std::shared_ptr<Gpu> gpu(new Gpu(*driver, ordinal));
  KOLO_TRY(gpu->load());
  known = gpu;
  return gpu;
}

Status Gpu::load() {
  int count = 0;
  KOLO_CUDA(driver_, cuDeviceGetCount, (&count));
  if (ordinal_ < 0 || ordinal_ >= count) {
    return error(koloInvalidArgument, "device is {}, expected 0..{}, or -1 for host memory", ordinal_, count - 1);
  }
  KOLO_CUDA(driver_, cuDeviceGet, (&device_, ordinal_));
  KOLO_CUDA(driver_, cuDevicePrimaryCtxRetain, (&context_, device_));
  const Current current(*this);
  // Loaded now, not by the first launch: loading may wait for kernels that run, and those may wait for the launch.
  if (const CUresult code = driver_.cuModuleLoadData(&module_, koloKernels); code != CUDA_SUCCESS) {
    const Status why = drivers::cudaError(driver_, code, "cuModuleLoadData");
    if (koloKernels[0] != 0) return why;
    return error(koloUnsupported, "this library was built without kernels (the option gpu_architectures is empty): {}", why.message());
  }
  KOLO_CUDA(driver_, cuModuleGetFunction, (&kernel_, module_, "koloRunBlocks"));
  int perMultiprocessor = 0, multiprocessors = 0;
  KOLO_CUDA(driver_, cuOccupancyMaxActiveBlocksPerMultiprocessor, (&perMultiprocessor, kernel_, kBlockThreads, 0));
  KOLO_CUDA(driver_, cuDeviceGetAttribute, (&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_));
  residentBlocks_ = perMultiprocessor * multiprocessors;
  KOLO_CUDA(driver_, cuStreamCreate, (&copies_, CU_STREAM_NON_BLOCKING));
  if (residentBlocks_ == 0) return error(koloUnsupported, "device {} cannot hold one block of {} threads", ordinal_, kBlockThreads);
  return {};
}

Gpu::~Gpu() {
  if (context_ == nullptr) return;
  {
    const Current current(*this);
    if (copies_ != nullptr) driver_.cuStreamDestroy(copies_);
    if (module_ != nullptr) driver_.cuModuleUnload(module_);
  }
  driver_.cuDevicePrimaryCtxRelease(device_);
}

Status Gpu::reach(const Gpu& peer) const {
  if (peer.device_ == device_) return {};
  int possible = 0;
  KOLO_CUDA(driver_, cuDeviceCanAccessPeer, (&possible, device_, peer.device_));
  if (possible == 0) return error(koloUnsupported, "device {} cannot reach the memory of device {}", ordinal_, peer.ordinal_);
  const Current current(*this);
  const CUresult code = driver_.cuCtxEnablePeerAccess(peer.context_, 0);
  if (code == CUDA_SUCCESS || code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return {};
  return drivers::cudaError(driver_, code, "cuCtxEnablePeerAccess");
}

Status Gpu::clear(CUdeviceptr to, std::uint64_t bytes) const {
  const Current current(*this);
  KOLO_CUDA(driver_, cuMemsetD8Async, (to, 0, bytes, copies_));
  KOLO_CUDA(driver_, cuStreamSynchronize, (copies_));
  return {};
}

Status Gpu::copy(CUdeviceptr to, const void* from, std::uint64_t bytes) const {
  const Current current(*this);
  KOLO_CUDA(driver_, cuMemcpyHtoDAsync, (to, from, bytes, copies_));
  KOLO_CUDA(driver_, cuStreamSynchronize, (copies_));
  return {};
}

// ---- its memory

Result<DeviceMemory> DeviceMemory::allocate(std::shared_ptr<Gpu> gpu, std::uint64_t bytes) {
  const Gpu::Current current(*gpu);
  const drivers::CudaDriver& driver = gpu->driver();
  DeviceMemory memory;
  KOLO_CUDA(driver, cuMemAlloc, (&memory.address_, std::max<std::uint64_t>(bytes, 1)));
  memory.gpu_ = std::move(gpu);
  return memory;
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : gpu_(std::move(other.gpu_)), address_(std::exchange(other.address_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(address_, other.address_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (address_ == 0) return;
  const Gpu::Current current(*gpu_);
  gpu_->driver().cuMemFree(address_);
}

// ---- the rank

Engine::Engine(std::shared_ptr<Gpu> gpu, const Setup& setup) : gpu_(std::move(gpu)), setup_(setup) {
  layout_.ranks = setup.ranks;
  layout_.channels = setup.channels;
}

Result<std::unique_ptr<Engine>> Engine::create(const std::shared_ptr<Gpu>& gpu, const Setup& setup) {
  std::unique_ptr<Engine> engine(new Engine(gpu, setup));
  KOLO_TRY(engine->allocate());
  return engine;
}

Status Engine::allocate() {
  const Gpu::Current current(*gpu_);
  const auto ranks = static_cast<std::uint64_t>(setup_.ranks), channels = static_cast<std::uint64_t>(setup_.channels);
  const auto allocate = [&](DeviceMemory& memory, std::uint64_t bytes) -> Status {
    KOLO_ASSIGN(memory, DeviceMemory::allocate(gpu_, bytes));
    return gpu_->clear(reinterpret_cast<CUdeviceptr>(memory.as<void>()), bytes);
  };
  arena_ = std::make_shared<DeviceMemory>();
  KOLO_TRY(allocate(*arena_, layout_.bytes()));
  KOLO_TRY(allocate(links_, channels * ranks * sizeof(device::Link)));
  KOLO_TRY(allocate(channels_, channels * sizeof(Channel)));
  KOLO_TRY(allocate(windows_, ranks * setup_.windows * sizeof(void*)));
  void* control = nullptr;
  KOLO_CUDA(gpu_->driver(), cuMemHostAlloc, (&control, sizeof(Control), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  control_ = new (control) Control{};
  KOLO_CUDA(gpu_->driver(), cuEventCreate, (&last_, CU_EVENT_DISABLE_TIMING));
  return {};
}

Engine::~Engine() {
  const Gpu::Current current(*gpu_);
  const drivers::CudaDriver& driver = gpu_->driver();
  if (launched_) driver.cuEventSynchronize(last_);
  for (const auto& buffer : buffers_) {
    if (buffer->used != nullptr) driver.cuEventDestroy(buffer->used);
    if (buffer->memory != nullptr) driver.cuMemFreeHost(buffer->memory);
  }
  if (last_ != nullptr) driver.cuEventDestroy(last_);
  if (control_ != nullptr) driver.cuMemFreeHost(control_);
}

Status Engine::connect(std::vector<std::shared_ptr<DeviceMemory>> arenas) {
  arenas_ = std::move(arenas);
  auto* const mine = arena_->as<unsigned char>();
  const Gpu::Current current(*gpu_);
  std::vector<device::Link> links(static_cast<std::size_t>(setup_.channels) * static_cast<std::size_t>(setup_.ranks));
  for (int channel = 0; channel < setup_.channels; ++channel) {
    for (int peer = 0; peer < setup_.ranks; ++peer) {
      if (peer == setup_.rank) continue;
      auto* const theirs = arenas_[static_cast<std::size_t>(peer)]->as<unsigned char>();
      device::Link& link = links[static_cast<std::size_t>(channel * setup_.ranks + peer)];
      link.peer = peer;
      link.inbox = reinterpret_cast<device::Mailbox*>(mine + layout_.mailboxAt(channel, peer));
      link.inSlots = mine + layout_.slotsAt(channel, peer);
      link.outbox = reinterpret_cast<device::Mailbox*>(theirs + layout_.mailboxAt(channel, setup_.rank));
      link.outSlots = theirs + layout_.slotsAt(channel, setup_.rank);
      link.windows = windows_.as<unsigned char*>() + static_cast<std::uint64_t>(peer) * setup_.windows;
    }
  }
  return gpu_->copy(reinterpret_cast<CUdeviceptr>(links_.as<void>()), links.data(), links.size() * sizeof(device::Link));
}

Status Engine::setWindow(int rank, std::uint32_t index, unsigned char* begin) {
  const Gpu::Current current(*gpu_);
  unsigned char** const place = windows_.as<unsigned char*>() + static_cast<std::uint64_t>(rank) * setup_.windows + index;
  KOLO_TRY(drain());   // what runs may still use the window that was in this place
  return gpu_->copy(reinterpret_cast<CUdeviceptr>(place), &begin, sizeof begin);
}

Status Engine::reserveScratch(std::uint64_t bytes) {
  if (bytes <= scratchBytes_) return {};
  bytes = std::max(roundUp(bytes, kPage), 2 * scratchBytes_);
  KOLO_ASSIGN(DeviceMemory larger, DeviceMemory::allocate(gpu_, bytes));
  outgrown_.push_back(std::exchange(scratch_, std::move(larger)));
  scratchBytes_ = bytes;
  return {};
}

void Engine::complete(device::Work& work) const {
  work.links = links_.as<device::Link>();
  work.slots = layout_.slots;
  work.slotBytes = layout_.slotBytes;
  work.scratch = scratch_.as<unsigned char>();
  work.mayOwe = false;
}

// A buffer whose last launch has ended, or a new one.
Result<Engine::Buffer*> Engine::takeBuffer(std::uint64_t bytes) {
  const drivers::CudaDriver& driver = gpu_->driver();
  for (const auto& buffer : buffers_) {
    if (buffer->used != nullptr && buffer->bytes >= bytes && driver.cuEventQuery(buffer->used) == CUDA_SUCCESS) return buffer.get();
  }
  buffers_.push_back(std::make_unique<Buffer>());   // owned before anything in it can fail
  Buffer* const buffer = buffers_.back().get();
  buffer->bytes = roundUp(bytes, kPage);
  void* memory = nullptr;
  KOLO_CUDA(driver, cuMemHostAlloc, (&memory, buffer->bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  buffer->memory = static_cast<unsigned char*>(memory);
  KOLO_CUDA(driver, cuEventCreate, (&buffer->used, CU_EVENT_DISABLE_TIMING));
  return buffer;
}

Status Engine::enqueue(std::span<device::Work> works, std::uint64_t timeoutNs, CUstream stream) {
  if (works.empty()) return {};
  const Gpu::Current current(*gpu_);
  const drivers::CudaDriver& driver = gpu_->driver();
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  KOLO_CUDA(driver, cuStreamIsCapturing, (stream, &capture));
  if (capture != CU_STREAM_CAPTURE_STATUS_NONE) return error(koloUnsupported, "graph capture is not in this version");
  const bool isDefault = stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  if (setup_.sharesDevice && isDefault) {
    return error(koloInvalidUsage, "a default stream on device {}, which ranks share: their kernels wait for each other and a default "
                 "stream may run them one after the other; expected a stream of each rank's own, made with cudaStreamNonBlocking",
                 setup_.device);
  }

  LaunchParams params{.control = control_, .channels = channels_.as<Channel>(), .timeoutNs = timeoutNs, .list = nullptr,
                      .count = static_cast<std::uint32_t>(works.size()), .works = {}};
  unsigned channels = 0;
  std::uint64_t arrayBytes = 0;
  for (device::Work& work : works) {
    complete(work);
    channels = std::max(channels, static_cast<unsigned>(work.channels));
    arrayBytes += takeArrays(work, nullptr);
  }
  Buffer* buffer = nullptr;
  if (works.size() > kInlineWorks || arrayBytes != 0) {
    const std::uint64_t listBytes = works.size() * sizeof(device::Work);
    KOLO_ASSIGN(buffer, takeBuffer(listBytes + arrayBytes));
    unsigned char* arrays = buffer->memory + listBytes;
    for (device::Work& work : works) arrays += takeArrays(work, arrays);
    std::memcpy(buffer->memory, works.data(), listBytes);
    params.list = reinterpret_cast<const device::Work*>(buffer->memory);
  } else {
    std::copy(works.begin(), works.end(), params.works);
  }

  // Launches of a communicator run one after the other, whatever stream they are in.
  if (launched_) KOLO_CUDA(driver, cuStreamWaitEvent, (stream, last_, 0));
  void* arguments[] = {&params};
  KOLO_CUDA(driver, cuLaunchKernel, (gpu_->kernel(), channels, 1, 1, kBlockThreads, 1, 1, 0, stream, arguments, nullptr));
  KOLO_CUDA(driver, cuEventRecord, (last_, stream));
  launched_ = true;
  if (buffer != nullptr) KOLO_CUDA(driver, cuEventRecord, (buffer->used, stream));
  return {};
}

std::optional<device::Fault> Engine::fault() const {
  if (device::loadAcquire(control_->faults) == 0) return std::nullopt;   // [fault]
  return control_->fault;
}

void Engine::stop() { device::storeRelease(control_->stop, 1); }   // [stop]

Status Engine::drain() {
  if (!launched_) return {};
  const Gpu::Current current(*gpu_);
  KOLO_CUDA(gpu_->driver(), cuEventSynchronize, (last_));
  return {};
}

}  // namespace kolo::executor::cuda
