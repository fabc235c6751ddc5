// A rank of the control plane's tests in a process of its own, which can be killed and stopped.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "bootstrap_fixture.h"
#include "support/stops.h"

namespace kolo::bootstrap {

inline std::string hex(const koloUniqueId& id) {
  std::string text(2 * sizeof id.internal + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), reinterpret_cast<const unsigned char*>(id.internal), sizeof id.internal);
  text.pop_back();
  return text;
}

inline koloUniqueId unhex(const std::string& text) {
  koloUniqueId id;
  (void)sodium_hex2bin(reinterpret_cast<unsigned char*>(id.internal), sizeof id.internal, text.data(), text.size(),
                       nullptr, nullptr, nullptr);
  return id;
}

// A rank in a process of its own: this program again, running the hidden test case of
// bootstrap_failure_test.cc. It writes lines to `out`.
class Child {
 public:
  // isElsewhere: in a place of its own, as on another host (standby.h): in its own namespace of users.
  Child(const std::string& role, int rank, int ranks, const std::string& id, bool isElsewhere = false) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const std::vector<std::string> environment = {"CHILD_ROLE=" + role,
                                                  fmt::format("CHILD_RANK={}", rank),
                                                  fmt::format("CHILD_RANKS={}", ranks),
                                                  "CHILD_ID=" + id,
                                                  fmt::format("CHILD_OUT={}", ends[1]),
                                                  fmt::format("CHILD_IS_ELSEWHERE={}", isElsewhere ? 1 : 0)};
    std::vector<char*> envp;
    for (char** each = environ; *each != nullptr; ++each) envp.push_back(*each);
    for (const std::string& each : environment) envp.push_back(const_cast<char*>(each.c_str()));
    envp.push_back(nullptr);
    pid_ = ::vfork();
    if (pid_ == 0) {
      ::fcntl(ends[1], F_SETFD, 0);
      ::execle("/proc/self/exe", "bootstrap-child", "a rank in a process of its own", nullptr, envp.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    in_ = ::fdopen(ends[0], "r");
    REQUIRE(pid_ > 0);
  }
  ~Child() {
    kill();
    std::fclose(in_);
  }

  int pid() const { return pid_; }
  std::string line() {
    char buffer[1024];
    std::string text = std::fgets(buffer, sizeof buffer, in_) != nullptr ? buffer : "";
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }
  // Returns when it has stopped: a signal that is sent is not yet obeyed.
  void stop() {
    if (pid_ <= 0) return;
    test::stopProcess(pid_);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  std::FILE* in_ = nullptr;
};

}  // namespace kolo::bootstrap
