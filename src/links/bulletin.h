// An all-gather of small texts through shared memory, among ranks that map each other's: what the ranks of one host
// tell each other when they split a communicator, without the control plane.
//
// Exchanges are numbered 1, 2, ... alike on all ranks, whatever became of earlier ones. Each rank posts its text on its
// own bulletin, under the number, and reads the others'. Two places are used in turn: a rank posts number k + 2 where
// it posted number k. It may do so because it has read everybody's number k + 1, which each of them posted after it had
// read number k.
//
// A rank that cannot go on says up to which number it will post nothing more, and why, so that nobody waits for it. It
// may go on with a later number without having read the earlier ones, and so overwrite what a late rank still wants.
// The late rank finds the larger number, and gives up too.
//
// Thread safety: one thread at a time for each rank; the ranks concurrently.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "device/atomics.h"

namespace kolo::links {

// Lies in the rank's own shared memory, at first all zero.
struct alignas(64) Bulletin {
  static constexpr std::size_t kTextBytes = 4096 - 2 * sizeof(device::Counter);
  struct Entry {
    device::Counter number;  // of the exchange; 0: none, or it is being written
    device::Counter bytes;
    std::array<device::Counter, kTextBytes / sizeof(device::Counter)> text;
  };
  std::array<Entry, 2> entries;
  Entry givenUp;         // number: what is not posted up to here will not be; text: a result code, and why
  device::Counter left;  // 1: the rank will post nothing more
  device::Counter
      sleepers;  // other ranks that sleep until something is posted here; of a rank that died asleep for good

  static bool fits(std::string_view text) { return text.size() <= kTextBytes; }
  // Nothing was posted, and nobody sleeps.
  void clear();
  // The rank posts no number any more, up to this one; it may post later ones.
  void giveUp(std::uint64_t number, const Status& why);
  void leave();
};

// Called again and again while a text has not come. An error ends the exchange. Otherwise the rank looks again after it
// has slept until the text comes, for at most so many microseconds.
using BulletinWait = std::function<Result<int>()>;

// bulletins: of each rank, own first posted. result[i] is the text of rank i. Errors: that of the wait; that of a rank
// which has given up on this number; koloRemoteError where a rank has left, or has gone on to a later number.
// REQUIRES: Bulletin::fits(mine)
Result<std::vector<std::string>> exchange(const std::vector<Bulletin*>& bulletins, int rank, std::uint64_t number,
                                          std::string_view mine, const BulletinWait& wait);

// The ranks that have not posted this number yet.
std::vector<int> absentees(const std::vector<Bulletin*>& bulletins, std::uint64_t number);

}  // namespace kolo::links
