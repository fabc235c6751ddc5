// Stopping a process for as long as a test wants it stopped, also where tools/run-tests --busy stops and continues the
// processes of tests at random: there a process is not continued whose number names a file in the folder
// KOLO_TEST_STOPS. stops.py does the same.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace kolo::test {

// "": nobody else stops processes.
inline std::string markOfStopped(pid_t process) {
  const char* const folder = std::getenv("KOLO_TEST_STOPS");
  return folder == nullptr || *folder == 0 ? std::string() : std::string(folder) + "/" + std::to_string(process);
}

inline void stopProcess(pid_t process) {
  const std::string mark = markOfStopped(process);
  if (!mark.empty()) ::close(::open(mark.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ::kill(process, SIGSTOP);
}

inline void continueProcess(pid_t process) {
  const std::string mark = markOfStopped(process);
  if (!mark.empty()) ::unlink(mark.c_str());
  ::kill(process, SIGCONT);
}

}  // namespace kolo::test
