// The only place that names memory orders. A counter is a 64-bit number in memory that one party writes and another
// reads (D3); it only counts up and is never reset.
//
// Each release store in Kolo carries a label in a comment, and so does the acquire load that pairs with it.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/host_device.h"

namespace kolo::device {

// Plain data with atomic access, so that it can live in memory that processes and GPUs share.
struct Counter {
  std::uint64_t value;
};

#ifdef __CUDA_ARCH__

// System scope: the other side may be a block of this GPU, of another, or a thread of the host. (PTX ISA, memory
// consistency model.)
__device__ inline std::uint64_t loadAcquire(const Counter& counter) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(&counter.value) : "memory");
  return value;
}
__device__ inline std::uint64_t loadRelaxed(const Counter& counter) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(&counter.value) : "memory");
  return value;
}
__device__ inline void storeRelease(Counter& counter, std::uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(&counter.value), "l"(value) : "memory");
}
__device__ inline void storeRelaxed(Counter& counter, std::uint64_t value) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" : : "l"(&counter.value), "l"(value) : "memory");
}
__device__ inline void fence() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }

// Releases several counters behind one fence: fenceStores() by the thread that then stores each of them by
// storeFenced(). A fence and a relaxed store behind it are a release pattern of the memory model, which pairs with
// loadAcquire() as a release store does; a release store of each would wait for all memory each time. What the thread
// loads behind fenceStores() and fenceLoads() is later than what it did before.
__device__ inline void fenceStores() { fence(); }
__device__ inline void storeFenced(Counter& counter, std::uint64_t value) { storeRelaxed(counter, value); }
__device__ inline void fenceLoads() {}

#else

KOLO_DEVICE std::uint64_t loadAcquire(const Counter& counter) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(counter.value)).load(std::memory_order_acquire);
}

KOLO_DEVICE std::uint64_t loadRelaxed(const Counter& counter) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(counter.value)).load(std::memory_order_relaxed);
}

KOLO_DEVICE void storeRelease(Counter& counter, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(counter.value).store(value, std::memory_order_release);
}

KOLO_DEVICE void storeRelaxed(Counter& counter, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(counter.value).store(value, std::memory_order_relaxed);
}

// What this thread did before, plain memory included, is before what it does after, for a thread that has a fence of
// its own between.
KOLO_DEVICE void fence() { std::atomic_thread_fence(std::memory_order_acq_rel); }

// On the host a release store costs no more than others, and the thread sanitizer follows it: it does not follow a
// fence and relaxed stores. So each store releases, and the fence is where a load has to be later.
KOLO_DEVICE void fenceStores() {}
KOLO_DEVICE void storeFenced(Counter& counter, std::uint64_t value) { storeRelease(counter, value); }
KOLO_DEVICE void fenceLoads() { fence(); }

#endif

}  // namespace kolo::device
