#include "support/processes.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

extern char** environ;

namespace kolo::test {
namespace {

constexpr const char* kRoleOption = "--role";

std::map<std::string, Role>& roles() {
  static std::map<std::string, Role> instance;
  return instance;
}

bool isLaunchers(const std::string& variable) {
  if (variable.rfind("KOLO_TEST_SEED=", 0) == 0) return false;  // the run's
  for (const char* prefix : {"KOLO_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_",
                             "MPI_LOCAL", "TORCHELASTIC_"}) {
    // The sanitizers' and the plugins' variables are not among them: tests name what they need.
    if (variable.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

}  // namespace

bool Ended::exitedWith(int code) const { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
bool Ended::killedBy(int signal) const { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }

Process::Process(const std::string& role, const std::vector<std::string>& arguments, const Environment& environment) {
  std::vector<std::string> words = {"/proc/self/exe", kRoleOption, role};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!isLaunchers(*variable)) variables.emplace_back(*variable);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  file_ = memfd_create("output", MFD_CLOEXEC);
  if (file_ < 0) std::abort();
  const pid_t parent = getpid();
  // Returns when the copy runs: a signal for it, between its start and that, would be taken by Catch2's handler in it.
  pid_ = vfork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);     // nothing outlives a test run that is killed
    if (getppid() != parent) _exit(127);  // before that
    dup2(file_, STDOUT_FILENO);
    dup2(file_, STDERR_FILENO);
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(127);
  }
  if (pid_ < 0) std::abort();
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), file_(std::exchange(other.file_, -1)), output_(std::move(other.output_)),
      ended_(std::move(other.ended_)) {}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (file_ >= 0) close(file_);
}

// To the process alone: without one, kill() would take -1 for all processes there are.
void Process::signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

bool Process::hasEnded() const {
  if (pid_ <= 0) return true;
  siginfo_t about{};
  return waitid(P_PID, static_cast<id_t>(pid_), &about, WEXITED | WNOHANG | WNOWAIT) == 0 && about.si_pid == pid_;
}

// False at the end of the output or of the time.
bool Process::readSome(std::chrono::steady_clock::time_point end) {
  while (std::chrono::steady_clock::now() < end) {
    const bool isAll = hasEnded();  // before the file is looked at
    char buffer[4096];
    const ssize_t got = pread(file_, buffer, sizeof buffer, static_cast<off_t>(output_.size()));
    if (got > 0) output_.append(buffer, static_cast<size_t>(got));
    if (got > 0 || isAll) return got > 0;
    usleep(1000);
  }
  return false;
}

bool Process::waitForLine(const std::string& text, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (output_.find(text) == std::string::npos) {
    if (!readSome(end)) return false;
  }
  return true;
}

Ended Process::wait(std::chrono::milliseconds limit) {
  if (pid_ <= 0) return ended_;
  const auto end = std::chrono::steady_clock::now() + limit;
  while (readSome(end)) {
  }
  // The output has ended, or the time has.
  for (;;) {
    if (waitpid(pid_, &ended_.status, WNOHANG) == pid_) break;
    if (std::chrono::steady_clock::now() >= end) {
      output_ += "\n[did not end in time: killed]";
      signal(SIGKILL);
      waitpid(pid_, &ended_.status, 0);
      break;
    }
    usleep(1000);
  }
  pid_ = -1;
  ended_.output = output_;
  return ended_;
}

RoleRegistration::RoleRegistration(const char* name, Role role) { roles().emplace(name, std::move(role)); }

int runRole(int argc, char** argv) {
  if (argc < 3 || std::strcmp(argv[1], kRoleOption) != 0) return -1;
  const auto role = roles().find(argv[2]);
  if (role == roles().end()) {
    std::fprintf(stderr, "there is no role %s\n", argv[2]);
    return 126;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  return role->second({argv + 3, argv + argc});
}

}  // namespace kolo::test
