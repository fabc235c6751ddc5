// How communicators come about: from a unique id, from a launcher, by split, by shrink, by growing. Groups:
// comm/subgroups.h.
//
// Thread safety: all functions; split, shrink and grow under the parent's turn.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace kolo::comm {

using Owned = std::unique_ptr<Communicator>;

// options: an error: this rank cannot take part. The other ranks are told so, and the error is returned. joining,
// making: end the wait for others to join, and the waits after that; null: nothing does.
Result<Owned> createFromId(const koloUniqueId& id, int rank, int ranks, const Result<Options>& options,
                           const std::shared_ptr<bootstrap::Interrupt>& joining = nullptr,
                           const std::shared_ptr<bootstrap::Interrupt>& making = nullptr);
Result<Owned> createFromEnvironment(const Result<Options>& options);
// Ranks as threads of this process.
Result<std::vector<Owned>> createAll(int ranks, const Options& options);
// nullptr for a rank without a color.
Result<Owned> split(Communicator& parent, int color, int key, const koloConfig_t* config);
Result<Owned> shrink(Communicator& parent, const std::vector<int>& excluded, const koloConfig_t* config);

// What the id for growing it says of a communicator: its ranks, and some bits that others mostly do not have. A program
// that mixes ids up hears so.
std::uint32_t growthOf(Communicator& parent);
constexpr int oldRanksIn(std::uint32_t growth) { return static_cast<int>(growth & ((1u << 18) - 1)); }
// The part of a rank of the parent. id: null: another rank of it gives one. As soon as this rank fails, those who come
// by its id are told so.
Result<Owned> grow(Communicator& parent, int ranks, const koloUniqueId* id, const koloConfig_t* config);

// The key of a communicator that comes of another: of that one's key and what tells the two apart.
std::uint64_t mixKeys(std::uint64_t key, std::uint64_t value);

// This rank's part in making a communicator. The other ranks wait for it in each step: if it cannot go on, they are
// told so, and why, instead of waiting until their time is over. `make` may move from the membership, and set its rank
// and family until then.
template <class Make>
Result<Owned> undertake(const Membership& membership, Make&& make) {
  const std::shared_ptr<bootstrap::Control> control = membership.control;
  Result<Owned> made = withoutExceptions(make);
  if (!made.ok()) {
    const Status& why = made.status();
    control->reportFailure(membership.key,
                           {why.code(), control->rank(), fmt::format("on rank {}: {}", membership.rank, why.message())},
                           membership.family);
  }
  return made;
}

}  // namespace kolo::comm
