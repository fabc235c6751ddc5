// kolo-perf: sweeps collectives over sizes, prints a table, writes reports. README.md says how to read the figures.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "perf/before.h"
#include "perf/device.h"
#include "perf/exchange.h"
#include "perf/failure.h"
#include "perf/html_report.h"
#include "perf/launch.h"
#include "perf/machine.h"
#include "perf/options.h"
#include "perf/report.h"
#include "perf/sweep.h"

namespace kolo::perf {
namespace {

// A rank that was merely hit by the failure of another waits a moment before it says so: where the ranks are ours, the
// one that failed has said why by then, and this process is ended.
void letTheCauseSpeak(const std::exception& error) {
  if (dynamic_cast<const Consequence*>(&error) != nullptr) std::this_thread::sleep_for(std::chrono::seconds(1));
}

using Clock = std::chrono::steady_clock;

// What making a communicator took this process, for each of its ranks.
struct Making {
  size_t ranks = 1;                        // of this process
  size_t before = residentBytes();
  Clock::time_point begin = Clock::now();
  double ms = 0;

  void end() { ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); }
  double bytesNow() const { return std::max(0.0, static_cast<double>(residentBytes()) - static_cast<double>(before)) / static_cast<double>(ranks); }
};

// For the rank that is the host's number `local`.
int ordinalFor(const Options& options, int local) {
  return options.onGpus ? options.gpus[static_cast<size_t>(local) % options.gpus.size()] : KOLO_HOST;
}

koloConfig_t configFor(const Options& options, int ordinal) {
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.device = ordinal;
  if (options.resident) config.resident = 1;
  if (options.timeoutSeconds > 0) config.timeoutMs = static_cast<int>(options.timeoutSeconds * 1e3);
  if (!options.transport.empty()) config.transports = options.transport.c_str();
  config.name = "kolo-perf";
  return config;
}

std::string libraryVersion() {
  int code = 0;
  check(koloGetVersion(&code), "koloGetVersion");
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

// "GPU 0 (NVIDIA H200): 0, 2; GPU 1 (NVIDIA H200): 1, 3", from each rank's device. Names are this host's.
std::string gpusText(const std::vector<double>& ordinals) {
  std::map<int, std::string> ranksOn;
  for (size_t rank = 0; rank < ordinals.size(); ++rank) {
    std::string& ranks = ranksOn[static_cast<int>(ordinals[rank])];
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  const std::vector<std::string> names = cudaDeviceNames();
  std::string text;
  for (const auto& [gpu, ranks] : ranksOn) {
    const std::string name = static_cast<size_t>(gpu) < names.size() ? names[static_cast<size_t>(gpu)] : "of another host";
    text += fmt::format("{}GPU {} ({}): {}", text.empty() ? "" : "; ", gpu, name, ranks);
  }
  return text;
}

Run describeRun(koloComm_t comm, const Options& options) {
  Run run;
  run.resident = options.resident;
  run.machine = readMachine();
  run.version = libraryVersion();
  run.threads = options.threads;
  run.bound = isBound();
  run.inPlace = options.inPlace;
  for (const BufferKind kind : options.buffers) {
    run.buffers += (run.buffers.empty() ? "" : " and ") + std::string(bufferKindName(kind));
  }
  koloPlan_t plan{};
  check(koloCommGetPlan(comm, koloCollectiveAllReduce, 1, koloFloat32, koloSum, 1, &plan), "koloCommGetPlan");
  run.transport = plan.transport;
  check(koloCommCount(comm, &run.ranks), "koloCommCount");
  return run;
}

void writeReports(const Run& run, const Options& options, const std::vector<Result>& results) {
  if (!options.jsonFile.empty()) writeFile(options.jsonFile, jsonText(run, results));
  if (!options.csvFile.empty()) writeFile(options.csvFile, csvText(results));
  if (!options.htmlFile.empty()) writeFile(options.htmlFile, htmlText(run, results));
}

// The measurements themselves, with what they need of the communicator.
std::vector<Result> measure(koloComm_t comm, const Options& options, const Device& device, const Making& making, std::optional<Run>& run) {
  int rank = 0, count = 0;
  check(koloCommUserRank(comm, &rank), "koloCommUserRank");
  check(koloCommCount(comm, &count), "koloCommCount");
  if (options.ranks > 0 && options.ranks != count) {
    fail("--ranks {} was given, but the launcher started {}", options.ranks, count);
  }
  std::optional<Reporter> reporter;
  const double bytes = making.bytesNow();
  Exchange exchange(comm, device);
  const std::vector<double> ordinals = exchange.gather({static_cast<double>(device.ordinal())});
  const double initMs = exchange.greatest(making.ms), initBytes = exchange.greatest(bytes);
  if (rank == 0) {
    requireOutputs(options);
    run = describeRun(comm, options);
    if (options.onGpus) run->gpus = gpusText(ordinals);
    run->initMs = initMs;
    run->initBytes = static_cast<size_t>(initBytes);
    reporter.emplace(*run);
  }
  std::vector<Result> results = runSweep(comm, options, device, exchange, reporter ? &*reporter : nullptr);
  const double endBytes = exchange.greatest(making.bytesNow());
  if (run) run->endBytes = static_cast<size_t>(endBytes);
  return results;
}

// What one rank does, as a process or as a thread. Destroys comm, unless it throws.
int runRank(koloComm_t comm, const Options& options, const Device& device, const Making& making) {
  std::optional<Run> run;   // of rank 0
  const std::vector<Result> results = measure(comm, options, device, making, run);
  check(koloCommDestroy(comm), "koloCommDestroy");
  if (run) writeReports(*run, options, results);
  const bool wrong = std::any_of(results.begin(), results.end(), [](const Result& r) { return r.wrong > 0; });
  return wrong ? kWrongValues : kAllRight;
}

int runProcess(const Options& options) {
  const std::unique_ptr<Device> device = openDevice(ordinalFor(options, launchedLocalRank()));
  const koloConfig_t config = configFor(options, device->ordinal());
  koloComm_t comm = nullptr;
  Making making;
  check(koloCommInitFromEnv(&comm, &config), "koloCommInitFromEnv");
  making.end();
  return runRank(comm, options, *device, making);
}

// One of the ranks that are threads.
int runThread(const Options& options, int ranks, int rank, const koloUniqueId& id, Making making) {
  const std::unique_ptr<Device> device = openDevice(ordinalFor(options, rank));
  const koloConfig_t config = configFor(options, device->ordinal());
  koloComm_t comm = nullptr;
  check(koloCommInitRankConfig(&comm, ranks, id, rank, &config), "koloCommInitRankConfig");
  making.end();
  return runRank(comm, options, *device, making);
}

// A rank that fails ends the process: the others wait for it inside the library, and there is nothing to save.
int runThreads(const Options& options, int ranks) {
  koloUniqueId id;
  check(koloGetUniqueId(&id), "koloGetUniqueId");
  const Making making{.ranks = static_cast<size_t>(ranks)};
  const std::vector<int> cores = usableCores();
  std::vector<int> statuses(static_cast<size_t>(ranks), kAllRight);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    threads.emplace_back([&, rank] {
      if (statuses.size() <= cores.size()) bindTo(cores[rank]);
      try {
        statuses[rank] = runThread(options, ranks, static_cast<int>(rank), id, making);
      } catch (const std::exception& error) {
        letTheCauseSpeak(error);
        static std::mutex first;
        first.lock();  // and never unlocked: the process ends with the first message
        fmt::print(stderr, "kolo-perf: rank {}: {}\n", rank, error.what());
        std::_Exit(kRunFailed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(statuses.begin(), statuses.end());
}

// Ranks on one device wait for each other: their streams should share no queue of the hardware, and no kernel be loaded only when it is
// first launched. What the caller has set holds.
void prepareGpus(Options& options) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  resolveGpus(options);
}

int run(int argc, char** argv) {
  Options options;
  int status = kAllRight;
  if (!parseOptions(argc, argv, options, status)) return status;
  if (options.onGpus) prepareGpus(options);
  if (startedByLauncher()) {
    if (options.threads) fail("--threads makes its own ranks, but a launcher started this process as one");
    return runProcess(options);
  }
  const int places = static_cast<int>(options.onGpus ? options.gpus.size() : usableCores().size());
  const int ranks = options.ranks > 0 ? options.ranks : std::clamp(places, 2, kMostRanks);
  requirePossible(options, ranks, ranks);
  requireOutputs(options);
  return options.threads ? runThreads(options, ranks) : launchRanks(argv, ranks);
}

}  // namespace
}  // namespace kolo::perf

int main(int argc, char** argv) {
  try {
    return kolo::perf::run(argc, argv);
  } catch (const std::exception& error) {
    kolo::perf::letTheCauseSpeak(error);
    const std::string rank = kolo::perf::launchedRank();
    fmt::print(stderr, "kolo-perf: {}{}\n", rank.empty() ? "" : "rank " + rank + ": ", error.what());
    return kolo::perf::kRunFailed;
  }
}
