// Reading what launchers put into the environment.
//
// The first of these that is there wins: Kolo's own variables, torchrun, Slurm, Open MPI, MPICH. Slurm is passed over
// where mpirun ran inside an allocation: its daemons are Slurm tasks, and the ranks inherit the daemons' Slurm
// variables. Where several are there and contradict each other (a job operator sets RANK and WORLD_SIZE for a pod, and
// mpirun starts two ranks in it), the one that started this process wins: its variables are the ones that this
// process's parent does not have.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/settings.h"
#include "bootstrap/control.h"
#include "bootstrap/hub.h"
#include "bootstrap/job_secret.h"
#include "bootstrap/process_info.h"

namespace kolo::bootstrap {
namespace {

constexpr int kMaxAncestors = 8;
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;  // Slurm: batch script, extern step, interactive step

std::string variable(const char* name) {
  static std::once_flag isTold;
  if (settings::isIgnored(name))
    std::call_once(isTold,
                   [&] { log::warn("{}", settings::whyIgnored(fmt::format("environment variable {}", name))); });
  const char* const value = ::secure_getenv(name);
  return value != nullptr ? value : "";
}

Result<int> wholeNumber(const char* name, const std::string& text, int low, int high, std::string_view meaning) {
  const Result<std::int64_t> number = settings::parseInteger(text);
  if (!number.ok() || number.value() < low || number.value() > high) {
    return error(koloInvalidEnvironment, "environment variable {} is \"{}\", expected {}: a whole number from {} to {}",
                 name, text, meaning, low, high);
  }
  return static_cast<int>(number.value());
}

// The pair that every launcher sets. One without the other is an error.
Status readRanks(const char* rankName, const std::string& rank, const char* sizeName, const std::string& size,
                 LauncherJob& job) {
  if (rank.empty() || size.empty()) {
    const bool noRank = rank.empty();
    return error(koloInvalidEnvironment,
                 "environment variable {} is \"{}\" but {} is not set, expected both or neither",
                 noRank ? sizeName : rankName, noRank ? size : rank, noRank ? rankName : sizeName);
  }
  KOLO_ASSIGN(job.ranks, wholeNumber(sizeName, size, 1, kMaxRanks, "the number of ranks"));
  KOLO_ASSIGN(job.rank, wholeNumber(rankName, rank, 0, job.ranks - 1, "this process's rank"));
  return {};
}

Status readLocalRanks(const char* name, LauncherJob& job) {
  const std::string text = variable(name);
  if (text.empty()) return {};
  KOLO_ASSIGN(job.localRanks, wholeNumber(name, text, 1, job.ranks, "the number of ranks on this host"));
  return {};
}

// The starter of the ranks of this host, named for ever by pid and start time. The closest ancestor with that command,
// so that a shell between a launcher and a rank does not matter; the parent if there is none.
std::string starter(std::string_view command) {
  int chosen = ::getppid();
  int parent = ::getpid();
  std::string name;
  for (int i = 0; !command.empty() && i < kMaxAncestors && parentOf(parent, parent, name) && parent > 1; ++i) {
    int ignored = 0;
    if (parentOf(parent, ignored, name) && name.starts_with(command)) {
      chosen = parent;
      break;
    }
  }
  return fmt::format("pid {} started {}", chosen, startTime(chosen));
}

// Where the launcher gives no id: KOLO_JOB; over several hosts the root; on one host the process that started the
// ranks.
std::string fallbackName(const std::string& root, std::string_view command) {
  std::string given = settings::text("KOLO_JOB");
  if (!given.empty()) return given;
  return root.empty() ? starter(command) : "root " + root;
}

Result<bool> readKolo(LauncherJob& job) {
  const std::string rank = settings::text("KOLO_RANK");
  const std::string size = settings::text("KOLO_SIZE");
  if (rank.empty() && size.empty()) return false;
  job.launcher = "kolo";
  KOLO_TRY(readRanks("KOLO_RANK", rank, "KOLO_SIZE", size, job));
  job.jobName = fallbackName(job.root, "");
  return true;
}

// A port that all ranks of a job agree on: of those that the user allows, or below the range from which the kernel
// chooses.
int portFor(const std::string& jobName) {
  settings::Ports range = settings::ports("KOLO_PORT_RANGE");
  if (range.isAny()) range = {17000, 31999};
  unsigned hash = 2166136261u;  // FNV-1a
  for (const char c : jobName) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return range.first + static_cast<int>(hash % static_cast<unsigned>(range.count()));
}

// PyTorch's own store listens on MASTER_PORT itself.
int portBeside(int masterPort, const std::string& run) {
  const settings::Ports range = settings::ports("KOLO_PORT_RANGE");
  const int beside = masterPort < 65535 ? masterPort + 1 : masterPort - 1;
  if (range.isAny() || range.contains(beside)) return beside;
  const int other = portFor(fmt::format("{} {}", run, masterPort));
  if (other != masterPort) return other;
  return other < range.last ? other + 1 : range.first;
}

Result<bool> readTorchrun(LauncherJob& job) {
  const std::string rank = variable("RANK");
  const std::string size = variable("WORLD_SIZE");
  if (rank.empty() && size.empty()) return false;
  job.launcher = "torchrun";
  KOLO_TRY(readRanks("RANK", rank, "WORLD_SIZE", size, job));
  KOLO_TRY(readLocalRanks("LOCAL_WORLD_SIZE", job));
  const std::string address = variable("MASTER_ADDR");
  const std::string port = variable("MASTER_PORT");
  int portNumber = 0;
  if (!port.empty()) {
    KOLO_ASSIGN(portNumber, wholeNumber("MASTER_PORT", port, 1, 65535, "a port"));
  }
  if (job.root.empty() && isOnSeveralHosts(job) && !address.empty() && portNumber > 0) {
    job.root = fmt::format("{}:{}", address.find(':') == std::string::npos ? address : "[" + address + "]",
                           portBeside(portNumber, variable("TORCHELASTIC_RUN_ID")));
    job.rootFrom = "MASTER_ADDR";
  }
  const std::string run = variable("TORCHELASTIC_RUN_ID");
  // Without these, ranks that were given no other name to meet by would each wait for the others in silence. The parent
  // process would be a guess here: torchrun always sets them, and ranks started by hand often have different parents.
  const bool named = !settings::text("KOLO_JOB").empty() || !run.empty() || portNumber > 0;
  if (job.ranks > 1 && job.root.empty() && (isOnSeveralHosts(job) || !named)) {
    for (const auto& [name, value] : {std::pair{"MASTER_ADDR", &address}, std::pair{"MASTER_PORT", &port}}) {
      if (!value->empty()) continue;
      return error(
          koloInvalidEnvironment,
          "environment variable WORLD_SIZE is \"{}\" but {} is not set, expected all that torchrun sets (RANK, "
          "WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or {} beside it",
          size, name, isOnSeveralHosts(job) ? "KOLO_ROOT" : "KOLO_JOB or KOLO_ROOT");
    }
  }
  job.jobName = run.empty() && portNumber == 0
                    ? fallbackName(job.root, "")
                    : fmt::format("{} {}:{} attempt {}", run, address, port, variable("TORCHELASTIC_RESTART_COUNT"));
  return true;
}

// The first host of "node[01-04,7],other": "node01".
std::string firstHost(const std::string& list) {
  const std::size_t open = list.find_first_of("[,");
  if (open == std::string::npos || list[open] == ',') return list.substr(0, open);
  const std::size_t end = list.find_first_of("-,]", open + 1);
  const std::size_t close = list.find(']', open);
  if (end == std::string::npos || close == std::string::npos) return {};
  const std::size_t next = std::min(list.find(',', close), list.size());
  return list.substr(0, open) + list.substr(open + 1, end - open - 1) + list.substr(close + 1, next - close - 1);
}

// Where the ranks of a step on several hosts meet.
Result<std::string> slurmRoot(int hosts, const std::string& jobName) {
  // The hosts are listed by their names; rank 0 is on the first in all distributions but this one.
  const std::string distribution = variable("SLURM_DISTRIBUTION");
  if (distribution == "arbitrary") {
    return error(koloInvalidEnvironment,
                 "environment variable SLURM_DISTRIBUTION is \"{}\", so that rank 0 may be on any of {} hosts, and "
                 "KOLO_ROOT is not set, expected host:port of rank 0",
                 distribution, hosts);
  }
  const std::string list = variable("SLURM_STEP_NODELIST");
  const std::string host = firstHost(list);
  if (!host.empty()) return fmt::format("{}:{}", host, portFor(jobName));
  return error(koloInvalidEnvironment,
               "environment variable SLURM_STEP_NODELIST is \"{}\", expected the names of {} hosts", list, hosts);
}

Result<bool> readSlurm(LauncherJob& job) {
  const std::string step = variable("SLURM_STEP_ID");
  if (step.empty() || !variable("OMPI_COMM_WORLD_SIZE").empty() || !variable("MPI_LOCALNRANKS").empty()) return false;
  const Result<std::int64_t> stepNumber = settings::parseInteger(step);
  if (stepNumber.ok() && stepNumber.value() >= kFirstSpecialStep) return false;
  job.launcher = "slurm";
  const bool ofStep = !variable("SLURM_STEP_NUM_TASKS").empty();
  const char* const sizeName = ofStep ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  KOLO_TRY(readRanks("SLURM_PROCID", variable("SLURM_PROCID"), sizeName, variable(sizeName), job));
  job.jobName = fmt::format("{}.{}", variable("SLURM_JOB_ID"), step);
  const std::string nodes = variable("SLURM_STEP_NUM_NODES");
  int hosts = 1;
  if (!nodes.empty()) {
    KOLO_ASSIGN(hosts, wholeNumber("SLURM_STEP_NUM_NODES", nodes, 1, kMaxRanks, "the number of hosts"));
  }
  if (hosts == 1) {
    job.localRanks = job.ranks;
    return true;
  }
  if (job.root.empty()) {
    KOLO_ASSIGN(job.root, slurmRoot(hosts, job.jobName));
    job.rootFrom = "SLURM_STEP_NODELIST";
  }
  return true;
}

Result<bool> readOpenMpi(LauncherJob& job) {
  const std::string rank = variable("OMPI_COMM_WORLD_RANK");
  const std::string size = variable("OMPI_COMM_WORLD_SIZE");
  if (rank.empty() && size.empty()) return false;
  job.launcher = "openmpi";
  KOLO_TRY(readRanks("OMPI_COMM_WORLD_RANK", rank, "OMPI_COMM_WORLD_SIZE", size, job));
  KOLO_TRY(readLocalRanks("OMPI_COMM_WORLD_LOCAL_SIZE", job));
  for (const char* const name : {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}) {
    if (job.jobName.empty()) job.jobName = variable(name);
  }
  if (job.jobName.empty()) job.jobName = fallbackName(job.root, "");
  return true;
}

Result<bool> readMpich(LauncherJob& job) {
  const std::string rank = variable("PMI_RANK");
  const std::string size = variable("PMI_SIZE");
  if (rank.empty() && size.empty()) return false;
  job.launcher = "mpich";
  KOLO_TRY(readRanks("PMI_RANK", rank, "PMI_SIZE", size, job));
  KOLO_TRY(readLocalRanks("MPI_LOCALNRANKS", job));
  job.jobName = fallbackName(job.root, "hydra");
  return true;
}

struct Launcher {
  const char* rankVariable;
  const char* sizeVariable;
  Result<bool> (*read)(LauncherJob&);
};
constexpr Launcher kKolo{"KOLO_RANK", "KOLO_SIZE", readKolo};
constexpr Launcher kOthers[] = {{"RANK", "WORLD_SIZE", readTorchrun},
                                {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", readSlurm},
                                {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", readOpenMpi},
                                {"PMI_RANK", "PMI_SIZE", readMpich}};

// A launcher whose variables are there, and what they say, or why they cannot be read.
struct Found {
  const Launcher* launcher;
  LauncherJob job;
  Status fault;

  bool agreesWith(const Found& other) const {
    return fault.ok() && other.fault.ok() && job.rank == other.job.rank && job.ranks == other.job.ranks;
  }
  std::string said() const {
    const auto one = [](const char* name) {
      const std::string value = variable(name);
      return value.empty() ? fmt::format("no {}", name) : fmt::format("{}={}", name, value);
    };
    return fmt::format("{} and {} ({})", one(launcher->rankVariable), one(launcher->sizeVariable), job.launcher);
  }
  // How many processes had the variables before this one could set them: this one, its parent, and so on.
  int age() const {
    const std::string rank = variable(launcher->rankVariable);
    const char* const name = rank.empty() ? launcher->sizeVariable : launcher->rankVariable;
    return inheritedBy(name, variable(name));
  }
};

// Of launchers that may contradict each other the one that started this process. REQUIRES: there is one.
Result<const Found*> starterOf(const std::vector<Found>& found) {
  const Found& first = found.front();
  const auto agree = [](const Found& with) { return [&with](const Found& one) { return one.agreesWith(with); }; };
  if (found.size() == 1 || std::all_of(found.begin(), found.end(), agree(first))) return &first;
  std::vector<const Found*> youngest;
  int least = 0;
  for (const Found& one : found) {
    const int age = one.age();
    if (youngest.empty() || age < least) youngest.clear();
    if (youngest.empty()) least = age;
    if (age == least) youngest.push_back(&one);
  }
  const Found& chosen = *youngest.front();
  for (const Found* const one : youngest) {
    if (one == &chosen || one->agreesWith(chosen)) continue;
    return error(koloInvalidEnvironment,
                 "the environment has {}, and also {}, and which of them started this process cannot be told; expected "
                 "one launcher's variables: unset the others, or set KOLO_RANK and KOLO_SIZE",
                 chosen.said(), one->said());
  }
  if (&chosen != &first) {
    log::warn(
        "the environment has {}, but this process was started with {}, which is used; unset the former, or set "
        "KOLO_RANK and KOLO_SIZE",
        first.said(), chosen.said());
  }
  return &chosen;
}

// Whether its variables are there. known: what they need not say.
bool look(const Launcher& launcher, LauncherJob known, std::vector<Found>& found) {
  Found one{&launcher, std::move(known), {}};
  Result<bool> isThere = launcher.read(one.job);
  if (isThere.ok() && !isThere.value()) return false;
  if (!isThere.ok()) one.fault = isThere.status();
  found.push_back(std::move(one));
  return true;
}

// A script that mpirun or srun starts on each host may set RANK and WORLD_SIZE alone. What started it knows which ranks
// are on this host, or where they meet.
Found completed(const Found& one, const std::vector<Found>& others) {
  LauncherJob known;
  std::tie(known.root, known.rootFrom) = std::tie(one.job.root, one.job.rootFrom);
  for (const Found& other : others) {
    if (!other.agreesWith(one)) continue;
    if (known.localRanks == 0) known.localRanks = other.job.localRanks;
    if (known.root.empty()) std::tie(known.root, known.rootFrom) = std::tie(other.job.root, other.job.rootFrom);
  }
  std::vector<Found> again;
  (void)look(*one.launcher, std::move(known), again);
  return again.front();
}

// Kolo's own variables decide. But where a launcher started this process after they were set, they were perhaps meant
// for another one.
void warnIfStartedSince(const Found& own, const std::vector<Found>& others) {
  for (const Found& other : others) {
    if (!own.fault.ok() || !other.fault.ok() || other.agreesWith(own) || other.age() >= own.age()) continue;
    log::warn(
        "the environment has {}, which is used, but this process was started with {}; if that is the job, unset "
        "KOLO_RANK and KOLO_SIZE",
        own.said(), other.said());
    return;
  }
}

}  // namespace

Result<LauncherJob> readLauncher() {
  std::vector<Found> own, others;
  LauncherJob known;
  known.root = settings::text("KOLO_ROOT");
  for (const Launcher& launcher : kOthers) look(launcher, known, others);
  if (look(kKolo, known, own)) warnIfStartedSince(own.front(), others);
  const std::vector<Found>& found = own.empty() ? others : own;
  if (!found.empty()) {
    KOLO_ASSIGN(const Found* const chosen, starterOf(found));
    if (!chosen->fault.ok()) return chosen->fault;
    const Found whole = completed(*chosen, others);
    if (!whole.fault.ok()) return whole.fault;
    LauncherJob job = whole.job;
    job.jobName = job.launcher + " " + job.jobName;
    return job;
  }
  LauncherJob alone;
  alone.launcher = "none";
  alone.localRanks = 1;
  alone.jobName = fmt::format("none pid {} started {}", ::getpid(), startTime(::getpid()));
  return alone;
}

}  // namespace kolo::bootstrap
