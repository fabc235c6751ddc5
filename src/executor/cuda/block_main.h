// What a block of the persistent kernel does: its channel's part of every operation of the launch. One text serves CUDA
// blocks and blocks that host threads play.
#pragma once

#include <cstddef>

#include "algorithms/execute.h"
#include "algorithms/messages.h"
#include "device/block_team.h"
#include "executor/cuda/launch_params.h"

namespace kolo::executor::cuda {

// Turns the description of an operation into that of a channel's part: every block of data is cut alike on all ranks.
// kServesLists: the operation may be over a list.
template <bool kServesLists>
KOLO_DEVICE void takeChannel(device::Work& work, int channel) {
  // By how many bytes the buffer begins later.
  const auto part = [&](device::Layout& layout, bool blocks, device::WindowRef& ref) -> std::uint64_t {
    if constexpr (kServesLists) {
      // The ring all-reduce cuts each item into the ranks' parts: then its buffers are blocks too.
      blocks = blocks || (work.segments != nullptr && layout.counts != nullptr);
    }
    if (blocks) {
      layout.channel = channel;
      layout.channels = work.channel.count;
      layout.grain = work.grain();
      return 0;
    }
    const device::Range mine = device::alignedPart(layout.count, work.channel.count, channel, work.grain());
    const std::uint64_t bytes = mine.begin * work.elementBytes;
    if (ref.index != 0) ref.offset += bytes;
    layout.count = mine.count;
    return bytes;
  };
  const device::Collective collective = work.signature.collective;
  work.send += part(work.sendLayout, device::isIn(collective, device::kSendsBlocks), work.sendRef);
  work.recv += part(work.recvLayout, device::isIn(collective, device::kReceivesBlocks), work.recvRef);
  work.channel.links += static_cast<std::ptrdiff_t>(channel) * work.ranks;
  work.channel.scratch += static_cast<std::uint64_t>(channel) * work.channel.scratchBytes;
}

// The kernel's end gives the buffers back to the stream, though peers' kernels may still read them: these look at the
// mark behind their reads (device::mayHaveChanged).
KOLO_DEVICE void markGivenUp(const device::Work& work) {
  for (int peer = 0; peer < work.ranks; ++peer) {
    device::Counter* const mark = work.channel.links[peer].marks.gaveUpThere;
    if (mark != nullptr) device::storeRelease(*mark, 1);  // [gave up] before the kernel ends
  }
}

// Blocks of a communicator run side by side: the first that gives up says why, once in the communicator's life.
template <class Platform>
KOLO_DEVICE void report(Platform& platform, const LaunchHead& params, const device::Work& work,
                        const device::Fault& fault) {
  markGivenUp(work);
  if (platform.add(params.channels[0].failures) != 1) return;
  params.control->fault = fault;
  params.control->fault.number = work.header.number;
  if (fault.kind != device::Fault::kMismatch) {
    params.control->fault.mine = work.header.word;
    params.control->fault.mineCount = work.header.count;
  }
  device::storeRelease(params.control->faults, 1);  // [fault] what is above
}

// Where a channel hands requests of posted links to the host.
KOLO_DEVICE device::PostBox* postsOf(const LaunchHead& params, int channel) {
  return params.posts != nullptr ? params.posts + channel : nullptr;
}

// Tells the proxy that the channel has ended a launch. By one thread, after a barrier since the last request.
KOLO_DEVICE void sayEnded(device::PostBox& box) {
  const std::uint64_t number = device::loadRelaxed(box.launches) + 1;
  device::storeRelaxed(box.launches, number);
  device::storeRelease(box.ring->ended, number);  // [ended]
}

// A group's messages; false after a failure.
template <class Platform>
KOLO_DEVICE bool runMessages(Platform& platform, const LaunchHead& params, const device::Work* list, int channel,
                             BlockState& state) {
  if (params.messages == 0 || channel >= static_cast<int>(params.messageChannels)) return true;
  device::Work& work = state.work;
  if (platform.thread() == 0) {
    work = list[0];
    work.channel.links += static_cast<std::ptrdiff_t>(channel) * work.ranks;
    state.fault = {};
    work.channel.fault = &state.fault;
    work.channel.posts = postsOf(params, channel);
  }
  platform.syncOr(false);
  device::BlockTeam<Platform> team(platform, work);
  device::Exchange<device::BlockTeam<Platform>> exchange(team, work);
  algorithms::MessageGroup<device::BlockTeam<Platform>>(team, exchange, list, params.messages, channel).run();
  team.sync();
  if (team.failed() && platform.thread() == 0) report(platform, params, work, state.fault);
  platform.syncOr(false);
  return !team.failed();
}

template <class Platform>
KOLO_DEVICE bool runCollective(Platform& platform, const LaunchHead& params, const device::Work& described, int channel,
                               BlockState& state) {
  device::Work& work = state.work;
  device::Counter& operations = params.channels[channel].operations;
  if (platform.thread() == 0) {
    work = described;
    takeChannel<Platform::kServesLists>(work, channel);
    state.fault = {};
    work.channel.fault = &state.fault;
    work.channel.posts = postsOf(params, channel);
    work.header.word |= (device::loadRelaxed(operations) + 1) << device::Signature::kSequenceAt;
  }
  platform.syncOr(false);
  device::BlockTeam<Platform> team(platform, work);
  algorithms::execute(team, work);
  team.sync();
  if (platform.thread() == 0) {
    device::storeRelaxed(operations, device::loadRelaxed(operations) + 1);
    if (team.failed()) report(platform, params, work, state.fault);
  }
  platform.syncOr(false);
  return !team.failed();
}

// Messages first: they wait for nothing but messages. After a failure what follows would be refused.
template <class Platform>
KOLO_DEVICE void runList(Platform& platform, const LaunchHead& params, const device::Work* list, int channel,
                         BlockState& state) {
  // After a failure the peers may take what this rank sends for what it owed them: nothing more is sent.
  if (platform.syncOr(platform.thread() == 0 && device::loadRelaxed(params.channels[0].failures) != 0)) return;
  if (!runMessages(platform, params, list, channel, state)) return;
  for (std::uint32_t i = params.messages; i < params.count; ++i) {
    const device::Work& described = list[i];
    if (channel < described.channel.count && !runCollective(platform, params, described, channel, state)) return;
  }
}

// list: the launch's descriptions.
template <class Platform>
KOLO_DEVICE_CALL void runBlock(Platform& platform, const LaunchHead& params, const device::Work* list, int channel,
                               BlockState& state) {
  platform.setTimeout(params.timeoutNs);
  runList(platform, params, list, channel, state);
  if (params.posts != nullptr && platform.thread() == 0) sayEnded(params.posts[channel]);
}

}  // namespace kolo::executor::cuda
