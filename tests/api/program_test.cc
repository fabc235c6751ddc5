// Random programs: streams, events, requests, groups, messages, windows, splits and groups of ranks in one program, as
// long as its steps are in one order on all ranks. What a rank waits for, and when, is its own affair.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "each_links.h"
#include "support/rank_counts.h"
#include "support/seed.h"

using namespace kolo::test;

namespace {

using Random = std::mt19937_64;

constexpr std::array<size_t, 6> kLengths{0, 1, 7, 1000, 9'001, 70'003};
constexpr int kSteps = 60;
constexpr int kStreams = 3;
constexpr size_t kMostComms = 5;

// A communicator with the places that its members have in the world.
struct Team {
  koloComm_t comm;
  std::vector<int> members;
};

// One rank's side of a program. The steps come from a generator that is the same on all ranks; every rank draws the
// same numbers, also for steps that other ranks take.
class Program {
 public:
  Program(Self& self, std::uint64_t seed) : self_(self), common_(seed), own_(seed * 1000 + self.rank) {
    std::vector<int> all;
    for (int rank = 0; rank < self.ranks; ++rank) all.push_back(rank);
    teams_.push_back({self.comm, all});
    for (koloStream_t& stream : streams_) EXPECT_OK(self_, koloStreamCreate(&stream));
    EXPECT_OK(self_, koloEventCreate(&event_));
  }

  void run() {
    for (step_ = 0; step_ < kSteps && self_.faults.empty(); ++step_) {
      switch (common_() % 12) {
        case 0: split(); break;
        case 1: makeGroup(); break;
        case 2: destroy(); break;
        case 3: window(); break;
        case 4: joinStreams(); break;
        case 5: severalInOneGroup(); break;
        case 6:
        case 7: messages(); break;
        default: collective();
      }
      waitForSome();
    }
    // Others wait for a rank that stops in between.
    if (!self_.faults.empty()) {
      for (const Team& team : teams_) {
        if (isIn(team)) koloCommAbort(team.comm);
      }
      return;
    }
    while (teams_.size() > 1) destroyLast();
    finishAll();
    for (const koloStream_t stream : streams_) EXPECT_OK(self_, koloStreamDestroy(stream));
    EXPECT_OK(self_, koloEventDestroy(event_));
    expectWorks(self_);
  }

 private:
  using Check = std::function<void()>;
  struct Pending {
    koloRequest_t request;
    Check check;
  };
  enum class Mode { kBlocking, kStream, kRequest };

  // The teams stand in one order on all ranks. On a rank that is no member, a team has no communicator.
  const Team& drawTeam() { return teams_[common_() % teams_.size()]; }
  static bool isIn(const Team& team) { return team.comm != nullptr; }
  int placeOf(const Team& team) const { return placeIn(team.members, self_.rank); }
  size_t drawCount() { return kLengths[common_() % kLengths.size()]; }
  // How many elements, how the call is waited for, and of which stream it is if it is a stream's.
  struct Manner {
    size_t count;
    Mode mode;
    size_t stream;
  };
  Manner drawManner() {
    return {.count = drawCount(), .mode = static_cast<Mode>(common_() % 3), .stream = common_() % kStreams};
  }

  // What has been started is checked once it is done.
  void later(size_t stream, Check check) { ofStreams_[stream].push_back(std::move(check)); }
  void later(koloRequest_t request, Check check) { pending_.push_back({request, std::move(check)}); }

  void finishOne(size_t index) {
    const Pending one = pending_[index];
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
    if (one.request == nullptr) return;
    EXPECT_OK(self_, koloRequestWait(one.request, -1));
    EXPECT_OK(self_, koloRequestFree(one.request));
    one.check();
  }
  void synchronize(size_t stream) {
    EXPECT_OK(self_, koloStreamSynchronize(streams_[stream]));
    for (const Check& check : ofStreams_[stream]) check();
    ofStreams_[stream].clear();
  }
  void finishAll() {
    while (!pending_.empty()) finishOne(0);
    for (size_t stream = 0; stream < kStreams; ++stream) synchronize(stream);
  }
  void waitForSome() {
    switch (own_() % 8) {
      case 0: synchronize(own_() % kStreams); break;
      case 1:
        while (!pending_.empty()) finishOne(own_() % pending_.size());
        break;
      case 2:
      case 3:
        if (!pending_.empty()) finishOne(own_() % pending_.size());
        break;
      case 4:
        for (const Pending& one : pending_) koloRequestTest(one.request);
        break;
      default: break;
    }
  }

  // Operands of one collective: the sum over the members of their place in the world and the number of the step.
  struct Operands {
    std::vector<int> send, recv;
    int sum = 0;
    Operands(const Team& team, int rank, int step, size_t count) : send(count, rank + step), recv(count, -1) {
      for (const int member : team.members) sum += member + step;
    }
  };
  Check checkOf(const std::shared_ptr<Operands>& operands) {
    return [this, operands, step = step_] {
      if (!std::all_of(operands->recv.begin(), operands->recv.end(), [&](int value) { return value == operands->sum; }))
        self_.fault(KOLO_HERE, "wrong sum of step " + std::to_string(step));
    };
  }

  void collective() {
    const Team& team = drawTeam();
    const auto [count, mode, stream] = drawManner();
    if (!isIn(team)) return;
    const auto operands = std::make_shared<Operands>(team, self_.rank, step_, count);
    const void* const send = operands->send.data();
    void* const recv = operands->recv.data();
    const Check check = checkOf(operands);
    if (mode == Mode::kRequest) {
      koloRequest_t request = nullptr;
      EXPECT_OK(self_, koloIallReduce(send, recv, count, koloInt32, koloSum, team.comm, &request));
      return later(request, check);
    }
    const koloStream_t on = mode == Mode::kStream ? streams_[stream] : nullptr;
    EXPECT_OK(self_, koloAllReduce(send, recv, count, koloInt32, koloSum, team.comm, on));
    mode == Mode::kStream ? later(stream, check) : check();
  }

  // Every member sends to the next one and receives from the one before, itself included where it is alone.
  void messages() {
    const Team& team = drawTeam();
    const auto [count, mode, stream] = drawManner();
    if (!isIn(team)) return;
    const int ranks = static_cast<int>(team.members.size()), place = placeOf(team);
    const int to = (place + 1) % ranks, from = (place + ranks - 1) % ranks;
    const auto operands = std::make_shared<Operands>(team, self_.rank, step_, count);
    operands->sum = team.members[static_cast<size_t>(from)] + step_;
    const Check check = checkOf(operands);
    if (mode == Mode::kRequest) {
      koloRequest_t in = nullptr, out = nullptr;
      EXPECT_OK(self_, koloIrecv(operands->recv.data(), count, koloInt32, from, step_, nullptr, team.comm, &in));
      EXPECT_OK(self_, koloIsend(operands->send.data(), count, koloInt32, to, step_, team.comm, &out));
      later(in, check);
      return later(out, [operands] {});
    }
    const koloStream_t on = mode == Mode::kStream ? streams_[stream] : nullptr;
    EXPECT_OK(self_, koloGroupStart());
    EXPECT_OK(self_, koloSendTag(operands->send.data(), count, koloInt32, to, step_, team.comm, on));
    EXPECT_OK(self_, koloRecvTag(operands->recv.data(), count, koloInt32, from, step_, nullptr, team.comm, on));
    EXPECT_OK(self_, koloGroupEnd());
    mode == Mode::kStream ? later(stream, check) : check();
  }

  // A collective on each communicator, together.
  void severalInOneGroup() {
    const auto [count, mode, stream] = drawManner();
    std::vector<Check> checks;
    const koloStream_t on = mode == Mode::kStream ? streams_[stream] : nullptr;
    EXPECT_OK(self_, koloGroupStart());
    for (const Team& team : teams_) {
      if (!isIn(team)) continue;
      const auto operands = std::make_shared<Operands>(team, self_.rank, step_, count);
      EXPECT_OK(self_,
                koloAllReduce(operands->send.data(), operands->recv.data(), count, koloInt32, koloSum, team.comm, on));
      checks.push_back(checkOf(operands));
    }
    const Check all = [checks] {
      for (const Check& check : checks) check();
    };
    if (mode == Mode::kRequest) {
      koloRequest_t request = nullptr;
      EXPECT_OK(self_, koloIgroupEnd(&request));
      return later(request, all);
    }
    EXPECT_OK(self_, koloGroupEnd());
    mode == Mode::kStream ? later(stream, all) : all();
  }

  void window() {
    const Team& team = drawTeam();
    const size_t count = drawCount() + 1;
    if (!isIn(team)) return;
    void* memory = nullptr;
    koloWindow_t window = nullptr;
    EXPECT_OK(self_, koloMemAlloc(&memory, 2 * count * sizeof(int)));
    EXPECT_OK(self_, koloWindowRegister(team.comm, memory, 2 * count * sizeof(int), &window));
    int* const send = static_cast<int*>(memory);
    const Operands expected(team, self_.rank, step_, 0);
    std::fill_n(send, count, self_.rank + step_);
    EXPECT_OK(self_, koloAllReduce(send, send + count, count, koloInt32, koloSum, team.comm, nullptr));
    EXPECT(self_, std::all_of(send + count, send + 2 * count, [&](int value) { return value == expected.sum; }));
    EXPECT_OK(self_, koloWindowDeregister(team.comm, window));
    EXPECT_OK(self_, koloMemFree(memory));
  }

  // What the second stream does from now on waits for what the first one has.
  void joinStreams() {
    const size_t first = common_() % kStreams, second = common_() % kStreams;
    EXPECT_OK(self_, koloEventRecord(event_, streams_[first]));
    EXPECT_OK(self_, koloStreamWaitEvent(streams_[second], event_));
  }

  void split() {
    if (teams_.size() == kMostComms) return;
    const Team parent = drawTeam();
    const size_t colors = 1 + common_() % 3;
    // Each of the colors is a team of its own on its members; on a rank only that of its own color has a communicator.
    std::vector<Team> made(colors);
    for (size_t i = 0; i < parent.members.size(); ++i) made[i % colors].members.push_back(parent.members[i]);
    if (isIn(parent)) {
      const size_t color = static_cast<size_t>(placeOf(parent)) % colors;
      EXPECT_OK(self_, koloCommSplit(parent.comm, static_cast<int>(color), 0, &made[color].comm, nullptr));
    }
    keep(made);
  }
  void makeGroup() {
    if (teams_.size() == kMostComms) return;
    const Team parent = drawTeam();
    std::vector<int> places;
    for (size_t i = 0; i < parent.members.size(); ++i) places.push_back(static_cast<int>(i));
    std::shuffle(places.begin(), places.end(), common_);
    places.resize(1 + common_() % places.size());
    Team made{nullptr, {}};
    for (const int place : places) made.members.push_back(parent.members[static_cast<size_t>(place)]);
    if (isIn(parent) && placeIn(places, placeOf(parent)) >= 0) {
      // A name of its own, for a group that exists is the same one again.
      EXPECT_OK(self_, koloCommCreateGroup(parent.comm, places.data(), static_cast<int>(places.size()),
                                           ("step " + std::to_string(step_)).c_str(), &made.comm, nullptr));
    }
    keep({made});
  }
  void keep(const std::vector<Team>& made) {
    for (const Team& team : made) {
      if (!team.members.empty()) teams_.push_back(team);
    }
  }

  // Ends the youngest communicator. A receive for which no message has come would fail.
  void destroy() {
    if (teams_.size() > 1) destroyLast();
  }
  void destroyLast() {
    finishAll();
    if (isIn(teams_.back())) EXPECT_OK(self_, koloCommDestroy(teams_.back().comm));
    teams_.pop_back();
  }

  Self& self_;
  Random common_, own_;
  int step_ = 0;
  std::vector<Team> teams_;
  std::array<koloStream_t, kStreams> streams_{};
  std::array<std::vector<Check>, kStreams> ofStreams_;
  std::vector<Pending> pending_;
  koloEvent_t event_ = nullptr;
};

}  // namespace

TEST_CASE("random programs of streams, requests, groups, messages, windows and communicators", "[threads][links]") {
  const int ranks = GENERATE_RANKS(2, 3, 5);
  for (Rounds rounds(30 + ranks); rounds.next();) {
    const World world(ranks);
    world.run([&](Self& self) { Program(self, rounds.seed()).run(); });
  }
}
