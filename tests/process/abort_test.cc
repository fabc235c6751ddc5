// An abort needs no other rank: all that the others could do for it, a process that is stopped does not do.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "support/stops.h"

using namespace kolo::test;

namespace {

// R, S, T ...
char stateIn(const std::string& file) {
  std::ifstream stat(file);
  std::string text;
  std::getline(stat, text);
  const std::size_t name = text.rfind(')');
  return name == std::string::npos || name + 2 >= text.size() ? '?' : text[name + 2];
}

// Or the end of what the file is about.
void awaitState(const std::string& file, char state) {
  for (char now = stateIn(file); now != state && now != '?'; now = stateIn(file)) usleep(1000);
}

koloResult_t addUp(koloComm_t comm, koloStream_t stream) {
  static int mine[2] = {1, 1}, sums[2];
  return koloAllReduce(mine, sums, 2, koloInt32, koloSum, comm, stream);
}

// Two ranks, and two communicators of them.
struct Pair {
  koloComm_t world = nullptr, part = nullptr;
  int rank = -1;
  int other = -1;  // process of the other rank
};

// The number of a thread that has come to sleep.
class Sleeper {
 public:
  // By that thread.
  void begin() { __atomic_store_n(&number_, gettid(), __ATOMIC_RELEASE); }
  void await() const {
    while (__atomic_load_n(&number_, __ATOMIC_ACQUIRE) == 0) usleep(1000);
    awaitState("/proc/self/task/" + std::to_string(number_) + "/stat", 'S');
  }

 private:
  int number_ = 0;
};

// Calls what waits for the other rank in a thread, and gives up the part while it does.
koloResult_t abortDuring(Pair& pair, const std::function<koloResult_t()>& call) {
  koloResult_t result = koloSuccess;
  std::string message;
  Sleeper sleeper;
  std::thread waits([&] {
    sleeper.begin();
    result = call();
    message = koloGetLastError(nullptr);
  });
  sleeper.await();
  MUST_OK(koloCommAbort(pair.part));
  waits.join();
  std::printf("the call: %d %s\n", result, message.c_str());
  return result;
}

// Or the call has come too late.
void mustBeAborted(koloResult_t result) { MUST(result == koloAborted || result == koloInvalidHandle); }

// An operation of the part stands on a stream, behind one of the other communicator. A call stands behind it.
void abortBehindStream(Pair& pair) {
  koloStream_t first = nullptr, second = nullptr;
  koloEvent_t event = nullptr;
  MUST_OK(koloStreamCreate(&first));
  MUST_OK(koloStreamCreate(&second));
  MUST_OK(koloEventCreate(&event));
  MUST_OK(addUp(pair.world, first));
  MUST_OK(koloEventRecord(event, first));
  MUST_OK(koloStreamWaitEvent(second, event));
  MUST_OK(addUp(pair.part, second));
  Sleeper sleepers[2];
  std::thread operation([&] {
    sleepers[0].begin();
    mustBeAborted(addUp(pair.part, nullptr));
  });
  std::thread agreement([&] {
    sleepers[1].begin();
    std::uint64_t flags = 1;
    mustBeAborted(koloCommAgree(pair.part, &flags));
  });
  for (const Sleeper& each : sleepers) each.await();
  MUST_OK(koloCommAbort(pair.part));
  operation.join();
  agreement.join();
  std::printf("aborted\n");
  std::fflush(stdout);
  MUST_OK(koloStreamSynchronize(first));
  MUST(koloStreamSynchronize(second) == koloAborted);
  MUST_OK(koloEventDestroy(event));
  MUST_OK(koloStreamDestroy(second));
  MUST_OK(koloStreamDestroy(first));
}

// A group has operations of both communicators, and is not over before the other one's.
void abortInGroup(Pair& pair) {
  koloResult_t result = koloSuccess;
  std::thread groups([&] {
    MUST_OK(koloGroupStart());
    MUST_OK(addUp(pair.part, nullptr));
    MUST_OK(addUp(pair.world, nullptr));
    std::printf("in a group\n");
    result = koloGroupEnd();
  });
  usleep(20'000);  // not to wait for anything: any moment will do
  MUST_OK(koloCommAbort(pair.part));
  std::printf("aborted\n");
  std::fflush(stdout);
  groups.join();
  MUST(result == koloAborted || result == koloInvalidHandle);
  if (result == koloInvalidHandle) MUST_OK(addUp(pair.world, nullptr));  // nothing of the group was run
}

const std::map<std::string, std::function<koloResult_t(koloComm_t part)>>& calls() {
  static std::vector<char> memory(1 << 16);
  static const std::map<std::string, std::function<koloResult_t(koloComm_t part)>> all{
      {"operation", [](koloComm_t part) { return addUp(part, nullptr); }},
      {"split",
       [](koloComm_t part) {
         koloComm_t made = nullptr;
         return koloCommSplit(part, 0, 0, &made, nullptr);
       }},
      {"shrink",
       [](koloComm_t part) {
         koloComm_t made = nullptr;
         return koloCommShrink(part, nullptr, 0, &made, nullptr);
       }},
      {"shrink of what was revoked",
       [](koloComm_t part) {
         koloComm_t made = nullptr;
         MUST_OK(koloCommRevoke(part, "to shrink it"));
         return koloCommShrink(part, nullptr, 0, &made, nullptr);
       }},
      {"agree",
       [](koloComm_t part) {
         std::uint64_t flags = 1;
         return koloCommAgree(part, &flags);
       }},
      {"group",
       [](koloComm_t part) {
         koloComm_t made = nullptr;
         const int ranks[2] = {1, 0};
         return koloCommCreateGroup(part, ranks, 2, "group", &made, nullptr);
       }},
      {"window",
       [](koloComm_t part) {
         koloWindow_t made = nullptr;
         return koloWindowRegister(part, memory.data(), memory.size(), &made);
       }},
      {"finalize", [](koloComm_t part) { return koloCommFinalize(part); }},
  };
  return all;
}

// arguments: what the part is given up in; the rank that is stopped meanwhile
int abortWhileStopped(const std::vector<std::string>& arguments) {
  const std::string& what = arguments[0];
  Pair pair;
  MUST_OK(koloCommInitFromEnv(&pair.world, nullptr));
  MUST_OK(koloCommUserRank(pair.world, &pair.rank));
  MUST_OK(koloCommSplit(pair.world, 0, 0, &pair.part, nullptr));
  int processes[2] = {getpid(), getpid()};
  MUST_OK(koloAllGather(&processes[pair.rank], processes, 1, koloInt32, pair.world, nullptr));
  pair.other = processes[1 - pair.rank];
  const bool isStopped = pair.rank == std::stoi(arguments[1]);
  const bool needsBoth = what == "stream" || what == "operations of both";
  if (isStopped) {
    stopProcess(getpid());
    if (needsBoth) MUST_OK(addUp(pair.world, nullptr));
    koloResult_t result = addUp(pair.part, nullptr);
    for (int i = 0; i < 1000 && result == koloSuccess; ++i) result = addUp(pair.part, nullptr);
    std::printf("the part: %d %s\n", result, koloGetLastError(nullptr));
    MUST(result == koloAborted);
    koloCommDestroy(pair.part);
  } else {
    awaitState("/proc/" + std::to_string(pair.other) + "/stat", 'T');
    if (what == "stream") {
      abortBehindStream(pair);
    } else if (what == "operations of both") {
      abortInGroup(pair);
    } else {
      const koloResult_t result = abortDuring(pair, [&] { return calls().at(what)(pair.part); });
      MUST(result == koloAborted || result == koloInvalidHandle || (what == "finalize" && result == koloSuccess));
      std::printf("aborted\n");
      std::fflush(stdout);
    }
  }
  MUST_OK(addUp(pair.world, nullptr));  // it has nothing to do with that
  MUST_OK(koloCommDestroy(pair.world));
  return 0;
}
KOLO_ROLE(abortWhileStopped);

void abortWhileOneIsStopped(const std::string& what, const std::string& transports) {
  for (const int stopped : {1, 0}) {  // rank 0 has the hub
    INFO(what << " by " << transports << ", rank " << stopped << " is stopped");
    // Nobody waits so long: what waits for the stopped rank waits longer than this test.
    Job job(2, "abortWhileStopped", {what, std::to_string(stopped)},
            {{"KOLO_TRANSPORTS", transports}, {"KOLO_INIT_TIMEOUT_MS", "600000"}, {"KOLO_TIMEOUT_MS", "600000"}});
    const bool isOver = job[1 - stopped].waitForLine("aborted", kPatience);
    continueProcess(job[stopped].pid());
    CHECK(isOver);
    job.expectSuccess();
  }
}

}  // namespace

TEST_CASE("an abort does not wait for a stopped rank that a call of another thread, or a stream, waits for") {
  const char* const transports = GENERATE("shm", "tcp");
  for (const char* const what : {"stream", "operations of both"}) abortWhileOneIsStopped(what, transports);
  for (const auto& [what, call] : calls()) abortWhileOneIsStopped(what, transports);
}
