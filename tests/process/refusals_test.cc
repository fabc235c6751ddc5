// Ranks to which the system refuses what they need, as the seccomp filters of containers do: they say what, and the
// others need not wait.
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

struct Refusal {
  const char* what;  // in the message
  std::vector<long> calls;
};

std::string numbers(const std::vector<long>& calls) {
  std::string text;
  for (const long call : calls) text += std::to_string(call) + " ";
  return text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Rank `victim` of three is refused something: all are told in time, by itself what it was, by the others also who it
// was.
void expectAllTold(int victim, const Refusal& refusal, Environment environment) {
  environment["KOLO_INIT_TIMEOUT_MS"] = kLong;
  const auto since = std::chrono::steady_clock::now();
  Job job(3, "joinRefused", {std::to_string(victim), numbers(refusal.calls), std::to_string(EPERM)}, environment);
  std::vector<Ended> ended;
  for (int rank = 0; rank < 3; ++rank) ended.push_back(job.wait(rank));
  for (int rank = 0; rank < 3; ++rank) {
    const std::string& output = ended[static_cast<size_t>(rank)].output;
    INFO(refusal.what << " refused to rank " << victim << "; rank " << rank << ":\n" << output);
    REQUIRE(ended[static_cast<size_t>(rank)].exitedWith(0));
    if (has(ended[static_cast<size_t>(victim)].output, "result none")) return;
    CHECK(has(output, rank == victim ? "result 1:" : "result 5:"));
    CHECK(has(output, refusal.what));
    CHECK(has(output, std::strerror(EPERM)));
    if (rank != victim) CHECK(has(output, "rank " + std::to_string(victim) + " (pid "));
  }
  CHECK(std::chrono::steady_clock::now() - since < kSoon);
}

const std::vector<Refusal> kOfTheControlPlane = {{"epoll", {SYS_epoll_create1}},
                                                 {"eventfd", {SYS_eventfd2}},
                                                 {"watching", {SYS_epoll_ctl}},
                                                 {"thread", {SYS_clone, SYS_clone3}}};

Environment rootOf(int job) {
  return {{"KOLO_ROOT", "localhost:" + std::to_string(20000 + (getpid() + job) % 10000)}, {"KOLO_SECRET", "refusals"}};
}

}  // namespace

TEST_CASE("a rank that is refused what joining needs says so to all ranks at once") {
  const int victim = GENERATE(0, 1);
  int number = 0;
  for (const Refusal& refusal : kOfTheControlPlane) {
    expectAllTold(victim, refusal, {});
    expectAllTold(victim, refusal, rootOf(++number));
  }
}

TEST_CASE("a rank 0 that is refused sockets leaves word in the file by which ranks meet") {
  for (const Refusal& refusal : {Refusal{"listening", {SYS_bind}}, Refusal{"socket", {SYS_socket}}})
    expectAllTold(0, refusal, {});
}

// Neither is needed to join: a process without them knows less of the machine, or takes its random numbers elsewhere.
TEST_CASE("ranks that are refused sched_getaffinity or getrandom join all the same") {
  for (const std::vector<long>& calls : {std::vector<long>{SYS_sched_getaffinity}, std::vector<long>{SYS_getrandom}}) {
    if (kSanitized && calls.front() == SYS_sched_getaffinity) continue;  // the address sanitizer ends a process that has not got it
    Job job(2, "joinRefused", {"1", numbers(calls), std::to_string(EPERM)}, {});
    for (int rank = 0; rank < 2; ++rank) {
      const Ended ended = job.wait(rank);
      INFO("rank " << rank << ":\n" << ended.output);
      REQUIRE(ended.exitedWith(0));
      if (has(ended.output, "result none")) return;
      CHECK(has(ended.output, "result 0:"));
      if (rank == 1 && calls.front() == SYS_sched_getaffinity) CHECK(has(ended.output, "sched_getaffinity is refused to this process"));
    }
  }
}
