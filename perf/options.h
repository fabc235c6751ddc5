// What the command line asks for.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "kolo/kolo.h"
#include "perf/buffers.h"
#include "perf/wishes.h"

namespace kolo::perf {

// What --list and --axis can measure, and do where no collective is named.
inline constexpr std::array kListCollectives = {koloCollectiveAllReduce, koloCollectiveAllGather,
                                                koloCollectiveReduceScatter};
inline constexpr std::array kAxisCollectives = {koloCollectiveAllGather, koloCollectiveReduceScatter,
                                                koloCollectiveAllToAll, koloCollectiveGather, koloCollectiveScatter};

struct Options {
  std::vector<koloCollective_t> collectives;
  std::vector<koloDataType_t> datatypes;
  std::vector<koloRedOp_t> ops;
  std::vector<size_t> sizes;  // bytes, increasing
  std::vector<BufferKind> buffers;
  int ranks = 0;  // at most KOLO_MAX_RANKS; 0: not given
  int root = 0;
  size_t iterations = 0;  // 0: as many as fit the time budget of a size
  size_t warmups = 5;
  int check = 1;  // 0: values are not verified
  bool inPlace = false;
  bool threads = false;
  bool onGpus = false;
  std::vector<int> gpus;  // the devices of a host's ranks, in turns; empty until resolveGpus() for all that there are
  bool resident = false;
  double timeoutSeconds = 0;  // 0: the library's own
  std::vector<Wish> wishes;   // of algorithms; empty: the planner's choice
  std::string transport;      // empty: the library's choice
  std::string jsonFile, csvFile, htmlFile;
  // Instead of a sweep: lists of the tensors of a file, in buckets of at most so many bytes; or arrays of these shapes
  // that the ranks divide along these axes.
  std::string listFile;
  std::vector<size_t> capBytes;
  std::vector<int> axes;
  std::vector<std::vector<size_t>> shapes;

  bool isSweep() const { return listFile.empty() && axes.empty(); }
};

// Thread safety: not thread safe; call once, from main. Prints help and version itself and then returns false, with the
// status to exit with in exitStatus. Throws Failure for values that make no sense.
// What depends on the number of ranks is left to before.h.
bool parseOptions(int argc, char** argv, Options& options, int& exitStatus);

}  // namespace kolo::perf
