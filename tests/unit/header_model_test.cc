// The arguments of src/device/link.h, tried in every interleaving: that two header lines for each directed pair are enough
// (and one is not), and that slots are not written before they are free nor read before they are full.
#include <catch2/catch.hpp>

#include <array>
#include <functional>
#include <set>
#include <vector>

namespace {

constexpr int kRanks = 2;

// One rank's state in the header model. A program of an operation: announce, meet, read the peer's header once more (as
// zero-copy addresses are read late in an operation), on to the next. Some operations let the peer go first: they meet
// before they announce, as one side of a barrier does.
enum Step { kAnnounceFields, kAnnounceNumber, kMeet, kReadAgain, kSteps };

struct Rank {
  int operation = 1;
  int step = 0;
  auto operator<=>(const Rank&) const = default;
};

// A header as it lies in memory: its number and its fields are written one after the other, fields first.
struct Line {
  int number = 0;
  int fields = 0;
  auto operator<=>(const Line&) const = default;
};

struct HeaderState {
  std::array<Rank, kRanks> ranks;
  std::array<std::array<Line, 2>, kRanks> inbox;   // [reader][line]
  auto operator<=>(const HeaderState&) const = default;
};

class HeaderModel {
 public:
  // meetsFirst: in operations of even number rank 0 meets before it announces.
  HeaderModel(int lines, int operations, bool meetsFirst) : lines_(lines), operations_(operations), meetsFirst_(meetsFirst) {}

  // Whether some interleaving reads a header that is not the one expected, or comes to a standstill.
  bool goesWrong() {
    std::vector<HeaderState> left = {HeaderState{}};
    while (!left.empty()) {
      const HeaderState state = left.back();
      left.pop_back();
      if (!seen_.insert(state).second) continue;
      bool moved = false, ended = true;
      for (int rank = 0; rank < kRanks; ++rank) {
        if (state.ranks[at(rank)].operation > operations_) continue;
        ended = false;
        HeaderState next = state;
        bool wrong = false;
        if (!advance(next, rank, wrong)) continue;
        if (wrong) return true;
        moved = true;
        left.push_back(next);
      }
      if (!moved && !ended) return true;
    }
    return false;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  Step stepOf(const Rank& rank, int index) const {
    static constexpr Step kPlain[] = {kAnnounceFields, kAnnounceNumber, kMeet, kReadAgain};
    static constexpr Step kMeetsFirst[] = {kMeet, kReadAgain, kAnnounceFields, kAnnounceNumber};
    const bool first = meetsFirst_ && index == 0 && rank.operation % 2 == 0;
    return (first ? kMeetsFirst : kPlain)[rank.step];
  }

  // One step of a rank, if it can take it.
  bool advance(HeaderState& state, int index, bool& wrong) const {
    Rank& rank = state.ranks[at(index)];
    const int number = rank.operation;
    Line& theirs = state.inbox[at(1 - index)][at(number % lines_)];
    const Line& mine = state.inbox[at(index)][at(number % lines_)];
    switch (stepOf(rank, index)) {
      case kAnnounceFields: theirs.fields = number; break;
      case kAnnounceNumber: theirs.number = number; break;   // released after the fields: never seen before them
      case kMeet:
        if (mine.number < number) return false;
        wrong = mine.number != number || mine.fields != number;
        break;
      case kReadAgain: wrong = mine.fields != number; break;
      case kSteps: break;
    }
    if (++rank.step == kSteps) rank = {number + 1, 0};
    return true;
  }

  int lines_;
  int operations_;
  bool meetsFirst_;
  std::set<HeaderState> seen_;
};

TEST_CASE("header lines: with two, no interleaving reads a wrong header or stands still") {
  for (const bool meetsFirst : {false, true}) {
    HeaderModel model(2, 6, meetsFirst);
    CHECK_FALSE(model.goesWrong());
    CHECK(model.states() > 50);   // it did look at interleavings
  }
}

TEST_CASE("header lines: one is not enough") { CHECK(HeaderModel(1, 3, false).goesWrong()); }

// ---- slots: a sender and a receiver on one directed pair

struct SlotState {
  int putChunks = 0;      // by the sender, published in tail
  int takenChunks = 0;    // by the receiver, published in head
  bool writing = false;   // the sender is in the middle of a slot
  bool reading = false;   // the receiver is
  std::array<int, 4> slots{};
  auto operator<=>(const SlotState&) const = default;
};

// Whether some interleaving of `chunks` chunks reads a slot that does not hold the chunk expected, or stands still.
// credit: how many chunks the sender may be ahead of the receiver (right: the number of slots).
bool slotsGoWrong(int slots, int credit, int chunks) {
  std::set<SlotState> seen;
  std::vector<SlotState> left = {SlotState{}};
  while (!left.empty()) {
    const SlotState state = left.back();
    left.pop_back();
    if (!seen.insert(state).second) continue;
    bool moved = false;
    const auto slot = [&](int chunk) { return static_cast<std::size_t>(chunk % slots); };
    if (state.putChunks < chunks) {
      SlotState next = state;
      const int chunk = state.putChunks + 1;
      if (state.writing) {   // publish
        next.writing = false;
        next.putChunks = chunk;
        left.push_back(next);
        moved = true;
      } else if (chunk - state.takenChunks <= credit) {
        next.writing = true;
        next.slots[slot(chunk)] = chunk;
        left.push_back(next);
        moved = true;
      }
    }
    if (state.takenChunks < chunks) {
      SlotState next = state;
      const int chunk = state.takenChunks + 1;
      if (state.reading) {   // the last load, then release
        if (state.slots[slot(chunk)] != chunk) return true;
        next.reading = false;
        next.takenChunks = chunk;
        left.push_back(next);
        moved = true;
      } else if (state.putChunks >= chunk) {
        if (state.slots[slot(chunk)] != chunk) return true;
        next.reading = true;
        left.push_back(next);
        moved = true;
      }
    }
    if (!moved && (state.putChunks < chunks || state.takenChunks < chunks)) return true;
  }
  return false;
}

TEST_CASE("slots: with one to four of them every chunk is read whole, in every interleaving") {
  for (int slots = 1; slots <= 4; ++slots) CHECK_FALSE(slotsGoWrong(slots, slots, 9));
}

TEST_CASE("slots: a sender that is one chunk too far ahead overwrites what is being read") {
  for (int slots = 1; slots <= 4; ++slots) CHECK(slotsGoWrong(slots, slots + 1, 9));
  CHECK(slotsGoWrong(2, 0, 3));   // without credit nothing moves
}

}  // namespace
