// The hub's part in what follows the end of another hub: the ranks of a place return to it, each with what it knows and
// what it waits for. Requests are repeated. A rank that has got the result of an exchange brings it for those that have
// not; so an exchange ends alike for all of them, and is not begun anew for some.
//
// Work is linear in the ranks, and in what they repeat.
#include <unistd.h>

#include <algorithm>

#include "base/insist.h"
#include "bootstrap/hub.h"
#include "bootstrap/listener.h"
#include "bootstrap/text_list.h"

namespace kolo::bootstrap {
namespace {

constexpr std::chrono::milliseconds kLongestLookPause{200};
constexpr std::chrono::seconds kLongestReturn{15};  // of all that a rank says which returns

}  // namespace

// Each rank is told who else is in its place. The process of this hub comes first, in its own place: that its standby
// is closed is how ranks know that this hub has ended, and has not merely given them up.
void Hub::tellNeighbours() {
  standby_ = Standby::open(reactor_);
  if (standby_ == nullptr) return;
  std::map<std::uint64_t, std::vector<MemberPtr>> places;
  for (const Slot& slot : slots_) places[slot.member->place].push_back(slot.member);
  for (const auto& [place, members] : places) {
    const bool isOwn = place == placeIdentity();
    const auto lacksStandby = [](const MemberPtr& each) { return each->standby.empty(); };
    if (place == 0 || std::any_of(members.begin(), members.end(), lacksStandby)) continue;
    Encoder told = frame(Frame::kNeighbours);
    isWhole_ = isOwn && members.size() == slots_.size();
    told.number(static_cast<std::int32_t>(slots_.size())).number(static_cast<std::uint8_t>(isWhole_ ? 1 : 0));
    told.number(static_cast<std::uint32_t>(members.size() + (isOwn ? 1 : 0)));
    if (isOwn) told.number(kHubItself).number(static_cast<std::uint32_t>(::getpid())).text(standby_->name());
    for (const MemberPtr& each : members)
      told.number(static_cast<std::int32_t>(each->rank)).number(each->pid).text(each->standby);
    isWhole_ = isWhole_ && told.size() <= kMaxFrameBytes;
    if (told.size() > kMaxFrameBytes) continue;
    tell(members, shared(told));
  }
}

// May be called again where it has found no memory.
void Hub::succeed(const Succession& succession) {
  if (isSuccessor_) return;
  unreturned_ = 0;
  std::vector<Slot> slots(static_cast<std::size_t>(succession.ranks));
  for (Slot& slot : slots) {
    slot.state = State::kLeft;
    slot.farewell =
        fmt::format("rank {} is on another host, and the process that relayed the messages between the hosts has ended",
                    &slot - slots.data());
  }
  for (const Neighbour& each : succession.neighbours) {
    if (each.rank == kHubItself) continue;
    ++unreturned_;
    Slot& slot = slots[static_cast<std::size_t>(each.rank)];
    slot.state = State::kAwaited;
    slot.farewell.clear();
    slot.neighbour = each;
  }
  slots_ = std::move(slots);
  expected_ = succession.ranks;
  alive_ = unreturned_;
  gone_ = expected_ - alive_;
  isWhole_ = succession.isWhole;
  firstResult_ = lastResult_ = resultsBefore(succession.rank);
  complete_ = isSuccessor_ = true;
}

std::string Hub::describe(const Neighbour& rank) {
  return fmt::format("rank {} (pid {} on {})", rank.rank, rank.pid, hostName());
}

// What it says of others counts where their standbys are closed, and only then.
bool Hub::onReturn(const MemberPtr& member, Decoder& decoder) {
  const auto rank = decoder.number<std::int32_t>();
  const std::string_view process = decoder.raw(member->process.size());
  std::string after(decoder.text().substr(0, kMostKnownBytes));
  const auto count = decoder.number<std::uint32_t>();
  if (!decoder.ok() || rank < 0 || rank >= expected_) return false;
  Slot& own = slots_[static_cast<std::size_t>(rank)];
  // One that is not awaited has died, or is here already.
  if (own.state != State::kAwaited || own.neighbour.pid != member->pid) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto gone = decoder.number<std::int32_t>();
    const auto end = decoder.number<std::uint8_t>();
    const bool hasLeft = (end & kHasLeft) != 0;
    const std::string_view farewell = decoder.text(), known = decoder.text();
    if (!decoder.ok() || gone < 0 || gone >= expected_) return false;
    Slot& slot = slots_[static_cast<std::size_t>(gone)];
    if (slot.state == State::kJoined && !hasLeft && gone != rank) tellThatItCountsAsDead(slot, gone, farewell);
    if (slot.state != State::kAwaited || gone == rank) continue;
    slot.hasLeft = slot.hasLeft || hasLeft;
    slot.isOld = slot.isOld || (end & kIsOld) != 0;
    if (!slot.farewell.empty()) continue;
    slot.farewell = farewell.substr(0, 2 * kMostKnownBytes);
    slot.known = known.substr(0, kMostKnownBytes);
  }
  if (!decoder.done()) return false;
  if (afterHub_.empty()) afterHub_ = std::move(after);
  std::copy(process.begin(), process.end(), member->process.begin());
  member->host = hostName();
  member->place = placeIdentity();
  std::vector<int> housemates;
  for (const Slot& slot : slots_) {
    if (slot.neighbour.pid == static_cast<std::uint32_t>(::getpid())) housemates.push_back(slot.neighbour.rank);
  }
  member->channel->send(
      frame(Frame::kReturned, static_cast<std::uint32_t>(::getpid()), hostName()).ranks(housemates).take());
  // News of a death that is told soon is the reason of what this rank does next.
  for (const int dead : newlyDead_) {
    const Slot& slot = slots_[static_cast<std::size_t>(dead)];
    if (slot.isDeadOfLate()) note(*member, slot.farewell);
  }
  member->rank = rank;
  unjoined_.erase(member);
  own.state = State::kJoined;
  own.member = member;
  if (!own.farewell.empty() && !own.hasLeft) tellThatItCountsAsDead(own, rank, own.farewell);
  own.farewell.clear();
  own.known.clear();
  offerBillboard(*member);
  own.isOld = false;
  limitReturnOf(member);
  tellOfTheDead(member);
  if (!leavers_.empty()) member->channel->send(newsOfLeavers(0));
  if (lookTimer_ == 0) lookAfterAwaited();
  return true;
}

// Others wait for the end of what it says; a rank that is stopped may say the rest later, when nobody needs it.
void Hub::limitReturnOf(const MemberPtr& member) {
  reactor_.at(Clock::now() + kLongestReturn, [weak = weak_from_this(), member] {
    const std::shared_ptr<Hub> self = weak.lock();
    if (self == nullptr || member->isBack) return;
    member->isLate = true;
    self->expectNoMoreOf(*member);
  });
}

// A rank that lives, and that an earlier hub had given up: others go on without it, so it has to hear of it as they
// have.
void Hub::tellThatItCountsAsDead(const Slot& slot, int rank, std::string_view farewell) {
  slot.member->channel->send(
      frame(Frame::kDeaths, std::uint32_t{1}, static_cast<std::int32_t>(rank), farewell.substr(0, 2 * kMostKnownBytes))
          .take());
}

// Of those whose deaths others have been told.
void Hub::tellOfTheDead(const MemberPtr& member) {
  const std::set<int> later(newlyDead_.begin(), newlyDead_.end());
  std::uint32_t count = 0;
  Encoder words;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.state != State::kDead || later.count(static_cast<int>(i)) != 0) continue;
    if (slot.isDeadOfLate()) note(*member, slot.farewell, slot.known);
    words.number(static_cast<std::int32_t>(i)).text(slot.words());
    ++count;
  }
  if (count != 0) member->channel->send(frame(Frame::kDeaths, count).raw(words.take()).take());
}

// Ranks that do not return have ended if their standby is closed. Nothing follows if it is open.
void Hub::lookAfterAwaited() {
  bool isSomeoneAwaited = false;
  for (std::size_t i = 0; i < slots_.size() && alive_ > 0; ++i) {
    const Slot& slot = slots_[i];
    if (slot.state != State::kAwaited) continue;
    if (!isGone(slot.neighbour)) {
      isSomeoneAwaited = true;
      continue;
    }
    const std::string who = describe(slot.neighbour);
    std::string farewell = slot.farewell;
    if (farewell.empty()) farewell = who + (slot.hasLeft ? " has left the job" : " died: connection closed");
    if (slot.hasLeft) {
      goneFromJob(static_cast<int>(i), State::kLeft, std::move(farewell));
    } else {
      if (slot.farewell.empty()) slots_[i].known = afterHub_;
      diedInJob(static_cast<int>(i), who, std::move(farewell));
    }
    (void)insist([this] { expectOneLess(); });
  }
  if (alive_ <= 0) return;
  lookPause_ = std::min(lookPause_ * 2, kLongestLookPause);
  if (isSomeoneAwaited)
    lookTimer_ = reactor_.at(Clock::now() + lookPause_, [self = shared_from_this()] { self->lookAfterAwaited(); });
}

// The result of an exchange that an earlier hub has ended, of which not all ranks may have been told. A member of the
// exchange is believed about it. What is more than a rank can have is left.
bool Hub::onResult(const MemberPtr& member, Decoder& decoder) {
  if (!isSuccessor_ || member->isBack) return member->isLate;
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  const auto number = decoder.number<std::uint64_t>();
  const auto code = decoder.number<std::int32_t>();
  const std::string_view message = decoder.text();
  const std::vector<int> members = decoder.ranks(slots_.size());
  const std::size_t bytes = message.size() + decoder.rest().size();
  const auto first = decoder.number<std::uint32_t>();
  const auto count = decoder.number<std::uint32_t>();
  const auto all = static_cast<std::uint32_t>(code == koloSuccess ? members.size() : 0);
  if (!decoder.ok() || code < koloSuccess || code >= koloNumResults || number == 0 || number > firstResult_ ||
      std::find(members.begin(), members.end(), member->rank) == members.end() || count > all || first > all - count ||
      (count == 0 && all != 0)) {
    return false;
  }
  Encoder news = frame(code == koloSuccess ? Frame::kGathered : Frame::kGatherFailed);
  news.number(key).number(sequence).number(number).number(std::uint64_t{0});
  if (code != koloSuccess) news.number(code).text(message);
  else news.number(first).number(count);
  // As it came: written anew, a list may be longer.
  const std::string_view list = decoder.rest();
  if (!isTextList(decoder, count) || !decoder.done()) return false;
  news.raw(list);
  const GatherKey id(key, sequence);
  Brought& brought = member->brought;
  if (first == 0) brought = {ResultKey(id, members, number), {}, 0, brought.results, brought.bytes};
  if (brought.id != ResultKey(id, members, number) || first != brought.have) return false;
  brought.have = first + count;
  brought.bytes += bytes;
  // As MemberLink::keep() counts. Behind the first result that is too much, all are.
  if (brought.results > 0 && brought.bytes > kMaxResultBytesOfRank) brought.results = kMaxGathersOfRank;
  if (brought.results >= kMaxGathersOfRank) {
    brought.frames.clear();
    return true;
  }
  brought.frames.push_back(shared(news));
  if (brought.have != all) return true;
  ++brought.results;
  if (!inherited_.try_emplace(brought.id, std::exchange(brought.frames, {})).second) return true;
  flushDeaths();
  const auto found = gathers_.find(id);
  for (std::size_t i = 0; found != gathers_.end() && i < found->second.parts.size(); ++i) {
    const Contribution& part = found->second.parts[i];
    if (part.from == nullptr || !takeInherited(id, found->second.members, part.after, part.from)) continue;
    const bool isLast = found->second.have == 1;
    withdraw(id, i);  // ends the exchange with the last of them
    if (isLast) break;
  }
  return true;
}

// A request that was repeated, of an exchange that an earlier hub has ended. The same ranks may meet under one key and
// sequence again, and a rank that is to come again may still bring the result of the time before. So a request names
// the last result of any exchange that its rank had heard of when it asked for the first time:
// - The result of the time before is no later than that. The rank had heard it, or it would not have asked again. One
//   that has withdrawn asks again when the hub has said so, and with that all it had told (MemberLink::request); or
//   it asks another hub, and nothing of an earlier one is meant.
// - The result that it lacks is later. The hub made it after it had the request, and had told by then all that the rank
//   had heard; another hub's are later still (resultsBefore).
// Of several that are later the first is meant: who brings a later one, brings those before it first.
bool Hub::takeInherited(const GatherKey& id, const std::vector<int>& members, std::uint64_t after,
                        const MemberPtr& member) const {
  const auto found = inherited_.upper_bound(ResultKey(id, members, after));
  if (found == inherited_.end() || std::get<0>(found->first) != id || std::get<1>(found->first) != members)
    return false;
  for (const SharedFrame& each : found->second) member->channel->send(each);
  return true;
}

// An earlier hub may have ended it before its own end, and a rank that is still to say so has the result: a death or a
// report since then does not end it otherwise for those that have not.
bool Hub::mayBeInherited(const Gather& gather) const {
  const auto isRepeated = [](const Contribution& part) { return part.from != nullptr && part.after != kNeverAsked; };
  const auto mayTell = [this](int rank) {
    const Slot& slot = slots_[static_cast<std::size_t>(rank)];
    return slot.state == State::kAwaited || (slot.state == State::kJoined && !slot.member->isBack);
  };
  return unreturned_ > 0 && std::any_of(gather.parts.begin(), gather.parts.end(), isRepeated) &&
         std::any_of(gather.members.begin(), gather.members.end(), mayTell);
}

bool Hub::onFinished(const MemberPtr& member, Decoder& decoder) {
  if (!isSuccessor_ || !decoder.done()) return false;
  if (member->isBack) return member->isLate;
  expectNoMoreOf(*member);
  return true;
}

// The rank has said what it had to say after the end of an earlier hub, or will not any more.
void Hub::expectNoMoreOf(Member& member) {
  if (!isSuccessor_ || member.isBack) return;
  expectOneLess();
  member.isBack = true;
  (void)insist([this] { failHopelessGathers(); });
}

// With the last one, nobody asks for results of an earlier hub any more, and those who have asked have them when what
// is sent has arrived.
void Hub::expectOneLess() {
  if (unreturned_ == 1) {
    std::vector<MemberPtr> all;
    for (const Slot& slot : slots_) {
      if (slot.member != nullptr) all.push_back(slot.member);
    }
    unsettled_.emplace_front(firstResult_, all);
    inherited_.clear();
    for (const MemberPtr& each : all) (void)insist([&] { each->channel->push(); });
  }
  --unreturned_;
  (void)insist([this] { flushLeavers(); });
}

}  // namespace kolo::bootstrap
