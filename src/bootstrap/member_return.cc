// A rank's way to another hub, when it has lost one: standby.h.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "base/insist.h"
#include "base/log.h"
#include "bootstrap/hub.h"
#include "bootstrap/member_link.h"
#include "bootstrap/text_list.h"

namespace kolo::bootstrap {
namespace {

// A standby that is open and does not take the rank: its process has not noticed yet that the hub has ended, or has no
// descriptor, or is stopped.
constexpr std::chrono::milliseconds kKnockAgain{5}, kKnockFarAgain{25};
constexpr std::chrono::seconds kStopped{1};  // lateness from which on this process counts as stopped meanwhile

}  // namespace

bool MemberLink::onNeighbours(Decoder& decoder) {
  Succession place;
  place.ranks = decoder.number<std::int32_t>();
  if (welcomed_ || place.ranks <= rank_ || place.ranks > kMaxRanks) return false;
  std::vector<std::string> texts(static_cast<std::size_t>(place.ranks) + 1);
  if (!readTexts(decoder, texts, kMaxNeighbourBytes) || !decoder.done()) return false;
  const std::uint64_t own = placeIdentity();
  for (const std::string& text : texts) {
    Decoder words(text);
    Neighbour each{.rank = static_cast<int>(place.neighbours.size()) + kHubItself};
    each.place = words.number<std::uint64_t>();
    each.isHere = each.place == own && own != 0;
    each.host = words.text();
    each.address = words.text();
    each.port = words.number<std::uint16_t>();
    each.pid = words.number<std::uint32_t>();
    each.standby = words.text();
    if (!words.done() || std::max(each.standby.size(), each.address.size()) > kMaxNameBytes) return false;
    if (each.address.empty()) each.address = hub_.address;
    place.isWide = place.isWide || !each.isHere;
    place.neighbours.push_back(std::move(each));
  }
  place.rank = rank_;
  place_ = std::move(place);
  memory_.counting.resize(static_cast<std::size_t>(place_.ranks));
  std::iota(memory_.counting.begin(), memory_.counting.end(), 0);
  return true;
}

bool MemberLink::onCounting(Decoder& decoder) {
  std::vector<int> ranks = decoder.ranks(kMaxRanks);
  if (!decoder.done()) return false;
  memory_.counting = std::move(ranks);
  return true;
}

// What this rank has answered holds with any hub: it brings those ranks to the next one as dead. So no two hubs have
// the word of enough ranks without one of these having told the second what the first was given.
bool MemberLink::onVote(Decoder& decoder) {
  const auto number = decoder.number<std::uint64_t>();
  const std::vector<int> ranks = decoder.ranks(kMaxRanks);
  std::vector<std::string> farewells(ranks.size()), knowns(ranks.size());
  const auto isOther = [this](int rank) { return rank < place_.ranks && rank != rank_; };
  if (!std::all_of(ranks.begin(), ranks.end(), isOther) || !readTexts(decoder, farewells, kMostFarewellBytes) ||
      !readTexts(decoder, knowns, kMostKnownBytes) || !decoder.done())
    return false;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    memory_.gone.try_emplace(ranks[i], Gone{false, std::move(farewells[i]), std::move(knowns[i]), Clock::now(), false});
  channel_->send(frame(Frame::kVoted, number).take());
  return true;
}

// The others may go on without this rank, so it is told of itself as they are.
bool MemberLink::onCutOff(Decoder& decoder) {
  search_.cutOff = decoder.text();
  if (!decoder.done() || search_.cutOff.empty()) return false;
  place_.neighbours.clear();
  standby_.reset();
  loseForGood(search_.cutOff);
  return true;
}

// Its process lives, and so do the ranks in it.
bool MemberLink::onHubEnds(Decoder& decoder) {
  hub_.ranks.clear();
  hub_.knows.clear();
  return decoder.done();
}

bool MemberLink::onLeft(Decoder& decoder) {
  std::vector<int> ranks = decoder.ranks(kMaxRanks);
  std::vector<std::string> farewells(ranks.size());
  const bool areRanks = std::all_of(ranks.begin(), ranks.end(), [](int rank) { return rank < kMaxRanks; });
  if (!areRanks || !readTexts(decoder, farewells, kMostKnownBytes) || !decoder.done()) return false;
  for (std::size_t i = 0; i < ranks.size() && !place_.neighbours.empty(); ++i)
    memory_.gone.try_emplace(ranks[i], Gone{true, farewells[i].substr(0, kMostKnownBytes), {}});
  std::sort(ranks.begin(), ranks.end());
  const auto hasLeft = [&ranks](int rank) { return std::binary_search(ranks.begin(), ranks.end(), rank); };
  std::erase_if(hub_.ranks, hasLeft);
  if (search_.firstResult == 0) std::erase_if(memory_.counting, hasLeft);  // the first hub says so (Hub::onLeave)
  return true;
}

bool MemberLink::onReturned(Decoder& decoder) {
  const auto pid = decoder.number<std::uint32_t>();
  const std::string_view host = decoder.text();
  std::vector<int> ranks = decoder.ranks(kMaxFrameBytes);
  if (!decoder.done()) return false;
  hub_.name = fmt::format("pid {} on {}", pid, host);
  hub_.is = "which has relayed the job's messages";
  hub_.ranks = std::move(ranks);
  std::erase_if(hub_.ranks, [this](int rank) { return memory_.gone.count(rank) != 0; });
  // All ranks in it know how the last hub has ended, and may end themselves because of that.
  if (!search_.after.empty()) {
    hub_.knows = search_.afterKnown.empty() ? search_.after : search_.afterKnown;
    hub_.knowsAt = Clock::now();
  }
  search_.hasReturned = true;
  search_.until = {};
  return true;
}

// Of an exchange that this rank has given up, too: what it asks next is asked after that (Hub::takeInherited).
void MemberLink::hearResult(std::uint64_t number, std::uint64_t settled) {
  memory_.lastResult = std::max(memory_.lastResult, number);
  while (!memory_.results.empty() && memory_.results.front().number <= settled) forgetOldestResult();
}

std::size_t MemberLink::Kept::bytes() const {
  std::size_t sum = status.message().size();
  for (const std::string& each : parts) sum += each.size();
  return sum;
}

void MemberLink::keep(Kept result) {
  memory_.results.push_back(std::move(result));
  memory_.resultBytes += memory_.results.back().bytes();
  while (memory_.results.size() > kMaxGathersOfRank ||
         (memory_.resultBytes > kMaxResultBytesOfRank && memory_.results.size() > 1))
    forgetOldestResult();
}

void MemberLink::forgetOldestResult() {
  memory_.resultBytes -= memory_.results.front().bytes();
  memory_.results.pop_front();
}

// Another hub is told of reports that were made to an earlier one, and hands them on.
bool MemberLink::isNews(std::uint64_t key, int from, std::uint64_t number) {
  auto& heard = memory_.heard[key];
  if (heard.empty()) memory_.heardKeys.push_back(key);
  if (std::find(heard.begin(), heard.end(), std::pair(from, number)) != heard.end()) return false;
  heard.emplace_back(from, number);
  if (memory_.heardKeys.size() > kMaxFailedKeys) {
    memory_.heard.erase(memory_.heardKeys.front());
    memory_.heardKeys.pop_front();
  }
  return true;
}

SharedFrame MemberLink::requestFor(const ExchangeKey& key, const Exchange& exchange) {
  const auto leftMs = static_cast<std::uint32_t>(std::max(1, millisecondsUntil(exchange.deadline)));
  return shared(frame(Frame::kGather, key.first, key.second, exchange.after, exchange.index,
                      exchange.after != kNeverAsked ? leftMs : exchange.timeoutMs)
                    .raw(exchange.members)
                    .text(exchange.mine));
}

// May be called again where it has found no memory.
void MemberLink::lose(std::string_view why) {
  hub_.billboard = {};
  hub_.kept.reset();
  hub_.withdrawn.clear();                      // that hub does not answer any more
  if (search_.until != Clock::time_point()) {  // a next hub, which has not taken this rank
    search_.isOn = true;
    return seekAt(Clock::now() + kKnockAgain);
  }
  search_.why = why;
  log::debug("rank {}: the process {} ({}) is lost: {}", rank_, hub_.is, hub_.name, why);
  std::string known = afterWhat();
  if (!known.empty()) known.erase(0, std::string_view(", after ").size());
  search_.after.clear();
  for (const int rank : hub_.ranks) {
    if (search_.after.empty())
      search_.after = fmt::format("rank {} ({}) died: {}{}", rank, hub_.name, why, afterWhat());
  }
  search_.afterKnown = known;
  search_.until = Clock::now() + longestSearch();
  search_.isOn = true;
  search_.isHubOver = false;
  search_.askedAt = {};
  search_.silent.clear();
  place_.isPastSilence = false;
  // Whether they have died is to be seen. But what waits for them waits in vain.
  for (const int rank : hub_.ranks) {
    if (channel_->isSilent() && rank != rank_)
      subscriptions_.died(
          {koloRemoteError, rank, fmt::format("rank {} ({}) does not answer: {}", rank, hub_.name, why)});
  }
  seek();
}

// For certain.
void MemberLink::hubIsOver() {
  for (const int rank : hub_.ranks) {
    if (rank != rank_)
      memory_.gone.try_emplace(
          rank, Gone{false, fmt::format("rank {} ({}) died: {}", rank, hub_.name, search_.why), search_.afterKnown});
  }
  search_.isHubOver = true;  // last: without memory all of it is done again
}

// A process on another host may notice the end of the last hub as much later as a host may be silent.
std::chrono::milliseconds MemberLink::longestSearch() const {
  return kLongestSearch + (place_.isWide ? silence() : std::chrono::milliseconds());
}

void MemberLink::seek() {
  reactor_.cancel(search_.timer);
  if (isClosed_ || !search_.isOn) return;
  if (search_.knock != nullptr) {
    const bool isUnderWay = !search_.knock->isOver() && !place_.neighbours[search_.next].isHere;
    const Knock::Word word = search_.knock->word();
    const bool isSilent =
        isUnderWay && (word == Knock::Word::kNone || (word == Knock::Word::kConnected && isUnheard()));
    if (isUnderWay && !isSilent && Clock::now() < search_.until)
      return seekAt(std::min<Clock::time_point>(
          search_.until, word == Knock::Word::kConnected ? search_.unheardSince + silence() : search_.until));
    search_.knock->drop();
    search_.knock = nullptr;
    if (isSilent) pass(word == Knock::Word::kNone ? Knock::Word::kSilent : word);
  }
  while (search_.next < place_.neighbours.size() && Clock::now() < search_.until) {
    const Neighbour& at = place_.neighbours[search_.next];
    const bool isSilent = !at.isHere && search_.silent.count(at.address) != 0;
    const Knock::Word word = isSilent ? Knock::Word::kSilent : tryStandby(at);
    if (word == Knock::Word::kNone) return;
    pass(word);
  }
  search_.isOn = false;
  place_.neighbours.clear();  // no hub is looked for again
  standby_.reset();           // and there is none here: those that look are not to wait for it
  loseForGood(search_.lack.empty() ? search_.why : search_.why + "; then " + search_.lack);
}

// A process that has another's port, or is stopped, takes connections and says nothing. Where there is no way to a host
// at the moment, this process's own network may be about to come back.
bool MemberLink::isUnheard() const {
  return search_.unheardSince != Clock::time_point() && Clock::now() - search_.unheardSince >= silence();
}

void MemberLink::pass(Knock::Word word) {
  const Neighbour& at = place_.neighbours[search_.next];
  if (word == Knock::Word::kClosed && isAtLostHub() && !search_.isHubOver) hubIsOver();
  if (word == Knock::Word::kSilent) search_.silent.insert(at.address);
  place_.isPastSilence = place_.isPastSilence || word != Knock::Word::kClosed;
  search_.unheardSince = {};
  ++search_.next;
  search_.hasReturned = false;
  search_.until = Clock::now() + longestSearch();
}

void MemberLink::seekAt(Clock::time_point when) {
  reactor_.cancel(search_.timer);
  search_.timer = reactor_.at(when, [self = shared_from_this(), when] {
    // Where this process was stopped, others may have been: they have as long as before.
    if (const auto late = Clock::now() - when; late > kStopped) self->search_.until += late;
    self->seek();
  });
}

Knock::Word MemberLink::tryStandby(const Neighbour& at) {
  const Secret secret = standbySecret(jobKey_, at.standby);
  if (at.rank == rank_ && (standby_ == nullptr || !standby_->succeed(secret, place_).ok())) return Knock::Word::kClosed;
  int errnum = 0;
  Socket socket = reach(at, errnum);
  search_.lack.clear();
  if (errnum == ECONNREFUSED) return Knock::Word::kClosed;
  const bool isOutOfFiles = network::isOutOfFiles(errnum);
  if (isOutOfFiles)
    search_.lack = systemError(errnum, "making a socket to reach the next hub").message() + " (RLIMIT_NOFILE)";
  if (search_.unheardSince == Clock::time_point() && !isOutOfFiles) search_.unheardSince = Clock::now();
  const bool isUnreachable = errnum != 0 && !at.isHere && !isOutOfFiles;
  if (isUnreachable && isUnheard()) return Knock::Word::kSilent;
  const auto silent = std::min<Clock::time_point>(search_.until, Clock::now() + silence());
  const auto again = isUnreachable ? kKnockFarAgain : kKnockAgain;
  seekAt(errnum != 0 ? Clock::now() + again : at.isHere ? search_.until : silent);
  if (errnum != 0) return Knock::Word::kNone;
  search_.knock =
      std::make_shared<Knock>(reactor_, secret, false, std::move(socket),
                              [self = shared_from_this()](const std::optional<Session>& session, Socket given) {
                                self->returnBy(session, std::move(given));
                              });
  if (search_.knock->start().ok()) return Knock::Word::kNone;
  search_.knock = nullptr;
  seekAt(Clock::now() + kKnockAgain);
  return Knock::Word::kNone;
}

void MemberLink::returnBy(const std::optional<Session>& session, Socket socket) {
  std::vector<SharedFrame> all;
  if (isClosed_ || !search_.isOn) return;
  const Neighbour& at = place_.neighbours[search_.next];
  const Knock::Word word = search_.knock->word();
  const bool isAnswer = word > Knock::Word::kConnected && word != Knock::Word::kSilent;
  if (isAnswer) search_.unheardSince = {};
  if (word == Knock::Word::kClosed || (!isAnswer && !at.isHere && isUnheard())) {
    pass(word);
    return seekAt(Clock::now());
  }
  const bool mayEnd = at.rank == kHubItself && !at.isHere && !leaving_;
  if (mayEnd && session.has_value() && socket.valid()) return askToEnd(*session, socket);
  const bool isReady = session.has_value() && socket.valid() && insist([&] { all = allToSay(); });
  // The process of the lost hub still runs, and that hub with it.
  const bool isOver = isAtLostHub() && (word == Knock::Word::kOpen || word == Knock::Word::kHub);
  if (isOver) search_.until = Clock::now();
  if (isOver || !isReady || !startChannel(std::move(socket), *session).ok())
    return seekAt(Clock::now() + (at.isHere ? kKnockAgain : kKnockFarAgain));
  reactor_.cancel(search_.timer);
  search_.isOn = false;
  hub_.secret = standbySecret(jobKey_, at.standby);
  for (const SharedFrame& each : all) (void)insist([&] { channel_->send(each); });
  // What this hub is the first to be asked for, no earlier one can have ended.
  search_.firstResult = resultsBefore(place_.neighbours[search_.next].rank);
  memory_.lastResult = std::max(memory_.lastResult, search_.firstResult);
  for (const auto& [key, exchange] : exchanges_) exchange->after = std::min(exchange->after, memory_.lastResult);
}

// The lost hub lives: this rank's connection alone has broken. It ends, and then its standby is closed, though the
// ranks of its process live.
void MemberLink::askToEnd(Session session, const Socket& socket) {
  std::string sealed;
  session.seal(frame(Frame::kReturn, static_cast<std::int32_t>(rank_)).take(), sealed);
  if (search_.askedAt == Clock::time_point()) {
    search_.askedAt = Clock::now();
    search_.until = search_.askedAt + silence();
  }
  search_.after.clear();
  hub_.ranks.clear();
  (void)::send(socket.fd(), sealed.data(), sealed.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  seekAt(Clock::now() + kKnockFarAgain);
}

std::vector<SharedFrame> MemberLink::allToSay() const {
  std::vector<SharedFrame> all;
  const auto say = [&all](auto&& words) { all.push_back(shared(words)); };
  const Identity& process = processIdentity();
  Encoder own = frame(Frame::kReturn);
  own.number(static_cast<std::int32_t>(rank_)).number(static_cast<std::uint8_t>(leaving_));
  own.raw({reinterpret_cast<const char*>(process.data()), process.size()});
  std::vector<int> ranks;
  std::string ends;
  TextList farewells, knowns;
  for (const auto& [rank, gone] : memory_.gone) {
    const bool isOld = Clock::now() - gone.since >= kConsequenceTime;
    ranks.push_back(rank);
    ends.push_back(static_cast<char>((gone.hasLeft ? kHasLeft : 0) | (isOld ? kIsOld : 0)));
    farewells.add(std::string_view(gone.farewell).substr(0, kMostFarewellBytes));
    knowns.add(std::string_view(gone.known).substr(0, kMostKnownBytes));
  }
  own.text(search_.after).ranks(memory_.counting).ranks(ranks);
  say(own.raw(ends).raw(farewells.take()).raw(knowns.take()));
  for (const Kept& result : memory_.results) {
    for (const std::string& part : result.parts) {
      say(frame(Frame::kResult, result.key.first, result.key.second, result.number,
                static_cast<std::int32_t>(result.status.code()), result.status.message())
              .raw(result.members)
              .raw(part));
    }
  }
  for (const auto& [key, exchange] : exchanges_) all.push_back(requestFor(key, *exchange));
  // Behind results and requests: an exchange that an earlier hub has ended ends by that, and not by what was reported
  // since.
  all.insert(all.end(), memory_.reports.begin(), memory_.reports.end());
  for (const std::uint64_t family : families_) say(frame(Frame::kSubscribe, family));
  for (const auto& [number, question] : questions_.byNumber) all.push_back(question.request);
  say(frame(Frame::kFinished));
  if (leaving_) all.push_back(shared(frame(Frame::kLeave)));
  return all;
}

}  // namespace kolo::bootstrap
