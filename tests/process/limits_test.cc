// Ranks that the system gives too little, and how little a rank takes.
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "process/job.h"
#include "process/roles.h"
#include "support/deadline.h"
#include "support/text.h"

using namespace kolo::test;

namespace {

// What became of it: "works", or "failed CODE MESSAGE".
std::string joinAndSum() {
  const auto failure = [](koloResult_t result) {
    return "failed " + std::to_string(result) + " " + koloGetLastError(nullptr);
  };
  koloComm_t comm = nullptr;
  koloResult_t result = koloCommInitFromEnv(&comm, nullptr);
  if (result != koloSuccess) return failure(result);
  int one = 1, sum = 0;
  result = koloAllReduce(&one, &sum, 1, koloInt32, koloSum, comm, nullptr);
  const std::string outcome = result == koloSuccess ? "works" : failure(result);
  koloCommDestroy(comm);
  return outcome;
}

// arguments: files that rank 1 may have open. It may not raise that, and has its own limit back at the end where it
// may.
int fewFiles(const std::vector<std::string>& arguments) {
  rlimit before{};
  MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = few.rlim_max = std::stoul(arguments[0]);
  const bool isLimited = std::string(std::getenv("KOLO_RANK")) == "1";
  if (isLimited) MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::printf("%s\n", joinAndSum().c_str());
  if (isLimited) (void)setrlimit(RLIMIT_NOFILE, &before);
  return 0;
}
KOLO_ROLE(fewFiles);

// arguments: files that each rank may have open, and may raise.
int fewFilesUnlessRaised(const std::vector<std::string>& arguments) {
  rlimit limit{};
  MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = std::stoul(arguments[0]);
  MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  std::printf("%s\n", joinAndSum().c_str());
  return 0;
}
KOLO_ROLE(fewFilesUnlessRaised);

// Rank 1 may open no further file once it has joined. arguments: "split", "memory", or "connect": what is tried then.
int noMoreFiles(const std::vector<std::string>& arguments) {
  const auto say = [](const char* what, koloResult_t result) {
    if (result == koloSuccess) std::printf("%s works\n", what);
    else std::printf("%s failed %d %s\n", what, result, koloGetLastError(nullptr));
  };
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  int one = 1, sum = 0;
  const auto addUp = [&] { return koloAllReduce(&one, &sum, 1, koloInt32, koloSum, comm, nullptr); };
  const bool isLimited = std::string(std::getenv("KOLO_RANK")) == "1";
  if (arguments[0] != "connect") MUST_OK(addUp());
  rlimit before{};
  MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  const int next = dup(0);
  close(next);
  none.rlim_cur = static_cast<rlim_t>(next);
  // The others call nothing before, for who dials first decides who needs a descriptor. A folder takes none.
  const char* const sign = std::getenv("KOLO_TEST_SIGN");
  if (isLimited) {
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    // What joining needed for a moment is closed in the background, and taken, until nothing has come for a while.
    for (int quiet = 0; quiet < 150 * kSlowness; ++quiet, usleep(10000)) {
      while (dup(0) >= 0) quiet = 0;
    }
    MUST(mkdir(sign, 0700) == 0);
  }
  while (access(sign, F_OK) != 0) usleep(1000);
  if (arguments[0] == "split") {
    koloComm_t part = nullptr;
    const koloResult_t result = koloCommSplit(comm, 0, 0, &part, nullptr);
    say("split", result);
    if (result == koloSuccess) koloCommDestroy(part);
  }
  void* memory = nullptr;
  if (arguments[0] == "memory") say("memory", koloMemAlloc(&memory, 1 << 20));
  say("sum", addUp());
  if (isLimited) MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
  if (memory != nullptr) MUST_OK(koloMemFree(memory));
  koloCommDestroy(comm);
  return 0;
}
KOLO_ROLE(noMoreFiles);

// File descriptors, threads and mappings of shared memory.
std::array<long, 3> holdings() {
  std::array<long, 3> count{};
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) ++count[0];
  for ([[maybe_unused]] const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) ++count[1];
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) count[2] += line.find("kolo-") != std::string::npos ? 1 : 0;
  return count;
}

// Fails to join several times; what the first times took and kept is all that is kept.
int failAgain(const std::vector<std::string>&) {
  std::array<long, 3> kept{}, now{};
  const auto exceeds = [&] { return now[0] > kept[0] || now[1] > kept[1] || now[2] > kept[2]; };
  for (int round = 0; round < 5; ++round) {
    koloComm_t comm = nullptr;
    MUST(koloCommInitFromEnv(&comm, nullptr) != koloSuccess);
    if (round == 0) std::printf("failed %s\n", koloGetLastError(nullptr));
    now = holdings();
    // Connections close in the background.
    for (int wait = 0; wait < 200 && round >= 2 && exceeds(); ++wait) {
      usleep(10000);
      now = holdings();
    }
    for (std::size_t i = 0; i < now.size() && round < 2; ++i) kept[i] = std::max(kept[i], now[i]);
    if (exceeds()) std::printf("round %d: %ld files, %ld threads, %ld mappings\n", round, now[0], now[1], now[2]);
    MUST(!exceeds());
  }
  return 0;
}
KOLO_ROLE(failAgain);

// Makes a communicator of more ranks than the process may have threads: each is to have more memory for its stack than
// there is for all.
int fewThreads(const std::vector<std::string>&) {
  pthread_attr_t attributes;
  MUST(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, std::size_t{4} << 30) == 0);
  MUST(pthread_setattr_default_np(&attributes) == 0);
  const rlimit most{std::size_t{14} << 30, std::size_t{14} << 30};  // for three of them, and the control plane's
  MUST(setrlimit(RLIMIT_AS, &most) == 0);
  std::array<koloComm_t, 6> comms{};
  const koloResult_t result = koloCommInitAll(comms.data(), static_cast<int>(comms.size()), nullptr);
  std::printf("failed %d %s\n", result, koloGetLastError(nullptr));
  return 0;
}
KOLO_ROLE(fewThreads);

// Ends a group over three communicators while no thread can be started, and then when there are threads again.
int groupWithoutThreads(const std::vector<std::string>&) {
  std::array<koloComm_t, 3> comms{};
  MUST_OK(koloCommInitFromEnv(&comms[0], nullptr));
  for (std::size_t i = 1; i < comms.size(); ++i) MUST_OK(koloCommSplit(comms[0], 0, 0, &comms[i], nullptr));
  std::array<int, 3> sums{};
  const int one = 1;
  const auto addUp = [&] {
    MUST_OK(koloGroupStart());
    for (std::size_t i = 0; i < comms.size(); ++i)
      MUST_OK(koloAllReduce(&one, &sums[i], 1, koloInt32, koloSum, comms[i], nullptr));
    return koloGroupEnd();
  };
  rlimit before{};
  MUST(getrlimit(RLIMIT_AS, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 1;  // nothing more: a thread needs memory for its stack
  MUST(setrlimit(RLIMIT_AS, &none) == 0);
  const koloResult_t refused = addUp();
  MUST(setrlimit(RLIMIT_AS, &before) == 0);
  std::printf("failed %d %s\n", refused, koloGetLastError(nullptr));
  MUST_OK(addUp());
  MUST((sums == std::array{2, 2, 2}));
  for (std::size_t i = comms.size(); i-- > 0;) MUST_OK(koloCommDestroy(comms[i]));
  return 0;
}
KOLO_ROLE(groupWithoutThreads);

// While no thread can be started, a stream, a function for the end of a request, and communicators in a group are
// refused with words. What has been refused works when there are threads again.
int refusedWithoutThreads(const std::vector<std::string>&) {
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  int rank = -1, peer = -1, got = 0;
  MUST_OK(koloCommUserRank(comm, &rank));
  peer = 1 - rank;
  koloRequest_t request = nullptr;
  MUST_OK(koloIrecv(&got, 1, koloInt32, peer, 0, nullptr, comm, &request));
  std::atomic<bool> isTold{false};
  const auto tell = [](koloResult_t, const char*, void* told) { *static_cast<std::atomic<bool>*>(told) = true; };
  koloUniqueId id{};
  MUST_OK(koloGetUniqueId(&id));
  std::array<koloComm_t, 2> made{};
  const auto makeTwo = [&] {
    MUST_OK(koloGroupStart());
    for (int i = 0; i < 2; ++i) MUST_OK(koloCommInitRank(&made[static_cast<std::size_t>(i)], 2, id, i));
    return koloGroupEnd();
  };
  // Without threads, each is to have more memory for its stack than there are addresses.
  pthread_attr_t usual, huge;
  MUST(pthread_getattr_default_np(&usual) == 0 && pthread_getattr_default_np(&huge) == 0);
  MUST(pthread_attr_setstacksize(&huge, std::size_t{1} << 47) == 0);
  const auto takeThreads = [&] { MUST(pthread_setattr_default_np(&huge) == 0); };
  const auto say = [&](const char* what, koloResult_t result) {
    MUST(pthread_setattr_default_np(&usual) == 0);
    std::printf("%s failed %d %s\n", what, result, koloGetLastError(nullptr));
  };
  koloStream_t stream = nullptr;
  takeThreads();
  say("stream", koloStreamCreate(&stream));
  takeThreads();
  say("notify", koloRequestNotify(request, tell, &isTold));
  takeThreads();
  say("init", makeTwo());
  MUST_OK(koloBarrier(comm, nullptr));  // until then nobody's request is over
  MUST_OK(koloRequestNotify(request, tell, &isTold));
  MUST_OK(koloSend(&rank, 1, koloInt32, peer, comm, nullptr));
  while (!isTold) usleep(1000);
  MUST(got == peer);
  MUST_OK(koloRequestFree(request));
  MUST_OK(makeTwo());
  for (koloComm_t each : made) MUST_OK(koloCommDestroy(each));
  MUST_OK(koloCommDestroy(comm));
  return 0;
}
KOLO_ROLE(refusedWithoutThreads);

// Memory of this process alone, without what it shares.
long ownKiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::atol(line.c_str() + 8);
  }
  return 0;
}

// Says "took N": KiB for a communicator, and for a first operation.
int weigh(const std::vector<std::string>&) {
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitAll(&comm, 1, nullptr));  // what is loaded once is not meant
  MUST_OK(koloCommDestroy(comm));
  const long before = ownKiB();
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  MUST_OK(koloBarrier(comm, nullptr));
  std::printf("took %ld\n", ownKiB() - before);
  MUST_OK(koloCommDestroy(comm));
  return 0;
}
KOLO_ROLE(weigh);

// Of rank 0, which has the hub, and of another one.
std::pair<long, long> weights(int ranks) {
  Job job(ranks, "weigh");
  std::vector<long> took;
  for (int rank = 0; rank < ranks; ++rank) {
    const Ended ended = job.wait(rank);
    INFO(ended.output);
    REQUIRE(ended.exitedWith(0));
    took.push_back(std::atol(ended.output.c_str() + ended.output.find("took ") + 5));
  }
  return {took[0], took[1]};
}

void expectWorkOrLimit(int files, const Environment& more) {
  Environment environment = more;
  // A quarter of it is what a link may take. Meanwhile rank 1, which cannot answer, is to find its own limit.
  environment["KOLO_INIT_TIMEOUT_MS"] = std::to_string(10'000 * kSlowness);
  environment["KOLO_TIMEOUT_MS"] = std::to_string(3000 * kSlowness);
  const auto since = std::chrono::steady_clock::now();
  Job job(3, "fewFiles", {std::to_string(files)}, environment);
  std::vector<Ended> ended;
  for (int rank = 0; rank < 3; ++rank) ended.push_back(job.wait(rank));
  INFO(files << " files, statuses " << ended[0].status << " " << ended[1].status << " " << ended[2].status << "\n"
             << ended[0].output << ended[1].output << ended[2].output);
  CHECK_WITHIN(19s * kSlowness, since);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string& output = ended[static_cast<size_t>(rank)].output;
    CHECK(ended[static_cast<size_t>(rank)].exitedWith(0));
    if (contains(output, "works")) continue;
    if (rank == 1) {
      CHECK((contains(output, "limit of " + std::to_string(files) + " open files") && contains(output, "ulimit -n")));
    } else {
      CHECK(contains(output, "rank 1"));
    }
  }
}

// A daemon has closed its standard streams, and learns that they stay closed: what it prints would reach a peer.
int closedStreams(const std::vector<std::string>&) {
  const int output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 100);
  MUST(output >= 0);
  const auto expectClosed = [output](const char* when) {
    for (int fd = 0; fd < 3; ++fd) {
      if (fcntl(fd, F_GETFD) < 0) continue;
      dprintf(output, "%s: descriptor %d is open\n", when, fd);
      std::exit(1);
    }
  };
  for (int fd = 0; fd < 3; ++fd) close(fd);
  koloComm_t comm = nullptr, half = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  expectClosed("after joining");
  int one = 1, sum = 0, rank = 0;
  MUST_OK(koloCommUserRank(comm, &rank));
  MUST_OK(koloAllReduce(&one, &sum, 1, koloInt32, koloSum, comm, nullptr));
  expectClosed("after a collective");
  MUST_OK(koloGroupStart());
  MUST_OK(koloSend(&one, 1, koloInt32, (rank + 1) % 3, comm, nullptr));
  MUST_OK(koloRecv(&sum, 1, koloInt32, (rank + 2) % 3, comm, nullptr));
  MUST_OK(koloGroupEnd());
  MUST_OK(koloCommSplit(comm, rank % 2, rank, &half, nullptr));
  void* memory = nullptr;
  MUST_OK(koloMemAlloc(&memory, 1 << 20));
  expectClosed("after a split");
  MUST_OK(koloMemFree(memory));
  MUST_OK(koloCommDestroy(half));
  MUST_OK(koloCommDestroy(comm));
  expectClosed("at the end");
  dprintf(output, "all were closed\n");
  return 0;
}
KOLO_ROLE(closedStreams);

}  // namespace

TEST_CASE("ranks whose files do not suffice for their number raise their limit") {
  Job job(16, "fewFilesUnlessRaised", {"24"});
  for (int rank = 0; rank < 16; ++rank) {
    const Ended ended = job.wait(rank);
    INFO(ended.output);
    CHECK((ended.exitedWith(0) && contains(ended.output, "works")));
  }
}

TEST_CASE("where the standard streams are closed no descriptor of the library takes their place", "[optimised]") {
  for (const char* const transport : {"shm", "tcp"}) {
    Job job(3, "closedStreams", {},
            {{"KOLO_TRANSPORTS", transport}, {"KOLO_DEBUG", "info"}, {"KOLO_DEBUG_FILE", "/dev/null"}});
    for (int rank = 0; rank < 3; ++rank) {
      const Ended ended = job.wait(rank);
      INFO(transport << ", rank " << rank << ", status " << ended.status << ":\n" << ended.output);
      CHECK(ended.exitedWith(0));
      CHECK(ended.output == "all were closed\n");
    }
  }
}

TEST_CASE("a rank with few file descriptors works, or says its limit, and the others name it", "[optimised]") {
  if (kSanitized) return;  // the sanitizers open files of their own
  extendDeadline(60s);
  for (const char* transport : {"shm", "tcp"}) {
    for (int files = 4; files <= 24; files += 2) expectWorkOrLimit(files, {{"KOLO_TRANSPORTS", transport}});
  }
}

// What one rank cannot have of shared memory the other end of the pair may have: both go by TCP then, or the reason is
// told.
TEST_CASE("a rank with few file descriptors goes by the transport that its peers go by", "[optimised]") {
  if (kSanitized) return;  // as above
  extendDeadline(60s);
  for (int files = 12; files <= 22; ++files) expectWorkOrLimit(files, {{"KOLO_TRANSPORTS", "shm,tcp"}});
  for (int files = 13; files <= 19; files += 2)
    expectWorkOrLimit(files, {{"KOLO_TRANSPORTS", "shm,tcp"}, {"KOLO_TEST_CONNECT_ALL_RANKS", "1"}});
}

TEST_CASE(
    "a rank that runs out of file descriptors later says its limit, the others name it, and what needs none goes on") {
  struct Case {
    const char *what, *transport, *failing;
    bool failsEverywhere, sums;
  };
  const Case one =
      GENERATE(Case{"split", "shm", nullptr, false, true}, Case{"split", "tcp", "split failed", true, true},
               Case{"memory", "shm", "memory failed", false, true}, Case{"connect", "tcp", "sum failed", true, false});
  const auto since = std::chrono::steady_clock::now();
  const std::filesystem::path sign =
      std::filesystem::temp_directory_path() / ("kolo-limits-" + std::to_string(getpid()));
  Job job(3, "noMoreFiles", {one.what},
          {{"KOLO_TRANSPORTS", one.transport},
           {"KOLO_TEST_CONNECT_ALL_RANKS", "1"},
           {"KOLO_INIT_TIMEOUT_MS", std::to_string(4000 * kSlowness)},
           {"KOLO_TEST_SIGN", sign.string()}});
  for (int rank = 0; rank < 3; ++rank) {
    const Ended ended = job.wait(rank);
    INFO(one.what << " by " << one.transport << ", rank " << rank << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(contains(ended.output, "sum works") == one.sums);
    if (one.failing == nullptr) {  // a split on one host takes none
      CHECK(contains(ended.output, "split works"));
      continue;
    }
    CHECK(contains(ended.output, one.failing) == (rank == 1 || one.failsEverywhere));
    if (rank == 1) CHECK((contains(ended.output, "open files") && contains(ended.output, "ulimit -n")));
    else if (one.failsEverywhere) CHECK(contains(ended.output, "rank 1"));
  }
  CHECK(std::filesystem::remove(sign));
  CHECK_WITHIN(15s * kSlowness, since);
}

TEST_CASE("a group for which there are no threads is an error, runs nothing, and keeps nobody from going on",
          "[optimised]") {
  if (kSanitized) return;  // the sanitizers need more memory than there is here
  Job job(2, "groupWithoutThreads");
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = job.wait(rank);
    INFO(ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(contains(ended.output, "failed " + std::to_string(koloSystemError)));
    CHECK(contains(ended.output, "a group over 3 communicators needs a thread for each but one"));
  }
}

TEST_CASE("where there are no threads, what needs one is refused with words, and works later", "[optimised]") {
  if (kSanitized) return;  // the sanitizers need more memory than there is here
  Job job(2, "refusedWithoutThreads");
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = job.wait(rank);
    INFO(ended.output);
    CHECK(ended.exitedWith(0));
    for (const std::string what : {"stream", "notify", "init"})
      CHECK(contains(ended.output, what + " failed " + std::to_string(koloSystemError)));
    CHECK(contains(ended.output, "koloStreamCreate: it needs a thread, and the system gives none"));
    CHECK(contains(ended.output, "a function for the end of a request needs a thread"));
    CHECK(contains(ended.output, "making 2 communicators in a group needs a thread for each"));
  }
}

TEST_CASE("ranks of one process for which there are not enough threads are an error", "[optimised]") {
  if (kSanitized) return;  // the sanitizers need more memory than there is here
  Job job("fewThreads", {Environment{}});
  const Ended ended = job.wait(0);
  INFO(ended.output);
  CHECK(ended.exitedWith(0));
  CHECK(contains(ended.output, "failed " + std::to_string(koloSystemError)));
  CHECK(contains(ended.output, "making 6 ranks needs a thread for each"));
}

TEST_CASE("what a rank keeps for each other rank is little", "[optimised]") {
  if (kSanitized) return;
  const auto [rootOfFew, oneOfFew] = weights(4);
  const auto [rootOfMany, oneOfMany] = weights(64);
  INFO("KiB: rank 0 " << rootOfFew << " of 4, " << rootOfMany << " of 64; rank 1 " << oneOfFew << " of 4, " << oneOfMany
                      << " of 64");
  CHECK(oneOfMany - oneOfFew < 60 * 10);
  CHECK(rootOfMany - rootOfFew < 60 * 20);
}

TEST_CASE("joining in vain takes nothing for good") {
  const auto expect = [](const std::vector<Environment>& environments, const std::string& words) {
    Job job("failAgain", environments);
    for (int rank = 0; rank < job.size(); ++rank) {
      const Ended ended = job.wait(rank);
      INFO(ended.output);
      CHECK(ended.exitedWith(0));
      CHECK(contains(ended.output, words));
    }
  };
  const Environment common{
      {"KOLO_SIZE", "2"}, {"KOLO_INIT_TIMEOUT_MS", "400"}, {"KOLO_SECRET", "x"}, {"KOLO_JOB", newJobName()}};
  const auto with = [&](Environment more) {
    more.insert(common.begin(), common.end());
    return more;
  };
  expect({with({{"KOLO_RANK", "1"}, {"KOLO_ROOT", "no-such-host.invalid:5000"}})}, "no-such-host.invalid");
  expect({with({{"KOLO_RANK", "1"}, {"KOLO_ROOT", "127.0.0.1:1"}})}, "127.0.0.1:1");
  expect({with({{"KOLO_RANK", "0"}})}, "rank 1 of 2 has not joined");
  expect({with({{"KOLO_RANK", "0"}, {"KOLO_TRANSPORTS", "shm"}, {"KOLO_INIT_TIMEOUT_MS", "10000"}}),
          with({{"KOLO_RANK", "1"}, {"KOLO_TRANSPORTS", "tcp"}, {"KOLO_INIT_TIMEOUT_MS", "10000"}})},
         "by any transport that both have; there is none");
}
