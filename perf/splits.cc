// What a communicator costs that is split from another one on its host: time, file descriptors, memory.
//
// usage: kolo-perf-splits [RANKS [THREADS [SPLITS]]]        4, 1 and 200 where not given
//
// Ranks are processes. In each, THREADS threads have a communicator of all ranks each, made by a first split of one.
// All threads at once, each SPLITS times: split it, and keep the child; and split it, call a barrier of the child, and
// destroy the child. A sample is what a call took the slowest rank, from its own call on; ranks call one behind the
// other as they come, so it holds waiting for the last one. Printed are the median and the 99th percentile over the
// samples of all threads, and of the rank that has most the descriptors and resident memory that kept children add. The
// children of the second kind use memory that was used before, those of the first kind take theirs from the system.
//
// With KOLO_TRANSPORTS and other settings as the environment has them.
#include <kolo/kolo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void must(koloResult_t result, const char* what) {
  if (result == koloSuccess) return;
  std::fprintf(stderr, "kolo-perf-splits: %s: %s\n", what, koloGetLastError(nullptr));
  std::exit(2);
}

double microsecondsOf(const auto& call) {
  const Clock::time_point begin = Clock::now();
  call();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

koloComm_t split(koloComm_t parent) {
  koloComm_t child = nullptr;
  must(koloCommSplit(parent, 0, 0, &child, nullptr), "koloCommSplit");
  return child;
}

void destroy(koloComm_t comm) { must(koloCommDestroy(comm), "koloCommDestroy"); }

double descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<double>(std::distance(begin(files), end(files)));
}

double residentKiB() {
  std::ifstream statm("/proc/self/statm");
  double pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1024;
}

// Of the slowest rank, or of the one that has most.
std::vector<double> worst(koloComm_t world, std::vector<double> mine) {
  must(koloAllReduce(mine.data(), mine.data(), mine.size(), koloFloat64, koloMax, world, nullptr), "koloAllReduce");
  return mine;
}

struct Times {
  std::vector<double> us;  // of each call
  double allUs = 0;        // of all of them
};

Times worst(koloComm_t world, Times mine) {
  mine.us.push_back(mine.allUs);
  Times times{worst(world, std::move(mine.us)), 0};
  times.allUs = times.us.back();
  times.us.pop_back();
  return times;
}

void print(const char* what, Times times) {
  const std::size_t calls = times.us.size();
  std::sort(times.us.begin(), times.us.end());
  std::printf("%-32s %10.1f %10.1f %12.1f\n", what, times.us[calls / 2], times.us[calls * 99 / 100],
              times.allUs / static_cast<double>(calls));
}

// So many calls in each thread. `call` gets the thread.
Times timed(std::size_t threads, std::size_t calls, const auto& call) {
  Times times{std::vector<double>(threads * calls), 0};
  times.allUs = microsecondsOf([&] {
    std::vector<std::thread> workers;
    for (std::size_t t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        for (std::size_t i = 0; i < calls; ++i) times.us[t * calls + i] = microsecondsOf([&] { call(t); });
      });
    }
    for (std::thread& worker : workers) worker.join();
  });
  return times;
}

int measure(int rank, std::size_t threads, std::size_t splits) {
  koloComm_t world = nullptr;
  must(koloCommInitFromEnv(&world, nullptr), "koloCommInitFromEnv");
  must(koloBarrier(world, nullptr), "koloBarrier");
  const double filesAtFirst = descriptors();
  koloComm_t first = nullptr;
  const double firstUs = microsecondsOf([&] { first = split(world); });
  const double filesOfFirst = descriptors() - filesAtFirst;
  std::vector<koloComm_t> parents;
  for (std::size_t t = 0; t < threads; ++t) parents.push_back(split(world));
  must(koloBarrier(world, nullptr), "koloBarrier");

  const double filesBefore = descriptors(), memoryBefore = residentKiB();
  std::vector<std::vector<koloComm_t>> kept(threads);
  Times keeping = timed(threads, splits, [&](std::size_t t) { kept[t].push_back(split(parents[t])); });
  const auto children = static_cast<double>(threads * splits);
  const double files = descriptors() - filesBefore, memory = (residentKiB() - memoryBefore) / children;
  for (const auto& each : kept) std::for_each(each.begin(), each.end(), destroy);
  must(koloBarrier(world, nullptr), "koloBarrier");
  Times passing = timed(threads, splits, [&](std::size_t t) {
    const koloComm_t child = split(parents[t]);
    must(koloBarrier(child, nullptr), "koloBarrier");
    destroy(child);
  });

  const std::vector<double> costs = worst(world, {firstUs, filesOfFirst, files / children, memory});
  keeping = worst(world, std::move(keeping));
  passing = worst(world, std::move(passing));
  if (rank == 0) {
    std::printf("first split: %.1f us, %.0f descriptors\n", costs[0], costs[1]);
    std::printf("%-32s %10s %10s %12s\n", "further ones", "median us", "p99 us", "one every us");
    print("split, kept", std::move(keeping));
    print("split, barrier, destroy", std::move(passing));
    std::printf("of each that is kept: %.2f descriptors, %.0f KiB\n", costs[2], costs[3]);
  }
  for (const koloComm_t parent : parents) destroy(parent);
  destroy(first);
  destroy(world);
  return 0;
}

int number(int argc, char** argv, int at, int otherwise) {
  return argc > at ? std::max(1, std::atoi(argv[at])) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = number(argc, argv, 1, 4), threads = number(argc, argv, 2, 1), splits = number(argc, argv, 3, 200);
  const std::string job = "splits-" + std::to_string(getpid());
  std::printf("%d ranks, %d threads, %d splits in each\n", ranks, threads, splits);
  std::fflush(stdout);
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    setenv("KOLO_RANK", std::to_string(rank).c_str(), 1);
    setenv("KOLO_SIZE", std::to_string(ranks).c_str(), 1);
    setenv("KOLO_JOB", job.c_str(), 1);
    std::exit(measure(rank, static_cast<std::size_t>(threads), static_cast<std::size_t>(splits)));
  }
  int worstStatus = 0;
  for (int status = 0; wait(&status) > 0;) worstStatus = std::max(worstStatus, status);
  return worstStatus == 0 ? 0 : 2;
}
