// What a wait that lasts takes of a core.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "support/deadline.h"

using namespace kolo::test;

namespace {

long processorMs() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

// Rank 0 waits for rank 1 for a second, and says what the cheapest of some such waits took. arguments: in which call
int waitForASecond(const std::vector<std::string>& arguments) {
  const std::string& how = arguments[0];
  int rank = -1;
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  MUST_OK(koloCommUserRank(comm, &rank));
  MUST_OK(koloBarrier(comm, nullptr));
  koloStream_t stream = nullptr;
  MUST_OK(koloStreamCreate(&stream));
  long least = LONG_MAX;
  for (int i = 0; i < 3; ++i) {
    if (rank == 1) usleep(1'000'000);
    const long before = processorMs();
    int mine = rank, sum = 0;
    koloRequest_t request = nullptr;
    if (how == "message" && rank == 0) MUST_OK(koloRecv(&mine, 1, koloInt32, 1, comm, nullptr));
    if (how == "message" && rank == 1) MUST_OK(koloSend(&mine, 1, koloInt32, 0, comm, nullptr));
    if (how == "collective") MUST_OK(koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, comm, nullptr));
    if (how == "stream") {
      MUST_OK(koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, comm, stream));
      MUST_OK(koloStreamSynchronize(stream));
    }
    if (how == "request" || how == "any" || how == "limited") {
      int index = -1;
      MUST_OK(koloIallReduce(&mine, &sum, 1, koloInt32, koloSum, comm, &request));
      MUST_OK(how == "any" ? koloRequestWaitAny(1, &request, -1, &index)
                           : koloRequestWait(request, how == "limited" ? 600'000 : -1));
      MUST_OK(koloRequestFree(request));
    }
    least = std::min(least, processorMs() - before);
  }
  if (rank == 0) std::printf("took %ld ms\n", least);
  MUST_OK(koloStreamDestroy(stream));
  MUST_OK(koloCommDestroy(comm));
  return 0;
}
KOLO_ROLE(waitForASecond);

}  // namespace

TEST_CASE("a wait of a second leaves the core to others, in whatever call") {
  struct Wait {
    std::string what;
    Job job;
  };
  std::vector<std::unique_ptr<Wait>> waits;  // all at once
  for (const std::string transports : {"shm", "tcp"}) {
    for (const std::string how : {"message", "collective", "request", "any", "limited", "stream"}) {
      waits.push_back(std::make_unique<Wait>(
          Wait{how + " over " + transports, Job(2, "waitForASecond", {how}, {{"KOLO_TRANSPORTS", transports}})}));
    }
  }
  for (const std::unique_ptr<Wait>& wait : waits) {
    INFO(wait->what);
    wait->job.expectSuccess();
    const std::string output = wait->job.wait(0).output;
    const std::size_t at = output.find("took ");
    REQUIRE(at != std::string::npos);
    CHECK(std::stol(output.substr(at + 5)) < 20 * kSlowness);  // it takes 2 to 10
  }
}
