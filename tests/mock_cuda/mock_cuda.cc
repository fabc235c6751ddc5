#include "mock_cuda/mock_cuda.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <type_traits>

#include "mock_cuda/device_memory.h"
#include "mock_cuda/world.h"

extern "C" const unsigned char koloKernels[], koloKernelsText[];  // the images that the library loads
extern "C" const unsigned char koloProbeKernels[];                // and that tests/gpu_probe has

namespace kolo::test::mock {

World* world = nullptr;

namespace {

// ---- what is common to all functions

// Those that might wait for a stream that is being captured.
constexpr std::array<std::string_view, 12> kUnsafeInCapture = {
    "cuMemAlloc",         "cuMemFree",           "cuMemHostAlloc", "cuMemFreeHost",
    "cuMemHostRegister",  "cuMemHostUnregister", "cuEventQuery",   "cuMemcpyHtoD",
    "cuEventSynchronize", "cuStreamSynchronize", "cuMemcpyDtoH",   "cuCtxSynchronize"};

CUresult enter(const char* function, bool unsafe) {
  if (insideDestructor) world->calledFromDestructor = true;
  if (const int device = currentDevice(); device >= 0) {
    const std::lock_guard passes(world->contextLocks[static_cast<std::size_t>(device)]);
  }
  {
    const std::lock_guard lock(world->mutex);
    if (world->properties.failing == function) return world->failure;
  }
  return unsafe && forbiddenByCapture() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

template <class Table>
Table plain;  // the functions by themselves

// How often each function of the library's table has been called. The table is made once and outlives all mocks.
std::vector<std::pair<const char*, const std::atomic<std::uint64_t>*>>& counters() {
  static auto* const all = new std::vector<std::pair<const char*, const std::atomic<std::uint64_t>*>>;
  return *all;
}

template <auto member>
struct Entry;
template <class Table, class... Arguments, CUresult (*Table::*member)(Arguments...)>
struct Entry<member> {
  static inline const char* name = nullptr;
  static inline bool unsafe = false;
  static inline std::atomic<std::uint64_t> calls{0};

  static CUresult call(Arguments... arguments) {
    calls.fetch_add(1, std::memory_order_relaxed);
    const CUresult result = enter(name, unsafe);
    return result == CUDA_SUCCESS ? (plain<Table>.*member)(arguments...) : result;
  }
  static auto* of(const char* function) {
    if (plain<Table>.*member == nullptr) {
      std::fprintf(stderr, "the mock of the CUDA driver lacks %s\n", function);
      std::abort();
    }
    name = function;
    if constexpr (std::is_same_v<Table, drivers::CudaDriver>) counters().emplace_back(function, &calls);
    unsafe = std::find(kUnsafeInCapture.begin(), kUnsafeInCapture.end(), function) != kUnsafeInCapture.end();
    return &call;
  }
};

// ---- errors

struct ErrorName {
  CUresult code;
  const char* name;
};
#define KOLO_MOCK_ERROR(name) \
  ErrorName { name, #name }
constexpr std::array kErrors = {
    KOLO_MOCK_ERROR(CUDA_SUCCESS),
    KOLO_MOCK_ERROR(CUDA_ERROR_INVALID_VALUE),
    KOLO_MOCK_ERROR(CUDA_ERROR_OUT_OF_MEMORY),
    KOLO_MOCK_ERROR(CUDA_ERROR_INVALID_IMAGE),
    KOLO_MOCK_ERROR(CUDA_ERROR_INVALID_CONTEXT),
    KOLO_MOCK_ERROR(CUDA_ERROR_INVALID_DEVICE),
    KOLO_MOCK_ERROR(CUDA_ERROR_INVALID_HANDLE),
    KOLO_MOCK_ERROR(CUDA_ERROR_ILLEGAL_STATE),
    KOLO_MOCK_ERROR(CUDA_ERROR_NOT_FOUND),
    KOLO_MOCK_ERROR(CUDA_ERROR_NOT_READY),
    KOLO_MOCK_ERROR(CUDA_ERROR_NOT_SUPPORTED),
    KOLO_MOCK_ERROR(CUDA_ERROR_OPERATING_SYSTEM),
    KOLO_MOCK_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS),
    KOLO_MOCK_ERROR(CUDA_ERROR_LAUNCH_FAILED),
    KOLO_MOCK_ERROR(CUDA_ERROR_CAPTURED_EVENT),
    KOLO_MOCK_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
    KOLO_MOCK_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    KOLO_MOCK_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    KOLO_MOCK_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    KOLO_MOCK_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    KOLO_MOCK_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE),
    KOLO_MOCK_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
    KOLO_MOCK_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
    KOLO_MOCK_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
    KOLO_MOCK_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
    KOLO_MOCK_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
};
#undef KOLO_MOCK_ERROR

CUresult errorName(CUresult code, const char** text) {
  *text = "CUDA_ERROR_MOCK";
  for (const ErrorName& error : kErrors) {
    if (error.code == code) *text = error.name;
  }
  return CUDA_SUCCESS;
}

CUresult errorString(CUresult code, const char** text) {
  if (code == CUDA_ERROR_UNKNOWN) *text = "the mock was told to fail";
  else errorName(code, text);
  return CUDA_SUCCESS;
}

// ---- devices, modules

constexpr int kKnowsMps = 12040;  // CUDA 12.2 does not have the attribute

CUresult deviceUuid(CUuuid* uuid, CUdevice device) {
  *uuid = {};
  std::snprintf(uuid->bytes, sizeof uuid->bytes, "kolo-mock-%d", device);
  return CUDA_SUCCESS;
}

CUresult deviceAttribute(int* value, CUdevice_attribute which, CUdevice) {
  const MockCuda& properties = world->properties;
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      if (!properties.describesItself) return CUDA_ERROR_NOT_SUPPORTED;
      *value = 0;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = properties.multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *value = properties.sharesByFile ? 1 : 0;
      break;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
      if (properties.version < kKnowsMps) return CUDA_ERROR_INVALID_VALUE;
      *value = properties.mps ? 1 : 0;
      break;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: *value = properties.dmaBuf ? 1 : 0; break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: *value = properties.peerMemory ? 1 : 0; break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      *value =
          properties.ordersWrites ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER : CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
      break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT: *value = properties.syncDomains; break;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: *value = properties.streamMemoryOps ? 1 : 0; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

void addDevices(drivers::CudaDriver& d) {
  d.cuInit = [](unsigned) { return CUDA_SUCCESS; };
  d.cuGetErrorName = errorName;
  d.cuGetErrorString = errorString;
  d.cuDeviceGetCount = [](int* count) {
    *count = world->properties.devices;
    return CUDA_SUCCESS;
  };
  d.cuDeviceGet = [](CUdevice* device, int ordinal) {
    if (ordinal < 0 || ordinal >= world->properties.devices) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  };
  d.cuDeviceGetName = [](char* text, int bytes, CUdevice) {
    if (!world->properties.describesItself) return CUDA_ERROR_NOT_SUPPORTED;
    std::snprintf(text, static_cast<std::size_t>(bytes), "Mock GPU");
    return CUDA_SUCCESS;
  };
  d.cuDeviceGetPCIBusId = [](char* text, int bytes, CUdevice device) {
    if (!world->properties.describesItself) return CUDA_ERROR_NOT_SUPPORTED;
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device));
    return CUDA_SUCCESS;
  };
  d.cuDeviceGetUuid = deviceUuid;
  d.cuDeviceTotalMem = [](std::size_t* bytes, CUdevice) {
    if (!world->properties.describesItself) return CUDA_ERROR_NOT_SUPPORTED;
    *bytes = kDeviceBytes;
    return CUDA_SUCCESS;
  };
  d.cuDeviceGetAttribute = deviceAttribute;
  d.cuDeviceCanAccessPeer = [](int* possible, CUdevice, CUdevice) {
    *possible = world->properties.peersReach ? 1 : 0;
    return CUDA_SUCCESS;
  };
}

void addModules(drivers::CudaDriver& d) {
  d.cuModuleLoadData = [](CUmodule* module, const void* image) {
    if (image != koloKernels && image != koloKernelsText && image != koloProbeKernels) return CUDA_ERROR_INVALID_IMAGE;
    if (currentDevice() < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (image == koloKernels && currentDevice() == world->properties.assembledDevice)
      return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (image == koloKernelsText) std::this_thread::sleep_for(world->properties.assembly);
    *module = reinterpret_cast<CUmodule>(++world->lastId);
    const std::lock_guard lock(world->mutex);
    world->modules[*module] = currentDevice();
    std::erase_if(world->loaded, [](const auto& kernel) { return kernel.first == currentDevice(); });
    return CUDA_SUCCESS;
  };
  d.cuModuleUnload = [](CUmodule module) {
    const std::lock_guard lock(world->mutex);
    return world->modules.erase(module) == 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  };
  d.cuModuleGetFunction = [](CUfunction* function, CUmodule module, const char* name) {
    const std::lock_guard lock(world->mutex);
    if (world->modules.count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
    const Kernel* const kernel = findKernel(name);
    *function = reinterpret_cast<CUfunction>(const_cast<Kernel*>(kernel));
    return kernel == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
  };
  d.cuModuleGetLoadingMode = [](CUmoduleLoadingMode* mode) {
    *mode = world->properties.lazyLoading ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
  };
  d.cuOccupancyMaxActiveBlocksPerMultiprocessor = [](int* blocks, CUfunction, int, std::size_t) {
    *blocks = 1;
    return CUDA_SUCCESS;
  };
}

// ---- the tables

// The library's functions, by the driver's names.
std::map<std::string_view, void*> makeFunctions() {
  drivers::CudaDriver& d = plain<drivers::CudaDriver>;
  addDevices(d);
  addContexts(d);
  addModules(d);
  addMemory(d);
  addVirtualMemory(d);
  addIpc(d);
  addCopies(d);
  addStreams(d);
  addEvents(d);
  addCapture(d);
  addGraphs(d);
  std::map<std::string_view, void*> functions;
#define KOLO_MOCK_ENTRY(name, version) \
  functions[#name] = reinterpret_cast<void*>(Entry<&drivers::CudaDriver::name>::of(#name));
  KOLO_CUDA_FUNCTIONS(KOLO_MOCK_ENTRY)
#undef KOLO_MOCK_ENTRY
  return functions;
}

CUresult driverVersion(int* version) {
  *version = world->properties.version;
  return CUDA_SUCCESS;
}

// A function of a version that is newer than the driver is not there.
CUresult procAddress(const char* name, void** function, int version, cuuint64_t,
                     CUdriverProcAddressQueryResult* found) {
  static const std::map<std::string_view, void*> functions = makeFunctions();
  const auto place = functions.find(name);
  const bool isThere = version <= world->properties.version && place != functions.end();
  *function = isThere ? place->second : nullptr;
  *found = isThere ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return isThere ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CudaForTests makeForTests() {
  CudaForTests& d = plain<CudaForTests>;
  addCapture(d);
  addGraphs(d);
  addLaunch(d);
  addMemoryInfo(d);
  CudaForTests table;
#define KOLO_MOCK_ENTRY(name) table.name = Entry<&CudaForTests::name>::of(#name);
  KOLO_CUDA_TEST_FUNCTIONS(KOLO_MOCK_ENTRY)
#undef KOLO_MOCK_ENTRY
  return table;
}

// What is left, in words.
std::string findings() {
  std::string left;
  const auto say = [&](const char* what, std::size_t count) {
    if (count != 0) left += std::to_string(count) + " " + what + " ";
  };
  const auto ranges = [](std::initializer_list<Kind> kinds) {
    return static_cast<std::size_t>(std::count_if(world->memory.begin(), world->memory.end(), [&](const auto& entry) {
      return std::find(kinds.begin(), kinds.end(), entry.second.kind) != kinds.end();
    }));
  };
  say("allocations", ranges({Kind::kDevice, Kind::kPool, Kind::kHost}));
  say("handles", world->handles.size());
  say("reservations", world->reservations.size());
  say("mappings", ranges({Kind::kMapped}));
  say("imports", ranges({Kind::kImported}));
  say("registrations", ranges({Kind::kRegistered}));
  say("streams", world->streams.size());
  say("events", world->events.size());
  say("captures", world->captures.size());
  say("graphs", world->graphs.size());
  say("executable graphs", world->execs.size());
  say("user objects", world->userObjects);
  say("modules", world->modules.size());
  left += world->lost;
  if (world->calledFromDestructor) left += "a user object's destructor called the driver ";
  return left;
}

}  // namespace

// As the library makes it of a driver's library. One for all mocks, of which each has what its version has.
const drivers::CudaDriver* mockedDriver() {
  static drivers::CudaDriver driver;
  Result<drivers::CudaDriver> made = drivers::cudaFunctions(driverVersion, procAddress);
  if (!made.ok()) {
    std::fprintf(stderr, "the mock of the CUDA driver: %s\n", made.status().message().c_str());
    std::abort();
  }
  driver = made.value();
  return &driver;
}

const CudaForTests& mockedForTests() {
  static const CudaForTests table = makeForTests();
  return table;
}

}  // namespace kolo::test::mock

namespace kolo::test {

using mock::world;

namespace {

std::uint64_t lastId = 0;  // of the mocks before: ids are unique over the process's life, as the driver's

// An abort that has waited for kernels frees its communicator later, in a thread of the library. That is waited for.
// The tests hold each context meanwhile, so that it is not that thread that resets it.
void awaitLibrary() {
  for (int device = 0; device < world->properties.devices; ++device) holdContext(device);
  const auto isFree = [](const std::atomic<int>& holders) { return holders <= 1; };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!std::all_of(world->contexts.begin(), world->contexts.end(), isFree) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

void MockCuda::install() const {
  world = new mock::World;
  world->properties = *this;
  if (const char* const blocks = std::getenv("CUDA_LAUNCH_BLOCKING");
      blocks != nullptr && std::strcmp(blocks, "1") == 0) {
    world->properties.blockingLaunches = true;
  }
  if (const char* const older = std::getenv("KOLO_MOCK_CUDA_VERSION"); older != nullptr)
    world->properties.version = std::atoi(older);
  world->lastId = lastId;
  world->contexts = std::vector<std::atomic<int>>(static_cast<std::size_t>(devices));
  world->contextLocks = std::vector<std::mutex>(static_cast<std::size_t>(devices));
  drivers::setCuda(mock::mockedDriver(), connections != 0 ? static_cast<int>(connections) : 32);
}

std::string MockCuda::remove() {
  awaitLibrary();
  world->defaults.clear();
  world->dying.clear();
  for (const auto& [handle, stream] : world->streams) stream->synchronize();
  world->janitor.synchronize();
  std::string left = mock::findings();
  releaseContexts();
  for (const std::atomic<int>& holders : world->contexts) {
    if (holders != 0) left += std::to_string(holders) + " holders of a context ";
  }
  drivers::setCuda(nullptr);
  lastId = world->lastId;
  delete world;
  world = nullptr;
  return left;
}

std::uint64_t MockCuda::slices() { return world->slices.taken(); }
std::uint64_t MockCuda::launches() { return world->launches; }
std::uint64_t MockCuda::remoteLaunches() { return world->remoteLaunches; }
std::uint64_t MockCuda::parameterBytes() { return world->parameterBytes; }

std::map<std::string, std::uint64_t> MockCuda::calls() {
  std::map<std::string, std::uint64_t> calls;
  for (const auto& [function, count] : mock::counters()) calls[function] = count->load(std::memory_order_relaxed);
  return calls;
}

std::size_t MockCuda::nodesInARow(CUgraph graph) {
  const std::lock_guard lock(world->mutex);
  const auto& nodes = reinterpret_cast<const mock::Graph*>(graph)->nodes;
  std::vector<std::size_t> upTo(nodes.size(), 1);
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    for (const std::size_t before : nodes[node].after) upTo[node] = std::max(upTo[node], upTo[before] + 1);
  }
  return upTo.empty() ? 0 : *std::max_element(upTo.begin(), upTo.end());
}

unsigned MockCuda::mostBlocksAtOnce() {
  const std::lock_guard lock(world->mutex);
  return world->mostBlocks;
}

void MockCuda::failFrom(const std::string& function, CUresult result) {
  const std::lock_guard lock(world->mutex);
  world->properties.failing = function;
  world->failure = result;
}

void MockCuda::blockLaunches(bool block) {
  const std::lock_guard lock(world->mutex);
  world->properties.blockingLaunches = block;
}

void MockCuda::breakDevice(CUresult error) { world->broken = error; }

}  // namespace kolo::test
