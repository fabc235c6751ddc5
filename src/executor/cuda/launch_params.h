// What one launch of the persistent kernel is told. Plain data, passed by value: under graph capture it lives in the kernel's node.
#pragma once

#include <cstdint>

#include "device/atomics.h"
#include "device/work.h"

namespace kolo::executor::cuda {

// What the host and the blocks of one communicator tell each other; in pinned host memory, at the same address for both.
struct alignas(64) Control {
  device::Counter stop;        // by the host: give up [stop]
  alignas(64) device::Counter faults;   // by the blocks: how many have given up; the first one's fault is below [fault]
  device::Fault fault;
  std::uint64_t operation;     // its number
};

// One channel of one rank, between launches; in device memory. Its block is the only one who uses it.
struct alignas(64) Channel {
  device::Counter operations;  // done or given up
  std::uint32_t claimed;       // of `faults`: see claimFault() in block_main.h; of channel 0 only
};

inline constexpr int kInlineWorks = 8;
inline constexpr int kBlockThreads = 512;

struct LaunchParams {
  Control* control;
  Channel* channels;            // [gridDim.x]
  std::uint64_t timeoutNs;      // 0: none
  const device::Work* list;     // where `count` > kInlineWorks; readable by the device
  std::uint32_t count;
  device::Work works[kInlineWorks];
};
static_assert(sizeof(LaunchParams) <= 4096, "a kernel's parameters");

}  // namespace kolo::executor::cuda
