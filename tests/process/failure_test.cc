// Processes that die, stop, or leave without a word: the others say so, and name them, in time.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "support/deadline.h"
#include "support/stops.h"

using namespace kolo::test;
using Clock = std::chrono::steady_clock;

namespace {

std::int64_t nowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count();
}

// Tells the parent the first failure: "failed CODE MS MESSAGE".
void report(koloResult_t result) {
  std::printf("failed %d %lld %s\n", result, static_cast<long long>(nowMs()), koloGetLastError(nullptr));
}

struct Failed {
  int code = -1;
  std::int64_t atMs = 0;
  std::string message;
};

Failed parse(const std::string& output) {
  Failed failed;
  const size_t at = output.find("failed ");
  if (at == std::string::npos) return failed;
  long long ms = 0;
  std::sscanf(output.c_str() + at, "failed %d %lld", &failed.code, &ms);
  failed.atMs = ms;
  failed.message = output.substr(at, output.find('\n', at) - at);
  return failed;
}

koloComm_t joinWith(const std::vector<std::string>& arguments, int& rank, int& ranks) {
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  if (!arguments.empty() && arguments[0] != "-") config.timeoutMs = std::stoi(arguments[0]);
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, &config));
  MUST_OK(koloCommUserRank(comm, &rank));
  MUST_OK(koloCommCount(comm, &ranks));
  return comm;
}

// Those who are left go on without the rank that the arguments name.
void goOnWithout(koloComm_t comm, int excluded, int ranks) {
  koloComm_t rest = nullptr;
  MUST_OK(koloCommShrink(comm, &excluded, 1, &rest, nullptr));
  for (int i = 0; i < 5; ++i) {
    std::vector<int> data(i % 2 == 0 ? 1 : 100000, 1);
    MUST_OK(koloAllReduce(data.data(), data.data(), data.size(), koloInt32, koloSum, rest, nullptr));
    MUST(data.front() == ranks - 1 && data.back() == ranks - 1);
  }
  MUST_OK(koloCommDestroy(rest));
}

// arguments: timeout or "-", the rank to go on without or "-"
int loopUntilFailure(const std::vector<std::string>& arguments) {
  int rank = -1, ranks = 0;
  koloComm_t comm = joinWith(arguments, rank, ranks);
  std::vector<float> send(1 << 20, 1.0F), recv(send.size());
  koloResult_t result = koloSuccess;
  for (int i = 0; result == koloSuccess; ++i) {
    result = koloAllReduce(send.data(), recv.data(), send.size(), koloFloat32, koloSum, comm, nullptr);
    if (i == 2) std::printf("ready\n");
  }
  report(result);
  if (arguments.size() > 1 && arguments[1] != "-") goOnWithout(comm, std::stoi(arguments[1]), ranks);
  koloCommDestroy(comm);
  return 0;
}
KOLO_ROLE(loopUntilFailure);

// The same while it does nothing but ask.
int idleUntilFailure(const std::vector<std::string>& arguments) {
  int rank = -1, ranks = 0;
  koloComm_t comm = joinWith(arguments, rank, ranks);
  MUST_OK(koloBarrier(comm, nullptr));
  std::printf("ready\n");
  koloResult_t async = koloSuccess;
  while (async == koloSuccess) {
    usleep(2000);
    MUST_OK(koloCommGetAsyncError(comm, &async));
  }
  const koloResult_t result = koloBarrier(comm, nullptr);
  MUST(result == async);
  report(result);
  if (arguments.size() > 1 && arguments[1] != "-") goOnWithout(comm, std::stoi(arguments[1]), ranks);
  koloCommDestroy(comm);
  return 0;
}
KOLO_ROLE(idleUntilFailure);

// Started and left alone: a message and a collective that cannot end, and a rank that does nothing but wait to be told.
int leaveToNotices(const std::vector<std::string>& arguments) {
  struct Told {
    std::atomic<int> count{0};
    std::atomic<bool> isRight{true};
  };
  int rank = -1, ranks = 0;
  koloComm_t comm = joinWith(arguments, rank, ranks);
  MUST_OK(koloBarrier(comm, nullptr));
  Told told;
  const auto note = [](koloResult_t result, const char* message, void* context) {
    auto& its = *static_cast<Told*>(context);
    if (result != koloRemoteError || *message == '\0') its.isRight = false;
    ++its.count;
  };
  std::vector<int> never(1000), mine(1000, 1), sums(1000);
  koloRequest_t receive = nullptr, collective = nullptr;
  MUST_OK(koloIrecv(never.data(), never.size(), koloInt32, (rank + 1) % ranks, 0, nullptr, comm, &receive));
  if (rank == 0) MUST_OK(koloIallReduce(mine.data(), sums.data(), mine.size(), koloInt32, koloSum, comm, &collective));
  MUST_OK(koloRequestNotify(receive, note, &told));
  if (collective != nullptr) MUST_OK(koloRequestNotify(collective, note, &told));
  std::printf("ready\n");
  while (told.count < (rank == 0 ? 2 : 1)) usleep(1000);
  MUST(told.isRight);
  report(koloRequestTest(receive));
  MUST_OK(koloRequestFree(receive));
  if (collective != nullptr) MUST_OK(koloRequestFree(collective));
  if (arguments.size() > 1 && arguments[1] != "-") goOnWithout(comm, std::stoi(arguments[1]), ranks);
  koloCommDestroy(comm);
  return 0;
}
KOLO_ROLE(leaveToNotices);

// The last rank ends like a program that forgot its communicator; the others wait for it.
int leaveWithoutWord(const std::vector<std::string>& arguments) {
  int rank = -1, ranks = 0;
  koloComm_t comm = joinWith(arguments, rank, ranks);
  MUST_OK(koloBarrier(comm, nullptr));
  std::printf("ready\n");
  if (rank == ranks - 1) return 0;
  const koloResult_t result = koloBarrier(comm, nullptr);
  report(result);
  koloCommDestroy(comm);
  return 0;
}
KOLO_ROLE(leaveWithoutWord);

// The last rank's thread leaves the library in a way that nothing returns from; the others wait for it. arguments: "-",
// how
int endInsideOfACall(const std::vector<std::string>& arguments) {
  int rank = -1, ranks = 0;
  koloComm_t comm = joinWith(arguments, rank, ranks);
  const bool ends = rank == ranks - 1;
  const std::string& how = arguments[1];
  koloRedOp_t op = koloSum;
  bool doesThrow = ends && how == "reduction";
  const koloRedFunction_t fold = [](void*, const void*, std::size_t, koloDataType_t, void* context) {
    if (*static_cast<bool*>(context)) throw std::runtime_error("of the user's function");
  };
  MUST_OK(koloRedOpCreate(&op, fold, 1, &doesThrow, comm));
  MUST_OK(koloBarrier(comm, nullptr));
  std::printf("ready\n");
  if (ends && how == "progress")
    MUST_OK(koloCommSetProgress(
        comm, [](void*) { throw 1; }, nullptr));
  if (ends && how == "notice") {
    koloRequest_t request = nullptr;
    int mine = 0;
    MUST_OK(koloIsend(&mine, 1, koloInt32, rank, 0, comm, &request));
    koloRequestNotify(
        request, [](koloResult_t, const char*, void*) { throw 1; }, nullptr);
  }
  const auto waitInVain = [comm] {
    int never = 0;
    koloRecv(&never, 1, koloInt32, 0, comm, nullptr);
  };
  if (ends && how == "cancel") {
    std::thread waits(waitInVain);
    usleep(50'000);
    pthread_cancel(waits.native_handle());
    waits.join();
  }
  if (ends && how != "reduction") waitInVain();
  std::vector<int> mine(1000, 1), sums(1000);
  koloResult_t result = koloAllReduce(mine.data(), sums.data(), mine.size(), koloInt32, op, comm, nullptr);
  if (result == koloSuccess)
    result = koloBarrier(comm, nullptr);  // where this rank's result needed nothing of the last
  report(result);
  koloCommDestroy(comm);
  return 0;
}
KOLO_ROLE(endInsideOfACall);

void expectFailure(Job& job, int rank, koloResult_t code, int culprit, std::int64_t since, std::int64_t mostMs) {
  const Ended ended = job.wait(rank);
  INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
  CHECK(ended.exitedWith(0));
  const Failed failed = parse(ended.output);
  CHECK(failed.code == code);
  CHECK(failed.message.find("rank " + std::to_string(culprit)) != std::string::npos);
  CHECK_TOOK(std::chrono::milliseconds(mostMs + 1), std::chrono::milliseconds(failed.atMs - since));
}

// Kills one rank; the others are to notice within a second and, where they can, to go on.
void killOne(const char* role, int ranks, int victim) {
  INFO(role << ", " << ranks << " ranks, rank " << victim << " is killed");
  Job job(ranks, role, {"-", std::to_string(victim)});
  job.waitForLine("ready");
  const std::int64_t since = nowMs();
  job[victim].signal(SIGKILL);
  CHECK(job.wait(victim).killedBy(SIGKILL));
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != victim) expectFailure(job, rank, koloRemoteError, victim, since, 5000 * kSlowness);
  }
}

}  // namespace

TEST_CASE("a rank killed in the middle of large all-reduces is named by every survivor within a second",
          "[optimised]") {
  for (const int victim : {1, 3, 0}) killOne("loopUntilFailure", 4, victim);
  killOne("loopUntilFailure", 2, 0);
  killOne("loopUntilFailure", 2, 1);
}

TEST_CASE("a rank killed while all are idle is named by every survivor within a second", "[optimised]") {
  for (const int victim : {0, 1, 2}) killOne("idleUntilFailure", 3, victim);
}

TEST_CASE("a killed rank ends requests that nobody waits for") {
  for (const int victim : {1, 2}) killOne("leaveToNotices", 3, victim);
}

TEST_CASE("a rank that exits without destroying its communicator is named") {
  Job job(3, "leaveWithoutWord");
  job.waitForLine("ready");
  const std::int64_t since = nowMs();
  CHECK(job.wait(2).exitedWith(0));
  for (int rank = 0; rank < 2; ++rank) expectFailure(job, rank, koloRemoteError, 2, since, 6000 * kSlowness);
}

TEST_CASE(
    "an exception from a function of the user's, and a cancelled thread, end the process, and the others say so") {
  for (const char* const how : {"reduction", "progress", "notice", "cancel"}) {
    INFO(how);
    Job job(3, "endInsideOfACall", {"-", how});
    job.waitForLine("ready");
    const std::int64_t since = nowMs();
    CHECK(job.wait(2).killedBy(SIGABRT));
    for (int rank = 0; rank < 2; ++rank) expectFailure(job, rank, koloRemoteError, 2, since, 6000 * kSlowness);
  }
}

TEST_CASE("a rank that stops is named when the time is over") {
  Job job(3, "loopUntilFailure", {"2000"});  // longer than a busy machine holds a rank up that has not stopped
  job.waitForLine("ready");
  const std::int64_t since = nowMs();
  stopProcess(job[1].pid());
  for (const int rank : {0, 2}) {
    expectFailure(job, rank, koloTimeout, 1, since, 10000 * kSlowness);
    CHECK(job.wait(rank).output.find("the limit is 2000 ms (KOLO_TIMEOUT_MS)") != std::string::npos);
  }
  continueProcess(job[1].pid());
  const Ended woken = job.wait(1);
  INFO(woken.output);
  CHECK(woken.exitedWith(0));
  CHECK(parse(woken.output).code == koloTimeout);
}
