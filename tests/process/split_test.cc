// What communicators cost that are split from others on their host, and who is told when one of their ranks fails.
// Ranks are processes.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "support/text.h"

using namespace kolo::test;

namespace {

// File descriptors, threads and mappings of shared memory.
struct Holdings {
  long files = 0, threads = 0, mappings = 0;

  static Holdings now() {
    Holdings count;
    for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) ++count.files;
    for ([[maybe_unused]] const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) ++count.threads;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) count.mappings += line.find("kolo-") != std::string::npos ? 1 : 0;
    return count;
  }
};

// The mappings of this name that a core dump has.
int dumpedMappings(const std::string& name) {
  std::ifstream maps("/proc/self/smaps");
  int dumped = 0;
  bool isNamed = false;
  for (std::string line; std::getline(maps, line);) {
    const bool isHead = line.find('-') < line.find(' ');
    if (isHead) isNamed = line.find(name) != std::string::npos;
    if (isNamed && line.rfind("VmFlags:", 0) == 0 && line.find(" dd") == std::string::npos) ++dumped;
  }
  return dumped;
}

void mustSum(koloComm_t comm) {
  int rank = -1, ranks = 0, sum = 0;
  MUST_OK(koloCommUserRank(comm, &rank));
  MUST_OK(koloCommCount(comm, &ranks));
  const int mine = rank + 1;
  MUST_OK(koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, comm, nullptr));
  MUST(sum == ranks * (ranks + 1) / 2);
}

// A group of the even or the odd ranks, which its members alone make.
koloComm_t groupOfEverySecond(koloComm_t parent, int number) {
  int rank = -1, ranks = 0;
  MUST_OK(koloCommUserRank(parent, &rank));
  MUST_OK(koloCommCount(parent, &ranks));
  std::vector<int> list;
  for (int other = rank % 2; other < ranks; other += 2) list.push_back(other);
  koloComm_t group = nullptr;
  const std::string name = "group " + std::to_string(number);  // each is another one
  MUST_OK(koloCommCreateGroup(parent, list.data(), static_cast<int>(list.size()), name.c_str(), &group, nullptr));
  mustSum(group);
  return group;
}

// The i-th of various splits and groups; KOLO_COMM_NULL for a rank that is left out.
koloComm_t splitSomehow(koloComm_t parent, int i, int rank) {
  if (i % 8 == 5) return groupOfEverySecond(parent, i);
  const int colors[] = {0, rank % 2, rank, rank == i % 3 ? KOLO_SPLIT_NOCOLOR : 1};
  koloComm_t child = nullptr;
  MUST_OK(koloCommSplit(parent, colors[i % 4], i % 3 == 0 ? -rank : rank, &child, nullptr));
  if (child != KOLO_COMM_NULL) mustSum(child);
  return child;
}

// Splits and groups that are made, used and kept, from a parent for each thread; the latter half of them from children
// of the parent. arguments: threads, and splits in each.
int splitMany(const std::vector<std::string>& arguments) {
  const int threads = std::stoi(arguments[0]), splits = std::stoi(arguments[1]);
  koloComm_t world = nullptr;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  int rank = -1;
  MUST_OK(koloCommUserRank(world, &rank));
  std::vector<koloComm_t> parents(static_cast<std::size_t>(threads));
  for (koloComm_t& parent : parents) MUST_OK(koloCommSplit(world, 0, rank, &parent, nullptr));
  MUST(dumpedMappings("kolo-arena") == 0);  // the kernel would take memory for all of it
  const Holdings before = Holdings::now();
  const auto make = [&](koloComm_t parent, std::vector<koloComm_t>& children) {
    for (int i = 0; i < splits; ++i) {
      const bool isOfChild = i >= splits / 2;  // those of a multiple of four have all ranks
      children.push_back(
          splitSomehow(isOfChild ? children[static_cast<std::size_t>((i - splits / 2) / 4 * 4)] : parent, i, rank));
    }
  };
  for (int round = 0; round < 2; ++round) {  // the second one uses the memory of the first again
    std::vector<std::vector<koloComm_t>> children(parents.size());
    std::vector<std::thread> makers;
    for (std::size_t t = 1; t < parents.size(); ++t) makers.emplace_back([&, t] { make(parents[t], children[t]); });
    make(parents[0], children[0]);
    for (std::thread& maker : makers) maker.join();
    const Holdings after = Holdings::now();
    const bool isMore = after.files > before.files || after.threads > before.threads ||
                        after.mappings > before.mappings;  // joining ends in the background
    if (isMore) {
      std::printf("%d splits took %ld files, %ld threads, %ld mappings\n", threads * splits, after.files - before.files,
                  after.threads - before.threads, after.mappings - before.mappings);
    }
    for (const std::vector<koloComm_t>& each : children) {
      for (const koloComm_t child : each) {
        if (child != KOLO_COMM_NULL) MUST_OK(koloCommDestroy(child));
      }
    }
  }
  for (const koloComm_t parent : parents) MUST_OK(koloCommDestroy(parent));
  MUST_OK(koloCommDestroy(world));
  return 0;
}
KOLO_ROLE(splitMany);

// Rank 1's files may not be longer than so many bytes. arguments: bytes, splits that are kept at a time.
int splitInLittleRoom(const std::vector<std::string>& arguments) {
  koloComm_t world = nullptr;
  if (std::string(std::getenv("KOLO_RANK")) == "1") {
    const rlimit limit{std::stoul(arguments[0]), std::stoul(arguments[0])};
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  std::vector<koloComm_t> children(std::stoul(arguments[1]));
  for (int round = 0; round < 2; ++round) {
    for (koloComm_t& child : children) {
      MUST_OK(koloCommSplit(world, 0, 0, &child, nullptr));
      mustSum(child);
    }
    const koloComm_t group = groupOfEverySecond(children[0], round);
    for (const koloComm_t child : children) MUST_OK(koloCommDestroy(child));
    mustSum(group);
    MUST_OK(koloCommDestroy(group));
  }
  MUST_OK(koloCommDestroy(world));
  return 0;
}
KOLO_ROLE(splitInLittleRoom);

// The ranks have a grandchild of a communicator that is gone, and a sibling of it that nobody waits in. Rank 2 is
// killed.
int waitForTheDead(const std::vector<std::string>&) {
  koloComm_t world = nullptr, child = nullptr, grandchild = nullptr, sibling = nullptr, apart = nullptr;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  int rank = -1;
  MUST_OK(koloCommUserRank(world, &rank));
  MUST_OK(koloCommSplit(world, 0, rank, &child, nullptr));
  MUST_OK(koloCommSplit(child, 0, -rank, &grandchild, nullptr));
  MUST_OK(koloCommSplit(child, 0, rank, &sibling, nullptr));
  MUST_OK(koloCommSplit(child, rank == 2 ? 1 : 0, rank, &apart, nullptr));
  MUST_OK(koloCommDestroy(child));
  MUST_OK(koloCommDestroy(world));
  mustSum(grandchild);
  std::printf("ready\n");
  std::fflush(stdout);
  if (rank == 2) {
    for (;;) pause();
  }
  koloComm_t none = nullptr;
  const koloResult_t inSplit = rank == 0 ? koloCommSplit(sibling, 0, 0, &none, nullptr) : koloSuccess;
  if (rank == 0) std::printf("split: %d %s\n", inSplit, koloGetLastError(nullptr));
  const koloResult_t result = koloBarrier(grandchild, nullptr);
  std::printf("barrier: %d %s\n", result, koloGetLastError(grandchild));
  koloResult_t async = koloSuccess;
  while (async == koloSuccess) {
    MUST_OK(koloCommGetAsyncError(sibling, &async));
    usleep(1000);
  }
  std::printf("sibling: %d %s\n", async, koloGetLastError(sibling));
  mustSum(apart);  // has not the dead one
  std::printf("apart works\n");
  for (const koloComm_t comm : {grandchild, sibling, apart}) koloCommDestroy(comm);
  return 0;
}
KOLO_ROLE(waitForTheDead);

// Splits again and again, in two depths, until one fails.
int splitUntilTold(const std::vector<std::string>&) {
  koloComm_t world = nullptr, parent = nullptr, child = nullptr;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  int rank = -1;
  MUST_OK(koloCommUserRank(world, &rank));
  MUST_OK(koloCommSplit(world, 0, rank, &parent, nullptr));
  std::printf("ready\n");
  std::fflush(stdout);
  koloResult_t result = koloSuccess;
  for (int i = 0; result == koloSuccess; ++i) {
    result = koloCommSplit(i % 2 == 0 ? world : parent, rank == i % 3 ? KOLO_SPLIT_NOCOLOR : 0, rank, &child, nullptr);
    if (result == koloSuccess && child != KOLO_COMM_NULL) result = koloBarrier(child, nullptr);
    if (child != KOLO_COMM_NULL) koloCommDestroy(child);
    child = KOLO_COMM_NULL;
  }
  std::printf("over: %d %s\n", result, koloGetLastError(nullptr));
  koloCommDestroy(parent);
  koloCommDestroy(world);
  return 0;
}
KOLO_ROLE(splitUntilTold);

// Rank 1 has all its memory locked, and what it maps later. Prints what a split makes it hold.
int splitInLockedMemory(const std::vector<std::string>&) {
  const bool locks = std::string(std::getenv("KOLO_RANK")) == "1";
  if (locks && mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
    std::printf("may not lock\n");
    return 0;
  }
  koloComm_t world = nullptr, child = nullptr;
  MUST_OK(koloCommInitFromEnv(&world, nullptr));
  MUST_OK(koloCommSplit(world, 0, 0, &child, nullptr));
  mustSum(child);
  rusage usage{};
  MUST(getrusage(RUSAGE_SELF, &usage) == 0);
  MUST(usage.ru_maxrss < 1 << 20);  // KiB
  MUST_OK(koloCommDestroy(child));
  MUST_OK(koloCommDestroy(world));
  return 0;
}
KOLO_ROLE(splitInLockedMemory);

}  // namespace

TEST_CASE("a hundred splits and groups on one host take no file, thread or mapping, from one thread and from eight") {
  const bool isThreaded = GENERATE(false, true);
  const std::vector<std::string> arguments =
      isThreaded ? std::vector<std::string>{"8", "16"} : std::vector<std::string>{"1", "100"};
  Job job(4, "splitMany", arguments, {{"KOLO_TRANSPORTS", "shm"}});
  for (int rank = 0; rank < 4; ++rank) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(ended.output == "");
  }
}

TEST_CASE("splits and groups work when a rank has room for few of them, or for none") {
  for (const char* bytes : {"12000000", "5000000"})
    Job(2, "splitInLittleRoom", {bytes, "12"}, {{"KOLO_TRANSPORTS", "shm"}}).expectSuccess();
}

TEST_CASE("splits and groups work over a transport that maps and does not share links") {
  const char* const plugin = std::getenv("KOLO_TEST_PLUGIN");
  REQUIRE(plugin != nullptr);
  const Environment environment{{"KOLO_TRANSPORT_PLUGINS", plugin}, {"KOLO_TRANSPORTS", "tmpfile"}};
  Job(2, "splitInLittleRoom", {"8000000000", "3"}, environment).expectSuccess();
}

TEST_CASE("the death of a rank is told to all communicators that share links, whoever made them") {
  Job job(3, "waitForTheDead", {}, {{"KOLO_TRANSPORTS", "shm"}});
  job.waitForLine("ready");
  job[2].signal(SIGKILL);
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(contains(ended.output, "split: 5") == (rank == 0));
    CHECK(contains(ended.output, "barrier: 5"));  // koloRemoteError
    CHECK(contains(ended.output, "sibling: 5"));
    CHECK(contains(ended.output, "rank 2 (pid"));
    CHECK(contains(ended.output, "apart works"));
  }
}

TEST_CASE("a rank that is killed while all split is named by the others, at whatever moment", "[optimised]") {
  for (int moment = 0; moment < 8; ++moment) {
    Job job(3, "splitUntilTold", {}, {{"KOLO_TRANSPORTS", "shm"}});
    job.waitForLine("ready");
    std::this_thread::sleep_for(
        std::chrono::microseconds(700 * moment));  // not to wait for anything: any moment will do
    job[2].signal(SIGKILL);
    for (int rank = 0; rank < 2; ++rank) {
      const Ended ended = job.wait(rank);
      INFO("rank " << rank << ":\n" << ended.output);
      CHECK(ended.exitedWith(0));
      CHECK(contains(ended.output, "over: 5"));  // koloRemoteError
      CHECK(contains(ended.output, "rank 2"));
    }
  }
}

TEST_CASE("a split takes no memory that is not used, also of a rank whose memory is locked", "[optimised]") {
  Job(2, "splitInLockedMemory", {}, {{"KOLO_TRANSPORTS", "shm"}, {"KOLO_INIT_TIMEOUT_MS", "5000"}}).expectSuccess();
}
