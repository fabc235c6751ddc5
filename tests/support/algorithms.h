// The algorithms that exist for a collective, by the library's catalogue.
#pragma once

#include <kolo/kolo.h>

#include <map>
#include <string>
#include <vector>

#include "algorithms/catalogue.h"

namespace kolo::tests {

// Those that need nothing of where the ranks are, and no mesh.
inline const std::vector<std::string>& algorithmsFor(koloCollective_t collective) {
  static const auto table = [] {
    std::map<koloCollective_t, std::vector<std::string>> all;
    for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
      for (const algorithms::Row& row : algorithms::kCatalogue) {
        const auto each = static_cast<device::Collective>(i);
        if (row.serves(each) && row.grid == algorithms::GridOf::kNone)
          all[static_cast<koloCollective_t>(i)].emplace_back(row.name);
      }
    }
    return all;
  }();
  return table.at(collective);
}

// Whether there is one in steps, inside hosts and between them.
inline bool isHierarchical(koloCollective_t collective, bool vector) {
  const algorithms::Row& row = algorithms::rowOf(device::Algorithm::kHierarchical);
  return device::isIn(static_cast<device::Collective>(collective), vector ? row.vectors : row.collectives);
}

// And the ones for communicators along several axes of a mesh.
inline std::vector<std::string> meshAlgorithmsFor(koloCollective_t collective) {
  std::vector<std::string> names;
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    if (row.grid == algorithms::GridOf::kMesh && row.serves(static_cast<device::Collective>(collective)))
      names.emplace_back(row.name);
  }
  return names;
}

}  // namespace kolo::tests
