// Every collective between processes: in windows and outside, small and large, on few ranks and many.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "process/job.h"
#include "process/roles.h"

using namespace kolo::test;

namespace {

struct Member {
  koloComm_t comm = nullptr;
  int rank = -1, ranks = -1;
};

Member join() {
  Member me;
  MUST_OK(koloCommInitFromEnv(&me.comm, nullptr));
  MUST_OK(koloCommUserRank(me.comm, &me.rank));
  MUST_OK(koloCommCount(me.comm, &me.ranks));
  return me;
}

bool all(const int* begin, size_t count, int value) {
  return std::all_of(begin, begin + count, [value](int one) { return one == value; });
}

// Each rank's block b holds rank * 1000 + b.
void checkCollectives(const Member& me, int* send, int* recv, size_t count) {
  const auto n = static_cast<size_t>(me.ranks);
  const auto fill = [&](size_t blocks) {
    for (size_t b = 0; b < blocks; ++b) {
      std::fill(send + b * count, send + (b + 1) * count, me.rank * 1000 + static_cast<int>(b));
    }
    std::fill(recv, recv + n * count, -1);
  };
  const int sum = me.ranks * (me.ranks - 1) / 2 * 1000, root = me.ranks - 1;
  fill(1);
  MUST_OK(koloAllReduce(send, recv, count, koloInt32, koloSum, me.comm, nullptr));
  MUST(all(recv, count, sum));
  fill(1);
  MUST_OK(koloReduce(send, recv, count, koloInt32, koloSum, root, me.comm, nullptr));
  MUST(all(recv, count, me.rank == root ? sum : -1));
  fill(1);
  MUST_OK(koloBroadcast(send, recv, count, koloInt32, root, me.comm, nullptr));
  MUST(all(recv, count, root * 1000));
  fill(1);
  MUST_OK(koloAllGather(send, recv, count, koloInt32, me.comm, nullptr));
  for (size_t b = 0; b < n; ++b) MUST(all(recv + b * count, count, static_cast<int>(b) * 1000));
  fill(n);
  MUST_OK(koloReduceScatter(send, recv, count, koloInt32, koloSum, me.comm, nullptr));
  MUST(all(recv, count, sum + me.rank * me.ranks));
  fill(n);
  MUST_OK(koloAllToAll(send, recv, count, koloInt32, me.comm, nullptr));
  for (size_t b = 0; b < n; ++b) MUST(all(recv + b * count, count, static_cast<int>(b) * 1000 + me.rank));
  fill(1);
  MUST_OK(koloGather(send, recv, count, koloInt32, root, me.comm, nullptr));
  for (size_t b = 0; b < n; ++b) MUST(all(recv + b * count, count, me.rank == root ? static_cast<int>(b) * 1000 : -1));
  fill(n);
  MUST_OK(koloScatter(send, recv, count, koloInt32, root, me.comm, nullptr));
  MUST(all(recv, count, root * 1000 + me.rank));
  fill(1);
  const int right = (me.rank + 1) % me.ranks, left = (me.rank + me.ranks - 1) % me.ranks;
  MUST_OK(koloGroupStart());
  MUST_OK(koloSend(send, count, koloInt32, right, me.comm, nullptr));
  MUST_OK(koloRecv(recv, count, koloInt32, left, me.comm, nullptr));
  MUST_OK(koloGroupEnd());
  MUST(all(recv, count, left * 1000));
  MUST_OK(koloBarrier(me.comm, nullptr));
}

int everything(const std::vector<std::string>& arguments) {
  const Member me = join();
  const size_t most = arguments.empty() ? 300000 : std::stoul(arguments[0]);
  const size_t elements = most * static_cast<size_t>(me.ranks) + 10000;
  std::vector<int> plainSend(elements), plainRecv(elements);
  void* memory = nullptr;
  MUST_OK(koloMemAlloc(&memory, 2 * elements * sizeof(int)));
  auto* const shared = static_cast<int*>(memory);
  koloWindow_t window = nullptr;
  MUST_OK(koloWindowRegister(me.comm, memory, 2 * elements * sizeof(int), &window));
  int zeroCopy = 0;
  MUST_OK(koloWindowIsZeroCopy(window, &zeroCopy));
  MUST(zeroCopy == 1);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{15}, size_t{16}, size_t{1000}, most}) {
    checkCollectives(me, plainSend.data(), plainRecv.data(), count);
    const auto shift = static_cast<size_t>(me.rank) * 111 % 9000;
    checkCollectives(me, shared + shift, shared + elements + shift / 2, count);
    checkCollectives(me, shared + shift, plainRecv.data(), count);
  }
  MUST_OK(koloWindowDeregister(me.comm, window));
  MUST_OK(koloMemFree(memory));
  // Ordinary memory of another process cannot be mapped; the operations go through staging then.
  MUST_OK(koloWindowRegister(me.comm, plainSend.data(), plainSend.size() * sizeof(int), &window));
  MUST_OK(koloWindowIsZeroCopy(window, &zeroCopy));
  MUST(zeroCopy == (me.ranks == 1 ? 1 : 0));
  checkCollectives(me, plainSend.data(), plainRecv.data(), 500);
  MUST_OK(koloWindowDeregister(me.comm, window));
  MUST_OK(koloCommDestroy(me.comm));
  return 0;
}
KOLO_ROLE(everything);

// Two ranks that count as two hosts. arguments: what the explanation of a choice says of the network between them.
int explainNetwork(const std::vector<std::string>& arguments) {
  MUST(setenv("KOLO_HOST_ID", std::getenv("KOLO_RANK"), 1) == 0);
  const Member me = join();
  char text[8192];
  MUST_OK(koloExplain(me.comm, 0, koloCollectiveAllReduce, 1 << 20, koloInt8, koloSum, 0, text, sizeof text, nullptr));
  if (std::string(text).find(arguments[0]) == std::string::npos) std::printf("%s\n", text);
  MUST(std::string(text).find(arguments[0]) != std::string::npos);
  MUST_OK(koloCommDestroy(me.comm));
  return 0;
}
KOLO_ROLE(explainNetwork);

// Two ranks that count as two hosts, though no launcher has said so. arguments: what each is told.
int joinOverHosts(const std::vector<std::string>& arguments) {
  MUST(setenv("KOLO_HOST_ID", std::getenv("KOLO_RANK"), 1) == 0);
  koloComm_t comm = nullptr;
  const koloResult_t result = koloCommInitFromEnv(&comm, nullptr);
  if (arguments.empty()) {
    MUST_OK(result);
    MUST_OK(koloCommDestroy(comm));
    return 0;
  }
  MUST(result == koloInvalidEnvironment || result == koloRemoteError);
  for (const std::string& each : arguments)
    MUST(std::string(koloGetLastError(nullptr)).find(each) != std::string::npos);
  return 0;
}
KOLO_ROLE(joinOverHosts);

void becomeNobody() {
  constexpr unsigned kNobody = 65534;
  MUST(setgid(kNobody) == 0 && setuid(kNobody) == 0);
}

// After a while the kernel keeps the others from a rank's memory. arguments: "one", rank 1 says that it is not
// dumpable, and later that it is; "all", all say so; "user", all become another user. And whether the communicator was
// split before ("early"), so that links are shared which were opened then, or not ("late").
int closeMemory(const std::vector<std::string>& arguments) {
  const std::string& how = arguments[0];
  if (geteuid() == 0 && how != "user") {  // root may read everything
    becomeNobody();
    MUST(prctl(PR_SET_DUMPABLE, 1) == 0);
  }
  const Member me = join();
  constexpr size_t kMost = 100000;
  std::vector<int> send(kMost * static_cast<size_t>(me.ranks)), recv(send.size());
  std::vector<Member> members{me};
  const auto split = [&] {
    members.push_back(me);
    MUST_OK(koloCommSplit(me.comm, 0, me.rank, &members.back().comm, nullptr));
  };
  const auto work = [&] {
    for (const Member& member : members) {
      for (const size_t count : {size_t{1000}, kMost, kMost}) checkCollectives(member, send.data(), recv.data(), count);
    }
  };
  if (arguments[1] == "early") split();
  work();
  const bool closes = how == "all" || (how == "one" && me.rank == 1);
  if (how == "user") becomeNobody();
  if (closes) MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
  split();
  work();
  if (closes) MUST(prctl(PR_SET_DUMPABLE, 1) == 0);
  work();
  for (const Member& member : members) MUST_OK(koloCommDestroy(member.comm));
  return 0;
}
KOLO_ROLE(closeMemory);

// Rank 1's input is in a window, and its output is kept from the others: rank 0, which works in place, must not fold
// into scratch memory that is made for no whole result.
int closeOutput(const std::vector<std::string>&) {
  if (geteuid() == 0) {  // root may read everything
    becomeNobody();
    MUST(prctl(PR_SET_DUMPABLE, 1) == 0);
  }
  const Member me = join();
  constexpr size_t kCount = 1 << 20;
  void* memory = nullptr;
  koloWindow_t window = nullptr;
  MUST_OK(koloMemAlloc(&memory, kCount * sizeof(int)));
  MUST_OK(koloWindowRegister(me.comm, memory, kCount * sizeof(int), &window));
  if (me.rank == 1) MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
  std::vector<int> ordinary(kCount, me.rank + 1);
  int* const send = me.rank == 1 ? static_cast<int*>(memory) : ordinary.data();
  std::fill_n(send, kCount, me.rank + 1);
  for (const char* const algorithm : {"", "all_reduce:two_shot", "all_reduce:one_shot"}) {
    MUST_OK(koloCommSetAlgorithm(me.comm, algorithm));
    MUST_OK(koloAllReduce(send, ordinary.data(), kCount, koloInt32, koloMax, me.comm, nullptr));
    MUST(all(ordinary.data(), kCount, me.ranks));
  }
  MUST_OK(koloWindowDeregister(me.comm, window));
  MUST_OK(koloMemFree(memory));
  MUST_OK(koloCommDestroy(me.comm));
  return 0;
}
KOLO_ROLE(closeOutput);

int crowd(const std::vector<std::string>&) {
  const Member me = join();
  std::vector<int> send(static_cast<size_t>(me.ranks) * 64), recv(send.size());
  for (const size_t count : {size_t{1}, size_t{64}}) {
    for (int round = 0; round < 3; ++round) {
      checkCollectives(me, send.data(), recv.data(), count);
    }
  }
  std::vector<int> large(50000, me.rank), sum(large.size());
  MUST_OK(koloAllReduce(large.data(), sum.data(), large.size(), koloInt32, koloSum, me.comm, nullptr));
  MUST(all(sum.data(), sum.size(), me.ranks * (me.ranks - 1) / 2));
  MUST_OK(koloCommDestroy(me.comm));
  return 0;
}
KOLO_ROLE(crowd);

// A global object that keeps a communicator to its end, which comes after that of what the main thread has of its own,
// and, made before main(), after that of whatever the library makes when it is first used.
struct Keeper {
  koloComm_t comm = nullptr;

  ~Keeper() {
    if (comm == nullptr) return;
    int one = 1, sum = 0;
    MUST(koloAllReduce(nullptr, &sum, 1, koloInt32, koloSum, comm, nullptr) != koloSuccess);
    std::printf("late: %s\n", koloGetLastError(nullptr));
    MUST_OK(koloGroupStart());
    MUST_OK(koloAllReduce(&one, &sum, 1, koloInt32, koloSum, comm, nullptr));
    MUST_OK(koloGroupEnd());
    MUST(sum > 0);
    MUST_OK(koloCommDestroy(comm));
    std::printf("%d are late\n", sum);
    std::fflush(stdout);
  }
};
Keeper keeper;

// The same, for what goes through the control plane: the others hear of a rank that dies then.
struct LateUser {
  koloComm_t comm = nullptr;
  koloWindow_t window = nullptr;
  int rank = 0;

  ~LateUser() {
    if (comm == nullptr) return;
    koloComm_t half = nullptr;
    MUST_OK(koloWindowDeregister(comm, window));
    MUST_OK(koloCommSplit(comm, rank % 2, 0, &half, nullptr));
    MUST_OK(koloBarrier(half, nullptr));
    MUST_OK(koloCommDestroy(half));
    if (rank == 1) kill(getpid(), SIGKILL);
    const koloResult_t result = koloBarrier(comm, nullptr);
    std::printf("late: %s\n", koloGetErrorString(result));
    std::fflush(stdout);
    (void)koloCommDestroy(comm);
  }
};
LateUser lateUser;

int dieLate(const std::vector<std::string>&) {
  static int memory[100];
  const Member me = join();
  lateUser.rank = me.rank;
  MUST_OK(koloWindowRegister(me.comm, memory, sizeof memory, &lateUser.window));
  lateUser.comm = me.comm;
  return 0;
}
KOLO_ROLE(dieLate);

int callLate(const std::vector<std::string>&) {
  const Member me = join();
  int one = 1, sum = 0;
  MUST(koloAllReduce(nullptr, &sum, 1, koloInt32, koloSum, me.comm, nullptr) != koloSuccess);  // there is a text
  MUST_OK(koloAllReduce(&one, &sum, 1, koloInt32, koloSum, me.comm, nullptr));
  MUST(sum == me.ranks);
  keeper.comm = me.comm;
  return 0;
}
KOLO_ROLE(callLate);

}  // namespace

// The system knows no speed of the loopback interface.
TEST_CASE("the planner takes the speed of NICs that the system does not tell from the user") {
  Job job(2, "explainNetwork", {"0.5 GB/s of a host by 1 NIC"},
          {{"KOLO_TRANSPORTS", "tcp"}, {"KOLO_TCP_INTERFACES", "lo"}, {"KOLO_NET_GBITS", "4"}, {"KOLO_INSECURE", "1"}});
  job.expectSuccess();
}

TEST_CASE("ranks that find themselves on several hosts go no further without a secret") {
  Job(2, "joinOverHosts", {"KOLO_SECRET is not set", "on several hosts", "-x KOLO_SECRET"}).expectSuccess();
  for (const char* const setting : {"KOLO_SECRET", "KOLO_INSECURE"})
    Job(2, "joinOverHosts", {}, {{setting, "1"}}).expectSuccess();
}

TEST_CASE("S4.1 processes run every collective and message, in windows and outside", "[optimised]") {
  for (const int ranks : {1, 2, 3, 5}) {
    INFO(ranks << " ranks");
    Job(ranks, "everything", {kSanitized ? "20000" : "300000"}).expectSuccess();
  }
}

// By default it depends on the processor whether large ordinary buffers are staged or read where they are.
TEST_CASE("processes run every collective and message by reading each other's ordinary memory, and without",
          "[optimised]") {
  for (const char* from : {"0", "9223372036854775807"}) {
    for (const int ranks : {2, 3}) {
      INFO(ranks << " ranks, KOLO_SINGLE_COPY_BYTES=" << from);
      Job(ranks, "everything", {kSanitized ? "20000" : "100000"}, {{"KOLO_SINGLE_COPY_BYTES", from}}).expectSuccess();
    }
  }
}

TEST_CASE("processes whose memory the others may no longer read go on by staging") {
  for (const char* how : {"one", "all", "user"}) {
    if (geteuid() != 0 && std::string(how) == "user") continue;  // only root can become another one
    for (const int ranks : {2, 3}) {
      const char* const when = ranks == 2 ? "early" : "late";
      INFO(how << " of " << ranks << " ranks, split " << when);
      Job(ranks, "closeMemory", {how, when}, {{"KOLO_SINGLE_COPY_BYTES", "0"}}).expectSuccess();
    }
  }
}

TEST_CASE("an all-reduce in place of a rank that cannot write where the others receive") {
  for (const int ranks : {2, 3}) Job(ranks, "closeOutput", {}, {{"KOLO_SINGLE_COPY_BYTES", "0"}}).expectSuccess();
}

TEST_CASE("processes whose global objects call when all else of theirs has been destroyed") {
  for (const bool overNetwork : {false, true}) {
    INFO((overNetwork ? "by TCP" : "by shared memory"));
    Job job(3, "callLate", {}, overNetwork ? Environment{{"KOLO_TRANSPORTS", "tcp"}} : Environment{});
    for (int rank = 0; rank < job.size(); ++rank) {
      const Ended ended = job.wait(rank);
      INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
      CHECK(ended.exitedWith(0));
      CHECK(ended.output.find("late: koloAllReduce: sendbuf is NULL") != std::string::npos);
      CHECK(ended.output.find("3 are late") != std::string::npos);
    }
  }
}

TEST_CASE("processes whose global objects make and end what needs all ranks, until one dies") {
  Job job(3, "dieLate", {}, {{"KOLO_TIMEOUT_MS", "20000"}});
  for (const int rank : {0, 2}) {
    const Ended ended = job.wait(rank);
    INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
    CHECK(ended.output.find("late: a remote rank failed") != std::string::npos);
  }
}

TEST_CASE("16 processes on few cores") { Job(16, "crowd").expectSuccess(); }

TEST_CASE("64 processes on few cores", "[optimised]") {
  if (kSanitized) return;
  Job(64, "crowd").expectSuccess();
}

TEST_CASE("collectives run over a transport from outside the library") {
  const char* plugin = std::getenv("KOLO_TEST_PLUGIN");
  REQUIRE(plugin != nullptr);
  Job(3, "everything", {"20000"}, {{"KOLO_TRANSPORT_PLUGINS", plugin}, {"KOLO_TRANSPORTS", "tmpfile"}}).expectSuccess();
}
