#include "mpi/gpu.h"

#if KOLO_HAVE_CUDA
#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#endif

namespace kolo::mpi::gpu {

#if KOLO_HAVE_CUDA

namespace {

// The names are the driver's; cuda.h makes the current version of each out of them.
// clang-format off
#define KOLO_MPI_CUDA(X)                                                                                              \
  X(cuPointerGetAttributes) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease)                   \
  X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuThreadExchangeStreamCaptureMode) X(cuStreamCreate)                       \
  X(cuStreamSynchronize) X(cuStreamDestroy) X(cuMemcpyDtoHAsync) X(cuMemcpyHtoDAsync) X(cuMemcpy2DAsync)              \
  X(cuGetErrorName)
// clang-format on
#define KOLO_TEXT_(name) #name
#define KOLO_TEXT(name) KOLO_TEXT_(name)  // of what cuda.h makes of the name

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
        return 1;  // all of them say it
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
#define KOLO_CUDA_LOAD(name)                                                                \
  driver->name = reinterpret_cast<decltype(driver->name)>(dlsym(library, KOLO_TEXT(name))); \
  isWhole = isWhole && driver->name != nullptr;
  KOLO_MPI_CUDA(KOLO_CUDA_LOAD)
#undef KOLO_CUDA_LOAD
  if (isWhole) return driver;
  delete driver;  // another library of that name, or one of another time
  return nullptr;
}

std::atomic<const Driver*> found{nullptr};
unsigned long long searchedAt = 0;      // objectsLoaded(), under the lock
std::atomic<std::int64_t> askedAt{-1};  // when the loader was last asked, by the coarse clock

struct Place {
  unsigned type = 0;
  unsigned isManaged = 0;
  CUcontext context = nullptr;  // in which it was allocated; nullptr: in none, as memory of pools
  int device = 0;
};
Place placeOf(const Driver& driver, const void* address) {
  Place place;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&place.type, &place.isManaged, &place.context, &place.device};
  // What the driver does not know, or while it is not initialised, is the host's.
  if (driver.cuPointerGetAttributes(4, which, values, reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS)
    return {};
  return place;
}

// The context of some memory, or its device's primary one, current for a scope, with a stream of its own. A synchronous
// copy would wait for the program's streams, and return before the last bytes have arrived where the host's memory is
// not pinned.
class Scope {
 public:
  Scope(const Driver& driver, const Place& place) : driver_(driver) {
    CUcontext context = place.context;
    if (context == nullptr) {
      result_ = driver.cuDeviceGet(&device_, place.device);
      if (result_ == CUDA_SUCCESS) result_ = driver.cuDevicePrimaryCtxRetain(&context, device_);
      isRetained_ = result_ == CUDA_SUCCESS;
    }
    if (result_ == CUDA_SUCCESS) result_ = driver.cuCtxPushCurrent(context);
    isPushed_ = result_ == CUDA_SUCCESS;
    (void)driver.cuThreadExchangeStreamCaptureMode(&mode_);
    if (result_ == CUDA_SUCCESS) result_ = driver.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  }
  Scope(const Scope&) = delete;
  ~Scope() {
    if (stream_ != nullptr) (void)driver_.cuStreamDestroy(stream_);
    (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    CUcontext popped = nullptr;
    if (isPushed_) (void)driver_.cuCtxPopCurrent(&popped);
    if (isRetained_) (void)driver_.cuDevicePrimaryCtxRelease(device_);
  }
  CUresult result() const { return result_; }
  CUstream stream() const { return stream_; }

 private:
  const Driver& driver_;
  CUresult result_ = CUDA_SUCCESS;
  CUdevice device_ = 0;
  CUstream stream_ = nullptr;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the thread's own again
  bool isRetained_ = false, isPushed_ = false;
};

// What the driver takes as the distance of rows.
constexpr std::size_t kMostPitch = INT32_MAX;

CUresult enqueue(const Driver& driver, CUstream stream, unsigned char* host, const unsigned char* device,
                 const Pieces& pieces, bool isToHost) {
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
    return driver.cuMemcpy2DAsync(&what, stream);
  }
  CUresult result = CUDA_SUCCESS;
  for (std::size_t row = 0; row < pieces.rows && result == CUDA_SUCCESS; ++row) {
    const std::size_t offset = row * pieces.pitch;
    result = isToHost ? driver.cuMemcpyDtoHAsync(here + offset, there + offset, pieces.width, stream)
                      : driver.cuMemcpyHtoDAsync(there + offset, here + offset, pieces.width, stream);
  }
  return result;
}

const char* copy(unsigned char* host, const unsigned char* device, const std::vector<Pieces>& all, bool isToHost) {
  if (all.empty()) return nullptr;
  const Driver& driver = *found.load(std::memory_order_acquire);  // [found]
  const Scope scope(driver, placeOf(driver, device + all.front().offset));
  CUresult result = scope.result();
  for (auto each = all.begin(); each != all.end() && result == CUDA_SUCCESS; ++each) {
    result = enqueue(driver, scope.stream(), host, device, *each, isToHost);
  }
  // Also after an error: what was begun must not go on behind the caller's back.
  const CUresult end = scope.stream() != nullptr ? driver.cuStreamSynchronize(scope.stream()) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) result = end;
  if (result == CUDA_SUCCESS) return nullptr;
  const char* name = nullptr;
  return driver.cuGetErrorName(result, &name) == CUDA_SUCCESS && name != nullptr ? name : "an unknown error";
}

}  // namespace

// To load the driver and to have memory of it takes far longer than a tick of the coarse clock, which is cheaper to
// read than to ask the loader.
bool isUsed() {
  timespec clock{};
  (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &clock);
  const std::int64_t now = clock.tv_sec * std::int64_t{1'000'000'000} + clock.tv_nsec;
  if (askedAt.load(std::memory_order_acquire) != now) {  // [found]
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const unsigned long long loaded = objectsLoaded();
    if (found.load(std::memory_order_relaxed) == nullptr && searchedAt != loaded)
      found.store(find(), std::memory_order_release);  // [found]
    searchedAt = loaded;
    askedAt.store(now, std::memory_order_release);  // [found]
  }
  return found.load(std::memory_order_acquire) != nullptr;  // [found]
}

bool owns(const void* address) {
  const Place place = placeOf(*found.load(std::memory_order_acquire), address);  // [found]
  return place.type == CU_MEMORYTYPE_DEVICE || place.isManaged != 0;
}

const char* toHost(unsigned char* host, const unsigned char* device, const std::vector<Pieces>& all) {
  return copy(host, device, all, true);
}

const char* fromHost(unsigned char* device, const unsigned char* host, const std::vector<Pieces>& all) {
  return copy(const_cast<unsigned char*>(host), device, all, false);
}

#else

bool isUsed() { return false; }
bool owns(const void*) { return false; }
const char* toHost(unsigned char*, const unsigned char*, const std::vector<Pieces>&) {
  return "this build has no CUDA";
}
const char* fromHost(unsigned char*, const unsigned char*, const std::vector<Pieces>&) {
  return "this build has no CUDA";
}

#endif

}  // namespace kolo::mpi::gpu
