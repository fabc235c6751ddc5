// The hub's part in all-gathers, reported failures and questions.
#include <algorithm>

#include "base/insist.h"
#include "bootstrap/hub.h"
#include "bootstrap/text_list.h"

namespace kolo::bootstrap {
namespace {

// Results go out in frames of about this size, so that the hub never makes one of a whole result.
constexpr std::size_t kBatchBytes = 64u << 10;
static_assert(kBatchBytes + kMaxBlobBytes + kMaxBlobBytes / 1000 + 64 <= kMaxFrameBytes);  // a blob of many pieces

constexpr std::size_t kMostUnsettled = 64;
constexpr std::chrono::milliseconds kAskAgain{10};
constexpr std::chrono::seconds kAwaitAsked{2};

// As a text that can follow "after".
std::string nameFailure(const std::string& message) { return "a failure: " + message; }

}  // namespace

// The exchange with that key. It is made whole or, where memory is short, not at all.
Hub::Gather& Hub::gatherOf(const GatherKey& id, const std::vector<int>& members, std::string_view asSent) {
  if (const auto found = gathers_.find(id); found != gathers_.end()) return found->second;
  Gather made;
  made.members = members;
  made.membersAsSent = asSent;
  made.parts.resize(members.size());
  return gathers_.emplace(id, std::move(made)).first->second;
}

bool Hub::onGather(const MemberPtr& member, Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  const GatherKey id(key, sequence);
  const auto after = decoder.number<std::uint64_t>();
  const std::size_t index = decoder.number<std::uint32_t>();
  const auto timeoutMs = decoder.number<std::uint32_t>();
  const std::string_view asSent = decoder.ranksAsSent();
  const std::string_view blob = decoder.text();
  if (isSuccessor_) flushDeaths();  // an inherited failure by a death is not told before the death
  // All ranks send the same list, mostly. It may be long, and is read once.
  const auto begun = gathers_.find(id);
  const bool isAsBefore = begun != gathers_.end() && begun->second.membersAsSent == asSent;
  Decoder list(isAsBefore ? std::string_view() : asSent);
  const std::vector<int> own = isAsBefore ? std::vector<int>() : list.ranks(slots_.size());
  const std::vector<int>& members = isAsBefore ? begun->second.members : own;
  const auto isRank = [this](int rank) { return rank >= 0 && rank < static_cast<int>(slots_.size()); };
  if (!decoder.done() || !list.done() || blob.size() > kMaxBlobBytes || index >= members.size() ||
      members[index] != member->rank || !std::all_of(own.begin(), own.end(), isRank)) {
    return false;
  }
  if (member->gathers >= kMaxGathersOfRank || member->gatherBytes + blob.size() > kMaxGatherBytesOfRank) return false;
  if (takeInherited(id, members, after, member)) return true;
  Gather& gather = gatherOf(id, members, asSent);
  if (!isAsBefore && gather.members != members) {
    const Status why = disagreement(gather, *member, members);
    failGather(id, why, nameFailure(why.message()));
    note(*member, nameFailure(why.message()));
    member->channel->send(frame(Frame::kGatherFailed, key, sequence, std::uint64_t{0}, settled_,
                                std::int32_t{koloMismatch}, why.message())
                              .take());
    return true;
  }
  Contribution& part = gather.parts[index];
  if (part.from != nullptr) return false;
  part.blob = blob;
  part.timer = reactor_.at(
      Clock::now() + std::chrono::milliseconds(timeoutMs),
      [self = shared_from_this(), id, index, timeoutMs] { self->timeOutContribution(id, index, timeoutMs); });
  part.from = member;
  part.after = after;
  ++member->gathers;
  member->gatherBytes += blob.size();
  if (++gather.have == gather.parts.size()) {
    completeGather(id);
    return true;
  }
  endIfHopeless(id, member);
  return true;
}

// Where the exchange to which the member has come cannot complete.
void Hub::endIfHopeless(const GatherKey& id, const MemberPtr& member) {
  const Gather& gather = gathers_.at(id);
  // A death comes first: it is the reason of reports and farewells that follow it. A report tells more than the
  // farewell of the rank that made it.
  const Slot* const missed = missedBy(gather);
  const auto known = failures_.find(id.first);
  if (known != failures_.end() && (missed == nullptr || missed->state != State::kDead) && !mayBeInherited(gather)) {
    const Status& first = known->second.first;
    failGather(id, first, nameFailure(first.message()));
  } else if (missed != nullptr) {
    failHopelessGathers();
  } else if (const auto rival = findRival(id, member->rank); rival != gathers_.end()) {
    const Status why = disagreement(rival->second, *member, gather.members);
    const GatherKey other = rival->first;
    failGather(other, why, nameFailure(why.message()));
    failGather(id, why, nameFailure(why.message()));
  }
}

// A part that the rank has withdrawn, or of an exchange that is over.
void Hub::release(const Contribution& part) {
  reactor_.cancel(part.timer);
  if (part.from == nullptr) return;
  --part.from->gathers;
  part.from->gatherBytes -= part.blob.size();
}

// Another exchange of some of the key's ranks, in which a member of this one waits for the rank that has just come to
// this one: control.h. The end: there is none.
std::map<Hub::GatherKey, Hub::Gather>::const_iterator Hub::findRival(const GatherKey& id, int rank) const {
  if (id.second < kPartialSequence) return gathers_.end();
  const auto isIn = [](const std::vector<int>& members, int one) {
    return std::find(members.begin(), members.end(), one) != members.end();
  };
  const std::vector<int>& members = gathers_.at(id).members;
  for (auto at = gathers_.lower_bound({id.first, kPartialSequence}); at != gathers_.end(); ++at) {
    if (at->first.first != id.first) break;
    const Gather& other = at->second;
    if (at->first == id || !isIn(other.members, rank)) continue;
    const bool waits = std::any_of(other.parts.begin(), other.parts.end(), [&](const Contribution& part) {
      return part.from != nullptr && isIn(members, part.from->rank);
    });
    if (waits) return at;
  }
  return gathers_.end();
}

// one: an exchange to which some rank has come; members: of another, to which this member has come.
Status Hub::disagreement(const Gather& one, const Member& member, const std::vector<int>& members) {
  const auto first =
      std::find_if(one.parts.begin(), one.parts.end(), [](const Contribution& part) { return part.from != nullptr; });
  return error(koloMismatch, "the ranks disagree on who takes part in an exchange: {} says ranks {}, {} says ranks {}",
               describe(*first->from), describeRanks(one.members), describe(member), describeRanks(members));
}

// A member that will not contribute any more; null: all may. Of several, one that died by itself, or else one that
// died.
const Hub::Slot* Hub::missedBy(const Gather& gather) const {
  const auto isHere = [](const Slot& slot) { return slot.state == State::kJoined || slot.state == State::kAwaited; };
  const auto weight = [](const Slot& slot) { return slot.state != State::kDead ? 1 : !slot.known.empty() ? 2 : 3; };
  const Slot* missed = nullptr;
  if (gone_ == 0 || mayBeInherited(gather)) return missed;
  for (std::size_t i = 0; i < gather.parts.size(); ++i) {
    const Slot& slot = slots_[static_cast<std::size_t>(gather.members[i])];
    if (gather.parts[i].from != nullptr || isHere(slot)) continue;
    if (missed == nullptr || weight(slot) > weight(*missed)) missed = &slot;
  }
  return missed;
}

void Hub::completeGather(const GatherKey& key) {
  const auto node = gathers_.extract(key);
  const std::vector<Contribution>& parts = node.mapped().parts;
  settleWhatHasArrived();
  const std::uint64_t number = isNumbered_ ? ++lastResult_ : 0;
  std::vector<MemberPtr> members;
  (void)insist([&] {
    members.clear();
    for (const Contribution& part : parts) members.push_back(part.from);
  });
  for (const Contribution& part : parts) release(part);
  for (std::size_t first = 0, end = 0; first < parts.size(); first = end) {
    SharedFrame batch;
    const bool isMade = insist([&] {
      TextList blobs;
      for (end = first; end < parts.size() && blobs.size() < kBatchBytes; ++end) blobs.add(parts[end].blob);
      batch = shared(frame(Frame::kGathered, key.first, key.second, number, settled_, static_cast<std::uint32_t>(first),
                           static_cast<std::uint32_t>(end - first))
                         .raw(blobs.take()));
    });
    if (!isMade) return;
    tell(members, batch);
  }
  if (number != 0) settle(node.mapped(), number);
}

// Who has got what this hub has sent, knows, and can tell another hub. What is in a rank's kernel is got: it reads that
// before it finds this process ended. So nobody has to keep a result that has arrived for all.
void Hub::settle(const Gather& ended, std::uint64_t number) {
  std::vector<MemberPtr> receivers;
  const bool isNoted = insist([&] {
    receivers.clear();
    for (const Contribution& part : ended.parts) {
      if (part.from != nullptr) receivers.push_back(part.from);
    }
    unsettled_.emplace_back(number, receivers);
    if (unsettled_.size() <= kMostUnsettled) return;
    // Of a rank that does not read: the oldest two are settled together.
    std::vector<MemberPtr> both = unsettled_[0].second;
    both.insert(both.end(), unsettled_[1].second.begin(), unsettled_[1].second.end());
    std::sort(both.begin(), both.end());
    both.erase(std::unique(both.begin(), both.end()), both.end());
    unsettled_[1].second = std::move(both);
    unsettled_.pop_front();
  });
  if (!isNoted) isNumbered_ = false;  // no further result is kept, and what is kept stays
  for (const MemberPtr& each : receivers) (void)insist([&] { each->channel->push(); });
}

// Before a result is told, with which the ranks hear of this. Results of this hub come after those of an earlier one,
// which some ranks may not have asked for yet.
void Hub::settleWhatHasArrived() {
  // One that is lost may live, and lack it, until it is buried.
  const auto hasIt = [this](const MemberPtr& member) {
    const Slot& slot = slots_[static_cast<std::size_t>(member->rank)];
    return !(slot.member == member && slot.lostBy) && member->channel->hasArrived();
  };
  while (isNumbered_ && unreturned_ == 0 && !unsettled_.empty()) {
    const auto& [first, all] = unsettled_.front();
    if (!std::all_of(all.begin(), all.end(), hasIt)) break;
    settled_ = first;
    unsettled_.pop_front();
  }
}

void Hub::failGather(const GatherKey& key, const Status& why, const std::string& failure, const std::string& before) {
  settleWhatHasArrived();
  const std::uint64_t number = isNumbered_ ? ++lastResult_ : 0;
  const auto news = shared(frame(Frame::kGatherFailed, key.first, key.second, number, settled_,
                                 static_cast<std::int32_t>(why.code()), why.message()));
  const auto node = gathers_.extract(key);
  for (const Contribution& part : node.mapped().parts) {
    release(part);
    if (part.from == nullptr) continue;
    (void)insist([&] { note(*part.from, failure, before); });
    (void)insist([&] { part.from->channel->send(news); });
  }
  if (number != 0) settle(node.mapped(), number);
}

// Ends the exchanges that wait for a rank that is gone, and those that were reported while an earlier hub's result
// might still come. flushDeaths tells deaths first and then calls this, so that a rank whose exchange ends by a death
// has heard of the death before.
void Hub::failHopelessGathers() {
  if (!newlyDead_.empty()) return;
  std::vector<std::pair<GatherKey, const Slot*>> hopeless;
  std::vector<std::pair<GatherKey, Status>> reported;
  for (const auto& [key, gather] : gathers_) {
    const auto known = failures_.find(key.first);
    if (const Slot* const missed = missedBy(gather); missed != nullptr) hopeless.emplace_back(key, missed);
    else if (known != failures_.end() && !mayBeInherited(gather)) reported.emplace_back(key, known->second.first);
  }
  for (const auto& [key, why] : reported) failGather(key, why, nameFailure(why.message()));
  for (const auto& [key, gone] : hopeless)
    failGather(key, Status(koloRemoteError, gone->words()), gone->farewell, gone->known);
}

std::vector<int> Hub::missingRanks(const Gather& gather) {
  std::vector<int> missing;
  for (std::size_t i = 0; i < gather.parts.size(); ++i) {
    if (gather.parts[i].from == nullptr) missing.push_back(gather.members[i]);
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

void Hub::timeOutContribution(const GatherKey& key, std::size_t index, std::uint32_t timeoutMs) {
  const auto found = gathers_.find(key);
  if (found == gathers_.end() || found->second.parts[index].from == nullptr) return;
  const MemberPtr member = found->second.parts[index].from;
  const std::vector<int> missing = missingRanks(found->second);
  const std::string why =
      fmt::format("waited {} ms (KOLO_INIT_TIMEOUT_MS) for {} {} to take part in an exchange of {} ranks", timeoutMs,
                  missing.size() == 1 ? "rank" : "ranks", describeRanks(missing), found->second.parts.size());
  note(*member, nameFailure(why));
  member->channel->send(frame(Frame::kGatherFailed, key.first, key.second, std::uint64_t{0}, settled_,
                              static_cast<std::int32_t>(koloTimeout), why)
                            .take());
  // Only this one gives up: others may have more patience, but they cannot count on its blob any more. Last, since what
  // finds no memory is begun again.
  withdraw(key, index);
}

void Hub::withdraw(const GatherKey& key, std::size_t index) {
  const auto found = gathers_.find(key);
  if (found == gathers_.end() || index >= found->second.parts.size()) return;
  Contribution& part = found->second.parts[index];
  if (part.from == nullptr) return;
  release(part);
  part = Contribution();
  if (--found->second.have == 0) gathers_.erase(found);
}

bool Hub::onWithdraw(const MemberPtr& member, Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  const std::size_t index = decoder.number<std::uint32_t>();
  if (!decoder.done()) return false;
  const auto found = gathers_.find({key, sequence});
  const bool isThere = found != gathers_.end() && index < found->second.parts.size();  // else over meanwhile
  if (isThere && found->second.parts[index].from == member) withdraw({key, sequence}, index);
  member->channel->send(frame(Frame::kWithdrawn, key, sequence).take());
  return true;
}

bool Hub::onSubscribe(const MemberPtr& member, Decoder& decoder) {
  const auto family = decoder.number<std::uint64_t>();
  if (!decoder.done() || member->subscriptions.size() >= kMaxFamiliesOfRank) return false;
  if (!member->subscriptions.insert(family).second) return true;
  subscribers_[family].insert(member);
  for (const auto& [key, known] : failures_) {
    if (known.family != family) continue;
    note(*member, nameFailure(known.first.message()));
    for (const SharedFrame& failure : known.frames) member->channel->send(failure);
  }
  return true;
}

bool Hub::onUnsubscribe(const MemberPtr& member, Decoder& decoder) {
  const auto family = decoder.number<std::uint64_t>();
  if (!decoder.done()) return false;
  unsubscribe(member, family);
  return true;
}

void Hub::unsubscribe(const MemberPtr& member, std::uint64_t family) {
  member->subscriptions.erase(family);
  const auto found = subscribers_.find(family);
  if (found == subscribers_.end()) return;
  found->second.erase(member);
  if (found->second.empty()) subscribers_.erase(found);
}

bool Hub::onReport(const MemberPtr& member, Decoder& decoder) {
  const auto number = decoder.number<std::uint64_t>();
  const auto key = decoder.number<std::uint64_t>();
  const auto family = decoder.number<std::uint64_t>();
  const auto code = decoder.number<std::int32_t>();
  const auto rank = decoder.number<std::int32_t>();
  const std::string message(decoder.text());
  if (!decoder.done() || code <= koloSuccess || code >= koloNumResults) return false;
  if (message.size() > kMaxReportBytes) return false;
  const std::string cause = fmt::format("a failure on rank {}: {}", member->rank, message);
  note(*member, cause);
  Reported& known = failures_[key];
  if (known.frames.empty()) {
    known.family = family;
    known.first = Status(failureCode(code), message);
    failedKeys_.push_back(key);
  }
  // Of one that gives something up itself everybody has to hear, for no other rank speaks for it.
  if (rank == member->rank ? !known.ofThemselves.insert(rank).second : known.ofOthers++ >= kMaxFailuresPerKey)
    return true;
  known.frames.push_back(
      shared(frame(Frame::kReported, static_cast<std::int32_t>(member->rank), number, key, code, rank, message)));
  const SharedFrame news = known.frames.back();
  failureBytes_ += news->size();
  forgetOldFailures();
  if (const auto found = subscribers_.find(family); found != subscribers_.end()) {
    for (const MemberPtr& each : found->second) {
      if (each == member) continue;  // the reporter has told itself
      note(*each, cause);
      each->channel->send(news);
    }
  }
  for (auto at = gathers_.lower_bound({key, 0}); at != gathers_.end() && at->first.first == key;) {
    const auto pending = at++;
    if (!mayBeInherited(pending->second)) failGather(pending->first, Status(failureCode(code), message), cause);
  }
  return true;
}

void Hub::forgetOldFailures() {
  while (failedKeys_.size() > kMaxFailedKeys || (failureBytes_ > kMaxFailureBytes && failedKeys_.size() > 1)) {
    const auto oldest = failures_.extract(failedKeys_.front());
    failedKeys_.pop_front();
    if (oldest.empty()) continue;  // noted twice, for there was no memory at first
    for (const SharedFrame& each : oldest.mapped().frames) failureBytes_ -= each->size();
  }
}

Hub::Member* Hub::joined(int rank) const {
  return rank >= 0 && rank < static_cast<int>(slots_.size()) ? slots_[static_cast<std::size_t>(rank)].member.get()
                                                             : nullptr;
}

// Questions and answers are handed on; nothing is kept of them. The asker is told whose answer it is, and takes only
// that of the rank that it has asked.
bool Hub::onAsk(const MemberPtr& member, Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto number = decoder.number<std::uint64_t>();
  const auto rank = decoder.number<std::int32_t>();
  const std::string_view question = decoder.text();
  if (!decoder.done()) return false;
  ask(member, {key, number, rank, std::string(question), Clock::now() + kAwaitAsked});
  return true;
}

// A rank that has not returned yet may answer soon, and one whose connection is lost is soon found dead. Of one that
// has died the asker hears before it is told that nobody answers.
void Hub::ask(const MemberPtr& member, const Question& question) {
  const bool isRank = question.rank >= 0 && question.rank < static_cast<int>(slots_.size());
  if (isRank && isMissed(slots_[static_cast<std::size_t>(question.rank)])) {
    if (Clock::now() >= question.until || joined(member->rank) != member.get()) return;
    reactor_.at(Clock::now() + kAskAgain,
                [self = shared_from_this(), member, question] { self->ask(member, question); });
  } else if (const Member* const asked = joined(question.rank); asked != nullptr) {
    asked->channel->send(
        frame(Frame::kAsked, question.key, std::int32_t{member->rank}, question.number, question.text).take());
  } else {
    flushDeaths();
    member->channel->send(frame(Frame::kAnswered, question.number, question.rank, "").take());
  }
}

bool Hub::onAnswer(const MemberPtr& member, Decoder& decoder) {
  const auto rank = decoder.number<std::int32_t>();
  const auto number = decoder.number<std::uint64_t>();
  const std::string_view answer = decoder.text();
  if (!decoder.done()) return false;
  if (const Member* const asker = joined(rank); asker != nullptr) {
    asker->channel->send(frame(Frame::kAnswered, number, std::int32_t{member->rank}, answer).take());
  }
  return true;
}

}  // namespace kolo::bootstrap
