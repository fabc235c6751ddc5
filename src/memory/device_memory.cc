#include "memory/device_memory.h"

#include <unistd.h>

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

File::~File() {
  if (fd_ >= 0) (void)close(fd_);
}

#if KOLO_HAVE_CUDA

namespace {

// The device's primary context, current for a scope in which a capture elsewhere forbids nothing; held beyond it by
// keep().
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
      : driver_(other.driver_), device_(other.device_), context_(std::exchange(other.context_, nullptr)),
        kept_(other.kept_), mode_(other.mode_) {}
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
  CUstreamCaptureMode mode_ =
      CU_STREAM_CAPTURE_MODE_RELAXED;  // what is done here is no part of a capture; then the thread's own again
};

Result<int> ask(const drivers::CudaDriver& driver, int device, CUdevice_attribute attribute) {
  CUdevice handle = 0;
  int value = 0;
  KOLO_CUDA(driver, cuDeviceGet, (&handle, device));
  KOLO_CUDA(driver, cuDeviceGetAttribute, (&value, attribute, handle));
  return value;
}

// Whether the device has memory with handles, that can be given away as a file.
Result<bool> hasSharedHandles(const drivers::CudaDriver& driver, int device) {
  KOLO_ASSIGN(const int handles, ask(driver, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  KOLO_ASSIGN(const int file, ask(driver, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
  return handles != 0 && file != 0;
}

Status mapNew(const drivers::CudaDriver& driver, int device, std::uint64_t* address, std::uint64_t* bytes) {
  KOLO_ASSIGN(const int forNics, ask(driver, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.allocFlags.gpuDirectRDMACapable = forNics != 0 ? 1 : 0;
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
  (void)driver.cuMemRelease(handle);  // the mapping holds the memory
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
  bool mapped = false;
  if (shareable) {
    KOLO_ASSIGN(mapped, hasSharedHandles(*driver, device));
  }
  DeviceMemory memory;
  if (mapped) {
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

Result<RdmaAbilities> rdmaAbilities(int device) {
  KOLO_ASSIGN(const drivers::CudaDriver* const driver, drivers::cuda());
  KOLO_ASSIGN(const int dmaBuf, ask(*driver, device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED));
  KOLO_ASSIGN(const int peerMemory, ask(*driver, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED));
  KOLO_ASSIGN(const int ordering, ask(*driver, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING));
  return RdmaAbilities{dmaBuf != 0, peerMemory != 0, ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER};
}

// Without CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE: the platform's own path from NICs to the device, which on one
// with a coherent link (Grace) is that link, and elsewhere PCI Express. That flag is for NICs with a path of their own
// past the processor, and the driver orders nothing between two paths: so all of a rank's memory goes by one.
Result<File> DeviceMemory::dmaBuf() const {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (address_ % page != 0 || bytes_ % page != 0) {
    return error(koloUnsupported, "{} bytes at {:#x} are not whole pages of {} bytes, as a dma-buf's must be", bytes_,
                 address_, page);
  }
  KOLO_ASSIGN(const Context context, Context::of(*driver_, device_));
  int fd = -1;
  KOLO_CUDA(*driver_, cuMemGetHandleForAddressRange, (&fd, address_, bytes_, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  return File(fd);
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

Result<RdmaAbilities> rdmaAbilities(int device) { return DeviceMemory::create(device, 0, false).status(); }
Result<File> DeviceMemory::dmaBuf() const { return DeviceMemory::create(device_, 0, false).status(); }
Status DeviceMemory::synchronize() const { return {}; }
DeviceMemory::~DeviceMemory() = default;

#endif

}  // namespace kolo::memory
