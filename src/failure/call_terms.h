// In which part two ranks' lists differ. Headers compare digests, so that it costs nothing while lists are alike. Where
// digests differ, a rank asks the other one through the control plane: for a hash of each part, then for the words of
// the first part whose hashes differ.
//
// Thread safety: note() under the communicator's turn; the rest from any thread.
// Invariant: the terms of the last operations stay as long as what is said of them on a board.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/terms.h"
#include "links/arena.h"

namespace kolo::failure {

// The terms of this rank's last operations that have any.
class CallTerms {
 public:
  void note(std::uint64_t number, std::shared_ptr<const Terms> terms);
  std::shared_ptr<const Terms> of(std::uint64_t number) const;

 private:
  struct Entry {
    std::uint64_t number = 0;
    std::shared_ptr<const Terms> terms;
  };
  mutable std::mutex mutex_;
  std::array<Entry, links::Board::kEntries> entries_;
};

// What is asked about an operation's terms.
enum class Asked : std::uint64_t {
  kNothing,  // but what the rank does: Account
  kHashes,   // of the parts from a place on
  kPart      // the words of one
};

// terms null: there are none. The answer to the question about the part, or the parts from it on.
std::string answerOf(const Terms* terms, Asked asked, std::uint64_t part);
// Another rank's answer; null: none came.
using Ask = std::function<std::shared_ptr<const std::string>(Asked asked, std::uint64_t part)>;
// "item 3: rank 0 gave recvtype float32, rank 1 gave recvtype float16"; "" where that cannot be told.
std::string firstDifference(const Terms& own, int rank, int peer, const Ask& ask);

}  // namespace kolo::failure
