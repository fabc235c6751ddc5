// Times Kolo on one GPU, which its ranks share, and prints JSON, a line for each figure. For tools/run-gpu-checks;
// --mock runs it by the mock of the driver, to test the program itself.
//
// usage: kolo-gpu-measure [--mock] [--quick] [--device N] [--ranks N,N...] [--sections NAME,NAME...]
//
// --ranks is for latency, bandwidth, graph and nccl. Sections: copy, waits, memory, micro, latency, bandwidth, graph,
// nccl, collectives, messages, gpudirect, backpressure, processes. Keys of a line:
//   section, kind (of ranks: threads or processes), ranks, collective, bytes (of a rank's larger buffer)
//   algorithm (asked for; auto: the planner's choice), plan (what that is), resident, buffers (registered in windows,
//   or plain) caches (cold: something else has used the device's cache meanwhile), planner_us (the planner's own
//   prediction of us) way (stream, waited, graph: see Way in measure_ranks.h), us, least_us (one operation by the
//   slowest rank: median and best round), calls algbw_gbps (bytes by time), traffic (bytes that all ranks together must
//   read and write), of_copy (traffic by time, as a part of the bandwidth of the device's own copy), wrong (elements
//   found wrong, of those looked at)
// of gpudirect: dma_buf, peer_memory, orders_writes (what the driver says of the device), exported (of an arena, as a
// dma-buf: its bytes; 0:
//   not), export_us, why (not)
// of attributes: what the driver says of the device. of memory: step, taken_mib (of the device, by all that run on it,
// beyond the step before) of micro: what (fence, hop, copy, fold, call), place (of the memory: device or host), us; of
// a fence stores (of each thread) and beside_us (the stores alone); of a hop by (flag or packet); of copy and fold
// blocks, sources, datatype, gbps (bytes read and written); of a call its name, us (until the device is done) and
// host_us (until it returned) of waits (tests/gpu/driver_probe.h): call, took_us, waits (for a kernel that ran
// meanwhile), holds_up (another thread's launch) of backpressure: calls (of each rank), ahead (of them, how many the
// rank that was first had enqueued when the other began), blocked (it
//   had not got further for a second)
// Exit status: 1 if something failed, which stderr names, or was wrong.
#include "measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "measure_ranks.h"
#include "mock_cuda/mock_cuda.h"
#include "support/collectives_table.h"

namespace kolo::test {
namespace {

const std::vector<std::string> kSections = {"copy",      "waits",        "latency",  "bandwidth", "collectives",
                                            "memory",    "micro",        "graph",    "nccl",      "messages",
                                            "gpudirect", "backpressure", "processes"};

std::atomic<bool> g_wrong = false;

// Bytes that all ranks together read and write in an all_reduce of S bytes, counted as the device's copy counts its
// own. Straight between windows: every input is read and every output written by whoever computes it. Through slots: as
// stagedCost() in planner/planner.cc has it for each rank. 0: not known.
double trafficOf(const std::string& algorithm, bool zeroCopy, double n, double size) {
  if (algorithm == "one_shot") return zeroCopy ? n * (n + 1) * size : n * (3 * (n - 1) + 2) * size;
  if (algorithm == "two_shot") return zeroCopy ? 2 * n * size : (2 * n + 4 * (n - 1)) * size;
  if (algorithm == "ring" || algorithm == "biring") return (8 + 6 * (n - 2)) * size;
  return 0;
}

// The least that each of the other collectives moves, where `size` is that of the larger buffer of a rank.
double leastTrafficOf(const std::string& collective, double n, double size) {
  if (collective == "all_reduce" || collective == "all_gather" || collective == "all_to_all") return 2 * n * size;
  if (collective == "reduce_scatter" || collective == "reduce") return (n + 1) * size;
  if (collective == "broadcast") return n * size;
  if (collective == "gather" || collective == "scatter") return 2 * size;
  return 0;
}

// What is measured, and how.
struct Point {
  std::string section, kind = "threads", collective = "all_reduce", algorithm = "auto";
  bool resident = false, registered = true;
  std::size_t overwritten = 0;  // bytes before each operation; 0: the caches are as the one before has left them
  Way way = Way::kStream;
  std::size_t bytes = 0;
  double budgetMs = 0;

  std::string text(int ranks) const {
    std::ostringstream out;
    out << section << ": " << collective << " of " << bytes << " bytes by " << algorithm << ", " << ranks << ' ' << kind
        << (resident ? ", resident" : "") << (overwritten > 0 ? ", cold" : "")
        << (registered ? ", registered, " : ", plain, ") << nameOf(way);
    return out.str();
  }
};

koloPlan_t planOf(const Rank& rank, const Point& point, koloCollective_t collective, std::size_t count,
                  koloDataType_t datatype = koloFloat32) {
  koloPlan_t plan;
  check(koloCommGetPlan(rank.comm, collective, count, datatype, koloSum, point.registered ? 1 : 0, &plan),
        "koloCommGetPlan");
  return plan;
}

void print(const Rank& rank, const Point& point, const Timing& timing, const koloPlan_t& plan, double traffic,
           int wrong, koloDataType_t datatype = koloFloat32) {
  if (wrong > 0) g_wrong = true;
  if (rank.number != 0) return;
  Line line(point.section);
  line.add("kind", point.kind).add("ranks", rank.ranks).add("collective", point.collective).add("bytes", point.bytes);
  line.add("datatype", koloDataTypeName(datatype)).add("caches", point.overwritten > 0 ? "cold" : "warm");
  line.add("algorithm", point.algorithm).add("plan", plan.algorithm).add("resident", point.resident);
  line.add("buffers", point.registered ? "registered" : "plain").add("way", nameOf(point.way));
  line.add("us", timing.us, 3).add("least_us", timing.leastUs, 3).add("calls", timing.calls);
  if (plan.predictedUs > 0) line.add("planner_us", plan.predictedUs, 3);
  if (timing.us > 0) line.add("algbw_gbps", static_cast<double>(point.bytes) / timing.us / 1e3, 3);
  if (traffic > 0) line.add("traffic", traffic, 0);
  if (traffic > 0 && timing.us > 0 && copyGbps() > 0) line.add("of_copy", traffic / timing.us / 1e3 / copyGbps(), 4);
  if (wrong >= 0) line.add("wrong", wrong);
  line.print();
}

// What an operation finds where others have used the device meanwhile: each rank overwrites a part of more than the
// device's cache before it, and the time of that is taken off. What lies in the cache of a multiprocessor's
// instructions stays, as far as the driver's own kernel leaves it.
class Cold {
 public:
  Cold(Rank& rank, std::size_t bytes) : rank_(rank), bytes_(bytes / static_cast<std::size_t>(rank.ranks)) {
    check(driver().cuMemAlloc(&memory_, bytes_), "cuMemAlloc");
  }
  ~Cold() {
    rank_.synchronize();
    rank_.meeting.wait();  // freeing waits for the device
    check(driver().cuMemFree(memory_), "cuMemFree");
    rank_.meeting.wait();
  }
  Cold(const Cold&) = delete;
  void overwrite() const { check(driver().cuMemsetD8Async(memory_, 1, bytes_, rank_.stream), "cuMemsetD8Async"); }

 private:
  Rank& rank_;
  std::size_t bytes_;
  CUdeviceptr memory_ = 0;
};

Timing timedCold(Rank& rank, const Point& point, const std::function<void()>& enqueue) {
  const Cold cold(rank, point.overwritten);
  const Timing alone = timed(rank, point.way, point.budgetMs, [&] { cold.overwrite(); });
  Timing both = timed(rank, point.way, point.budgetMs, [&] { cold.overwrite(), enqueue(); });
  both.us -= alone.us;  // may come out negative where noise is more than the operation: then that is what was found
  both.leastUs -= alone.leastUs;
  return both;
}

// Collective over the ranks, as all that follows.
void measureAllReduce(Rank& rank, const Buffers& buffers, const Point& point) {
  nowMeasuring(point.text(rank.ranks));
  const std::string wish = point.algorithm == "auto" ? "" : "all_reduce:" + point.algorithm;
  check(koloCommSetAlgorithm(rank.comm, wish.c_str()), "koloCommSetAlgorithm");
  const std::size_t count = point.bytes / buffers.elementBytes();
  const auto enqueue = [&] {
    check(
        koloAllReduce(buffers.send(), buffers.recv(), count, buffers.datatype(), koloSum, rank.comm, rank.koloStream()),
        "koloAllReduce");
  };
  buffers.spoil();
  const Timing timing =
      point.overwritten > 0 ? timedCold(rank, point, enqueue) : timed(rank, point.way, point.budgetMs, enqueue);
  const int wrong = static_cast<int>(rank.meeting.most(rank.number, buffers.wrongSums(point.bytes)));
  const koloPlan_t plan = planOf(rank, point, koloCollectiveAllReduce, count, buffers.datatype());
  print(rank, point, timing, plan,
        trafficOf(plan.algorithm, plan.zeroCopy != 0, rank.ranks, static_cast<double>(point.bytes)), wrong,
        buffers.datatype());
}

void measureLatency(const Options& options) {
  const std::vector<std::size_t> sizes =
      options.quick ? std::vector<std::size_t>{8, 8 * kKiB}
                    : std::vector<std::size_t>{8, 64, 512, kKiB, 4 * kKiB, 8 * kKiB, 16 * kKiB, 32 * kKiB, 64 * kKiB};
  for (const int ranks : options.rankCounts()) {
    for (const bool resident : {false, true}) {
      nowMeasuring("latency: making " + std::to_string(ranks) + " ranks");
      onThreads({.device = options.device, .ranks = ranks, .resident = resident}, [&](Rank& rank) {
        const Buffers buffers(rank, sizes.back(), true);
        for (const char* algorithm : {"auto", "one_shot"}) {
          for (const Way way : {Way::kStream, Way::kWaited, Way::kGraph}) {
            if (way == Way::kGraph && (resident || std::strcmp(algorithm, "auto") != 0))
              continue;  // what is captured is launched
            for (const std::size_t bytes : sizes) {
              measureAllReduce(rank, buffers,
                               {.section = "latency",
                                .algorithm = algorithm,
                                .resident = resident,
                                .way = way,
                                .bytes = bytes,
                                .budgetMs = options.budgetMs(40)});
            }
          }
        }
      });
    }
  }
}

void measureBandwidth(const Options& options) {
  const std::vector<std::size_t> sizes =
      options.quick ? std::vector<std::size_t>{256 * kKiB}
                    : std::vector<std::size_t>{kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB, 256 * kMiB, 1024 * kMiB};
  for (const int ranks : options.rankCounts()) {
    nowMeasuring("bandwidth: making " + std::to_string(ranks) + " ranks");
    onThreads({.device = options.device, .ranks = ranks}, [&](Rank& rank) {
      for (const bool registered : {true, false}) {
        const Buffers buffers(rank, sizes.back(), registered);
        for (const char* algorithm : {"two_shot", "ring", "biring", "one_shot", "auto"}) {
          const bool alsoPlain = std::strcmp(algorithm, "two_shot") == 0 || std::strcmp(algorithm, "ring") == 0;
          if (!registered && !alsoPlain) continue;
          for (const std::size_t bytes : sizes) {
            measureAllReduce(rank, buffers,
                             {.section = "bandwidth",
                              .algorithm = algorithm,
                              .registered = registered,
                              .bytes = bytes,
                              .budgetMs = options.budgetMs(120)});
          }
        }
      }
    });
  }
}

// The planner's choice as a graph has it, without what launches cost the host: where two figures differ by one thing.
void measureGraph(const Options& options) {
  const std::vector<std::size_t> sizes =
      options.quick ? std::vector<std::size_t>{8, 8 * kKiB}
                    : std::vector<std::size_t>{8, 8 * kKiB, 64 * kKiB, kMiB, 16 * kMiB, 256 * kMiB};
  for (const int ranks : options.rankCounts()) {
    nowMeasuring("graph: making " + std::to_string(ranks) + " ranks");
    onThreads({.device = options.device, .ranks = ranks}, [&](Rank& rank) {
      for (const koloDataType_t datatype : {koloFloat32, koloBfloat16}) {
        for (const bool registered : {true, false}) {
          const Buffers buffers(rank, sizes.back(), registered, datatype);
          for (const std::size_t bytes : sizes) {
            for (const std::size_t overwritten : {std::size_t{0}, (options.quick ? 1 : 256) * kMiB}) {
              measureAllReduce(rank, buffers,
                               {.section = "graph",
                                .registered = registered,
                                .overwritten = overwritten,
                                .way = Way::kGraph,
                                .bytes = bytes,
                                .budgetMs = options.budgetMs(60)});
            }
          }
        }
      }
    });
  }
}

// One call of a collective; `count` elements are in a rank's larger buffer.
koloResult_t call(koloCollective_t collective, const Rank& rank, const Buffers& buffers, std::size_t count) {
  const bool isDivided = !test::isBarrier(collective) && test::rowOf(collective).isDivided();
  const std::size_t block = count / static_cast<std::size_t>(isDivided ? rank.ranks : 1);
  return test::call(collective,
                    {buffers.send(), buffers.recv(), block, koloFloat32, koloSum, 0, rank.comm, rank.koloStream()});
}

// All collectives, as the planner chooses: small ones waited for and not, and large ones.
void measureCollectives(const Options& options) {
  const std::size_t large = options.quick ? 256 * kKiB : 64 * kMiB;
  nowMeasuring("collectives: making 4 ranks");
  onThreads({.device = options.device, .ranks = 4}, [&](Rank& rank) {
    const Buffers buffers(rank, large, true);
    for (int which = koloCollectiveAllReduce; which <= koloCollectiveBarrier; ++which) {
      const auto collective = static_cast<koloCollective_t>(which);
      for (const std::size_t bytes : {8 * kKiB, large}) {
        if (collective == koloCollectiveBarrier && bytes == large) continue;
        for (const Way way : {Way::kStream, Way::kWaited}) {
          if (way == Way::kWaited && bytes == large) continue;
          const Point point = {.section = "collectives",
                               .collective = koloCollectiveName(collective),
                               .way = way,
                               .bytes = collective == koloCollectiveBarrier ? 0 : bytes,
                               .budgetMs = options.budgetMs(60)};
          nowMeasuring(point.text(rank.ranks));
          const std::size_t count = point.bytes / sizeof(float);
          const bool divided = collective >= koloCollectiveAllGather && collective <= koloCollectiveScatter;
          const Timing timing =
              timed(rank, way, point.budgetMs, [&] { check(call(collective, rank, buffers, count), "the call"); });
          const koloPlan_t plan = planOf(rank, point, collective, divided ? count / 4 : count);
          print(rank, point, timing, plan, leastTrafficOf(point.collective, 4, static_cast<double>(point.bytes)), -1);
        }
      }
    }
  });
}

// A message to the other rank and back; what is printed is one way.
void measureMessages(const Options& options) {
  const std::vector<std::size_t> sizes =
      options.quick ? std::vector<std::size_t>{8, 64 * kKiB}
                    : std::vector<std::size_t>{8, kKiB, 8 * kKiB, 64 * kKiB, kMiB, 16 * kMiB, 256 * kMiB};
  nowMeasuring("messages: making 2 ranks");
  onThreads({.device = options.device, .ranks = 2}, [&](Rank& rank) {
    const Buffers buffers(rank, sizes.back(), true);
    for (const Way way : {Way::kStream, Way::kWaited}) {
      for (const std::size_t bytes : sizes) {
        const Point point = {.section = "messages",
                             .collective = "send_recv",
                             .way = way,
                             .bytes = bytes,
                             .budgetMs = options.budgetMs(60)};
        nowMeasuring(point.text(rank.ranks));
        const int peer = 1 - rank.number;
        const auto give = [&] {
          check(koloSend(buffers.send(), bytes, koloUint8, peer, rank.comm, rank.koloStream()), "koloSend");
        };
        const auto take = [&] {
          check(koloRecv(buffers.recv(), bytes, koloUint8, peer, rank.comm, rank.koloStream()), "koloRecv");
        };
        Timing timing =
            timed(rank, way, point.budgetMs, [&] { rank.number == 0 ? (give(), take()) : (take(), give()); });
        timing.us /= 2;
        timing.leastUs /= 2;
        print(rank, point, timing, koloPlan_t{}, 2 * static_cast<double>(bytes), -1);
      }
    }
  });
}

// A rank that is a second ahead of the other: its calls wait when it is about 100 launches ahead. If they filled the
// device's queue, the thread would wait in the driver, and if it kept there what the other one needs to launch its own,
// both would end with the operation's deadline.
void measureBackpressure(const Options& options) {
  nowMeasuring("backpressure: a rank that enqueues while the other sleeps");
  const int calls = options.quick ? 300 : 3000;
  std::atomic<int> enqueued = 0;
  onThreads({.device = options.device, .ranks = 2, .timeout = std::chrono::seconds(8)}, [&](Rank& rank) {
    const Buffers buffers(rank, kKiB, true);
    const auto enqueue = [&] {
      check(koloAllReduce(buffers.send(), buffers.recv(), kKiB / sizeof(float), koloFloat32, koloSum, rank.comm,
                          rank.koloStream()),
            "koloAllReduce");
    };
    if (rank.number == 1) {
      int ahead = -1;
      while (enqueued != ahead && enqueued < calls) {  // until it gets no further
        ahead = enqueued;
        std::this_thread::sleep_for(std::chrono::seconds(1));
      }
      ahead = enqueued;
      Line("backpressure").add("calls", calls).add("ahead", ahead).add("blocked", ahead < calls).print();
    }
    for (int i = 0; i < calls; ++i) {
      enqueue();
      if (rank.number == 0) ++enqueued;
    }
    rank.synchronize();
    rank.expectNoError();
    if (buffers.wrongSums(kKiB) != 0) fail("wrong results");
  });
}

void removeMock() {
  const std::string left = MockCuda::remove();
  if (!left.empty()) fail("not given back: " + left);
}

// Ranks that are processes. Without MPS they take turns on the device, in slices of time, so that each step of an
// operation in which a rank waits for another costs a slice. REQUIRES: this process has not used CUDA.
bool measureProcesses(const Options& options) {
  const std::vector<std::size_t> sizes =
      options.quick ? std::vector<std::size_t>{8 * kKiB}
                    : std::vector<std::size_t>{8 * kKiB, 64 * kKiB, kMiB, 16 * kMiB, 64 * kMiB, 256 * kMiB};
  bool good = true;
  for (const int ranks : options.quick ? std::vector<int>{2} : std::vector<int>{4, 2}) {
    nowMeasuring("processes: making " + std::to_string(ranks) + " ranks");
    Setup setup = {.device = options.device, .ranks = ranks};
    if (options.mock) {
      setup.prepare = [] { MockCuda{.multiprocessors = 8, .blockThreads = 1}.install(); };
      setup.finish = removeMock;
    }
    good = onProcesses(setup,
                       [&](Rank& rank) {
                         if (rank.number == 0) measureCopy(options);  // alone on the device
                         rank.meeting.wait();
                         const Buffers buffers(rank, sizes.back(), true);
                         for (const std::size_t bytes : sizes) {
                           for (const char* algorithm : {"auto", "two_shot", "one_shot"}) {
                             measureAllReduce(rank, buffers,
                                              {.section = "processes",
                                               .kind = "processes",
                                               .algorithm = algorithm,
                                               .bytes = bytes,
                                               .budgetMs = options.budgetMs(300)});
                           }
                           if (bytes > kMiB) continue;
                           measureAllReduce(rank, buffers,
                                            {.section = "processes",
                                             .kind = "processes",
                                             .way = Way::kWaited,
                                             .bytes = bytes,
                                             .budgetMs = options.budgetMs(300)});
                         }
                         if (g_wrong) fail("wrong results");  // the parent learns it by the exit status
                       }) &&
           good;
  }
  return good;
}

int measure(const Options& options) {
  bool good = true;
  if (options.has("processes")) good = measureProcesses(options);  // first, because it forks
  if (options.sections == std::vector<std::string>{"processes"}) return good ? 0 : 1;
  if (options.mock) MockCuda{.multiprocessors = 64, .blockThreads = 1}.install();
  const auto found = drivers::cuda();
  if (!found.ok()) fail(found.status().message());
  if (options.has("memory")) measureMemory(options);  // first, before others have taken some
  measureCopy(options);
  if (options.has("micro")) measureMicro(options);
  if (options.has("waits")) measureWaits(options);
  if (options.has("latency")) measureLatency(options);
  if (options.has("bandwidth")) measureBandwidth(options);
  if (options.has("graph")) measureGraph(options);
  if (options.has("nccl")) measureNccl(options);
  if (options.has("collectives")) measureCollectives(options);
  if (options.has("messages")) measureMessages(options);
  if (options.has("gpudirect")) tryGpuDirect(options);
  if (options.has("backpressure")) measureBackpressure(options);
  if (g_wrong) std::fprintf(stderr, "kolo-gpu-measure: wrong results\n");
  if (options.mock) removeMock();
  return good && !g_wrong ? 0 : 1;
}

bool readSections(const std::string& text, Options& options) {
  options.sections.clear();
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (std::find(kSections.begin(), kSections.end(), word) == kSections.end()) return false;
    options.sections.push_back(word);
  }
  return !options.sections.empty();
}

bool readRanks(const std::string& text, Options& options) {
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    options.ranks.push_back(std::atoi(word.c_str()));
    if (options.ranks.back() < 2 || options.ranks.back() > 16) return false;
  }
  return !options.ranks.empty();
}

bool read(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--mock") {
      options.mock = true;
    } else if (argument == "--quick") {
      options.quick = true;
    } else if (argument == "--device" && i + 1 < argc) {
      options.device = std::atoi(argv[++i]);
    } else if (argument == "--ranks" && i + 1 < argc) {
      if (!readRanks(argv[++i], options)) return false;
    } else if (argument != "--sections" || i + 1 >= argc || !readSections(argv[++i], options)) {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace kolo::test

int main(int argc, char** argv) {
  kolo::test::Options options{.sections = kolo::test::kSections};
  if (kolo::test::read(argc, argv, options)) return kolo::test::measure(options);
  std::fprintf(
      stderr,
      "usage: kolo-gpu-measure [--mock] [--quick] [--device N] [--ranks N,N...] "
      "[--sections "
      "copy,waits,memory,micro,latency,bandwidth,graph,nccl,collectives,messages,gpudirect,backpressure,processes]\n");
  return 2;
}
