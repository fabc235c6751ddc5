// The hub's part in what follows the end of a rank: one that leaves, and one that dies.
#include <algorithm>
#include <utility>

#include "base/insist.h"
#include "bootstrap/hub.h"
#include "bootstrap/text_list.h"

namespace kolo::bootstrap {
namespace {

// Telling one rank of those that have left takes the hub about so long. No rank waits for longer than kLongestUntold
// before the others are told of it.
constexpr std::chrono::microseconds kTimeToTell{20}, kLongestUntold{500'000};
// News of ranks goes out in frames of about so many bytes.
constexpr std::size_t kNewsBytes = 64u << 10;

}  // namespace

// What needs memory comes before the connection is closing: where there is none, it is lost, which onClosed() tells.
void Hub::onLeave(const MemberPtr& member) {
  const int rank = member->rank;
  // A rank often leaves because another has died: the ranks that miss the first one are to hear of the second. It may
  // have learnt of the death before the hub has told it.
  const bool isAfterDeath =
      member->known.empty() && !lastDeath_.empty() && Clock::now() - lastDeathAt_ < kConsequenceTime;
  std::string farewell = fmt::format("{} has left the job{}", describe(*member),
                                     isAfterDeath ? ", after " + lastDeath_ + " had died" : "");
  if (complete_) {
    leavers_.reserve(leavers_.size() + 1);
    reactor_.post([self = shared_from_this()] { self->flushLeavers(); });
    leavers_.push_back(member);
    member->stay = Stay::kLeaves;
    endBillboardOf(*member);
    if (!isSuccessor_) std::erase(counting_, rank);  // with a later hub not before a vote (hub_silence.cc)
    goneFromJob(rank, State::kLeft, std::move(farewell));
  } else {
    member->channel->send(frame(Frame::kFarewell).take());
    member->channel->closeWhenSent();
    (void)insist([&] {
      fail(rank, expected_, error(koloRemoteError, "{} gave up while ranks were joining", describe(*member)));
    });
  }
}

// Of those that are not let go yet, from one of them on; by rank, for neighbours are listed in few bytes.
std::vector<SharedFrame> Hub::newsOfLeavers(std::size_t first) const {
  std::vector<int> all;
  for (std::size_t i = first; i < leavers_.size(); ++i) all.push_back(leavers_[i]->rank);
  std::sort(all.begin(), all.end());
  std::vector<SharedFrame> news;
  for (auto begin = all.begin(), end = begin; begin != all.end(); begin = end) {
    TextList farewells;
    for (; end != all.end() && farewells.size() < kNewsBytes; ++end)
      farewells.add(std::string_view(slots_[static_cast<std::size_t>(*end)].farewell).substr(0, kMostKnownBytes));
    news.push_back(shared(frame(Frame::kLeft).ranks({begin, end}).raw(farewells.take())));
  }
  return news;
}

// All others are told of those that have left: whoever finds this hub's process ended knows that their ends are no
// deaths, as far as the kernel had taken the news. Those that have lost an earlier hub are told when they return
// (onReturn), and the farewells wait for them. The hub spends half of its time on that at most: those that leave
// meanwhile are told of together, and wait. So where many leave one by one, the frames are as many as that time has
// room for, and not one for each pair of ranks.
void Hub::flushLeavers() {
  const Clock::time_point now = Clock::now();
  if (toldLeavers_ < leavers_.size() && alive_ > 0 && now < leaversAt_) {
    if (leaversTimer_ == 0) {
      leaversTimer_ = reactor_.at(leaversAt_, [self = shared_from_this()] {
        self->leaversTimer_ = 0;
        self->flushLeavers();
      });
    }
    return;
  }
  reactor_.cancel(std::exchange(leaversTimer_, 0));
  if (toldLeavers_ < leavers_.size()) {
    for (const SharedFrame& news : newsOfLeavers(toldLeavers_)) broadcast(news, false);
    hurryBillboards();
    for (const Slot& slot : slots_) {
      if (slot.member != nullptr) slot.member->channel->push();
    }
    toldLeavers_ = leavers_.size();
    leaversAt_ = now + std::min(2 * alive_ * kTimeToTell, kLongestUntold);
  }
  while (!leavers_.empty() && unreturned_ <= 0) {
    leavers_.back()->channel->send(frame(Frame::kFarewell).take());
    leavers_.back()->channel->closeWhenSent();
    leavers_.pop_back();
    toldLeavers_ = leavers_.size();
  }
  judgeSoon();
}

void Hub::onClosed(const MemberPtr& member, std::string_view why) {
  unjoined_.erase(member);
  member->reading.reader.reset();  // else what it has not read keeps its room
  if (member->rank < 0) return;
  if (joined(member->rank) == member.get()) endBillboardOf(*member);
  const Slot* const slot = slots_.empty() ? nullptr : &slots_[static_cast<std::size_t>(member->rank)];
  if (slot == nullptr || slot->member != member) return;  // refused
  if (!complete_) {
    return fail(member->rank, expected_,
                error(koloRemoteError, "{} died while ranks were joining: {}", describe(*member), why));
  }
  if (isMute_ || (isFollowed_ && !slot->neighbour.isHere)) return hasLost(member, why);
  std::string who = describe(*member);
  std::string farewell = fmt::format("{} died: {}", who, why);
  diedInJob(member->rank, std::move(who), std::move(farewell));
}

// REQUIRES: as of goneFromJob. Throws before anything has happened.
void Hub::diedInJob(int rank, std::string who, std::string farewell) {
  newlyDead_.reserve(newlyDead_.size() + 1);
  // After the events of this round: deaths of one moment, a node's or a job's, are told in one frame. Posted at each
  // death: deaths that could not be told for want of memory are told with the next one.
  reactor_.post([self = shared_from_this()] { self->flushDeaths(); });
  newlyDead_.push_back(rank);
  if (Slot& slot = slots_[static_cast<std::size_t>(rank)]; !slot.isOld) {
    slot.diedAt = lastDeathAt_ = Clock::now();
    lastDeath_ = std::move(who);
  }
  goneFromJob(rank, State::kDead, std::move(farewell));
}

// REQUIRES: complete_, and the rank is joined or awaited. Throws nothing.
void Hub::goneFromJob(int rank, State state, std::string farewell) {
  Slot& slot = slots_[static_cast<std::size_t>(rank)];
  const MemberPtr member = std::move(slot.member);
  const bool isOfLate = member != nullptr && Clock::now() - member->knownAt < kConsequenceTime;
  slot.state = state;
  slot.lostBy.reset();
  slot.givenUpBy.reset();
  slot.farewell = std::move(farewell);
  if (member != nullptr) {
    slot.known = isOfLate ? std::move(member->known) : std::string();
    while (!member->subscriptions.empty()) unsubscribe(member, *member->subscriptions.begin());
    (void)insist([&] { expectNoMoreOf(*member); });
  }
  ++gone_;
  (void)insist([&] { failHopelessGathers(); });
  if (--alive_ == 0) finishWithoutRanks();
}

// The dead stay noted until all have been told: for want of memory, this may be done again.
void Hub::flushDeaths() {
  if (newlyDead_.empty()) return;
  const auto slotOf = [this](int rank) -> const Slot& { return slots_[static_cast<std::size_t>(rank)]; };
  std::stable_partition(newlyDead_.begin(), newlyDead_.end(), [&](int rank) { return slotOf(rank).known.empty(); });
  const auto first = std::find_if(newlyDead_.begin(), newlyDead_.end(), [&](int rank) { return !slotOf(rank).isOld; });
  for (const Slot& slot : slots_) {
    if (slot.member != nullptr && first != newlyDead_.end())
      note(*slot.member, slotOf(*first).farewell, slotOf(*first).known);
  }
  for (const SharedFrame& news : newsOfDeaths(newlyDead_)) broadcast(news, false);
  newlyDead_.clear();
  (void)insist([&] { failHopelessGathers(); });
  (void)insist([&] { judgeSoon(); });
}

// This hub ends, though its process lives. Those that leave and have no farewell yet say so to another hub.
void Hub::endForAll(const SharedFrame& news) {
  hurryBillboards();
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
  for (const MemberPtr& leaver : std::exchange(leavers_, {})) leaver->channel->closeWhenSent();
  reactor_.cancel(std::exchange(leaversTimer_, 0));
  toldLeavers_ = 0;
  gone_ += std::exchange(alive_, 0);
  finishWithoutRanks();
}

// In their order: those that died by themselves come first.
std::vector<SharedFrame> Hub::newsOfDeaths(const std::vector<int>& ranks) const {
  std::vector<SharedFrame> news;
  for (auto begin = ranks.begin(), end = begin; begin != ranks.end(); begin = end) {
    Encoder words;
    for (; end != ranks.end() && words.size() < kNewsBytes; ++end) {
      const Slot& slot = slots_[static_cast<std::size_t>(*end)];
      words.number(static_cast<std::int32_t>(*end)).text(slot.givenUpBy.has_value() ? *slot.givenUpBy : slot.words());
    }
    news.push_back(shared(frame(Frame::kDeaths, static_cast<std::uint32_t>(end - begin)).raw(words.take())));
  }
  return news;
}

}  // namespace kolo::bootstrap
