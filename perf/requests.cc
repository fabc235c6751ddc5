// What it costs to start an operation as a request, beside the same operation by a call that waits.
//
// usage: kolo-perf-requests [BYTES ...]        8, 1024 and 65536 where not given
//
// Two ranks are processes; where there are two cores each stays on one, so that no run differs from another by where
// the ranks are. Each pattern is repeated for 20 ms in 15 rounds, and printed is the fastest round: what other programs
// take is no part of it. Messages have a buffer each way. "exchange" is one message each way at the same time: by a
// group of koloSend and koloRecv, and by koloIrecv, koloIsend and two waits; "ping-pong" is half of koloSend, koloRecv
// and back.
#include <kolo/kolo.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 15;
constexpr double kRoundUs = 20'000;

void must(koloResult_t result, const char* what) {
  if (result == koloSuccess) return;
  std::fprintf(stderr, "kolo-perf-requests: %s: %s\n", what, koloGetLastError(nullptr));
  std::exit(2);
}
#define MUST(call) must(call, #call)

void stayOn(int rank) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  int core = -1;
  for (int left = rank; left >= 0; --left) {
    while (!CPU_ISSET(++core, &allowed)) {
    }
  }
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  (void)sched_setaffinity(0, sizeof one, &one);
}

struct Rank {
  koloComm_t comm = nullptr;
  int self = 0;

  // Microseconds of one call, in the fastest round.
  double time(const auto& call) const {
    const auto repeat = [&](long calls) {
      MUST(koloBarrier(comm, nullptr));
      const Clock::time_point begin = Clock::now();
      for (long i = 0; i < calls; ++i) call();
      return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / static_cast<double>(calls);
    };
    double guess = repeat(100);
    MUST(koloAllReduce(&guess, &guess, 1, koloFloat64, koloMax, comm, nullptr));  // as many calls on both ranks
    const long calls = std::max(10L, static_cast<long>(kRoundUs / guess));
    double best = repeat(calls);
    for (int round = 1; round < kRounds; ++round) best = std::min(best, repeat(calls));
    return best;
  }
  void print(const char* what, std::size_t bytes, double waiting, double requests) const {
    if (self == 0) std::printf("%-12s %9zu %12.3f %12.3f %12.3f\n", what, bytes, waiting, requests, requests - waiting);
  }
};

void finish(koloRequest_t request) {
  MUST(koloRequestWait(request, -1));
  MUST(koloRequestFree(request));
}

void measure(const Rank& rank, std::size_t bytes) {
  std::vector<char> out(bytes, 1), in(bytes);
  std::vector<char> sums(bytes);
  const int peer = 1 - rank.self;
  const auto send = [&] { MUST(koloSend(out.data(), bytes, koloInt8, peer, rank.comm, nullptr)); };
  const auto receive = [&] { MUST(koloRecv(in.data(), bytes, koloInt8, peer, rank.comm, nullptr)); };
  const auto exchangeByRequests = [&] {
    koloRequest_t received = nullptr, sent = nullptr;
    MUST(koloIrecv(in.data(), bytes, koloInt8, peer, 0, nullptr, rank.comm, &received));
    MUST(koloIsend(out.data(), bytes, koloInt8, peer, 0, rank.comm, &sent));
    finish(received);
    finish(sent);
  };
  const double group = rank.time([&] {
    MUST(koloGroupStart());
    receive();
    send();
    MUST(koloGroupEnd());
  });
  const double exchange = rank.time(exchangeByRequests);
  rank.print("exchange", bytes, group, exchange);
  const double pingPong = rank.time([&] {
    rank.self == 0 ? send() : receive();
    rank.self == 0 ? receive() : send();
  }) / 2;
  const double pingPongByRequests = rank.time([&] {
    for (const bool sends : {rank.self == 0, rank.self != 0}) {
      koloRequest_t request = nullptr;
      if (sends) MUST(koloIsend(out.data(), bytes, koloInt8, peer, 0, rank.comm, &request));
      if (!sends) MUST(koloIrecv(in.data(), bytes, koloInt8, peer, 0, nullptr, rank.comm, &request));
      finish(request);
    }
  }) / 2;
  rank.print("ping-pong", bytes, pingPong, pingPongByRequests);
  const double reduced =
      rank.time([&] { MUST(koloAllReduce(out.data(), sums.data(), bytes, koloInt8, koloSum, rank.comm, nullptr)); });
  const double reducedByRequest = rank.time([&] {
    koloRequest_t request = nullptr;
    MUST(koloIallReduce(out.data(), sums.data(), bytes, koloInt8, koloSum, rank.comm, &request));
    finish(request);
  });
  rank.print("all_reduce", bytes, reduced, reducedByRequest);
}

int run(int self, const std::vector<std::size_t>& sizes) {
  stayOn(self);
  Rank rank{.self = self};
  MUST(koloCommInitFromEnv(&rank.comm, nullptr));
  if (self == 0) std::printf("%-12s %9s %12s %12s %12s\n", "", "bytes", "waiting us", "requests us", "more us");
  for (const std::size_t bytes : sizes) measure(rank, bytes);
  MUST(koloCommDestroy(rank.comm));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::max<std::size_t>(1, std::strtoull(argv[i], nullptr, 10)));
  if (sizes.empty()) sizes = {8, 1024, 65536};
  const std::string job = "requests-" + std::to_string(getpid());
  for (int rank = 0; rank < 2; ++rank) {
    if (fork() != 0) continue;
    setenv("KOLO_RANK", std::to_string(rank).c_str(), 1);
    setenv("KOLO_SIZE", "2", 1);
    setenv("KOLO_JOB", job.c_str(), 1);
    std::exit(run(rank, sizes));
  }
  int worst = 0;
  for (int status = 0; wait(&status) > 0;) worst = std::max(worst, status);
  return worst == 0 ? 0 : 2;
}
