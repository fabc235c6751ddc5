// What the tests of windows share.
#pragma once

#include <algorithm>

#include "support/ranks.h"

namespace kolo::test {

// Every rank gives its number + 1 in all elements, and gets their sum.
inline void sumAndExpect(Self& self, int* send, int* recv, size_t count) {
  std::fill(send, send + count, self.rank + 1);
  if (send != recv) std::fill(recv, recv + count, -1);
  EXPECT_OK(self, koloAllReduce(send, recv, count, koloInt32, koloSum, self.comm, nullptr));
  const int sum = self.ranks * (self.ranks + 1) / 2;
  EXPECT(self, std::all_of(recv, recv + count, [&](int value) { return value == sum; }));
}

}  // namespace kolo::test
