#include "drivers/cuda/driver.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "base/descriptor.h"

namespace kolo::drivers {
namespace {

std::atomic<const CudaDriver*> mocked{nullptr};

constexpr int kDefaultQueues = 8;  // of CUDA_DEVICE_MAX_CONNECTIONS
std::atomic<int> queuesOfDriver{kDefaultQueues}, queuesOfMock{kMostQueues};

// How often the process has loaded or unloaded a library.
std::uint64_t changesOfLibraries() {
  std::uint64_t changes = 0;
  const auto read = [](dl_phdr_info* info, std::size_t, void* to) {
    *static_cast<std::uint64_t*>(to) = info->dlpi_adds + info->dlpi_subs;
    return 1;  // alike for all libraries
  };
  (void)dl_iterate_phdr(read, &changes);
  return changes;
}

Result<CudaDriver> load() {
  const bool wasLoaded = isCudaLoaded();
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return error(koloUnsupported, "no CUDA device: the driver's library libcuda.so.1 is not installed");
  }
  // If this call initialises the driver: ranks that are threads need more queues than the 8 that there are by
  // default.
  if (!wasLoaded) (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  if (const char* const queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS"); queues != nullptr) {
    queuesOfDriver.store(std::clamp(std::atoi(queues), 1, kMostQueues), std::memory_order_relaxed);
  }
  const StandardStreamsHeld held;
  // The library stays open: what it has started in this process does not end with dlclose().
  KOLO_ASSIGN(const CudaDriver driver,
              cudaFunctions(reinterpret_cast<PFN_cuDriverGetVersion_v2020>(dlsym(library, "cuDriverGetVersion")),
                            reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"))));
  if (const CUresult code = driver.cuInit(0); code != CUDA_SUCCESS) {
    return error(koloUnsupported, "no CUDA device: {}", cudaError(driver, code, "cuInit").message());
  }
  int count = 0;
  if (const CUresult code = driver.cuDeviceGetCount(&count); code != CUDA_SUCCESS || count == 0) {
    return error(koloUnsupported, "no CUDA device: the driver sees {} of them", count);
  }
  return driver;
}

}  // namespace

std::string cudaVersionText(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Result<CudaDriver> cudaFunctions(PFN_cuDriverGetVersion_v2020 version, PFN_cuGetProcAddress_v12000 find) {
  CudaDriver driver;
  const CUresult code = version == nullptr ? CUDA_ERROR_NOT_FOUND : version(&driver.version);
  if (code != CUDA_SUCCESS) {
    return error(koloUnsupported, "no CUDA device: libcuda.so.1 does not tell its version (error {})",
                 static_cast<int>(code));
  }
  if (driver.version < kOldestCuda) {
    return error(koloUnsupported,
                 "no CUDA device: the driver is of CUDA {}, which is too old; expected one of CUDA {} or newer "
                 "(NVIDIA's 535 or newer)",
                 cudaVersionText(driver.version), cudaVersionText(kOldestCuda));
  }
  const char* missing = find == nullptr ? "cuGetProcAddress_v2" : nullptr;
  const auto get = [&](const char* name, int since) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (find == nullptr) return function;
    const CUresult code = find(name, &function, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
    if (code != CUDA_SUCCESS || found != CU_GET_PROC_ADDRESS_SUCCESS || function == nullptr) missing = name;
    return function;
  };
#define KOLO_CUDA_GET(name, since) driver.name = reinterpret_cast<decltype(driver.name)>(get(#name, since));
  KOLO_CUDA_FUNCTIONS(KOLO_CUDA_GET)
#undef KOLO_CUDA_GET
  if (missing == nullptr) return driver;
  return error(koloUnsupported, "no CUDA device: the driver, of CUDA {}, lacks {}", cudaVersionText(driver.version),
               missing);
}

Result<const CudaDriver*> cuda() {
  if (const CudaDriver* mock = mocked.load(std::memory_order_acquire)) return mock;  // [mock] what the test prepared
  static const Result<CudaDriver>& loaded = *new Result<CudaDriver>(load());
  if (!loaded.ok()) return loaded.status();
  return &loaded.value();
}

int streamQueues() {
  const bool isMocked = mocked.load(std::memory_order_acquire) != nullptr;  // [mock]
  return (isMocked ? queuesOfMock : queuesOfDriver).load(std::memory_order_relaxed);
}

bool isCudaLoaded() {
  if (mocked.load(std::memory_order_acquire) != nullptr) return true;  // [mock]
  // dlopen() of what is not loaded looks through folders: it is asked again only when the process has loaded something
  // since.
  static std::atomic<std::uint64_t> known{0};  // 2 * changesOfLibraries() + the answer
  const std::uint64_t changes = changesOfLibraries(), before = known.load(std::memory_order_relaxed);
  if (before >> 1 == changes) return (before & 1) != 0;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library != nullptr) dlclose(library);  // the count only: it stays loaded
  known.store(2 * changes + (library != nullptr ? 1 : 0), std::memory_order_relaxed);
  return library != nullptr;
}

void setCuda(const CudaDriver* mock, int queues) {
  queuesOfMock.store(queues, std::memory_order_relaxed);
  mocked.store(mock, std::memory_order_release);  // [mock]
}

Status cudaError(const CudaDriver& driver, CUresult code, const char* function) {
  const char *name = nullptr, *text = nullptr;
  if (driver.cuGetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown";
  if (driver.cuGetErrorString(code, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  const koloResult_t result = code == CUDA_ERROR_OUT_OF_MEMORY ? koloOutOfMemory : koloSystemError;
  return error(result, "{}: {} ({})", function, text, name);
}

}  // namespace kolo::drivers
