// Memory of a CUDA device, seen as what another process, or another device of this one, can be given of it.
//
// Thread safety: all functions. A context of the device is the thread's current one: of the device that has the memory
// in describe(), of the one that is to reach it otherwise.
#pragma once

#include <cstdint>

#include "../handover/wire.h"
#include "drivers/cuda/driver.h"

namespace kolo::p2p {

// How the other side gets it.
enum class Export : std::uint32_t {
  kNone,  // not at all: `obstacle` says why
  kVmm,   // by the file of its handle (cuMemCreate)
  kIpc    // by a legacy IPC handle, which a file holds (cuMemAlloc, cudaMalloc)
};
enum class Obstacle : std::uint32_t { kNothing, kPool, kSeveral, kNotExportable, kDriver };

// The allocation in which a range lies.
struct Allocation {
  CUdeviceptr base = 0;
  std::uint64_t bytes = 0;
  Export kind = Export::kNone;
  Obstacle obstacle = Obstacle::kNothing;
  int fd = -1;  // kVmm, kIpc: what is handed over; the caller closes it
};

// Which device has the memory at the address; in any context.
int deviceOf(const drivers::CudaDriver& driver, CUdeviceptr address, const handover::Why& why, int* device);

// exports: whether another process is to get it; without, only base and bytes are found.
int describe(const drivers::CudaDriver& driver, CUdeviceptr address, std::uint64_t bytes, bool exports,
             const handover::Why& why, Allocation* allocation);
const char* explain(Obstacle obstacle);

// A second mapping of an allocation, for the device that is to reach it.
struct Import {
  CUdeviceptr base = 0;
  std::uint64_t bytes = 0;  // that are mapped
  bool isIpc = false;
};

// Of a handle whose allocation has `bytes`; takes the handle.
int mapHandle(const drivers::CudaDriver& driver, CUmemGenericAllocationHandle handle, std::uint64_t bytes, int device,
              const handover::Why& why, Import* import);
// Of the file that came from the other process; leaves it open.
int importFile(const drivers::CudaDriver& driver, int fd, Export kind, std::uint64_t bytes, int device,
               const handover::Why& why, Import* import);
void release(const drivers::CudaDriver& driver, const Import& import);

// "cuMemMap: out of memory (CUDA_ERROR_OUT_OF_MEMORY)", as the reason of a code.
int failed(const drivers::CudaDriver& driver, CUresult result, const char* function, int code,
           const handover::Why& why);

}  // namespace kolo::p2p
