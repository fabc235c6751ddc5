#include "perf/before.h"

#include <sys/stat.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/collectives.h"
#include "perf/array_axes.h"
#include "perf/device.h"
#include "perf/failure.h"
#include "perf/machine.h"
#include "perf/names.h"
#include "perf/operation.h"
#include "perf/report.h"
#include "perf/sizes.h"
#include "perf/tensor_lists.h"

namespace kolo::perf {

bool isMeasurable(const Options& options, koloCollective_t collective) {
  if (collective == koloCollectiveBarrier) return true;
  if (options.inPlace && !canBeInPlace(collective)) return false;
  if (!rowOf(collective).folds) return true;
  return std::any_of(options.datatypes.begin(), options.datatypes.end(), [&](koloDataType_t datatype) {
    return std::any_of(options.ops.begin(), options.ops.end(),
                       [&](koloRedOp_t op) { return koloRedOpIsDefined(op, datatype) != 0; });
  });
}

size_t bufferCapacity(const Options& options, int ranks) {
  const bool sized = std::any_of(options.collectives.begin(), options.collectives.end(),
                                 [](koloCollective_t each) { return each != koloCollectiveBarrier; });
  if (!sized) return 0;
  // A size below one element for each block is rounded up to that; 16 bytes is the largest element.
  return std::max(options.sizes.back(), static_cast<size_t>(ranks) * 16);
}

void resolveGpus(Options& options) {
  const int count = static_cast<int>(gpusHere().size());
  for (const int gpu : options.gpus) {
    if (gpu >= count)
      fail("--gpus: there is no device {}, expected 0{}", gpu, count > 1 ? fmt::format(" to {}", count - 1) : "");
  }
  if (!options.gpus.empty()) return;
  options.gpus.resize(static_cast<size_t>(count));
  std::iota(options.gpus.begin(), options.gpus.end(), 0);
}

namespace {

struct Memory {
  std::string whose;
  size_t bytes;
};

void requireMemory(const Options& options, const char* what, double bytesOfRank, int ranks, const Memory& memory) {
  const double needed = bytesOfRank * ranks;
  if (needed <= static_cast<double>(memory.bytes)) return;
  fail("sizes up to {} need {:.1f} GiB for {} of each of {} rank{}{}, but {} memory is {}",
       formatBytes(options.sizes.back()), needed / (1u << 30), what, ranks, ranks == 1 ? "" : "s",
       options.buffers.size() > 1 ? ", registered and plain" : "", memory.whose, formatBytes(memory.bytes));
}

void requireGpuMemory(const Options& options, double bytesOfRank, int ranksHere) {
  const std::vector<Gpu> gpus = gpusHere();
  const int places = static_cast<int>(options.gpus.size());
  for (const int gpu : options.gpus) {
    int ranks = 0;  // on it; a device may be in the list more than once
    for (int rank = 0; rank < ranksHere; ++rank)
      ranks += options.gpus[static_cast<size_t>(rank % places)] == gpu ? 1 : 0;
    const Gpu& known = gpus[static_cast<size_t>(gpu)];
    requireMemory(options, "the two buffers", bytesOfRank, ranks, {fmt::format("GPU {}'s", gpu), known.memoryBytes});
  }
}

}  // namespace

void requirePossible(const Options& options, int ranks, int ranksHere) {
  const auto& collectives = options.collectives;
  if (std::any_of(collectives.begin(), collectives.end(),
                  [](koloCollective_t each) { return rowOf(each).isRooted(); }) &&
      (options.root < 0 || options.root >= ranks)) {
    fail("--root {} is no rank: there are ranks 0 to {}", options.root, ranks - 1);
  }
  if (!options.listFile.empty()) return requireLists(options, ranksHere);
  if (!options.axes.empty()) return requireAxes(options, ranksHere);
  if (std::none_of(collectives.begin(), collectives.end(), [&](auto each) { return isMeasurable(options, each); })) {
    fail("nothing to measure: {}", options.inPlace
                                       ? "no collective asked for has these datatypes and reductions in place"
                                       : "no reduction asked for is defined for a datatype asked for");
  }
  // As floating-point numbers: what is absurd must not wrap around to something small.
  const double each = 2.0 * static_cast<double>(bufferCapacity(options, ranks));  // a rank's two buffers of a kind
  const double kinds = static_cast<double>(options.buffers.size());
  if (options.onGpus) {
    requireGpuMemory(options, each * kinds, ranksHere);
    if (options.check > 0)
      requireMemory(options, "the copies on the host, with which values are compared,", each, ranksHere,
                    {"the machine's", memoryBytes()});
  } else {
    requireMemory(options, "the two buffers", each * kinds, ranksHere, {"the machine's", memoryBytes()});
  }
}

void requireOutputs(const Options& options) {
  std::vector<std::pair<std::string, struct stat>> files;
  for (const std::string& path : {options.jsonFile, options.csvFile, options.htmlFile}) {
    if (path.empty()) continue;
    requireWritable(path);
    struct stat status {};
    if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;  // such as /dev/null, which takes many
    for (const auto& [other, known] : files) {
      if (known.st_dev == status.st_dev && known.st_ino == status.st_ino) {
        fail("{} and {} are one file, but each report needs its own", other, path);
      }
    }
    files.emplace_back(path, status);
  }
}

}  // namespace kolo::perf
