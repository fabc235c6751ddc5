// One rank's part in making a communicator: what happens to the other ranks if it cannot go on.
//
// Thread safety: pure functions over what they are given.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/factory.h"

namespace kolo::comm {

using kolo::withoutExceptions;

// This rank's part in making the communicator of a key. The other ranks wait for it in each step: if it cannot go on,
// they are told so, and why, instead of waiting until their time is over. rank: in the communicator; family: of the key
// (bootstrap/control.h), 0: itself. `make` may set both.
template <class Make>
Result<Owned> undertake(const std::shared_ptr<bootstrap::Control>& control, std::uint64_t key, const int& rank,
                        const std::uint64_t& family, Make&& make) {
  Result<Owned> made = withoutExceptions(make);
  if (!made.ok()) {
    const Status& why = made.status();
    control->reportFailure(key, {why.code(), control->rank(), fmt::format("on rank {}: {}", rank, why.message())},
                           family);
  }
  return made;
}

}  // namespace kolo::comm
