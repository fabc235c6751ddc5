// What the command line asks for.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kolo/kolo.h"
#include "perf/buffers.h"

namespace kolo::perf {

struct Options {
  std::vector<koloCollective_t> collectives;
  std::vector<koloDataType_t> datatypes;
  std::vector<koloRedOp_t> ops;
  std::vector<size_t> sizes;  // bytes, increasing
  std::vector<BufferKind> buffers;
  int ranks = 0;  // 0: not given
  int root = 0;
  size_t iterations = 0;  // 0: as many as fit the time budget of a size
  size_t warmups = 5;
  bool verify = true;
  bool inPlace = false;
  bool threads = false;
  double timeoutSeconds = 0;  // 0: the library's own
  std::string algorithm;      // empty: the planner's choice
  std::string transport;      // empty: the library's choice
  std::string jsonFile, csvFile, htmlFile;
};

// Thread safety: not thread safe; call once, from main. Prints help and version itself and then returns false, with the
// status to exit with in exitStatus. Throws Failure for values that make no sense.
bool parseOptions(int argc, char** argv, Options& options, int& exitStatus);

}  // namespace kolo::perf
