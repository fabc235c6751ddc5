#include "perf/ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "perf/failure.h"
#include "perf/sizes.h"
#include "perf/statistics.h"

namespace kolo::perf {
namespace {

using Clock = std::chrono::steady_clock;

// Microseconds of one run on this rank, when `batch` runs follow each other.
double timeBatch(Exchange& exchange, const Way& way, size_t batch) {
  exchange.barrier();
  const Clock::time_point begin = Clock::now();
  for (size_t i = 0; i < batch; ++i) way.run();
  const Clock::time_point end = Clock::now();
  exchange.finish();
  return std::chrono::duration<double, std::micro>(end - begin).count() / static_cast<double>(batch);
}

std::string wrongText(const Comparison& comparison) {
  return comparison.verified ? std::to_string(comparison.wrong) : "N/A";
}

void printHead(const Comparison& first) {
  fmt::print("#\n# {:<14} {:<32} {:>10} {:>11}", "collective", "what", "size", "type");
  for (const std::string& way : first.ways) fmt::print(" {:>12}", way + " us");
  for (size_t i = 1; i < first.ways.size(); ++i)
    fmt::print(" {:>12} {:>7}", first.ways[i] + "/" + first.ways.front(), "at most");
  fmt::print(" {:>11} {:>7}  {}\n", "temporary", "#wrong", "buffers");
}

void printComparison(const Comparison& comparison) {
  fmt::print("  {:<14} {:<32} {:>10} {:>11}", comparison.collective, comparison.what, formatBytes(comparison.bytes),
             comparison.datatypes);
  for (const double us : comparison.us) fmt::print(" {:>12.1f}", us);
  for (size_t i = 1; i < comparison.ways.size(); ++i)
    fmt::print(" {:>12.2f} {:>7.2f}", comparison.ratio(i), comparison.atMost[i - 1]);
  fmt::print(" {:>11} {:>7}  {}\n", formatBytes(comparison.temporaryBytes), wrongText(comparison),
             bufferKindName(comparison.buffers));
  std::fflush(stdout);
}

}  // namespace

double Comparison::ratio(size_t other) const {
  return other >= us.size() || us.front() <= 0 ? 0 : us[other] / us.front();
}

double Comparison::ratio() const {
  const auto fastest = std::min_element(us.begin() + 1, us.end());
  return ratio(static_cast<size_t>(fastest - us.begin()));
}

void WaysTable::add(Comparison comparison, const std::vector<Way>& ways, const Contents& contents) {
  comparison.verified = options_.check > 0;
  if (comparison.verified) comparison.wrong = wrongIn(ways, contents);
  time(ways, comparison);
  if (print_ && comparisons_.empty()) printHead(comparison);
  if (print_) printComparison(comparison);
  comparisons_.push_back(std::move(comparison));
}

// Of all ranks.
size_t WaysTable::wrongIn(const std::vector<Way>& ways, const Contents& contents) {
  size_t wrong = 0;
  contents.fillInputs();
  for (const Way& way : ways) {
    contents.clearOutputs();
    exchange_.barrier();
    way.run();
    exchange_.finish();
    wrong += contents.wrong();
  }
  return static_cast<size_t>(exchange_.sum(static_cast<double>(wrong)));
}

void WaysTable::time(const std::vector<Way>& ways, Comparison& comparison) {
  std::vector<Schedule> schedules;
  size_t samples = kMaxSamples;
  for (const Way& way : ways) {
    if (options_.warmups > 0) (void)timeBatch(exchange_, way, 1);
    schedules.push_back(scheduleFor(exchange_.greatest(timeBatch(exchange_, way, 1)), options_.iterations));
    samples = std::min(samples, schedules.back().samples);
  }
  std::vector<std::vector<double>> times(ways.size());
  for (size_t sample = 0; sample < samples; ++sample) {
    for (size_t i = 0; i < ways.size(); ++i)
      times[i].push_back(exchange_.greatest(timeBatch(exchange_, ways[i], schedules[i].batch)));
  }
  comparison.samples = samples;
  for (size_t i = 0; i < ways.size(); ++i) {
    comparison.ways.push_back(ways[i].name);
    comparison.us.push_back(summarize(times[i]).median);
  }
}

std::vector<Comparison> WaysTable::end() {
  if (!print_) return std::move(comparisons_);
  size_t wrong = 0, slower = 0, unverified = 0;
  for (const Comparison& comparison : comparisons_) {
    wrong += comparison.wrong;
    unverified += comparison.verified ? 0 : 1;
    slower += comparison.ratio() < 1 ? 1 : 0;
  }
  const size_t lines = comparisons_.size();
  if (unverified < lines) fmt::print("#\n# Wrong values: {}{}\n", wrong, wrong == 0 ? " OK" : " FAILED");
  if (unverified > 0) fmt::print("# Not verified: {} of {} lines\n", unverified, lines);
  if (lines > 0)
    fmt::print("# {} is faster than every other way in {} of {} lines\n", comparisons_.front().ways.front(),
               lines - slower, lines);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) fail("cannot write the table to standard output");
  return std::move(comparisons_);
}

}  // namespace kolo::perf
