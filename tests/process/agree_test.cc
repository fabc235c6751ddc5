// What survivors agree on, whoever is killed meanwhile, and how they go on: without the dead, and with new processes.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "support/seed.h"

using namespace kolo::test;

namespace {

constexpr std::uint64_t kLast = std::uint64_t{1} << 63;  // the rank has been told of all deaths that are to come

std::vector<int> failedRanks(koloComm_t comm) {
  int ranks = 0, count = 0;
  MUST_OK(koloCommCount(comm, &ranks));
  std::vector<int> failed(static_cast<std::size_t>(ranks));
  MUST_OK(koloCommFailedRanks(comm, failed.data(), &count));
  failed.resize(static_cast<std::size_t>(count));
  return failed;
}

void expectSum(koloComm_t comm, int count) {
  int ranks = 0;
  MUST_OK(koloCommCount(comm, &ranks));
  MUST(ranks == count);
  std::vector<int> ones(30000, 1), sums(ones.size());
  MUST_OK(koloAllReduce(ones.data(), sums.data(), ones.size(), koloInt32, koloSum, comm, nullptr));
  MUST(sums == std::vector<int>(sums.size(), ranks));
}

// Agrees over and over, while ranks are killed; then goes on without these. arguments: how many are killed; "revoked":
// on a communicator that was revoked before
int agreeWhileKilled(const std::vector<std::string>& arguments) {
  const auto kills = static_cast<std::size_t>(std::stoi(arguments[0]));
  koloComm_t world = nullptr, rest = nullptr;
  int rank = -1, ranks = 0;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  MUST_OK(koloCommUserRank(world, &rank));
  MUST_OK(koloCommCount(world, &ranks));
  if (arguments[1] == "revoked" && rank == 0) MUST_OK(koloCommRevoke(world, "enough"));
  std::string story;
  std::uint64_t agreed = 0;
  for (std::uint64_t round = 0; (agreed & kLast) == 0; ++round) {
    if (round == 3) std::printf("ready\n"), std::fflush(stdout);
    // Who has taken part shows in the flags: each rank takes its own bit away.
    const bool isLast = failedRanks(world).size() == kills;
    agreed = ~(std::uint64_t{1} << rank) & (isLast ? ~std::uint64_t{0} : ~kLast);
    const koloResult_t result = koloCommAgree(world, &agreed);
    MUST(result == koloSuccess || result == koloRemoteError);
    char line[64];
    std::snprintf(line, sizeof line, "agreed %llu %llx %d\n", static_cast<unsigned long long>(round),
                  static_cast<unsigned long long>(agreed), result);
    story += line;
  }
  MUST(failedRanks(world).size() == kills);
  std::printf("%s", story.c_str());
  MUST_OK(koloCommShrink(world, nullptr, 0, &rest, nullptr));
  expectSum(rest, ranks - static_cast<int>(kills));
  MUST_OK(koloCommDestroy(rest));
  koloCommDestroy(world);
  return 0;
}
KOLO_ROLE(agreeWhileKilled);

std::string inHex(const koloUniqueId& id) {
  std::string text;
  for (const char each : id.internal) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(each));
    text += digits;
  }
  return text;
}

koloUniqueId ofHex(const std::string& text) {
  koloUniqueId id{};
  for (std::size_t i = 0; i < sizeof id.internal; ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

// Works until a rank is lost, goes on without it, and later with a new one in its place.
int loseAndGrow(const std::vector<std::string>&) {
  koloComm_t world = nullptr, rest = nullptr, grown = nullptr;
  int rank = -1, ranks = 0;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  MUST_OK(koloCommCount(world, &ranks));
  std::vector<int> ones(100000, 1), sums(ones.size());
  koloResult_t result = koloSuccess;
  for (int i = 0; result == koloSuccess; ++i) {
    if (i == 2) std::printf("ready\n"), std::fflush(stdout);
    result = koloAllReduce(ones.data(), sums.data(), ones.size(), koloInt32, koloSum, world, nullptr);
  }
  MUST(result == koloRemoteError || result == koloAborted);
  MUST_OK(koloCommRevoke(world, "a rank is lost"));
  MUST_OK(koloCommShrink(world, nullptr, 0, &rest, nullptr));
  koloCommDestroy(world);
  expectSum(rest, ranks - 1);
  std::uint64_t flags = 6;
  MUST_OK(koloCommUserRank(rest, &rank));
  if (rank == 1) flags = 3;
  MUST_OK(koloCommAgree(rest, &flags));
  MUST(flags == 2);
  koloUniqueId id{};
  if (rank == 0) {
    MUST_OK(koloCommGetUniqueId(rest, &id));
    std::printf("id %s\n", inHex(id).c_str());
    std::fflush(stdout);
  }
  MUST_OK(koloCommGrow(rest, ranks, rank == 0 ? &id : nullptr, -1, &grown, nullptr));
  int now = -1;
  MUST_OK(koloCommUserRank(grown, &now));
  MUST(now == rank);
  expectSum(grown, ranks);
  expectSum(rest, ranks - 1);
  MUST_OK(koloCommDestroy(rest));
  expectSum(grown, ranks);
  MUST_OK(koloCommDestroy(grown));
  return 0;
}
KOLO_ROLE(loseAndGrow);

// arguments: the id, its rank, the number of ranks
int joinGrown(const std::vector<std::string>& arguments) {
  const koloUniqueId id = ofHex(arguments[0]);
  const int rank = std::stoi(arguments[1]), ranks = std::stoi(arguments[2]);
  koloComm_t grown = nullptr;
  MUST_OK(koloCommGrow(KOLO_COMM_NULL, ranks, &id, rank, &grown, nullptr));
  int now = -1;
  MUST_OK(koloCommUserRank(grown, &now));
  MUST(now == rank);
  expectSum(grown, ranks);
  expectSum(grown, ranks);
  MUST_OK(koloCommDestroy(grown));
  return 0;
}
KOLO_ROLE(joinGrown);

void loseOneAndGrow(const std::string& transports, int victim) {
  INFO(transports << ", rank " << victim << " is killed");
  Job job(4, "loseAndGrow", {}, {{"KOLO_TRANSPORTS", transports}});
  job.waitForLine("ready");
  job[victim].signal(SIGKILL);
  REQUIRE(job[0].waitForLine("id ", kPatience));
  const std::string& said = job[0].output();
  const std::size_t at = said.find("id ") + 3;
  Process added("joinGrown", {said.substr(at, 2 * KOLO_UNIQUE_ID_BYTES), "3", "4"}, {{"KOLO_TRANSPORTS", transports}});
  const Ended ended = added.wait(kPatience);
  INFO("the new process, status " << ended.status << ":\n" << ended.output);
  CHECK(ended.exitedWith(0));
  for (int rank = 0; rank < job.size(); ++rank) {
    if (rank == victim) continue;
    const Ended survivor = job.wait(rank);
    INFO("rank " << rank << ", status " << survivor.status << ":\n" << survivor.output);
    CHECK(survivor.exitedWith(0));
  }
}

std::vector<std::string> agreedLines(const std::string& output) {
  std::vector<std::string> lines;
  std::istringstream text(output);
  for (std::string line; std::getline(text, line);) {
    if (line.rfind("agreed ", 0) == 0) lines.push_back(line);
  }
  return lines;
}

void killInAgreements(const std::string& transports, const std::string& how, int kills, std::mt19937_64& random) {
  constexpr int kRanks = 5;
  Job job(kRanks, "agreeWhileKilled", {std::to_string(kills), how}, {{"KOLO_TRANSPORTS", transports}});
  job.waitForLine("ready");
  std::vector<int> victims;
  while (victims.size() < static_cast<std::size_t>(kills)) {
    const int victim = 1 + static_cast<int>(random() % (kRanks - 1));  // rank 0 has the hub
    if (std::find(victims.begin(), victims.end(), victim) != victims.end()) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));  // any moment will do
    job[victim].signal(SIGKILL);
    victims.push_back(victim);
  }
  std::vector<std::string> first;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Ended ended = job.wait(rank);
    if (std::find(victims.begin(), victims.end(), rank) != victims.end()) continue;
    INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
    const std::vector<std::string> lines = agreedLines(ended.output);
    CHECK(lines.size() > 3);
    if (rank == 0) first = lines;
    CHECK(lines == first);
  }
}

}  // namespace

TEST_CASE("survivors agree on the same flags with the same result, whoever is killed meanwhile") {
  for (Rounds rounds(4100); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    for (const char* const transports : {"shm", "tcp"}) {
      const int kills = 1 + static_cast<int>(random() % 3);
      const char* const how = random() % 2 == 0 ? "revoked" : "working";
      INFO(transports << ", " << how << ", " << kills << " are killed");
      killInAgreements(transports, how, kills, random);
    }
  }
}

TEST_CASE("a job that loses a rank goes on without it, takes in a new process, and ends well", "[optimised]") {
  for (const char* const transports : {"shm", "tcp"}) {
    for (const int victim : {3, 1}) loseOneAndGrow(transports, victim);
  }
}
