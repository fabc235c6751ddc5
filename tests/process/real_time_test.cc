// Ranks whose threads are scheduled in different ways.
#include <sched.h>
#include <sys/resource.h>

#include <cerrno>

#include "process/job.h"
#include "process/roles.h"
#include "support/text.h"

using namespace kolo::test;

namespace {

constexpr int kTurns = 1000;

// Of this thread.
double coreMilliseconds() {
  rusage usage{};
  MUST(getrusage(RUSAGE_THREAD, &usage) == 0);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// Both ranks are on one core, and rank 0 is a real-time one.
int shareCore(const std::vector<std::string>&) {
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  MUST_OK(koloBarrier(comm, nullptr));
  cpu_set_t allowed, one;
  MUST(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  MUST(sched_setaffinity(0, sizeof one, &one) == 0);
  const sched_param priority{1};
  if (std::string(std::getenv("KOLO_RANK")) == "0" && sched_setscheduler(0, SCHED_FIFO, &priority) != 0)
    std::printf("no real-time threads here\n");
  const double before = coreMilliseconds();
  for (int i = 0; i < kTurns; ++i) MUST_OK(koloBarrier(comm, nullptr));
  std::printf("had the core for %.0f ms\n", coreMilliseconds() - before);
  MUST_OK(koloCommDestroy(comm));
  return 0;
}
KOLO_ROLE(shareCore);

}  // namespace

// What a real-time rank takes of the core does not depend on who else wants it.
TEST_CASE("a real-time rank lets the ordinary rank on its core have a turn", "[optimised]") {
  for (const char* const transport : {"shm", "tcp"}) {
    Job job(2, "shareCore", {}, {{"KOLO_TRANSPORTS", transport}});
    const Ended ended = job.wait(0);
    INFO(transport << ": " << ended.output);
    REQUIRE(ended.exitedWith(0));
    REQUIRE(job.wait(1).exitedWith(0));
    if (contains(ended.output, "no real-time threads here")) return;
    const std::string words = "had the core for ";
    const double took = std::atof(ended.output.c_str() + ended.output.find(words) + words.size());
    CHECK(took < 0.5 * kTurns);  // half a millisecond for each
  }
}
