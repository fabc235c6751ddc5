// How processes find each other, and what is left of it afterwards.
#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"

using namespace kolo::test;

namespace {

void work(koloComm_t comm, int rank, int ranks) {
  int got = -1;
  MUST_OK(koloCommUserRank(comm, &got));
  MUST(got == rank);
  MUST_OK(koloCommCount(comm, &got));
  MUST(got == ranks);
  for (int i = 0; i < 10; ++i) {
    std::vector<int> data(i % 2 == 0 ? 1 : 50000, rank + 1);
    MUST_OK(koloAllReduce(data.data(), data.data(), data.size(), koloInt32, koloSum, comm, nullptr));
    MUST(data.front() == ranks * (ranks + 1) / 2 && data.back() == data.front());
  }
}

int descriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  MUST(directory != nullptr);
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// Prints rank and size; the sum of the ranks shows that they are together.
int joinFromEnvironment(const std::vector<std::string>&) {
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  int rank = -1, ranks = -1;
  MUST_OK(koloCommUserRank(comm, &rank));
  MUST_OK(koloCommCount(comm, &ranks));
  work(comm, rank, ranks);
  std::printf("rank %d of %d\n", rank, ranks);
  MUST_OK(koloCommDestroy(comm));
  return 0;
}
KOLO_ROLE(joinFromEnvironment);

// Prints the code and the message of the attempt.
int tryToJoin(const std::vector<std::string>&) {
  koloComm_t comm = nullptr;
  const koloResult_t result = koloCommInitFromEnv(&comm, nullptr);
  std::printf("result %d: %s\n", result, koloGetLastError(nullptr));
  if (comm != nullptr) koloCommDestroy(comm);
  return 0;
}
KOLO_ROLE(tryToJoin);

// Rank 1 says much before it meets the others.
int sayMuch(const std::vector<std::string>&) {
  koloComm_t comm = nullptr;
  int rank = -1;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  MUST_OK(koloCommUserRank(comm, &rank));
  for (int line = 0; line < 10000 && rank == 1; ++line) std::printf("this is line %d of ten thousand\n", line);
  MUST_OK(koloBarrier(comm, nullptr));
  MUST_OK(koloCommDestroy(comm));
  return 0;
}
KOLO_ROLE(sayMuch);

// arguments: the id in hexadecimal, the number of ranks, this process's ranks. Those are threads of it.
int joinById(const std::vector<std::string>& arguments) {
  const koloUniqueId id = idOfHex(arguments[0]);
  const int ranks = std::stoi(arguments[1]);
  std::vector<std::thread> threads;
  for (size_t i = 2; i < arguments.size(); ++i) {
    threads.emplace_back([&, rank = std::stoi(arguments[i])] {
      koloComm_t comm = nullptr;
      MUST_OK(koloCommInitRank(&comm, ranks, id, rank));
      work(comm, rank, ranks);
      void* memory = nullptr;
      MUST_OK(koloMemAlloc(&memory, 1 << 20));
      koloWindow_t window = nullptr;
      MUST_OK(koloWindowRegister(comm, memory, 1 << 20, &window));
      auto* data = static_cast<int*>(memory) + rank * 1001;
      std::fill(data, data + 50000, rank);
      MUST_OK(koloAllReduce(data, data, 50000, koloInt32, koloMax, comm, nullptr));
      MUST(data[0] == ranks - 1 && data[49999] == ranks - 1);
      MUST_OK(koloWindowDeregister(comm, window));
      MUST_OK(koloMemFree(memory));
      MUST_OK(koloCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
KOLO_ROLE(joinById);

int comeAndGo(const std::vector<std::string>&) {
  int before = 0;
  for (int i = 0; i < 8; ++i) {
    koloComm_t comm = nullptr, child = nullptr;
    MUST_OK(koloCommInitFromEnv(&comm, nullptr));
    void* memory = nullptr;
    koloWindow_t window = nullptr;
    MUST_OK(koloMemAlloc(&memory, 100000));
    MUST_OK(koloWindowRegister(comm, memory, 100000, &window));
    MUST_OK(koloCommSplit(comm, 0, 0, &child, nullptr));
    MUST_OK(koloBarrier(child, nullptr));
    MUST_OK(koloCommDestroy(child));
    MUST_OK(koloWindowDeregister(comm, window));
    MUST_OK(koloMemFree(memory));
    MUST_OK(koloCommDestroy(comm));
    // Sockets of the job that just ended close in the background.
    int now = descriptors();
    for (int wait = 0; i > 1 && now > before && wait < 200; ++wait) {
      usleep(10000);
      now = descriptors();
    }
    if (i <= 1) before = std::max(before, now);
    if (now > before) std::printf("round %d: %d descriptors, before %d\n", i, now, before);
    MUST(now <= before);
  }
  return 0;
}
KOLO_ROLE(comeAndGo);

int asNobody(const std::vector<std::string>& arguments) {
  const char* rank = std::getenv("KOLO_RANK");
  if (rank != nullptr && std::strcmp(rank, "1") == 0) {
    MUST(setgid(65534) == 0);
    MUST(setuid(65534) == 0);
  }
  return tryToJoin(arguments);
}
KOLO_ROLE(asNobody);

// A directory of this test's own for what the rendezvous leaves.
struct Scratch {
  Scratch() {
    char pattern[] = "/tmp/kolo-test-XXXXXX";
    path = mkdtemp(pattern);
  }
  ~Scratch() { static_cast<void>(std::system(("rm -rf " + path).c_str())); }
  int files() const {
    int count = 0;
    for (const std::string& directory : {path, path + "/kolo-" + std::to_string(geteuid())}) {
      DIR* open = opendir(directory.c_str());
      if (open == nullptr) continue;
      while (const dirent* entry = readdir(open)) {
        struct stat status {};
        const std::string name = directory + "/" + entry->d_name;
        if (stat(name.c_str(), &status) == 0 && S_ISREG(status.st_mode)) ++count;
      }
      closedir(open);
    }
    return count;
  }
  std::string path;
};

std::vector<Environment> each(
    int ranks, const std::function<Environment(const std::string& rank, const std::string& size)>& make) {
  std::vector<Environment> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(make(std::to_string(rank), std::to_string(ranks)));
  return all;
}

Ended attempt(const Environment& environment) {
  Process process("tryToJoin", {}, environment);
  return process.wait(kPatience);
}

}  // namespace

TEST_CASE("processes join by KOLO_RANK, KOLO_SIZE and KOLO_JOB, and leave no file") {
  Scratch scratch;
  for (const int ranks : {1, 2, 5}) {
    Job(ranks, "joinFromEnvironment", {}, {{"XDG_RUNTIME_DIR", scratch.path}}).expectSuccess();
  }
  CHECK(scratch.files() == 0);
}

TEST_CASE("processes join by what torchrun, Slurm, Open MPI and MPICH say") {
  Job("joinFromEnvironment", each(3,
                                  [](const std::string& rank, const std::string& size) {
                                    return Environment{{"RANK", rank},
                                                       {"WORLD_SIZE", size},
                                                       {"LOCAL_WORLD_SIZE", size},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"MASTER_PORT", std::to_string(20000 + getpid() % 20000)}};
                                  }))
      .expectSuccess();
  Job("joinFromEnvironment", each(3,
                                  [](const std::string& rank, const std::string& size) {
                                    return Environment{{"SLURM_PROCID", rank},
                                                       {"SLURM_STEP_NUM_TASKS", size},
                                                       {"SLURM_STEP_ID", "0"},
                                                       {"SLURM_JOB_ID", std::to_string(getpid())},
                                                       {"SLURM_STEP_NUM_NODES", "1"}};
                                  }))
      .expectSuccess();
  Job("joinFromEnvironment", each(3,
                                  [](const std::string& rank, const std::string& size) {
                                    return Environment{{"OMPI_COMM_WORLD_RANK", rank},
                                                       {"OMPI_COMM_WORLD_SIZE", size},
                                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", size}};
                                  }))
      .expectSuccess();
  Job("joinFromEnvironment", each(3,
                                  [](const std::string& rank, const std::string& size) {
                                    return Environment{{"PMI_RANK", rank}, {"PMI_SIZE", size}};
                                  }))
      .expectSuccess();
}

TEST_CASE("what a test's process says does not wait for the test to read it") { Job(2, "sayMuch").expectSuccess(); }

TEST_CASE("two jobs of one launcher at once are told apart by KOLO_JOB") {
  Job one(3, "joinFromEnvironment"), two(2, "joinFromEnvironment");
  one.expectSuccess();
  two.expectSuccess();
}

TEST_CASE("an id passed by other means joins processes, each with one rank or several") {
  koloUniqueId id;
  REQUIRE(koloGetUniqueId(&id) == koloSuccess);
  {
    Process one("joinById", {inHex(id), "5", "0", "3"}, {}), two("joinById", {inHex(id), "5", "4", "1", "2"}, {});
    for (Process* process : {&one, &two}) {
      const Ended ended = process->wait(kPatience);
      INFO(ended.output);
      CHECK(ended.exitedWith(0));
    }
  }
  REQUIRE(koloGetUniqueId(&id) == koloSuccess);
  Process other("joinById", {inHex(id), "2", "1"}, {});
  koloComm_t comm = nullptr;
  REQUIRE(koloCommInitRank(&comm, 2, id, 0) == koloSuccess);
  work(comm, 0, 2);
  void* memory = nullptr;
  REQUIRE(koloMemAlloc(&memory, 1 << 20) == koloSuccess);
  koloWindow_t window = nullptr;
  REQUIRE(koloWindowRegister(comm, memory, 1 << 20, &window) == koloSuccess);
  auto* data = static_cast<int*>(memory);
  REQUIRE(koloAllReduce(data, data, 50000, koloInt32, koloMax, comm, nullptr) == koloSuccess);
  CHECK(data[49999] == 1);
  REQUIRE(koloWindowDeregister(comm, window) == koloSuccess);
  REQUIRE(koloMemFree(memory) == koloSuccess);
  const Ended ended = other.wait(kPatience);
  INFO(ended.output);
  CHECK(ended.exitedWith(0));
  REQUIRE(koloCommDestroy(comm) == koloSuccess);
}

TEST_CASE("an id whose maker is dead is unreachable, and the message names the address") {
  koloUniqueId id;
  // A process that makes an id and dies with it.
  Process maker("makeId", {}, {});
  REQUIRE(maker.waitForLine("end of id", kPatience));
  maker.signal(SIGKILL);
  const std::string output = maker.wait(kPatience).output;
  const std::string text = output.substr(output.find("id ") + 3, 2 * sizeof id.internal);
  Process joiner("tryById", {text}, {{"KOLO_INIT_TIMEOUT_MS", "4000"}});
  const Ended ended = joiner.wait(kPatience);
  INFO(ended.output);
  CHECK(ended.output.find("result 20:") != std::string::npos);
  CHECK(ended.output.find(':', ended.output.find("result 20:") + 10) != std::string::npos);
}

TEST_CASE("communicators come and go without leaving descriptors or memory files") {
  Job(2, "comeAndGo").expectSuccess();
}

TEST_CASE("an environment variable that is malformed is named with its value and what was expected") {
  const auto expect = [](const Environment& environment, const std::vector<const char*>& words) {
    const Ended ended = attempt(environment);
    INFO(ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(ended.output.find("result 21:") != std::string::npos);
    for (const char* word : words) CHECK(ended.output.find(word) != std::string::npos);
  };
  expect({{"KOLO_TIMEOUT_MS", "soon"}}, {"KOLO_TIMEOUT_MS", "soon", "expected"});
  expect({{"KOLO_TIMEOUT_MS", "-1"}}, {"KOLO_TIMEOUT_MS", "-1", "expected"});
  expect({{"KOLO_STAGING_BYTES", "1X"}}, {"KOLO_STAGING_BYTES", "1X", "64K"});
  expect({{"KOLO_REPRODUCIBLE", "maybe"}}, {"KOLO_REPRODUCIBLE", "maybe"});
  expect({{"KOLO_DEBUG", "loud"}}, {"KOLO_DEBUG", "loud", "warn"});
  expect({{"KOLO_PORT_RANGE", "17000-70000"}}, {"KOLO_PORT_RANGE", "17000-70000", "17000-17999"});
  expect({{"KOLO_PORT_RANGE", "17001-17000"}}, {"KOLO_PORT_RANGE", "17001-17000", "expected"});
  expect({{"KOLO_ALGORITHM", "all_reduce:fast"}}, {"KOLO_ALGORITHM", "fast", "ring"});
  expect({{"KOLO_DEVICE", "gpu0:1"}}, {"KOLO_DEVICE", "gpu0:1", "without a stream's number"});
  expect({{"KOLO_DEVICE", "tpu0"}}, {"KOLO_DEVICE", "tpu0", "a CUDA device such as gpu0"});
  expect({{"KOLO_DEVICE", "4096"}}, {"KOLO_DEVICE", "4096", "expected"});
  expect({{"KOLO_RANK", "0"}}, {"KOLO_RANK", "KOLO_SIZE"});
  expect({{"KOLO_RANK", "2"}, {"KOLO_SIZE", "2"}}, {"KOLO_RANK", "\"2\"", "0 to 1"});
  expect({{"KOLO_RANK", "x"}, {"KOLO_SIZE", "2"}}, {"KOLO_RANK", "\"x\""});
  expect({{"KOLO_RANK", "0"}, {"KOLO_SIZE", "0"}}, {"KOLO_SIZE", "\"0\""});
  expect({{"RANK", "1"}, {"WORLD_SIZE", "many"}}, {"WORLD_SIZE", "many"});
  expect({{"KOLO_ROOT", "nowhere"}, {"KOLO_RANK", "0"}, {"KOLO_SIZE", "2"}}, {"KOLO_ROOT", "nowhere", "host:port"});
  expect({{"KOLO_TRANSPORT_PLUGINS", "/nonexistent.so"}, {"KOLO_RANK", "0"}, {"KOLO_SIZE", "1"}},
         {"KOLO_TRANSPORT_PLUGINS", "/nonexistent.so"});
}

TEST_CASE("an environment variable that is empty is not set") {
  Environment all;
  for (const char* const name :
       {"KOLO_RANK", "KOLO_SIZE", "KOLO_ROOT", "KOLO_TIMEOUT_MS", "KOLO_STAGING_BYTES", "KOLO_REPRODUCIBLE",
        "KOLO_DEBUG", "KOLO_PORT_RANGE", "KOLO_ALGORITHM", "KOLO_TRANSPORTS", "KOLO_DEBUG_FILE"}) {
    all[name] = "";
  }
  const Ended ended = attempt(all);
  INFO(ended.output);
  CHECK(ended.exitedWith(0));
  CHECK(ended.output.find("result 0:") != std::string::npos);
}

TEST_CASE("an unknown transport is refused on all ranks, with those that there are") {
  Job job(2, "tryToJoin", {}, {{"KOLO_TRANSPORTS", "pigeon"}});
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = job.wait(rank);
    INFO(ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(ended.output.find("result 21:") != std::string::npos);
    CHECK(ended.output.find("pigeon") != std::string::npos);
    CHECK(ended.output.find("shm") != std::string::npos);
  }
}

TEST_CASE("a root that cannot be reached is an error with its address") {
  const Ended ended =
      attempt({{"KOLO_RANK", "1"}, {"KOLO_SIZE", "2"}, {"KOLO_ROOT", "127.0.0.1:1"}, {"KOLO_INIT_TIMEOUT_MS", "1500"}});
  INFO(ended.output);
  CHECK((ended.output.find("result 20:") != std::string::npos || ended.output.find("result 7:") != std::string::npos));
  CHECK(ended.output.find("127.0.0.1:1") != std::string::npos);
}

TEST_CASE("a missing rank is named when the time to join is over") {
  const Ended ended =
      attempt({{"KOLO_RANK", "0"}, {"KOLO_SIZE", "3"}, {"KOLO_JOB", newJobName()}, {"KOLO_INIT_TIMEOUT_MS", "1000"}});
  INFO(ended.output);
  CHECK(ended.output.find("result 7:") != std::string::npos);
  CHECK(ended.output.find('1') != std::string::npos);
}

TEST_CASE("ranks of different users either work together or say why not") {
  if (geteuid() != 0) {
    WARN("skipped: only root can become another user");
    return;
  }
  // One directory that both may enter, so that each can be told of the other.
  const Environment environment = {{"KOLO_INIT_TIMEOUT_MS", "2000"}, {"XDG_RUNTIME_DIR", "/tmp"}};
  Job job(2, "asNobody", {}, environment);
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ": " << ended.output);
    CHECK(ended.exitedWith(0));
    const size_t at = ended.output.find("result ");
    REQUIRE(at != std::string::npos);
    const std::string line = ended.output.substr(at, ended.output.find('\n', at) - at);
    if (line.rfind("result 0:", 0) == 0) continue;
    const std::string mine = "/tmp/kolo-" + std::to_string(rank == 0 ? 0 : 65534);
    const std::string other = "/tmp/kolo-" + std::to_string(rank == 0 ? 65534 : 0);
    for (const std::string& word : {std::string("of user"), mine, other, std::string("KOLO_ROOT")}) {
      CHECK(line.find(word) != std::string::npos);
    }
  }
}

TEST_CASE("ranks of different users work together by KOLO_ROOT") {
  if (geteuid() != 0) {
    WARN("skipped: only root can become another user");
    return;
  }
  const std::string root = "127.0.0.1:" + std::to_string(20000 + getpid() % 20000);
  Job job(2, "asNobody", {}, {{"KOLO_ROOT", root}, {"KOLO_SECRET", "users"}});
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ": " << ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(ended.output.find("result 0:") != std::string::npos);
  }
}

namespace {

int makeId(const std::vector<std::string>&) {
  koloUniqueId id;
  MUST_OK(koloGetUniqueId(&id));
  std::printf("id %s\nend of id\n", inHex(id).c_str());
  sleep(60);
  return 0;
}
KOLO_ROLE(makeId);

int tryById(const std::vector<std::string>& arguments) {
  const koloUniqueId id = idOfHex(arguments[0]);
  koloComm_t comm = nullptr;
  const koloResult_t result = koloCommInitRank(&comm, 2, id, 1);
  std::printf("result %d: %s\n", result, koloGetLastError(nullptr));
  return 0;
}
KOLO_ROLE(tryById);

}  // namespace
