// Whether links to and from a GPU's memory do what they should: broken PCIe set-ups (ACS, an IOMMU) lose or misdirect
// what passes between devices, or between a device and a NIC, in silence. So each link writes, once, into the trial
// lines of the arenas, and is looked after.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "executor/cuda/engine.h"
#include "links/peers.h"

namespace kolo::gpu {

class Trials {
 public:
  // All stay as long as this does.
  Trials(links::Membership& membership, executor::cuda::Gpu& gpu, const executor::cuda::ArenaLayout& layout)
      : membership_(membership), gpu_(gpu), layout_(layout) {}

  // Of mapped links. Collective. A pair keeps its links only if both ways work; the others are cut. For each rank, by
  // peer, '1' or '0': whether it reaches it.
  Result<std::vector<std::string>> proveMapped(links::Peers& peers);
  // Where a rank writes its part of this one's arena by a posted link.
  struct Inbox {
    unsigned char* part = nullptr;  // null: no GPU's memory has to do with that
    bool isOnDevice = false;        // it is in this rank's GPU's; else the host's
  };
  // Tests posted links. Collective. inboxes: by rank. Returns "" if all work, else which do not, alike on all ranks.
  // Errors: a link is lost.
  Result<std::string> provePosted(links::Peers& peers, const std::vector<Inbox>& inboxes);

 private:
  using Line = std::array<std::uint64_t, executor::cuda::kLineWords>;
  Line lineFrom(int from, int to) const;
  unsigned char* trialOf(unsigned char* arena, int peer) const;
  Status write(unsigned char* to, const Line& line) const;
  Result<Line> read(const unsigned char* from) const;
  Status writeMapped(links::Peers& peers) const;
  Result<bool> checkMapped(links::Peers& peers, int peer) const;
  Status post(links::Peers& peers, int peer) const;
  Status postAll(links::Peers& peers) const;
  Result<bool> hasArrived(links::Peers& peers, int peer, const Inbox& inbox) const;
  Result<std::string> awaitPosted(links::Peers& peers, const std::vector<Inbox>& inboxes) const;

  links::Membership& membership_;
  executor::cuda::Gpu& gpu_;
  const executor::cuda::ArenaLayout& layout_;
};

}  // namespace kolo::gpu
