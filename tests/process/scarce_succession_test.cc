// A process that has no memory, threads or files just when the hub's process has ended: whether it is to have the next
// hub or to return to it, nobody hangs, and nothing ends but the communicator.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>

#include "process/job.h"
#include "process/roles.h"
#include "process/supply.h"
#include "process/together.h"
#include "support/seed.h"

using namespace kolo::test;

namespace {

struct Scarcity {
  std::string of;  // "memory", "threads" or "files"
  long first, count;
  int rank;  // which has it
};

void begin(const Scarcity& scarcity) {
  if (scarcity.of == "memory") return memorySupply.refuse(scarcity.first, scarcity.count);
  if (scarcity.of == "threads") return threadSupply.refuse(scarcity.first, scarcity.count);
  rlimit few{};
  MUST(getrlimit(RLIMIT_NOFILE, &few) == 0);
  const int next = dup(0);
  close(next);
  few.rlim_cur = std::min(few.rlim_cur, static_cast<rlim_t>(next + scarcity.first - 1));
  MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
}

// Of three ranks the first one is killed, and the others go on, as far as they can. arguments: a Scarcity
int goOnShort(const std::vector<std::string>& arguments) {
  const Scarcity scarcity{arguments[0], std::stol(arguments[1]), std::stol(arguments[2]), std::stoi(arguments[3])};
  koloComm_t world = nullptr, rest = nullptr;
  int rank = -1, one = 1, sum = 0;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  MUST_OK(koloCommUserRank(world, &rank));
  MUST_OK(koloBarrier(world, nullptr));
  if (rank == scarcity.rank) begin(scarcity);
  std::printf("ready\n");
  std::fflush(stdout);
  while (koloAllReduce(&one, &sum, 1, koloInt32, koloSum, world, nullptr) == koloSuccess) {
  }
  const int first = 0;
  koloResult_t result = koloCommShrink(world, &first, 1, &rest, nullptr);
  if (result == koloSuccess) {
    result = koloAllReduce(&one, &sum, 1, koloInt32, koloSum, rest, nullptr);
    if (result == koloSuccess) MUST(sum == ranksOf(rest));  // of one: the other one could not go on, and has ended
  }
  memorySupply.give();
  threadSupply.give();
  std::printf("%s: %s\n", result == koloSuccess && sum == 2 ? "has gone on" : "has ended", koloGetLastError(nullptr));
  std::fflush(stdout);
  if (rest != nullptr) (void)koloCommAbort(rest);
  (void)koloCommAbort(world);
  return 0;
}
KOLO_ROLE(goOnShort);

// How many of the two have gone on.
int handOver(const Scarcity& scarcity) {
  INFO(scarcity.of << ": " << scarcity.count << " from " << scarcity.first << " on, of rank " << scarcity.rank);
  const std::string limitMs = std::to_string(4000 * kSlowness);
  Job job(3, "goOnShort",
          {scarcity.of, std::to_string(scarcity.first), std::to_string(scarcity.count), std::to_string(scarcity.rank)},
          {{"KOLO_DEBUG_FILE", "/dev/null"}, {"KOLO_INIT_TIMEOUT_MS", limitMs}, {"KOLO_TIMEOUT_MS", limitMs}});
  job.waitForLine("ready");
  job[0].signal(SIGKILL);
  int gone = 0;
  for (const int rank : {1, 2}) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
    gone += ended.output.find("has gone on") != std::string::npos ? 1 : 0;
  }
  return gone;
}

}  // namespace

TEST_CASE("a process that runs out of something when it loses the hub hangs nobody", "[optimised]") {
  if (kSanitized) return;  // a sanitizer takes memory, threads and files of its own
  extendDeadline(300s);
  CHECK(handOver({"memory", kNever, 0, 1}) == 2);
  for (const int rank : {1, 2}) {
    // What is refused for a moment is asked for again.
    for (const long first : {1L, 3L, 9L, 27L}) (void)handOver({"memory", first, 5, rank});
    CHECK(handOver({"memory", 1, 2000, rank}) < 2);
    (void)handOver({"files", 1, 1, rank});
    (void)handOver({"files", 3, 1, rank});
    (void)handOver({"threads", 1, 100, rank});
  }
  for (Rounds rounds(9400); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    const char* const of = std::array{"memory", "memory", "memory", "files", "threads"}[random() % 5];
    const long most = std::string(of) == "memory" ? 400 : 12;
    (void)handOver({of, 1 + static_cast<long>(random() % static_cast<std::uint64_t>(most)),
                    std::array{1L, 3L, 20L, 100L}[random() % 4], 1 + static_cast<int>(random() % 2)});
  }
}
