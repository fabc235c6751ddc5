// What a block of the persistent kernel does: its channel's part of every operation of the launch. The same text for a CUDA block
// and for one that host threads play.
#pragma once

#include "algorithms/execute.h"
#include "device/block_team.h"
#include "executor/cuda/launch_params.h"

namespace kolo::executor::cuda {

// Turns the description of an operation into that of a channel's part: every block of data is cut alike on all ranks.
KOLO_DEVICE void takeChannel(device::Work& work, int channel) {
  // By how many bytes the buffer begins later.
  const auto part = [&](device::Layout& layout, bool blocks, device::WindowRef& ref) -> std::uint64_t {
    if (blocks) {
      layout.channel = channel;
      layout.channels = work.channels;
      layout.grain = work.grain();
      return 0;
    }
    const device::Range mine = device::alignedPart(layout.count, work.channels, channel, work.grain());
    const std::uint64_t bytes = mine.begin * work.elementBytes;
    if (ref.index != 0) ref.offset += bytes;
    layout.count = mine.count;
    return bytes;
  };
  const device::Collective collective = work.signature.collective;
  work.send += part(work.sendLayout, device::isIn(collective, device::kSendsBlocks), work.sendRef);
  work.recv += part(work.recvLayout, device::isIn(collective, device::kReceivesBlocks), work.recvRef);
  work.links += channel * work.ranks;
  work.scratch += static_cast<std::uint64_t>(channel) * work.scratchBytes;
}

// Blocks of a communicator run side by side: the first that gives up says why, once in the communicator's life.
template <class Platform>
KOLO_DEVICE void report(Platform& platform, const LaunchParams& params, const device::Fault& fault) {
  if (!platform.claim(params.channels[0].claimed)) return;
  params.control->fault = fault;
  device::storeRelease(params.control->faults, 1);   // [fault] what is above
}

// `work` and `fault` are the block's: all its threads see them.
template <class Platform>
KOLO_DEVICE void runBlock(Platform& platform, const LaunchParams& params, int channel, device::Work& work,
                          device::Fault& fault) {
  const device::Work* const list = params.list != nullptr ? params.list : params.works;
  Channel& state = params.channels[channel];
  // After a failure the peers may take what this rank sends for what it owed them: nothing more is sent.
  const bool over = platform.thread() == 0 && (device::loadAcquire(params.control->stop) != 0 ||    // [stop]
                                               device::loadAcquire(params.control->faults) != 0);   // [fault]
  if (platform.syncOr(over)) return;
  for (std::uint32_t i = 0; i < params.count; ++i) {
    if (channel >= list[i].channels) continue;
    const bool leads = platform.thread() == 0;
    std::uint64_t number = 0;
    if (leads) {
      number = device::loadRelaxed(state.operations) + 1;
      work = list[i];
      takeChannel(work, channel);
      fault = {};
      work.fault = &fault;
      work.word |= number << device::Signature::kSequenceAt;
    }
    platform.syncOr(false);
    device::BlockTeam<Platform> team(platform, work);
    algorithms::execute(team, work);
    team.sync();
    if (leads) {
      device::storeRelaxed(state.operations, number);
      if (team.failed()) report(platform, params, fault);
    }
    if (team.failed()) return;   // what follows would be refused
    platform.syncOr(false);
  }
}

}  // namespace kolo::executor::cuda
