// The arguments of src/device/link.h, tried in every interleaving: that 2 m header lines for each directed pair are
// enough when up to m headers may be left unread (and fewer are not), and that slots are not written before they are
// free nor read before they are full.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <vector>

#include "support/interleavings.h"

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
    const auto isOver = [&](const HeaderState& state) {
      return state.ranks[0].operation > rules_.operations && state.ranks[1].operation > rules_.operations;
    };
    return tried_.goWrong({}, isOver, [&](const HeaderState& state, const auto& goTo) {
      for (int rank = 0; rank < kRanks; ++rank) {
        if (state.ranks[at(rank)].operation > rules_.operations) continue;
        for (const bool gives : {false, true}) {
          HeaderState next = state;
          bool wrong = false;
          if (gives ? skip(next, rank) : advance(next, rank, wrong)) goTo(next, wrong);
        }
      }
    });
  }
  std::size_t states() const { return tried_.states(); }

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
  kolo::tests::Interleavings<HeaderState> tried_;
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
  const auto slot = [&](int chunk) { return static_cast<std::size_t>(chunk % slots); };
  const auto isOver = [&](const SlotState& state) { return state.putChunks == chunks && state.takenChunks == chunks; };
  kolo::tests::Interleavings<SlotState> tried;
  return tried.goWrong({}, isOver, [&](const SlotState& state, const auto& goTo) {
    if (state.putChunks < chunks) {
      SlotState next = state;
      const int chunk = state.putChunks + 1;
      if (state.writing) {  // publish
        next.writing = false;
        next.putChunks = chunk;
        goTo(next, false);
      } else if (chunk - state.takenChunks <= credit) {
        next.writing = true;
        next.slots[slot(chunk)] = chunk;
        goTo(next, false);
      }
    }
    if (state.takenChunks < chunks) {
      SlotState next = state;
      const int chunk = state.takenChunks + 1;
      const bool wrong = state.slots[slot(chunk)] != chunk;
      if (state.reading) {  // the last load, then release
        next.reading = false;
        next.takenChunks = chunk;
        goTo(next, wrong);
      } else if (state.putChunks >= chunk) {
        next.reading = true;
        goTo(next, wrong);
      }
    }
  });
}

TEST_CASE("slots: with one to four of them every chunk is read whole, in every interleaving") {
  for (int slots = 1; slots <= 4; ++slots) CHECK_FALSE(slotsGoWrong(slots, slots, 9));
}

TEST_CASE("slots: a sender that is one chunk too far ahead overwrites what is being read") {
  for (int slots = 1; slots <= 4; ++slots) CHECK(slotsGoWrong(slots, slots + 1, 9));
  CHECK(slotsGoWrong(2, 0, 3));  // without credit nothing moves
}

// ---- the first chunk of an operation, of which the header tells, and the receiver's headers, which show what has been
// taken

// Rank 0 gives chunks to rank 1 in operations that both carry out in order; neither waits for the other's header but
// for what it needs. The giver writes its header with the first chunk, which it tells of, or before (runWith() of
// device/headers.h), as it likes in each operation.
struct GiverState {
  int operation = 1;  // the one that it is in
  int put = 0;        // chunks of that operation
  bool writing = false;
  bool announced = false;  // its header of that operation
  bool first = false;      // that header was written before the first chunk
  auto operator<=>(const GiverState&) const = default;
};
struct TakerState {
  int operation = 1;
  int taken = 0;
  bool reading = false;
  bool announced = false;
  auto operator<=>(const TakerState&) const = default;
};
struct FlowState {
  GiverState giver;
  TakerState taker;
  int giversHeader = 0, takersHeader = 0, tail = 0, head = 0;  // what each has signalled
  unsigned told = 0;  // bits of the operations whose header tells of their first chunk
  std::array<int, 4> slots{};
  auto operator<=>(const FlowState&) const = default;
};
struct FlowRules {
  int slots;
  std::vector<int> chunks;  // of each operation
  int provenBy = 0;         // a header shows that what was put before the giver's header, that many later, was taken
  int uncounted = 0;        // head leaves so many chunks of an operation uncounted, beside those for half of the slots
  bool believes = false;    // the taker takes each header for one that tells of a chunk
};

class FlowModel {
 public:
  explicit FlowModel(const FlowRules& rules) : rules_(rules) {}

  // Whether some interleaving reads a slot that does not hold the chunk expected, or stands still.
  bool goesWrong() {
    const auto isOver = [&](const FlowState& state) {
      return this->isOver(state.giver.operation) && this->isOver(state.taker.operation);
    };
    return tried_.goWrong({}, isOver, [&](const FlowState& state, const auto& goTo) {
      FlowState given = state, taken = state, opened = state;
      bool wrong = false;
      if (take(taken, wrong)) goTo(taken, wrong);
      if (give(given)) goTo(given, false);
      if (open(opened)) goTo(opened, false);
    });
  }

 private:
  bool isOver(int operation) const { return operation > static_cast<int>(rules_.chunks.size()); }
  int chunksOf(int operation) const { return rules_.chunks[static_cast<std::size_t>(operation - 1)]; }
  int before(int operation) const {
    int sum = 0;
    for (int i = 1; i < operation; ++i) sum += chunksOf(i);
    return sum;
  }
  int& slot(FlowState& state, int chunk) const { return state.slots[static_cast<std::size_t>(chunk % rules_.slots)]; }

  // As proofOf(): by the first header that shows it, of those that answer a header of this rank; by head if there is
  // none, or the operation before that header is counted.
  bool isFree(const FlowState& state, int chunk) const {
    const int old = chunk - rules_.slots;
    if (old <= 0) return true;
    // As acquireSlot(): the peer is met before a credit of this operation is waited for.
    if (state.giver.first && old > before(state.giver.operation) && state.takersHeader < state.giver.operation)
      return false;
    const int announced = state.giver.operation - (state.giver.announced ? 0 : 1);
    for (int header = 1; header <= announced; ++header) {
      if (before(header + rules_.provenBy) < old) continue;
      if (header > 1 && chunksOf(header - 1) > rules_.slots / 2) break;
      return state.takersHeader >= header;
    }
    return state.head >= old;
  }

  // The giver's header, before its first chunk.
  bool open(FlowState& state) const {
    GiverState& giver = state.giver;
    if (isOver(giver.operation) || giver.announced || giver.writing) return false;
    state.giversHeader = giver.operation;
    giver.announced = giver.first = true;
    return true;
  }

  bool give(FlowState& state) const {
    GiverState& giver = state.giver;
    if (isOver(giver.operation)) return false;
    const int chunks = chunksOf(giver.operation), chunk = before(giver.operation) + giver.put + 1;
    if (giver.writing) {  // the stores are done: the header tells of a first chunk, the tail of another
      giver.writing = false;
      ++giver.put;
      if (giver.announced) {
        state.tail = chunk;
      } else {
        state.giversHeader = giver.operation;
        state.told |= 1u << giver.operation;
      }
      giver.announced = true;
    } else if (giver.put < chunks) {
      if (!isFree(state, chunk)) return false;
      giver.writing = true;
      slot(state, chunk) = chunk;
    } else {
      state.giversHeader = giver.operation;  // of an operation without chunks; else it has been posted
      giver = {.operation = giver.operation + 1};
    }
    return true;
  }

  bool take(FlowState& state, bool& wrong) const {
    TakerState& taker = state.taker;
    if (isOver(taker.operation)) return false;
    const int chunk = before(taker.operation) + taker.taken + 1;
    if (!taker.announced) {
      taker.announced = true;
      state.takersHeader = taker.operation;
    } else if (state.giversHeader < taker.operation) {
      return false;
    } else if (taker.taken == chunksOf(taker.operation)) {
      taker = {.operation = taker.operation + 1};
    } else if (taker.reading) {
      wrong = slot(state, chunk) != chunk;
      taker.reading = false;
      ++taker.taken;
      if (chunksOf(taker.operation) > rules_.slots / 2 + rules_.uncounted) state.head = chunk;
    } else {
      const bool isTold = taker.taken == 0 && (rules_.believes || (state.told >> taker.operation & 1) != 0);
      if (!isTold && state.tail < chunk) return false;
      wrong = slot(state, chunk) != chunk;
      taker.reading = true;
    }
    return true;
  }

  FlowRules rules_;
  kolo::tests::Interleavings<FlowState> tried_;
};

// All ways to send up to `most` chunks in each of four operations.
void eachFlow(int most, const std::function<void(const std::vector<int>&)>& visit) {
  const int ways = most + 1;
  for (int way = 0; way < ways * ways * ways * ways; ++way) {
    visit({way % ways, way / ways % ways, way / ways / ways % ways, way / ways / ways / ways});
  }
}
bool someGoWrong(FlowRules rules) {
  bool wrong = false;
  eachFlow(rules.slots + 1, [&](const std::vector<int>& chunks) {
    rules.chunks = chunks;
    wrong = wrong || FlowModel(rules).goesWrong();
  });
  return wrong;
}

TEST_CASE("chunks with headers: from two slots on every chunk is read whole, and nobody stands still") {
  for (int slots = 1; slots <= 4; ++slots) CHECK_FALSE(someGoWrong({.slots = slots, .chunks = {}}));
}

TEST_CASE(
    "chunks with headers: a header shows no more than that, and chunks for more than half of the slots are counted") {
  for (int slots = 1; slots <= 3; ++slots) {
    CHECK(someGoWrong({.slots = slots, .chunks = {}, .provenBy = 1}));
    CHECK(someGoWrong({.slots = slots, .chunks = {}, .uncounted = 1}));
    CHECK(someGoWrong({.slots = slots, .chunks = {}, .believes = true}));
  }
}

}  // namespace

}  // namespace header_model
