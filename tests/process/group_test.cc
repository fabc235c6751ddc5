// Groups that are made by their members alone, of ranks that are processes, some of which die.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "support/text.h"

using namespace kolo::test;

namespace {

koloResult_t makeGroup(koloComm_t world, const std::vector<int>& ranks, koloComm_t* group) {
  return koloCommCreateGroup(world, ranks.data(), static_cast<int>(ranks.size()), "group", group, nullptr);
}

// Ranks 0 and 1 wait for rank 2, which is killed, and then make a group without it.
int waitForAMember(const std::vector<std::string>&) {
  koloComm_t world = nullptr, group = nullptr;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  int rank = -1;
  MUST_OK(koloCommUserRank(world, &rank));
  std::printf("ready\n");
  std::fflush(stdout);
  if (rank == 2) {
    for (;;) pause();
  }
  const koloResult_t result = makeGroup(world, {2, 1, 0}, &group);
  std::printf("group: %d %s\n", result, koloGetLastError(nullptr));
  int failed[3] = {}, count = -1;
  MUST_OK(koloCommFailedRanks(world, failed, &count));
  MUST(count == 1 && failed[0] == 2);
  MUST_OK(makeGroup(world, {1, 0}, &group));
  int sum = 0, place = -1;
  MUST_OK(koloCommUserRank(group, &place));
  MUST(place == 1 - rank);
  MUST_OK(koloAllReduce(&rank, &sum, 1, koloInt32, koloSum, group, nullptr));
  MUST(sum == 1);
  koloComm_t found = nullptr;
  MUST_OK(koloCommByName("group", &found));
  MUST(found == group);
  std::uint64_t any = 0, all = 0;
  MUST_OK(koloVote(rank == 0 ? 3 : 6, &any, &all, found));
  MUST(any == 7 && all == 2);
  MUST_OK(koloCommDestroy(group));
  koloCommDestroy(world);
  return 0;
}
KOLO_ROLE(waitForAMember);

// All vote, until rank 2 is killed.
int voteUntilTold(const std::vector<std::string>&) {
  koloComm_t world = nullptr;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  std::printf("ready\n");
  std::fflush(stdout);
  koloResult_t result = koloSuccess;
  for (std::uint64_t round = 0; result == koloSuccess; ++round) {
    std::uint64_t any = 0, all = 0;
    result = koloVote(round, &any, &all, world);
    if (result == koloSuccess) MUST(any == round && all == round);
  }
  std::printf("over: %d %s\n", result, koloGetLastError(nullptr));
  koloCommDestroy(world);
  return 0;
}
KOLO_ROLE(voteUntilTold);

void expectOutcome(Job& job, const std::vector<std::string>& words) {
  job.waitForLine("ready");
  std::this_thread::sleep_for(50ms);  // not to wait for anything: any moment will do
  job[2].signal(SIGKILL);
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
    for (const std::string& word : words) CHECK(contains(ended.output, word));
  }
}

}  // namespace

TEST_CASE("S4.2 a member that dies ends the others' wait, and the living make a group without it") {
  for (const char* const transports : {"shm", "tcp"}) {
    INFO(transports);
    Job job(3, "waitForAMember", {}, {{"KOLO_TRANSPORTS", transports}});
    expectOutcome(job, {"group: 5", "rank 2 (pid"});  // koloRemoteError
  }
}

TEST_CASE("S4.10 a rank that dies while all vote is named by the others") {
  for (const char* const transports : {"shm", "tcp"}) {
    INFO(transports);
    Job job(3, "voteUntilTold", {}, {{"KOLO_TRANSPORTS", transports}});
    expectOutcome(job, {"over: 5", "rank 2"});
  }
}
