// kolo-perf and kolo-info as their users meet them: what they refuse, what they say, and how they end.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "support/deadline.h"

using namespace kolo::test;

namespace {

// arguments: the program's path, its arguments; "> FILE" as the last of them redirects its output.
int runProgram(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    if (argument.rfind("> ", 0) == 0) {
      MUST(freopen(argument.c_str() + 2, "w", stdout) != nullptr);
    } else {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
  }
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return 127;
}
KOLO_ROLE(runProgram);

// The suite's runner says where the programs are; without it there is nothing to test.
class Program {
 public:
  explicit Program(const char* variable) : path_(std::getenv(variable)) {
    if (path_ == nullptr) WARN("skipped: " << variable << " is not set, expected a path");
  }
  explicit operator bool() const { return path_ != nullptr; }

  Process start(const std::vector<std::string>& arguments, const Environment& environment = {}) const {
    std::vector<std::string> words = {path_};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return {"runProgram", words, environment};
  }
  Ended run(const std::vector<std::string>& arguments, const Environment& environment = {}) const {
    return start(arguments, environment).wait(kPatience);
  }
  // Ends with `status`, and says one line with these words.
  void expectRefusal(int status, const std::vector<std::string>& arguments, const std::vector<const char*>& words,
                     const Environment& environment = {}) const {
    const Ended ended = run(arguments, environment);
    std::string all;
    for (const std::string& argument : arguments) all += argument + " ";
    INFO(all << ": status " << ended.status << "\n" << ended.output);
    CHECK(ended.exitedWith(status));
    CHECK(std::count(ended.output.begin(), ended.output.end(), '\n') == 1);
    for (const char* word : words) CHECK(ended.output.find(word) != std::string::npos);
  }

 private:
  const char* path_;
};

int countOf(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("kolo-perf refuses what makes no sense, in one line, before it starts ranks", "[optimised]") {
  const Program perf("KOLO_TEST_PERF");
  if (!perf) return;
  const auto refuses = [&](const std::vector<std::string>& arguments, const std::vector<const char*>& words) {
    perf.expectRefusal(2, arguments, words);
  };
  refuses({"--ranks", "200000"}, {"--ranks", "200000", "131072"});
  refuses({"--threads", "--ranks", "0"}, {"--ranks", "0"});
  refuses({"barrier", "-w", "-1"}, {"warmup", "-1"});
  refuses({"-n", "abc"}, {"\"abc\"", "not a whole number"});
  refuses({"-c", "-1"}, {"--check", "-1"});
  refuses({"--sizes", "8", "-b", "16"}, {"--sizes", "--minbytes"});
  refuses({"-i", "8", "-f", "4"}, {"--stepbytes", "--stepfactor"});
  refuses({"-i", "0"}, {"--stepbytes"});
  refuses({"--sizes", ""}, {"--sizes", "empty"});
  refuses({"--json", ""}, {"--json", "empty"});
  refuses({"-d", "int8,,half"}, {"int8,,half", "empty"});
  refuses({"-d", "float31"}, {"float31", "bfloat16", "half"});
  refuses({"all_reduce", "--algorithm", "rong"}, {"rong", "biring"});
  refuses({"all_reduce", "--algorithm", "reduce:tree"}, {"reduce:tree", "not among"});
  refuses({"all_reduce", "reduce", "--ranks", "2", "-r", "2"}, {"--root 2", "0 to 1"});
  refuses({"all_reduce", "-d", "float32", "-o", "bit_xor"}, {"nothing to measure"});
  refuses({"send_recv", "--in-place"}, {"nothing to measure", "in place"});
  refuses({"all_reduce", "-e", "900P"}, {"900P"});
  refuses({"all_reduce", "--sizes", "100T"}, {"100 TiB", "memory", "machine"});
  refuses({"barrier", "--json", "/nonexistent/x"}, {"/nonexistent/x"});
  const std::string path = "/tmp/kolo-test-" + std::to_string(getpid());
  refuses({"barrier", "--json", path, "--csv", "/tmp/.." + path}, {path.c_str(), "one file"});
  unlink(path.c_str());
}

TEST_CASE("kolo-perf takes what it need not refuse, and notes an algorithm that does not fit once", "[optimised]") {
  const Program perf("KOLO_TEST_PERF");
  if (!perf) return;
  const Ended fits = perf.run({"all_reduce", "barrier", "--ranks", "2", "-r", "99", "-c", "3", "-n", "5", "--sizes",
                               "8,1K", "--algorithm", "all_reduce:ring"});
  INFO(fits.output);
  CHECK(fits.exitedWith(0));
  CHECK(fits.output.find("Wrong values: 0 OK") != std::string::npos);
  CHECK(countOf(fits.output, " ring\n") == 2);
  CHECK(fits.output.find("does not fit") == std::string::npos);
  const Ended other =
      perf.run({"all_reduce", "--ranks", "2", "-n", "5", "--sizes", "8,16,1K", "--algorithm", "pairwise"});
  INFO(other.output);
  CHECK(other.exitedWith(0));
  CHECK(countOf(other.output, "# all_reduce of 8 bytes: pairwise does not fit, measured ") == 1);
  CHECK(countOf(other.output, "does not fit") == 1);
}

namespace {

// A file in the temporary directory, for as long as this lives.
class TextFile {
 public:
  explicit TextFile(const std::string& text)
      : path_("/tmp/kolo-tools-test-" + std::to_string(getpid()) + "-" + std::to_string(++made_)) {
    std::ofstream(path_) << text;
  }
  ~TextFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  static inline int made_ = 0;
  std::string path_;
};

}  // namespace

TEST_CASE("kolo-perf measures and verifies lists of tensors, in buckets", "[optimised]") {
  const Program perf("KOLO_TEST_PERF");
  if (!perf) return;
  const TextFile tensors("7 float32\n\n1000 float32\n20000 bfloat16\n1 int8\n30011 float64\n"), csv("");
  for (const char* const ranks : {"1", "2", "3"}) {
    const Ended ended = perf.run({"--list", tensors.path(), "--caps", "4K,1M", "--ranks", ranks, "-n", "2", "--buffers",
                                  "registered,plain", "--csv", csv.path()});
    INFO(ranks << " ranks: status " << ended.status << "\n" << ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(ended.output.find("# Wrong values: 0 OK") != std::string::npos);
    for (const char* const word : {"cap 4 KiB: 4 buckets", "cap 1 MiB: 1 bucket ", "all_reduce", "all_gather",
                                   "reduce_scatter", "mixed", "list us", "packed us", "single us"})
      CHECK(ended.output.find(word) != std::string::npos);
    std::ifstream lines(csv.path());
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) CHECK(std::count(line.begin(), line.end(), ',') == 10);
    CHECK(count == 1 + 3 * 2 * 2 * 3);  // collectives, caps, buffers, ways
  }
  const Ended threads = perf.run({"all_gather", "--list", tensors.path(), "--ranks", "2", "-n", "2", "--threads"});
  CHECK(threads.exitedWith(0));
  CHECK(countOf(threads.output, "  all_gather ") == 3);  // the caps
}

TEST_CASE("kolo-perf measures and verifies arrays along their axes", "[optimised]") {
  const Program perf("KOLO_TEST_PERF");
  if (!perf) return;
  for (const char* const ranks : {"1", "2", "3"}) {
    const Ended ended = perf.run({"--axis", "0,1,2", "--shape", "5x7,16x1x33,2", "--ranks", ranks, "-n", "2", "-d",
                                  "float32,int8", "--buffers", "registered,plain"});
    INFO(ranks << " ranks: status " << ended.status << "\n" << ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(ended.output.find("# Wrong values: 0 OK") != std::string::npos);
    // Six pairs of a shape and an axis; the array of one dimension has no all-to-all.
    CHECK(countOf(ended.output, " axis ") >= 2 * 2 * (4 * 6 + 5));
    for (const char* const word : {"16x1x33 axis 2", "all_to_all", "gather", "scatter", "axis us", "copies us", "int8"})
      CHECK(ended.output.find(word) != std::string::npos);
  }
}

TEST_CASE("kolo-perf refuses lists and axes that cannot be measured", "[optimised]") {
  const Program perf("KOLO_TEST_PERF");
  if (!perf) return;
  const TextFile good("8 float32\n"), empty(""), wrong("8 float32\n9 floaty 3\n"), unsummed("8 float31\n"),
      huge("99999999999 float64\n");
  perf.expectRefusal(2, {"--list", "/nonexistent"}, {"--list", "/nonexistent"});
  perf.expectRefusal(2, {"--list", empty.path()}, {"no tensors", "elements and datatype"});
  perf.expectRefusal(2, {"--list", wrong.path()}, {"line 2", "9 floaty 3", "elements and datatype"});
  perf.expectRefusal(2, {"--list", unsummed.path()}, {"float31"});
  perf.expectRefusal(2, {"--list", huge.path()}, {"GiB", "memory"});
  perf.expectRefusal(2, {"broadcast", "--list", good.path()}, {"--list", "all_reduce", "broadcast"});
  perf.expectRefusal(2, {"--list", good.path(), "--axis", "0"}, {"--list", "--axis"});
  perf.expectRefusal(2, {"--list", good.path(), "-d", "int8"}, {"--list", "--datatype"});
  perf.expectRefusal(2, {"--list", good.path(), "--html", "/tmp/x.html"}, {"--list", "--html"});
  perf.expectRefusal(2, {"--caps", "1M"}, {"--caps", "--list"});
  perf.expectRefusal(2, {"--axis", "2"}, {"--axis", "axis 2"});
  perf.expectRefusal(2, {"--axis", "x"}, {"--axis", "\"x\""});
  perf.expectRefusal(2, {"--axis", "0", "--shape", "3x"}, {"--shape", "\"3x\"", "64x1024"});
  perf.expectRefusal(2, {"--axis", "0", "--shape", "0x4"}, {"--shape", "\"0x4\""});
  perf.expectRefusal(2, {"--axis", "0", "--shape", "1000000x1000000"}, {"--shape", "memory"});
  perf.expectRefusal(2, {"--axis", "0", "--shape", "1x1x1x1x1x1x1x1x1"}, {"9 dimensions", "8"});
  perf.expectRefusal(2, {"gather", "--axis", "0", "-r", "2", "--ranks", "2"}, {"--root 2"});
  perf.expectRefusal(2, {"barrier", "--axis", "0"}, {"--axis", "barrier"});
}

TEST_CASE("kolo-perf measures and verifies what lies in the memory of GPUs", "[optimised]") {
  const Program perf("KOLO_TEST_PERF_ON_MOCK");  // two devices
  if (!perf) return;
  const auto run = [&](std::vector<std::string> arguments, const std::vector<const char*>& words,
                       const Environment& environment = {}) {
    arguments.insert(arguments.end(), {"-n", "5", "-w", "1"});
    const Ended ended = perf.run(arguments, environment);
    INFO("status " << ended.status << "\n" << ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(ended.output.find("Wrong values: 0 OK") != std::string::npos);
    for (const char* word : words) CHECK(ended.output.find(word) != std::string::npos);
  };
  // All collectives, each also with a length that nothing divides.
  run({"--threads", "--gpus", "all", "--sizes", "8,1003,40K", "--buffers", "registered,plain", "-r", "1"},
      {"GPU 0 (Mock GPU): 0; GPU 1 (Mock GPU): 1", "transport p2p"});
  run({"--threads", "--gpus", "0", "--ranks", "3", "--sizes", "1003", "--in-place"}, {"GPU 0 (Mock GPU): 0, 1, 2"});
  run({"--gpus", "1,0", "--ranks", "3", "--sizes", "1003", "-d", "int8,float64", "all_reduce", "all_to_all"},
      {"GPU 0 (Mock GPU): 1; GPU 1 (Mock GPU): 0, 2"});
  run({"--threads", "--gpus", "all", "--resident", "all_reduce", "--sizes", "1003"}, {"resident kernels"});
  run({"--threads", "--gpus", "0", "--ranks", "2", "--resident", "--sizes", "1003"},
      {"GPU 0 (Mock GPU): 0, 1; resident kernels"});
  // A rank that frees or allocates waits for what the others have launched on its device.
  for (int i = 0; i < 20; ++i) {
    run({"--threads", "--gpus", "0", "--ranks", "2", "all_reduce", "--sizes", "8", "--buffers", "registered,plain",
         "--timeout", "20"},
        {});
  }
  // The second rank of its host, as a launcher says.
  run({"--gpus", "all", "broadcast", "--sizes", "8"}, {"GPU 1 (Mock GPU): 0\n"},
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
}

TEST_CASE("kolo-perf finds wrong values in the memory of GPUs", "[optimised]") {
  const Program perf("KOLO_TEST_PERF_ON_MOCK");
  if (!perf) return;
  for (const char* inPlace : {"", "--in-place"}) {
    std::vector<std::string> arguments = {"--threads", "--gpus", "all", "all_reduce", "--sizes", "40K", "-n", "5"};
    if (*inPlace != '\0') arguments.emplace_back(inPlace);
    const Ended ended = perf.run(arguments, {{"KOLO_TEST_SPOILED", "40000"}});
    INFO(ended.output);
    CHECK(ended.exitedWith(1));
    CHECK(ended.output.find("Wrong values: 0 OK") == std::string::npos);
  }
}

TEST_CASE("kolo-perf refuses GPUs that there are not", "[optimised]") {
  const Program mocked("KOLO_TEST_PERF_ON_MOCK"), perf("KOLO_TEST_PERF");
  if (mocked) {
    mocked.expectRefusal(2, {"--gpus", "0,2"}, {"no device 2", "0 to 1"});
    mocked.expectRefusal(2, {"--gpus", "0,x"}, {"--gpus", "\"x\""});
    mocked.expectRefusal(2, {"--gpus", "-1"}, {"--gpus", "-1"});
    mocked.expectRefusal(2, {"--gpus", "all", "all_reduce", "--sizes", "100T"}, {"100 TiB", "GPU 0's memory"});
  }
  if (!perf) return;
  perf.expectRefusal(2, {"--resident"}, {"--resident", "--gpus"});
  perf.expectRefusal(2, {"--gpus", ""}, {"--gpus", "empty"});
}

TEST_CASE("kolo-perf ends all ranks at once when it is interrupted, also while it starts them", "[optimised]") {
  const Program perf("KOLO_TEST_PERF");
  if (!perf) return;
  for (const int ms : {5, 15, -1}) {  // -1: when all ranks are there
    Process process = perf.start({"barrier", "--ranks", "12", "-n", "1000000000"});
    if (ms < 0) REQUIRE(process.waitForLine("(elements)  ", kPatience));
    else usleep(static_cast<useconds_t>(ms) * 1000);
    process.signal(SIGINT);
    const auto begin = std::chrono::steady_clock::now();
    const Ended ended = process.wait(kPatience);  // until nobody has its output open any more: until no rank is left
    INFO(ms << " ms, status " << ended.status << "\n" << ended.output);
    CHECK((ended.exitedWith(2) || (ms >= 0 && ended.killedBy(SIGINT))));  // killed: before it looks for signals
    CHECK_WITHIN(5s * kSlowness, begin);
  }
}

TEST_CASE("kolo-perf says which rank died, and not what the others make of it", "[optimised]") {
  const Program perf("KOLO_TEST_PERF");
  if (!perf) return;
  Process process = perf.start({"all_reduce", "--ranks", "3", "--sizes", "8", "-n", "1000000000"});
  REQUIRE(process.waitForLine("(elements)  ", kPatience));
  pid_t rank = 0;
  const std::string pid = std::to_string(process.pid());
  std::ifstream("/proc/" + pid + "/task/" + pid + "/children") >> rank;  // the oldest: rank 0
  if (rank == 0) {
    WARN("skipped: this kernel does not list a process's children");
    return;
  }
  kill(rank, SIGKILL);
  const Ended ended = process.wait(kPatience);
  INFO(ended.output);
  CHECK(ended.exitedWith(2));
  CHECK(ended.output.find("kolo-perf: rank 0 was ended by signal 9") != std::string::npos);
  CHECK(countOf(ended.output, "kolo-perf: rank") == 1);
}

TEST_CASE("kolo-info refuses what makes no sense with 2, and says when its output is lost", "[optimised]") {
  const Program info("KOLO_TEST_INFO");
  if (!info) return;
  info.expectRefusal(2, {"--bogus"}, {"--bogus"});
  info.expectRefusal(2, {"--explain", "all_reduse", "8"}, {"all_reduse", "all_reduce"});
  info.expectRefusal(2, {"--explain", "all_reduce"}, {"bytes"});
  info.expectRefusal(2, {"--explain", "all_reduce", "3"}, {"3 bytes", "float32"});
  info.expectRefusal(2, {"--explain", "all_reduce", "8", "--ranks", "200000"}, {"--ranks", "131072"});
  info.expectRefusal(1, {"--version", "> /dev/full"}, {"standard output"});
  info.expectRefusal(1, {"> /dev/full"}, {"standard output"});
  CHECK(info.run({"--explain", "allreduce", "1M", "--datatype", "half"}).exitedWith(0));
  const Ended barrier = info.run({"--explain", "barrier", "--json"});
  INFO(barrier.output);
  CHECK(barrier.exitedWith(0));
  CHECK(barrier.output.find("\"datatype\"") == std::string::npos);
}
