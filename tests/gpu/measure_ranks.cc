#include "measure_ranks.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "mock_cuda/cuda_for_tests.h"
#include "support/deadline.h"

namespace kolo::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 5;
constexpr int kMostCalls = 200;  // in a round: all are in the device's queue at once, which has about a thousand places
constexpr int kCallsInGraph = 20;  // which take places like others'
constexpr int kMostGraphs = kMostCalls / kCallsInGraph;
constexpr std::size_t kPattern = std::size_t{1} << 20;   // bytes after which the inputs repeat
constexpr std::size_t kLookedAt = std::size_t{1} << 16;  // bytes at each end of a result

std::mutex g_mutex;
std::string g_measuring;

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

// Small whole numbers, whose sums by as many ranks as there can be are exact, those of bfloat16 too.
float input(int rank, std::size_t place) {
  return static_cast<float>((place * 7 + place / 1021 + static_cast<std::size_t>(rank) * 31) % 16);
}

// A bfloat16 is the upper half of a float that it can hold.
std::uint32_t bitsOf(float value, std::size_t elementBytes) {
  return std::bit_cast<std::uint32_t>(value) >> (32 - 8 * elementBytes);
}

double microsecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

koloConfig_t configOf(const Setup& setup) {
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.device = setup.device;
  config.timeoutMs = static_cast<int>(within(setup.timeout, 0.8).count());
  config.resident = setup.resident ? 2 : 0;  // nothing else is in these streams
  return config;
}

// What every rank does between having a communicator and giving it back.
void runBody(Rank& rank, const std::function<void(Rank&)>& body) {
  check(driver().cuStreamCreate(&rank.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  body(rank);
  rank.synchronize();
  check(koloCommDestroy(rank.comm), "koloCommDestroy");
  check(driver().cuStreamDestroy(rank.stream), "cuStreamDestroy");
}

void runProcess(const Setup& setup, int number, const std::string& job, Meeting& meeting,
                const std::function<void(Rank&)>& body) {
  setenv("KOLO_RANK", std::to_string(number).c_str(), 1);
  setenv("KOLO_SIZE", std::to_string(setup.ranks).c_str(), 1);
  setenv("KOLO_JOB", job.c_str(), 1);
  setup.prepare();
  if (const auto found = drivers::cuda(); !found.ok()) fail(found.status().message());
  {
    const CurrentDevice current(setup.device);
    Rank rank{.number = number, .ranks = setup.ranks, .device = setup.device, .meeting = meeting};
    const koloConfig_t config = configOf(setup);
    check(koloCommInitFromEnv(&rank.comm, &config), "koloCommInitFromEnv");
    runBody(rank, body);
  }
  setup.finish();
}

// Waits for all; one that fails takes the others with it, which would wait for it.
bool waitFor(std::vector<pid_t> processes) {
  bool good = true;
  while (!processes.empty()) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    if (ended < 0) return false;
    std::erase(processes, ended);
    if (status == 0 || !good) continue;
    good = false;
    std::fprintf(stderr, "kolo-gpu-measure: a rank's process ended with status %d\n",
                 WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    for (const pid_t other : processes) ::kill(other, SIGKILL);
  }
  return good;
}

// A graph of several operations, captured from a rank's stream.
class Graph {
 public:
  Graph(Rank& rank, const std::function<void()>& enqueue) : rank_(rank) {
    rank.meeting.wait();  // nobody waits for the device while another captures
    check(cudaForTests().cuStreamBeginCapture(rank.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
          "cuStreamBeginCapture");
    for (int i = 0; i < kCallsInGraph; ++i) enqueue();
    check(cudaForTests().cuStreamEndCapture(rank.stream, &graph_), "cuStreamEndCapture");
    check(cudaForTests().cuGraphInstantiate(&executable_, graph_, 0), "cuGraphInstantiate");
    rank.meeting.wait();
  }
  ~Graph() {
    check(cudaForTests().cuGraphExecDestroy(executable_), "cuGraphExecDestroy");
    check(cudaForTests().cuGraphDestroy(graph_), "cuGraphDestroy");
  }
  Graph(const Graph&) = delete;
  void launch() const { check(cudaForTests().cuGraphLaunch(executable_, rank_.stream), "cuGraphLaunch"); }

 private:
  Rank& rank_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

// Microseconds of one operation here, for so many of them.
double timeOnce(Rank& rank, Way way, int calls, const std::function<void()>& enqueue) {
  rank.meeting.wait();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < calls; ++i) {
    enqueue();
    if (way == Way::kWaited) rank.synchronize();
  }
  rank.synchronize();
  return rank.meeting.most(rank.number, microsecondsSince(begin) / calls);
}

Timing timedPlainly(Rank& rank, Way way, double budgetMs, const std::function<void()>& enqueue) {
  (void)timeOnce(rank, way, 2, enqueue);  // the first calls make plans and touch memory
  const double about = timeOnce(rank, way, 2, enqueue);
  const double most = way == Way::kGraph ? kMostGraphs : kMostCalls;
  const int calls = static_cast<int>(std::clamp(budgetMs * 1000 / kRounds / about, 1.0, most));
  std::array<double, kRounds> rounds{};
  for (double& round : rounds) round = timeOnce(rank, way, calls, enqueue);
  rank.expectNoError();
  std::sort(rounds.begin(), rounds.end());
  return {.us = rounds[kRounds / 2], .leastUs = rounds[0], .calls = calls};
}

}  // namespace

const drivers::CudaDriver& driver() { return *drivers::cuda().value(); }

void nowMeasuring(const std::string& what) {
  const std::lock_guard lock(g_mutex);
  g_measuring = what;
}

void fail(const std::string& what) {
  const std::lock_guard lock(g_mutex);  // kept: one rank says it
  std::fprintf(stderr, "kolo-gpu-measure: %s%s%s\n", g_measuring.c_str(), g_measuring.empty() ? "" : ": ",
               what.c_str());
  (void)std::fflush(stdout);
  std::_Exit(1);
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) fail(drivers::cudaError(driver(), result, what).message());
}

void check(koloResult_t result, const char* what) {
  if (result != koloSuccess) fail(std::string(what) + ": " + koloGetLastError(nullptr));
}

void Meeting::wait() {
  const unsigned turn = turn_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
    arrived_.store(0, std::memory_order_relaxed);
    turn_.store(turn + 1, std::memory_order_release);
    return;
  }
  for (int polls = 0; turn_.load(std::memory_order_acquire) == turn; ++polls) {
    if (polls > 100'000)
      std::this_thread::sleep_for(std::chrono::microseconds(
          50));  // who only ever yields may keep others from their cores (kernels.cc of the mock)
    else if (polls > 1000) std::this_thread::yield();
  }
}

double Meeting::most(int rank, double mine) {
  given_[rank].store(mine, std::memory_order_relaxed);
  wait();
  double most = mine;
  for (int i = 0; i < ranks_; ++i) most = std::max(most, given_[i].load(std::memory_order_relaxed));
  wait();  // all have read
  return most;
}

void Rank::expectNoError() const {
  koloResult_t result = koloSuccess;
  check(koloCommGetAsyncError(comm, &result), "koloCommGetAsyncError");
  if (result != koloSuccess) fail(koloGetLastError(comm));
}

void onThreads(const Setup& setup, const std::function<void(Rank&)>& body) {
  koloUniqueId id;
  check(koloGetUniqueId(&id), "koloGetUniqueId");
  Meeting meeting(setup.ranks);
  std::vector<std::thread> threads;
  for (int number = 0; number < setup.ranks; ++number) {
    threads.emplace_back([&, number] {
      const CurrentDevice current(setup.device);
      Rank rank{.number = number, .ranks = setup.ranks, .device = setup.device, .meeting = meeting};
      const koloConfig_t config = configOf(setup);
      check(koloCommInitRankConfig(&rank.comm, setup.ranks, id, number, &config), "koloCommInitRankConfig");
      runBody(rank, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

bool onProcesses(const Setup& setup, const std::function<void(Rank&)>& body) {
  void* const shared = ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail("mmap");
  auto* const meeting = new (shared) Meeting(setup.ranks);
  static int jobs = 0;
  const std::string job = "kolo-gpu-measure-" + std::to_string(::getpid()) + "-" + std::to_string(jobs++);
  (void)std::fflush(stdout);
  std::vector<pid_t> processes;
  const pid_t parent = ::getpid();
  for (int number = 0; number < setup.ranks; ++number) {
    const pid_t child = ::fork();
    if (child < 0) fail("fork");
    if (child == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);    // who ends the parent ends the ranks
      if (::getppid() != parent) std::_Exit(1);  // before that
      runProcess(setup, number, job, *meeting, body);
      (void)std::fflush(stdout);
      std::_Exit(0);
    }
    processes.push_back(child);
  }
  const bool good = waitFor(std::move(processes));
  (void)::munmap(shared, sizeof(Meeting));
  return good;
}

Buffers::Buffers(Rank& rank, std::size_t bytes, bool registered, koloDataType_t datatype)
    : rank_(rank), bytes_(bytes), registered_(registered), datatype_(datatype), send_(allocate()), recv_(allocate()) {
  fill();
  if (registered) {
    check(koloWindowRegister(rank.comm, send_, bytes, &sendWindow_), "koloWindowRegister");
    check(koloWindowRegister(rank.comm, recv_, bytes, &recvWindow_), "koloWindowRegister");
  }
  rank.meeting.wait();
}

Buffers::~Buffers() {
  rank_.synchronize();
  rank_.meeting.wait();  // freeing waits for the device: for no operation that lacks a rank
  if (registered_) {
    check(koloWindowDeregister(rank_.comm, sendWindow_), "koloWindowDeregister");
    check(koloWindowDeregister(rank_.comm, recvWindow_), "koloWindowDeregister");
  }
  rank_.meeting.wait();
  free(send_);
  free(recv_);
  rank_.meeting.wait();
}

void* Buffers::allocate() const {
  if (registered_) {
    void* memory = nullptr;
    check(koloMemAllocOn(&memory, bytes_, rank_.device), "koloMemAllocOn");
    return memory;
  }
  CUdeviceptr memory = 0;
  check(driver().cuMemAlloc(&memory, bytes_), "cuMemAlloc");
  return reinterpret_cast<void*>(memory);
}

void Buffers::free(void* memory) const {
  if (registered_) {
    check(koloMemFree(memory), "koloMemFree");
  } else {
    check(driver().cuMemFree(address(memory)), "cuMemFree");
  }
}

// The pattern's copy is doubled until it fills the buffer.
void Buffers::fill() const {
  std::vector<unsigned char> pattern(std::min(kPattern, bytes_) / elementBytes() * elementBytes());
  for (std::size_t i = 0; i < pattern.size() / elementBytes(); ++i) {
    const std::uint32_t bits = bitsOf(input(rank_.number, i), elementBytes());
    std::memcpy(pattern.data() + i * elementBytes(), &bits, elementBytes());
  }
  std::size_t done = pattern.size();
  check(driver().cuMemcpyHtoDAsync(address(send_), pattern.data(), done, rank_.stream), "cuMemcpyHtoDAsync");
  while (done + elementBytes() <= bytes_) {
    const std::size_t next = std::min(done, bytes_ - done);
    check(driver().cuMemcpyDtoDAsync(address(send_) + done, address(send_), next, rank_.stream), "cuMemcpyDtoDAsync");
    done += next;
  }
  rank_.synchronize();
}

void Buffers::spoil() const {
  check(driver().cuMemsetD8Async(address(recv_), 0xff, bytes_, rank_.stream), "cuMemsetD8Async");
  rank_.synchronize();
}

int Buffers::wrongSums(std::size_t bytes) const {
  int wrong = 0;
  const std::size_t count = bytes / elementBytes(), looked = std::min(bytes, kLookedAt) / elementBytes();
  std::vector<unsigned char> found(looked * elementBytes());
  for (const std::size_t first : {std::size_t{0}, count - looked}) {
    check(driver().cuMemcpyDtoHAsync(found.data(), address(recv_) + first * elementBytes(), found.size(), rank_.stream),
          "cuMemcpyDtoHAsync");
    rank_.synchronize();
    for (std::size_t i = 0; i < looked; ++i) {
      float expected = 0;
      for (int rank = 0; rank < rank_.ranks; ++rank) expected += input(rank, (first + i) % (kPattern / elementBytes()));
      const std::uint32_t bits = bitsOf(expected, elementBytes());
      if (std::memcmp(found.data() + i * elementBytes(), &bits, elementBytes()) != 0) ++wrong;
    }
  }
  return wrong;
}

const char* nameOf(Way way) {
  switch (way) {
    case Way::kStream: return "stream";
    case Way::kWaited: return "waited";
    case Way::kGraph: return "graph";
  }
  return "";
}

Timing timed(Rank& rank, Way way, double budgetMs, const std::function<void()>& enqueue) {
  if (way != Way::kGraph) return timedPlainly(rank, way, budgetMs, enqueue);
  const Graph graph(rank, enqueue);
  Timing timing = timedPlainly(rank, way, budgetMs, [&] { graph.launch(); });
  rank.meeting.wait();
  timing.us /= kCallsInGraph;
  timing.leastUs /= kCallsInGraph;
  timing.calls *= kCallsInGraph;
  return timing;
}

}  // namespace kolo::test
