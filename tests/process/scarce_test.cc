// What a rank has no more of, memory, threads or files, is a result of the call that needed it: no call hangs or ends
// the process, whichever of its allocations failed, and all works again once there is enough. supply.h says what counts
// as an allocation.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "process/job.h"
#include "process/roles.h"
#include "process/supply.h"
#include "support/seed.h"

using namespace kolo::test;

// ---- what is scarce

namespace kolo::test {

constinit Supply memorySupply, threadSupply;

}  // namespace kolo::test

namespace {

void* allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  if (!memorySupply.gives()) return nullptr;
  void* const got = alignment <= alignof(std::max_align_t)
                        ? std::malloc(bytes)
                        : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (got == nullptr) std::abort();
  return got;
}

void* allocateOrThrow(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  void* const got = allocate(bytes, alignment);
  if (got == nullptr) throw std::bad_alloc();
  return got;
}

}  // namespace

// The library's are these, too: a program's own come before those of the standard library.
void* operator new(std::size_t bytes) { return allocateOrThrow(bytes); }
void* operator new[](std::size_t bytes) { return allocateOrThrow(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocateOrThrow(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

// Visible, so that the standard library finds it.
extern "C" [[gnu::visibility("default")]] int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                             void* (*root)(void*), void* argument) noexcept {
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return threadSupply.gives() ? create(thread, attributes, root, argument) : EAGAIN;
}

namespace {

// ---- the steps of a program, in which something is refused

constexpr int kRanks = 2;
constexpr std::size_t kWords = 100'000;

struct Program {
  struct Rank {
    int number = 0;
    koloComm_t comm = nullptr;
    std::array<std::vector<int>, 2> words{std::vector<int>(kWords, 1), std::vector<int>(kWords)};
    bool hasFailed = false;
  };
  std::array<Rank, kRanks> ranks;
  koloUniqueId id{};
};

using Step = koloResult_t (*)(Program&, Program::Rank&);

// Of several results.
koloResult_t firstFailure(std::initializer_list<koloResult_t> results) {
  const auto* const failed =
      std::find_if(results.begin(), results.end(), [](koloResult_t result) { return result != 0; });
  return failed == results.end() ? koloSuccess : *failed;
}

koloResult_t join(Program& program, Program::Rank& rank) {
  return koloCommInitRank(&rank.comm, kRanks, program.id, rank.number);
}

koloResult_t addUp(Program&, Program::Rank& rank) {
  const int* const in = rank.words[0].data();
  int* const out = rank.words[1].data();
  return firstFailure({koloAllReduce(in, out, 10, koloInt32, koloSum, rank.comm, nullptr),
                       koloAllReduce(in, out, kWords, koloInt32, koloMax, rank.comm, nullptr)});
}

koloResult_t addUpList(Program&, Program::Rank& rank) {
  std::array<koloItem_t, 2> items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = KOLO_ITEM_INITIALIZER;
    items[i].sendbuf = rank.words[0].data() + 100 * i;
    items[i].recvbuf = rank.words[1].data() + 100 * i;
    items[i].sendtype = koloInt32;
    items[i].count = 50;
  }
  return koloAllReduceList(items.data(), items.size(), koloSum, rank.comm, nullptr);
}

koloResult_t waitAndFree(koloRequest_t request) {
  const koloResult_t result = koloRequestWait(request, -1);
  return firstFailure({result, koloRequestFree(request)});
}

koloResult_t request(Program&, Program::Rank& rank) {
  koloRequest_t made = nullptr;
  const koloResult_t started =
      koloIallReduce(rank.words[0].data(), rank.words[1].data(), 1000, koloInt32, koloSum, rank.comm, &made);
  return started != koloSuccess ? started : waitAndFree(made);
}

koloResult_t notify(Program&, Program::Rank& rank) {
  koloRequest_t made = nullptr;
  koloResult_t result = koloIbarrier(rank.comm, &made);
  if (result != koloSuccess) return result;
  std::atomic<bool> isTold{false};
  const auto tell = [](koloResult_t, const char*, void* told) { *static_cast<std::atomic<bool>*>(told) = true; };
  result = koloRequestNotify(made, tell, &isTold);
  while (result == koloSuccess && !isTold) usleep(100);
  return firstFailure({result, waitAndFree(made)});
}

koloResult_t stream(Program& program, Program::Rank& rank) {
  koloStream_t made = nullptr;
  const koloResult_t result = koloStreamCreate(&made);
  if (result != koloSuccess) return result;
  const koloResult_t added =
      koloAllReduce(rank.words[0].data(), rank.words[1].data(), 1000, koloInt32, koloSum, rank.comm, made);
  (void)program;
  return firstFailure({added, koloStreamSynchronize(made), koloStreamDestroy(made)});
}

koloResult_t message(Program&, Program::Rank& rank) {
  for (const std::size_t count : {std::size_t{10}, kWords}) {
    std::array<koloRequest_t, 2> made{};
    const int peer = 1 - rank.number;
    const koloResult_t sent = koloIsend(rank.words[0].data(), count, koloInt32, peer, 1, rank.comm, &made[0]);
    const koloResult_t received =
        koloIrecv(rank.words[1].data(), count, koloInt32, peer, 1, nullptr, rank.comm, &made[1]);
    // What only one of them waits for does not come.
    if (sent != koloSuccess || received != koloSuccess) (void)koloCommRevoke(rank.comm, "a message has not begun");
    const koloResult_t result = firstFailure({sent, received, sent == koloSuccess ? waitAndFree(made[0]) : koloSuccess,
                                              received == koloSuccess ? waitAndFree(made[1]) : koloSuccess});
    if (result != koloSuccess) return result;
  }
  return koloSuccess;
}

koloResult_t group(Program&, Program::Rank& rank) {
  const int peer = 1 - rank.number;
  const int* const in = rank.words[0].data();
  int* const out = rank.words[1].data();
  return firstFailure({koloGroupStart(), koloSend(in, 10, koloInt32, peer, rank.comm, nullptr),
                       koloRecv(out, 10, koloInt32, peer, rank.comm, nullptr),
                       koloAllReduce(in, out + 100, 10, koloInt32, koloSum, rank.comm, nullptr), koloGroupEnd()});
}

// On one rank, messages start while the communicator's own thread is mostly in a collective.
koloResult_t beside(Program&, Program::Rank& rank) {
  koloRequest_t barrier = nullptr, messages = nullptr;
  if (rank.number == 0) {
    if (const koloResult_t begun = koloIbarrier(rank.comm, &barrier); begun != koloSuccess) return begun;
    (void)koloRequestTest(barrier);  // the thread is to begin
    usleep(500);
  }
  const int peer = 1 - rank.number;
  koloResult_t result = firstFailure(
      {koloGroupStart(), koloSend(rank.words[0].data(), kWords, koloInt32, peer, rank.comm, nullptr),
       koloRecv(rank.words[1].data(), kWords, koloInt32, peer, rank.comm, nullptr), koloIgroupEnd(&messages)});
  // What only one of them waits for does not come.
  if (messages == nullptr) (void)koloCommRevoke(rank.comm, "messages have not begun");
  if (messages != nullptr) result = firstFailure({result, waitAndFree(messages)});
  if (barrier != nullptr) return firstFailure({result, waitAndFree(barrier)});
  return result == koloSuccess ? koloBarrier(rank.comm, nullptr) : result;
}

koloResult_t split(Program&, Program::Rank& rank) {
  koloComm_t part = nullptr;
  koloResult_t result = koloCommSplit(rank.comm, 0, 0, &part, nullptr);
  if (result != koloSuccess) return result;
  result = koloAllReduce(rank.words[0].data(), rank.words[1].data(), 10, koloInt32, koloSum, part, nullptr);
  if (result == koloSuccess) {  // two communicators, so one of them in another thread
    result = firstFailure(
        {koloGroupStart(),
         koloAllReduce(rank.words[0].data(), rank.words[1].data(), 10, koloInt32, koloSum, part, nullptr),
         koloAllReduce(rank.words[0].data(), rank.words[1].data() + 10, 10, koloInt32, koloSum, rank.comm, nullptr),
         koloGroupEnd()});
  }
  return firstFailure({result, result == koloSuccess ? koloCommDestroy(part) : koloCommAbort(part)});
}

koloResult_t window(Program&, Program::Rank& rank) {
  void* made = nullptr;
  koloResult_t result = koloMemAlloc(&made, 1 << 16);
  if (result != koloSuccess) return result;
  koloWindow_t registered = nullptr;
  result = koloWindowRegister(rank.comm, made, 1 << 16, &registered);
  if (result == koloSuccess) {
    result = koloAllReduce(made, made, 1000, koloInt32, koloSum, rank.comm, nullptr);
    result = firstFailure({result, koloWindowDeregister(rank.comm, registered)});
  }
  return firstFailure({result, koloMemFree(made)});
}

koloResult_t destroy(Program&, Program::Rank& rank) { return koloCommDestroy(std::exchange(rank.comm, nullptr)); }

struct NamedStep {
  const char* name;
  Step step;
};
constexpr std::array kSteps{NamedStep{"join", join},       NamedStep{"addUp", addUp},   NamedStep{"list", addUpList},
                            NamedStep{"request", request}, NamedStep{"notify", notify}, NamedStep{"stream", stream},
                            NamedStep{"message", message}, NamedStep{"group", group},   NamedStep{"beside", beside},
                            NamedStep{"split", split},     NamedStep{"window", window}, NamedStep{"destroy", destroy}};

// ---- a round: the program, with one of its steps short of something

struct Short {
  Supply* of = nullptr;  // nullptr: of files
  std::size_t step = kSteps.size();
  long first = kNever, count = 1;  // which are refused, from the step's first on
};

class Trial {
 public:
  Trial() : helper_([this] { work(); }) {}
  ~Trial() {
    isOver_ = true;
    meet_.arrive_and_wait();
    helper_.join();
  }

  // How many the step asked for.
  long run(const Short& shortage) {
    asked_ = 0;
    MUST_OK(koloGetUniqueId(&program_.id));
    for (Program::Rank& rank : program_.ranks) rank.hasFailed = false;
    for (std::size_t i = 0; i < kSteps.size(); ++i) {
      if (i == shortage.step) begin(shortage);
      step_ = kSteps[i].step;
      meet_.arrive_and_wait();
      perform(program_.ranks[0]);
      meet_.arrive_and_wait();
      if (i == shortage.step) end(shortage);
    }
    return asked_;
  }
  bool hasFailed() const { return program_.ranks[0].hasFailed || program_.ranks[1].hasFailed; }

 private:
  void begin(const Short& shortage) {
    Supply* const supply = shortage.of;
    if (supply == nullptr) {
      MUST(getrlimit(RLIMIT_NOFILE, &files_) == 0);
      rlimit few = files_;
      const int next = dup(0);
      close(next);
      few.rlim_cur = std::min(few.rlim_cur, static_cast<rlim_t>(next + shortage.first - 1));
      MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
      return;
    }
    asked_ = supply->asked();
    supply->refuse(shortage.first, shortage.count);
  }
  void end(const Short& shortage) {
    if (shortage.of == nullptr) {
      MUST(setrlimit(RLIMIT_NOFILE, &files_) == 0);
      return;
    }
    shortage.of->give();
    asked_ = shortage.of->asked() - asked_;
  }
  // A rank whose call fails gives up, so that the other one is not left waiting for it.
  void perform(Program::Rank& rank) {
    const bool isJoined = rank.comm != nullptr;
    if (!isJoined && step_ != join) return;
    if (step_(program_, rank) == koloSuccess) return;
    rank.hasFailed = true;
    if (rank.comm != nullptr) (void)koloCommAbort(std::exchange(rank.comm, nullptr));
  }
  void work() {
    program_.ranks[1].number = 1;
    for (;;) {
      meet_.arrive_and_wait();
      if (isOver_) return;
      perform(program_.ranks[1]);
      meet_.arrive_and_wait();
    }
  }

  Program program_;
  Step step_ = nullptr;
  bool isOver_ = false;
  long asked_ = 0;
  rlimit files_{};
  std::barrier<> meet_{kRanks};
  std::thread helper_;
};

Supply* supplyOf(const std::string& kind) {
  return kind == "memory" ? &memorySupply : kind == "threads" ? &threadSupply : nullptr;
}

// arguments: what is scarce; "all", or the seed of random trials and for how many milliseconds they go on.
int endure(const std::vector<std::string>& arguments) {
  Trial trial;
  Supply* const supply = supplyOf(arguments[0]);
  std::array<long, kSteps.size()> asked{};
  trial.run({});  // what a process reads once, its settings, is not meant
  for (std::size_t step = 0; step < kSteps.size(); ++step) {
    asked[step] = supply == nullptr ? 12 : trial.run({supply, step}) + 2;
    MUST(!trial.hasFailed());
  }
  // Whether it was felt. What it says last is what it did not survive.
  const auto tryOut = [&](const Short& shortage) {
    std::printf("%s of %s: %ld from %ld on\n", arguments[0].c_str(), kSteps[shortage.step].name, shortage.count,
                shortage.first);
    std::fflush(stdout);
    alarm(60 * kSlowness);
    trial.run(shortage);
    const bool isFelt = trial.hasFailed();
    trial.run({});  // all works that follows
    MUST(!trial.hasFailed());
    return isFelt;
  };
  // None of the first ones: if this is not felt, nothing is refused at all.
  const char* const needy = supply == &threadSupply ? "stream" : "join";
  const auto* const sure =
      std::find_if(kSteps.begin(), kSteps.end(), [&](const NamedStep& each) { return !std::strcmp(each.name, needy); });
  MUST(tryOut({supply, static_cast<std::size_t>(sure - kSteps.begin()), 1, 100}));
  if (arguments[1] == "all") {
    for (std::size_t step = 0; step < kSteps.size(); ++step) {
      for (long first = 1; first <= asked[step]; ++first) {
        for (const long count : {1L, 100L}) (void)tryOut({supply, step, first, count});
      }
    }
    return 0;
  }
  std::mt19937_64 random(std::stoull(arguments[1]));
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(std::stol(arguments[2]));
  while (std::chrono::steady_clock::now() < end) {
    const std::size_t step = random() % kSteps.size();
    const long first = 1 + static_cast<long>(random() % static_cast<std::uint64_t>(asked[step]));
    (void)tryOut({supply, step, first, std::array{1L, 3L, 20L, 100L}[random() % 4]});
  }
  return 0;
}
KOLO_ROLE(endure);

// Three processes side by side, for each of the transports.
void expectResults(const std::string& transport) {
  const bool triesAll = std::getenv("KOLO_TEST_ALL") != nullptr;
  // Every one of them, one after the other ("all" in the seed's place), takes more than an hour.
  const std::string milliseconds = triesAll ? "60000" : "1000";
  std::vector<std::unique_ptr<Process>> processes;
  for (const char* const kind : {"memory", "threads", "files"}) {
    processes.push_back(
        std::make_unique<Process>("endure", std::vector<std::string>{kind, std::to_string(testSeed()), milliseconds},
                                  Environment{{"KOLO_TRANSPORTS", transport},
                                              {"KOLO_DEBUG_FILE", "/dev/null"},
                                              {"KOLO_INIT_TIMEOUT_MS", std::to_string(4000 * kSlowness)},
                                              {"KOLO_TIMEOUT_MS", std::to_string(4000 * kSlowness)}}));
  }
  for (const auto& process : processes) {
    const Ended ended = process->wait(200s * kSlowness);
    INFO("KOLO_TEST_SEED=" << testSeed() << ", " << transport << ", status " << ended.status << ":\n" << ended.output);
    CHECK(ended.exitedWith(0));
  }
}

}  // namespace

TEST_CASE("memory, threads and files that run out are results, and what follows works", "[optimised]") {
  if (kSanitized) return;  // a sanitizer takes memory, threads and files of its own
  extendDeadline(500s);
  expectResults("shm");
  expectResults("tcp");
}
