// Ranks that cannot join: the system refuses what they need, as the seccomp filters of containers do, or a setting of
// theirs is wrong. They say so, and the others need not wait.
#include "support/refusals.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <sstream>

#include "process/job.h"
#include "process/roles.h"
#include "support/deadline.h"
#include "support/text.h"

using namespace kolo::test;

namespace {

constexpr auto kSoon = 20s * kSlowness;
constexpr const char* kLong = "60000";  // ms to join, which no rank is to wait out

std::vector<long> callsIn(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<long>(words), std::istream_iterator<long>()};
}

// arguments: the rank to which it happens, the numbers of the system calls, the errno. Prints how joining and one
// operation ended.
int joinRefused(const std::vector<std::string>& arguments) {
  const bool isRefused = arguments[0] == std::getenv("KOLO_RANK");
  if (isRefused && !refuse(callsIn(arguments[1]), std::stoi(arguments[2]))) {
    std::printf("result none: no filters here\n");
    std::fflush(stdout);
    _exit(0);
  }
  koloComm_t comm = nullptr;
  koloResult_t result = koloCommInitFromEnv(&comm, nullptr);
  int one = 1, sum = 0;
  if (result == koloSuccess) result = koloAllReduce(&one, &sum, 1, koloInt32, koloSum, comm, nullptr);
  std::printf("result %d: %s\n", result, koloGetLastError(nullptr));
  if (comm != nullptr) koloCommDestroy(comm);
  std::fflush(stdout);
  // A sanitizer's last look needs what is refused. The others leave by exit(), which waits until late ranks are told.
  if (kSanitized && isRefused) _exit(0);
  return 0;
}
KOLO_ROLE(joinRefused);

int joinAndTell(const std::vector<std::string>&) { return joinRefused({"none"}); }
KOLO_ROLE(joinAndTell);

// The filter is for all threads, so also for the one that has been waiting for events since koloCommInitFromEnv.
int refusedLater(const std::vector<std::string>&) {
  koloComm_t comm = nullptr, half = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  if (!refuse({SYS_epoll_wait, SYS_epoll_pwait}, EPERM, SECCOMP_FILTER_FLAG_TSYNC)) return 0;
  for (int i = 0; i < 3; ++i) {
    koloConfig_t config = KOLO_CONFIG_INITIALIZER;
    config.transports = "tcp";  // other than the parent's, so that the control plane is needed
    MUST_OK(koloCommSplit(comm, 0, 0, &half, &config));
    MUST_OK(koloCommDestroy(half));
  }
  MUST_OK(koloCommDestroy(comm));
  return 0;
}
KOLO_ROLE(refusedLater);

struct Refusal {
  const char* what;  // in the message
  std::vector<long> calls;
};

std::string numbers(const std::vector<long>& calls) {
  std::string text;
  for (const long call : calls) text += std::to_string(call) + " ";
  return text;
}

// Three ranks, of which one is refused something.
Job startRefused(int victim, const Refusal& refusal, Environment environment) {
  environment["KOLO_INIT_TIMEOUT_MS"] = kLong;
  return Job(3, "joinRefused", {std::to_string(victim), numbers(refusal.calls), std::to_string(EPERM)}, environment);
}

// All are told in time, by the rank itself what it is, by the others also who it is.
void expectAllTold(Job& job, int victim, const Refusal& refusal, std::chrono::steady_clock::time_point since) {
  std::vector<Ended> ended;
  for (int rank = 0; rank < 3; ++rank) ended.push_back(job.wait(rank));
  for (int rank = 0; rank < 3; ++rank) {
    const std::string& output = ended[static_cast<size_t>(rank)].output;
    INFO(refusal.what << " refused to rank " << victim << "; rank " << rank << ":\n" << output);
    REQUIRE(ended[static_cast<size_t>(rank)].exitedWith(0));
    if (contains(ended[static_cast<size_t>(victim)].output, "result none")) return;
    CHECK(contains(output, rank == victim ? "result 1:" : "result 5:"));
    CHECK(contains(output, refusal.what));
    CHECK(contains(output, std::strerror(EPERM)));
    if (rank != victim) CHECK(contains(output, "rank " + std::to_string(victim) + " (pid "));
  }
  CHECK_WITHIN(kSoon, since);
}

void expectAllTold(int victim, const Refusal& refusal, const Environment& environment) {
  const auto since = std::chrono::steady_clock::now();
  Job job = startRefused(victim, refusal, environment);
  expectAllTold(job, victim, refusal, since);
}

const std::vector<Refusal> kOfTheControlPlane = {{"epoll", {SYS_epoll_create1}},
                                                 {"eventfd", {SYS_eventfd2}},
                                                 {"watching", {SYS_epoll_ctl}},
                                                 {"waiting on", {SYS_epoll_wait, SYS_epoll_pwait}},
                                                 {"thread", {SYS_clone, SYS_clone3}}};

Environment rootOf() {
  static int job = 0;
  const int port = 20000 + (getpid() + ++job) % 10000;
  return {{"KOLO_ROOT", "localhost:" + std::to_string(port)}, {"KOLO_SECRET", "refusals"}};
}

using Setting = std::pair<std::string, std::string>;
// In the table of settings, judged by who uses it, and one that shows only when it is used.
const std::vector<Setting> kWrong = {
    {"KOLO_STAGING_BYTES", "plenty"}, {"KOLO_ALGORITHM", "all_reduce:nonsense"}, {"KOLO_DEBUG_FILE", "/not/there/log"}};

// Rank `victim` of three has this setting: all are told in time of the variable, the others also who has it.
void expectAllToldOf(const Setting& setting, int victim, const Environment& common) {
  const std::string name = newJobName();
  std::vector<Environment> environments;
  for (int rank = 0; rank < 3; ++rank) {
    environments.push_back(common);
    environments.back().insert(
        {{"KOLO_RANK", std::to_string(rank)}, {"KOLO_SIZE", "3"}, {"KOLO_JOB", name}, {"KOLO_INIT_TIMEOUT_MS", kLong}});
  }
  environments[static_cast<size_t>(victim)].insert(setting);
  const auto since = std::chrono::steady_clock::now();
  Job job("joinAndTell", environments);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string output = job.wait(rank).output;
    INFO(setting.first << " is wrong on rank " << victim << "; rank " << rank << ":\n" << output);
    CHECK(contains(output, rank == victim ? "result 21:" : "result 5:"));
    CHECK(contains(output, setting.first));
    if (rank != victim) CHECK(contains(output, "rank " + std::to_string(victim) + " (pid "));
  }
  CHECK_WITHIN(kSoon, since);
}

}  // namespace

TEST_CASE("a rank that is refused what joining needs says so to all ranks at once") {
  const int victim = GENERATE(0, 1);
  for (const Refusal& refusal : kOfTheControlPlane) {
    expectAllTold(victim, refusal, {});
    expectAllTold(victim, refusal, rootOf());
  }
}

TEST_CASE("a rank 0 that is refused sockets, or the use of them, leaves word in the file by which ranks meet") {
  const std::vector<Refusal> refusals = {{"listening", {SYS_bind}},
                                         {"socket", {SYS_socket}},
                                         {"accepting", {SYS_accept4}},
                                         {"sending", {SYS_sendto}},
                                         {"receiving", {SYS_recvfrom}}};
  const auto since = std::chrono::steady_clock::now();
  std::vector<Job> jobs;  // side by side, for each rank 0 stays for some seconds
  for (const Refusal& refusal : refusals) jobs.push_back(startRefused(0, refusal, {}));
  for (size_t i = 0; i < jobs.size(); ++i) expectAllTold(jobs[i], 0, refusals[i], since);
}

TEST_CASE("a rank other than 0 that is refused sockets leaves word in the file by which ranks meet") {
  for (const long call : {SYS_socket, SYS_connect, SYS_sendto, SYS_recvfrom}) {
    expectAllTold(1, {"the job's hub cannot be reached", {call}}, {});
  }
}

TEST_CASE("a rank with a wrong setting of its own says so to all ranks at once") {
  const int victim = GENERATE(0, 1);
  for (const Setting& setting : kWrong) {
    expectAllToldOf(setting, victim, {});
    expectAllToldOf(setting, victim, rootOf());
  }
}

// It says where rank 0 listens, so that nothing else matters of it.
TEST_CASE("a rank 0 whose network interface is not there says so to all ranks at once") {
  expectAllToldOf({"KOLO_INTERFACE", "not-there"}, 0, {});
  expectAllToldOf({"KOLO_INTERFACE", "not-there"}, 0, rootOf());
}

TEST_CASE("a process that is refused epoll_wait after it has joined serves its connections all the same") {
  Job job(2, "refusedLater");
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
  }
}

// Neither is needed to join: a process without them knows less of the machine, or takes its random numbers elsewhere.
TEST_CASE("ranks that are refused sched_getaffinity or getrandom join all the same", "[optimised]") {
  for (const std::vector<long>& calls : {std::vector<long>{SYS_sched_getaffinity}, std::vector<long>{SYS_getrandom}}) {
    if (kSanitized && calls.front() == SYS_sched_getaffinity)
      continue;  // the address sanitizer ends a process that has not got it
    Job job(2, "joinRefused", {"1", numbers(calls), std::to_string(EPERM)}, {});
    for (int rank = 0; rank < 2; ++rank) {
      const Ended ended = job.wait(rank);
      INFO("rank " << rank << ":\n" << ended.output);
      REQUIRE(ended.exitedWith(0));
      if (contains(ended.output, "result none")) return;
      CHECK(contains(ended.output, "result 0:"));
      if (rank == 1 && calls.front() == SYS_sched_getaffinity)
        CHECK(contains(ended.output, "sched_getaffinity is refused to this process"));
    }
  }
}
