// The hub's part in what follows the end of another hub: the ranks of a place return to it, each with what it knows and
// what it waits for. Requests are repeated. A rank that has got the result of an exchange says so, and gives it for
// those that have not; so an exchange ends alike for all of them, and is not begun anew for some.
//
// Work is linear in the ranks, and in what they repeat.
#include <unistd.h>

#include <algorithm>

#include "base/insist.h"
#include "bootstrap/hub.h"

namespace kolo::bootstrap {
namespace {

constexpr std::chrono::milliseconds kLongestLookPause{200};

}  // namespace

// Each rank is told who else is in its place, where another process than this one can take its place.
void Hub::tellNeighbours() {
  std::map<std::uint64_t, std::vector<const Member*>> places;
  for (const Slot& slot : slots_) places[slot.member->place].push_back(slot.member.get());
  for (const auto& [place, members] : places) {
    const bool canSucceed = std::any_of(members.begin(), members.end(), [](const Member* each) {
      return !each->standby.empty() && each->process != processIdentity();
    });
    if (place == 0 || !canSucceed) continue;
    isWhole_ = members.size() == slots_.size();
    Encoder told = frame(Frame::kNeighbours);
    told.number(static_cast<std::int32_t>(slots_.size())).number(static_cast<std::uint8_t>(isWhole_ ? 1 : 0));
    told.number(static_cast<std::uint32_t>(members.size()));
    for (const Member* const each : members)
      told.number(static_cast<std::int32_t>(each->rank)).number(each->pid).text(each->standby);
    if (told.size() > kMaxFrameBytes) continue;
    const auto news = std::make_shared<const std::string>(told.take());
    for (const Member* const each : members) each->channel->send(news);
  }
}

// May be called again where it has found no memory.
void Hub::succeed(const Succession& succession) {
  if (isSuccessor_) return;
  std::vector<Slot> slots(static_cast<std::size_t>(succession.ranks));
  for (Slot& slot : slots) {
    slot.state = State::kLeft;
    slot.farewell =
        fmt::format("rank {} is on another host, and the process that relayed the messages between the hosts has ended",
                    &slot - slots.data());
  }
  for (const Neighbour& each : succession.neighbours) {
    Slot& slot = slots[static_cast<std::size_t>(each.rank)];
    slot.state = State::kAwaited;
    slot.farewell.clear();
    slot.neighbour = each;
  }
  slots_ = std::move(slots);
  expected_ = succession.ranks;
  alive_ = unreturned_ = static_cast<int>(succession.neighbours.size());
  gone_ = expected_ - alive_;
  isWhole_ = succession.isWhole;
  complete_ = isSuccessor_ = true;
}

std::string Hub::describe(const Neighbour& rank) {
  return fmt::format("rank {} (pid {} on {})", rank.rank, rank.pid, hostName());
}

// What it says of others counts where their standbys are closed, and only then; of ranks of its own process it counts.
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
    const bool hasLeft = decoder.number<std::uint8_t>() != 0;
    const std::string_view farewell = decoder.text(), known = decoder.text();
    if (!decoder.ok() || gone < 0 || gone >= expected_) return false;
    Slot& slot = slots_[static_cast<std::size_t>(gone)];
    if (slot.state != State::kAwaited || gone == rank) continue;
    slot.hasLeft = slot.hasLeft || hasLeft;
    slot.hasEnded = slot.hasEnded || slot.neighbour.pid == own.neighbour.pid;
    if (!slot.farewell.empty()) continue;
    slot.farewell = farewell.substr(0, 2 * kMostKnownBytes);
    slot.known = known.substr(0, kMostKnownBytes);
  }
  if (!decoder.done()) return false;
  if (afterHub_.empty()) afterHub_ = std::move(after);
  std::copy(process.begin(), process.end(), member->process.begin());
  member->host = hostName();
  std::vector<int> housemates;
  for (const Slot& slot : slots_) {
    if (slot.neighbour.pid == static_cast<std::uint32_t>(::getpid())) housemates.push_back(slot.neighbour.rank);
  }
  member->channel->send(
      frame(Frame::kReturned).number(static_cast<std::uint32_t>(::getpid())).text(hostName()).ranks(housemates).take());
  // News of a death that is told soon is the reason of what this rank does next.
  for (const int dead : newlyDead_) note(*member, slots_[static_cast<std::size_t>(dead)].farewell);
  member->rank = rank;
  unjoined_.erase(member);
  own.state = State::kJoined;
  own.member = member;
  own.farewell.clear();
  own.known.clear();
  tellOfTheDead(member);
  if (lookTimer_ == 0) lookAfterAwaited();
  return true;
}

// Of those whose deaths others have been told.
void Hub::tellOfTheDead(const MemberPtr& member) {
  const std::set<int> later(newlyDead_.begin(), newlyDead_.end());
  std::uint32_t count = 0;
  Encoder words;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.state != State::kDead || later.count(static_cast<int>(i)) != 0) continue;
    note(*member, slot.farewell, slot.known);
    words.number(static_cast<std::int32_t>(i)).text(slot.words());
    ++count;
  }
  if (count != 0) member->channel->send(frame(Frame::kDeaths).number(count).raw(words.take()).take());
}

// Ranks that do not return have ended if their standby is closed. Nothing follows if it is open.
void Hub::lookAfterAwaited() {
  int awaited = 0;
  for (std::size_t i = 0; i < slots_.size() && alive_ > 0; ++i) {
    Slot& slot = slots_[i];
    if (slot.state != State::kAwaited) continue;
    if (!slot.hasEnded && !isGone(slot.neighbour)) {
      ++awaited;
      continue;
    }
    --unreturned_;
    const std::string who = describe(slot.neighbour);
    std::string farewell = slot.farewell;
    if (slot.hasLeft) {
      if (farewell.empty()) farewell = who + " has left the job";
      goneFromJob(static_cast<int>(i), State::kLeft, std::move(farewell));
      continue;
    }
    if (farewell.empty()) {
      farewell = who + " died: connection closed";
      slot.known = afterHub_;
    }
    lastDeath_ = who;
    reactor_.post([self = shared_from_this()] { self->flushDeaths(); });
    newlyDead_.push_back(static_cast<int>(i));
    goneFromJob(static_cast<int>(i), State::kDead, std::move(farewell));
  }
  if (alive_ <= 0) return;
  lookPause_ = std::min(lookPause_ * 2, kLongestLookPause);
  if (awaited > 0) {
    lookTimer_ = reactor_.at(Clock::now() + lookPause_, [self = shared_from_this()] { self->lookAfterAwaited(); });
  }
  settleInheritance();
}

// It comes last: the rank has repeated all that it waits for.
bool Hub::onFinished(const MemberPtr& member, Decoder& decoder) {
  if (!isSuccessor_ || member->isBack) return false;
  const auto count = decoder.number<std::uint32_t>();
  std::vector<GatherKey> keys;
  for (std::uint32_t i = 0; i < count && decoder.ok(); ++i) {
    const auto key = decoder.number<std::uint64_t>();
    keys.emplace_back(key, decoder.number<std::uint64_t>());
  }
  if (!decoder.done()) return false;
  for (const GatherKey& key : keys) {
    Inherited& inherited = inherited_[key];
    inherited.holders.push_back(member);
    const auto found = gathers_.find(key);
    if (found == gathers_.end()) continue;
    std::vector<std::size_t> repeated;
    for (std::size_t i = 0; i < found->second.parts.size(); ++i) {
      const Contribution& part = found->second.parts[i];
      if (part.from != nullptr && part.isRepeated) repeated.push_back(i);
    }
    const bool isFirst = inherited.waiting.empty();
    for (const std::size_t i : repeated) inherited.waiting.push_back(found->second.parts[i].from);
    for (const std::size_t i : repeated) withdraw(key, i);  // ends the gather with the last of them
    if (isFirst && !repeated.empty()) askFor(key);
  }
  member->isBack = true;
  --unreturned_;
  settleInheritance();
  return true;
}

// A request that was repeated, of an exchange whose result another rank has.
bool Hub::takeInherited(const GatherKey& id, const MemberPtr& member) {
  const auto found = inherited_.find(id);
  if (found == inherited_.end() || found->second.holders.empty()) return false;
  found->second.waiting.push_back(member);
  if (found->second.waiting.size() == 1) askFor(id);
  return true;
}

void Hub::askFor(const GatherKey& id) {
  inherited_.at(id).holders.front()->channel->send(
      frame(Frame::kResultWanted).number(id.first).number(id.second).take());
}

bool Hub::onResult(const MemberPtr& member, Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  const auto code = decoder.number<std::int32_t>();
  const std::string message(decoder.text());
  const auto all = decoder.number<std::uint32_t>();
  const auto first = decoder.number<std::uint32_t>();
  const auto count = decoder.number<std::uint32_t>();
  if (!decoder.ok() || code < koloSuccess || code >= koloNumResults || count > all || first > all - count) return false;
  Encoder news;
  if (code != koloSuccess) {
    news = frame(Frame::kGatherFailed).number(key).number(sequence).number(std::uint64_t{0}).number(settled_);
    news.number(code).text(message);
  } else {
    news = frame(Frame::kGathered).number(key).number(sequence).number(std::uint64_t{0}).number(settled_);
    news.number(first).number(count);
    for (std::uint32_t i = 0; i < count && decoder.ok(); ++i) news.text(decoder.text());
  }
  if (!decoder.done()) return false;
  const auto found = inherited_.find({key, sequence});
  if (found == inherited_.end() || found->second.holders.empty() || found->second.holders.front() != member)
    return true;
  const auto shared = std::make_shared<const std::string>(news.take());
  for (const MemberPtr& each : found->second.waiting) each->channel->send(shared);
  if (code != koloSuccess || first + count == all) found->second.waiting.clear();
  settleInheritance();
  return true;
}

// The rank has gone: who waits for a result of it asks another one, or fails.
void Hub::loseHolder(const MemberPtr& member) {
  if (isSuccessor_ && !std::exchange(member->isBack, true)) --unreturned_;
  for (auto& [key, inherited] : inherited_) {
    const bool isAsked = !inherited.holders.empty() && inherited.holders.front() == member;
    std::erase(inherited.waiting, member);
    std::erase(inherited.holders, member);
    if (!isAsked || inherited.waiting.empty()) continue;
    if (!inherited.holders.empty()) {
      askFor(key);
      continue;
    }
    const auto news =
        std::make_shared<const std::string>(frame(Frame::kGatherFailed)
                                                .number(key.first)
                                                .number(key.second)
                                                .number(std::uint64_t{0})
                                                .number(settled_)
                                                .number(std::int32_t{koloRemoteError})
                                                .text(slots_[static_cast<std::size_t>(member->rank)].words())
                                                .take());
    for (const MemberPtr& each : inherited.waiting) each->channel->send(news);
    inherited.waiting.clear();
  }
  if (isSuccessor_) settleInheritance();
}

// All ranks have returned or are gone, and nobody waits for a result of before.
void Hub::settleInheritance() {
  if (unreturned_ > 0 || isSettled_) return;
  flushLeavers();
  if (std::any_of(inherited_.begin(), inherited_.end(), [](const auto& each) { return !each.second.waiting.empty(); }))
    return;
  broadcast(std::make_shared<const std::string>(frame(Frame::kSettled).take()), false);
  isSettled_ = true;
  inherited_.clear();
}

}  // namespace kolo::bootstrap
