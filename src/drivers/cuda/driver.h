// The CUDA driver, opened at run time: the library has no hard dependency on it (D10). What the core uses of it is one
// table of functions, which the tests fill with a mock.
//
// Thread safety: all functions.
#pragma once

#include <cuda.h>

#include "base/status.h"

namespace kolo::drivers {

// The names are the driver's; cuda.h makes the current version of each out of them (cuMemAlloc is cuMemAlloc_v2).
// clang-format off
#define KOLO_CUDA_FUNCTIONS(X)                                                                                        \
  X(cuInit) X(cuGetErrorName) X(cuGetErrorString)                                                                     \
  X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceTotalMem)                   \
  X(cuDeviceGetPCIBusId) X(cuDeviceGetUuid) X(cuDeviceCanAccessPeer)                                                  \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetDevice)   \
  X(cuCtxEnablePeerAccess)                                                                                            \
  X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuModuleGetLoadingMode)                              \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) X(cuLaunchKernelEx)                                                  \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamWaitEvent)                   \
  X(cuStreamGetCtx) X(cuStreamGetId) X(cuStreamGetFlags) X(cuCtxSynchronize)                                          \
  X(cuStreamGetCaptureInfo) X(cuThreadExchangeStreamCaptureMode) X(cuStreamWriteValue64) X(cuStreamWaitValue64)       \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)                           \
  X(cuGraphAddEventRecordNode) X(cuGraphRetainUserObject) X(cuUserObjectCreate)                                       \
  X(cuMemAlloc) X(cuMemFree) X(cuMemGetAddressRange) X(cuPointerGetAttributes)                                        \
  X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer)         \
  X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease) X(cuMemRetainAllocationHandle)                      \
  X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess)                              \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemGetHandleForAddressRange)                  \
  X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle)                                                   \
  X(cuMemcpyHtoD) X(cuMemcpyDtoH) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemsetD8Async)
// clang-format on

struct CudaDriver {
#define KOLO_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  KOLO_CUDA_FUNCTIONS(KOLO_CUDA_MEMBER)
#undef KOLO_CUDA_MEMBER
};

// The driver, initialised, if this machine has one and at least one device; otherwise why not, in one line. Decided
// once.
Result<const CudaDriver*> cuda();

// Whether the driver's library is in this process, loaded by any part of it.
bool isCudaLoaded();

// How many queues of the hardware the streams of this process have on each device, as far as can be known: of two
// streams that share one, what waits in the one holds up the other.
int streamQueues();
inline constexpr int kMostQueues = 32;  // that there can be

// For tests, before the first use: everything goes to this one, whose devices have so many queues. nullptr: back to the
// machine's.
void setCuda(const CudaDriver* mock, int queues = 32);

// "cuMemCreate: out of memory (CUDA_ERROR_OUT_OF_MEMORY)"
Status cudaError(const CudaDriver& driver, CUresult code, const char* function);

}  // namespace kolo::drivers

// KOLO_CUDA(driver, cuMemAlloc, (&pointer, bytes)): calls, and returns the failure.
#define KOLO_CUDA(driver, function, arguments)                                                     \
  do {                                                                                             \
    if (const CUresult koloCudaCode = (driver).function arguments; koloCudaCode != CUDA_SUCCESS) { \
      return ::kolo::drivers::cudaError((driver), koloCudaCode, #function);                        \
    }                                                                                              \
  } while (false)
