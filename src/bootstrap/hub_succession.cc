// The hub's part in what follows the end of another hub: the ranks return to it, each with what it knows and
// what it waits for. Requests are repeated. A rank that has got the result of an exchange brings it for those that have
// not; so an exchange ends alike for all of them, and is not begun anew for some.
//
// Work is linear in the ranks, and in what they repeat.
#include <unistd.h>

#include <algorithm>

#include "base/insist.h"
#include "base/log.h"
#include "bootstrap/hub.h"
#include "bootstrap/listener.h"
#include "bootstrap/text_list.h"

namespace kolo::bootstrap {
namespace {

constexpr std::chrono::seconds kLongestReturn{15};  // of all that a rank says which returns

}  // namespace

// Each rank is told of all standbys, that of this hub first: that it is closed is how ranks know that this hub has
// ended, and has not merely given them up.
void Hub::tellNeighbours() {
  static bool hasWarned = false;
  const std::uint64_t here = placeIdentity();
  const auto isHere = [here](const Slot& slot) { return here != 0 && slot.member->place == here; };
  const auto hasPort = [](const Slot& slot) { return slot.member->door.port != 0; };
  const auto isNear = [](const Slot& slot) { return !slot.member->door.own.has_value(); };
  isWide_ = !std::all_of(slots_.begin(), slots_.end(), isHere);
  const bool isForOthers = isWide_ && std::all_of(slots_.begin(), slots_.end(), hasPort);
  auto [standby, lack] = Standby::open(reactor_, isForOthers ? Standby::Reach::kEverywhere : Standby::Reach::kHere);
  standby_ = std::move(standby);
  std::string why = whyNotFollowed(lack);
  const auto told = std::make_shared<const std::string>(why.empty() ? listOfNeighbours() : std::string());
  if (told->size() > kMaxFrameBytes) why = fmt::format("{} bytes of addresses are too many for a frame", told->size());
  isFollowed_ = isNumbered_ = why.empty();
  if (isFollowed_) return broadcast(told, false);
  standby_.reset();
  const bool isOfHosts = !std::all_of(slots_.begin(), slots_.end(), isNear);
  const bool isNews = slots_.size() > 1 && isOfHosts && !std::exchange(hasWarned, true);
  log::message(isNews ? log::Level::kWarn : log::Level::kInfo,
               "no other process can take the place of pid {} on {}, which relays the job's messages: {}", ::getpid(),
               hostName(), why);
}

std::string Hub::listOfNeighbours() {
  const std::uint64_t here = placeIdentity();
  std::vector<std::string> texts;
  const auto add = [&texts](const Neighbour& each, std::uint64_t place) {
    Encoder words = Encoder().number(place).text(each.host).text(each.address).number(each.port);
    texts.push_back(words.number(each.pid).text(each.standby).take());
  };
  add({kHubItself, static_cast<std::uint32_t>(::getpid()), standby_->name(), true, standby_->address(),
       standby_->port()},
      here);
  counting_.clear();
  for (Slot& slot : slots_) {
    const Member& member = *slot.member;
    const Door& door = member.door;
    const bool isHere = here != 0 && member.place == here;
    slot.neighbour = {member.rank, member.pid, door.name, isHere, door.address, door.port, member.host, member.place};
    add(slot.neighbour, member.place);
    if (door.address.empty()) slot.neighbour.address = kThisHost;
    counting_.push_back(member.rank);
  }
  TextList list;
  for (const std::string& each : texts) list.add(each);
  return frame(Frame::kNeighbours, static_cast<std::int32_t>(slots_.size())).raw(list.take()).take();
}

bool Hub::Door::read(Decoder& decoder) {
  stack = decoder.number<std::uint64_t>();
  name = decoder.text();
  address = decoder.text();
  isGiven = decoder.number<std::uint8_t>() != 0;
  port = decoder.number<std::uint16_t>();
  reached = decoder.text();
  lack = decoder.text();
  const bool isAddress = address.empty() || network::parseAddress(address).has_value();
  return isAddress && lack.size() <= kMostKnownBytes &&
         std::max({name.size(), address.size(), reached.size()}) <= kMaxNameBytes;
}

// Loopback leads to a rank that sees the same network, and not through a tunnel to another host.
bool Hub::Door::isTranslated(bool isHubGiven) const {
  const auto isAt = [this](const std::string& text, const std::optional<Address>& end, bool isUsersWord) {
    const std::optional<Address> said = network::parseAddress(text);
    if (!said.has_value() || said->isLoopback()) return !end.has_value() && stack == stackIdentity();
    return isUsersWord || said == end;
  };
  return !isAt(address, peer, isGiven) || !isAt(reached, own, isHubGiven);
}

// A standby that is reached at a wrong address is refused by a host that knows nothing of it, and a process that lives
// would pass for dead. So between hosts the addresses have to be those that both ends of a connection see, as no
// translation of addresses leaves them, or the word of the user for each of them. lack: of the hub's standby.
// "": there is no reason.
std::string Hub::whyNotFollowed(const std::string& lack) const {
  const bool isHubGiven = standby_ != nullptr && standby_->isAtGivenAddress();
  for (const Slot& slot : slots_) {
    const Door& door = slot.member->door;
    const bool hasDoor = !door.name.empty() && (!isWide_ || door.port != 0);
    if (!hasDoor && door.lack.empty())
      return describe(*slot.member) + " meets it at a loopback address, and not all ranks are in one container";
    if (!hasDoor) return fmt::format("{} cannot listen for the others: {}", describe(*slot.member), door.lack);
    if (isWide_ && door.isTranslated(isHubGiven))
      return describe(*slot.member) +
             " and it see different addresses of each other, as where addresses are translated (set KOLO_INTERFACE in "
             "each process to the address at which the other hosts reach it)";
  }
  return lack.empty() ? lack : "it cannot listen for them: " + lack;
}

// May be called again where it has found no memory.
void Hub::succeed(const Succession& succession) {
  if (isSuccessor_) return;
  std::vector<Slot> slots(static_cast<std::size_t>(succession.ranks));
  std::vector<int> all;
  for (const Neighbour& each : succession.neighbours) {
    if (each.rank == kHubItself) continue;
    Slot& slot = slots[static_cast<std::size_t>(each.rank)];
    slot.state = State::kAwaited;
    slot.neighbour = each;
    isWide_ = isWide_ || !each.isHere;
    all.push_back(each.rank);
  }
  slots_ = std::move(slots);
  counting_ = std::move(all);
  expected_ = alive_ = unreturned_ = succession.ranks;
  firstResult_ = lastResult_ = resultsBefore(succession.rank);
  isMute_ = succession.isPastSilence;
  madeAt_ = Clock::now();
  complete_ = isSuccessor_ = isFollowed_ = isNumbered_ = true;
}

std::string Hub::describe(const Neighbour& rank) {
  return fmt::format("rank {} (pid {} on {})", rank.rank, rank.pid, rank.host);
}

// What it says of others counts where their standbys are closed, and only then.
bool Hub::onReturn(const MemberPtr& member, Decoder& decoder) {
  const auto rank = decoder.number<std::int32_t>();
  if (decoder.number<std::uint8_t>() != 0) member->stay = Stay::kHasLeftBefore;
  const std::string_view process = decoder.raw(member->process.size());
  std::string after(decoder.text().substr(0, kMostKnownBytes));
  std::vector<int> counting = decoder.ranks(slots_.size());
  const std::vector<int> ended = decoder.ranks(slots_.size());
  const std::string_view ends = decoder.raw(ended.size());
  std::vector<std::string> farewells(ended.size()), knowns(ended.size());
  const bool areLists =
      readTexts(decoder, farewells, kMostFarewellBytes) && readTexts(decoder, knowns, kMostKnownBytes);
  const auto isRank = [this](int each) { return each < expected_; };
  if (!areLists || !decoder.done() || rank < 0 || !isRank(rank) || !std::all_of(ended.begin(), ended.end(), isRank))
    return false;
  Slot& own = slots_[static_cast<std::size_t>(rank)];
  // One that is not awaited has died, or is here already. Of another host the kernel does not say who knocks.
  const std::uint32_t pid = own.neighbour.isHere ? own.neighbour.pid : 0;
  if (own.state != State::kAwaited || pid != member->pid) return false;
  for (std::size_t i = 0; i < ended.size(); ++i) {
    const bool hasLeft = (ends[i] & kHasLeft) != 0 && ended[i] != rank;
    Slot& slot = slots_[static_cast<std::size_t>(ended[i])];
    if (slot.state == State::kJoined && !hasLeft && !slot.givenUpBy.has_value()) {
      slot.givenUpBy = farewells[i];
      if (!isMute_) tellThatItCountsAsDead(slot, ended[i]);
    }
    if (slot.state != State::kAwaited) continue;
    slot.hasLeft = slot.hasLeft || hasLeft;
    slot.isOld = slot.isOld || (ends[i] & kIsOld) != 0;
    if (!slot.farewell.empty()) continue;
    slot.farewell = farewells[i];
    slot.known = knowns[i];
  }
  if (afterHub_.empty()) afterHub_ = std::move(after);
  isCountingNews_ = isCountingNews_ || counting != counting_;
  takeCounting(std::move(counting), rank);
  std::copy(process.begin(), process.end(), member->process.begin());
  member->pid = own.neighbour.pid;
  member->host = own.neighbour.host;
  member->place = own.neighbour.isHere ? placeIdentity() : own.neighbour.place;
  member->rank = rank;
  unjoined_.erase(member);
  own.state = State::kJoined;
  own.member = member;
  forget(own.look);
  if (!own.farewell.empty() && (!own.hasLeft || own.isVotedOut)) own.givenUpBy = own.farewell;
  own.farewell.clear();
  own.known.clear();
  own.isOld = false;
  if (!isMute_) receive(member);
  if (lookTimer_ == 0) lookAfterAwaited();
  else judgeSoon();
  return true;
}

// A rank of another host has lost its connection alone. What was on its way to it is lost, and who has it is not known.
// That is as where a hub has ended, so this one ends, and all return to the next one with what they have. Only the
// first hub does this: its standby is no rank's, so the ranks have as many hubs before them as ever.
bool Hub::onReturnToFirst(std::string_view bytes) {
  Decoder decoder(bytes);
  const auto kind = static_cast<Frame>(decoder.number<std::uint8_t>());
  const auto rank = decoder.number<std::int32_t>();
  if (!decoder.ok() || kind != Frame::kReturn || !complete_ || !isFollowed_ || rank < 0 || rank >= expected_)
    return false;
  const Slot& slot = slots_[static_cast<std::size_t>(rank)];
  if (slot.state != State::kJoined || slot.neighbour.isHere || slot.isVotedOut || slot.givenUpBy) return false;
  log::info("{} has lost its connection alone: another process takes the place of this one", describe(slot.neighbour));
  endForAll(shared(frame(Frame::kHubEnds)));
  return true;
}

// Which ranks count, as one that has returned says. One that does not count itself is not asked, and those that are
// here stay. All say the same, mostly.
void Hub::takeCounting(std::vector<int> counting, int by) {
  std::sort(counting.begin(), counting.end());
  const auto counts = [&](int rank) { return std::binary_search(counting.begin(), counting.end(), rank); };
  if (counting == saidToCount_ || !counts(by)) return;
  std::erase_if(counting_, [&](int rank) {
    return !counts(rank) && slots_[static_cast<std::size_t>(rank)].state != State::kJoined;
  });
  saidToCount_ = std::move(counting);
}

// Tells a rank that has returned that it has, and what it may not know.
void Hub::receive(const MemberPtr& member) {
  Slot& own = slots_[static_cast<std::size_t>(member->rank)];
  std::vector<int> housemates;
  for (const Slot& slot : slots_) {
    const bool isHousemate = slot.neighbour.isHere && slot.neighbour.pid == static_cast<std::uint32_t>(::getpid());
    if (isHousemate) housemates.push_back(slot.neighbour.rank);
  }
  member->channel->send(
      frame(Frame::kReturned, static_cast<std::uint32_t>(::getpid()), hostName()).ranks(housemates).take());
  // News of a death that is told soon is the reason of what this rank does next.
  for (const int dead : newlyDead_) {
    const Slot& slot = slots_[static_cast<std::size_t>(dead)];
    if (slot.isDeadOfLate()) note(*member, slot.farewell);
  }
  if (own.givenUpBy.has_value()) tellThatItCountsAsDead(own, member->rank);
  offerBillboard(*member);
  limitReturnOf(member);
  tellOfTheDead(member);
  for (const SharedFrame& news : newsOfLeavers(0)) member->channel->send(news);
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

// A rank that lives, and that an earlier hub had given up, or had asked its ranks to: some go on without it, so it has
// to hear of it as they have, and so have those that do not know.
void Hub::tellThatItCountsAsDead(const Slot& slot, int rank) {
  broadcast(shared(frame(Frame::kDeaths, std::uint32_t{1}, static_cast<std::int32_t>(rank), *slot.givenUpBy)), false);
}

// Of those whose deaths others have been told.
void Hub::tellOfTheDead(const MemberPtr& member) {
  const std::set<int> later(newlyDead_.begin(), newlyDead_.end());
  std::vector<int> dead;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const bool isGivenUp = slot.givenUpBy.has_value() && slot.member != member;
    if (!isGivenUp && (slot.state != State::kDead || later.count(static_cast<int>(i)) != 0)) continue;
    if (!isGivenUp && slot.isDeadOfLate()) note(*member, slot.farewell, slot.known);
    dead.push_back(static_cast<int>(i));
  }
  for (const SharedFrame& news : newsOfDeaths(dead)) member->channel->send(news);
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
  if (inherited_.empty()) return false;
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
