// What a device takes for the steps that algorithms are made of, by its own clock: one text for CUDA blocks and for
// blocks that host threads play. kolo-gpu-measure launches it (tests/gpu/measure_micro.cc), and the library has none of
// it.
//
// Platform: thread(), threads(), syncOr(), rest() and nowNs() as of the library's (executor/cuda/block_main.h);
// storePacket() and loadPacket(), each one access of 16 bytes; reduce(index, datatype, args).
#pragma once

#include <kolo/kolo.h>

#include <cstdint>

#include "device/atomics.h"
#include "device/block_ops.h"

namespace kolo::test {

enum class Probed : int {
  kNothing,  // the launch alone
  kStores,   // each thread stores packs, then a barrier
  kFence,    // and the leader's fence and flag behind it, as a block tells a peer of what it has written
  kFlags,    // two blocks: a flag there and one back, by release and acquire
  kPackets,  // the same by packets of 16 bytes that carry their own number
  kCopy,     // every block copies its part
  kFold,     // and sums up parts of several sources
};

inline constexpr int kMostProbeSources = 8;
inline constexpr std::uint64_t kProbeChunk = 128 << 10;     // bytes that one call of a mover gets, as of the algorithms
inline constexpr std::uint64_t kProbeGivesUp = 2000000000;  // nanoseconds without an answer

// What a block says of itself; in the host's pinned memory.
struct alignas(64) ProbeTimes {
  std::uint64_t begin, end;  // ns
  std::uint64_t gaveUp;
};

struct ProbeParams {
  Probed what;
  int rounds;
  int stores;             // packs of each thread and round
  unsigned char* memory;  // for the stores, [threads * stores] packs; or for two flags or packets, a line each
  device::Counter* flag;  // behind the fence
  const void* sources[kMostProbeSources];
  int sourceCount;
  koloDataType_t datatype;
  void* to;
  std::uint64_t bytes;  // of each block's part
  ProbeTimes* times;    // [blocks]
};

// Packets are told from older ones by their number, which counts up from 1; the memory was zero.
template <class Platform>
KOLO_DEVICE bool awaitTurn(Platform& platform, const ProbeParams& probe, int me, std::uint64_t number) {
  const std::uint64_t begin = platform.nowNs();
  unsigned char* const mine = probe.memory + me * 64;
  for (;;) {
    const bool there = probe.what == Probed::kFlags
                           ? device::loadAcquire(*reinterpret_cast<device::Counter*>(mine)) >= number  // [turn]
                           : platform.loadPacket(mine).words[1] >= number;
    if (there) return true;
    if (platform.nowNs() - begin > kProbeGivesUp) return false;
    platform.rest();
  }
}

template <class Platform>
KOLO_DEVICE void giveTurn(Platform& platform, const ProbeParams& probe, int to, std::uint64_t number) {
  unsigned char* const there = probe.memory + to * 64;
  if (probe.what == Probed::kFlags) device::storeRelease(*reinterpret_cast<device::Counter*>(there), number);  // [turn]
  else platform.storePacket(there, {{number, number}});
}

// Blocks 0 and 1, each by one thread. False: no answer came.
template <class Platform>
KOLO_DEVICE bool playTurns(Platform& platform, const ProbeParams& probe, int block) {
  for (int round = 1; round <= probe.rounds; ++round) {
    const auto number = static_cast<std::uint64_t>(round);
    if (block == 0) giveTurn(platform, probe, 1, number);
    if (!awaitTurn(platform, probe, block, number)) return false;
    if (block == 1) giveTurn(platform, probe, 0, number);
  }
  return true;
}

template <class Platform>
KOLO_DEVICE void storeRounds(Platform& platform, const ProbeParams& probe) {
  for (int round = 1; round <= probe.rounds; ++round) {
    const auto number = static_cast<std::uint64_t>(round);
    for (int store = 0; store < probe.stores; ++store) {
      const std::uint64_t pack = static_cast<std::uint64_t>(store) * platform.threads() + platform.thread();
      device::storePack(probe.memory + pack * device::kPackBytes, {{number, number}});
    }
    platform.syncOr(false);
    if (probe.what == Probed::kFence && platform.thread() == 0) {
      device::fenceStores();
      device::storeFenced(*probe.flag, number);  // nobody reads it: its cost is asked for
    }
    platform.syncOr(false);
  }
}

template <class Platform>
KOLO_DEVICE void moveParts(Platform& platform, const ProbeParams& probe, int block) {
  const device::BlockIndex index{platform.thread(), platform.threads()};
  const std::uint64_t first = probe.bytes * static_cast<std::uint64_t>(block);
  for (std::uint64_t done = 0; done < probe.bytes; done += kProbeChunk) {
    const std::uint64_t bytes = probe.bytes - done < kProbeChunk ? probe.bytes - done : kProbeChunk;
    void* to = static_cast<unsigned char*>(probe.to) + first + done;
    const void* sources[kMostProbeSources];
    for (int s = 0; s < probe.sourceCount; ++s)
      sources[s] = static_cast<const unsigned char*>(probe.sources[s]) + first + done;
    if (probe.what == Probed::kCopy) {
      device::blockCopy(index, to, sources[0], bytes, false);
    } else {
      const std::uint64_t elementBytes = probe.datatype == koloFloat32 ? 4 : probe.datatype == koloBfloat16 ? 2 : 1;
      platform.reduce(
          index, probe.datatype,
          {.dst = &to, .dstCount = 1, .src = sources, .srcCount = probe.sourceCount, .count = bytes / elementBytes});
    }
  }
}

template <class Platform>
KOLO_DEVICE void runProbe(Platform& platform, const ProbeParams& probe, int block) {
  platform.syncOr(false);
  const std::uint64_t begin = platform.nowNs();
  bool answered = true;
  switch (probe.what) {
    case Probed::kNothing: break;
    case Probed::kStores:
    case Probed::kFence: storeRounds(platform, probe); break;
    case Probed::kFlags:
    case Probed::kPackets: answered = platform.thread() != 0 || playTurns(platform, probe, block); break;
    case Probed::kCopy:
    case Probed::kFold: moveParts(platform, probe, block); break;
  }
  platform.syncOr(false);
  if (platform.thread() != 0 || probe.times == nullptr) return;
  probe.times[block] = {begin, platform.nowNs(), answered ? 0u : 1u};  // the host waits for the kernel
}

}  // namespace kolo::test
