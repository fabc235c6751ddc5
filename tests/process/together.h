// Things that the ranks of a communicator do together, while some of them may end.
#pragma once

#include <kolo/kolo.h>

#include <cstddef>
#include <vector>

#include "process/roles.h"

namespace kolo::test {

inline int ranksOf(koloComm_t comm) {
  int ranks = 0;
  MUST_OK(koloCommCount(comm, &ranks));
  return ranks;
}

inline koloResult_t addOnes(koloComm_t comm, std::size_t count) {
  std::vector<int> ones(count, 1), sums(count);
  const koloResult_t result = koloAllReduce(ones.data(), sums.data(), count, koloInt32, koloSum, comm, nullptr);
  if (result == koloSuccess) MUST(sums == std::vector<int>(count, ranksOf(comm)));
  return result;
}

// One of four. A split is one of a group, which is thrown away with it: ranks of which some have begun a split that
// came to nothing cannot shrink their communicator afterwards.
inline koloResult_t workTogether(koloComm_t comm, int round) {
  if (round % 4 == 0) return addOnes(comm, 10);
  if (round % 4 == 1) return addOnes(comm, 1 << 19);
  if (round % 4 == 2) {
    koloWindow_t window = nullptr;
    void* memory = nullptr;
    MUST_OK(koloMemAlloc(&memory, 1 << 16));
    koloResult_t result = koloWindowRegister(comm, memory, 1 << 16, &window);
    if (result == koloSuccess) result = koloWindowDeregister(comm, window);
    MUST_OK(koloMemFree(memory));
    return result;
  }
  std::vector<int> members;
  for (int each = ranksOf(comm); each-- > 0;) members.push_back(each);
  koloComm_t group = nullptr, part = nullptr;
  koloResult_t result =
      koloCommCreateGroup(comm, members.data(), static_cast<int>(members.size()), "all", &group, nullptr);
  if (result == koloSuccess) result = koloCommSplit(group, 0, 0, &part, nullptr);
  if (result == koloSuccess) result = addOnes(part, 10);
  if (part != nullptr) (void)koloCommDestroy(part);
  if (group != nullptr) (void)koloCommDestroy(group);
  return result;
}

}  // namespace kolo::test
