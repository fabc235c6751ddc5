// Processes of one host end one after the other, the one that made the id first, at any moment and in any way. Those
// that are left say who has ended, and go on without, down to the last one.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "process/together.h"
#include "support/seed.h"

using namespace kolo::test;

namespace {

// How many ranks have ended, or are about to: those that were the first ones. In a file of the parent's, which all map.
// A flag that nothing is behind: relaxed.
using Ends = std::atomic<int>;

Ends* map(int file) {
  void* const mapped = mmap(nullptr, sizeof(Ends), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return mapped != MAP_FAILED ? static_cast<Ends*>(mapped) : nullptr;
}

// How it is to end, as soon as it can: 1, with exit(); 2, after it has left in good order.
volatile sig_atomic_t wantedEnd = 0;

struct Survivor {
  koloComm_t comm = nullptr;
  int ranks = 0;  // of comm
  int all = 0;    // of the job
  const Ends* ends = nullptr;
  std::string how;

  // Ranks of comm that have ended.
  int ended() const { return ends->load(std::memory_order_relaxed) - (all - ranks); }
  void endIfWanted() {
    if (wantedEnd == 2) (void)koloCommDestroy(comm);
    if (wantedEnd != 0) std::exit(0);
  }
};

// Of the reason of a failure: by its rank in the job, or in the communicator.
void expectCulprit(const Survivor& rank, koloResult_t result) {
  const std::string why = koloGetLastError(nullptr);
  bool isNamed = false;
  for (int each = 0; each < rank.all - rank.ranks + rank.ended(); ++each)
    isNamed = isNamed || why.find("rank " + std::to_string(each)) != std::string::npos;
  if (!isNamed) std::printf("failed by nobody who has ended: %d, %s\n", result, why.c_str());
  MUST(isNamed);
}

// Makes the communicator of those that are left. Others may end while it does: then the call fails on all ranks, and
// they try again without the next one.
void shrink(Survivor& rank) {
  std::vector<int> excluded;
  koloComm_t rest = nullptr;
  do {
    rank.endIfWanted();
    excluded.push_back(static_cast<int>(excluded.size()));
    MUST(static_cast<int>(excluded.size()) < rank.ranks);
  } while (koloCommShrink(rank.comm, excluded.data(), static_cast<int>(excluded.size()), &rest, nullptr) != 0);
  (void)koloCommDestroy(rank.comm);
  rank.comm = rest;
  rank.ranks = ranksOf(rest);
}

// arguments: the path of the parent's file
int outlive(const std::vector<std::string>& arguments) {
  const rlimit none{};
  MUST(setrlimit(RLIMIT_CORE, &none) == 0);
  (void)signal(SIGUSR1, [](int) { wantedEnd = 1; });
  (void)signal(SIGUSR2, [](int) { wantedEnd = 2; });
  std::FILE* const file = std::fopen(arguments[0].c_str(), "r+");
  MUST(file != nullptr);
  Survivor rank;
  rank.ends = map(fileno(file));
  MUST(rank.ends != nullptr);
  MUST_OK(koloCommInitFromEnv(&rank.comm, nullptr));
  rank.all = rank.ranks = ranksOf(rank.comm);
  std::printf("ready\n");
  std::fflush(stdout);
  while (rank.ranks > 1) {
    koloResult_t result = koloSuccess;
    for (int round = 0; result == koloSuccess; ++round) {
      rank.endIfWanted();
      result = workTogether(rank.comm, round);
    }
    std::printf("failed: %s\n", koloGetLastError(nullptr));
    std::fflush(stdout);
    expectCulprit(rank, result);
    shrink(rank);
    std::printf("%d are left\n", rank.ranks);
    std::fflush(stdout);
  }
  MUST_OK(addOnes(rank.comm, 10));
  return koloCommDestroy(rank.comm);
}
KOLO_ROLE(outlive);

void endAllBut1(std::mt19937_64 random) {
  const bool areMany = random() % 4 == 0;  // enough for a billboard
  const int ranks = (areMany ? 8 : 3) + static_cast<int>(random() % 3);
  const char* const transports = std::array{"shm", "tcp", "shm,tcp"}[random() % 3];
  const int file = memfd_create("ends", MFD_CLOEXEC);
  REQUIRE(file >= 0);
  REQUIRE(ftruncate(file, sizeof(Ends)) == 0);
  Ends* const ends = map(file);
  REQUIRE(ends != nullptr);
  const std::string path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
  {
    Job job(ranks, "outlive", {path}, {{"KOLO_TRANSPORTS", transports}});
    job.waitForLine("ready");
    std::string story = transports;
    for (int victim = 0; victim < ranks - 1; ++victim) {
      // Not to wait for anything: any moment will do.
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      const int how = std::array{SIGKILL, SIGABRT, SIGUSR1, SIGUSR2}[random() % 4];
      story +=
          ", rank " + std::to_string(victim) + " of " + std::to_string(ranks) + " by signal " + std::to_string(how);
      ends->store(victim + 1, std::memory_order_relaxed);
      job[victim].signal(how);
      const bool isInPeace = random() % 2 == 0;  // else the next one ends while they shrink
      for (int rank = victim + 1; isInPeace && rank < ranks; ++rank) {
        const std::string line = std::to_string(ranks - victim - 1) + " are left";
        if (job[rank].waitForLine(line, kPatience)) continue;
        for (int each = victim + 1; each < ranks; ++each)
          story += "\nrank " + std::to_string(each) + ": " + job[each].wait(0ms).output;
        FAIL(story << "\nby rank " << rank);
      }
    }
    const Ended last = job.wait(ranks - 1);
    INFO(story << "\n" << last.output);
    CHECK(last.exitedWith(0));
  }
  munmap(ends, sizeof(Ends));
  close(file);
}

}  // namespace

TEST_CASE("whoever ends, at any moment and in any way, those left go on, down to the last one", "[optimised]") {
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u, 5u}) endAllBut1(std::mt19937_64(seed));
  for (Rounds rounds(9300); rounds.next();) endAllBut1(std::mt19937_64(rounds.seed()));
}
