// A communicator's options: the caller's configuration over the settings.
//
// Thread safety: plain data, and pure functions but for what they read of the settings.
#pragma once

#include <kolo/kolo.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "comm/parts.h"

namespace kolo::comm {

struct Options {
  int timeoutMs = 0;
  bool reproducible = false;
  std::string algorithm;
  std::string transports;
  std::string name;
  int device = -1;   // CUDA ordinal; -1: host memory
  int resident = 0;  // as koloConfig_t's
  bool eager = false;
  std::vector<int> mesh;  // as Mesh::shapeAlong() says, of koloMeshComm; never that of the parent

  // The caller's configuration over the settings; nullptr: the settings alone.
  static Result<Options> make(const koloConfig_t* config, const Options* parent);
  // What the ranks of a communicator with such options must agree on, in words.
  std::string agreement(const ArenaLayout& layout) const;
};

// What the links to a communicator's arenas are for.
Peers::Purpose staging(const ArenaLayout& layout, int rank);

}  // namespace kolo::comm
