#include "allocation.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/descriptor.h"

namespace kolo::p2p {
namespace {

using handover::Why;

// The file that holds an IPC handle: every kind of memory changes hands as a file.
int fileOf(const CUipcMemHandle& handle, const Why& why, int* fd) {
  *fd = clearOfStandard(memfd_create("kolo-ipc", MFD_CLOEXEC));
  if (*fd < 0 || write(*fd, &handle, sizeof handle) != static_cast<ssize_t>(sizeof handle)) {
    const int code = why.fail(KOLO_TRANSPORT_ERROR, "memfd_create: %s", handover::ErrorText(errno).text);
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return code;
  }
  return KOLO_TRANSPORT_OK;
}

}  // namespace

int failed(const drivers::CudaDriver& driver, CUresult result, const char* function, int code, const Why& why) {
  return why.fail(code, "%s", drivers::cudaError(driver, result, function).message().c_str());
}

const char* explain(Obstacle obstacle) {
  switch (obstacle) {
    case Obstacle::kPool: return "it comes from a memory pool (cudaMallocAsync), which other processes cannot map";
    case Obstacle::kSeveral: return "it spans several allocations (expandable segments)";
    case Obstacle::kNotExportable: return "it was made by cuMemCreate without an exportable handle type";
    case Obstacle::kDriver: return "the driver gives no handle of it";
    case Obstacle::kNothing: break;
  }
  return "";
}

int deviceOf(const drivers::CudaDriver& driver, CUdeviceptr address, const Why& why, int* device) {
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {device};
  const CUresult result = driver.cuPointerGetAttributes(1, which, values, address);
  if (result != CUDA_SUCCESS) return failed(driver, result, "cuPointerGetAttributes", KOLO_TRANSPORT_ERROR, why);
  return KOLO_TRANSPORT_OK;
}

int describe(const drivers::CudaDriver& driver, CUdeviceptr address, std::uint64_t bytes, bool exports, const Why& why,
             Allocation* allocation) {
  unsigned type = 0;
  int ipcCapable = 0;
  CUmemoryPool pool = nullptr;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                 CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* values[] = {&type, &ipcCapable, &pool};
  CUresult result = driver.cuPointerGetAttributes(3, which, values, address);
  if (result != CUDA_SUCCESS) return failed(driver, result, "cuPointerGetAttributes", KOLO_TRANSPORT_ERROR, why);
  if (type != CU_MEMORYTYPE_DEVICE) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE, "%p is not memory of a CUDA device", reinterpret_cast<void*>(address));
  }
  std::size_t size = 0;
  result = driver.cuMemGetAddressRange(&allocation->base, &size, address);
  if (result != CUDA_SUCCESS) return failed(driver, result, "cuMemGetAddressRange", KOLO_TRANSPORT_ERROR, why);
  allocation->bytes = size;
  const auto cannot = [&](Obstacle obstacle) {
    allocation->obstacle = obstacle;
    return KOLO_TRANSPORT_OK;
  };
  if (pool != nullptr) return cannot(Obstacle::kPool);
  if (address - allocation->base > size || bytes > size - (address - allocation->base))
    return cannot(Obstacle::kSeveral);
  if (!exports) return KOLO_TRANSPORT_OK;

  CUmemGenericAllocationHandle handle = 0;
  if (driver.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address)) == CUDA_SUCCESS) {
    result = driver.cuMemExportToShareableHandle(&allocation->fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    (void)driver.cuMemRelease(handle);
    if (result != CUDA_SUCCESS) return cannot(Obstacle::kNotExportable);
    allocation->kind = Export::kVmm;
    return KOLO_TRANSPORT_OK;
  }
  CUipcMemHandle ipc{};
  if (ipcCapable == 0 || driver.cuIpcGetMemHandle(&ipc, allocation->base) != CUDA_SUCCESS)
    return cannot(Obstacle::kDriver);
  allocation->kind = Export::kIpc;
  return fileOf(ipc, why, &allocation->fd);
}

int mapHandle(const drivers::CudaDriver& driver, CUmemGenericAllocationHandle handle, std::uint64_t bytes, int device,
              const Why& why, Import* import) {
  CUdeviceptr base = 0;
  CUresult result = driver.cuMemAddressReserve(&base, bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) {
    (void)driver.cuMemRelease(handle);
    return failed(driver, result, "cuMemAddressReserve", KOLO_TRANSPORT_ERROR, why);
  }
  result = driver.cuMemMap(base, bytes, 0, handle, 0);
  (void)driver.cuMemRelease(handle);  // the mapping holds the memory
  if (result != CUDA_SUCCESS) {
    (void)driver.cuMemAddressFree(base, bytes);
    return failed(driver, result, "cuMemMap", KOLO_TRANSPORT_ERROR, why);
  }
  *import = {base, bytes, false};
  CUmemAccessDesc access{};
  access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  result = driver.cuMemSetAccess(base, bytes, &access, 1);
  if (result == CUDA_SUCCESS) return KOLO_TRANSPORT_OK;
  release(driver, *import);
  *import = {};
  // What a device says that has no way to the other.
  return failed(driver, result, "cuMemSetAccess", KOLO_TRANSPORT_UNREACHABLE, why);
}

int importFile(const drivers::CudaDriver& driver, int fd, Export kind, std::uint64_t bytes, int device, const Why& why,
               Import* import) {
  if (kind == Export::kVmm) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = driver.cuMemImportFromShareableHandle(
        &handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
      return failed(driver, result, "cuMemImportFromShareableHandle", KOLO_TRANSPORT_ERROR, why);
    return mapHandle(driver, handle, bytes, device, why, import);
  }
  CUipcMemHandle ipc{};
  if (pread(fd, &ipc, sizeof ipc, 0) != static_cast<ssize_t>(sizeof ipc)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "the peer's file holds no IPC handle");
  }
  CUdeviceptr base = 0;
  const CUresult result = driver.cuIpcOpenMemHandle(&base, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
    return failed(driver, result, "cuIpcOpenMemHandle", KOLO_TRANSPORT_UNREACHABLE, why);
  if (result != CUDA_SUCCESS) return failed(driver, result, "cuIpcOpenMemHandle", KOLO_TRANSPORT_ERROR, why);
  *import = {base, 0, true};
  std::size_t found = 0;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_SIZE};  // in the context of any device
  void* values[] = {&found};
  const CUresult sized = driver.cuPointerGetAttributes(1, which, values, base);
  if (sized != CUDA_SUCCESS) return failed(driver, sized, "cuPointerGetAttributes", KOLO_TRANSPORT_ERROR, why);
  import->bytes = found;
  return KOLO_TRANSPORT_OK;
}

void release(const drivers::CudaDriver& driver, const Import& import) {
  if (import.isIpc) (void)driver.cuIpcCloseMemHandle(import.base);
  if (import.isIpc || import.bytes == 0) return;
  (void)driver.cuMemUnmap(import.base, import.bytes);
  (void)driver.cuMemAddressFree(import.base, import.bytes);
}

}  // namespace kolo::p2p
