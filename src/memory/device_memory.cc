#include "memory/device_memory.h"

#include <algorithm>
#include <utility>

#if KOLO_HAVE_CUDA
#include "drivers/cuda/driver.h"
#endif

namespace kolo::memory {

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

#if KOLO_HAVE_CUDA

namespace {

// The device's primary context, current for a scope in which a capture elsewhere forbids nothing; held beyond it by keep().
class Context {
 public:
  static Result<Context> of(const drivers::CudaDriver& driver, int ordinal) {
    Context context(driver);
    KOLO_CUDA(driver, cuDeviceGet, (&context.device_, ordinal));
    CUcontext primary = nullptr;
    KOLO_CUDA(driver, cuDevicePrimaryCtxRetain, (&primary, context.device_));
    if (const CUresult result = driver.cuCtxPushCurrent(primary); result != CUDA_SUCCESS) {
      (void)driver.cuDevicePrimaryCtxRelease(context.device_);
      return drivers::cudaError(driver, result, "cuCtxPushCurrent");
    }
    context.context_ = primary;
    (void)driver.cuThreadExchangeStreamCaptureMode(&context.mode_);
    return context;
  }
  Context(Context&& other) noexcept
      : driver_(other.driver_), device_(other.device_), context_(std::exchange(other.context_, nullptr)), kept_(other.kept_),
        mode_(other.mode_) {}
  ~Context() {
    if (context_ == nullptr) return;
    (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    (void)driver_.cuCtxPopCurrent(nullptr);
    if (!kept_) (void)driver_.cuDevicePrimaryCtxRelease(device_);
  }
  void keep() { kept_ = true; }

 private:
  explicit Context(const drivers::CudaDriver& driver) : driver_(driver) {}
  const drivers::CudaDriver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  bool kept_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;   // what is done here is no part of a capture; then the thread's own again
};

// Whether the device has memory with handles; file: that can be given away as a file.
Status readAbilities(const drivers::CudaDriver& driver, int device, bool* handles, bool* file) {
  const auto ask = [&](CUdevice_attribute attribute, bool* answer) -> Status {
    CUdevice handle = 0;
    int value = 0;
    KOLO_CUDA(driver, cuDeviceGet, (&handle, device));
    KOLO_CUDA(driver, cuDeviceGetAttribute, (&value, attribute, handle));
    *answer = value != 0;
    return {};
  };
  KOLO_TRY(ask(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, handles));
  return ask(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, file);
}

Status mapNew(const drivers::CudaDriver& driver, int device, std::uint64_t* address, std::uint64_t* bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::size_t grain = 0;
  KOLO_CUDA(driver, cuMemGetAllocationGranularity, (&grain, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const std::uint64_t size = (std::max<std::uint64_t>(*bytes, 1) + grain - 1) / grain * grain;
  CUmemGenericAllocationHandle handle = 0;
  KOLO_CUDA(driver, cuMemCreate, (&handle, size, &properties, 0));
  CUdeviceptr base = 0;
  Status status;
  const auto failed = [&](CUresult result, const char* function) {
    if (result != CUDA_SUCCESS) status = drivers::cudaError(driver, result, function);
    return result != CUDA_SUCCESS;
  };
  if (!failed(driver.cuMemAddressReserve(&base, size, 0, 0, 0), "cuMemAddressReserve")) {
    if (!failed(driver.cuMemMap(base, size, 0, handle, 0), "cuMemMap")) {
      CUmemAccessDesc access{};
      access.location = properties.location;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      if (failed(driver.cuMemSetAccess(base, size, &access, 1), "cuMemSetAccess")) (void)driver.cuMemUnmap(base, size);
    }
    if (!status.ok()) (void)driver.cuMemAddressFree(base, size);
  }
  (void)driver.cuMemRelease(handle);   // the mapping holds the memory
  if (status.ok()) {
    *address = base;
    *bytes = size;
  }
  return status;
}

}  // namespace

Result<DeviceMemory> DeviceMemory::create(int device, std::uint64_t bytes, bool shareable) {
  KOLO_ASSIGN(const drivers::CudaDriver* const driver, drivers::cuda());
  int count = 0;
  KOLO_CUDA(*driver, cuDeviceGetCount, (&count));
  if (device < 0 || device >= count) {
    return error(koloInvalidArgument, "device is {}, expected 0..{}, or -1 for host memory", device, count - 1);
  }
  KOLO_ASSIGN(Context context, Context::of(*driver, device));
  bool handles = false, file = false;
  if (shareable) KOLO_TRY(readAbilities(*driver, device, &handles, &file));
  DeviceMemory memory;
  if (handles && file) {
    KOLO_TRY(mapNew(*driver, device, &memory.address_, &bytes));
    memory.mapped_ = true;
  } else {
    CUdeviceptr address = 0;
    KOLO_CUDA(*driver, cuMemAlloc, (&address, std::max<std::uint64_t>(bytes, 1)));
    memory.address_ = address;
  }
  memory.driver_ = driver;
  memory.device_ = device;
  memory.bytes_ = bytes;
  context.keep();
  return memory;
}

Status DeviceMemory::synchronize() const {
  if (address_ == 0) return {};
  KOLO_ASSIGN(const Context context, Context::of(*driver_, device_));
  KOLO_CUDA(*driver_, cuCtxSynchronize, ());
  return {};
}

DeviceMemory::~DeviceMemory() {
  if (address_ == 0) return;
  {
    const auto context = Context::of(*driver_, device_);
    if (mapped_) {
      (void)driver_->cuMemUnmap(address_, bytes_);
      (void)driver_->cuMemAddressFree(address_, bytes_);
    } else {
      (void)driver_->cuMemFree(address_);
    }
  }
  CUdevice handle = 0;
  if (driver_->cuDeviceGet(&handle, device_) == CUDA_SUCCESS) (void)driver_->cuDevicePrimaryCtxRelease(handle);
}

#else

Result<DeviceMemory> DeviceMemory::create(int device, std::uint64_t, bool) {
  return error(koloUnsupported, "device is {}: this library was built without CUDA; expected -1, host memory", device);
}

Status DeviceMemory::synchronize() const { return {}; }
DeviceMemory::~DeviceMemory() = default;

#endif

}  // namespace kolo::memory
