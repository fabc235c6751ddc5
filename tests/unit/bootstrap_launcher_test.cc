// What launchers say, and how ranks meet.
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/settings.h"
#include "bootstrap/other_users.h"
#include "bootstrap/process_info.h"
#include "bootstrap/published.h"
#include "bootstrap_fixture.h"
#include "support/deadline.h"
#include "support/watchdog.h"

using namespace kolo;
using namespace kolo::bootstrap;
using namespace std::chrono_literals;

namespace {

// Sets variables for the length of a test; an empty value unsets.
using Variables = std::vector<std::pair<std::string, std::string>>;

class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const char* const name : {"KOLO_RANK",
                                   "KOLO_SIZE",
                                   "KOLO_ROOT",
                                   "KOLO_JOB",
                                   "KOLO_SECRET",
                                   "KOLO_INSECURE",
                                   "KOLO_INTERFACE",
                                   "KOLO_PORT_RANGE",
                                   "RANK",
                                   "WORLD_SIZE",
                                   "MASTER_ADDR",
                                   "MASTER_PORT",
                                   "LOCAL_WORLD_SIZE",
                                   "TORCHELASTIC_RUN_ID",
                                   "SLURM_STEP_ID",
                                   "SLURM_PROCID",
                                   "SLURM_NTASKS",
                                   "SLURM_STEP_NUM_TASKS",
                                   "SLURM_JOB_ID",
                                   "SLURM_STEP_NODELIST",
                                   "SLURM_STEP_NUM_NODES",
                                   "SLURM_DISTRIBUTION",
                                   "OMPI_COMM_WORLD_RANK",
                                   "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_SIZE",
                                   "OMPI_MCA_ess_base_jobid",
                                   "PMIX_NAMESPACE",
                                   "PMI_RANK",
                                   "PMI_SIZE",
                                   "MPI_LOCALNRANKS"}) {
      set(name, "");
    }
    for (const auto& [name, value] : variables) set(name, value);
    settings::reload();
  }
  ~Environment() {
    for (auto each = before_.rbegin(); each != before_.rend(); ++each) {
      each->second ? ::setenv(each->first.c_str(), each->second->c_str(), 1) : ::unsetenv(each->first.c_str());
    }
    settings::reload();
  }

 private:
  void set(const std::string& name, const std::string& value) {
    const char* const old = std::getenv(name.c_str());
    before_.emplace_back(name, old != nullptr ? std::optional<std::string>(old) : std::nullopt);
    value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char pattern[] = "/tmp/kolo-test-XXXXXX";
    REQUIRE(::mkdtemp(pattern) != nullptr);
    path = pattern;
  }
  ~TemporaryDirectory() { (void)std::system(("rm -rf " + path).c_str()); }
  std::string path;
};

std::vector<std::string> filesIn(const std::string& directory) {
  std::vector<std::string> names;
  if (DIR* const open = ::opendir(directory.c_str())) {
    while (const dirent* const each = ::readdir(open)) {
      if (each->d_name[0] != '.') names.push_back(directory + "/" + each->d_name);
    }
    ::closedir(open);
  }
  return names;
}

}  // namespace

TEST_CASE("each launcher's variables are understood", "[bootstrap]") {
  const auto read = [](const Variables& variables) {
    const Environment environment(variables);
    Result<LauncherJob> job = readLauncher();
    INFO(job.status().message());
    REQUIRE(job.ok());
    return job.take();
  };
  CHECK(read({}).launcher == "none");
  CHECK(read({}).ranks == 1);

  LauncherJob job =
      read({{"KOLO_RANK", "1"}, {"KOLO_SIZE", "4"}, {"KOLO_ROOT", "head:5000"}, {"RANK", "3"}, {"WORLD_SIZE", "9"}});
  CHECK(job.launcher == "kolo");
  CHECK(job.rank == 1);
  CHECK(job.ranks == 4);
  CHECK(job.root == "head:5000");
  CHECK(contains(job.jobName, "head:5000"));

  job = read({{"RANK", "3"},
              {"WORLD_SIZE", "8"},
              {"LOCAL_WORLD_SIZE", "4"},
              {"MASTER_ADDR", "node0"},
              {"MASTER_PORT", "29500"}});
  CHECK(job.launcher == "torchrun");
  CHECK(job.localRanks == 4);
  CHECK(job.root == "node0:29501");
  job = read({{"RANK", "3"},
              {"WORLD_SIZE", "4"},
              {"LOCAL_WORLD_SIZE", "4"},
              {"MASTER_ADDR", "node0"},
              {"MASTER_PORT", "29500"}});
  CHECK(job.root.empty());
  // What is enough to meet by on one host.
  CHECK(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).launcher == "torchrun");
  for (const std::pair<std::string, std::string>& name : Variables{{"MASTER_PORT", "29500"},
                                                                   {"KOLO_JOB", "mine"},
                                                                   {"TORCHELASTIC_RUN_ID", "mine"},
                                                                   {"KOLO_ROOT", "head:5000"}}) {
    INFO(name.first);
    CHECK(contains(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, name}).jobName, name.second));
  }

  const Variables slurm = {{"SLURM_STEP_ID", "2"},
                           {"SLURM_PROCID", "5"},
                           {"SLURM_NTASKS", "6"},
                           {"SLURM_JOB_ID", "99"},
                           {"SLURM_STEP_NODELIST", "gpu[07-09,12],x"},
                           {"SLURM_STEP_NUM_NODES", "5"}};
  job = read(slurm);
  CHECK(job.launcher == "slurm");
  CHECK(job.rank == 5);
  CHECK(contains(job.jobName, "99.2"));
  CHECK(job.root.starts_with("gpu07:"));
  job = read({{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "6"}});
  CHECK(job.launcher == "none");  // a batch script is not a step

  Variables mpi = {{"OMPI_COMM_WORLD_RANK", "0"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                   {"PMIX_NAMESPACE", "1910177793"}};
  mpi.insert(mpi.end(), slurm.begin(), slurm.end());
  job = read(mpi);
  CHECK(job.launcher == "openmpi");
  CHECK(job.ranks == 2);
  CHECK(contains(job.jobName, "1910177793"));

  job = read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}});
  CHECK(job.launcher == "mpich");
  CHECK(job.localRanks == 2);
  CHECK(contains(job.jobName, fmt::format("pid {} started", ::getppid())));
}

TEST_CASE(
    "launchers that contradict each other are an error that names both, if it cannot be told which started the process",
    "[bootstrap]") {
  const auto problem = [](const Variables& variables) {
    const Environment environment(variables);  // all set by this process itself
    return readLauncher().status().message();
  };
  const Variables openMpi = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  const auto with = [&](Variables others) {
    others.insert(others.end(), openMpi.begin(), openMpi.end());
    return problem(others);
  };
  for (const Variables& other :
       {Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, Variables{{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}},
        Variables{{"RANK", "1"}}, Variables{{"RANK", "one"}, {"WORLD_SIZE", "2"}}}) {
    const std::string said = with(other);
    INFO(other.front().first << ": " << said);
    CHECK(contains(said, other.front().first + "=" + other.front().second));
    CHECK(contains(said, "OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=2 (openmpi)"));
    CHECK(contains(said, "KOLO_RANK and KOLO_SIZE"));
  }
  CHECK(with({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}}) == "");
  CHECK(with({{"KOLO_RANK", "0"}, {"KOLO_SIZE", "1"}, {"RANK", "3"}, {"WORLD_SIZE", "4"}}) == "");  // Kolo's own decide
}

TEST_CASE("what the launcher does not say that counts comes from one that speaks of the same ranks", "[bootstrap]") {
  const auto read = [](Variables variables, const Variables& others) {
    variables.insert(variables.end(), others.begin(), others.end());
    const Environment environment(variables);
    Result<LauncherJob> job = readLauncher();
    INFO(job.status().message());
    REQUIRE(job.ok());
    return job.take();
  };
  const Variables openMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                             {"PMIX_NAMESPACE", "7"}};
  const Variables mpich = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}};
  const Variables slurm = {{"SLURM_STEP_ID", "2"}, {"SLURM_PROCID", "1"},          {"SLURM_NTASKS", "4"},
                           {"SLURM_JOB_ID", "99"}, {"SLURM_STEP_NODELIST", "a,b"}, {"SLURM_STEP_NUM_NODES", "2"}};
  const Variables torch = {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
  for (const Variables& own : {torch, Variables{{"KOLO_RANK", "1"}, {"KOLO_SIZE", "4"}}}) {
    for (const Variables& other : {openMpi, mpich}) {
      const LauncherJob job = read(own, other);
      CHECK(job.localRanks == 2);
      CHECK(job.root == (job.launcher == "torchrun" ? "node0:29501" : ""));
    }
    CHECK(read(own, slurm).root.starts_with("a:"));
    CHECK(read(own, {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "4"}}).localRanks == 4);
    for (const Variables& other : {openMpi, mpich, slurm}) {
      Variables both = own;
      both.insert(both.end(), other.begin(), other.end());
      const Environment environment(both);
      CHECK(createUniqueId().status().code() == koloInvalidEnvironment);
    }
  }
  CHECK(read({{"KOLO_RANK", "0"}, {"KOLO_SIZE", "4"}}, openMpi).localRanks == 0);  // of another rank
}

TEST_CASE("what a process has set itself, its parent has not", "[bootstrap]") {
  const Environment environment(Variables{{"RANK", "a value that nobody else has"}});
  CHECK(inheritedBy("RANK", "a value that nobody else has") == 0);
  const char* const path = std::getenv("PATH");
  REQUIRE(path != nullptr);
  CHECK(inheritedBy("PATH", path) >= 1);
  CHECK(inheritedBy("PATH", std::string(path) + ":") == 0);
  CHECK(inheritedBy("ATH", path) == 0);
}

TEST_CASE("where ranks meet by a launcher's word is a port that the user allows", "[bootstrap]") {
  const auto portOf = [](Variables variables, const std::string& range) {
    variables.emplace_back("KOLO_PORT_RANGE", range);
    const Environment environment(variables);
    const Result<LauncherJob> job = readLauncher();
    REQUIRE(job.ok());
    return std::stoi(job.value().root.substr(job.value().root.rfind(':') + 1));
  };
  const Variables torchrun = {{"RANK", "3"},
                              {"WORLD_SIZE", "8"},
                              {"LOCAL_WORLD_SIZE", "4"},
                              {"MASTER_ADDR", "node0"},
                              {"MASTER_PORT", "29500"}};
  CHECK(portOf(torchrun, "") == 29501);
  CHECK(portOf(torchrun, "29000-30000") == 29501);
  CHECK(portOf(torchrun, "29499-29500") == 29499);  // not PyTorch's own
  CHECK(portOf(torchrun, "17000-17001") / 2 == 8500);
  const Variables slurm = {{"SLURM_STEP_ID", "2"}, {"SLURM_PROCID", "5"},          {"SLURM_NTASKS", "6"},
                           {"SLURM_JOB_ID", "99"}, {"SLURM_STEP_NODELIST", "a,b"}, {"SLURM_STEP_NUM_NODES", "2"}};
  CHECK(portOf(slurm, "") >= 17000);
  CHECK(portOf(slurm, "40000-40001") / 2 == 20000);
}

TEST_CASE("listeners take the ports of a range, each another one, and say when there is none left", "[bootstrap]") {
  const int first = freePorts(3);
  const std::string range = fmt::format("{}-{}", first, first + 2);
  const Environment environment(Variables{{"KOLO_PORT_RANGE", range}});
  std::uint16_t chosen[3] = {};
  std::vector<Socket> listeners;
  for (std::uint16_t& port : chosen) {
    Result<Socket> listener = listenOn({}, 0, port);
    REQUIRE(listener.status().message() == "");
    listeners.push_back(listener.take());
  }
  std::sort(std::begin(chosen), std::end(chosen));
  for (int i = 0; i < 3; ++i) CHECK(chosen[i] == first + i);
  std::uint16_t none = 0;
  const Status full = listenOn({}, 0, none).status();
  CHECK(full.code() == koloSystemError);
  CHECK(contains(full.message(), "all 3 ports of KOLO_PORT_RANGE=" + range));
}

TEST_CASE("half-set and malformed launcher variables are named", "[bootstrap]") {
  struct Case {
    Variables variables;
    std::string named;
  };
  const std::vector<Case> cases = {
      {{{"KOLO_RANK", "x"}, {"KOLO_SIZE", "2"}}, "KOLO_RANK is \"x\""},
      {{{"KOLO_RANK", "2"}, {"KOLO_SIZE", "2"}}, "KOLO_RANK is \"2\""},
      {{{"KOLO_RANK", "-1"}, {"KOLO_SIZE", "2"}}, "KOLO_RANK is \"-1\""},
      {{{"KOLO_RANK", "0"}, {"KOLO_SIZE", "0"}}, "KOLO_SIZE is \"0\""},
      {{{"KOLO_SIZE", "2"}}, "KOLO_RANK is not set"},
      {{{"RANK", "1"}}, "WORLD_SIZE is not set"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}}, "MASTER_PORT is \"99999\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR is not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}}, "MASTER_PORT is not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}},
       "MASTER_ADDR is not set"},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE is not set"},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "two"}}, "PMI_SIZE is \"two\""},
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}}, "SLURM_NTASKS is not set"},
  };
  for (const Case& each : cases) {
    const Environment environment(each.variables);
    const Status status = readLauncher().status();
    CHECK(status.code() == koloInvalidEnvironment);
    INFO(status.message());
    CHECK(contains(status.message(), each.named));
    CHECK(contains(status.message(), "expected"));
  }
}

namespace {

std::vector<Status> meet(LauncherJob job, int timeoutMs = kPatienceMs) {
  std::vector<Status> statuses(static_cast<std::size_t>(job.ranks));
  std::vector<ControlPtr> controls(statuses.size());
  onThreads(job.ranks, [&](int rank) {
    LauncherJob mine = job;
    mine.rank = rank;
    const Result<koloUniqueId> id = rendezvous(mine, timeoutMs);
    statuses[static_cast<std::size_t>(rank)] = id.status();
    if (!id.ok()) return;
    Result<ControlPtr> joined = join(id.value(), rank, job.ranks, timeoutMs);
    statuses[static_cast<std::size_t>(rank)] = joined.status();
    if (joined.ok()) controls[static_cast<std::size_t>(rank)] = joined.take();
  });
  leaveAll(controls);
  return statuses;
}

void requireAllOk(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) {
    INFO(status.message());
    CHECK(status.ok());
  }
}

}  // namespace

TEST_CASE("ranks of one host meet through a private file, several times over", "[bootstrap][threads]") {
  const TemporaryDirectory directory;
  const Environment environment(Variables{{"XDG_RUNTIME_DIR", directory.path}});
  LauncherJob job;
  job.ranks = 4;
  job.jobName = "several times " + directory.path;
  for (int i = 0; i < 3; ++i) requireAllOk(meet(job));
  const std::string where = fmt::format("{}/kolo-{}", directory.path, ::geteuid());
  struct stat status {};
  REQUIRE(::stat(where.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  CHECK(filesIn(where).empty());
}

TEST_CASE("what a crashed job left behind does not mislead the next one of its name", "[bootstrap]") {
  const TemporaryDirectory directory;
  const Environment environment(Variables{{"XDG_RUNTIME_DIR", directory.path}});
  LauncherJob job;
  job.ranks = 2;
  job.jobName = "stale " + directory.path;
  REQUIRE(rendezvous(job, 1000).ok());  // published, never joined
  const std::vector<std::string> files = filesIn(fmt::format("{}/kolo-{}", directory.path, ::geteuid()));
  REQUIRE(files.size() == 1);
  {
    // As if the process that made it had died: no process has this start time.
    std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(9 + 4 + 7);
    file.put('\x7f');
  }
  LauncherJob other = job;
  other.rank = 1;
  const Status alone = rendezvous(other, 200).status();
  CHECK(alone.code() == koloTimeout);
  CHECK(contains(alone.message(), "which is dead"));
  CHECK(contains(alone.message(), "KOLO_INIT_TIMEOUT_MS"));
  requireAllOk(meet(job));
}

TEST_CASE("what a job of another version left behind in another container keeps no rank from waiting", "[bootstrap]") {
  const TemporaryDirectory directory;
  const Environment environment(Variables{{"XDG_RUNTIME_DIR", directory.path}});
  LauncherJob job;
  job.ranks = 2;
  job.jobName = "older " + directory.path;
  REQUIRE(rendezvous(job, 1000).ok());
  const std::vector<std::string> files = filesIn(fmt::format("{}/kolo-{}", directory.path, ::geteuid()));
  REQUIRE(files.size() == 1);
  IdContents older = contentsOf(newId());
  older.format = kIdFormat - 1;
  REQUIRE(publish(files[0], encodeId(older)).ok());
  {
    std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(9 + 4 + 8 + 7);  // no namespaces have this number
    file.put('\x7f');
  }
  LauncherJob other = job;
  other.rank = 1;
  const Status alone = rendezvous(other, 200).status();
  INFO(alone.message());
  CHECK(alone.code() == koloTimeout);
  CHECK(contains(alone.message(), fmt::format("(format {})", kIdFormat - 1)));
  requireAllOk(meet(job));
}

TEST_CASE("a rendezvous directory of others is refused", "[bootstrap]") {
  const TemporaryDirectory directory;
  const Environment environment(Variables{{"XDG_RUNTIME_DIR", directory.path}});
  const std::string where = fmt::format("{}/kolo-{}", directory.path, ::geteuid());
  SECTION("readable by all") { REQUIRE((::mkdir(where.c_str(), 0700) == 0 && ::chmod(where.c_str(), 0755) == 0)); }
  SECTION("a symbolic link") { REQUIRE(::symlink("/tmp", where.c_str()) == 0); }
  SECTION("a file") { std::ofstream(where) << "x"; }
  LauncherJob job;
  job.ranks = 2;
  job.jobName = "refused";
  const Status status = rendezvous(job, 200).status();
  CHECK(status.code() == koloSystemError);
  CHECK(contains(status.message(), where));
}

TEST_CASE("a rendezvous directory whose name another user has taken is passed over", "[bootstrap]") {
  if (::geteuid() != 0) return;  // it takes root to play another user
  const TemporaryDirectory directory;
  const Environment environment(Variables{{"XDG_RUNTIME_DIR", directory.path}});
  const std::string where = fmt::format("{}/kolo-{}", directory.path, ::geteuid());
  REQUIRE((::mkdir(where.c_str(), 0777) == 0 && ::chown(where.c_str(), 65534, 65534) == 0));
  REQUIRE((::symlink("/tmp", (where + "-1").c_str()) == 0 && ::lchown((where + "-1").c_str(), 65534, 65534) == 0));
  LauncherJob job;
  job.ranks = 3;
  job.jobName = "squatted";
  requireAllOk(meet(job));
  CHECK(filesIn(where).empty());
  CHECK(privateDirectory().value() == where + "-2");

  // Who has taken a name may give it up between two ranks.
  job.ranks = 2;
  job.jobName = "squatted for a while";
  const Result<koloUniqueId> published = rendezvous(job, kPatienceMs);
  REQUIRE(published.ok());
  REQUIRE(::rmdir(where.c_str()) == 0);
  job.rank = 1;
  const Result<koloUniqueId> found = rendezvous(job, kPatienceMs);
  INFO(found.status().message());
  REQUIRE(found.ok());
  CHECK(contentsOf(found.value()).port == contentsOf(published.value()).port);
  leaveAll(joinAll(found.value(), 2));
}

TEST_CASE("ranks of another user are seen by any name of their directory", "[bootstrap]") {
  if (::geteuid() != 0) return;  // it takes root to play another user
  const TemporaryDirectory directory;
  const std::string theirs = directory.path + "/kolo-65533-2";
  REQUIRE((::mkdir(theirs.c_str(), 0700) == 0 && ::chown(theirs.c_str(), 65533, 65533) == 0));
  const std::string said = explainUsers(directory.path + "/kolo-0", "job.id", 60s);
  CHECK(contains(said, theirs));
  CHECK(contains(said, "65533"));
}

TEST_CASE("ranks of several hosts meet at the root, several times over", "[bootstrap][threads]") {
  std::uint16_t port = 0;
  { Result<Socket> probe = listenOn({}, 0, port); }
  const Environment environment(Variables{{"KOLO_SECRET", "correct horse battery staple"}});
  LauncherJob job;
  job.ranks = 3;
  job.jobName = "root";
  job.root = fmt::format("localhost:{}", port);
  for (int i = 0; i < 3; ++i) requireAllOk(meet(job));
}

TEST_CASE("a root that does not resolve, or is no host and port, is named", "[bootstrap]") {
  const Environment environment(Variables{{"KOLO_SECRET", "x"}});
  LauncherJob job;
  job.ranks = 2;
  job.rank = 1;
  job.root = "no-such-host.invalid:5000";
  job.rootFrom = "MASTER_ADDR";
  const auto since = Clock::now();
  const Status unresolved = rendezvous(job, 1000).status();
  CHECK(unresolved.code() == koloUnreachable);
  CHECK(contains(unresolved.message(), "no-such-host.invalid"));
  CHECK(contains(unresolved.message(), "by MASTER_ADDR"));
  CHECK(contains(unresolved.message(), "KOLO_INIT_TIMEOUT_MS"));
  CHECK_WITHIN(5s, since);
  job.root = "head";
  CHECK(rendezvous(job, 1000).status().code() == koloInvalidEnvironment);
  job.root.clear();
  job.localRanks = 1;
  const Status spread = rendezvous(job, 1000).status();
  CHECK(spread.code() == koloInvalidEnvironment);
  CHECK(contains(spread.message(), "KOLO_ROOT"));
}

TEST_CASE("a job that other hosts reach is not started without a secret", "[bootstrap]") {
  std::uint16_t port = 0;
  { Result<Socket> probe = listenOn({}, 0, port); }
  LauncherJob job;
  job.ranks = 2;
  job.jobName = "open";
  job.root = fmt::format("0.0.0.0:{}", port);  // which no other host reaches, but that takes a system to know
  const Variables several = {{"RANK", "0"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}};
  {
    const Environment environment(several);
    for (const Status& status : {rendezvous(job, 1000).status(), createUniqueId().status()}) {
      CHECK(status.code() == koloInvalidEnvironment);
      for (const char* const text : {"KOLO_SECRET is not set", "/dev/urandom", "KOLO_INSECURE=1"})
        CHECK(contains(status.message(), text));
    }
  }
  for (const char* const name : {"KOLO_SECRET", "KOLO_INSECURE"}) {
    Variables allowed = several;
    allowed.emplace_back(name, "1");
    const Environment environment(allowed);
    CHECK(createUniqueId().status().message() == "");
    requireAllOk(meet(job));
  }
}

TEST_CASE("with KOLO_SECRET a unique id carries no secret", "[bootstrap]") {
  koloUniqueId id{};
  Secret secret{};
  {
    const Environment environment(Variables{{"KOLO_SECRET", "correct horse battery staple"}});
    id = newId();
    secret = contentsOf(id).secret;
    const std::string_view hidden(reinterpret_cast<const char*>(secret.data()) + kTagBytes, kSecretBytes - kTagBytes);
    CHECK(std::string_view(id.internal, sizeof id.internal).find(hidden) == std::string_view::npos);
    leaveAll(joinAll(id, 2));
  }
  {
    const Environment environment(Variables{});
    const Status without = join(id, 0, 1, 1000).status();
    CHECK(without.code() == koloInvalidEnvironment);
    CHECK(contains(without.message(), "KOLO_SECRET is not set"));
  }
  const Environment environment(Variables{{"KOLO_SECRET", "another"}});
  CHECK(contentsOf(id).secret != secret);
  CHECK(tagOf(contentsOf(id).secret) == tagOf(secret));
}

TEST_CASE("a rank that lacks the secret says so, and the ranks that wait are told that somebody came without it",
          "[bootstrap]") {
  const Variables given = {{"KOLO_SECRET", "correct horse battery staple"}};
  koloUniqueId id{};
  {
    const Environment environment(given);
    id = newId();
  }
  {
    const Environment environment(Variables{});
    const Status lacking = join(id, 1, 2, kPatienceMs).status();
    CHECK(lacking.code() == koloInvalidEnvironment);
    CHECK(contains(lacking.message(), "KOLO_SECRET is not set"));
    CHECK(contains(lacking.message(), "-x KOLO_SECRET"));
  }
  const Environment environment(given);
  const Status waited = join(id, 0, 2, 2000).status();
  CHECK(waited.code() == koloTimeout);
  CHECK(contains(waited.message(), "KOLO_SECRET is not set"));
}

TEST_CASE("a job of one host listens where no other host reaches it, unless the user says otherwise", "[bootstrap]") {
  const auto isReachable = [](const koloUniqueId& id) {
    const std::vector<Place> places = contentsOf(id).places;
    return std::any_of(places.begin(), places.end(), [](const Place& place) { return !place.isLoopback(); });
  };
  const auto idOf = [](const char* localRanks, const char* interface) {
    const Environment environment(Variables{{"KOLO_INTERFACE", interface},
                                            {"RANK", "0"},
                                            {"WORLD_SIZE", "2"},
                                            {"LOCAL_WORLD_SIZE", localRanks},
                                            {"MASTER_ADDR", "localhost"},
                                            {"MASTER_PORT", "29500"}});
    return newId();
  };
  std::vector<Place> own;
  REQUIRE(network::ownPlaces(&own) == 0);
  const bool hasOthers = std::any_of(own.begin(), own.end(), [](const Place& place) { return !place.isLoopback(); });
  const auto localId = [](const char* interface) {
    const Environment environment(Variables{{"KOLO_INTERFACE", interface}});
    const Result<koloUniqueId> id = createUniqueId(true);
    REQUIRE(id.ok());
    return id.value();
  };
  CHECK_FALSE(isReachable(localId("")));
  CHECK(isReachable(localId("any")) == hasOthers);
  CHECK(isReachable(idOf("2", "")) == hasOthers);  // the launcher has not said who gets the id
}

TEST_CASE("a root by the host's name needs no secret where all ranks are on it, and no other host reaches it",
          "[bootstrap]") {
  std::uint16_t port = 0;
  { Result<Socket> probe = listenOn({}, 0, port); }
  const Environment environment(Variables{});
  LauncherJob job;
  job.ranks = 2;
  job.localRanks = 2;
  job.jobName = "by name";
  job.root = fmt::format("some-name.invalid:{}", port);
  requireAllOk(meet(job));
  job.localRanks = 0;
  CHECK(rendezvous(job, 1000).status().code() == koloInvalidEnvironment);
}

TEST_CASE("says what KOLO_JOB is", "[.child]") {
  settings::reload();
  std::printf("KOLO_JOB is \"%s\"\n%s\n", settings::text("KOLO_JOB").c_str(), settings::validate().message().c_str());
}

TEST_CASE("a program with more rights than its caller takes no settings from its caller", "[bootstrap][optimised]") {
  if (kolo::test::kSanitized) return;  // a sanitizer does not read its options in such a program
  const TemporaryDirectory directory;
  struct statvfs mount {};
  REQUIRE(::statvfs(directory.path.c_str(), &mount) == 0);
  const bool mayHaveRights = (mount.f_flag & ST_NOSUID) == 0 && ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0;
  if (::geteuid() != 0 || !mayHaveRights) return;  // it takes root to make such a program
  const std::string program = directory.path + "/program", out = directory.path + "/out";
  const auto said = [&] {
    const std::string command =
        "setpriv --reuid=65533 --regid=65533 --clear-groups env KOLO_JOB=theirs "
        "KOLO_SECRET=theirs " +
        program + " 'says what KOLO_JOB is' > " + out + " 2>&1";
    const int ended = std::system(command.c_str());
    std::ifstream file(out);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    INFO(text);
    CHECK(ended == 0);
    return text;
  };
  REQUIRE(::chmod(directory.path.c_str(), 0755) == 0);
  REQUIRE(std::system(("cp /proc/" + std::to_string(::getpid()) + "/exe " + program).c_str()) == 0);
  const std::string usual = said();
  CHECK(contains(usual, "KOLO_JOB is \"theirs\""));
  CHECK_FALSE(contains(usual, "not used"));
  REQUIRE((::chown(program.c_str(), 65534, 65534) == 0 && ::chmod(program.c_str(), 04755) == 0));
  const std::string withRights = said();
  CHECK(contains(withRights, "KOLO_JOB is \"\""));
  CHECK(contains(withRights, "KOLO_JOB: set, but not used"));
  CHECK(contains(withRights, "environment variable KOLO_SECRET: set, but not used"));
}
