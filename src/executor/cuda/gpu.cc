#include "executor/cuda/gpu.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "base/log.h"
#include "drivers/cuda/devices.h"

// The machine code, and the PTX of the last architecture. They are apart, so that the driver tells whether it has to
// assemble the PTX before it does.
extern "C" const unsigned char koloKernels[], koloKernelsText[];

namespace kolo::executor::cuda {
namespace {

constexpr std::uint64_t kLeastLent = 4096;
constexpr int kLaunchTrials = 4;
constexpr std::uint64_t kIdleTrialNs = 20'000'000;

// What the driver has told a thread.
struct KnownAllocation {
  const void* address = nullptr;
  Gpu::Allocation allocation;
};
struct KnownStream {
  unsigned long long id = 0;
  std::optional<CUcontext> context;
  std::optional<unsigned> flags;
};

// The visit of a thread, and what it has been told.
struct Visited {
  const Gpu* gpu = nullptr;
  bool relaxed = false;  // its captures forbid it nothing

  // As long as the visit: the caller may free a buffer, or destroy a stream, as soon as the call has returned, and get
  // the same address for another. Longer than that only the driver can tell; asked whether an address still belongs to
  // the same allocation, it has told everything.
  std::array<KnownAllocation, 4> allocations;
  std::size_t nextAllocation = 0;
  CUstream stream = nullptr;
  unsigned long long streamId = 0;  // 0: not asked for

  // As long as the thread: by id, which no other stream ever has.
  std::array<KnownStream, 16> streams;
  std::size_t nextStream = 0;

  void forget() {
    allocations.fill({});
    streamId = 0;
  }
};
thread_local constinit Visited visited;

KnownStream& knownStream(unsigned long long id) {
  for (KnownStream& known : visited.streams) {
    if (known.id == id) return known;
  }
  KnownStream& known = visited.streams[visited.nextStream++ % visited.streams.size()];
  known = {.id = id, .context = std::nullopt, .flags = std::nullopt};
  return known;
}

}  // namespace

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
  const CUresult code = driver_.cuModuleLoadData(&module_, koloKernels);
  if (code == CUDA_ERROR_NO_BINARY_FOR_GPU) return {};  // assemble() is next
  return code == CUDA_SUCCESS ? prepare() : noKernels(code);
}

Status Gpu::assemble() {
  static auto* const assembly = new std::mutex;  // one at a time: the next device finds what the driver has kept
  const std::lock_guard lock(*assembly);
  if (!mustAssemble()) return {};
  if (assembled_.has_value()) return *assembled_;
  if (koloKernelsText[0] != 0) {
    log::warn(
        "this library has no machine code for device {}, whose driver assembles the kernels now; that takes minutes "
        "unless it has kept them from another time; {}",
        ordinal_, howToHaveKernels());
  }
  const Current current(*this);
  const CUresult code = driver_.cuModuleLoadData(&module_, koloKernelsText);
  assembled_ = code == CUDA_SUCCESS ? prepare() : noKernels(code);
  return *assembled_;
}

// The kernels are loaded, and the context is the thread's.
Status Gpu::prepare() {
  KOLO_CUDA(driver_, cuModuleGetFunction, (&runFew_, module_, "koloRunFew"));
  KOLO_CUDA(driver_, cuModuleGetFunction, (&runBlocks_, module_, "koloRunBlocks"));
  KOLO_CUDA(driver_, cuModuleGetFunction, (&runLists_, module_, "koloRunLists"));
  KOLO_CUDA(driver_, cuModuleGetFunction, (&moveLine_, module_, "koloMoveLine"));
  int blocks = 0, multiprocessors = 0;
  KOLO_CUDA(driver_, cuOccupancyMaxActiveBlocksPerMultiprocessor, (&blocks, runBlocks_, kBlockThreads, 0));
  KOLO_CUDA(driver_, cuDeviceGetAttribute, (&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device_));
  // A driver of CUDA 12.2 does not tell whether there is MPS. Processes share the blocks then: with MPS, kernels of two
  // that have all would wait for blocks that never begin.
  mps_ = attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 1) != 0;
  canRing_ = attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0) != 0;
  hasDomains_ = attribute(CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 1) > 1;
  const double clockKhz = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 0);
  const double widthBits = attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 0);
  description_.memoryGBps = 2 * clockKhz * widthBits / 8 / 1e6;  // two transfers a clock
  description_.cacheBytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 0);
  KOLO_CUDA(driver_, cuDeviceGetUuid, (&description_.uuid, device_));
  residentBlocks_ = blocks * multiprocessors;
  KOLO_CUDA(driver_, cuStreamCreate, (&copies_, CU_STREAM_NON_BLOCKING));
  if (residentBlocks_ == 0)
    return error(koloUnsupported, "device {} cannot hold one block of {} threads", ordinal_, kBlockThreads);
  Status status = tryKernels();
  if (!status.ok() && hasDomains_) {  // a driver may refuse to launch in a domain
    hasDomains_ = false;
    status = tryKernels();
  }
  if (!status.ok()) return error(status.code(), "the kernels do not run on device {}: {}", ordinal_, status.message());
  isReady_.store(true,
                 std::memory_order_release);  // [ready] all that this has set is seen by who finds the device ready
  return {};
}

std::string Gpu::howToHaveKernels() const {
  const int major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0);
  const int minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0);
  return drivers::howToHaveKernels(fmt::format("{}{}", major, minor));
}

// Of an image that the driver does not load. A driver takes the machine code of no toolkit of a later major version,
// and the PTX of no later one at all.
Status Gpu::noKernels(CUresult code) const {
  Status why = drivers::cudaError(driver_, code, "cuModuleLoadData");
  const bool isTooNew = CUDA_VERSION / 1000 > driver_.version / 1000 || code == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  const bool lacksCode = code == CUDA_ERROR_NO_BINARY_FOR_GPU || code == CUDA_ERROR_JIT_COMPILER_NOT_FOUND ||
                         code == CUDA_ERROR_JIT_COMPILATION_DISABLED || code == CUDA_ERROR_INVALID_PTX;
  if (koloKernels[0] != 0 && !lacksCode && !isTooNew) return why;
  const std::string built = drivers::cudaVersionText(CUDA_VERSION), has = drivers::cudaVersionText(driver_.version);
  return error(koloUnsupported, "this library has no kernels for device {}: {}{} ({})", ordinal_, howToHaveKernels(),
               isTooNew
                   ? fmt::format(", by a CUDA toolkit that is not newer than the driver, or update the driver: it is "
                                 "of CUDA {}, and the toolkit was of CUDA {}",
                                 has, built)
                   : "",
               why.message());
}

// What is not needed to use the device: `unknown` where the driver does not tell.
int Gpu::attribute(CUdevice_attribute which, int unknown) const {
  int value = 0;
  return driver_.cuDeviceGetAttribute(&value, which, device_) == CUDA_SUCCESS ? value : unknown;
}

Status Gpu::launch(const LaunchParams& params, unsigned blocks, CUstream stream) const {
  if (params.apart == nullptr && params.count > kFewWorks) return launch(params, {}, blocks, stream);
  return launchFew(runFew_, params, blocks, stream);
}

Status Gpu::launchLists(const LaunchParams& params, unsigned blocks, CUstream stream) const {
  return launchFew(runLists_, params, blocks, stream);
}

Status Gpu::launchFew(CUfunction kernel, const LaunchParams& params, unsigned blocks, CUstream stream) const {
  FewParams few;
  static_cast<LaunchHead&>(few) = params;
  if (params.apart == nullptr) std::copy_n(params.works, params.count, few.works);
  void* arguments[] = {&few};  // the driver copies it
  return launchKernel(kernel, blocks, kBlockThreads, stream, arguments);
}

Status Gpu::launch(const LaunchParams& params, const ServeParams& serve, unsigned blocks, CUstream stream) const {
  void* arguments[] = {const_cast<LaunchParams*>(&params), const_cast<ServeParams*>(&serve)};
  return launchKernel(runBlocks_, blocks, kBlockThreads, stream, arguments);
}

// In the remote domain of memory synchronisation, where the device has several: a fence of system scope waits for the
// stores of all kernels in its own domain. So this kernel's fences do not wait for what the program's kernels store
// meanwhile, nor theirs for stores to peers. Nothing less than system scope orders memory between two domains, and the
// kernels use nothing less between blocks (device/atomics.h); the beginning and the end of a kernel order all.
Status Gpu::launchKernel(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream,
                         void** arguments) const {
  CUlaunchAttribute domain{};
  domain.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
  domain.value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  CUlaunchConfig config{};
  config.gridDimX = blocks;
  config.blockDimX = threads;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &domain;
  config.numAttrs = hasDomains_ ? 1 : 0;
  KOLO_CUDA(driver_, cuLaunchKernelEx, (&config, kernel, arguments, nullptr));
  return {};
}

Status Gpu::launchResident(const ServeParams& serve, unsigned blocks, CUstream stream) const {
  LaunchParams none{};
  none.control = serve.control;
  return launch(none, serve, blocks, stream);
}

// Launches with nothing to do, in memory of the host, which needs none of the driver's copies. The first launch of a
// kernel may make the driver resize what threads have of local memory, and wait for all that runs: later that could be
// a kernel of another rank, which waits for this launch.
Status Gpu::tryKernels() {
  struct Tried {
    Control control;
    ChannelState channel;
    Resident resident;
  };
  KOLO_ASSIGN(const Lent pinned, lend(Lent::Where::kHost, sizeof(Tried)));
  auto* const tried = new (pinned.as<void>()) Tried{};
  Control* const control = &tried->control;
  LaunchParams params{};
  params.control = control;
  params.channels = &tried->channel;
  ServeParams serve{.control = control,
                    .channels = &tried->channel,
                    .resident = &tried->resident,
                    .places = nullptr,
                    .instance = 0,
                    .first = 1,
                    .idleNs = kIdleTrialNs};
  KOLO_TRY(launch(params, 1, copies_));
  KOLO_TRY(launchLists(params, 1, copies_));
  KOLO_TRY(launch(params, ServeParams{}, 1, copies_));
  KOLO_TRY(tryLaunches(*control, serve));
  return moveLine(&tried->resident, &tried->channel);  // waits for all of them
}

// The resident kernel, which has nothing to do and retires after a while, unless it is told to quit at once. Launches
// block if each has retired before its launch returned: a single one may have done so while this thread had no core.
Status Gpu::tryLaunches(Control& control, ServeParams serve) {
  launchesBlock_ = true;
  for (int i = 0; i < kLaunchTrials && launchesBlock_; ++i) {
    device::storeRelaxed(control.quit, 0);
    ++serve.instance;
    KOLO_TRY(launchResident(serve, 1, copies_));
    launchesBlock_ = device::loadAcquire(control.asleep) == serve.instance;  // [asleep]
    device::storeRelease(control.quit, 1);                                   // [quit]
    KOLO_CUDA(driver_, cuStreamSynchronize, (copies_));
  }
  return {};
}

Gpu::~Gpu() {
  if (context_ == nullptr) return;
  {
    const Current current(*this);
    // Not all that frees or unmaps memory waits for the kernels that use it.
    if (!stillInUse_.empty() || !kept_.empty()) (void)driver_.cuCtxSynchronize();
    if (copies_ != nullptr) driver_.cuStreamDestroy(copies_);
    if (module_ != nullptr) driver_.cuModuleUnload(module_);
    for (const auto& [kind, idle] : idle_) {
      for (unsigned char* const memory : idle) {
        free(kind.first, memory);
      }
    }
    for (const auto& [where, memory] : stillInUse_) free(where, memory);
    mapped_.clear();
    for (std::shared_ptr<const void>& memory : kept_)
      memory.reset();  // in this order: windows go before what opened them
  }
  driver_.cuDevicePrimaryCtxRelease(device_);
}

int Gpu::take(int wanted) {
  int taken = taken_.load(std::memory_order_relaxed);
  for (;;) {
    const int got = std::clamp(residentBlocks_ - taken, 0, wanted);
    if (taken_.compare_exchange_weak(taken, taken + got, std::memory_order_relaxed)) return got;
  }
}

bool Gpu::takeResidentStream() {
  const int most = drivers::streamQueues() / 2 -
                   2;  // beside the device's stream for copies, the default one, and two of the program's
  int taken = residentStreams_.load(std::memory_order_relaxed);
  do {
    if (taken >= most) return false;
  } while (!residentStreams_.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed));
  return true;
}

// In powers of two, so that what one communicator gives back fits the next.
Result<Lent> Gpu::lend(Lent::Where where, std::uint64_t bytes) {
  Lent lent;
  lent.where_ = where;
  lent.bytes_ = std::bit_ceil(std::max(bytes, kLeastLent));
  {
    const std::lock_guard lock(mutex_);
    std::vector<unsigned char*>& idle = idle_[{where, lent.bytes_}];
    if (!idle.empty()) {
      lent.begin_ = idle.back();
      idle.pop_back();
    }
  }
  if (lent.begin_ == nullptr) {
    KOLO_ASSIGN(lent.begin_, allocate(where, lent.bytes_));
  }
  lent.gpu_ = shared_from_this();
  return lent;
}

Result<unsigned char*> Gpu::allocate(Lent::Where where, std::uint64_t bytes) {
  const Current current(*this);
  if (where == Lent::Where::kHost) {
    void* memory = nullptr;
    KOLO_CUDA(driver_, cuMemHostAlloc, (&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    return static_cast<unsigned char*>(memory);
  }
  if (where == Lent::Where::kMapped) {
    KOLO_ASSIGN(memory::DeviceMemory memory, memory::DeviceMemory::create(ordinal_, bytes, true));
    const std::lock_guard lock(mutex_);
    return mapped_.emplace_back(std::move(memory)).as();
  }
  CUdeviceptr memory = 0;
  KOLO_CUDA(driver_, cuMemAlloc, (&memory, bytes));
  return reinterpret_cast<unsigned char*>(memory);
}

// With the device's context current.
void Gpu::free(Lent::Where where, unsigned char* memory) const {
  if (where == Lent::Where::kHost) (void)driver_.cuMemFreeHost(memory);
  else if (where == Lent::Where::kDevice) (void)driver_.cuMemFree(reinterpret_cast<CUdeviceptr>(memory));
}

void Gpu::takeBack(const Lent& lent) {
  const std::lock_guard lock(mutex_);
  if (lent.mayStayInUse_) stillInUse_.emplace_back(lent.where_, lent.begin_);
  else idle_[{lent.where_, lent.bytes_}].push_back(lent.begin_);
}

void Gpu::keep(std::shared_ptr<const void> memory) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(memory));
}

Lent& Lent::operator=(Lent&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(where_, other.where_);
  std::swap(bytes_, other.bytes_);
  std::swap(mayStayInUse_, other.mayStayInUse_);
  std::swap(begin_, other.begin_);
  return *this;
}

Lent::~Lent() {
  if (gpu_ != nullptr) gpu_->takeBack(*this);
}

Status Gpu::clear(CUdeviceptr to, std::uint64_t bytes) const {
  const Current current(*this);
  KOLO_CUDA(driver_, cuMemsetD8Async, (to, 0, bytes, copies_));
  KOLO_CUDA(driver_, cuStreamSynchronize, (copies_));
  return {};
}

Status Gpu::upload(CUdeviceptr to, const void* from, std::uint64_t bytes) const {
  const Current current(*this);
  KOLO_CUDA(driver_, cuMemcpyHtoDAsync, (to, from, bytes, copies_));
  KOLO_CUDA(driver_, cuStreamSynchronize, (copies_));
  return {};
}

Status Gpu::moveLine(void* to, const void* from) const {
  const Current current(*this);
  void* arguments[] = {&to, &from};
  KOLO_TRY(launchKernel(moveLine_, 1, kLineWords, copies_, arguments));
  KOLO_CUDA(driver_, cuStreamSynchronize, (copies_));
  return {};
}

// ---- visits

const Gpu* Gpu::enter() const {
  if (visited.gpu == this || driver_.cuCtxPushCurrent(context_) != CUDA_SUCCESS) return this;
  visited.forget();
  return std::exchange(visited.gpu, this);
}

void Gpu::leave(const Gpu* before) const {
  if (before == this) return;
  (void)driver_.cuCtxPopCurrent(nullptr);
  visited.forget();
  visited.gpu = before;
}

bool Gpu::Current::relax(const drivers::CudaDriver& driver, CUstreamCaptureMode& mode) {
  if (!visited.relaxed) (void)driver.cuThreadExchangeStreamCaptureMode(&mode);
  return std::exchange(visited.relaxed, true);
}

void Gpu::Current::restore(const drivers::CudaDriver& driver, CUstreamCaptureMode mode, bool wasRelaxed) {
  if (wasRelaxed) return;
  (void)driver.cuThreadExchangeStreamCaptureMode(&mode);
  visited.relaxed = false;
}

Result<Gpu::Allocation> Gpu::allocationAt(const void* address) const {
  const Visit visit(*this);
  const bool isVisited = visited.gpu == this;  // not where the driver has refused the context
  for (const KnownAllocation& known : visited.allocations) {
    if (isVisited && known.address == address && address != nullptr) return known.allocation;
  }
  Allocation allocation;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* data[] = {&allocation.type, &allocation.ordinal, &allocation.id};
  KOLO_CUDA(driver_, cuPointerGetAttributes, (3, which, data, reinterpret_cast<CUdeviceptr>(address)));
  if (isVisited) visited.allocations[visited.nextAllocation++ % visited.allocations.size()] = {address, allocation};
  return allocation;
}

Result<unsigned long long> Gpu::idOf(CUstream stream) const {
  const Visit visit(*this);
  const bool isVisited = visited.gpu == this;
  if (isVisited && visited.streamId != 0 && visited.stream == stream) return visited.streamId;
  unsigned long long id = 0;
  KOLO_CUDA(driver_, cuStreamGetId, (stream, &id));
  if (isVisited) {
    visited.stream = stream;
    visited.streamId = id;
  }
  return id;
}

Result<CUcontext> Gpu::contextOf(CUstream stream) const {
  KOLO_ASSIGN(const unsigned long long id, idOf(stream));
  KnownStream& known = knownStream(id);
  if (known.context.has_value()) return *known.context;
  CUcontext context = nullptr;
  KOLO_CUDA(driver_, cuStreamGetCtx, (stream, &context));
  known.context = context;
  return context;
}

Result<unsigned> Gpu::flagsOf(CUstream stream) const {
  KOLO_ASSIGN(const unsigned long long id, idOf(stream));
  KnownStream& known = knownStream(id);
  if (known.flags.has_value()) return *known.flags;
  unsigned flags = CU_STREAM_DEFAULT;
  KOLO_CUDA(driver_, cuStreamGetFlags, (stream, &flags));
  known.flags = flags;
  return flags;
}

}  // namespace kolo::executor::cuda
