// A CUDA driver's library (libcuda.so.1) with one GPU, for programs under the MPI interposer: memory that no processor
// can read or write, and what it takes to copy it. Memory of every other allocation belongs to no context, as that of
// pools.
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace {

struct Allocation {
  std::size_t bytes;
  unsigned char* behind;  // the same memory, where it can be read and written
  bool isOfContext;
};

std::mutex mutex;
std::map<CUdeviceptr, Allocation> all;
unsigned made = 0;
char theContext;
thread_local int pushed = 0;

std::size_t toPages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
CUcontext context() { return reinterpret_cast<CUcontext>(&theContext); }

// Under the lock. nullptr: not within one allocation.
const Allocation* find(CUdeviceptr address, std::size_t bytes, std::size_t* offset) {
  auto at = all.upper_bound(address);
  if (at == all.begin()) return nullptr;
  --at;
  *offset = address - at->first;
  return *offset < at->second.bytes && bytes <= at->second.bytes - *offset ? &at->second : nullptr;
}

CUresult copy(void* host, CUdeviceptr device, std::size_t bytes, bool isToHost) {
  const std::lock_guard lock(mutex);
  std::size_t offset = 0;
  const Allocation* const its = find(device, bytes, &offset);
  if (its == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (isToHost) {
    std::memcpy(host, its->behind + offset, bytes);
  } else {
    std::memcpy(its->behind + offset, host, bytes);
  }
  return CUDA_SUCCESS;
}

// What has been given to a stream is done when somebody waits for it, as late as may be.
using Stream = std::vector<std::function<CUresult()>>;
Stream& of(CUstream stream) { return *reinterpret_cast<Stream*>(stream); }

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult cuMemAlloc(CUdeviceptr* pointer, std::size_t bytes) {
  const int file = memfd_create("kolo-one-gpu", MFD_CLOEXEC);
  const std::size_t length = toPages(bytes);
  if (bytes == 0 || file < 0 || ftruncate(file, static_cast<off_t>(length)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  void* const seen = mmap(nullptr, length, PROT_NONE, MAP_SHARED, file, 0);
  void* const behind = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (seen == MAP_FAILED || behind == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = reinterpret_cast<CUdeviceptr>(seen);
  const std::lock_guard lock(mutex);
  all[*pointer] = {bytes, static_cast<unsigned char*>(behind), made++ % 2 == 0};
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr pointer) {
  const std::lock_guard lock(mutex);
  const auto at = all.find(pointer);
  if (at == all.end()) return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void*>(pointer), toPages(at->second.bytes));
  munmap(at->second.behind, toPages(at->second.bytes));
  all.erase(at);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** data, CUdeviceptr pointer) {
  const std::lock_guard lock(mutex);
  std::size_t offset = 0;
  const Allocation* const its = find(pointer, 1, &offset);
  for (unsigned i = 0; i < count; ++i) {
    switch (which[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(data[i]) = its != nullptr ? CU_MEMORYTYPE_DEVICE : 0;
        break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(data[i]) = 0; break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(data[i]) = its != nullptr ? 0 : CU_DEVICE_INVALID;
        break;
      case CU_POINTER_ATTRIBUTE_CONTEXT:
        *static_cast<CUcontext*>(data[i]) = its != nullptr && its->isOfContext ? context() : nullptr;
        break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = 0;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* primary, CUdevice) {
  *primary = context();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext pushedContext) {
  if (pushedContext != context()) return CUDA_ERROR_INVALID_CONTEXT;
  ++pushed;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* popped) {
  if (pushed == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --pushed;
  *popped = context();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  static thread_local CUstreamCaptureMode its = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(its, *mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  if (pushed == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = reinterpret_cast<CUstream>(new Stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  CUresult first = CUDA_SUCCESS;
  for (const auto& each : std::exchange(of(stream), {})) {
    if (const CUresult result = each(); first == CUDA_SUCCESS) first = result;
  }
  return first;
}

CUresult cuStreamDestroy(CUstream stream) {
  delete &of(stream);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) { return copy(to, from, bytes, true); }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
  return copy(const_cast<void*>(from), to, bytes, false);
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  of(stream).push_back([=] { return copy(to, from, bytes, true); });
  return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  of(stream).push_back([=] { return copy(const_cast<void*>(from), to, bytes, false); });
  return CUDA_SUCCESS;
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* given, CUstream stream) {
  const CUDA_MEMCPY2D what = *given;
  const bool isToHost = what.dstMemoryType == CU_MEMORYTYPE_HOST;
  if ((isToHost ? what.srcMemoryType : what.dstMemoryType) != CU_MEMORYTYPE_UNIFIED) return CUDA_ERROR_INVALID_VALUE;
  if (what.srcPitch < what.WidthInBytes || what.dstPitch < what.WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
  of(stream).push_back([=] {
    for (std::size_t row = 0; row < what.Height; ++row) {
      unsigned char* const host =
          static_cast<unsigned char*>(isToHost ? what.dstHost : const_cast<void*>(what.srcHost)) +
          row * (isToHost ? what.dstPitch : what.srcPitch);
      const CUdeviceptr device = isToHost ? what.srcDevice + row * what.srcPitch : what.dstDevice + row * what.dstPitch;
      if (const CUresult result = copy(host, device, what.WidthInBytes, isToHost); result != CUDA_SUCCESS)
        return result;
    }
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_INVALID_CONTEXT";
  return CUDA_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
