// Starting one's own ranks as processes, and watching over them.
//
// Thread safety: not thread safe; used by a process without other threads.
#pragma once

#include <csignal>
#include <string>

namespace kolo::perf {

// What this tool exits with.
enum ExitStatus { kAllRight = 0, kWrongValues = 1, kRunFailed = 2 };

// Threads that are started meanwhile do not take the signals by which ranks end and are ended.
class SignalsHeld {
 public:
  SignalsHeld();
  ~SignalsHeld();
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

// Whether a launcher (ours, torchrun, Slurm, Open MPI, MPICH) started this process as one rank of a job.
bool startedByLauncher();
// The rank that the launcher gave this process, as it says it; "" without one.
std::string launchedRank();
// Its number among the ranks of this host, as the launcher says it, else its rank; 0 without a launcher.
int launchedLocalRank();

// Runs this executable again `ranks` times with the same arguments and KOLO_RANK, KOLO_SIZE and KOLO_JOB set, each
// bound to a core where there are cores enough, and waits. When a rank dies, standard error says which and by which
// signal, unless the rank itself said why, and the others are ended: theirs are consequences. SIGINT, SIGTERM and
// SIGHUP end all ranks, also while they are being started; no rank survives this process. Returns an exit status: the
// worst of the ranks'. Throws Failure when a process cannot be started.
int launchRanks(char** argv, int ranks);

}  // namespace kolo::perf
