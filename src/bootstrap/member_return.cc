// A rank's way to another hub, when it has lost one: standby.h.
#include <algorithm>
#include <cerrno>

#include "base/insist.h"
#include "base/log.h"
#include "bootstrap/hub.h"
#include "bootstrap/member_link.h"

namespace kolo::bootstrap {
namespace {

// A standby that is open and does not take the rank: its process has not noticed yet that the hub has ended, or has no
// descriptor, or is stopped.
constexpr std::chrono::milliseconds kKnockAgain{5};
constexpr std::chrono::seconds kLongestSearch{15};
// A process that answers will notice soon that the hub has ended. If it has not, then the hub lives, and has given up
// this rank.
constexpr std::chrono::seconds kLongestAnswer{3};
constexpr std::size_t kResultBatch = 64u << 10;  // as of a hub
constexpr std::size_t kMaxNameBytes = 100;       // of the kernel's names

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
    if (rank < 0 || rank >= place.ranks || !isLater || place.neighbours[i].standby.size() > kMaxNameBytes) return false;
  }
  if (!decoder.done() || welcomed_ || place.ranks > kMaxRanks) return false;
  place_ = std::move(place);
  return true;
}

bool MemberLink::onLeft(Decoder& decoder) {
  const auto count = decoder.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && decoder.ok(); ++i) {
    const auto rank = decoder.number<std::int32_t>();
    const std::string_view farewell = decoder.text();
    if (rank < 0 || rank >= kMaxRanks) return false;
    std::erase(hub_.ranks, rank);
    if (!place_.neighbours.empty()) memory_.gone.try_emplace(rank, Gone{true, std::string(farewell), {}});
  }
  return decoder.done();
}

bool MemberLink::onReturned(Decoder& decoder) {
  const auto pid = decoder.number<std::uint32_t>();
  const std::string_view host = decoder.text();
  std::vector<int> ranks = decoder.ranks(kMaxFrameBytes);
  if (!decoder.done()) return false;
  hub_.name = fmt::format("pid {} on {}", pid, host);
  hub_.is = "which has relayed the job's messages";
  hub_.ranks = std::move(ranks);
  hub_.knows.clear();
  return true;
}

void MemberLink::forgetSettled(std::uint64_t settled) {
  while (!memory_.results.empty() && memory_.results.front().number != 0 && memory_.results.front().number <= settled)
    memory_.results.pop_front();
}

bool MemberLink::onSettled(Decoder& decoder) {
  std::erase_if(memory_.results, [](const Result& result) { return result.number == 0; });
  return decoder.done();
}

bool MemberLink::onResultWanted(Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  if (!decoder.done()) return false;
  const auto found = std::find_if(memory_.results.begin(), memory_.results.end(),
                                  [&](const Result& result) { return result.key == ExchangeKey(key, sequence); });
  const Status status = found != memory_.results.end()
                            ? found->status
                            : error(koloRemoteError, "rank {} has the result of an exchange no more", rank_);
  const std::vector<std::string> none;
  const std::vector<std::string>& blobs = found != memory_.results.end() ? found->blobs : none;
  std::size_t first = 0;
  do {
    Encoder some;
    std::size_t end = first;
    for (; end < blobs.size() && some.size() < kResultBatch; ++end) some.text(blobs[end]);
    channel_->send(frame(Frame::kResult)
                       .number(key)
                       .number(sequence)
                       .number(static_cast<std::int32_t>(status.code()))
                       .text(status.message())
                       .number(static_cast<std::uint32_t>(blobs.size()))
                       .number(static_cast<std::uint32_t>(first))
                       .number(static_cast<std::uint32_t>(end - first))
                       .raw(some.take())
                       .take());
    first = end;
  } while (first < blobs.size());
  return true;
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
  return std::make_shared<const std::string>(frame(Frame::kGather)
                                                 .number(key.first)
                                                 .number(key.second)
                                                 .number(static_cast<std::uint8_t>(exchange.isSent ? 1 : 0))
                                                 .number(exchange.index)
                                                 .number(exchange.isSent ? leftMs : exchange.timeoutMs)
                                                 .raw(exchange.membersAndBlob)
                                                 .take());
}

// May be called again where it has found no memory.
void MemberLink::lose(std::string_view why) {
  search_.why = why;
  log::debug("rank {}: the process {} ({}) is lost: {}", rank_, hub_.is, hub_.name, why);
  std::string known = afterWhat();
  if (!known.empty()) known.erase(0, std::string_view(", after ").size());
  search_.after.clear();
  for (const int rank : hub_.ranks) {
    const std::string farewell = fmt::format("rank {} ({}) died: {}", rank, hub_.name, why);
    if (search_.after.empty()) search_.after = farewell + afterWhat();
    if (rank != rank_) memory_.gone.try_emplace(rank, Gone{false, farewell, known});
  }
  for (Result& result : memory_.results) result.number = 0;
  search_.until = Clock::now() + kLongestSearch;
  // The next hub knows nothing of other hosts, and exchanges nothing without them.
  if (!place_.isWhole) endAllWithHub(why);
  search_.isOn = true;
  seek();
}

void MemberLink::seek() {
  reactor_.cancel(search_.timer);
  if (isClosed_ || !search_.isOn) return;
  if (search_.knock != nullptr) search_.knock->drop();
  search_.knock = nullptr;
  const auto mayGoOn = [this] {
    return Clock::now() < (search_.answerUntil != Clock::time_point() ? search_.answerUntil : search_.until);
  };
  while (search_.next < place_.neighbours.size() && mayGoOn()) {
    if (tryStandby(place_.neighbours[search_.next])) return;
    ++search_.next;
    search_.answerUntil = {};
  }
  search_.isOn = false;
  place_.neighbours.clear();  // no hub is looked for again
  loseForGood(search_.why);
}

void MemberLink::seekAt(Clock::time_point when) {
  reactor_.cancel(search_.timer);
  search_.timer = reactor_.at(when, [self = shared_from_this()] { self->seek(); });
}

// False: it is closed.
bool MemberLink::tryStandby(const Neighbour& at) {
  if (at.standby.empty()) return false;
  const Secret secret = standbySecret(jobKey_);
  if (standby_ != nullptr && standby_->name() == at.standby && !standby_->succeed(secret, place_).ok()) return false;
  int errnum = 0;
  Socket socket = knock(at.standby, errnum);
  if (errnum == ECONNREFUSED) return false;
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
  if (!isReady || !startChannel(std::move(socket), *session).ok()) {
    if (search_.answerUntil == Clock::time_point()) search_.answerUntil = Clock::now() + kLongestAnswer;
    return seekAt(Clock::now() + kKnockAgain);
  }
  search_.answerUntil = {};
  reactor_.cancel(search_.timer);
  search_.isOn = false;
  hub_.secret = standbySecret(jobKey_);
  for (const SharedFrame& each : all) (void)insist([&] { channel_->send(each); });
  for (const auto& [key, exchange] : exchanges_) exchange->isSent = true;
}

std::vector<SharedFrame> MemberLink::allToSay() const {
  std::vector<SharedFrame> all;
  const auto say = [&all](Encoder& words) { all.push_back(std::make_shared<const std::string>(words.take())); };
  const Identity& process = processIdentity();
  std::map<int, Gone> ended = memory_.gone;
  if (standby_ != nullptr) {
    for (const auto& [rank, hasLeft] : standby_->ended) ended.try_emplace(rank, Gone{hasLeft, {}, {}});
  }
  Encoder own = frame(Frame::kReturn);
  own.number(static_cast<std::int32_t>(rank_)).raw({reinterpret_cast<const char*>(process.data()), process.size()});
  own.text(search_.after).number(static_cast<std::uint32_t>(ended.size()));
  for (const auto& [rank, gone] : ended) {
    own.number(static_cast<std::int32_t>(rank)).number(static_cast<std::uint8_t>(gone.hasLeft ? 1 : 0));
    own.text(gone.farewell).text(gone.known);
  }
  say(own);
  all.insert(all.end(), memory_.reports.begin(), memory_.reports.end());
  for (const std::uint64_t family : families_) say(frame(Frame::kSubscribe).number(family));
  for (const auto& [key, exchange] : exchanges_) all.push_back(requestFor(key, *exchange));
  for (const auto& [number, question] : questions_.byNumber) all.push_back(question.request);
  Encoder results = frame(Frame::kFinished);
  results.number(static_cast<std::uint32_t>(memory_.results.size()));
  for (const Result& result : memory_.results) results.number(result.key.first).number(result.key.second);
  say(results);
  if (leaving_) all.push_back(std::make_shared<const std::string>(frame(Frame::kLeave).take()));
  return all;
}

}  // namespace kolo::bootstrap
