// A rank's way to another hub, when it has lost one: standby.h.
#include <algorithm>
#include <cerrno>

#include "base/insist.h"
#include "base/log.h"
#include "bootstrap/hub.h"
#include "bootstrap/member_link.h"
#include "bootstrap/text_list.h"

namespace kolo::bootstrap {
namespace {

// A standby that is open and does not take the rank: its process has not noticed yet that the hub has ended, or has no
// descriptor, or is stopped.
constexpr std::chrono::milliseconds kKnockAgain{5};
constexpr std::chrono::seconds kLongestSearch{15};
constexpr std::chrono::seconds kStopped{1};  // lateness from which on this process counts as stopped meanwhile

}  // namespace

bool MemberLink::onNeighbours(Decoder& decoder) {
  Succession place;
  place.ranks = decoder.number<std::int32_t>();
  place.isWhole = decoder.number<std::uint8_t>() != 0;
  const auto count = decoder.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && decoder.ok(); ++i) {
    const auto rank = decoder.number<std::int32_t>();
    const auto pid = decoder.number<std::uint32_t>();
    place.neighbours.push_back({rank, pid, std::string(decoder.text())});
    const bool isLater = i == 0 || rank > place.neighbours[i - 1].rank;
    if (rank < kHubItself || rank >= place.ranks || !isLater || place.neighbours[i].standby.size() > kMaxNameBytes)
      return false;
  }
  if (!decoder.done() || welcomed_ || place.ranks > kMaxRanks) return false;
  place.rank = rank_;
  place_ = std::move(place);
  return true;
}

bool MemberLink::onLeft(Decoder& decoder) {
  const std::vector<int> ranks = decoder.ranks(kMaxRanks);
  std::vector<std::string> farewells(ranks.size());
  const bool areRanks = std::all_of(ranks.begin(), ranks.end(), [](int rank) { return rank < kMaxRanks; });
  if (!areRanks || !readTexts(decoder, farewells) || !decoder.done()) return false;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::erase(hub_.ranks, ranks[i]);
    if (!place_.neighbours.empty())
      memory_.gone.try_emplace(ranks[i], Gone{true, farewells[i].substr(0, kMostKnownBytes), {}});
  }
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
  search_.until = Clock::now() + kLongestSearch;
  search_.isOn = true;
  search_.isHubOver = false;
  const bool isHubKnown = search_.hasReturned || place_.neighbours.front().rank == kHubItself;
  if (!isHubKnown) hubIsOver();  // on another host, so nothing else tells
  seek();
}

// For certain.
void MemberLink::hubIsOver() {
  for (const int rank : hub_.ranks) {
    if (rank != rank_)
      memory_.gone.try_emplace(
          rank, Gone{false, fmt::format("rank {} ({}) died: {}", rank, hub_.name, search_.why), search_.afterKnown});
  }
  // The next hub knows nothing of other hosts, and exchanges nothing without them.
  if (!place_.isWhole) endAllWithHub(search_.why);
  search_.isHubOver = true;  // last: without memory all of it is done again
}

void MemberLink::seek() {
  reactor_.cancel(search_.timer);
  if (isClosed_ || !search_.isOn) return;
  if (search_.knock != nullptr) search_.knock->drop();
  search_.knock = nullptr;
  while (search_.next < place_.neighbours.size() && Clock::now() < search_.until) {
    if (tryStandby(place_.neighbours[search_.next])) return;
    if (!search_.isHubOver) hubIsOver();
    ++search_.next;
    search_.hasReturned = false;
    search_.until = Clock::now() + kLongestSearch;
  }
  search_.isOn = false;
  place_.neighbours.clear();  // no hub is looked for again
  standby_.reset();           // and there is none here: those that look are not to wait for it
  loseForGood(search_.lack.empty() ? search_.why : search_.why + "; then " + search_.lack);
}

void MemberLink::seekAt(Clock::time_point when) {
  reactor_.cancel(search_.timer);
  search_.timer = reactor_.at(when, [self = shared_from_this(), when] {
    // Where this process was stopped, others may have been: they have as long as before.
    if (const auto late = Clock::now() - when; late > kStopped) self->search_.until += late;
    self->seek();
  });
}

// False: it is closed.
bool MemberLink::tryStandby(const Neighbour& at) {
  const Secret secret = standbySecret(jobKey_);
  if (at.rank == rank_ && (standby_ == nullptr || !standby_->succeed(secret, place_).ok())) return false;
  int errnum = 0;
  Socket socket = knock(at.standby, errnum);
  search_.lack.clear();
  if (errnum == ECONNREFUSED) return false;
  if (network::isOutOfFiles(errnum))
    search_.lack = systemError(errnum, "making a socket to reach the next hub").message() + " (RLIMIT_NOFILE)";
  seekAt(errnum != 0 ? Clock::now() + kKnockAgain : search_.until);
  if (errnum != 0) return true;
  search_.knock =
      std::make_shared<Knock>(reactor_, secret, std::move(socket),
                              [self = shared_from_this()](const std::optional<Session>& session, Socket given) {
                                self->returnBy(session, std::move(given));
                              });
  if (!search_.knock->start().ok()) seekAt(Clock::now() + kKnockAgain);
  return true;
}

void MemberLink::returnBy(const std::optional<Session>& session, Socket socket) {
  std::vector<SharedFrame> all;
  if (isClosed_ || !search_.isOn) return;
  const bool isReady = session.has_value() && socket.valid() && insist([&] { all = allToSay(); });
  // The process of the lost hub still runs, and that hub with it.
  const bool isLostHub = place_.neighbours[search_.next].rank == kHubItself || search_.hasReturned;
  const bool isOver = isLostHub && search_.knock->isAnswered();
  if (isOver) search_.until = Clock::now();
  if (isOver || !isReady || !startChannel(std::move(socket), *session).ok()) return seekAt(Clock::now() + kKnockAgain);
  reactor_.cancel(search_.timer);
  search_.isOn = false;
  hub_.secret = standbySecret(jobKey_);
  for (const SharedFrame& each : all) (void)insist([&] { channel_->send(each); });
  // What this hub is the first to be asked for, no earlier one can have ended.
  search_.firstResult = resultsBefore(place_.neighbours[search_.next].rank);
  memory_.lastResult = std::max(memory_.lastResult, search_.firstResult);
  for (const auto& [key, exchange] : exchanges_) exchange->after = std::min(exchange->after, memory_.lastResult);
}

std::vector<SharedFrame> MemberLink::allToSay() const {
  std::vector<SharedFrame> all;
  const auto say = [&all](auto&& words) { all.push_back(shared(words)); };
  const Identity& process = processIdentity();
  Encoder own = frame(Frame::kReturn);
  own.number(static_cast<std::int32_t>(rank_)).raw({reinterpret_cast<const char*>(process.data()), process.size()});
  own.text(search_.after).number(static_cast<std::uint32_t>(memory_.gone.size()));
  for (const auto& [rank, gone] : memory_.gone) {
    const bool isOld = Clock::now() - gone.since >= kConsequenceTime;
    own.number(static_cast<std::int32_t>(rank));
    own.number(static_cast<std::uint8_t>((gone.hasLeft ? kHasLeft : 0) | (isOld ? kIsOld : 0)));
    own.text(gone.farewell).text(gone.known);
  }
  say(own);
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
