#include "perf/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

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
  std::string datatype = "float32", op = "sum", buffers = "registered";
};

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
  if (kinds.empty()) fail("--buffers is empty");
  return kinds;
}

std::vector<size_t> parseSizes(const Texts& texts) {
  if (texts.sizes.empty()) {
    return sweepSizes(parseBytes(texts.minBytes), parseBytes(texts.maxBytes), texts.factor,
                      parseBytes(texts.stepBytes));
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
  app.add_option("-b,--minbytes", texts.minBytes, "smallest size")->capture_default_str();
  app.add_option("-e,--maxbytes", texts.maxBytes, "largest size")->capture_default_str();
  app.add_option("-f,--stepfactor", texts.factor, "factor from size to size")->capture_default_str();
  app.add_option("-i,--stepbytes", texts.stepBytes, "add this instead of multiplying");
  app.add_option("--sizes", texts.sizes, "these sizes instead of a sweep: 8,2K,1M");
  app.add_option("-d,--datatype", texts.datatype, "datatypes, by commas, or all")->capture_default_str();
  app.add_option("-o,--op", texts.op, "reductions, by commas, or all")->capture_default_str();
  app.add_option("-r,--root", options.root, "root of rooted collectives")->capture_default_str();
  app.add_option("--buffers", texts.buffers, "registered, plain or registered,plain")->capture_default_str();
  app.add_flag("--in-place", options.inPlace, "send and receive in one buffer");
}

void declareHow(CLI::App& app, Options& options) {
  app.add_option("--ranks", options.ranks, "number of ranks (default: one per core, at least 2)")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("-n,--iters", options.iterations, "timed calls of each size (default: what 0.15 s allow, at least 5)")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("-w,--warmup_iters", options.warmups, "calls before them")->capture_default_str();
  app.add_option("-c,--check", options.verify, "1: verify every value; 0: do not")->capture_default_str();
  app.add_flag("--threads", options.threads, "ranks are threads of this process");
  app.add_option("--algorithm", options.algorithm, "force an algorithm, as koloCommSetAlgorithm names them");
  app.add_option("--transport", options.transport, "transports to use, by commas");
  app.add_option("--timeout", options.timeoutSeconds, "seconds after which a waiting operation fails")
      ->check(CLI::Range(0.001, 2e6));
  app.add_option("--json", options.jsonFile, "write results to this file");
  app.add_option("--csv", options.csvFile, "write results to this file");
  app.add_option("--html", options.htmlFile, "write a report with curves to this file");
}

}  // namespace

bool parseOptions(int argc, char** argv, Options& options, int& exitStatus) {
  CLI::App app(
      "Sweeps Kolo's collectives over sizes: time, bandwidth, and whether every value is right.\n"
      "Starts its own ranks unless mpirun, srun or torchrun started it.\n"
      "Exit status: 0; 1 if a value was wrong; 2 if the run failed.",
      "kolo-perf");
  app.set_version_flag("--version", fmt::format("kolo-perf {}.{}.{}", KOLO_MAJOR, KOLO_MINOR, KOLO_PATCH));
  Texts texts;
  declareWhat(app, texts, options);
  declareHow(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exitStatus = app.exit(error) == 0 ? 0 : 2;
    return false;
  }
  options.collectives = parseCollectives(texts.collectives);
  options.datatypes = parseDatatypes(texts.datatype);
  options.ops = parseOps(texts.op);
  options.sizes = parseSizes(texts);
  options.buffers = parseBufferKinds(texts.buffers);
  return true;
}

}  // namespace kolo::perf
