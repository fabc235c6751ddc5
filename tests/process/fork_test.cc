// Processes that fork: before, between and after their communicators, and in the middle of a call.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "process/job.h"
#include "process/roles.h"

using namespace kolo::test;

namespace {

constexpr unsigned kPatienceSeconds = 30;

// Runs function(n) in so many forked processes; all are to return.
template <class Function>
void inChildren(int count, const Function& function) {
  std::vector<pid_t> children;
  for (int n = 0; n < count; ++n) {
    const pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
      alarm(kPatienceSeconds);  // ends a child that waits for a lock of a thread that it does not have
      function(n);
      std::fflush(stdout);
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    MUST(waitpid(child, &status, 0) == child);
    if (status != 0) std::printf("a child ended with status %d\n", status);
    MUST(status == 0);
  }
}

void mustWork(koloComm_t comm, int ranks) {
  std::vector<int> mine(5000, 1), sums(5000);
  MUST_OK(koloAllReduce(mine.data(), sums.data(), mine.size(), koloInt32, koloSum, comm, nullptr));
  MUST(sums.front() == ranks && sums.back() == ranks);
}

// A job of two ranks that are threads.
void useAndEnd() {
  std::array<koloComm_t, 2> comms{};
  MUST_OK(koloCommInitAll(comms.data(), 2, nullptr));
  std::thread other(mustWork, comms[1], 2);
  mustWork(comms[0], 2);
  other.join();
  for (const koloComm_t comm : comms) MUST_OK(koloCommDestroy(comm));
}

void join(const koloUniqueId& id, int rank) {
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitRank(&comm, 2, id, rank));
  mustWork(comm, 2);
  MUST_OK(koloCommDestroy(comm));
}

// As notebooks' launchers do it: the parent uses the library, and forks its workers when it has done with it.
int forkAfterUse(const std::vector<std::string>&) {
  useAndEnd();
  void* memory = nullptr;
  MUST_OK(koloMemAlloc(&memory, 100'000));
  koloUniqueId id;
  MUST_OK(koloGetUniqueId(&id));  // of a job whose ranks are the children
  inChildren(2, [&](int rank) {
    join(id, rank);
    useAndEnd();
    koloUniqueId own;
    MUST_OK(koloGetUniqueId(&own));
    inChildren(2, [&](int grandchild) { join(own, grandchild); });
    MUST_OK(koloMemFree(memory));
  });
  useAndEnd();
  MUST_OK(koloMemFree(memory));
  return 0;
}
KOLO_ROLE(forkAfterUse);

int forkWhileInUse(const std::vector<std::string>&) {
  std::array<koloComm_t, 2> comms{};
  MUST_OK(koloCommInitAll(comms.data(), 2, nullptr));
  inChildren(1, [](int) {
    koloComm_t comm = nullptr;
    koloUniqueId id;
    void* memory = nullptr;
    for (const koloResult_t refused : {koloCommInitAll(&comm, 1, nullptr), koloGetUniqueId(&id),
                                       koloCommInitFromEnv(&comm, nullptr), koloMemAlloc(&memory, 100)}) {
      MUST(refused == koloInvalidUsage);
    }
    const std::string why = koloGetLastError(nullptr);
    MUST(why.find("forked from one that had a communicator") != std::string::npos);
  });
  std::thread other(mustWork, comms[1], 2);
  mustWork(comms[0], 2);
  other.join();
  for (const koloComm_t comm : comms) MUST_OK(koloCommDestroy(comm));
  inChildren(1, [](int) { useAndEnd(); });
  return 0;
}
KOLO_ROLE(forkWhileInUse);

// While another thread is in calls that take locks of the process. A child begins anew, or is refused; it never hangs.
int forkDuringCalls(const std::vector<std::string>& arguments) {
  const std::string& what = arguments[0];
  std::atomic<bool> stops{false};
  std::thread busy([&] {
    std::array<char, 1 << 16> text{};
    while (!stops) {
      if (what == "settings") MUST_OK(koloGetInfo(koloInfoSettings, text.data(), text.size(), nullptr));
      if (what == "topology") MUST_OK(koloGetInfo(koloInfoTopology, text.data(), text.size(), nullptr));
      if (what == "communicators") useAndEnd();
      void* memory = nullptr;
      if (what == "memory") {
        MUST_OK(koloMemAlloc(&memory, 4096));
        MUST_OK(koloMemFree(memory));
      }
    }
  });
  for (int round = 0; round < 20; ++round) {
    inChildren(5, [](int) {
      std::array<koloComm_t, 2> comms{};
      const koloResult_t made = koloCommInitAll(comms.data(), 2, nullptr);
      MUST(made == koloSuccess || made == koloInvalidUsage);
    });
  }
  stops = true;
  busy.join();
  return 0;
}
KOLO_ROLE(forkDuringCalls);

}  // namespace

#ifndef __SANITIZE_THREAD__  // it has no threads in a child of a process that had some
TEST_CASE("children that are forked after the last communicator begin anew, and so do theirs") {
  Job(1, "forkAfterUse").expectSuccess();
}

TEST_CASE("a child that is forked from a process with a communicator is refused, and later ones are not") {
  Job(1, "forkWhileInUse").expectSuccess();
}

#endif

TEST_CASE("a child that is forked while another thread is in a call does not hang", "[optimised]") {
  if (kSanitized) return;  // the sanitizers' allocators have locks that no fork renews
  for (const char* const what : {"settings", "topology", "communicators", "memory"}) {
    INFO(what);
    Job(1, "forkDuringCalls", {what}).expectSuccess();
  }
}
