#include "perf/launch.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "perf/failure.h"
#include "perf/machine.h"

namespace kolo::perf {
namespace {

using Clock = std::chrono::steady_clock;

// How long ranks may take to obey SIGTERM.
constexpr auto kObeyTime = std::chrono::milliseconds(1000);

// "": it is not set.
const char* textOf(const char* variable) {
  const char* const value = ::secure_getenv(variable);
  return value != nullptr ? value : "";
}
// Empty counts as not set, as it does in the library.
bool isSet(const char* variable) { return *textOf(variable) != '\0'; }

// Slurm calls a batch script, and the shell that salloc may give, a step too, with numbers from here on. It is no rank.
constexpr unsigned long long kFirstSpecialStep = 0xfffffff0;

bool isSlurmTask() {
  return isSet("SLURM_PROCID") && isSet("SLURM_STEP_ID") &&
         std::strtoull(textOf("SLURM_STEP_ID"), nullptr, 10) < kFirstSpecialStep;
}

// Where the launcher of this process has put its rank; in the library's order. nullptr: there is no launcher.
const char* rankVariable() {
  // One of Kolo's own alone is a mistake, of which the library tells.
  if (isSet("KOLO_RANK") || isSet("KOLO_SIZE")) return "KOLO_RANK";
  if (isSet("RANK") && isSet("WORLD_SIZE")) return "RANK";
  if (isSet("OMPI_COMM_WORLD_RANK"))
    return "OMPI_COMM_WORLD_RANK";  // in an allocation of Slurm, the daemon's variables are there too
  if (isSet("PMI_RANK") && isSet("MPI_LOCALNRANKS")) return "PMI_RANK";
  if (isSlurmTask()) return "SLURM_PROCID";
  return isSet("PMI_RANK") ? "PMI_RANK" : nullptr;
}

std::string jobName() {
  std::random_device random;
  return fmt::format("perf-{}-{:08x}", getpid(), random());
}

sigset_t watchedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

class StartedRanks {
 public:
  explicit StartedRanks(char** argv)
      : argv_(argv), job_(jobName()), parent_(getpid()), cores_(usableCores()), watched_(watchedSignals()) {
    // Blocked, so that they wait for look(): no signal can fall between starting a rank and looking for it.
    sigprocmask(SIG_BLOCK, &watched_, &inherited_);
  }

  ~StartedRanks() {
    signalAll(SIGKILL);
    while (running() > 0 && reap(0)) {
    }
  }

  StartedRanks(const StartedRanks&) = delete;
  StartedRanks& operator=(const StartedRanks&) = delete;

  int run(int count) {
    constexpr timespec kNoPause{.tv_sec = 0, .tv_nsec = 0};
    constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 100'000'000};
    // Starting many takes long: who interrupts it, or a rank that dies at once, must not wait for the last one.
    for (int rank = 0; rank < count && !ending_; ++rank) {
      start(rank, count);
      look(kNoPause);
    }
    while (running() > 0) look(kPause);
    return status_;
  }

 private:
  // What has happened, after at most `pause`, and what follows from it.
  void look(const timespec& pause) {
    const int signal = sigtimedwait(&watched_, nullptr, &pause);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) interrupt(signal);
    while (reap(WNOHANG)) {
    }
    enforce();
  }

  void start(int rank, int count) {
    const pid_t child = fork();
    if (child < 0) fail("cannot start rank {}: {}", rank, std::strerror(errno));
    if (child == 0) become(rank, count);
    children_.push_back(child);
  }

  // In the child. Does not return.
  [[noreturn]] void become(int rank, int count) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent_) _exit(kRunFailed);  // it died before the line above
    sigprocmask(SIG_SETMASK, &inherited_, nullptr);
    setenv("KOLO_RANK", std::to_string(rank).c_str(), 1);
    setenv("KOLO_SIZE", std::to_string(count).c_str(), 1);
    setenv("KOLO_JOB", job_.c_str(), 1);
    if (static_cast<size_t>(count) <= cores_.size()) bindTo(cores_[static_cast<size_t>(rank)]);
    execv("/proc/self/exe", argv_);
    fmt::print(stderr, "kolo-perf: cannot start rank {}: {}\n", rank, std::strerror(errno));
    _exit(kRunFailed);
  }

  // False when no child was waiting to be reaped.
  bool reap(int flags) {
    int state = 0;
    const pid_t child = waitpid(-1, &state, flags);
    if (child <= 0) return false;
    const auto at = std::find(children_.begin(), children_.end(), child);
    if (at == children_.end()) return true;
    *at = 0;
    judge(static_cast<int>(at - children_.begin()), state);
    return true;
  }

  void judge(int rank, int state) {
    if (WIFEXITED(state) && WEXITSTATUS(state) <= kWrongValues) {
      status_ = std::max(status_, WEXITSTATUS(state));
      return;
    }
    status_ = std::max<int>(status_, kRunFailed);
    if (ending_) return;  // the first death is the news; what follows is its consequence
    ending_ = true;
    endAt_ = Clock::now();
    if (WIFSIGNALED(state)) {
      const int signal = WTERMSIG(state);
      fmt::print(stderr, "kolo-perf: rank {} was ended by signal {} ({})\n", rank, signal, strsignal(signal));
    } else if (WEXITSTATUS(state) != kRunFailed) {  // with that, the rank has said why
      fmt::print(stderr, "kolo-perf: rank {} exited with status {}\n", rank, WEXITSTATUS(state));
    }
  }

  void interrupt(int signal) {
    status_ = kRunFailed;
    if (ending_) return;
    fmt::print(stderr, "kolo-perf: {}, ending all ranks\n", strsignal(signal));
    ending_ = true;
    endAt_ = Clock::now();
  }

  // Each signal once to each rank: with thousands of them, more would be most of the work.
  void enforce() {
    if (!ending_) return;
    const int signal = Clock::now() < endAt_ + kObeyTime ? SIGTERM : SIGKILL;
    if (signal != sent_) signalAll(signal);
    sent_ = signal;
  }

  void signalAll(int signal) const {
    for (const pid_t child : children_) {
      if (child > 0) kill(child, signal);
    }
  }

  size_t running() const {
    return static_cast<size_t>(std::count_if(children_.begin(), children_.end(), [](pid_t pid) { return pid > 0; }));
  }

  char** argv_;
  std::string job_;
  pid_t parent_;
  std::vector<int> cores_;
  sigset_t watched_{};
  sigset_t inherited_{};
  std::vector<pid_t> children_;  // by rank; 0 once it has ended
  int status_ = kAllRight;
  bool ending_ = false;
  Clock::time_point endAt_{};  // when ending began
  int sent_ = 0;               // the last signal to all ranks
};

}  // namespace

SignalsHeld::SignalsHeld() {
  const sigset_t signals = watchedSignals();
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

SignalsHeld::~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

bool startedByLauncher() { return rankVariable() != nullptr; }

std::string launchedRank() {
  const char* const name = rankVariable();
  return name != nullptr ? textOf(name) : "";
}

int launchedLocalRank() {
  for (const char* const name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (!isSet("KOLO_RANK") && isSet(name)) return std::atoi(textOf(name));
  }
  return std::atoi(launchedRank().c_str());
}

int launchRanks(char** argv, int ranks) { return StartedRanks(argv).run(ranks); }

}  // namespace kolo::perf
