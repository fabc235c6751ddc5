// What one launch of the persistent kernel is told. Plain data, passed by value, so that nothing of it has to outlive
// the call.
#pragma once

#include <cstdint>

#include "device/atomics.h"
#include "device/work.h"

namespace kolo::executor::cuda {

// What the host and the blocks of one communicator tell each other; in pinned host memory, at the same address for
// both.
struct alignas(64) Control {
  device::Counter stop;                // by the host: give up [stop]
  device::Counter quit;                // by the host: a resident kernel that is idle ends at once [quit]
  device::Counter enqueued;            // by the host: launches given to the resident kernel [enqueued]
  alignas(64) device::Counter faults;  // by the blocks: 1 when one has given up; why is below [fault]
  device::Fault fault;
  alignas(64) device::Counter
      asleep;  // by the resident kernel: the last of its instances that has retired, or is about to [asleep]
  device::Counter
      completed;  // by the resident kernel: launches that are done, whose places may be used again [completed]
};

// One channel of one rank, between launches; in device memory. Its block is the only one that uses it.
struct alignas(64) ChannelState {
  device::Counter operations;  // done or given up
  device::Counter served;      // launches that it has executed as part of the resident kernel
  device::Counter failures;    // blocks of this rank that gave up; of channel 0 only
};

inline constexpr int kFewWorks = 2, kInlineWorks = 8;
inline constexpr int kBlockThreads = 512;

struct LaunchHead {
  Control* control;
  ChannelState* channels;   // [gridDim.x]
  device::PostBox* posts;   // [gridDim.x]; null: no link is posted
  std::uint64_t timeoutNs;  // 0: none
  const device::Work*
      apart;  // instead of what is behind the head, if they are too many or have arrays; readable by the device
  std::uint32_t count;
  std::uint32_t messages;         // of them, those that are messages: the first ones
  std::uint32_t messageChannels;  // blocks that carry them
};

// With its descriptions. The driver copies all of it for each launch, so what a launch of one or two operations is told
// is a type of its own.
template <int kWorks>
struct LaunchOf : LaunchHead {
  device::Work works[kWorks];

  KOLO_DEVICE const device::Work* list() const { return apart != nullptr ? apart : works; }
};
using FewParams = LaunchOf<kFewWorks>;
using LaunchParams = LaunchOf<kInlineWorks>;

// What koloMoveLine moves, which proves a link (gpu/trials.h): by as many threads, each of which reads and writes a
// word as algorithms do.
inline constexpr int kLineWords = 8;
KOLO_DEVICE void moveWord(device::Counter* to, const device::Counter* from, unsigned word) {
  device::storeRelease(to[word],
                       device::loadAcquire(from[word]));  // the host waits for the kernel, and tells the other rank
}

// What the threads of a block share: its shared memory, in which also stands whatever it has to know again after an
// operation. An operation may use all registers, so that what stayed in one meanwhile would be written to the stack and
// read again, by each thread.
struct BlockState {
  LaunchParams launch;  // the one that the resident kernel executes
  device::Work work;
  device::Work step;  // of an algorithm of several
  device::FoldLists lists;
  device::Fault fault;
  std::uint64_t served;  // launches that the resident kernel's block has executed; its leader's
};

}  // namespace kolo::executor::cuda
