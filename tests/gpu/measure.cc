// Times all_reduce between ranks that are threads and share one GPU, beside the device's own copy, and prints JSON, a line for each
// figure. For tools/run-gpu-checks; --mock runs it by the mock of the driver, to test the program itself.
//
// usage: kolo-gpu-measure [--mock] [--device N] [--quick]
#include <kolo/kolo.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "drivers/cuda/driver.h"
#include "mock_cuda/device_memory.h"
#include "mock_cuda/mock_cuda.h"

namespace {

using Clock = std::chrono::steady_clock;
using kolo::drivers::CudaDriver;

const CudaDriver& driver() { return *kolo::drivers::cuda().value(); }

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s\n", kolo::drivers::cudaError(driver(), result, what).message().c_str());
  std::exit(1);
}
void check(koloResult_t result, const char* what) {
  if (result == koloSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, koloGetLastError(nullptr));
  std::exit(1);
}

struct Options {
  int device = 0;
  bool mock = false, quick = false;
};

struct Rank {
  koloComm_t comm = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr send = 0, recv = 0;
  koloWindow_t sendWindow = nullptr, recvWindow = nullptr;
};

// Bytes that all ranks together read and write at least, for an all_reduce of S bytes, counted as the device's copy counts its own.
double traffic(const std::string& algorithm, double n, double size) {
  if (algorithm == "two_shot") return 2 * n * size;            // every input read once, every output written once
  if (algorithm == "one_shot") return n * (n + 1) * size;      // every rank reads all inputs
  return size * (8 + 6 * (n - 2));                             // rings through slots: see stagedCost() in planner/planner.cc
}

class Group {
 public:
  Group(const Options& options, int ranks, std::size_t bytes)
      : options_(options), bytes_(bytes), ranks_(static_cast<std::size_t>(ranks)), meeting_(ranks) {
    koloUniqueId id;
    check(koloGetUniqueId(&id), "koloGetUniqueId");
    each([&](int at) {
      Rank& rank = ranks_[static_cast<std::size_t>(at)];
      koloConfig_t config = KOLO_CONFIG_INITIALIZER;
      config.device = options_.device;
      config.timeoutMs = 20000;
      check(koloCommInitRankConfig(&rank.comm, ranks, id, at, &config), "koloCommInitRankConfig");
      check(driver().cuStreamCreate(&rank.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
      check(driver().cuMemAlloc(&rank.send, bytes), "cuMemAlloc");
      check(driver().cuMemAlloc(&rank.recv, bytes), "cuMemAlloc");
      check(driver().cuMemsetD8Async(rank.send, 0, bytes, rank.stream), "cuMemsetD8Async");
      check(koloWindowRegister(rank.comm, reinterpret_cast<void*>(rank.send), bytes, &rank.sendWindow), "koloWindowRegister");
      check(koloWindowRegister(rank.comm, reinterpret_cast<void*>(rank.recv), bytes, &rank.recvWindow), "koloWindowRegister");
    });
  }
  ~Group() {
    each([&](int at) {
      Rank& rank = ranks_[static_cast<std::size_t>(at)];
      check(koloWindowDeregister(rank.comm, rank.sendWindow), "koloWindowDeregister");
      check(koloWindowDeregister(rank.comm, rank.recvWindow), "koloWindowDeregister");
      check(koloCommDestroy(rank.comm), "koloCommDestroy");
      meeting_.arrive_and_wait();   // nobody's kernel touches the windows any more
      check(driver().cuMemFree(rank.send), "cuMemFree");
      check(driver().cuMemFree(rank.recv), "cuMemFree");
      check(driver().cuStreamDestroy(rank.stream), "cuStreamDestroy");
    });
  }
  Group(const Group&) = delete;

  // Microseconds of one operation, by the slowest rank, launched back to back.
  double time(const std::string& algorithm, std::size_t bytes, int calls) {
    std::vector<double> each_(ranks_.size());
    each([&](int at) {
      Rank& rank = ranks_[static_cast<std::size_t>(at)];
      check(koloCommSetAlgorithm(rank.comm, ("all_reduce:" + algorithm).c_str()), "koloCommSetAlgorithm");
      const auto run = [&](int times) {
        for (int i = 0; i < times; ++i) {
          check(koloAllReduce(reinterpret_cast<void*>(rank.send), reinterpret_cast<void*>(rank.recv), bytes / sizeof(float), koloFloat32,
                              koloSum, rank.comm, reinterpret_cast<koloStream_t>(rank.stream)), "koloAllReduce");
        }
        check(driver().cuStreamSynchronize(rank.stream), "cuStreamSynchronize");
        koloResult_t result = koloSuccess;
        check(koloCommGetAsyncError(rank.comm, &result), "koloCommGetAsyncError");
        if (result != koloSuccess) {
          std::fprintf(stderr, "%s\n", koloGetLastError(rank.comm));
          std::exit(1);
        }
      };
      run(2);
      meeting_.arrive_and_wait();
      const Clock::time_point begin = Clock::now();
      run(calls);
      each_[static_cast<std::size_t>(at)] = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls;
    });
    return *std::max_element(each_.begin(), each_.end());
  }

 private:
  template <class Body>
  void each(Body body) {
    std::vector<std::thread> threads;
    for (int at = 0; at < static_cast<int>(ranks_.size()); ++at) {
      threads.emplace_back([&, at] {
        const kolo::test::CurrentDevice current(options_.device);
        body(at);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Options options_;
  std::size_t bytes_;
  std::vector<Rank> ranks_;
  std::barrier<> meeting_;
};

// GB/s (10^9) of bytes read and written by the device's own copy.
double copyBandwidth(const Options& options, std::size_t bytes) {
  const kolo::test::CurrentDevice current(options.device);
  CUdeviceptr from = 0, to = 0;
  check(driver().cuMemAlloc(&from, bytes), "cuMemAlloc");
  check(driver().cuMemAlloc(&to, bytes), "cuMemAlloc");
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    constexpr int kCopies = 5;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kCopies; ++i) check(driver().cuMemcpyDtoDAsync(to, from, bytes, nullptr), "cuMemcpyDtoDAsync");
    check(driver().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, 2.0 * static_cast<double>(bytes) * kCopies / seconds / 1e9);
  }
  check(driver().cuMemFree(from), "cuMemFree");
  check(driver().cuMemFree(to), "cuMemFree");
  return best;
}

int measure(const Options& options) {
  const std::size_t most = options.quick ? 1 << 20 : std::size_t{1} << 30;
  const double copy = copyBandwidth(options, options.quick ? 1 << 20 : std::size_t{1} << 28);
  std::printf("{\"copy_gbps\": %.1f}\n", copy);
  for (const int ranks : {2, 4, 8}) {
    Group group(options, ranks, most);
    for (const char* algorithm : {"line", "one_shot", "two_shot", "ring", "biring"}) {
      for (std::size_t bytes = 8; bytes <= most; bytes *= bytes < 65536 ? 8 : 4) {
        if ((std::strcmp(algorithm, "line") == 0) != (bytes == 8)) continue;   // eight bytes go in a line, nothing else does
        const int calls = bytes <= 65536 ? 50 : bytes <= std::size_t{1} << 24 ? 20 : 5;
        const double us = group.time(algorithm, bytes, options.quick ? 3 : calls);
        const double moved = traffic(algorithm, ranks, static_cast<double>(bytes));
        std::printf("{\"ranks\": %d, \"algorithm\": \"%s\", \"bytes\": %zu, \"us\": %.2f, \"algbw_gbps\": %.2f, "
                    "\"of_copy\": %.3f}\n", ranks, algorithm, bytes, us, static_cast<double>(bytes) / us / 1e3,
                    moved / us / 1e3 / copy);
        std::fflush(stdout);
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--mock") {
      options.mock = true;
    } else if (argument == "--quick") {
      options.quick = true;
    } else if (argument == "--device" && i + 1 < argc) {
      options.device = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr, "usage: kolo-gpu-measure [--mock] [--device N] [--quick]\n");
      return 2;
    }
  }
  if (options.mock) kolo::test::MockCuda{.multiprocessors = 8, .blockThreads = 1}.install();
  const auto found = kolo::drivers::cuda();
  if (!found.ok()) {
    std::fprintf(stderr, "%s\n", found.status().message().c_str());
    return 3;
  }
  const int status = measure(options);
  if (!options.mock) return status;
  const std::string left = kolo::test::MockCuda::remove();
  if (!left.empty()) std::fprintf(stderr, "not given back: %s\n", left.c_str());
  return left.empty() ? status : 1;
}
