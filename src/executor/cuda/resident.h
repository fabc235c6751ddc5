// The resident kernel (D6): a grid that outlives its launches. A stream rings the doorbell, the blocks execute what
// stands in the ring of launches, and the stream waits for the count of those that are done. A grid that nobody needs
// for a while retires by itself, so that whatever waits for the device to be idle waits no longer than that; the host
// brings it back.
//
// The agreement between the host, which gives launches, and the instances of the kernel, numbered 1, 2, 3, ... in one
// stream, so that an instance begins when the one before has ended:
//
//   host, for launch k                            leader of block 0 of instance g, idle for long, s launches served
//     enqueued = k                                  asleep = g
//     fence                                         fence
//     asleep >= the last instance launched?         enqueued > s: not now: launch s + 1 has been given, and its
//       then k is to open an instance                 stream will ring for it
//     the stream rings: rung = k, and whether       else: leavingAfter = s, leavingInstance = g, and out
//       k opens an instance
//     if it does: launch the next instance for k
//     the stream waits: done >= k
//
// Both fences are sequentially consistent: either the host sees that g is asleep, and launches, or g sees the launch
// that was given, and stays; or both, and then the next instance begins when g ends. The other blocks of g leave when
// they see that g leaves and have served what block 0 has served.
//
// A launch that opens an instance is for that one: no block of an earlier one executes it. Otherwise the blocks of one
// launch could be in two instances, and two ranks wait for each other: a block of one's old instance for a block of the
// other's new one, and the other way round. All blocks leave when the next launch is rung and opens another instance.
// So the ring must not wait for that instance: it comes before it, also in a queue of the hardware that they share, and
// where a launch returns when the kernel has ended.
//
// tests/unit/resident_model_test.cc tries all interleavings. The counts of what is served are the channels' own, so an
// instance goes on where the last one ended.
#pragma once

#include "device/block_ops.h"
#include "executor/cuda/block_main.h"

namespace kolo::executor::cuda {

inline constexpr std::uint64_t kResidentPlaces =
    128;  // launches that may be given and not done: all by which a rank may be ahead

// One rank's, in device memory.
struct Resident {
  alignas(64) device::Counter rung;      // by the streams, in the order of the launches: ringOf() the launch [doorbell]
  alignas(64) device::Counter done;      // by the last block to have executed a launch [done launch]
  alignas(64) device::Counter arrivals;  // of blocks at the end of launches
  alignas(64) device::Counter leavingAfter, leavingInstance;  // by block 0 [leaving]
};

// What is rung for a launch.
constexpr std::uint64_t ringOf(std::uint64_t launch, bool opensInstance) {
  return 2 * launch + (opensInstance ? 1 : 0);
}

// All 0 for a kernel of one launch.
struct ServeParams {
  Control* control;
  ChannelState* channels;  // [blocks]
  Resident* resident;
  const LaunchParams* places;  // [kResidentPlaces], in pinned host memory; launch k stands in place k % kResidentPlaces
  std::uint64_t instance;      // 1, 2, ...
  std::uint64_t first;         // the launch for which it was launched
  std::uint64_t idleNs;        // after which it retires
};

static_assert(sizeof(LaunchParams) + sizeof(ServeParams) <= 4096, "a kernel's parameters");

// What a block does while it waits for the next launch. Platform, beside what block_team.h wants: nowNs(), rest()
// (between polls), fence() (sequentially consistent, system-wide), add(counter) (one; acquires and releases; gives the
// sum).
enum class Next { kLaunch, kLeave };
inline constexpr int kPollsOfDoorbell = 16;

// By block 0: those of the others that have served as much may leave too.
KOLO_DEVICE Next leave(const ServeParams& params, std::uint64_t served) {
  device::storeRelaxed(params.resident->leavingAfter, served);
  device::storeRelease(params.resident->leavingInstance, params.instance);  // [leaving]
  return Next::kLeave;
}

template <class Platform>
KOLO_DEVICE Next awaitLaunch(Platform& platform, const ServeParams& params, int block, std::uint64_t served) {
  const Resident& resident = *params.resident;
  std::uint64_t since = platform.nowNs();
  for (;;) {
    for (int i = 0; i < kPollsOfDoorbell; ++i) {
      const std::uint64_t rung = device::loadAcquire(resident.rung);  // [doorbell]
      if (rung / 2 <= served) continue;
      return rung % 2 != 0 && rung / 2 != params.first ? Next::kLeave : Next::kLaunch;
    }
    platform.rest();
    if (block != 0) {
      const bool leaving = device::loadAcquire(resident.leavingInstance) == params.instance;  // [leaving]
      if (leaving && served >= device::loadRelaxed(resident.leavingAfter)) return Next::kLeave;
      continue;
    }
    const bool quits = device::loadAcquire(params.control->quit) != 0;  // [quit]
    if (!quits && platform.nowNs() - since < params.idleNs) continue;
    device::storeRelease(params.control->asleep, params.instance);  // [asleep]
    platform.fence();
    if (!quits && device::loadAcquire(params.control->enqueued) > served) {  // [enqueued]
      since = platform.nowNs();
      continue;
    }
    return leave(params, served);
  }
}

template <class Platform>
KOLO_DEVICE void serveBlock(Platform& platform, const ServeParams& params, int block, int blocks, BlockState& state) {
  if (platform.thread() == 0) state.served = device::loadRelaxed(params.channels[block].served);
  for (;;) {
    const bool leaves = platform.thread() == 0 && awaitLaunch(platform, params, block, state.served) == Next::kLeave;
    if (platform.syncOr(leaves)) return;
    const std::uint64_t place = (state.served + 1) % kResidentPlaces;
    // By all threads: the place is in the host's memory. What is in it is visible since the doorbell.
    device::blockCopy(device::BlockIndex{platform.thread(), platform.threads()}, &state.launch, &params.places[place],
                      sizeof state.launch, false);
    platform.syncOr(false);
    runBlock(platform, state.launch, state.launch.list(), block, state);
    platform.syncOr(false);
    if (platform.thread() != 0) continue;
    device::storeRelaxed(params.channels[block].served, ++state.served);
    // A launch is given to the next one only when all blocks have done it: so the sum tells which arrival was the last.
    if (platform.add(params.resident->arrivals) == state.served * static_cast<std::uint64_t>(blocks)) {
      // The stream first: a release waits until what was stored before is there, and `completed` is in the host's
      // memory.
      device::storeRelease(params.resident->done, state.served);      // [done launch] the stream waits for it
      device::storeRelease(params.control->completed, state.served);  // [completed]
    }
  }
}

// The kernel of one launch, or the resident one, which `serve` is for.
template <class Platform>
KOLO_DEVICE void runKernel(Platform& platform, const LaunchParams& launch, const ServeParams& serve, int block,
                           int blocks, BlockState& state) {
  if (serve.resident != nullptr) {
    serveBlock(platform, serve, block, blocks, state);
  } else {
    runBlock(platform, launch, launch.list(), block, state);
  }
}

}  // namespace kolo::executor::cuda
