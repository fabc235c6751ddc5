// What one launch of the persistent kernel is told. Plain data, passed by value, so that nothing of it has to outlive the call.
#pragma once

#include <cstdint>

#include "device/atomics.h"
#include "device/work.h"

namespace kolo::executor::cuda {

// What the host and the blocks of one communicator tell each other; in pinned host memory, at the same address for both.
struct alignas(64) Control {
  device::Counter stop;        // by the host: give up [stop]
  alignas(64) device::Counter faults;   // by the blocks: 1 when one has given up; why is below [fault]
  device::Fault fault;
};

// One channel of one rank, between launches; in device memory. Its block is the only one who uses it.
struct alignas(64) Channel {
  device::Counter operations;  // done or given up
  std::uint32_t claimed;       // 1: a block has said, or is saying, why it gave up; of channel 0 only
};

inline constexpr int kInlineWorks = 8;
inline constexpr int kBlockThreads = 512;

struct LaunchParams {
  Control* control;
  Channel* channels;            // [gridDim.x]
  std::uint64_t timeoutNs;      // 0: none
  const device::Work* list;     // instead of `works`, if they are too many or have arrays; readable by the device
  std::uint32_t count;
  device::Work works[kInlineWorks];
};
static_assert(sizeof(LaunchParams) <= 4096, "a kernel's parameters");

}  // namespace kolo::executor::cuda
