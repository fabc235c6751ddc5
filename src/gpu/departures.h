// What ranks on GPUs tell each other when they go, over posted links: words in the host's memory, a line for each peer,
// beside the arenas, which may lie in the memory of GPUs, where no thread of the host looks.
//
//   the peer, when it goes                       this rank's proxy                            this rank's kernels
//     sets its goodbye on each rail  [goodbye]     reads all of them  [goodbye]
//                                                  sets `left`  [gone]                          read `left`  [gone]
//
// A goodbye comes behind all that the peer has sent on its rail, out of the same NIC; but it goes to other memory, and
// nothing orders what a NIC writes to two places. So a proxy that has read a goodbye waits for a while before it tells
// the kernels (gpu/proxy.cc): they then look once more for what they wait for, and fail if it is not there. That is an
// error of the program's, and may be late.
//
// Thread safety: made by one thread; then the proxy's alone, but for lines() and bytes(), which never change.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/link.h"
#include "links/peers.h"
#include "memory/shared_memory.h"

namespace kolo::gpu {

class Departures {
 public:
  // Collective. REQUIRES: peers that are connected, which outlive it.
  static Result<std::unique_ptr<Departures>> make(links::Membership& membership, links::Peers& peers);

  // Of all peers, `lineBytes` apart, to be pinned for the kernels; of each the first word is what they read: 0,
  // kPeerLeft or kLinkLost.
  unsigned char* lines() const { return memory_.data(); }
  std::uint64_t bytes() const { return sizeof(Line) * keys_.size(); }
  static constexpr std::uint64_t lineAt(int peer) { return sizeof(Line) * static_cast<std::uint64_t>(peer); }

  // Whether the peer has said goodbye on all rails.
  bool hasGone(int peer) const;
  // What kernels are told of a peer; the last word counts.
  void tellKernels(int peer, std::uint64_t what) const;
  // Says goodbye to a peer on a rail; as Peers::put().
  Status say(int peer, std::uint32_t rail);

 private:
  struct alignas(64) Line {
    device::Counter left;
    device::Counter goodbyes[device::kMaxRails];
  };
  Line& line(int peer) const { return reinterpret_cast<Line*>(memory_.data())[peer]; }
  Status exchangeKeys(links::Membership& membership);

  links::Peers* peers_ = nullptr;
  memory::PrivateMemory memory_;
  std::vector<std::unique_ptr<transport::Memory>> registrations_;  // with each transport that has posted links
  std::vector<koloTransportKey> keys_;  // of each peer's lines, for the transport that reaches it
  int rank_ = 0;
};

}  // namespace kolo::gpu
