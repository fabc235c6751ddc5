#include "perf/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "common/collectives.h"
#include "perf/failure.h"
#include "perf/names.h"
#include "perf/sizes.h"

namespace kolo::perf {
namespace {

// About five significant digits in the width of the column, from nanoseconds to minutes.
std::string microseconds(double us) {
  const int digits = us < 10 ? 3 : us < 100 ? 2 : us < 10000 ? 1 : 0;
  return fmt::format("{:.{}f}", us, digits);
}

std::string gigabytes(double rate) { return rate < 0.01 ? fmt::format("{:.4f}", rate) : fmt::format("{:.2f}", rate); }

std::string wrongText(const Result& result) { return result.verified ? std::to_string(result.wrong) : "N/A"; }

std::string channelsText(const koloPlan_t& plan) {
  return plan.channels > 1 ? fmt::format("{} x{}", plan.algorithm, plan.channels) : plan.algorithm;
}

void printRow(const Result& r) {
  const std::string root = rowOf(r.operation.collective).isRooted() ? std::to_string(r.operation.root) : "-1";
  fmt::print("  {:>12} {:>12} {:>11} {:>7} {:>5}  {:>9} {:>9} {:>9}  {:>8} {:>8} {:>7}  {:<10} {}\n", r.bytes,
             r.elements, r.datatype(), r.op(), root, microseconds(r.timeUs.min), microseconds(r.timeUs.median),
             microseconds(r.timeUs.p99), gigabytes(r.algorithmBandwidth()), gigabytes(r.busBandwidth()), wrongText(r),
             bufferKindName(r.buffers), channelsText(r.plan));
}

nlohmann::ordered_json machineJson(const Run& run) {
  const Machine& machine = run.machine;
  return {{"cpu", machine.cpu},
          {"architecture", machine.architecture},
          {"cores", machine.cores},
          {"hardware_threads", machine.hardwareThreads},
          {"memory_bytes", machine.memoryBytes},
          {"last_level_cache_bytes", machine.lastCacheBytes},
          {"kernel", machine.kernel},
          {"transparent_huge_pages", machine.hugePages},
          {"timer", {{"source", kTimerSource}, {"cost_ns", machine.timerCostNs}}},
          {"run",
           {{"kolo_version", run.version},
            {"ranks", run.ranks},
            {"ranks_are", run.threads ? "threads" : "processes"},
            {"one_core_each", run.bound},
            {"in_place", run.inPlace},
            {"gpus", run.gpus},
            {"resident", run.resident},
            {"init_ms", run.initMs},
            {"memory_after_init_bytes", run.initBytes},
            {"memory_at_end_bytes", run.endBytes}}}};
}

nlohmann::ordered_json resultJson(const Result& r) {
  return {
      {"collective", r.collective()},
      {"ranks", r.ranks},
      {"bytes", r.bytes},
      {"count", r.elements},
      {"datatype", r.datatype()},
      {"op", r.op()},
      {"buffers", bufferKindName(r.buffers)},
      {"transport", r.plan.transport},
      {"algorithm", r.plan.algorithm},
      {"channels", r.plan.channels},
      {"iterations", r.iterations},
      {"time_us", {{"min", r.timeUs.min}, {"median", r.timeUs.median}, {"p99", r.timeUs.p99}, {"max", r.timeUs.max}}},
      {"algbw_gbps", r.algorithmBandwidth()},
      {"busbw_gbps", r.busBandwidth()},
      {"wrong", r.verified ? nlohmann::ordered_json(r.wrong) : nlohmann::ordered_json(nullptr)}};
}

nlohmann::ordered_json comparisonJson(const Comparison& c) {
  nlohmann::ordered_json times;
  nlohmann::ordered_json faster, atMost;
  for (size_t i = 0; i < c.ways.size(); ++i) {
    times[c.ways[i]] = c.us[i];
    if (i == 0) continue;
    faster[c.ways[i]] = c.ratio(i);
    atMost[c.ways[i]] = c.atMost[i - 1];
  }
  return {{"collective", c.collective},
          {"what", c.what},
          {"ranks", c.ranks},
          {"bytes", c.bytes},
          {"datatypes", c.datatypes},
          {"buffers", bufferKindName(c.buffers)},
          {"samples", c.samples},
          {"median_us", times},
          {"faster_than", faster},
          {"at_most", atMost},
          {"temporary_bytes", c.temporaryBytes},
          {"wrong", c.verified ? nlohmann::ordered_json(c.wrong) : nlohmann::ordered_json(nullptr)}};
}

}  // namespace

Reporter::Reporter(const Run& run) : run_(run), showBar_(isatty(STDERR_FILENO) == 1) {
  const Machine& machine = run_.machine;
  const char* const kind =
      run_.threads ? (run_.ranks == 1 ? "a thread" : "threads") : (run_.ranks == 1 ? "a process" : "processes");
  fmt::print("# kolo-perf, Kolo {}: {} rank{} ({}{}), {} buffers{}, transport {}\n", run_.version, run_.ranks,
             run_.ranks == 1 ? "" : "s", kind, run_.bound ? ", each bound to a core" : "", run_.buffers,
             run_.inPlace ? " in place" : "", run_.transport);
  fmt::print("# machine: {}, {} cores, {} memory, {}\n", machine.cpu, machine.cores, formatBytes(machine.memoryBytes),
             machine.kernel);
  if (!run_.gpus.empty())
    fmt::print("# GPUs and their ranks: {}{}\n", run_.gpus, run_.resident ? "; resident kernels" : "");
  fmt::print("# communicator: made in {:.1f} ms by the slowest rank, {} of memory for each\n", run_.initMs,
             formatBytes(run_.initBytes));
  fmt::print("# time: of one call, by the slowest rank, in batches back to back; bandwidth: from the median\n");
}

void Reporter::begin(size_t points) {
  points_ = points;
  advance(0);
}

void Reporter::section(koloCollective_t collective) {
  clearBar();
  fmt::print("#\n# {}\n#\n", koloCollectiveName(collective));
  fmt::print("# {:>12} {:>12} {:>11} {:>7} {:>5}  {:>9} {:>9} {:>9}  {:>8} {:>8} {:>7}  {:<10} {}\n", "size", "count",
             "type", "redop", "root", "min", "time", "p99", "algbw", "busbw", "#wrong", "buffers", "algorithm");
  fmt::print("# {:>12} {:>12} {:>11} {:>7} {:>5}  {:>9} {:>9} {:>9}  {:>8} {:>8}\n", "(B)", "(elements)", "", "", "",
             "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)");
  std::fflush(stdout);
  advance(0);
}

void Reporter::row(const Result& result) {
  clearBar();
  printRow(result);
  std::fflush(stdout);
  advance(1);
}

void Reporter::note(const std::string& text) {
  clearBar();
  fmt::print("# {}\n", text);
  std::fflush(stdout);
  advance(0);
}

void Reporter::end(const std::vector<Result>& results) {
  clearBar();
  size_t wrong = 0, unverified = 0;
  std::map<std::string, std::pair<double, size_t>> bandwidths;
  for (const Result& result : results) {
    wrong += result.wrong;
    unverified += result.verified ? 0 : 1;
    if (result.bytes == 0) continue;
    bandwidths[result.collective()].first += result.busBandwidth();
    bandwidths[result.collective()].second += 1;
  }
  if (unverified < results.size()) {
    fmt::print("#\n# Wrong values: {}{}\n", wrong, wrong == 0 ? " OK" : " FAILED");
  }
  if (unverified > 0) fmt::print("# Not verified: {} of {} lines\n", unverified, results.size());
  for (const auto& [collective, sum] : bandwidths) {
    fmt::print("# Average bus bandwidth, {:<14}: {:.3f} GB/s\n", collective,
               sum.first / static_cast<double>(sum.second));
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) fail("cannot write the table to standard output");
}

void Reporter::advance(size_t points) {
  constexpr size_t kWidth = 40;
  done_ += points;
  if (!showBar_ || points_ == 0) return;
  const size_t filled = std::min(kWidth, done_ * kWidth / points_);
  fmt::print(stderr, "\r[{:=<{}}{: <{}}] {}/{}", "", filled, "", kWidth - filled, done_, points_);
  std::fflush(stderr);
}

void Reporter::clearBar() {
  if (!showBar_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

std::string jsonText(const Run& run, const std::vector<Result>& results) {
  nlohmann::ordered_json document = {{"machine", machineJson(run)}, {"results", nlohmann::ordered_json::array()}};
  for (const Result& result : results) document["results"].push_back(resultJson(result));
  return document.dump(1) + "\n";
}

std::string csvText(const std::vector<Result>& results) {
  std::string text =
      "collective,ranks,bytes,count,datatype,op,buffers,transport,algorithm,channels,iterations,time_us_min,"
      "time_us_median,time_us_p99,time_us_max,algbw_gbps,busbw_gbps,wrong\n";
  for (const Result& r : results) {
    text +=
        fmt::format("{},{},{},{},{},{},{},{},{},{},{},{:.4f},{:.4f},{:.4f},{:.4f},{:.6f},{:.6f},{}\n", r.collective(),
                    r.ranks, r.bytes, r.elements, r.datatype(), r.op(), bufferKindName(r.buffers), r.plan.transport,
                    r.plan.algorithm, r.plan.channels, r.iterations, r.timeUs.min, r.timeUs.median, r.timeUs.p99,
                    r.timeUs.max, r.algorithmBandwidth(), r.busBandwidth(), r.verified ? std::to_string(r.wrong) : "");
  }
  return text;
}

std::string jsonText(const Run& run, const std::vector<Comparison>& comparisons) {
  nlohmann::ordered_json document = {{"machine", machineJson(run)}, {"results", nlohmann::ordered_json::array()}};
  for (const Comparison& comparison : comparisons) document["results"].push_back(comparisonJson(comparison));
  return document.dump(1) + "\n";
}

std::string csvText(const std::vector<Comparison>& comparisons) {
  std::string text = "collective,what,ranks,bytes,datatypes,buffers,way,time_us_median,samples,temporary_bytes,wrong\n";
  for (const Comparison& c : comparisons) {
    for (size_t i = 0; i < c.ways.size(); ++i) {
      text += fmt::format("{},{},{},{},{},{},{},{:.4f},{},{},{}\n", c.collective, c.what, c.ranks, c.bytes, c.datatypes,
                          bufferKindName(c.buffers), c.ways[i], c.us[i], c.samples, i == 0 ? 0 : c.temporaryBytes,
                          c.verified ? std::to_string(c.wrong) : "");
    }
  }
  return text;
}

void requireWritable(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "a");
  if (file == nullptr) fail("cannot open {} for writing: {}", path, std::strerror(errno));
  std::fclose(file);
}

void writeFile(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) fail("cannot open {} for writing: {}", path, std::strerror(errno));
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed) fail("cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace kolo::perf
