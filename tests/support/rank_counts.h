// The numbers of ranks that a case is run with.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <initializer_list>
#include <vector>

namespace kolo::test {

// Under a sanitizer those up to five, with which all threads that there are meet each other; all where tools/run-tests
// --all asks.
inline std::vector<int> rankCounts(std::initializer_list<int> all) {
  std::vector<int> counts = all;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  if (std::getenv("KOLO_TEST_ALL") == nullptr) {
    constexpr int kMost = 5;
    counts.erase(std::remove_if(counts.begin(), counts.end(), [](int count) { return count > kMost; }), counts.end());
  }
#endif
  return counts;
}

}  // namespace kolo::test

#define GENERATE_RANKS(...) GENERATE(from_range(kolo::test::rankCounts({__VA_ARGS__})))
