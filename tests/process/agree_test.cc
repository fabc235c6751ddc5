// What survivors agree on, whoever is killed meanwhile, and how they go on: without the dead, and with new processes.
#include <dirent.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "process/together.h"
#include "support/seed.h"
#include "support/stops.h"

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
  MUST(ranksOf(comm) == count);
  MUST_OK(addOnes(comm, 30000));
}

// Without those that have died so far. Another one may die meanwhile, and then all have to shrink again.
bool shrinksAndWorks(koloComm_t world, int round) {
  koloComm_t rest = nullptr;
  koloResult_t result = koloCommShrink(world, nullptr, 0, &rest, nullptr);
  if (result == koloSuccess) result = workTogether(rest, round);
  if (result != koloSuccess) std::printf("lost by: %s\n", koloGetLastError(nullptr));
  MUST(result == koloSuccess || result == koloRemoteError);
  if (rest != nullptr) (void)koloCommDestroy(rest);
  return result == koloSuccess;
}

// Agrees over and over, while ranks are killed; then goes on without these. arguments: how many are killed; "revoked":
// on a communicator that was revoked before; "shrink": each time on whether it could shrink and work before
int agreeWhileKilled(const std::vector<std::string>& arguments) {
  const auto kills = static_cast<std::size_t>(std::stoi(arguments[0]));
  koloComm_t world = nullptr, rest = nullptr;
  int rank = -1;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  MUST_OK(koloCommUserRank(world, &rank));
  if (arguments[1] == "revoked" && rank == 0) MUST_OK(koloCommRevoke(world, "enough"));
  std::string story;
  std::uint64_t agreed = 0;
  for (int round = 0; (agreed & kLast) == 0; ++round) {
    if (round == 3) std::printf("ready\n"), std::fflush(stdout);
    // Who has taken part shows in the flags: each rank takes its own bit away.
    const bool works = arguments[1] != "shrink" || shrinksAndWorks(world, round);
    const bool isLast = failedRanks(world).size() == kills && works;
    agreed = ~(std::uint64_t{1} << rank) & (isLast ? ~std::uint64_t{0} : ~kLast);
    const koloResult_t result = koloCommAgree(world, &agreed);
    MUST(result == koloSuccess || result == koloRemoteError);
    char line[64];
    std::snprintf(line, sizeof line, "agreed %d %llx %d\n", round, static_cast<unsigned long long>(agreed), result);
    story += line;
  }
  MUST(failedRanks(world).size() == kills);
  std::printf("%s", story.c_str());
  MUST_OK(koloCommShrink(world, nullptr, 0, &rest, nullptr));
  expectSum(rest, ranksOf(world) - static_cast<int>(kills));
  MUST_OK(koloCommDestroy(rest));
  koloCommDestroy(world);
  return 0;
}
KOLO_ROLE(agreeWhileKilled);

// Breaks the connection to the process that relays control messages, the only one over IP that a rank has whose links
// are shared memory.
void breakConnection() {
  DIR* const files = opendir("/proc/self/fd");
  MUST(files != nullptr);
  int broken = 0;
  while (const dirent* const each = readdir(files)) {
    sockaddr_storage peer{};
    socklen_t bytes = sizeof peer;
    const int fd = std::atoi(each->d_name);
    const bool isConnected = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0;
    if (isConnected && peer.ss_family != AF_UNIX && shutdown(fd, SHUT_RDWR) == 0) ++broken;
  }
  closedir(files);
  MUST(broken == 1);
}

// Rank 2 lives, and the others are told that it has died.
int agreeWithoutConnection(const std::vector<std::string>&) {
  koloComm_t world = nullptr, rest = nullptr;
  int rank = -1;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  MUST_OK(koloCommUserRank(world, &rank));
  expectSum(world, 4);
  if (rank == 2) breakConnection();
  while (failedRanks(world).empty()) std::this_thread::sleep_for(1ms);
  MUST(failedRanks(world) == std::vector<int>{2});
  std::uint64_t flags = std::uint64_t{8} << rank | 1;
  const koloResult_t result = koloCommAgree(world, &flags);
  if (rank == 2) {
    MUST(result == koloUnreachable);
    MUST(flags == 33);
    MUST(std::strstr(koloGetLastError(nullptr), "rank 2 counts as dead on the other ranks") != nullptr);
    MUST(koloCommShrink(world, nullptr, 0, &rest, nullptr) == koloUnreachable);
  } else {
    MUST(result == koloSuccess);
    MUST(flags == 1);
    MUST_OK(koloCommShrink(world, nullptr, 0, &rest, nullptr));
    expectSum(rest, 3);
    MUST_OK(koloCommDestroy(rest));
  }
  koloCommDestroy(world);
  return 0;
}
KOLO_ROLE(agreeWithoutConnection);

// Waits for a new process that does not come.
int growWhileKilled(const std::vector<std::string>&) {
  koloComm_t world = nullptr, grown = nullptr;
  int rank = -1, ranks = 0;
  koloUniqueId id{};
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  MUST_OK(koloCommUserRank(world, &rank));
  MUST_OK(koloCommCount(world, &ranks));
  if (rank == 1) MUST_OK(koloCommGetUniqueId(world, &id));
  MUST_OK(koloBarrier(world, nullptr));
  std::printf("ready\n");
  std::fflush(stdout);
  const koloResult_t result = koloCommGrow(world, ranks + 1, rank == 1 ? &id : nullptr, -1, &grown, nullptr);
  std::printf("grow: %d %s\n", result, koloGetLastError(nullptr));
  MUST(result == koloRemoteError || result == koloUnreachable);
  koloCommDestroy(world);
  return 0;
}
KOLO_ROLE(growWhileKilled);

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
  const koloUniqueId id = idOfHex(arguments[0]);
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
  Process& first = job[victim == 0 ? 1 : 0];  // of the survivors
  REQUIRE(first.waitForLine("id ", kPatience));
  const std::string& said = first.output();
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

std::vector<std::string> linesOf(const std::string& output, const std::string& beginning) {
  std::vector<std::string> lines;
  std::istringstream text(output);
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with(beginning)) lines.push_back(line);
  }
  return lines;
}

// Nobody waits so long for a rank that has died.
Environment patient(const std::string& transports) {
  return {{"KOLO_TRANSPORTS", transports}, {"KOLO_INIT_TIMEOUT_MS", "600000"}, {"KOLO_TIMEOUT_MS", "600000"}};
}

int killedInAll = 0;

// Kills so many ranks at random moments, rank 0 among them in the second case, which has the hub.
std::vector<bool> killSome(Job& job, int kills, std::mt19937_64& random, bool killsHub = false) {
  job.waitForLine("ready");
  std::vector<bool> areVictims(static_cast<std::size_t>(job.size()));
  for (int killed = 0; killed < kills;) {
    const int victim = killsHub && killed == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(job.size()));
    if (areVictims[static_cast<std::size_t>(victim)]) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));  // any moment will do
    job[victim].signal(SIGKILL);
    areVictims[static_cast<std::size_t>(victim)] = true;
    ++killed;
    ++killedInAll;
  }
  return areVictims;
}

// All others end well, and have told the same story. Errors name one of those that have been killed.
void expectOneStory(Job& job, const std::vector<bool>& areVictims) {
  const auto namesVictim = [&](const std::string& why) {
    for (int rank = 0; rank < job.size(); ++rank) {
      const bool isNamed = why.find("(pid " + std::to_string(job[rank].pid()) + " on ") != std::string::npos;
      if (areVictims[static_cast<std::size_t>(rank)] && isNamed) return true;
    }
    return false;
  };
  std::vector<std::string> others;
  for (int rank = 0; rank < job.size(); ++rank) {
    if (areVictims[static_cast<std::size_t>(rank)]) continue;
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
    for (const std::string& why : linesOf(ended.output, "lost by: ")) CHECK(namesVictim(why));
    const std::vector<std::string> lines = linesOf(ended.output, "agreed ");
    CHECK(lines.size() >= 3);
    if (!others.empty()) CHECK(lines == others);
    others = lines;
  }
}

void killInAgreements(const std::string& transports, const std::string& how, bool killsHub, std::mt19937_64& random) {
  const int ranks = 3 + static_cast<int>(random() % 4);
  const int kills = 1 + static_cast<int>(random() % static_cast<unsigned>(ranks - 1));
  INFO(transports << ", " << how << ", " << kills << " of " << ranks << " are killed"
                  << (killsHub ? ", rank 0 first" : ""));
  Job job(ranks, "agreeWhileKilled", {std::to_string(kills), how}, patient(transports));
  const std::vector<bool> areVictims = killSome(job, kills, random, killsHub);
  expectOneStory(job, areVictims);
}

// Of connections that wait for a process to take them at its standby, whose name says whose it is.
int knocksAt(pid_t process) {
  std::ifstream sockets("/proc/net/unix");
  int count = 0;
  for (std::string line; std::getline(sockets, line);) {
    const bool isWaiting = line.find(" 0001 02 ") != std::string::npos;
    if (isWaiting && line.find("@kolo-" + std::to_string(process) + "-") != std::string::npos) ++count;
  }
  return count;
}

// Rank 0, which has the hub, and another rank, while all that are left come to rank 1, which is to have the next one.
void killWhileNextHubIsJoined(const std::string& transports, const std::string& how, int victim) {
  INFO(transports << ", " << how << ", rank " << victim << " is killed");
  Job job(4, "agreeWhileKilled", {"2", how}, patient(transports));
  job.waitForLine("ready");
  const pid_t next = job[1].pid();
  stopProcess(next);
  REQUIRE(waitpid(next, nullptr, WUNTRACED) == next);
  job[0].signal(SIGKILL);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (knocksAt(next) < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
  CHECK(knocksAt(next) == 2);
  job[victim].signal(SIGKILL);
  continueProcess(next);
  std::vector<bool> areVictims(4);
  areVictims[0] = areVictims[static_cast<std::size_t>(victim)] = true;
  expectOneStory(job, areVictims);
}

void killInGrowth(const std::string& transports, int kills, std::mt19937_64& random) {
  INFO(transports << ", " << kills << " are killed while they grow");
  Job job(4, "growWhileKilled", {}, patient(transports));
  const std::vector<bool> areVictims = killSome(job, kills, random);
  for (int rank = 0; rank < job.size(); ++rank) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
    if (!areVictims[static_cast<std::size_t>(rank)]) CHECK(ended.exitedWith(0));
  }
}

// How often a usual run kills, and one that tries all.
int jobs() {
  if (std::getenv("KOLO_TEST_ALL") == nullptr) return 1;
  extendDeadline(300s);
  return 20;
}

}  // namespace

TEST_CASE("survivors agree on the same flags with the same result, whoever is killed meanwhile") {
  const char* const transports = GENERATE("shm", "tcp", "shm,tcp");
  const bool killsHub = GENERATE(false, true);
  for (Rounds rounds(4100); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    for (int job = jobs(); job-- > 0;) {
      for (const char* const how : {"revoked", "working", "shrink"})
        killInAgreements(transports, how, killsHub, random);
    }
  }
  std::printf("%d processes have been killed\n", killedInAll);
}

TEST_CASE("survivors agree where a rank dies while the next hub is joined, that hub's own too") {
  for (const char* const transports : {"shm", "tcp"}) {
    for (const char* const how : {"revoked", "shrink"}) {
      for (const int victim : {3, 1}) killWhileNextHubIsJoined(transports, how, victim);
    }
  }
}

TEST_CASE("a rank that lives and has lost its connection hears that it has failed, and agrees on nothing any more") {
  Job job(4, "agreeWithoutConnection", {}, patient("shm"));
  job.expectSuccess();
}

TEST_CASE("a growth in which a rank is killed ends on all others, and at once") {
  const char* const transports = GENERATE("shm", "tcp");
  for (Rounds rounds(4300); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    for (int job = jobs(); job-- > 0;) killInGrowth(transports, 1 + job % 3, random);
  }
}

TEST_CASE("a job that loses a rank goes on without it, takes in a new process, and ends well", "[optimised]") {
  for (const char* const transports : {"shm", "tcp"}) {
    for (const int victim : {3, 1, 0}) loseOneAndGrow(transports, victim);
  }
}
