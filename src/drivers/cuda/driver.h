// The CUDA driver, opened at run time: the library has no hard dependency on it (D10). What the core uses of it is one
// table of functions, which the tests fill with a mock. A library that was built with any toolkit from CUDA 12.4 on
// uses any driver from CUDA 12.2 on: the driver is asked for each function as of the version of CUDA that is named
// beside it.
//
// Thread safety: all functions.
#pragma once

#include <cudaTypedefs.h>

#include <string>

#include "base/status.h"

namespace kolo::drivers {

// The oldest driver: of CUDA 12.2, which is NVIDIA's 535.
inline constexpr int kOldestCuda = 12020;

// Each function, and the version of CUDA since which it has the signature that is used here; later versions may have
// given the name another one. cuda.h makes the toolkit's current name out of a member's (cuMemAlloc is cuMemAlloc_v2).
// clang-format off
#define KOLO_CUDA_FUNCTIONS(X)                                                                                        \
  X(cuInit, 2000) X(cuGetErrorName, 6000) X(cuGetErrorString, 6000) X(cuDeviceGetCount, 2000) X(cuDeviceGet, 2000)    \
  X(cuDeviceGetName, 2000) X(cuDeviceGetAttribute, 2000) X(cuDeviceTotalMem, 3020) X(cuDeviceGetPCIBusId, 4010)       \
  X(cuDeviceGetUuid, 11040) X(cuDeviceCanAccessPeer, 4000) X(cuDevicePrimaryCtxRetain, 7000)                          \
  X(cuDevicePrimaryCtxRelease, 11000) X(cuCtxPushCurrent, 4000) X(cuCtxPopCurrent, 4000) X(cuCtxGetDevice, 2000)      \
  X(cuCtxEnablePeerAccess, 4000) X(cuModuleLoadData, 2000) X(cuModuleUnload, 2000) X(cuModuleGetFunction, 2000)       \
  X(cuModuleGetLoadingMode, 11070) X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050) X(cuLaunchKernelEx, 11060)    \
  X(cuStreamCreate, 2000) X(cuStreamDestroy, 4000) X(cuStreamSynchronize, 2000) X(cuStreamQuery, 2000)                \
  X(cuStreamWaitEvent, 3020) X(cuStreamGetCtx, 9020) X(cuStreamGetId, 12000) X(cuStreamGetFlags, 5050)                \
  X(cuCtxSynchronize, 2000) X(cuStreamGetCaptureInfo, 11030) X(cuThreadExchangeStreamCaptureMode, 10010)              \
  X(cuStreamWriteValue64, 11070) X(cuStreamWaitValue64, 11070) X(cuEventCreate, 2000) X(cuEventDestroy, 4000)         \
  X(cuEventRecord, 2000) X(cuEventQuery, 2000) X(cuEventSynchronize, 2000) X(cuGraphAddEventRecordNode, 11010)        \
  X(cuGraphRetainUserObject, 11030) X(cuUserObjectCreate, 11030) X(cuMemAlloc, 3020) X(cuMemFree, 3020)               \
  X(cuMemGetAddressRange, 3020) X(cuPointerGetAttributes, 7000) X(cuMemHostAlloc, 2020) X(cuMemFreeHost, 2000)        \
  X(cuMemHostRegister, 6050) X(cuMemHostUnregister, 4000) X(cuMemHostGetDevicePointer, 3020)                          \
  X(cuMemGetAllocationGranularity, 10020) X(cuMemCreate, 10020) X(cuMemRelease, 10020)                                \
  X(cuMemRetainAllocationHandle, 11000) X(cuMemAddressReserve, 10020) X(cuMemAddressFree, 10020) X(cuMemMap, 10020)   \
  X(cuMemUnmap, 10020) X(cuMemSetAccess, 10020) X(cuMemExportToShareableHandle, 10020)                                \
  X(cuMemImportFromShareableHandle, 10020) X(cuMemGetHandleForAddressRange, 11070) X(cuIpcGetMemHandle, 4010)         \
  X(cuIpcOpenMemHandle, 11000) X(cuIpcCloseMemHandle, 4010) X(cuMemcpyHtoD, 3020) X(cuMemcpyDtoH, 3020)               \
  X(cuMemcpyHtoDAsync, 3020) X(cuMemcpyDtoHAsync, 3020) X(cuMemcpyDtoDAsync, 3020) X(cuMemsetD8Async, 3020)
// clang-format on

struct CudaDriver {
  int version = 0;  // of CUDA, as cuDriverGetVersion() has it: 12020 is 12.2
#define KOLO_CUDA_MEMBER(name, version)                                                                \
  static_assert((version) <= kOldestCuda, #name " is newer than the oldest driver that is supported"); \
  PFN_##name##_v##version name = nullptr;
  KOLO_CUDA_FUNCTIONS(KOLO_CUDA_MEMBER)
#undef KOLO_CUDA_MEMBER
};

// The table of a driver's functions, by these two of its own; either may be null, of a driver that lacks it. An error
// if the driver is too old.
Result<CudaDriver> cudaFunctions(PFN_cuDriverGetVersion_v2020 version, PFN_cuGetProcAddress_v12000 find);

// "12.2" of 12020.
std::string cudaVersionText(int version);

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
