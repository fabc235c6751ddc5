// Where results go: the table on standard output, the progress bar on standard error, and the files.
//
// Thread safety: not thread safe; used by the thread of rank 0 only.
#pragma once

#include <string>
#include <vector>

#include "perf/machine.h"
#include "perf/result.h"
#include "perf/ways.h"

namespace kolo::perf {

// What holds for a whole run.
struct Run {
  Machine machine;
  std::string version;  // of the library
  int ranks = 0;
  bool threads = false;
  bool bound = false;  // each rank to one core
  bool inPlace = false;
  std::string gpus;       // in whose memory the buffers lie, and the ranks of each; empty: the host's
  bool resident = false;  // the kernels for small operations there
  std::string buffers;
  std::string transport;
  double initMs = 0;     // making the communicator: the slowest rank
  size_t initBytes = 0;  // memory that it took: the most of a rank
  size_t endBytes = 0;   // the same after the last measurement, buffers included
};

// Prints the table as it grows, and the bar while it does.
class Reporter {
 public:
  explicit Reporter(const Run& run);

  void begin(size_t points);  // how many rows will be measured, for the progress bar
  void section(koloCollective_t collective);
  void row(const Result& result);
  void note(const std::string& text);
  void end(const std::vector<Result>& results);  // Throws Failure when the table could not be written.

 private:
  void advance(size_t points);
  void clearBar();

  Run run_;
  bool showBar_;
  size_t points_ = 0;
  size_t done_ = 0;
};

std::string jsonText(const Run& run, const std::vector<Result>& results);
std::string csvText(const std::vector<Result>& results);
// Of --list and --axis.
std::string jsonText(const Run& run, const std::vector<Comparison>& comparisons);
std::string csvText(const std::vector<Comparison>& comparisons);

// Throws Failure unless the file can be written; what it holds is kept. Asked before minutes are spent on measuring.
void requireWritable(const std::string& path);
// Replaces the file. Throws Failure when it cannot be written.
void writeFile(const std::string& path, const std::string& text);

}  // namespace kolo::perf
