#include "perf/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdint>

#include "perf/array_axes.h"
#include "perf/failure.h"
#include "perf/names.h"
#include "perf/sizes.h"

namespace kolo::perf {
namespace {

// The command line as given, before names and sizes are understood.
struct Texts {
  std::vector<std::string> collectives;
  std::string minBytes = "8", maxBytes = "64M", stepBytes = "0", sizes;
  double factor = 2;
  std::string datatype = "float32", op = "sum", buffers = "registered", algorithm, gpus;
  std::string caps = "1M,25M,2000M", axes, shapes = "64x64,512x1024,4096x4096";
};

// What may stand behind an option. CLI11 shows the first text in the help, and as an error what the function returns.
CLI::Validator wholeNumber(std::int64_t low = INT_MIN, std::int64_t high = INT_MAX) {
  const auto check = [low, high](const std::string& text) -> std::string {
    std::int64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || end != text.data() + text.size() || code == std::errc::invalid_argument) {
      return fmt::format("\"{}\" is not a whole number", text);
    }
    if (code == std::errc() && value >= low && value <= high) return {};
    return fmt::format("{} is outside {} to {}", text, low, high);
  };
  return {check, high < INT_MAX ? fmt::format("{}..{}", low, high) : ""};
}

constexpr std::int64_t kMostCalls = 1 << 30;

std::vector<BufferKind> parseBufferKinds(std::string_view text) {
  std::vector<BufferKind> kinds;
  for (const std::string& word : splitList(text)) {
    if (word == bufferKindName(BufferKind::kRegistered)) {
      kinds.push_back(BufferKind::kRegistered);
    } else if (word == bufferKindName(BufferKind::kPlain)) {
      kinds.push_back(BufferKind::kPlain);
    } else {
      fail("unknown kind of buffers \"{}\", expected registered or plain", word);
    }
  }
  return kinds;
}

std::vector<size_t> parseSizes(const CLI::App& app, const Texts& texts) {
  if (app.count("--sizes") == 0) {
    const size_t step = parseBytes(texts.stepBytes);
    if (app.count("--stepbytes") > 0 && step == 0) fail("--stepbytes: 0 would never reach the largest size");
    return sweepSizes(parseBytes(texts.minBytes), parseBytes(texts.maxBytes), texts.factor, step);
  }
  std::vector<size_t> sizes;
  for (const std::string& word : splitList(texts.sizes)) sizes.push_back(parseBytes(word));
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

void declareWhat(CLI::App& app, Texts& texts, Options& options) {
  app.add_option("collective", texts.collectives,
                 "all_reduce all_gather reduce_scatter broadcast reduce all_to_all gather scatter send_recv barrier "
                 "(default: all)");
  auto* const min = app.add_option("-b,--minbytes", texts.minBytes, "smallest size")->capture_default_str();
  auto* const max = app.add_option("-e,--maxbytes", texts.maxBytes, "largest size")->capture_default_str();
  auto* const factor =
      app.add_option("-f,--stepfactor", texts.factor, "factor from size to size")->capture_default_str();
  auto* const step =
      app.add_option("-i,--stepbytes", texts.stepBytes, "add this instead of multiplying")->excludes(factor);
  auto* const sizes = app.add_option("--sizes", texts.sizes, "these sizes instead of a sweep: 8,2K,1M");
  for (CLI::Option* const ofSweep : {min, max, factor, step}) sizes->excludes(ofSweep);
  app.add_option("-d,--datatype", texts.datatype, "datatypes, by commas, or all")->capture_default_str();
  app.add_option("-o,--op", texts.op, "reductions, by commas, or all")->capture_default_str();
  app.add_option("-r,--root", options.root, "root of those collectives that have one")
      ->capture_default_str()
      ->check(wholeNumber());
  app.add_option("--buffers", texts.buffers, "registered, plain or registered,plain")->capture_default_str();
  app.add_flag("--in-place", options.inPlace, "send and receive in one buffer");
}

// What is measured instead of a sweep, with the options that say nothing there.
void declareWays(CLI::App& app, Texts& texts, Options& options) {
  auto* const list = app.add_option("--list", options.listFile,
                                    "instead of a sweep: lists of the tensors in this file, beside packing them and "
                                    "beside an operation for each; a line: elements and datatype");
  app.add_option("--caps", texts.caps, "largest buckets that the tensors of --list are put into")
      ->capture_default_str()
      ->needs(list);
  auto* const axis = app.add_option("--axis", texts.axes,
                                    "instead of a sweep: arrays that the ranks divide along these axes, by commas, "
                                    "beside copies and an operation on whole blocks");
  app.add_option("--shape", texts.shapes, "lengths of the arrays of --axis")->capture_default_str()->needs(axis);
  axis->excludes(list);
  for (const char* const name : {"--minbytes", "--maxbytes", "--stepfactor", "--stepbytes", "--sizes", "--op",
                                 "--in-place", "--gpus", "--html"}) {
    list->excludes(app.get_option(name));
    axis->excludes(app.get_option(name));
  }
  for (const char* const name : {"--datatype", "--root"}) list->excludes(app.get_option(name));
}

void declareHow(CLI::App& app, Texts& texts, Options& options) {
  app.add_option("--ranks", options.ranks, "number of ranks (default: one per core or GPU, at least 2)")
      ->check(wholeNumber(1, KOLO_MAX_RANKS));
  app.add_option("-n,--iters", options.iterations, "timed calls of each size (default: what 0.15 s allow, at least 5)")
      ->check(wholeNumber(1, kMostCalls));
  app.add_option("-w,--warmup_iters", options.warmups, "calls before them")
      ->capture_default_str()
      ->check(wholeNumber(0, kMostCalls));
  app.add_option("-c,--check", options.check, "0: do not verify; any other number: verify every value")
      ->capture_default_str()
      ->check(wholeNumber(0));
  app.add_option("--gpus", texts.gpus,
                 "measure GPU memory: CUDA devices by commas, or all; the ranks of a host have them in turns");
  app.add_flag("--resident", options.resident, "GPUs: small operations by the kernel that stays on the device");
  app.add_flag("--threads", options.threads, "ranks are threads of this process");
  app.add_option(
      "--algorithm", texts.algorithm,
      fmt::format("ALGORITHM for every collective measured, or COLLECTIVE:ALGORITHM; several by commas; ^ALGORITHM "
                  "forbids, ALGORITHM@LOW-HIGH limits to sizes, as for koloCommSetAlgorithm: {}",
                  fmt::join(algorithmNames(), " ")));
  app.add_option("--transport", options.transport, "transports to use, by commas");
  app.add_option("--timeout", options.timeoutSeconds, "seconds after which a waiting operation fails")
      ->check(CLI::Range(0.001, 2e6));
  app.add_option("--json", options.jsonFile, "write results to this file");
  app.add_option("--csv", options.csvFile, "write results to this file");
  app.add_option("--html", options.htmlFile, "write a report with curves to this file");
}

std::vector<int> parseNumbers(const std::string& text, const char* expected) {
  std::vector<int> numbers;
  for (const std::string& word : splitList(text)) {
    int number = -1;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (code != std::errc() || end != word.data() + word.size() || number < 0) fail(fmt::runtime(expected), word);
    numbers.push_back(number);
  }
  return numbers;
}

// What is measured, once it is known whether it is a sweep.
std::vector<koloCollective_t> collectivesOf(const Texts& texts, const Options& options) {
  if (options.isSweep() || !texts.collectives.empty()) return parseCollectives(texts.collectives);
  if (options.axes.empty()) return {kListCollectives.begin(), kListCollectives.end()};
  return {kAxisCollectives.begin(), kAxisCollectives.end()};
}

// An empty text is what a forgotten shell variable leaves; taken for "not given" it would be lost unseen.
void refuseEmpty(const CLI::App& app) {
  for (const CLI::Option* const option : app.get_options()) {
    if (option->count() > 0 && option->get_items_expected_max() > 0 && option->as<std::string>().empty()) {
      fail("{}: the value is empty", option->get_name());
    }
  }
}

}  // namespace

bool parseOptions(int argc, char** argv, Options& options, int& exitStatus) {
  CLI::App app(
      "Sweeps Kolo's collectives over sizes: time, bandwidth, and whether every value is right.\n"
      "Starts its own ranks unless mpirun, srun or torchrun started it.\n"
      "Exit status: 0; 1 if a value was wrong; 2 if the run failed, or was not possible.",
      "kolo-perf");
  app.set_version_flag("--version", fmt::format("kolo-perf {}.{}.{}", KOLO_MAJOR, KOLO_MINOR, KOLO_PATCH));
  Texts texts;
  declareWhat(app, texts, options);
  declareHow(app, texts, options);
  declareWays(app, texts, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& helpOrVersion) {
    exitStatus = app.exit(helpOrVersion);
    return false;
  } catch (const CLI::ParseError& error) {
    fail("{}", error.what());
  }
  refuseEmpty(app);
  if (!texts.axes.empty()) {
    options.axes = parseNumbers(texts.axes, "--axis: \"{}\" is no axis, expected numbers by commas, such as 0,1");
    options.shapes = parseShapes(texts.shapes);
  }
  for (const std::string& word : splitList(texts.caps)) options.capBytes.push_back(parseBytes(word));
  options.collectives = collectivesOf(texts, options);
  options.datatypes = parseDatatypes(texts.datatype);
  options.ops = parseOps(texts.op);
  options.sizes = parseSizes(app, texts);
  options.buffers = parseBufferKinds(texts.buffers);
  options.onGpus = !texts.gpus.empty();
  if (options.onGpus && texts.gpus != "all") {
    options.gpus =
        parseNumbers(texts.gpus, "--gpus: \"{}\" is no device, expected numbers by commas, such as 0,1, or all");
  }
  if (options.resident && !options.onGpus) fail("--resident is for GPUs, but --gpus was not given");
  if (!texts.algorithm.empty()) options.wishes = parseWishes(texts.algorithm, options.collectives);
  return true;
}

}  // namespace kolo::perf
