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

// One line of a table: what was done, and what each way took. From `ways` on, WaysTable fills it in.
struct Comparison {
  std::string collective;
  std::string what;  // such as "cap 25 MiB: 5 buckets", without commas
  std::string datatypes;
  BufferKind buffers = BufferKind::kRegistered;
  int ranks = 0;
  size_t bytes = 0;            // of all tensors, or of the whole array
  size_t temporaryBytes = 0;   // that the other ways need beside the buffers, and the first one does not
  std::vector<double> atMost;  // beside each other way: how many times faster the first can be by the bytes moved
  std::vector<std::string> ways;
  std::vector<double> us;  // of each way: the median of the slowest rank's times
  size_t samples = 0;
  bool verified = false;
  size_t wrong = 0;  // elements that are not what they must be, over all ways and ranks

  // How many times faster the first way is than another one, and than the fastest of the others.
  double ratio(size_t other) const;
  double ratio() const;
};

// The memory that the ways of a line share.
struct Contents {
  std::function<void()> fillInputs, clearOutputs;
  std::function<size_t()> wrong;  // elements of this rank's outputs that are not what they must be
};

// The lines, which rank 0 prints on standard output as they are measured.
class WaysTable {
 public:
  // print: on rank 0.
  WaysTable(Exchange& exchange, const Options& options, bool print)
      : exchange_(exchange), options_(options), print_(print) {}

  // Verifies the values of each way, if that is asked for, runs the ways in turns, and prints the line. All lines of a
  // table have the same ways. comparison: what is known without running them.
  void add(Comparison comparison, const std::vector<Way>& ways, const Contents& contents);
  // Prints what all lines say together, and returns them.
  std::vector<Comparison> end();

 private:
  size_t wrongIn(const std::vector<Way>& ways, const Contents& contents);
  void time(const std::vector<Way>& ways, Comparison& comparison);

  Exchange& exchange_;
  const Options& options_;
  const bool print_;
  std::vector<Comparison> comparisons_;
};

}  // namespace kolo::perf
