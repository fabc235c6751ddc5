// The only place that names memory orders. A counter is a 64-bit number in memory that one party writes and another reads
// (D3); it only counts up and is never reset.
//
// Each release store in Kolo carries a label in a comment, and so does the acquire load that pairs with it.
#pragma once

#include <atomic>
#include <cstdint>

namespace kolo::device {

// Plain data with atomic access, so that it can live in memory that processes and GPUs share.
struct Counter {
  std::uint64_t value;
};

inline std::uint64_t loadAcquire(const Counter& counter) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(counter.value)).load(std::memory_order_acquire);
}

inline std::uint64_t loadRelaxed(const Counter& counter) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(counter.value)).load(std::memory_order_relaxed);
}

inline void storeRelease(Counter& counter, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(counter.value).store(value, std::memory_order_release);
}

inline void storeRelaxed(Counter& counter, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(counter.value).store(value, std::memory_order_relaxed);
}

}  // namespace kolo::device
