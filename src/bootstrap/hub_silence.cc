// The hub's part in what follows where ranks do not answer, and their standbys are not closed for certain: their host
// is down, or no way leads there, or their connection alone has broken. It is not known then what they do, and whether
// they go on with another hub.
//
// So a hub takes silent ranks for dead only by a vote of the ranks that count: more than half of them have to answer,
// or half and the first. Who answers is bound: it brings those that the vote names to any later hub as dead, and there
// they are with nobody. At first all ranks count, and those that a vote has taken for dead do not any more. Ranks that
// have ended for certain count as well until a vote has named them, for they may have voted with another hub before. A
// hub that will not get enough for those that are silent tells its ranks so, and ends.
//
// Two hubs never take each other's ranks for dead. Let A have voted X out of the ranks C that count, and let hub B have
// enough of C. Two sets that are enough of C share a rank, and a rank never goes back to a hub that it has lost. If it
// was with A first, it has answered A before it came to B, so it has brought X to B, and nobody of X is with B. What B
// has is then more than half of C without X, too, so the same holds for what A votes on next. If it was with B first,
// it has brought to A whom B had voted out, and the same holds the other way round.
//
// A rank that leaves the first hub in good order needs no vote to cease to count: it has voted with no other hub, and
// is with none later, for it says when it returns that it has left. Let A know the leavers L, and B the leavers M. If
// they had nobody in common, they were enough of C - L and of C - M, and together no more than C - L - M. That is
// possible only where L is M and each has half, and then only one of the halves has the first. So they share a rank as
// above. One that has left A since it voted there is no such rank; but of later leavers B knows only by somebody who
// has been asked in that vote before, and is bound.
//
// A rank that is given up, by a vote that was not ended or by what others say, is with nobody either. But it lives, and
// another hub may not know of it and have its answer. So it counts until enough have answered a vote that names it.
//
// Work for each look is linear in the ranks.
#include <algorithm>

#include "base/insist.h"
#include "bootstrap/hub.h"
#include "bootstrap/listener.h"
#include "bootstrap/text_list.h"

namespace kolo::bootstrap {
namespace {

constexpr std::chrono::milliseconds kFirstLookPause{10}, kLongestLookPause{200};
constexpr std::chrono::milliseconds kVotePause{200};  // before one that names nobody who is silent
constexpr std::size_t kMostNamed = 1024;              // of both kinds each in a vote
static_assert(2 * kMostNamed * (kMostFarewellBytes + kMostKnownBytes + 64) <= kMaxFrameBytes);
constexpr int kMostLooks = 256;                     // at a time: each takes a descriptor
constexpr std::size_t kMostHeldBytes = 256u << 20;  // more than a rank brings, and has under way

bool isIn(const std::vector<int>& sorted, int rank) { return std::binary_search(sorted.begin(), sorted.end(), rank); }

}  // namespace

// A rank's connection has ended. The kernel of another host may say so of a process that lives.
void Hub::hasLost(const MemberPtr& member, std::string_view why) {
  Slot& slot = slots_[static_cast<std::size_t>(member->rank)];
  forget(slot.look);
  if (isMute_) {
    slot.state = State::kAwaited;
    slot.member = nullptr;
  } else {
    slot.lostBy = std::string(why);
    expectNoMoreOf(*member);
  }
  lookPause_ = kFirstLookPause;
  reactor_.cancel(lookTimer_);
  lookTimer_ = reactor_.at(Clock::now(), [self = shared_from_this()] { self->lookAfterAwaited(); });
}

// Ranks that do not answer have ended if their standby is closed. Nothing follows if it is open.
void Hub::lookAfterAwaited() {
  lookTimer_ = 0;
  // Where there are too many, it goes on with the next one.
  const int first = nextLook_;
  for (int i = 0; i < expected_; ++i) {
    const int rank = (first + i) % expected_;
    if (isMissed(slots_[static_cast<std::size_t>(rank)])) lookAt(rank);
  }
  judge();
  if (alive_ <= 0) return;
  lookPause_ = std::min(lookPause_ * 2, kLongestLookPause);
  if (!isMute_ && std::none_of(slots_.begin(), slots_.end(), isMissed)) return;
  reactor_.cancel(lookTimer_);  // that of the next vote
  lookTimer_ = reactor_.at(Clock::now() + lookPause_, [self = shared_from_this()] { self->lookAfterAwaited(); });
}

void Hub::lookAt(int rank) {
  Slot& slot = slots_[static_cast<std::size_t>(rank)];
  Look& look = slot.look;
  const Clock::time_point now = Clock::now();
  if (look.begunAt == Clock::time_point()) look.begunAt = now;
  if (slot.neighbour.isHere) return note(look, isGone(slot.neighbour) ? Knock::Word::kClosed : Knock::Word::kOpen, now);
  if (look.unheardSince == Clock::time_point()) look.unheardSince = now;
  if (look.knock != nullptr) {
    if (now - look.since < kLongestKnock) return;
    // Its host answers for a process that is stopped, for a while; or for another one that has the port now.
    if (look.knock->word() == Knock::Word::kNone) note(look, Knock::Word::kSilent, look.since);
    else note(look, look.isUnheard() ? Knock::Word::kSilent : Knock::Word::kOpen, look.unheardSince);
    endKnock(look);
    return;
  }
  if (looks_ >= kMostLooks || now - look.since < lookPause_) return;
  look.since = now;
  int errnum = 0;
  Socket socket = reach(slot.neighbour, errnum);
  if (network::isOutOfFiles(errnum)) return;
  if (errnum != 0) return note(look, errnum == ECONNREFUSED ? Knock::Word::kClosed : Knock::Word::kSilent, now);
  look.knock = std::make_shared<Knock>(reactor_, standbySecret({}, slot.neighbour.standby), true, std::move(socket),
                                       [weak = weak_from_this(), rank](const std::optional<Session>&, const Socket&) {
                                         const std::shared_ptr<Hub> self = weak.lock();
                                         if (self == nullptr) return;
                                         Look& of = self->slots_[static_cast<std::size_t>(rank)].look;
                                         if (of.knock == nullptr) return;
                                         // One that ends without an answer is about to close, mostly.
                                         const Knock::Word word = of.knock->word();
                                         if (word > Knock::Word::kConnected) note(of, word, of.since);
                                         else if (of.isUnheard()) note(of, Knock::Word::kSilent, of.unheardSince);
                                         if (word > Knock::Word::kConnected) of.unheardSince = {};
                                         of.knock = nullptr;
                                         --self->looks_;
                                         self->judgeSoon();
                                       });
  ++looks_;
  nextLook_ = rank + 1;
  if (look.knock->start().ok()) return;
  look.knock = nullptr;
  --looks_;
}

void Hub::endKnock(Look& look) {
  if (look.knock == nullptr) return;
  look.knock->drop();
  look.knock = nullptr;
  --looks_;
}

void Hub::forget(Look& look) {
  endKnock(look);
  look = {};
}

bool Hub::Look::isUnheard() const { return Clock::now() - unheardSince >= silence(); }

void Hub::note(Look& look, Knock::Word word, Clock::time_point since) {
  const bool isDeaf = word == Knock::Word::kSilent || word == Knock::Word::kHub;
  if (!isDeaf) look.deafSince = {};
  else if (look.deafSince == Clock::time_point()) look.deafSince = since;
  look.word = word;
}

// It will not answer, for its host has been silent, or it has had another hub, as long as a host may be silent. So has
// a standby that is open to close: its process may be ending. One that is open and to return has as long as it may look
// for a hub, past silent hosts. It may be stopped, or somebody else has its port and says what a standby says.
bool Hub::isDeaf(const Slot& slot) {
  if (!isMissed(slot)) return false;
  const Look& look = slot.look;
  const Clock::time_point now = Clock::now();
  if (slot.isVotedOut || (slot.lostBy && look.word == Knock::Word::kHub)) return true;
  if (look.word == Knock::Word::kOpen && !slot.neighbour.isHere)
    return now - look.begunAt >= (slot.lostBy ? silence() : kLongestSearch + 3 * silence());
  return look.deafSince != Clock::time_point() && now - look.deafSince >= silence();
}

// It is with this hub, and no other one has its word: one that left before it came here may have ceased to count there
// (onLeave).
bool Hub::isPresent(const Slot& slot) {
  return slot.state == State::kJoined && !slot.lostBy && !slot.givenUpBy && slot.member->stay == Stay::kStays;
}

// It may be, sooner or later.
bool Hub::mayCome(const Slot& slot) {
  const bool mayReturn = slot.state == State::kAwaited && slot.look.word != Knock::Word::kClosed && !isDeaf(slot);
  return isPresent(slot) || mayReturn;
}

bool Hub::areEnough(bool (*counts)(const Slot&)) const {
  std::size_t have = 0;
  bool isFirst = false;
  for (std::size_t i = 0; i < counting_.size(); ++i) {
    if (!counts(slots_[static_cast<std::size_t>(counting_[i])])) continue;
    isFirst = isFirst || i == 0;
    ++have;
  }
  return 2 * have > counting_.size() || (2 * have == counting_.size() && isFirst);
}

// All ranks are connected here, have ended for certain, or were voted out: there is nobody whom another hub could have.
bool Hub::isAllKnown() const {
  for (int rank = 0; rank < expected_; ++rank) {
    if (isMissed(slots_[static_cast<std::size_t>(rank)]) && !hasEnded(rank)) return false;
  }
  return true;
}

// It has another hub for so long that this one would have more than half of the ranks by now, if it were to have them.
bool Hub::isWithAnother(const Slot& slot) {
  return slot.look.word == Knock::Word::kHub && isDeaf(slot) &&
         Clock::now() - slot.look.deafSince > silence() + kLongestSearch;
}

// What follows from the looks.
void Hub::judge() {
  if (alive_ <= 0) return;
  if (isMute_) {
    if (isAllKnown() || areEnough(isPresent)) speak();
    else if (!areEnough(mayCome) || Clock::now() - madeAt_ > silence() + kLongestSearch) return cutOff();
    else return;
  }
  buryTheCertain();
  if (alive_ > 0) callVotes();
  if (alive_ > 0) tellCounting();
}

// Once for all that happens in this round.
void Hub::judgeSoon() {
  if (isToJudge_) return;
  reactor_.post([self = shared_from_this()] {
    self->isToJudge_ = false;
    self->judge();
  });
  isToJudge_ = true;  // last: without memory nothing was posted
}

// Its standby is closed; or it is silent, an earlier hub had it voted out, and a rank that has returned says so.
bool Hub::hasEnded(int rank) const {
  const Slot& slot = slots_[static_cast<std::size_t>(rank)];
  if (!isMissed(slot) || slot.look.word == Knock::Word::kClosed) return isMissed(slot);
  return slot.look.word == Knock::Word::kSilent && !slot.lostBy && !slot.farewell.empty() && !isIn(counting_, rank);
}

void Hub::buryTheCertain() {
  for (int rank = 0; rank < expected_ && alive_ > 0; ++rank) {
    if (hasEnded(rank)) bury(rank);
  }
}

// A vote names all that are silent, and those that have ended and still count; these alone when nobody is missed.
void Hub::callVotes() {
  const bool areEndsTold = isWide_ && isFollowed_ && newlyDead_.empty() && toldLeavers_ == leavers_.size();
  std::vector<int> deaf, ended;
  for (int rank = 0; rank < expected_; ++rank) {
    const Slot& slot = slots_[static_cast<std::size_t>(rank)];
    const bool isOver = slot.state == State::kLeft || slot.state == State::kDead;
    if (isDeaf(slot) && deaf.size() < kMostNamed) deaf.push_back(rank);
    if (areEndsTold && isOver && isIn(counting_, rank) && ended.size() < kMostNamed) ended.push_back(rank);
  }
  if (deaf.empty() && (ended.empty() || std::any_of(slots_.begin(), slots_.end(), isMissed))) return;
  const auto isNamed = [this](int rank) { return isIn(named_, rank); };
  const bool isCalled =
      deaf.empty() ? std::any_of(ended.begin(), ended.end(), isNamed) : std::all_of(deaf.begin(), deaf.end(), isNamed);
  if (isCalled && areEnough(hasVoted)) return endVote();
  if (!deaf.empty() && (!areEnough(mayCome) || std::any_of(slots_.begin(), slots_.end(), isWithAnother)))
    return cutOff();
  if (isCalled) return askToVote();
  if (deaf.empty() && Clock::now() < votedAt_ + kVotePause) {
    if (lookTimer_ == 0)
      lookTimer_ = reactor_.at(votedAt_ + kVotePause, [self = shared_from_this()] { self->lookAfterAwaited(); });
    return;
  }
  deaf.insert(deaf.end(), ended.begin(), ended.end());
  std::sort(deaf.begin(), deaf.end());
  named_ = std::move(deaf);  // from here on nothing throws until they are asked
  ++vote_;
  votedAt_ = Clock::now();
  for (Slot& slot : slots_) {
    if (slot.member != nullptr) slot.member->vote = Vote::kUnasked;
  }
  askToVote();
}

// Enough are bound.
void Hub::endVote() {
  isCountingNews_ = std::erase_if(counting_, [this](int rank) { return isIn(named_, rank); }) > 0 || isCountingNews_;
  for (const int rank : named_) {
    if (alive_ > 0 && isMissed(slots_[static_cast<std::size_t>(rank)])) bury(rank);
  }
}

// What is said of the end of a rank that is missed.
void Hub::nameEnd(Slot& slot) {
  if (!slot.farewell.empty()) return;
  const bool isClosed = slot.look.word == Knock::Word::kClosed;
  const std::string by = slot.lostBy ? *slot.lostBy : isClosed ? "connection closed" : "its host does not answer";
  slot.farewell = describe(slot.neighbour) + (slot.hasLeft ? " has left the job" : " died: " + by);
  if (!slot.lostBy && !slot.hasLeft) slot.known = afterHub_;
}

void Hub::bury(int rank) {
  Slot& slot = slots_[static_cast<std::size_t>(rank)];
  const bool wasLost = slot.lostBy.has_value();
  nameEnd(slot);
  forget(slot.look);
  std::string farewell = slot.farewell;
  if (slot.hasLeft) goneFromJob(rank, State::kLeft, std::move(farewell));
  else diedInJob(rank, describe(slot.neighbour), std::move(farewell));
  if (!wasLost) (void)insist([this] { expectOneLess(); });
}

// Asks those that have not been asked whether they take the ranks for dead that the vote names. These are given up,
// also where they return before the vote is over: others may have answered.
void Hub::askToVote() {
  TextList farewells, knowns;
  for (const int rank : named_) {
    Slot& slot = slots_[static_cast<std::size_t>(rank)];
    if (!slot.givenUpBy) nameEnd(slot);
    slot.isVotedOut = true;
    const std::string& farewell = slot.givenUpBy ? *slot.givenUpBy : slot.farewell;
    farewells.add(std::string_view(farewell).substr(0, kMostFarewellBytes));
    knowns.add(std::string_view(slot.known).substr(0, kMostKnownBytes));
  }
  const auto question = shared(frame(Frame::kVote, vote_).ranks(named_).raw(farewells.take()).raw(knowns.take()));
  for (const Slot& slot : slots_) {
    if (!isPresent(slot) || slot.member->vote != Vote::kUnasked) continue;
    slot.member->channel->send(question);
    slot.member->vote = Vote::kAsked;
    slot.member->channel->push();
  }
}

bool Hub::onVoted(const MemberPtr& member, Decoder& decoder) {
  const auto number = decoder.number<std::uint64_t>();
  if (!decoder.done() || number == 0 || number > vote_) return false;
  if (number != vote_) return true;  // it names others than that of now
  member->vote = Vote::kGiven;
  judgeSoon();
  return true;
}

// A mute hub hears what it is told when it speaks.
bool Hub::hold(const MemberPtr& member, std::string_view bytes) {
  const std::size_t room = sizeof(std::string) + bytes.size();
  if (member->held.bytes + room > kMostHeldBytes) return false;
  member->held.frames.emplace_back(bytes);
  member->held.bytes += room;
  return true;
}

void Hub::speak() {
  isMute_ = false;
  std::vector<MemberPtr> members;
  (void)insist([&] {
    members.clear();
    for (const Slot& slot : slots_) {
      if (slot.member != nullptr) members.push_back(slot.member);
    }
  });
  for (const MemberPtr& each : members) (void)insist([&] { receive(each); });
  for (const MemberPtr& each : members) {
    bool isRight = true;
    for (const std::string& said : std::exchange(each->held, {}).frames)
      isRight = isRight && insist([&] { isRight = onFrame(each, said); }) && isRight;
    if (isRight) continue;
    each->channel->close();
    (void)insist([&] { onClosed(each, "it sent a malformed frame"); });
  }
}

// Who of those that count is with this hub, and where the others are.
std::string Hub::whyCutOff() const {
  std::vector<int> here, left, dead;
  std::string lost;
  for (const int rank : counting_) {
    const Slot& slot = slots_[static_cast<std::size_t>(rank)];
    const bool isGoing = slot.state == State::kJoined && slot.member->stay != Stay::kStays;
    if (isPresent(slot)) here.push_back(rank);
    else if (slot.state == State::kLeft || slot.hasLeft || isGoing) left.push_back(rank);
    else if (slot.state == State::kDead) dead.push_back(rank);
    else if (lost.size() < kMostKnownBytes) lost += fmt::format("{}rank {}", lost.empty() ? "" : ", ", rank);
    else if (!lost.ends_with("...")) lost += ", ...";
  }
  const auto are = [](const char* how, const std::vector<int>& ranks) {
    return ranks.empty() ? std::string() : fmt::format("; these have {}: {}", how, describeRanks(ranks));
  };
  const std::string who =
      here.empty() ? fmt::format("none of {} ranks is", counting_.size())
                   : fmt::format("{} of {} ranks ({}) are", here.size(), counting_.size(), describeRanks(here));
  return fmt::format(
      "{} still together, and others may go on without them: more than half have to be, or half with rank {}{}{}{}{}",
      who, counting_.empty() ? 0 : counting_.front(), lost.empty() ? "" : ". They have lost ", lost, are("died", dead),
      are("left", left));
}

// This hub will not have enough of the ranks that count, and others may. Those that have left cannot be counted for it:
// one that has no farewell yet tells the next hub as well that it leaves, so two hubs would have its word.
void Hub::cutOff() {
  unreturned_ = 0;
  flushLeavers();
  const std::string why = whyCutOff();
  endForAll(shared(frame(Frame::kCutOff, why)));
}

// Of which more than half are to be together when some are silent. Those that return may not know, all of them.
void Hub::tellCounting() {
  if (!isCountingNews_ || !newlyDead_.empty() || unreturned_ > 0) return;
  broadcast(shared(frame(Frame::kCounting).ranks(counting_)), false);
  isCountingNews_ = false;
}

}  // namespace kolo::bootstrap
