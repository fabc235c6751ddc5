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

// A packet: two words, each of which has four bytes of data and the packet's number, and is written and read as a
// whole. So data of a word that has the number awaited is that number's, whatever else has been seen by then: neither
// the writer nor the reader orders anything. Of the two words no order is known, though they are stored by one
// instruction.
struct alignas(16) Packet {
  Counter words[2];
};
inline constexpr std::uint64_t kPacketData = 8;  // bytes of data in a packet

// A packet as it has been loaded.
struct LoadedPacket {
  std::uint64_t words[2];

  KOLO_DEVICE bool has(std::uint32_t number) const { return words[0] >> 32 == number && words[1] >> 32 == number; }
  KOLO_DEVICE std::uint64_t data() const { return (words[0] & 0xffffffffu) | words[1] << 32; }
};
KOLO_DEVICE LoadedPacket packetOf(std::uint64_t data, std::uint32_t number) {
  const std::uint64_t high = std::uint64_t{number} << 32;
  return {{(data & 0xffffffffu) | high, data >> 32 | high}};
}

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
// "A vector access is so many scalar accesses, in no order" (PTX ISA, memory consistency model): each word is whole.
__device__ inline LoadedPacket loadPacket(const Packet& packet) {
  LoadedPacket loaded;
  asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
               : "=l"(loaded.words[0]), "=l"(loaded.words[1])
               : "l"(packet.words)
               : "memory");
  return loaded;
}
__device__ inline void storePacket(Packet& packet, const LoadedPacket& value) {
  asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};"
               :
               : "l"(packet.words), "l"(value.words[0]), "l"(value.words[1])
               : "memory");
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

KOLO_DEVICE LoadedPacket loadPacket(const Packet& packet) {
  return {{loadRelaxed(packet.words[0]), loadRelaxed(packet.words[1])}};
}
KOLO_DEVICE void storePacket(Packet& packet, const LoadedPacket& value) {
  storeRelaxed(packet.words[0], value.words[0]);
  storeRelaxed(packet.words[1], value.words[1]);
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
