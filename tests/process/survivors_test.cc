// Programs that end at the first error, as most do: an end that is only the consequence of another is not taken for it.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "process/together.h"

using namespace kolo::test;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Says why, and ends with nothing destroyed.
[[noreturn]] void endBecause(bool isAtOnce) {
  std::printf("failed: %s\n", koloGetLastError(nullptr));
  if (!isAtOnce) std::exit(7);
  std::fflush(stdout);
  _exit(7);
}

// arguments: what to do over and over, "init", "split" or "window"; "exit" or "_exit" at the first error
int callUntilFailure(const std::vector<std::string>& arguments) {
  const std::string& what = arguments[0];
  const bool isAtOnce = arguments[1] == "_exit";
  const auto must = [&](koloResult_t result) {
    if (result != koloSuccess) endBecause(isAtOnce);
  };
  koloComm_t world = nullptr, child = nullptr;
  koloWindow_t window = nullptr;
  void* memory = nullptr;
  MUST_OK(koloMemAlloc(&memory, 1 << 16));
  must(koloCommInitFromEnv(&world, nullptr));
  for (int i = 0;; ++i) {
    if (i == 2) std::printf("ready\n"), std::fflush(stdout);
    if (what == "init") {
      MUST_OK(koloCommDestroy(world));
      must(koloCommInitFromEnv(&world, nullptr));
    } else if (what == "split") {
      must(koloCommSplit(world, 0, 0, &child, nullptr));
      must(koloCommDestroy(child));
    } else {
      must(koloWindowRegister(world, memory, 1 << 16, &window));
      must(koloWindowDeregister(world, window));
    }
  }
}
KOLO_ROLE(callUntilFailure);

// Rank 0 or 1, as the argument says, gives up a communicator of these two, and ends before anything else can happen.
int abortAndEnd(const std::vector<std::string>& arguments) {
  koloComm_t world = nullptr, pair = nullptr;
  int rank = -1;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  MUST_OK(koloCommUserRank(world, &rank));
  MUST_OK(koloCommSplit(world, rank < 2 ? 0 : KOLO_SPLIT_NOCOLOR, 0, &pair, nullptr));
  MUST_OK(koloBarrier(world, nullptr));
  if (rank == std::stoi(arguments[0])) {
    koloCommAbort(pair);
    _exit(0);
  }
  if (koloBarrier(world, nullptr) != koloSuccess) endBecause(true);
  return 0;
}
KOLO_ROLE(abortAndEnd);

// An all-reduce until it fails. Of the rank that the message names, and of no other, the failure is told.
void failBy(koloComm_t comm, int culprit) {
  koloResult_t result = koloSuccess;
  for (int one = 1, sum = 0; result == koloSuccess;)
    result = koloAllReduce(&one, &sum, 1, koloInt32, koloSum, comm, nullptr);
  std::printf("failed: %s\n", koloGetLastError(nullptr));
  MUST(has(koloGetLastError(nullptr), "rank " + std::to_string(culprit) + " (pid "));
}

// Ranks 0, 1, ... are killed one after the other, and those that are left go on without, down to the last.
int outliveAll(const std::vector<std::string>&) {
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  const int ranks = ranksOf(comm);
  for (int culprit = 0; culprit < ranks - 1; ++culprit) {
    for (int round = 0; round < 4; ++round) MUST_OK(workTogether(comm, round));
    std::printf("%d is next\n", culprit);
    std::fflush(stdout);
    failBy(comm, culprit);
    koloComm_t rest = nullptr;
    const int lowest = 0;
    MUST_OK(koloCommShrink(comm, &lowest, 1, &rest, nullptr));
    koloCommDestroy(comm);
    comm = rest;
  }
  for (int round = 0; round < 4; ++round) MUST_OK(workTogether(comm, round));
  return koloCommDestroy(comm);
}
KOLO_ROLE(outliveAll);

// Of four ranks the first is killed. Of the communicator of the others one leaves in good order, which is no failure;
// another one gives it up, which is.
int goOnUntilAborted(const std::vector<std::string>&) {
  koloComm_t world = nullptr, others = nullptr;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  int rank = -1;
  MUST_OK(koloCommUserRank(world, &rank));
  MUST_OK(koloCommSplit(world, rank != 0 ? 0 : KOLO_SPLIT_NOCOLOR, 0, &others, nullptr));
  std::printf("ready\n");
  std::fflush(stdout);
  failBy(world, 0);
  koloCommDestroy(world);
  MUST_OK(koloBarrier(others, nullptr));
  if (rank == 3) return koloCommDestroy(others);
  koloResult_t async = koloSuccess;
  for (int i = 0; i < 100; ++i) {  // rank 3 leaves, and its process ends
    MUST_OK(koloCommGetAsyncError(others, &async));
    MUST(async == koloSuccess);
    usleep(5000);
  }
  int token = 0;
  if (rank == 1) {
    MUST_OK(koloRecv(&token, 1, koloInt32, 1, others, nullptr));
    koloCommAbort(others);
    std::printf("gave up\n");
    std::fflush(stdout);
    for (;;) pause();  // it is no end of a process that the other one notices
  }
  MUST_OK(koloSend(&token, 1, koloInt32, 0, others, nullptr));
  while (async == koloSuccess) {
    MUST_OK(koloCommGetAsyncError(others, &async));
    usleep(1000);
  }
  std::printf("failed: %s\n", koloGetLastError(others));
  MUST(has(koloGetLastError(others), "rank 0 called koloCommAbort on communicator world/0"));
  koloCommDestroy(others);
  return 0;
}
KOLO_ROLE(goOnUntilAborted);

// Kills one of four ranks at any moment, again and again, each rank in its turn.
void killOneOf4(const std::string& what, const std::string& how, const std::string& transports, int kills) {
  // For a rank that is killed before it has joined. Else nobody waits so long; a quarter of it is what a link may take,
  // for which a busy machine may need a while.
  const std::string patienceMs = std::to_string((what == "init" ? 2000 : 5000) * kSlowness);
  for (int kill = 0; kill < kills; ++kill) {
    const int victim = 3 - kill % 4;
    INFO(what << " by " << transports << ", " << how << ", rank " << victim << " is killed");
    Job job(4, "callUntilFailure", {what, how},
            {{"KOLO_TRANSPORTS", transports}, {"KOLO_INIT_TIMEOUT_MS", patienceMs}});
    job.waitForLine("ready");
    std::this_thread::sleep_for(
        std::chrono::microseconds(1300 * kill));  // not to wait for anything: any moment will do
    job[victim].signal(SIGKILL);
    for (int rank = 0; rank < job.size(); ++rank) {
      const Ended ended = job.wait(rank);
      if (rank == victim) continue;
      INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
      CHECK(ended.exitedWith(7));
      CHECK(has(ended.output.substr(ended.output.find("failed: ")), "rank " + std::to_string(victim) + " "));
    }
  }
}

}  // namespace

TEST_CASE("a rank killed while all split is named by survivors that end at the first error", "[optimised]") {
  killOneOf4("split", "_exit", "tcp", 5);
  killOneOf4("split", "exit", "tcp", 4);
}

TEST_CASE("a rank killed while all register windows is named by survivors that end at the first error", "[optimised]") {
  killOneOf4("window", "_exit", "shm", 12);
  killOneOf4("window", "exit", "shm,tcp", 12);
}

TEST_CASE("a rank killed while all join is named by survivors that end at the first error", "[optimised]") {
  killOneOf4("init", "_exit", "shm", 4);
}

TEST_CASE("processes of one host end one after the other, the first one first, and those left go on", "[optimised]") {
  for (const char* const transports : {"shm", "tcp", "shm,tcp"}) {
    INFO(transports);
    Job job(5, "outliveAll", {}, {{"KOLO_TRANSPORTS", transports}});
    for (int victim = 0; victim < job.size() - 1; ++victim) {
      for (int rank = victim; rank < job.size(); ++rank) {
        if (!job[rank].waitForLine(std::to_string(victim) + " is next", kPatience))
          FAIL("rank " << rank << ": " << job[rank].wait(0ms).output);
      }
      job[victim].signal(SIGKILL);
    }
    const Ended last = job.wait(job.size() - 1);
    INFO(last.output);
    CHECK(last.exitedWith(0));
  }
}

TEST_CASE("without the process that made the id ranks of a host hear of an abort, and take no farewell for a death") {
  Job job(4, "goOnUntilAborted", {}, {{"KOLO_TRANSPORTS", "shm"}});
  job.waitForLine("ready");
  job[0].signal(SIGKILL);
  for (const int rank : {3, 2}) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
  }
  CHECK(job[1].waitForLine("gave up", kPatience));
  job[1].signal(SIGKILL);
}

TEST_CASE("a rank 0 that ends as soon as joining has failed leaves no late rank without the reason") {
  const std::string name = newJobName();
  const auto start = [&](int rank, Environment more) {
    more.merge(Environment{{"KOLO_RANK", std::to_string(rank)}, {"KOLO_SIZE", "3"}, {"KOLO_JOB", name}});
    return Process("callUntilFailure", {"init", "_exit"}, more);
  };
  Process first = start(0, {});
  CHECK(start(1, {{"KOLO_STAGING_BYTES", "many"}}).wait(kPatience).exitedWith(7));
  const Ended late = start(2, {}).wait(kPatience);
  INFO(late.output);
  CHECK(late.exitedWith(7));
  CHECK(has(late.output, "rank 1 (pid "));
  CHECK(has(late.output, "KOLO_STAGING_BYTES"));
  CHECK(has(first.wait(kPatience).output, "rank 1 (pid "));
}

TEST_CASE("a failure that a rank tells right before it ends is heard, and named as the cause of its end") {
  for (const char* const first : {"0", "1"}) {  // rank 0 has the hub
    Job job(3, "abortAndEnd", {first}, {{"KOLO_TRANSPORTS", "shm"}});
    for (int rank = 1; rank < job.size(); ++rank) {
      const Ended ended = job.wait(rank);
      if (std::to_string(rank) == first) continue;
      INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
      CHECK(ended.exitedWith(7));
      CHECK(has(ended.output, std::string("rank ") + first + " called koloCommAbort"));
    }
  }
}
