// Ways to do the same thing, measured in turns: lists of tensors beside packing, axes beside copies.
//
// Thread safety: collective; each rank calls on its own thread. Functions throw Failure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "perf/buffers.h"
#include "perf/exchange.h"
#include "perf/options.h"

namespace kolo::perf {

struct Way {
  std::string name;
  std::function<void()> run;
};

// One line of a table: what was done, and what each way took.
struct Comparison {
  std::string collective;
  std::string what;  // such as "cap 25 MiB, 5 buckets", without commas
  std::string datatypes;
  BufferKind buffers = BufferKind::kRegistered;
  int ranks = 0;
  size_t bytes = 0;           // of this rank's larger side
  size_t temporaryBytes = 0;  // that the other ways need beside the buffers, and the first one does not
  double atMost = 0;          // how many times faster the first way can be by the bytes moved; 0: not counted
  std::vector<std::string> ways;
  std::vector<double> us;  // of each way: the median of the slowest rank's times
  size_t samples = 0;
  bool verified = false;
  size_t wrong = 0;  // elements that are not what they must be, over all ways and ranks

  // How many times faster the first way is than the fastest of the others.
  double ratio() const;
};

// Runs the ways in turns and fills in `ways`, `us` and `samples`. iterations: samples of each way; 0: as many as fit
// the time budget of kolo-perf's lines.
void timeWays(Exchange& exchange, const std::vector<Way>& ways, const Options& options, Comparison& comparison);

// A table on standard output, which rank 0 prints line by line. The heads of two lines differ where their ways do.
void printHead(const Comparison& first);
void printComparison(const Comparison& comparison);
void printEnd(const std::vector<Comparison>& comparisons);

}  // namespace kolo::perf
