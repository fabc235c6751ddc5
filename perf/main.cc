// kolo-perf: sweeps collectives over sizes, prints a table, writes reports. README.md says how to read the figures.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "perf/array_axes.h"
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
#include "perf/tensor_lists.h"
#include "perf/ways.h"

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
  size_t ranks = 1;  // of this process
  size_t before = residentBytes();
  Clock::time_point begin = Clock::now();
  double ms = 0;

  void end() { ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); }
  double bytesNow() const {
    return std::max(0.0, static_cast<double>(residentBytes()) - static_cast<double>(before)) /
           static_cast<double>(ranks);
  }
};

// For the rank that is the host's number `local`.
int ordinalFor(const Options& options, int local) {
  return options.onGpus ? options.gpus[static_cast<size_t>(local) % options.gpus.size()] : KOLO_HOST;
}

koloConfig_t configFor(const Options& options, int ordinal) {
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.device = ordinal;
  if (options.resident) config.resident = 2;  // what is measured has its stream to itself
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

// What tells a rank's GPU from all others, and how that rank calls it. Numbers, which are what ranks exchange.
std::vector<double> gpuNumbers(int ordinal) {
  const auto gpu = static_cast<size_t>(ordinal);
  return {machineNumber(), hashNumber(gpusHere()[gpu].pciBusId), static_cast<double>(ordinal)};
}

// "GPU 0 (NVIDIA H200): 0, 2; GPU 1 (NVIDIA H200): 1, 3", from all ranks' numbers. The names are those of this
// machine's.
std::string gpusText(const std::vector<double>& numbers) {
  std::map<std::pair<double, double>, std::string> labels, ranksOn;
  const std::vector<Gpu> gpus = gpusHere();
  for (size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    labels[{machineNumber(), hashNumber(gpus[gpu].pciBusId)}] = fmt::format("GPU {} ({})", gpu, gpus[gpu].name);
  }
  for (size_t rank = 0; rank < numbers.size() / 3; ++rank) {
    const std::pair<double, double> gpu = {numbers[3 * rank], numbers[3 * rank + 1]};
    labels.try_emplace(gpu, fmt::format("GPU {} of rank {}'s", numbers[3 * rank + 2], rank));
    std::string& ranks = ranksOn[gpu];
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  std::vector<std::string> parts;
  for (const auto& [gpu, ranks] : ranksOn) parts.push_back(labels[gpu] + ": " + ranks);
  std::sort(parts.begin(), parts.end());
  return fmt::format("{}", fmt::join(parts, "; "));
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

// Of a sweep, or of --list and --axis.
struct Measured {
  std::vector<Result> results;
  std::vector<Comparison> comparisons;

  bool isWrong() const {
    const auto wrong = [](const auto& each) { return each.wrong > 0; };
    return std::any_of(results.begin(), results.end(), wrong) ||
           std::any_of(comparisons.begin(), comparisons.end(), wrong);
  }
};

void writeReports(const Run& run, const Options& options, const Measured& measured) {
  const auto write = [&](const auto& lines) {
    if (!options.jsonFile.empty()) writeFile(options.jsonFile, jsonText(run, lines));
    if (!options.csvFile.empty()) writeFile(options.csvFile, csvText(lines));
  };
  if (!options.isSweep()) return write(measured.comparisons);
  write(measured.results);
  if (!options.htmlFile.empty()) writeFile(options.htmlFile, htmlText(run, measured.results));
}

// What stands instead of a sweep, with its table.
std::vector<Comparison> compareWays(koloComm_t comm, const Options& options, const Device& device, Exchange& exchange,
                                    bool print) {
  if (!options.wishes.empty())
    check(koloCommSetAlgorithm(comm, wishesText(options.wishes).c_str()), "koloCommSetAlgorithm");
  const auto compare = options.axes.empty() ? runLists : runAxes;
  return compare(comm, options, device, exchange, print);
}

// The ranks that are threads of this process. What one of them allocates or frees on a GPU may wait for the kernels of
// another, and those for it: so they meet between that and what they launch.
using Together = std::barrier<>;

// The measurements themselves, with what they need of the communicator.
Measured measure(koloComm_t comm, const Options& options, const Device& device, const Making& making,
                 Together& together, std::optional<Run>& run) {
  int rank = 0, count = 0;
  check(koloCommUserRank(comm, &rank), "koloCommUserRank");
  check(koloCommCount(comm, &count), "koloCommCount");
  if (options.ranks > 0 && options.ranks != count) {
    fail("--ranks {} was given, but the launcher started {}", options.ranks, count);
  }
  std::optional<Reporter> reporter;
  together.arrive_and_wait();  // all are made
  const double bytes = making.bytesNow();
  together.arrive_and_wait();
  Exchange exchange(comm, device);
  together.arrive_and_wait();
  const std::vector<double> machines = exchange.gather({machineNumber()});
  requirePossible(options, count, static_cast<int>(std::count(machines.begin(), machines.end(), machineNumber())));
  const std::string gpus = options.onGpus ? gpusText(exchange.gather(gpuNumbers(device.ordinal()))) : "";
  const double initMs = exchange.greatest(making.ms), initBytes = exchange.greatest(bytes);
  if (rank == 0) {
    requireOutputs(options);
    run = describeRun(comm, options);
    run->gpus = gpus;
    run->initMs = initMs;
    run->initBytes = static_cast<size_t>(initBytes);
    reporter.emplace(*run);
  }
  Measured measured;
  AllBuffers buffers;
  if (options.isSweep()) {
    buffers = makeBuffers(comm, options, device);
    together.arrive_and_wait();
    measured.results = runSweep(comm, options, device, buffers, exchange, reporter ? &*reporter : nullptr);
  } else {
    measured.comparisons = compareWays(comm, options, device, exchange, reporter.has_value());
  }
  const double endBytes = exchange.greatest(making.bytesNow());  // the last that is launched
  if (run) run->endBytes = static_cast<size_t>(endBytes);
  return measured;
}

// What one rank does, as a process or as a thread. Destroys comm, unless it throws.
int runRank(koloComm_t comm, const Options& options, const Device& device, const Making& making, Together& together) {
  std::optional<Run> run;  // of rank 0
  const Measured measured = measure(comm, options, device, making, together, run);
  check(koloCommDestroy(comm), "koloCommDestroy");
  if (run) writeReports(*run, options, measured);
  return measured.isWrong() ? kWrongValues : kAllRight;
}

int runProcess(const Options& options) {
  const std::unique_ptr<Device> device = openDevice(ordinalFor(options, launchedLocalRank()));
  const koloConfig_t config = configFor(options, device->ordinal());
  koloComm_t comm = nullptr;
  Making making;
  check(koloCommInitFromEnv(&comm, &config), "koloCommInitFromEnv");
  making.end();
  Together alone(1);
  return runRank(comm, options, *device, making, alone);
}

// Calls body(rank) on a thread for each rank, and returns the worst status. A rank that fails ends the process: the
// others wait for it inside the library, and there is nothing to save.
template <class Body>
int onThreads(int ranks, const Body& body) {
  std::vector<int> statuses(static_cast<size_t>(ranks), kAllRight);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        statuses[rank] = body(static_cast<int>(rank));
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

// After the communicator has been made, so that threads of the library's own may run anywhere.
void bindThread(int rank, int ranks) {
  const std::vector<int> cores = usableCores();
  if (static_cast<size_t>(ranks) <= cores.size()) bindTo(cores[static_cast<size_t>(rank)]);
}

int runThreads(const Options& options, int ranks) {
  const koloConfig_t config = configFor(options, KOLO_HOST);
  std::vector<koloComm_t> comms(static_cast<size_t>(ranks));
  Making making{.ranks = comms.size()};
  check(koloCommInitAll(comms.data(), ranks, &config), "koloCommInitAll");
  making.end();
  const Device host;
  Together together(ranks);
  return onThreads(ranks, [&](int rank) {
    bindThread(rank, ranks);
    return runRank(comms[static_cast<size_t>(rank)], options, host, making, together);
  });
}

// With devices that may differ the ranks have no configuration in common: each makes its own part of the communicator.
int runThreadsOnGpus(const Options& options, int ranks) {
  koloUniqueId id;
  check(koloGetUniqueId(&id), "koloGetUniqueId");
  std::optional<Making> common;
  Together together(ranks);
  return onThreads(ranks, [&](int rank) {
    const std::unique_ptr<Device> device = openDevice(ordinalFor(options, rank));
    const koloConfig_t config = configFor(options, device->ordinal());
    together.arrive_and_wait();  // all devices are open
    if (rank == 0) common = Making{.ranks = static_cast<size_t>(ranks)};
    together.arrive_and_wait();
    Making making = *common;
    koloComm_t comm = nullptr;
    check(koloCommInitRankConfig(&comm, ranks, id, rank, &config), "koloCommInitRankConfig");
    making.end();
    bindThread(rank, ranks);
    const int status = runRank(comm, options, *device, making, together);
    together.arrive_and_wait();  // nobody closes a device while another rank still leaves its communicator
    return status;
  });
}

// Ranks on one device wait for each other: their streams should share no queue of the hardware, and no kernel be loaded
// only when it is first launched. What the caller has set holds.
void prepareGpus(Options& options) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const SignalsHeld held;  // by threads that the driver starts: a signal to end is for the one that ends the ranks
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
  const int ranks = options.ranks > 0 ? options.ranks : std::clamp(places, 2, KOLO_MAX_RANKS);
  requirePossible(options, ranks, ranks);
  requireOutputs(options);
  if (!options.threads) return launchRanks(argv, ranks);
  return options.onGpus ? runThreadsOnGpus(options, ranks) : runThreads(options, ranks);
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
