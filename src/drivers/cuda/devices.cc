#include "drivers/cuda/devices.h"

#if KOLO_HAVE_CUDA
#include <array>

#include "drivers/cuda/driver.h"
#endif

namespace kolo::drivers {

#if KOLO_HAVE_CUDA

namespace {

// What there is to show of a device: what the driver does not tell is left out.
Result<CudaDevice> describe(const CudaDriver& driver, int ordinal) {
  CudaDevice device;
  device.ordinal = ordinal;
  CUdevice handle = 0;
  KOLO_CUDA(driver, cuDeviceGet, (&handle, ordinal));
  std::array<char, 256> text{};
  const auto told = [&](CUresult code) {
    return code == CUDA_SUCCESS ? text.data() : fmt::format("device {}", ordinal);
  };
  device.name = told(driver.cuDeviceGetName(text.data(), text.size() - 1, handle));
  device.pciBusId = told(driver.cuDeviceGetPCIBusId(text.data(), text.size() - 1, handle));
  (void)driver.cuDeviceGetAttribute(&device.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle);
  (void)driver.cuDeviceGetAttribute(&device.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle);
  (void)driver.cuDeviceGetAttribute(&device.multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle);
  std::size_t bytes = 0;
  (void)driver.cuDeviceTotalMem(&bytes, handle);
  device.memoryBytes = bytes;
  return device;
}

}  // namespace

bool usesCuda() { return isCudaLoaded() && cuda().ok(); }

Status checkHostMemory(const char* name, const void* buffer, std::uint64_t bytes) {
  if (bytes == 0 || buffer == nullptr) return {};
  unsigned type = 0;
  unsigned isManaged = 0;
  int ordinal = -1;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* data[] = {&type, &isManaged, &ordinal};
  const CudaDriver& driver = *cuda().value();
  // What the driver does not know is the host's.
  if (driver.cuPointerGetAttributes(3, which, data, reinterpret_cast<CUdeviceptr>(buffer)) != CUDA_SUCCESS) return {};
  if (type != CU_MEMORYTYPE_DEVICE || isManaged != 0) return {};
  return error(koloInvalidPointer,
               "{} is {}, memory of CUDA device {}: expected host memory, which this communicator uses (its option "
               "`device` is KOLO_HOST)",
               name, buffer, ordinal);
}

Result<std::vector<CudaDevice>> cudaDevices() {
  KOLO_ASSIGN(const CudaDriver* const driver, cuda());
  int count = 0;
  KOLO_CUDA(*driver, cuDeviceGetCount, (&count));
  std::vector<CudaDevice> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    KOLO_ASSIGN(CudaDevice device, describe(*driver, ordinal));
    devices.push_back(std::move(device));
  }
  return devices;
}

#else

bool usesCuda() { return false; }
Status checkHostMemory(const char*, const void*, std::uint64_t) { return {}; }

Result<std::vector<CudaDevice>> cudaDevices() {
  return error(koloUnsupported, "no CUDA device: this library was built without CUDA");
}

#endif

std::string howToHaveKernels(std::string_view architecture) {
  return fmt::format("build Kolo where the GPU is, or with -Dgpu_architectures={}", architecture);
}

int deviceOf(const DeviceString& text) {
  if (text.kind == DeviceString::Kind::kGpu) return text.number;
  if (text.kind == DeviceString::Kind::kHost) return KOLO_HOST;
  const auto devices = cudaDevices();
  return devices.ok() && !devices.value().empty() ? text.number : KOLO_HOST;
}

}  // namespace kolo::drivers
