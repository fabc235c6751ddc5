// What the tests of groups and meshes share.
#pragma once

#include <algorithm>
#include <vector>

#include "support/ranks.h"

namespace kolo::test {

inline koloConfig_t configWithTransports(const char* transports) {
  koloConfig_t config = defaultConfig();
  config.transports = transports;
  return config;
}

inline koloResult_t createGroup(Self& self, const std::vector<int>& ranks, koloComm_t* group,
                                const char* name = nullptr) {
  return koloCommCreateGroup(self.comm, ranks.data(), static_cast<int>(ranks.size()), name, group, nullptr);
}

inline int placeIn(const std::vector<int>& ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found != ranks.end() ? static_cast<int>(found - ranks.begin()) : -1;
}

// That the communicator has these ranks of the world, in this order: as it says, as they translate, and as a gather
// brings them.
inline void expectIsOf(Self& self, koloComm_t comm, const std::vector<int>& ranks) {
  int rank = -1, count = -1;
  EXPECT_OK(self, koloCommUserRank(comm, &rank));
  EXPECT_OK(self, koloCommCount(comm, &count));
  EXPECT(self, rank == placeIn(ranks, self.rank));
  EXPECT(self, count == static_cast<int>(ranks.size()));
  if (count != static_cast<int>(ranks.size())) return;
  std::vector<int> gathered(ranks.size(), -1), translated(ranks.size(), -1);
  EXPECT_OK(self, koloAllGather(&self.rank, gathered.data(), 1, koloInt32, comm, nullptr));
  EXPECT(self, gathered == ranks);
  for (std::size_t i = 0; i < ranks.size(); ++i) translated[i] = static_cast<int>(i);
  EXPECT_OK(self, koloCommTranslateRanks(comm, translated.data(), count, self.comm, translated.data()));
  EXPECT(self, translated == ranks);
  Self part{rank, count, comm, {}};
  expectWorks(part);
  self.faults.insert(self.faults.end(), part.faults.begin(), part.faults.end());
}

}  // namespace kolo::test
