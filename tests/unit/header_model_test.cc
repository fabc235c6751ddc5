// The arguments of src/device/link.h, tried in every interleaving: that 2 m header lines for each directed pair are
// enough when up to m headers may be left unread (and fewer are not), and that slots are not written before they are
// free nor read before they are full.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <set>
#include <vector>

namespace header_model {
namespace {

constexpr int kRanks = 2;
constexpr int kMostLines = 6;

// One rank's state in the header model. An operation: announce (fields, then the number), read all of the peer's
// headers up to this operation's, read that one once more (as zero-copy addresses are read late in an operation), on to
// the next. A rank that only gives goes on after announcing. Which rank gives in which operation is tried both ways. In
// some operations one side reads before it announces, as in a barrier.
enum Step { kAnnounceFields, kAnnounceNumber, kMeet, kReadAgain, kSteps };

struct Rank {
  int operation = 1;
  int step = 0;
  int met = 0;  // headers read
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
  std::array<std::array<Line, kMostLines>, kRanks> inbox;  // [reader][line]
  auto operator<=>(const HeaderState&) const = default;
};

struct Rules {
  int lines;
  int operations;
  int mostOwed;     // 0: nobody gives
  bool meetsFirst;  // in operations of even number rank 0 reads before it announces, and gives in none of them
};

class HeaderModel {
 public:
  explicit HeaderModel(const Rules& rules) : rules_(rules) {}

  // Whether some interleaving reads a header that is not the one expected, or comes to a standstill.
  bool goesWrong() {
    std::vector<HeaderState> left = {HeaderState{}};
    while (!left.empty()) {
      const HeaderState state = left.back();
      left.pop_back();
      if (!seen_.insert(state).second) continue;
      bool moved = false, ended = true;
      for (int rank = 0; rank < kRanks; ++rank) {
        if (state.ranks[at(rank)].operation > rules_.operations) continue;
        ended = false;
        for (const bool gives : {false, true}) {
          HeaderState next = state;
          bool wrong = false;
          if (!(gives ? skip(next, rank) : advance(next, rank, wrong))) continue;
          if (wrong) return true;
          moved = true;
          left.push_back(next);
        }
      }
      if (!moved && !ended) return true;
    }
    return false;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  bool meetsFirst(const Rank& rank, int index) const {
    return rules_.meetsFirst && index == 0 && rank.operation % 2 == 0;
  }

  Step stepOf(const Rank& rank, int index) const {
    static constexpr Step kPlain[] = {kAnnounceFields, kAnnounceNumber, kMeet, kReadAgain};
    static constexpr Step kMeetsFirst[] = {kMeet, kReadAgain, kAnnounceFields, kAnnounceNumber};
    return (meetsFirst(rank, index) ? kMeetsFirst : kPlain)[rank.step];
  }

  // A rank that has announced and only gives goes on without reading.
  bool skip(HeaderState& state, int index) const {
    Rank& rank = state.ranks[at(index)];
    if (rules_.mostOwed == 0 || meetsFirst(rank, index) || stepOf(rank, index) != kMeet) return false;
    rank.operation += 1;
    rank.step = 0;
    return true;
  }

  // Reads the next header that is unread; false if it is not there.
  bool readNext(HeaderState& state, int index, bool& wrong) const {
    Rank& rank = state.ranks[at(index)];
    const Line& line = state.inbox[at(index)][at((rank.met + 1) % rules_.lines)];
    if (line.number < rank.met + 1) return false;
    ++rank.met;
    wrong = line.number != rank.met || line.fields != rank.met;
    return true;
  }

  // One step of a rank, if it can take it.
  bool advance(HeaderState& state, int index, bool& wrong) const {
    Rank& rank = state.ranks[at(index)];
    const int number = rank.operation;
    Line& theirs = state.inbox[at(1 - index)][at(number % rules_.lines)];
    switch (stepOf(rank, index)) {
      case kAnnounceFields:
        // Before the announcement at most mostOwed - 1 headers of earlier operations may be unread.
        if (rank.met < number - std::max(rules_.mostOwed, 1)) return readNext(state, index, wrong);
        theirs.fields = number;
        break;
      case kAnnounceNumber: theirs.number = number; break;  // released after the fields: never seen before them
      case kMeet:
        if (!readNext(state, index, wrong)) return false;
        if (rank.met < number) return true;  // one that was owed
        break;
      case kReadAgain: wrong = state.inbox[at(index)][at(number % rules_.lines)].fields != number; break;
      case kSteps: break;
    }
    if (++rank.step == kSteps) {
      rank.operation += 1;
      rank.step = 0;
    }
    return true;
  }

  Rules rules_;
  std::set<HeaderState> seen_;
};

TEST_CASE("header lines: with twice as many as may be owed, no interleaving reads a wrong header or stands still") {
  for (const bool meetsFirst : {false, true}) {
    for (int owed = 0; owed <= 3; ++owed) {
      HeaderModel model({.lines = 2 * std::max(owed, 1), .operations = 7, .mostOwed = owed, .meetsFirst = meetsFirst});
      CHECK_FALSE(model.goesWrong());
      CHECK(model.states() > 50);  // it did look at interleavings
    }
  }
}

TEST_CASE("header lines: fewer are not enough") {
  CHECK(HeaderModel({.lines = 1, .operations = 3, .mostOwed = 0, .meetsFirst = false}).goesWrong());
  for (int owed = 1; owed <= 3; ++owed) {
    CHECK(HeaderModel({.lines = 2 * owed - 1, .operations = 7, .mostOwed = owed, .meetsFirst = false}).goesWrong());
  }
}

// ---- slots: a sender and a receiver on one directed pair

struct SlotState {
  int putChunks = 0;     // by the sender, published in tail
  int takenChunks = 0;   // by the receiver, published in head
  bool writing = false;  // the sender is in the middle of a slot
  bool reading = false;  // the receiver is
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
      if (state.writing) {  // publish
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
      if (state.reading) {  // the last load, then release
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
  CHECK(slotsGoWrong(2, 0, 3));  // without credit nothing moves
}

}  // namespace

}  // namespace header_model
