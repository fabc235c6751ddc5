// The agreement of src/executor/cuda/resident.h, tried in every interleaving, with the store buffers that processors
// have: that no launch is left without an instance of the kernel, that every block executes every launch once, in
// order, and not before it is rung, that `done` is said after all of them and before `completed`, that an instance
// retires when nothing is left and ends when it is told to, and that none of the agreement's parts can be left out.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace resident_model {
namespace {

using Small = std::uint8_t;

constexpr std::size_t kBlocks = 2;      // block 0, and one of the others, which know nothing of each other
constexpr std::size_t kHost = kBlocks;  // the writers are the blocks and the host
constexpr std::size_t kWriters = kBlocks + 1;
constexpr std::size_t kBuffered = 4;  // stores of a writer on their way
constexpr std::size_t kMostLaunches = 4;

// The counters that are stored to. The stream's and the blocks' atomic one are visible at once.
enum Word : Small { kNone, kEnqueued, kQuit, kAsleep, kLeavingAfter, kLeavingInstance, kDone, kCompleted, kWords };

// kGive: between two launches; the next, or, after the last, waits until all is done and says that it quits.
enum HostStep : Small { kGive, kFenceOfHost, kLookAsleep, kRing, kLaunch, kAwaitLaunched, kSynchronize, kGone };
// awaitLaunch(), then the rest of serveBlock()'s loop. kLookAfter is the other block's; what follows it, up to
// kSayLeaving, block 0's.
enum BlockStep : Small {
  kOut,
  kPoll,
  kLook,
  kLookAfter,
  kSayAsleep,
  kFence,
  kLookEnqueued,
  kSayLeaving,
  kRun,
  kArrive
};

struct Block {
  Small step = kOut;
  Small quits = 0;
  Small served = 0;    // ChannelState::served: it outlives the instance
  Small servedIn = 0;  // the instance in which it executed the last one
  bool operator==(const Block&) const = default;
};

struct Store {
  Small word = kNone;
  Small value = 0;
  bool operator==(const Store&) const = default;
};

struct State {
  Small hostStep = kGive;
  Small given = 0;
  Small instances = 0;         // that the host has decided on
  Small launched = 0;          // of them
  Small begun = 0, ended = 0;  // of those; the one that runs, if any, is the one begun last
  Small inStream = 0;          // launches whose ring and wait stand in the stream
  Small rung = 0, arrivals = 0;
  std::array<Small, kMostLaunches + 1> first{};  // by instance: the launch for which it was launched
  std::array<Small, kMostLaunches + 1>
      instanceAt{};                    // by launch: the last instance launched when its ring was put into the stream
  std::array<Small, kWords> memory{};  // as the others see it
  std::array<Block, kBlocks> blocks{};
  std::array<std::array<Store, kBuffered>, kWriters> buffers{};  // oldest first
  bool operator==(const State&) const = default;
};
static_assert(std::has_unique_object_representations_v<State>, "hashed as bytes");

struct Hash {
  std::size_t operator()(const State& state) const {
    std::array<Small, sizeof(State)> bytes;
    std::memcpy(bytes.data(), &state, sizeof state);
    std::uint64_t hash = 14695981039346656037U;  // FNV-1a
    for (const Small byte : bytes) hash = (hash ^ byte) * 1099511628211U;
    return static_cast<std::size_t>(hash ^ (hash >> 29));
  }
};

struct Rules {
  bool hostFences = true;
  bool kernelFences = true;
  bool ringsSayWho = true;      // else a ring does not say that the launch is the first of a new instance
  bool asleepFirst = true;      // else block 0 looks at `enqueued`, then says that it is asleep
  bool namesInstance = true;    // else `leavingAfter` holds for whatever instance reads it, once anybody has left
  bool servesTheRest = true;    // else the other block leaves as soon as block 0 does
  bool othersLook = true;       // else the other block does not look whether block 0 leaves
  bool looksAtQuit = true;      // else block 0 does not
  bool launchesAtEqual = true;  // else the host launches only when asleep > instances
  bool streamWaits = true;      // else it rings for a launch before the one before is done
  bool countsArrivals = true;   // else every block says `done`
  bool doneFirst = true;        // else the host is told that the launch is done before the stream is
  bool ringsFirst = true;       // else the instance is launched, and then its stream rings for it
  bool launchesBlock = false;   // a launch returns when the instance has ended
  bool sharesQueue = false;     // the streams and the kernel's are one queue to the hardware: what is behind waits
};

enum class Flaw {
  kNothing,
  kOutOfOrder,    // a block begins a launch that is not the one that has been rung
  kDoneTooEarly,  // `done` is said before a block has executed the launch
  kStreamIsLate,  // the host has seen a launch as done whose stream still waits: for a store to the host's memory,
                  // which is far away
  kSplit,         // blocks execute a launch in different instances: on two ranks they may wait for each other for ever
  kTooMany,       // more than one instance waits for the one that runs
  kLeftBehind,    // what was given may never be done, unless the host does more
  kStays,         // an instance may never retire, although nothing is left
  kIgnoresQuit,   // or wait for its idle time to pass, although the host quits
  kNeverEnds,     // there is a state from which the end is not reached
};

// What makes a step possible.
enum class By : Small { kItself, kHost, kTime, kNobody };

class ResidentModel {
 public:
  ResidentModel(const Rules& rules, int launches) : rules_(rules), launches_(static_cast<Small>(launches)) {}

  Flaw explore() {
    add(State{}, By::kItself);
    for (std::size_t i = 0; i < states_.size() && flaw_ == Flaw::kNothing; ++i) {
      from_ = i;
      const State state = states_[i];  // a copy: the vector grows
      stepHost(state);
      stepStream(state);
      stepInstances(state);
      for (std::size_t writer = 0; writer < kWriters; ++writer) stepMemory(state, writer);
      for (std::size_t block = 0; block < kBlocks; ++block) stepBlock(state, block);
    }
    if (flaw_ != Flaw::kNothing) return flaw_;
    const auto betweenLaunches = [](const State& s) { return s.hostStep == kGive; };
    const auto done = [](const State& s) { return s.memory[kDone] == s.given; };
    const auto quiet = [&](const State& s) { return done(s) && s.ended == s.instances; };
    const auto quits = [](const State& s) { return s.hostStep == kSynchronize; };
    const auto gone = [](const State& s) { return s.hostStep == kGone; };
    const auto all = [](const State&) { return true; };
    if (!alwaysReaches(betweenLaunches, done, By::kHost)) return Flaw::kLeftBehind;
    if (!alwaysReaches(betweenLaunches, quiet, By::kHost)) return Flaw::kStays;
    if (!alwaysReaches(quits, gone, By::kTime)) return Flaw::kIgnoresQuit;
    if (!alwaysReaches(all, gone, By::kNobody)) return Flaw::kNeverEnds;
    return Flaw::kNothing;
  }
  std::size_t states() const { return states_.size(); }

 private:
  struct Edge {
    std::uint32_t from, to;
    By by;
  };

  void add(const State& state, By by) {
    const auto [at, isNew] = index_.try_emplace(state, static_cast<std::uint32_t>(states_.size()));
    if (isNew) states_.push_back(state);
    if (at->second != from_) edges_.push_back({static_cast<std::uint32_t>(from_), at->second, by});
  }
  void expect(bool holds, Flaw flaw) {
    if (!holds && flaw_ == Flaw::kNothing) flaw_ = flaw;
  }

  // ---- memory

  static bool isEmpty(const State& s, std::size_t writer) { return s.buffers[writer][0].word == kNone; }
  // The writer's oldest store becomes visible.
  static void drainOne(State& s, std::size_t writer) {
    auto& buffer = s.buffers[writer];
    s.memory[buffer[0].word] = buffer[0].value;
    std::move(buffer.begin() + 1, buffer.end(), buffer.begin());
    buffer.back() = {};
  }
  static void drain(State& s, std::size_t writer) {
    while (!isEmpty(s, writer)) drainOne(s, writer);
  }
  static void store(State& s, std::size_t writer, Word word, Small value) {
    auto& buffer = s.buffers[writer];
    if (buffer.back().word != kNone) drainOne(s, writer);
    *std::find_if(buffer.begin(), buffer.end(), [](const Store& each) { return each.word == kNone; }) = {word, value};
  }
  void stepMemory(State s, std::size_t writer) {
    if (isEmpty(s, writer)) return;
    drainOne(s, writer);
    expect(s.memory[kCompleted] <= s.memory[kDone], Flaw::kStreamIsLate);
    add(s, By::kItself);
  }

  // ---- Engine::ring(), and ~Engine()

  void stepHost(State s) {
    switch (s.hostStep) {
      case kGive:
        if (s.given == launches_) {
          if (s.memory[kDone] < launches_) return;  // the stream's last event
          store(s, kHost, kQuit, 1);                // [quit]
          s.hostStep = kSynchronize;
          break;
        }
        store(s, kHost, kEnqueued, ++s.given);  // [enqueued]
        s.hostStep = kFenceOfHost;
        break;
      case kFenceOfHost:
        if (rules_.hostFences) drain(s, kHost);
        s.hostStep = kLookAsleep;
        break;
      case kLookAsleep: {  // [asleep]
        const Small asleep = s.memory[kAsleep];
        if (rules_.launchesAtEqual ? asleep >= s.instances : asleep > s.instances) {
          s.first[++s.instances] = s.given;
        }
        expect(s.instances - s.ended <= 2, Flaw::kTooMany);
        s.hostStep = s.launched < s.instances && !rules_.ringsFirst ? kLaunch : kRing;
        break;
      }
      case kRing:
        s.instanceAt[++s.inStream] = s.launched;
        s.hostStep = s.launched < s.instances ? kLaunch : kGive;
        break;
      case kLaunch:
        s.launched = s.instances;
        s.hostStep = rules_.launchesBlock ? kAwaitLaunched : s.inStream < s.given ? kRing : kGive;
        break;
      case kAwaitLaunched:
        if (s.ended < s.launched) return;
        s.hostStep = s.inStream < s.given ? kRing : kGive;
        break;
      case kSynchronize:
        if (s.ended < s.instances) return;
        s.hostStep = kGone;
        break;
      default: return;
    }
    add(s, By::kHost);
  }

  // Rings for one launch when the wait for the one before is over.
  void stepStream(State s) {
    if (s.rung == s.inStream || (rules_.streamWaits && s.memory[kDone] < s.rung)) return;
    if (rules_.sharesQueue && s.begun < s.instanceAt[s.rung + 1U]) return;
    ++s.rung;  // [doorbell]
    add(s, By::kItself);
  }

  // Those of one stream run one after the other; what an instance has stored is visible when it has ended.
  void stepInstances(State s) {
    if (s.begun == s.ended) {
      if (s.begun == s.launched) return;
      const Small first = s.first[s.begun + 1U];
      if (rules_.sharesQueue && (rules_.ringsFirst ? s.rung : s.memory[kDone] + 1) < first) return;
      ++s.begun;
      for (Block& block : s.blocks) block.step = kPoll;
    } else {
      for (std::size_t i = 0; i < kBlocks; ++i) {
        if (s.blocks[i].step != kOut || !isEmpty(s, i)) return;
      }
      ++s.ended;
    }
    add(s, By::kItself);
  }

  // ---- awaitLaunch() and serveBlock()

  void stepBlock(State s, std::size_t i) {
    Block& block = s.blocks[i];
    switch (block.step) {
      case kPoll:  // [doorbell]
        block.step = s.rung <= block.served ? kLook : isForNext(s, s.rung) ? kOut : kRun;
        break;
      case kRun:
        expect(s.rung == block.served + 1, Flaw::kOutOfOrder);
        ++block.served;
        block.servedIn = s.begun;
        for (const Block& each : s.blocks)
          expect(each.served != block.served || each.servedIn == s.begun, Flaw::kSplit);
        block.step = kArrive;
        break;
      case kArrive:
        drain(s, i);
        if (++s.arrivals == block.served * kBlocks || !rules_.countsArrivals) sayDone(s, i);
        block.step = kPoll;
        break;
      case kOut: return;
      default: add(s, i == 0 ? idle(s) : follow(s, i)); return;
    }
    add(s, By::kItself);
  }

  // What a ring's lowest bit says: an instance was launched for this launch; and it is not this one.
  bool isForNext(const State& s, Small launch) const {
    const bool opens = std::find(s.first.begin() + 1, s.first.end(), launch) != s.first.end();
    return rules_.ringsSayWho && opens && launch != s.first[s.begun];
  }

  // Two releases: the second one becomes visible after the first.
  void sayDone(State& s, std::size_t i) {
    const Small served = s.blocks[i].served;
    for (const Block& each : s.blocks) expect(each.served >= served, Flaw::kDoneTooEarly);
    if (!rules_.doneFirst) store(s, i, kCompleted, served);
    store(s, i, kDone, served);                             // [done launch]
    if (rules_.doneFirst) store(s, i, kCompleted, served);  // [completed]
  }

  // The other block, when nothing has been rung.
  By follow(State& s, std::size_t i) const {
    Block& block = s.blocks[i];
    if (block.step == kLook) {  // [leaving]
      const Small instance = s.memory[kLeavingInstance];
      const bool leaving = rules_.namesInstance ? instance == s.begun : instance != 0;
      block.step = leaving && rules_.othersLook ? kLookAfter : kPoll;
    } else {
      const bool mayLeave = block.served >= s.memory[kLeavingAfter] || !rules_.servesTheRest;
      block.step = mayLeave ? kOut : kPoll;
    }
    return By::kItself;
  }

  // Block 0, when nothing has been rung.
  By idle(State& s) {
    Block& block = s.blocks[0];
    switch (block.step) {
      case kLook:
        block.quits = rules_.looksAtQuit ? s.memory[kQuit] : 0;  // [quit]
        block.step = rules_.asleepFirst ? kSayAsleep : kLookEnqueued;
        if (block.quits == 0) {  // only if it has been idle for long; else it polls again
          State soon = s;
          soon.blocks[0].step = kPoll;
          add(soon, By::kItself);
          return By::kTime;
        }
        break;
      case kSayAsleep:
        store(s, 0, kAsleep, s.begun);  // [asleep]
        block.step = kFence;
        break;
      case kFence:
        if (rules_.kernelFences) drain(s, 0);
        block.step = rules_.asleepFirst ? kLookEnqueued : kSayLeaving;
        break;
      case kLookEnqueued: {  // [enqueued]
        const bool stays = block.quits == 0 && s.memory[kEnqueued] > block.served;
        block.step = stays ? kPoll : rules_.asleepFirst ? kSayLeaving : kSayAsleep;
        break;
      }
      default:
        store(s, 0, kLeavingAfter, block.served);
        store(s, 0, kLeavingInstance, s.begun);  // [leaving]
        block.quits = 0;
        block.step = kOut;
    }
    return By::kItself;
  }

  // ---- what can still happen

  // Whether every state that is `from` can still become one that is `to`, by steps that `without` does not make
  // possible.
  template <class From, class To>
  bool alwaysReaches(const From& from, const To& to, By without) const {
    std::vector<std::uint32_t> begins(states_.size() + 1, 0), origins(edges_.size());
    for (const Edge& edge : edges_) ++begins[edge.to + 1];
    for (std::size_t i = 1; i < begins.size(); ++i) begins[i] += begins[i - 1];
    std::vector<std::uint32_t> ends(begins.begin(), begins.end() - 1);
    for (const Edge& edge : edges_) {
      if (edge.by != without) origins[ends[edge.to]++] = edge.from;
    }
    std::vector<char> reaches(states_.size(), 0);
    std::vector<std::uint32_t> left;
    const auto mark = [&](std::uint32_t i) {
      if (std::exchange(reaches[i], 1) == 0) left.push_back(i);
    };
    for (std::uint32_t i = 0; i < states_.size(); ++i) {
      if (to(states_[i])) mark(i);
    }
    while (!left.empty()) {
      const std::uint32_t i = left.back();
      left.pop_back();
      for (std::uint32_t e = begins[i]; e < ends[i]; ++e) mark(origins[e]);
    }
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (from(states_[i]) && reaches[i] == 0) return false;
    }
    return true;
  }

  Rules rules_;
  Small launches_;
  Flaw flaw_ = Flaw::kNothing;
  std::size_t from_ = 0;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::unordered_map<State, std::uint32_t, Hash> index_;
};

Flaw flawOf(const Rules& rules, int launches = 2) { return ResidentModel(rules, launches).explore(); }

}  // namespace

TEST_CASE("resident kernel: in no interleaving is a launch left behind, done twice or too early", "[resident][model]") {
  for (int launches = 0; launches <= static_cast<int>(kMostLaunches); ++launches) {
    CHECK(flawOf({.sharesQueue = true}, launches) == Flaw::kNothing);
    CHECK(flawOf({.launchesBlock = true}, launches) == Flaw::kNothing);
    CHECK(flawOf({.launchesBlock = true, .sharesQueue = true}, launches) == Flaw::kNothing);
    ResidentModel model({.sharesQueue = false}, launches);
    CHECK(model.explore() == Flaw::kNothing);
    CHECK(model.states() > (launches == static_cast<int>(kMostLaunches) ? 20'000 : 1));  // it did look at interleavings
  }
}

TEST_CASE("resident kernel: no part of the agreement can be left out", "[resident][model]") {
  CHECK(flawOf({.hostFences = false}) == Flaw::kLeftBehind);
  CHECK(flawOf({.kernelFences = false}) == Flaw::kLeftBehind);
  CHECK(flawOf({.asleepFirst = false}) == Flaw::kLeftBehind);
  CHECK(flawOf({.namesInstance = false}) == Flaw::kLeftBehind);
  CHECK(flawOf({.servesTheRest = false}) == Flaw::kLeftBehind);
  CHECK(flawOf({.launchesAtEqual = false}) == Flaw::kLeftBehind);
  CHECK(flawOf({.ringsSayWho = false}) == Flaw::kSplit);
  CHECK(flawOf({.othersLook = false}, 1) == Flaw::kStays);
  CHECK(flawOf({.looksAtQuit = false}) == Flaw::kIgnoresQuit);
  CHECK(flawOf({.streamWaits = false}) == Flaw::kOutOfOrder);
  CHECK(flawOf({.countsArrivals = false}) == Flaw::kDoneTooEarly);
  CHECK(flawOf({.doneFirst = false}) == Flaw::kStreamIsLate);
  CHECK(flawOf({.ringsFirst = false, .sharesQueue = true}) == Flaw::kLeftBehind);
  CHECK(flawOf({.ringsFirst = false, .launchesBlock = true}) == Flaw::kNeverEnds);
}

}  // namespace resident_model
