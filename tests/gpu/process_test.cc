// Ranks that are processes and share a GPU, or two that are mocked. Memory of the other processes comes by file
// descriptors or by CUDA's legacy IPC, or is reached through the host's. What runs inside the processes is a role; its
// arguments are words: which GPUs there are, and what the communicator is to be.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/settings.h"
#include "gpu/support.h"
#include "process/job.h"
#include "process/roles.h"
#include "support/algorithms.h"
#include "support/collectives_table.h"
#include "support/oracle.h"

using namespace kolo::test;
using kolo::tests::Block;
using kolo::tests::Bytes;
using kolo::tests::Problem;

namespace {

using Words = std::vector<std::string>;

bool has(const Words& words, const char* word) { return std::find(words.begin(), words.end(), word) != words.end(); }

// ---- what every role begins and ends with

void installMock(const Words& words, int ranksHere = 1) {
  if (hasRealDevice()) return;
  const bool isCrowd = ranksHere > 1 || std::atoi(std::getenv("KOLO_SIZE")) > 2;
  MockCuda{.devices = has(words, "two-devices") ? 2 : 1,
           .multiprocessors = ranksHere * (has(words, "resident") ? 10 : 2),
           .blockThreads = isCrowd ? 1u : 2u,  // cores are few
           .peersReach = !has(words, "no-peers"),
           .peersBroken = has(words, "broken-peers"),
           .sharesByFile = !has(words, "no-files")}
      .install();
}

void removeMock() {
  if (hasRealDevice()) return;
  const std::string left = MockCuda::remove();
  if (!left.empty()) std::printf("left over: %s\n", left.c_str());
  MUST(left.empty());
}

// Of the job's two "hosts", the first has the first half of the ranks.
void chooseHost(const Words& words) {
  if (!has(words, "two-hosts")) return;
  const int rank = std::atoi(std::getenv("KOLO_RANK")), ranks = std::atoi(std::getenv("KOLO_SIZE"));
  ::setenv("KOLO_HOST_ID", 2 * rank < ranks ? "first" : "second", 1);
  ::setenv("KOLO_TCP_INTERFACES", "lo", 1);
  ::setenv("KOLO_INSECURE", "1", 1);
  kolo::settings::reload();
}

int deviceFor(const Words& words, int rank) { return has(words, "two-devices") ? rank % 2 : testDevice(); }

koloConfig_t configFor(const Words& words, int rank, int timeoutMs = 100000) {
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.device = deviceFor(words, rank);
  config.resident = has(words, "resident") ? 1 : 0;
  config.timeoutMs = timeoutMs;
  return config;
}

struct Member {
  koloComm_t comm = nullptr;
  int rank = -1, ranks = -1, device = 0;
};

Member join(const Words& words, int timeoutMs = 100000) {
  installMock(words);
  chooseHost(words);
  Member me;
  const koloConfig_t config = configFor(words, std::atoi(std::getenv("KOLO_RANK")), timeoutMs);
  me.device = config.device;
  MUST_OK(koloCommInitFromEnv(&me.comm, &config));
  MUST_OK(koloCommUserRank(me.comm, &me.rank));
  MUST_OK(koloCommCount(me.comm, &me.ranks));
  return me;
}

// ---- memory of all kinds

enum class Kind { kOrdinary, kOwnWindow, kDriverWindow, kPoolWindow };
constexpr std::array kKinds = {Kind::kOrdinary, Kind::kOwnWindow, Kind::kDriverWindow, Kind::kPoolWindow};

// Begins inside an allocation, as memory of an allocator that hands out parts of larger ones does.
class Area {
 public:
  Area(const Member& me, Kind kind, std::size_t bytes) : me_(me), kind_(kind) {
    void* memory = nullptr;
    const std::size_t whole = kInside + bytes;
    if (kind == Kind::kOwnWindow) MUST_OK(koloMemAllocOn(&memory, whole, me.device));
    if (kind == Kind::kPoolWindow) memory = reinterpret_cast<void*>(MockCuda::poolMemory(me.device, whole));
    if (kind == Kind::kOrdinary || kind == Kind::kDriverWindow) {
      const CurrentDevice current(me.device);
      CUdeviceptr pointer = 0;
      CUDA_OK(driver().cuMemAlloc(&pointer, whole));
      memory = reinterpret_cast<void*>(pointer);
    }
    MUST(memory != nullptr);
    memory_ = static_cast<unsigned char*>(memory);
    data_ = memory_ + kInside;
    if (kind != Kind::kOrdinary) MUST_OK(koloWindowRegister(me.comm, data_, bytes, &window_));
  }
  ~Area() {
    if (window_ != nullptr) MUST_OK(koloWindowDeregister(me_.comm, window_));
    if (kind_ == Kind::kOwnWindow) {
      MUST_OK(koloMemFree(memory_));
      return;
    }
    const CurrentDevice current(me_.device);
    CUDA_OK(driver().cuMemFree(reinterpret_cast<CUdeviceptr>(memory_)));
  }
  Area(const Area&) = delete;

  unsigned char* data() const { return data_; }
  bool isZeroCopy() const {
    int zeroCopy = 0;
    if (window_ != nullptr) MUST_OK(koloWindowIsZeroCopy(window_, &zeroCopy));
    return zeroCopy == 1;
  }

 private:
  static constexpr std::size_t kInside = 512;

  const Member& me_;
  Kind kind_;
  unsigned char *memory_ = nullptr, *data_ = nullptr;
  koloWindow_t window_ = nullptr;
};

// ---- one collective against the oracle

Problem problemOf(koloCollective_t collective, int ranks, std::size_t count) {
  const auto n = static_cast<std::size_t>(ranks);
  const std::vector<Block> one = {{0, count}};
  std::vector<Block> all;
  for (std::size_t i = 0; i < n; ++i) all.push_back({i * count, count});
  Problem problem;
  problem.collective = collective;
  problem.ranks = ranks;
  problem.root = ranks - 1;
  problem.scales.assign(n, 1);
  problem.send.assign(n, {});
  problem.recv.assign(n, {});
  for (std::size_t rank = 0; rank < n; ++rank) {
    const bool isRoot = rank + 1 == n;
    std::vector<Block>&send = problem.send[rank], &recv = problem.recv[rank];
    switch (collective) {
      case koloCollectiveAllReduce: send = recv = one; break;
      case koloCollectiveReduce: send = one, recv = isRoot ? one : recv; break;
      case koloCollectiveBroadcast: send = isRoot ? one : send, recv = one; break;
      case koloCollectiveAllGather: send = one, recv = all; break;
      case koloCollectiveReduceScatter: send = all, recv = one; break;
      case koloCollectiveAllToAll: send = recv = all; break;
      case koloCollectiveGather: send = one, recv = isRoot ? all : recv; break;
      case koloCollectiveScatter: send = isRoot ? all : send, recv = one; break;
      default: break;
    }
  }
  return problem;
}

// Sums and products of these come out the same in any order and every type.
Bytes inputOf(const Problem& problem, int rank, unsigned salt) {
  const std::size_t elements = Problem::extent(problem.send[static_cast<std::size_t>(rank)]);
  const std::size_t size = koloDataTypeSize(problem.datatype), part = kolo::tests::partBytes(problem.datatype);
  Bytes bytes(elements * size);
  for (std::size_t i = 0; i < elements; ++i) {
    const auto mixed =
        static_cast<unsigned>((i + 1) * 2654435761u + (static_cast<unsigned>(rank) * 40503u + salt) * 97u) >> 7;
    for (std::size_t at = i * size; at < (i + 1) * size; at += part) {
      if (kolo::tests::isFloating(problem.datatype)) {
        kolo::tests::encode(problem.datatype, problem.op == koloProd ? 1 + mixed % 2 : mixed % 3, &bytes[at]);
      } else {
        std::fill_n(&bytes[at], part, static_cast<std::uint8_t>(mixed));
      }
    }
  }
  return bytes;
}

koloResult_t call(const Problem& problem, void* send, void* recv, std::size_t count, koloComm_t comm,
                  koloStream_t stream) {
  return kolo::test::call(problem.collective,
                          {send, recv, count, problem.datatype, problem.op, problem.root, comm, stream});
}

// What is behind what a rank receives stays as it is.
constexpr std::size_t kGuard = 64;
constexpr unsigned char kUntouched = 0x5a;

void verify(const Member& me, const Problem& problem, const std::string& what, std::size_t count, unsigned salt,
            const unsigned char* recv, std::size_t room) {
  std::vector<Bytes> inputs;
  std::vector<const std::uint8_t*> begins;
  for (int rank = 0; rank < me.ranks; ++rank) inputs.push_back(inputOf(problem, rank, salt));
  for (const Bytes& input : inputs) begins.push_back(input.data());
  const auto mine = static_cast<std::size_t>(me.rank);
  const std::vector<Bytes> outputs = expectedOutputs(problem, begins)[mine];
  Bytes expected(room, kUntouched), got(room);
  for (std::size_t block = 0; block < outputs.size(); ++block) {
    const std::size_t at = problem.recv[mine][block].begin * koloDataTypeSize(problem.datatype);
    std::copy(outputs[block].begin(), outputs[block].end(), expected.begin() + static_cast<std::ptrdiff_t>(at));
  }
  download(me.device, got.data(), recv, room);
  if (got == expected) return;
  const auto at = std::mismatch(got.begin(), got.end(), expected.begin()).first - got.begin();
  std::printf("rank %d: %s, count %zu, %s, %s: byte %td is %02x instead of %02x\n", me.rank, what.c_str(), count,
              koloDataTypeName(problem.datatype), koloRedOpName(problem.op), at, got[static_cast<std::size_t>(at)],
              expected[static_cast<std::size_t>(at)]);
  std::exit(1);
}

// Goes through datatypes and operations, so that in the course of a test all come up.
void chooseTypes(Problem& problem, unsigned number) {
  problem.datatype = static_cast<koloDataType_t>(number * 5 % koloNumDatatypes);
  problem.op = koloSum;
  for (unsigned i = 0; problem.reduces() && i < koloNumOps; ++i) {
    problem.op = static_cast<koloRedOp_t>((number + i) % koloNumOps);
    if (koloRedOpIsDefined(problem.op, problem.datatype) != 0) return;
  }
}

void oneCase(const Member& me, const Problem& problem, const std::string& what, std::size_t count, unsigned salt,
             const Area& send, const Area& recv, const CudaStream& stream) {
  const Bytes input = inputOf(problem, me.rank, salt);
  if (!input.empty()) upload(me.device, send.data(), input.data(), input.size());
  const std::size_t received = Problem::extent(problem.recv[static_cast<std::size_t>(me.rank)]);
  const Bytes untouched(received * koloDataTypeSize(problem.datatype) + kGuard, kUntouched);
  upload(me.device, recv.data(), untouched.data(), untouched.size());
  MUST_OK(call(problem, send.data(), recv.data(), count, me.comm, stream.get()));
  stream.synchronize();
  // What a failed operation leaves in recv is undefined: it is to be named as failed, not as wrong.
  koloResult_t result = koloSuccess;
  MUST_OK(koloCommGetAsyncError(me.comm, &result));
  if (result != koloSuccess) {
    std::printf("rank %d: %s, count %zu: %s\n", me.rank, what.c_str(), count, koloGetLastError(me.comm));
    std::exit(1);
  }
  verify(me, problem, what, count, salt, recv.data(), untouched.size());
}

void everyAlgorithm(const Member& me, const Area& send, const Area& recv, const CudaStream& stream, std::size_t large,
                    unsigned& number) {
  for (int i = koloCollectiveAllReduce; i <= koloCollectiveBarrier; ++i) {
    const auto collective = static_cast<koloCollective_t>(i);
    std::vector<std::string> algorithms = kolo::tests::algorithmsFor(collective);
    if (kolo::tests::isHierarchical(collective, false))
      algorithms.push_back("hierarchical");  // without hosts the planner's choice
    for (const std::string& algorithm : algorithms) {
      const std::string wish = std::string(koloCollectiveName(collective)) + ":" + algorithm;
      MUST_OK(koloCommSetAlgorithm(me.comm, wish.c_str()));
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{37}, large / 20, large}) {
        if ((collective == koloCollectiveBarrier && count > 0) || (algorithm == "line" && count > 37)) continue;
        Problem problem = problemOf(collective, me.ranks, count);
        chooseTypes(problem, ++number);
        oneCase(me, problem, wish, count, number, send, recv, stream);
      }
    }
  }
  MUST_OK(koloCommSetAlgorithm(me.comm, ""));
}

// Whether windows over memory of this kind are reached by all ranks.
bool reaches(const Words& words, Kind kind) {
  if (has(words, "no-peers") || has(words, "broken-peers") || has(words, "two-hosts")) return false;
  return kind == Kind::kOwnWindow || kind == Kind::kDriverWindow;
}

// words: elements of a large buffer, ...
int collectives(const Words& words) {
  const Member me = join(words);
  const std::size_t large = std::stoul(words.front());
  const std::size_t bytes = large * static_cast<std::size_t>(me.ranks) * 16 + kGuard;
  {
    const CudaStream stream(me.device);
    unsigned number = 0;
    for (const Kind kind : kKinds) {
      if (kind == Kind::kPoolWindow && hasRealDevice()) continue;
      const Area send(me, kind, bytes), recv(me, kind, bytes);
      if (me.ranks > 1) MUST(send.isZeroCopy() == reaches(words, kind) && recv.isZeroCopy() == reaches(words, kind));
      // Windows are alike once they are mapped: the large ones in one kind of them are enough for a mock.
      const bool isMinor = kind == Kind::kDriverWindow || kind == Kind::kPoolWindow;
      everyAlgorithm(me, send, recv, stream, isMinor && !hasRealDevice() ? large / 20 : large, number);
    }
  }
  MUST_OK(koloCommDestroy(me.comm));
  removeMock();
  return 0;
}
KOLO_ROLE(collectives);

// ---- messages

// Each rank's message to each other, and to itself, is `count` of 100 * rank + peer + round.
void exchange(const Member& me, const DeviceInts& send, const DeviceInts& recv, const CudaStream& stream,
              std::size_t count, int round) {
  for (int peer = 0; peer < me.ranks; ++peer) {
    send.write(std::vector<int>(count, 100 * me.rank + peer + round), static_cast<std::size_t>(peer) * count);
  }
  MUST_OK(koloGroupStart());
  for (int i = 0; i < me.ranks; ++i) {
    const int to = (me.rank + i) % me.ranks, from = (2 * me.rank + i) % me.ranks;
    MUST_OK(koloSend(send.data() + static_cast<std::size_t>(to) * count, count, koloInt32, to, me.comm, stream.get()));
    MUST_OK(
        koloRecv(recv.data() + static_cast<std::size_t>(from) * count, count, koloInt32, from, me.comm, stream.get()));
  }
  MUST_OK(koloGroupEnd());
  stream.synchronize();
  for (int peer = 0; peer < me.ranks; ++peer) {
    MUST(recv.read(static_cast<std::size_t>(peer) * count, count) ==
         std::vector<int>(count, 100 * peer + me.rank + round));
  }
}

int messages(const Words& words) {
  const Member me = join(words);
  const std::size_t large = std::stoul(words.front()), most = large * static_cast<std::size_t>(me.ranks);
  {
    const CudaStream stream(me.device);
    for (const Kind kind : kKinds) {
      if (kind == Kind::kPoolWindow && hasRealDevice()) continue;
      const Area sendArea(me, kind, most * sizeof(int)), recvArea(me, kind, most * sizeof(int));
      const DeviceInts send(me.device, sendArea.data(), most), recv(me.device, recvArea.data(), most);
      int round = 0;
      for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, large})
        exchange(me, send, recv, stream, count, ++round);
    }
  }
  MUST_OK(koloCommDestroy(me.comm));
  removeMock();
  return 0;
}
KOLO_ROLE(messages);

// ---- captured graphs

int capture(const Words& words) {
  const Member me = join(words);
  const std::size_t large = std::stoul(words.front());
  {
    const CudaStream stream(me.device);
    const Area area(me, Kind::kOwnWindow, (2 * large + 100) * sizeof(int));
    const DeviceInts in(me.device, area.data(), large), out(me.device, in.data() + large, large + 100);
    const int right = (me.rank + 1) % me.ranks, left = (me.rank + me.ranks - 1) % me.ranks;
    const auto body = [&](int operations, std::size_t count) {
      MUST_OK(koloGroupStart());
      for (int i = 0; i < operations; ++i) {
        MUST_OK(koloAllReduce(in.data() + i, out.data() + i, count, koloInt32, koloSum, me.comm, stream.get()));
      }
      MUST_OK(koloSend(in.data(), 1, koloInt32, right, me.comm, stream.get()));
      MUST_OK(koloRecv(out.data() + large + 50, 1, koloInt32, left, me.comm, stream.get()));
      MUST_OK(koloGroupEnd());
    };
    const auto replay = [&](const Graph& graph, int first, std::size_t checked) {
      std::vector<int> values(large);
      std::iota(values.begin(), values.end(), first + me.rank);
      in.write(values);
      graph.launch(stream);
      stream.synchronize();
      MUST(out.read(checked) == me.ranks * (first + static_cast<int>(checked)) + me.ranks * (me.ranks - 1) / 2);
      MUST(out.read(large + 50) == first + left);
    };
    const Graph one(stream, [&] { body(1, large); }), many(stream, [&] { body(20, 1); });
    for (int i = 0; i < 3; ++i) {
      replay(one, 10 * i, large - 1);
      replay(many, 7 * i, 19);
      body(2, 1);  // plain, between replays
      stream.synchronize();
      MUST(out.read(1) == me.ranks * (7 * i + 1) + me.ranks * (me.ranks - 1) / 2);
    }
  }
  MUST_OK(koloCommDestroy(me.comm));
  removeMock();
  return 0;
}
KOLO_ROLE(capture);

// ---- two threads in each process

void beRank(const Words& words, const koloUniqueId& id, int rank) {
  const koloConfig_t config = configFor(words, rank);
  Member me{.comm = nullptr, .rank = rank, .ranks = 4, .device = config.device};
  MUST_OK(koloCommInitRankConfig(&me.comm, me.ranks, id, rank, &config));
  const std::size_t large = std::stoul(words[1]);
  {
    const CudaStream stream(me.device);
    const std::size_t bytes = large * 4 * 16 + kGuard;
    unsigned number = 0;
    for (const Kind kind : {Kind::kOrdinary, Kind::kOwnWindow, Kind::kDriverWindow}) {
      const Area send(me, kind, bytes), recv(me, kind, bytes);
      MUST(send.isZeroCopy() == reaches(words, kind));
      everyAlgorithm(me, send, recv, stream, large, number);
      MUST_OK(
          koloBarrier(me.comm, stream.get()));  // freeing waits for the device, and so for the other thread's kernels
      stream.synchronize();
    }
  }
  MUST_OK(koloCommDestroy(me.comm));
}

// words: the id, elements of a large buffer, ...
int twoThreads(const Words& words) {
  installMock(words, 2);
  const koloUniqueId id = idOfHex(words.front());
  const int first = 2 * std::atoi(std::getenv("KOLO_RANK"));
  std::thread other([&] { beRank(words, id, first + 1); });
  beRank(words, id, first);
  other.join();
  removeMock();
  return 0;
}
KOLO_ROLE(twoThreads);

// ---- failure

// Longer than ranks that share a real GPU in turns, or a busy machine, wait for each other.
const int kShortTimeoutMs = hasRealDevice() ? 3000 : 1500 * kSlowness;

// Those who are left go on without the last one.
void goOn(const Member& me, const Area& area, const CudaStream& stream) {
  const int excluded = me.ranks - 1;
  koloComm_t rest = nullptr;
  MUST_OK(koloCommShrink(me.comm, &excluded, 1, &rest, nullptr));
  const DeviceInts values(me.device, area.data(), 1000);
  for (int i = 0; i < 5; ++i) {
    values.fill(me.rank + i);
    MUST_OK(koloAllReduce(values.data(), values.data(), i % 2 == 0 ? 1000 : 3, koloInt32, koloMax, rest, stream.get()));
    stream.synchronize();
    MUST(values.read(2) == me.ranks - 2 + i);
  }
  MUST_OK(koloCommDestroy(rest));
}

// The last rank says that it is ready and does nothing more. The others' kernels wait for it, until the communicator
// has failed.
int waitInVain(const Words& words) {
  const Member me = join(words, has(words, "timeout") ? kShortTimeoutMs : 100000);
  {
    const CudaStream stream(me.device);
    const Area area(me, Kind::kOrdinary, 4000);
    const auto addUp = [&] {
      return koloAllReduce(area.data(), area.data(), 1000, koloInt32, koloSum, me.comm, stream.get());
    };
    MUST_OK(addUp());
    stream.synchronize();
    koloResult_t result = koloSuccess;
    if (me.rank == me.ranks - 1) {
      std::printf("ready\n");
      if (!has(words, "timeout")) sleep(1000);
      result = errorHeard(me.comm);
    } else {
      MUST_OK(addUp());
      MUST_OK(addUp());
      std::printf("ready\n");
      stream.synchronize();
      result = errorHeard(me.comm);
      MUST(addUp() == result);
    }
    std::printf("failed %d %s\n", result, koloGetLastError(me.comm));
    std::fflush(stdout);
    if (!has(words, "timeout")) goOn(me, area, stream);
  }
  (void)koloCommDestroy(me.comm);
  std::printf("ended\n");
  return 0;
}
KOLO_ROLE(waitInVain);

// ---- what the tests have in common

const std::string kLarge = kSanitized ? "5003" : "100003";
const std::vector<Words> kWays = {
    {kLarge}, {"1000", "resident"}, {"5003", "two-hosts"}, {"1000", "two-hosts", "resident"}};

Environment sameDevice() {
  if (!hasRealDevice()) return {};
  return {{"KOLO_TEST_GPU", std::to_string(testDevice())}};
}

// Processes that share a real GPU have it in turns of milliseconds.
void expectSuccess(Job& job) {
  extendDeadline(120s);
  for (int rank = 0; rank < job.size(); ++rank) {
    const Ended ended = job[rank].wait(100s * kSlowness);
    INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
  }
}

void runAll(int ranks, const std::string& role, const Words& words) {
  INFO(role << " on " << ranks << " ranks: " << Catch::StringMaker<Words>::convert(words));
  Job job(ranks, role, words, sameDevice());
  expectSuccess(job);
}

void expectFailure(Job& job, int rank, koloResult_t code) {
  const Ended ended = job.wait(rank);
  INFO("rank " << rank << ", status " << ended.status << ":\n" << ended.output);
  CHECK(ended.exitedWith(0));
  CHECK(ended.output.find("failed " + std::to_string(code)) != std::string::npos);
  CHECK(ended.output.find("rank " + std::to_string(job.size() - 1)) != std::string::npos);
}

}  // namespace

TEST_CASE("processes on one GPU: every collective by every algorithm, in memory of all kinds",
          "[device][processes][slow]") {
  const int ranks = GENERATE(1, 2, 3, 4);
  runAll(ranks, "collectives", {ranks == 2 || hasRealDevice() ? kLarge : "20011"});
}

TEST_CASE("processes on one GPU: the same with resident kernels", "[device][processes]") {
  const int ranks = GENERATE(2, 3);
  runAll(ranks, "collectives", {"1000", "resident"});
}

TEST_CASE("processes on one GPU: messages of all lengths", "[device][processes]") {
  const int ranks = GENERATE(2, 3, 4);
  for (const Words& words : kWays) runAll(ranks, "messages", words);
}

TEST_CASE("processes on one GPU: captured graphs", "[device][processes]") {
  const int ranks = GENERATE(2, 3, 4);
  for (const Words& words : kWays) runAll(ranks, "capture", words);
}

TEST_CASE("processes with two threads each that are ranks on one GPU", "[device][processes]") {
#if defined(__SANITIZE_THREAD__)
  return;  // a gather's two writers into the root's window are ordered by the root, in another process, where the
           // sanitizer sees nothing
#endif
  koloUniqueId id;
  REQUIRE_OK(koloGetUniqueId(&id));
  Job job(2, "twoThreads", {inHex(id), "5003"}, sameDevice());
  expectSuccess(job);
}

TEST_CASE("a process that is killed ends the kernels that wait for it, and the others hear of it and go on",
          "[device][processes]") {
  const int ranks = GENERATE(2, 3, 4);
  for (const Words& words : {Words{}, Words{"resident"}, Words{"two-hosts"}}) {
    Environment environment = sameDevice();
    environment["KOLO_GPU_CHANNELS"] = "1";  // there is to be a second communicator
    Job job(ranks, "waitInVain", words, environment);
    job.waitForLine("ready");
    job[ranks - 1].signal(SIGKILL);
    CHECK(job.wait(ranks - 1).killedBy(SIGKILL));
    for (int rank = 0; rank < ranks - 1; ++rank) expectFailure(job, rank, koloRemoteError);
  }
}

TEST_CASE("a process that does not call is named by the others when the time is over", "[device][processes]") {
  const int ranks = GENERATE(2, 3);
  for (const Words& words : {Words{"timeout"}, Words{"timeout", "resident"}, Words{"timeout", "two-hosts"}}) {
    Job job(ranks, "waitInVain", words, sameDevice());
    for (int rank = 0; rank < ranks; ++rank) expectFailure(job, rank, koloTimeout);
  }
}

// ---- what only the mock can be told to be

TEST_CASE("processes whose arenas cannot be given as files use legacy handles", "[mock][processes]") {
  runAll(2, "collectives", {"5003", "no-files"});
  runAll(3, "messages", {"5003", "no-files"});
  runAll(3, "collectives", {"5003", "no-files", "two-devices"});
}

TEST_CASE("processes on two devices", "[mock][processes][slow]") {
  for (const int ranks : {2, 3}) runAll(ranks, "collectives", {"20001", "two-devices"});
  runAll(4, "messages", {"20001", "two-devices"});
  runAll(2, "collectives", {"1000", "two-devices", "resident"});
}

TEST_CASE("processes on two hosts: every collective by every algorithm, from pinned memory over TCP",
          "[device][processes]") {
  for (const int ranks : {2, 3, 4}) runAll(ranks, "collectives", {ranks == 2 ? kLarge : "5003", "two-hosts"});
  runAll(3, "collectives", {"1000", "two-hosts", "resident"});
}

TEST_CASE("processes on two devices without a direct way, or one that is broken in silence, go through the host",
          "[mock][processes]") {
  for (const char* way : {"no-peers", "broken-peers"}) {
    for (const int ranks : {2, 3}) runAll(ranks, "collectives", {"5003", "two-devices", way});
    runAll(3, "messages", {"20001", "two-devices", way});
    runAll(3, "collectives", {"1000", "two-devices", way, "resident"});
  }
}
