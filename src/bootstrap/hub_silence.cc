// The hub's part in what follows where ranks do not answer, and their standbys are not closed for certain: their host
// is down, or no way leads there, or their connection alone has broken. It is not known then what they do, and whether
// they go on with another hub.
//
// So a hub takes silent ranks for dead only by a vote of the ranks that count: more than half of them have to answer,
// or half and the first. Who answers is bound: it brings those that the vote names to any later hub as dead, and there
// they are with nobody. At first all ranks count. Those that were voted out do not any more; nor do ranks that have
// ended for certain, as soon as no other one is missed. A hub that will not get enough tells its ranks so, and ends.
//
// Two hubs never take each other's ranks for dead. Let A have voted X out of the ranks C that count, and let hub B have
// enough of C without knowing of it. Two sets that are enough of C share a rank. That rank has answered A before it
// came to B, so it has brought X to B, and B does not count X. What B has is then more than half of C without X, too,
// so the same holds for what A votes on next. A vote that was not ended binds as well: those that it names may count as
// dead though their host answers again.
//
// Work for each look is linear in the ranks.
#include <algorithm>

#include "base/insist.h"
#include "bootstrap/hub.h"
#include "bootstrap/listener.h"

namespace kolo::bootstrap {
namespace {

constexpr std::chrono::milliseconds kFirstLookPause{10}, kLongestLookPause{200};
constexpr std::chrono::seconds kAskToVoteAgain{2};   // those that have come meanwhile
constexpr std::size_t kMostNamed = 1024;             // in a vote: they fit into a frame
constexpr int kMostLooks = 64;                       // at a time: each takes a descriptor
constexpr std::chrono::seconds kLongestSilence{15};  // of a mute hub, beyond that of a host
constexpr std::size_t kMostHeldBytes = 256u << 20;   // more than a rank brings, and has under way

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
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (isMissed(slots_[i])) lookAt(static_cast<int>(i));
  }
  judge();
  if (alive_ <= 0) return;
  lookPause_ = std::min(lookPause_ * 2, kLongestLookPause);
  if (isMute_ || std::any_of(slots_.begin(), slots_.end(), isMissed))
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
                                         self->judge();
                                       });
  ++looks_;
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

// It will not answer. So it is of a rank that was connected, and whose host is silent. One that is to return has as
// long as a host may be silent, and so has a standby that is open to close: its process may be ending.
bool Hub::isDeaf(const Slot& slot) {
  if (!isMissed(slot)) return false;
  if (slot.isVotedOut) return true;
  const Look& look = slot.look;
  if (slot.lostBy && look.word == Knock::Word::kOpen) return Clock::now() - look.begunAt >= silence();
  if (slot.lostBy) return look.word == Knock::Word::kHub || look.word == Knock::Word::kSilent;
  return slot.state == State::kAwaited && slot.look.deafSince != Clock::time_point() &&
         Clock::now() - slot.look.deafSince >= silence();
}

// It is with this hub.
bool Hub::isPresent(const Slot& slot) { return slot.state == State::kJoined && !slot.lostBy && !slot.givenUpBy; }

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
         Clock::now() - slot.look.deafSince > silence() + kLongestSilence;
}

// What follows from the looks.
void Hub::judge() {
  if (alive_ <= 0) return;
  if (isMute_) {
    if (isAllKnown() || areEnough(isPresent)) speak();
    else if (!areEnough(mayCome) || Clock::now() - madeAt_ > silence() + kLongestSilence) return cutOff();
    else return;
  }
  buryTheCertain();
  if (alive_ > 0) buryTheDeaf();
  if (alive_ > 0) tellCounting();
}

// Its standby is closed; or it is silent, an earlier hub had it voted out, and a rank that has returned says so.
bool Hub::hasEnded(int rank) const {
  const Slot& slot = slots_[static_cast<std::size_t>(rank)];
  if (!isMissed(slot) || slot.look.word == Knock::Word::kClosed) return isMissed(slot);
  return slot.look.word == Knock::Word::kSilent && !slot.lostBy && !slot.farewell.empty() &&
         !std::binary_search(counting_.begin(), counting_.end(), rank);
}

void Hub::buryTheCertain() {
  for (int rank = 0; rank < expected_ && alive_ > 0; ++rank) {
    if (hasEnded(rank)) bury(rank);
  }
}

void Hub::buryTheDeaf() {
  std::vector<int> deaf;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (isDeaf(slots_[i])) deaf.push_back(static_cast<int>(i));
  }
  if (deaf.empty()) return;
  deaf.resize(std::min(deaf.size(), kMostNamed));
  const bool isAsked = std::includes(named_.begin(), named_.end(), deaf.begin(), deaf.end());
  if (isAsked && areEnough(hasVoted)) {
    for (const int rank : deaf) {
      if (alive_ > 0) bury(rank);
    }
  } else if (!areEnough(mayCome) || std::any_of(slots_.begin(), slots_.end(), isWithAnother)) {
    cutOff();
  } else if (!isAsked || Clock::now() - votedAt_ > kAskToVoteAgain) {
    askToVote(deaf);
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

// Asks the ranks whether they take the deaf for dead. Those that have answered this vote are not asked again. One that
// a vote names is given up, also where it returns before the vote is over: others may have answered.
void Hub::askToVote(const std::vector<int>& deaf) {
  Encoder names;
  const bool isNew = named_ != deaf;
  for (const int rank : deaf) {
    Slot& slot = slots_[static_cast<std::size_t>(rank)];
    nameEnd(slot);
    slot.isVotedOut = true;
    names.number(static_cast<std::int32_t>(rank)).text(slot.farewell).text(slot.known);
  }
  const auto question =
      shared(frame(Frame::kVote, isNew ? ++vote_ : vote_, static_cast<std::uint32_t>(deaf.size())).raw(names.take()));
  if (isNew) named_ = deaf;
  for (const Slot& slot : slots_) {
    if (slot.member == nullptr || slot.lostBy) continue;
    if (isNew) slot.member->hasVoted = false;
    if (slot.member->hasVoted) continue;
    slot.member->channel->send(question);
    slot.member->channel->push();
  }
  votedAt_ = Clock::now();
}

bool Hub::onVoted(const MemberPtr& member, Decoder& decoder) {
  const auto number = decoder.number<std::uint64_t>();
  if (!decoder.done() || number == 0 || number > vote_) return false;
  if (number != vote_) return true;  // it names fewer ranks than that of now
  member->hasVoted = true;
  judge();
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

// This hub will not have enough of the ranks that count, and others may.
void Hub::cutOff() {
  std::vector<int> here, others;
  for (const int rank : counting_) {
    const Slot& slot = slots_[static_cast<std::size_t>(rank)];
    if (slot.state == State::kJoined && !slot.lostBy) here.push_back(rank);
    else if (slot.state != State::kLeft && slot.state != State::kDead) others.push_back(rank);
  }
  std::string names;
  for (const int rank : others) names += fmt::format("{}rank {}", names.empty() ? "" : ", ", rank);
  const std::string why = fmt::format(
      "{} of {} ranks ({}) are still together, and others may go on without them: more than half have to "
      "be, or half with rank {}. They have lost {}",
      here.size(), counting_.size(), describeRanks(here), counting_.empty() ? 0 : counting_.front(),
      names.substr(0, kMostKnownBytes));
  const auto news = shared(frame(Frame::kCutOff, why));
  for (Slot& slot : slots_) {
    if (slot.member != nullptr) {
      slot.member->channel->send(news);
      slot.member->channel->closeWhenSent();
      slot.member->channel->push();
    }
    slot.member = nullptr;
    slot.state = State::kLeft;
    slot.lostBy.reset();
  }
  gone_ += std::exchange(alive_, 0);
  finishWithoutRanks();
}

// Of which more than half are to be together when some are silent. Ranks only ever cease to count: those that were
// voted out at once, those that have ended for certain when nobody is missed.
void Hub::tellCounting() {
  if (!isWide_ || !isFollowed_ || isMute_ || alive_ <= 0 || !newlyDead_.empty()) return;
  const bool isOneMissed = std::any_of(slots_.begin(), slots_.end(), isMissed);
  std::vector<int> now;
  for (const int rank : counting_) {
    const Slot& slot = slots_[static_cast<std::size_t>(rank)];
    const bool isVotedOut = slot.state == State::kDead && slot.isVotedOut;
    if (isOneMissed ? !isVotedOut : isPresent(slot)) now.push_back(rank);
  }
  if (now == counting_) return;
  broadcast(shared(frame(Frame::kCounting).ranks(now)), false);
  counting_ = std::move(now);
}

}  // namespace kolo::bootstrap
