// Ranks that run another version of the library (other_version/): refused, whichever rank that is and however the ranks
// meet.
#include <unistd.h>

#include <chrono>

#include "process/job.h"
#include "process/roles.h"
#include "support/deadline.h"

using namespace kolo::test;

namespace {

// By KOLO_RANK, KOLO_SIZE, and an id in hexadecimal. Prints the code and the message of the attempt.
int tryToJoinById(const std::vector<std::string>&) {
  const std::string text = std::getenv("KOLO_TEST_ID");
  const koloUniqueId id = idOfHex(text);
  koloComm_t comm = nullptr;
  const koloResult_t result =
      koloCommInitRank(&comm, std::atoi(std::getenv("KOLO_SIZE")), id, std::atoi(std::getenv("KOLO_RANK")));
  std::printf("result %d: %s\n", result, koloGetLastError(nullptr));
  return 0;
}
KOLO_ROLE(tryToJoinById);

// The library has a minute for joining: who is told of the other version does not take it.
void expectRefusal(const std::string& role, Environment common, int ranks, int other) {
  INFO(role << ", rank " << other << " of " << ranks << " has the other version");
  common["KOLO_SIZE"] = std::to_string(ranks);
  std::vector<Environment> environments;
  for (int rank = 0; rank < ranks; ++rank) {
    Environment environment = common;
    environment["KOLO_RANK"] = std::to_string(rank);
    if (rank == other) environment["LD_LIBRARY_PATH"] = std::getenv("KOLO_TEST_OTHER_VERSION");
    environments.push_back(environment);
  }
  const auto since = std::chrono::steady_clock::now();
  Job job(role, environments);
  for (int rank = 0; rank < ranks; ++rank) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ": " << ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(ended.output.find("result " + std::to_string(koloMismatch) + ":") != std::string::npos);
    for (const std::string& version :
         {std::string("runs Kolo 0.1.99"), "runs Kolo 0.1." + std::to_string(KOLO_PATCH)}) {
      CHECK(ended.output.find(version) != std::string::npos);
    }
  }
  CHECK_WITHIN(15s, since);
}

}  // namespace

TEST_CASE("a rank of another version of the library is refused on all ranks, with both versions", "[optimised]") {
  for (const int other : {0, 1, 2}) {
    expectRefusal("tryToJoin", {{"KOLO_JOB", newJobName()}}, 3, other);
    expectRefusal("tryToJoin",
                  {{"KOLO_JOB", newJobName()},
                   {"KOLO_SECRET", "x"},
                   {"KOLO_ROOT", "127.0.0.1:" + std::to_string(20000 + (getpid() + other) % 10000)}},
                  3, other);
    koloUniqueId id;
    REQUIRE(koloGetUniqueId(&id) == koloSuccess);
    expectRefusal("tryToJoinById", {{"KOLO_TEST_ID", inHex(id)}}, 3, other);
  }
}
