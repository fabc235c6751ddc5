// Programs that end at the first error, as most do: an end that is only the consequence of another is not taken for it.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"

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
