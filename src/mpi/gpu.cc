#include "mpi/gpu.h"

#if KOLO_HAVE_CUDA
#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#endif

namespace kolo::mpi::gpu {

#if KOLO_HAVE_CUDA

namespace {

// The names are the driver's; cuda.h makes the current version of each out of them.
#define KOLO_MPI_CUDA(X) \
  X(cuPointerGetAttributes) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxPushCurrent) X(cuCtxPopCurrent) \
  X(cuMemcpyDtoH) X(cuMemcpyHtoD) X(cuMemcpy2D) X(cuGetErrorName)
#define KOLO_TEXT_(name) #name
#define KOLO_TEXT(name) KOLO_TEXT_(name)   // of what cuda.h makes of the name

struct Driver {
#define KOLO_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  KOLO_MPI_CUDA(KOLO_CUDA_MEMBER)
#undef KOLO_CUDA_MEMBER
};

// How many objects have been loaded so far into this process.
unsigned long long objectsLoaded() {
  unsigned long long count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        *static_cast<unsigned long long*>(result) = info->dlpi_adds;
        return 1;   // all of them say it
      },
      &count);
  return count;
}

// If the driver has been loaded; it is so for good then.
const Driver* find() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  auto* const driver = new Driver;
  bool isWhole = true;
#define KOLO_CUDA_LOAD(name)                                                                   \
  driver->name = reinterpret_cast<decltype(driver->name)>(dlsym(library, KOLO_TEXT(name)));    \
  isWhole = isWhole && driver->name != nullptr;
  KOLO_MPI_CUDA(KOLO_CUDA_LOAD)
#undef KOLO_CUDA_LOAD
  if (isWhole) return driver;
  delete driver;   // another library of that name, or one of another time
  return nullptr;
}

std::atomic<const Driver*> found{nullptr};
unsigned long long searchedAt = 0;       // objectsLoaded(), under the lock
std::atomic<std::int64_t> askedAt{-1};   // when the loader was last asked, by the coarse clock

struct Place {
  unsigned type = 0;
  unsigned isManaged = 0;
  CUcontext context = nullptr;   // in which it was allocated; nullptr: in none, as memory of pools
  int device = 0;
};
Place placeOf(const Driver& driver, const void* address) {
  Place place;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_CONTEXT,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&place.type, &place.isManaged, &place.context, &place.device};
  // What the driver does not know, or while it is not initialised, is the host's.
  if (driver.cuPointerGetAttributes(4, which, values, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS) return {};
  return place;
}

// The device's primary context, which is kept for good, as the runtime keeps it.
CUresult primaryContext(const Driver& driver, int ordinal, CUcontext* context) {
  static std::mutex mutex;
  static auto& kept = *new std::map<int, CUcontext>;
  const std::lock_guard lock(mutex);
  if (const auto known = kept.find(ordinal); known != kept.end()) {
    *context = known->second;
    return CUDA_SUCCESS;
  }
  CUdevice device = 0;
  if (const CUresult result = driver.cuDeviceGet(&device, ordinal); result != CUDA_SUCCESS) return result;
  const CUresult result = driver.cuDevicePrimaryCtxRetain(context, device);
  if (result == CUDA_SUCCESS) kept.emplace(ordinal, *context);
  return result;
}

// What the driver takes as the distance of rows.
constexpr std::size_t kMostPitch = INT32_MAX;

CUresult copyRows(const Driver& driver, unsigned char* host, const unsigned char* device, const Pieces& pieces, bool isToHost) {
  unsigned char* const here = host + pieces.offset;
  const auto there = reinterpret_cast<CUdeviceptr>(device + pieces.offset);
  if (pieces.rows > 1 && pieces.pitch <= kMostPitch) {
    CUDA_MEMCPY2D what{};
    what.srcMemoryType = isToHost ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_HOST;
    what.dstMemoryType = isToHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_UNIFIED;
    what.srcHost = what.dstHost = here;
    what.srcDevice = what.dstDevice = there;
    what.srcPitch = what.dstPitch = pieces.pitch;
    what.WidthInBytes = pieces.width;
    what.Height = pieces.rows;
    return driver.cuMemcpy2D(&what);
  }
  CUresult result = CUDA_SUCCESS;
  for (std::size_t row = 0; row < pieces.rows && result == CUDA_SUCCESS; ++row) {
    const std::size_t offset = row * pieces.pitch;
    result = isToHost ? driver.cuMemcpyDtoH(here + offset, there + offset, pieces.width)
                      : driver.cuMemcpyHtoD(there + offset, here + offset, pieces.width);
  }
  return result;
}

const char* copy(unsigned char* host, const unsigned char* device, const Pieces& pieces, bool isToHost) {
  if (pieces.rows == 0 || pieces.width == 0) return nullptr;
  const Driver& driver = *found.load(std::memory_order_acquire);   // [found]
  const Place place = placeOf(driver, device + pieces.offset);
  CUcontext context = place.context;
  CUresult result = context != nullptr ? CUDA_SUCCESS : primaryContext(driver, place.device, &context);
  if (result == CUDA_SUCCESS) result = driver.cuCtxPushCurrent(context);
  if (result == CUDA_SUCCESS) {
    result = copyRows(driver, host, device, pieces, isToHost);
    (void)driver.cuCtxPopCurrent(&context);
  }
  if (result == CUDA_SUCCESS) return nullptr;
  const char* name = nullptr;
  return driver.cuGetErrorName(result, &name) == CUDA_SUCCESS && name != nullptr ? name : "an unknown error";
}

}  // namespace

// To load the driver and to have memory of it takes far longer than a tick of the coarse clock, which is cheaper to read than to ask the loader.
bool isUsed() {
  timespec clock{};
  (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &clock);
  const std::int64_t now = clock.tv_sec * std::int64_t{1'000'000'000} + clock.tv_nsec;
  if (askedAt.load(std::memory_order_acquire) != now) {   // [found]
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const unsigned long long loaded = objectsLoaded();
    if (found.load(std::memory_order_relaxed) == nullptr && searchedAt != loaded) found.store(find(), std::memory_order_release);   // [found]
    searchedAt = loaded;
    askedAt.store(now, std::memory_order_release);   // [found]
  }
  return found.load(std::memory_order_acquire) != nullptr;   // [found]
}

bool owns(const void* address) {
  const Place place = placeOf(*found.load(std::memory_order_acquire), address);   // [found]
  return place.type == CU_MEMORYTYPE_DEVICE || place.isManaged != 0;
}

const char* toHost(unsigned char* host, const unsigned char* device, const Pieces& pieces) { return copy(host, device, pieces, true); }

const char* fromHost(unsigned char* device, const unsigned char* host, const Pieces& pieces) {
  return copy(const_cast<unsigned char*>(host), device, pieces, false);
}

#else

bool isUsed() { return false; }
bool owns(const void*) { return false; }
const char* toHost(unsigned char*, const unsigned char*, const Pieces&) { return "this build has no CUDA"; }
const char* fromHost(unsigned char*, const unsigned char*, const Pieces&) { return "this build has no CUDA"; }

#endif

}  // namespace kolo::mpi::gpu
