// The ranks of a communicator, and their exchanges through the control plane.
//
// Thread safety: under the communicator's turn; `members`, `rank` and `control` never change once the communicator is
// made.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bootstrap/control.h"

namespace kolo::links {

// Where a communicator's control messages go.
struct Membership {
  std::shared_ptr<bootstrap::Control> control;
  std::uint64_t key = 0;     // tells communicators of one job apart
  std::vector<int> members;  // job rank of each rank
  int rank = 0;
  int initTimeoutMs = 0;
  std::uint64_t gathers = 0;  // number of allGathers done with this key
  bool isUnanswered = false;  // the last of them has failed on this rank, and may have succeeded on the others
  bool isOneHost = false;     // all ranks share memory and a network namespace, as nearNics() finds (links/hosts.h)
  std::uint64_t family = 0;   // under which the hub knows the key (bootstrap/control.h); 0: itself
  std::shared_ptr<bootstrap::Interrupt> interrupt;  // ends its exchanges; null: nothing does

  int ranks() const { return static_cast<int>(members.size()); }
  // The key under which the hub knows the communicator, and that of the news that a rank has given it up.
  std::uint64_t hubsKey() const { return family != 0 ? family : key; }
  std::uint64_t keyOfGivingUp() const { return ~key; }
  // What a rank of the communicator is in the job.
  int jobRank(int ofRank) const { return members[static_cast<std::size_t>(ofRank)]; }
  // The others wait for this rank for initTimeoutMs in each exchange. Between two exchanges it begins nothing that may
  // take long once its own time is over, and no link takes longer than half of that, or a second more where it fails.
  // So a rank that cannot go on comes while the others still wait, and it is its reason that all ranks return.
  int ownTimeMs() const { return std::max(1, initTimeoutMs / 2); }
  int linkTimeMs() const { return std::max(1, initTimeoutMs / 4); }
  bool isInterrupted() const { return interrupt != nullptr && interrupt->isRaised(); }
  // Out-of-band all-gather over the communicator.
  Result<std::vector<std::string>> allGather(std::string_view mine);
  // A rank could not be reached: that it has died, if so, or `why`. Its process may be gone before the control plane
  // knows of it.
  Status whyUnreached(int ofRank, const Status& why) const;
  // allGather of verdicts: everybody succeeds, or all return the first failure, which names its rank.
  Status agree(const Status& mine);
  // The same, and whether any of them has said so.
  Result<bool> agreeWhether(const Status& mine, bool iSay);
};

}  // namespace kolo::links
