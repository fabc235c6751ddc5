// Algorithms that the command line asks for: what koloCommSetAlgorithm takes, and, shorter, a bare name.
//
// Thread safety: free functions without state, from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kolo/kolo.h"

namespace kolo::perf {

struct Wish {
  koloCollective_t collective = koloCollectiveAllReduce;
  std::string algorithm;
  bool forbid = false;
  // The count of the call in bytes for which it holds, both included.
  size_t low = 0;
  size_t high = SIZE_MAX;
  std::string conditions;  // further ones, "/ranks=3-/op=sum", which the library reads
};

// All that the library has.
std::vector<std::string> algorithmNames();

// "ring": for every collective of `measured` that has algorithms. "all_reduce:ring": for that one. Each may be
// forbidden
// ("^ring") and limited to sizes ("ring@1M-"); several by commas. Throws Failure for what is none of these, so that a
// wrong name is found before ranks are started, and for a collective that is not measured.
std::vector<Wish> parseWishes(std::string_view text, const std::vector<koloCollective_t>& measured);

// As koloCommSetAlgorithm reads them.
std::string wishesText(const std::vector<Wish>& wishes);

// What the last wish that holds asks for; empty: nothing. Wishes with conditions that only the library reads count for
// nothing here.
std::string algorithmAskedFor(const std::vector<Wish>& wishes, koloCollective_t collective, size_t countBytes);

}  // namespace kolo::perf
