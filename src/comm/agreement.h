// What the ranks of a communicator that live agree on, whoever dies meanwhile: the flags of koloCommAgree, and who
// takes part in a shrink.
//
// The ranks that live meet in one exchange of the control plane, which succeeds for all who came to it or for none
// (bootstrap/control.h). It fails if one of them dies before it has come, and if ranks name each other that know of
// different deaths. Then each goes again, with the ranks of which it now knows that they live. The hub tells a death
// before it ends exchanges for it, so the second time mostly all know the same.
//
// Thread safety: under the communicator's turn.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "base/status.h"

namespace kolo::comm {

class Communicator;

// What a rank says to the others.
struct Statement {
  enum Purpose : std::uint32_t { kFlags = 1, kShrink };
  std::uint32_t purpose = 0;
  Status verdict;                  // why it cannot go on
  std::uint64_t value = 0;         // flags, or the number that it proposes for the shrink
  std::uint32_t acknowledged = 0;  // of koloCommAgree: of how many deaths the program has been told

  static auto fields(auto& it) { return std::tie(it.purpose, it.verdict, it.value, it.acknowledged); }
};

struct Agreement {
  std::vector<int> ranks;             // that took part, in ascending order
  std::vector<Statement> statements;  // theirs; equal on all of them
};

// Among the ranks that live, but for those that are excluded, which all ranks give alike. Works if the communicator has
// failed. Errors: koloAborted: one of the ranks has aborted it. koloMismatch: ranks have come for different purposes.
// koloTimeout names ranks that live and have not come. koloUnreachable: a rank has left the job, or the control plane
// is gone.
Result<Agreement> agree(Communicator& communicator, const std::vector<int>& excluded, Statement mine);

// koloCommAgree.
Status agreeOnFlags(Communicator& communicator, std::uint64_t* flags);

}  // namespace kolo::comm
