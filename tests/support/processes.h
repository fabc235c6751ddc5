// Ranks as processes: the test binary starts itself again in a role, and reads what the copy writes.
//
// Thread safety: a Process belongs to one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace kolo::test {

using Environment = std::map<std::string, std::string>;

// What a finished process left.
struct Ended {
  int status = 0;      // as of waitpid
  std::string output;  // both streams
  bool exitedWith(int code) const;
  bool killedBy(int signal) const;
};

// One copy of this binary in a role. Kills and reaps it if nobody has waited for it.
class Process {
 public:
  // The role's arguments follow its name. Variables of `environment` are added to this process's own, those of Kolo and
  // of launchers in it are left out before, all but the seed of the run (seed.h).
  Process(const std::string& role, const std::vector<std::string>& arguments, const Environment& environment);
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  Process(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Waits until it has written a line with this text; false if it ended or the time is over first.
  bool waitForLine(const std::string& text, std::chrono::milliseconds limit);
  // Waits until it ends; kills it when the time is over, and says so in its output. Asked again, it says the same.
  Ended wait(std::chrono::milliseconds limit);
  // What it has written, as far as waitForLine() has read.
  const std::string& output() const { return output_; }

 private:
  bool hasEnded() const;
  bool readSome(std::chrono::steady_clock::time_point end);

  pid_t pid_ = -1;
  int file_ = -1;  // what it writes, in memory: in a pipe it would wait for this process, which waits for another one
  std::string output_;  // of that, what has been read
  Ended ended_;         // once pid_ is -1
};

// A role: what a copy does. Its result is the exit code.
using Role = std::function<int(const std::vector<std::string>& arguments)>;
struct RoleRegistration {
  RoleRegistration(const char* name, Role role);
};
// Runs a role if the command line asks for one; -1: it does not.
int runRole(int argc, char** argv);

#define KOLO_ROLE(function) static const ::kolo::test::RoleRegistration function##Registration(#function, function)

}  // namespace kolo::test
