// How the ranks of a group agree on an id for their communicator, by torch's store.
//
// The store may have been used before: torchrun starts killed ranks again beside the same store (with --master-port),
// and what an earlier attempt wrote is still there. So each rank writes a number that it has drawn. Rank 0 answers
// under a key that has this number in its name, and hears that the answer has been read under a key with its own
// number. What an earlier attempt wrote is therefore no answer.
//
// Thread safety: all functions.
#pragma once

#include <kolo/kolo.h>

#include <chrono>
#include <string>

#include "torch/c10d.h"

namespace kolo::pytorch {

struct Meeting {
  koloUniqueId id{};
  std::string token;  // the same on all ranks, and no other meeting's: for keys of the group's own
};

// Collective over the `size` ranks that meet under this key. Waits for all within the time; the error names the
// ranks that are missing.
Meeting meetInStore(c10d::Store& store, const std::string& key, int rank, int size, std::chrono::milliseconds timeout,
                    const std::string& group);

}  // namespace kolo::pytorch
