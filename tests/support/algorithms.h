// The algorithms written for a collective, by the table in the manual.
#pragma once

#include <kolo/kolo.h>

#include <map>
#include <string>
#include <vector>

namespace kolo::tests {

inline const std::vector<std::string>& algorithmsFor(koloCollective_t collective) {
  static const std::map<koloCollective_t, std::vector<std::string>> table = {
      {koloCollectiveAllReduce, {"line", "one_shot", "two_shot", "ring", "biring", "recursive", "tree"}},
      {koloCollectiveReduce, {"line", "one_shot", "two_shot", "ring", "tree"}},
      {koloCollectiveBroadcast, {"line", "one_shot", "two_shot", "ring", "tree"}},
      {koloCollectiveAllGather, {"line", "one_shot", "ring", "biring", "recursive", "bruck"}},
      {koloCollectiveReduceScatter, {"line", "one_shot", "ring", "biring", "recursive"}},
      {koloCollectiveAllToAll, {"line", "one_shot", "bruck", "pairwise"}},
      {koloCollectiveGather, {"line", "one_shot", "tree"}},
      {koloCollectiveScatter, {"line", "one_shot", "tree"}},
      {koloCollectiveBarrier, {"line", "recursive", "tree"}}};
  return table.at(collective);
}

// Whether there is one in steps, inside hosts and between them.
inline bool isHierarchical(koloCollective_t collective, bool vector) {
  switch (collective) {
    case koloCollectiveAllReduce:
    case koloCollectiveBroadcast: return !vector;
    case koloCollectiveAllGather: return true;
    case koloCollectiveReduceScatter:
    case koloCollectiveAllToAll: return !vector;
    default: return false;
  }
}

}  // namespace kolo::tests
