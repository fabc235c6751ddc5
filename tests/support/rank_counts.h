// The numbers of ranks that a case is run with.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <vector>

namespace kolo::test {

// The numbers of ranks with which a case is usually run; all where tools/run-tests --all asks (KOLO_TEST_ALL).
inline std::vector<int> rankCounts(std::initializer_list<int> all) {
  if (std::getenv("KOLO_TEST_ALL") != nullptr) return all;
#if defined(__SANITIZE_THREAD__)
  constexpr int kUsual[] = {1, 2, 3, 5};  // with which all threads that there are meet each other
#else
  constexpr int kUsual[] = {1, 2, 3, 5, 8};
#endif
  std::vector<int> counts;
  for (const int count : all) {
    if (std::find(std::begin(kUsual), std::end(kUsual), count) != std::end(kUsual)) counts.push_back(count);
  }
  if (counts.empty()) counts.push_back(std::min(all));
  return counts;
}

}  // namespace kolo::test

#define GENERATE_RANKS(...) GENERATE(from_range(kolo::test::rankCounts({__VA_ARGS__})))
