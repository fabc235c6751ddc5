// What the library's threads and its look at the machine leave alone: the program's signals and traps.
#include <dlfcn.h>
#include <fenv.h>
#include <netdb.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "process/job.h"
#include "process/roles.h"

using namespace kolo::test;

namespace {

std::atomic<int> lookups{0}, lookupsWithSignals{0};

bool leavesSignals(const sigset_t& blocked) {
  const std::vector<int> signals{SIGHUP, SIGINT, SIGALRM, SIGUSR1, SIGUSR2, SIGTERM, SIGCHLD, SIGPROF, SIGWINCH};
  return std::all_of(signals.begin(), signals.end(), [&](int each) { return sigismember(&blocked, each) == 1; });
}

// What the library's threads block, but for those that have ended meanwhile; and the number of threads.
int checkThreads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string id = task.path().filename();
    if (id == std::to_string(getpid())) continue;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.compare(0, 7, "SigBlk:") != 0) continue;
      const unsigned long long blocked = std::stoull(line.substr(7), nullptr, 16);
      for (const int signal : {SIGINT, SIGALRM, SIGUSR1, SIGTERM, SIGCHLD}) MUST((blocked >> (signal - 1) & 1) != 0);
      ++count;
    }
  }
  return count;
}

int useAllThreads(const std::vector<std::string>&) {
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  koloStream_t stream = nullptr;
  MUST_OK(koloStreamCreate(&stream));
  int mine = 1, sum = 0, other = 0;
  koloRequest_t request = nullptr;
  std::atomic<bool> isDone{false};
  const auto done = [](koloResult_t, const char*, void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; };
  MUST_OK(koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, comm, stream));
  MUST_OK(koloIallReduce(&mine, &other, 1, koloInt32, koloSum, comm, &request));
  MUST_OK(koloRequestNotify(request, done, &isDone));
  while (!isDone) usleep(1000);
  MUST(checkThreads() >= 3);  // of the control plane, the stream and the notice
  std::printf("%d lookups, %d with signals\n", lookups.load(), lookupsWithSignals.load());
  MUST_OK(koloRequestFree(request));
  MUST_OK(koloStreamDestroy(stream));
  MUST_OK(koloCommDestroy(comm));
  return 0;
}
KOLO_ROLE(useAllThreads);

int joinWithTraps(const std::vector<std::string>&) {
  feenableexcept(FE_ALL_EXCEPT);
  koloComm_t comm = nullptr;
  MUST_OK(koloCommInitFromEnv(&comm, nullptr));
  MUST_OK(koloBarrier(comm, nullptr));
  MUST_OK(koloCommDestroy(comm));
  MUST(fegetexcept() == FE_ALL_EXCEPT);
  return 0;
}
KOLO_ROLE(joinWithTraps);

// As hwloc writes it, with numbers that are no whole ones.
const char* const kMachine = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
<object type="Machine" os_index="0" cpuset="0x3" complete_cpuset="0x3" allowed_cpuset="0x3" nodeset="0x1"
 complete_nodeset="0x1" allowed_nodeset="0x1" gp_index="1">
<object type="NUMANode" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1"
 gp_index="2" local_memory="8273203200"/>
<object type="Core" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="3">
<object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="4"/>
</object>
<object type="Core" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="5">
<object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="6"/>
</object>
<object type="Bridge" gp_index="7" bridge_type="0-1" depth="0" bridge_pci="0000:[10-1f]">
<object type="PCIDev" gp_index="8" pci_busid="0000:10:00.0" pci_type="0200 [15b3:1019] [15b3:0008] 00"
 pci_link_speed="7.876923">
<object type="OSDev" gp_index="9" name="mlx5_0" osdev_type="3"/>
</object>
</object>
</object>
</topology>
)";

}  // namespace

// In the place of the C library's: notes what signals the threads take that look names up.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** result) {
  static auto* const real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  ++lookups;
  if (!leavesSignals(blocked)) ++lookupsWithSignals;
  return real(node, service, hints, result);
}

TEST_CASE("the library's threads leave signals to the program's, also the one that looks a name up") {
  if (kSanitized) return;  // the sanitizers have threads of their own
  const std::string root = "localhost:" + std::to_string(20000 + getpid() % 10000);
  Job job(2, "useAllThreads", {}, {{"KOLO_ROOT", root}, {"KOLO_TRANSPORTS", "tcp"}});
  for (int rank = 0; rank < 2; ++rank) {
    const Ended ended = job.wait(rank);
    INFO(ended.output);
    CHECK(ended.exitedWith(0));
    if (rank == 1) CHECK(ended.output.find(" 0 lookups") == std::string::npos);
    CHECK(ended.output.find("lookups, 0 with signals") != std::string::npos);
  }
}

TEST_CASE("a program's traps of floating-point exceptions do not fire while a machine's description is read") {
  if (kSanitized) return;  // their own code may calculate
  const std::filesystem::path file = std::filesystem::temp_directory_path() / ("kolo-machine-" + newJobName());
  std::ofstream(file) << kMachine;
  Job job(2, "joinWithTraps", {}, {{"HWLOC_XMLFILE", file.string()}});
  job.expectSuccess();
  std::filesystem::remove(file);
}
