#include "bootstrap/member_link.h"

#include <algorithm>

#include "base/insist.h"
#include "base/log.h"
#include "bootstrap/hub.h"
#include "bootstrap/text_list.h"

namespace kolo::bootstrap {

Status MemberLink::startChannel(Socket socket, const Session& session) {
  channel_ = std::make_shared<Channel>(reactor_, std::move(socket), session);
  return channel_->start(
      {.onFrame = [self = shared_from_this()](std::string_view bytes) { return self->onFrame(bytes); },
       .onClosed = [self = shared_from_this()](std::string_view why) { self->onClosed(why); }});
}

void MemberLink::start(Socket socket, const Session& session) {
  const std::optional<Address> at = peerAddressOf(socket.fd());
  hub_.address = at.has_value() ? at->text() : kThisHost;
  const Status started = startChannel(std::move(socket), session);
  if (started.ok()) return;
  unusable_ = started;
  joined_.finish(started);
}

void MemberLink::gather(const ExchangeKey& key, const std::shared_ptr<Exchange>& exchange) {
  if (!unusable_.ok()) return exchange->over.finish(unusable_);
  if (!exchanges_.emplace(key, exchange).second) {
    return exchange->over.finish(
        error(koloInvalidUsage, "an exchange with this key and sequence is in flight already"));
  }
  if (!search_.isOn && hub_.withdrawn.count(key) == 0) request(key, exchange);
}

void MemberLink::request(const ExchangeKey& key, const std::shared_ptr<Exchange>& exchange) {
  const Status sent = withoutExceptions([&] {
    channel_->send(requestFor(key, *exchange));
    exchange->after = memory_.lastResult;
    return Status();
  });
  if (sent.ok()) return;
  exchange->over.finish(sent);
  exchanges_.erase(key);
}

void MemberLink::withdraw(const ExchangeKey& key) {
  const auto found = exchanges_.find(key);
  if (found == exchanges_.end()) return;
  if (unusable_.ok() && !search_.isOn) {
    // What is begun anew before the hub has answered was not asked for yet.
    const auto [place, isAsked] = hub_.withdrawn.insert(key);
    try {
      if (isAsked) channel_->send(frame(Frame::kWithdraw, key.first, key.second, found->second->index).take());
    } catch (const std::bad_alloc&) {
      hub_.withdrawn.erase(place);
      throw;
    }
  }
  exchanges_.erase(found);  // last, since what finds no memory is begun again
}

// By what is so now: of two threads, the one whose news is older may come later.
void MemberLink::tellHub(std::uint64_t family) {
  if (!unusable_.ok()) return;
  if (subscriptions_.has(family)) {
    const auto [place, isNew] = families_.insert(family);
    if (!isNew) return;
    try {
      channel_->send(frame(Frame::kSubscribe, family).take());
    } catch (const std::bad_alloc&) {
      families_.erase(place);
      throw;
    }
  } else if (const auto told = families_.find(family); told != families_.end()) {
    channel_->send(frame(Frame::kUnsubscribe, family).take());
    families_.erase(told);
  }
}

void MemberLink::report(std::uint64_t key, const Failure& failure, std::uint64_t family) {
  if (unusable_.ok()) {
    const auto words = shared(frame(
        Frame::kReport, memory_.lastReport + 1, key, family, static_cast<std::int32_t>(failure.why.code()),
        static_cast<std::int32_t>(failure.rank), std::string_view(failure.why.message()).substr(0, kMaxReportBytes)));
    memory_.reports.push_back(words);
    ++memory_.lastReport;
    if (memory_.reports.size() > kMaxFailedKeys) memory_.reports.pop_front();
    if (families_.count(family) != 0) (void)isNews(key, rank_, memory_.lastReport);
    channel_->send(words);
    // A rank in the hub's process may end it as soon as this returns, and the report with it while the hub has not read
    // it, or has told some ranks alone. The report may be behind more than a socket takes at once.
    do channel_->push();
    while (readInHubHere(hub_.secret, rank_) && channel_->hasOutput());
  }
  Failure mine = failure;
  mine.reporter = rank_;
  subscriptions_.reported(key, mine, families_.count(family) != 0);  // else the hub tells it with the others
  failExchangesOf(key, failure.why, 0);
}

void MemberLink::ask(std::uint64_t key, int rank, const std::string& question,
                     const std::shared_ptr<PendingAnswer>& answer) {
  if (!unusable_.ok()) return answer->over.finish({});
  std::erase_if(questions_.byNumber, [](const auto& each) { return each.second.answer.expired(); });
  const auto request = shared(frame(Frame::kAsk, key, ++questions_.last, std::int32_t{rank}, question));
  questions_.byNumber[questions_.last] = {rank, answer, request};
  channel_->send(request);
}

void MemberLink::decline(const SharedFrame& frame) {
  if (unusable_.ok()) channel_->send(frame);
}

void MemberLink::leave() {
  if (!unusable_.ok()) return left_.finish({});
  channel_->send(frame(Frame::kLeave).take());
  channel_->push();  // close() may follow
  leaving_ = true;
  unusable_ = error(koloInvalidUsage, "rank {} has left the job", rank_);
  failExchanges(unusable_);
}

void MemberLink::close() {
  isClosed_ = true;
  hub_.billboard = {};
  hub_.kept.reset();
  reactor_.cancel(search_.timer);
  if (search_.knock != nullptr) search_.knock->drop();
  standby_.reset();
  subscriptions_.clear();
  if (unusable_.ok()) unusable_ = error(koloInvalidUsage, "the control connection of rank {} was closed", rank_);
  failExchanges(unusable_);
  if (channel_ != nullptr) channel_->close();
}

std::string MemberLink::hubOwner() const {
  if (hub_.ranks.empty()) return fmt::format("the process {} ({})", hub_.is, hub_.name);
  return fmt::format("the process of rank {} ({})", hub_.ranks.front(), hub_.name);
}

bool MemberLink::onFrame(std::string_view bytes) {
  Decoder decoder(bytes);
  switch (static_cast<Frame>(decoder.number<std::uint8_t>())) {
    case Frame::kWelcome: return onWelcome(decoder);
    case Frame::kGathered: return onGathered(decoder);
    case Frame::kGatherFailed: return onGatherFailed(decoder);
    case Frame::kDeaths: return onDeaths(decoder);
    case Frame::kReported: return onReported(decoder);
    case Frame::kLeft: return onLeft(decoder);
    case Frame::kNeighbours: return onNeighbours(decoder);
    case Frame::kReturned: return onReturned(decoder);
    case Frame::kHostKnows: return onHostKnows(decoder);
    case Frame::kAsked: return onAsked(decoder);
    case Frame::kAnswered: return onAnswered(decoder);
    case Frame::kWithdrawn: return onWithdrawn(decoder);
    case Frame::kBillboard: return onBillboard(decoder);
    case Frame::kOnBillboard: return onOnBillboard(decoder);
    case Frame::kCounting: return onCounting(decoder);
    case Frame::kCutOff: return onCutOff(decoder);
    case Frame::kHubEnds: return onHubEnds(decoder);
    case Frame::kVote: return onVote(decoder);
    case Frame::kKeepBillboard: return onKeepBillboard(decoder);
    case Frame::kPost: return onPost(decoder);
    case Frame::kFarewell:
      hasFarewell_ = true;
      standby_.reset();
      left_.finish({});
      return true;
    case Frame::kRefused: {
      const auto code = decoder.number<std::int32_t>();
      const std::string message(decoder.text());
      if (!decoder.done() || code <= koloSuccess || code >= koloNumResults) return false;
      joined_.finish(Status(failureCode(code), message));
      return true;
    }
    default: return false;
  }
}

bool MemberLink::onWelcome(Decoder& decoder) {
  const auto pid = decoder.number<std::uint32_t>();
  const std::string_view host = decoder.text();
  hub_.name = fmt::format("pid {} on {}", pid, host);
  const std::string_view key = decoder.raw(jobKey_.size());
  hub_.ranks = decoder.ranks(kMaxFrameBytes);
  if (!decoder.done() || welcomed_) return false;
  std::copy(key.begin(), key.end(), jobKey_.begin());
  if (standby_ != nullptr) standby_->settle(place_.isWide);
  welcomed_ = true;
  joined_.finish({});
  return true;
}

bool MemberLink::onGathered(Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  const auto number = decoder.number<std::uint64_t>();
  hearResult(number, decoder.number<std::uint64_t>());
  const std::string_view part = decoder.rest();
  const auto first = decoder.number<std::uint32_t>();
  const auto count = decoder.number<std::uint32_t>();
  const auto found = exchanges_.find({key, sequence});
  if (found == exchanges_.end() || hub_.withdrawn.count(found->first) != 0) return true;  // of a part that is withdrawn
  Exchange& exchange = *found->second;
  // They come in order; from the first again if their sender has been replaced.
  const bool isNext = first == 0 || first == exchange.have;
  if (!isNext || count == 0 || count > exchange.blobs.size() || first > exchange.blobs.size() - count) return false;
  if (!readTexts(decoder, std::span(exchange.blobs).subspan(first, count)) || !decoder.done()) return false;
  exchange.have = first + count;
  if (first == 0) exchange.parts.clear();
  if (number != 0) exchange.parts.emplace_back(part);
  if (exchange.have < exchange.blobs.size()) return true;
  if (number != 0) keep({number, found->first, Status(), exchange.members, std::move(exchange.parts)});
  const std::shared_ptr<Exchange> complete = found->second;
  exchanges_.erase(found);
  complete->over.finish({});
  return true;
}

bool MemberLink::onGatherFailed(Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  const auto number = decoder.number<std::uint64_t>();
  hearResult(number, decoder.number<std::uint64_t>());
  const auto code = decoder.number<std::int32_t>();
  const std::string message(decoder.text());
  if (!decoder.done() || code <= koloSuccess || code >= koloNumResults) return false;
  const auto found = exchanges_.find({key, sequence});
  if (found == exchanges_.end() || hub_.withdrawn.count(found->first) != 0) return true;
  const Status why(failureCode(code), message);
  const std::string noBlobs = Encoder().number(std::uint32_t{0}).number(std::uint32_t{0}).take();
  if (number != 0) keep({number, found->first, why, found->second->members, {noBlobs}});
  exchanges_.extract(found).mapped()->over.finish(why);
  return true;
}

bool MemberLink::onDeaths(Decoder& decoder) {
  const auto count = decoder.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && decoder.ok(); ++i) {
    const auto rank = decoder.number<std::int32_t>();
    const std::string_view why = decoder.text();
    if (rank < 0 || rank >= kMaxRanks) return false;
    if (decoder.ok()) died(rank, std::string(why));
  }
  return decoder.done();
}

bool MemberLink::onReported(Decoder& decoder) {
  const auto from = decoder.number<std::int32_t>();
  const auto number = decoder.number<std::uint64_t>();
  const auto key = decoder.number<std::uint64_t>();
  const auto code = decoder.number<std::int32_t>();
  const auto rank = decoder.number<std::int32_t>();
  const std::string_view message = decoder.text();
  if (!decoder.done() || code <= koloSuccess || code >= koloNumResults) return false;
  if (from < 0 || from >= kMaxRanks) return false;
  if (!isNews(key, from, number)) return true;
  Failure failure(error(failureCode(code), "{}", message), rank);
  failure.reporter = from;
  subscriptions_.reported(key, failure, true);
  // The hub has failed those it knew of; one that is still on its way there must not wait for ranks that gave up. What
  // was repeated is known to the hub, which may still be brought its result.
  failExchangesOf(key, failure.why, search_.firstResult);
  return true;
}

bool MemberLink::onHostKnows(Decoder& decoder) {
  hub_.knows = decoder.text();
  hub_.knowsAt = Clock::now();
  return decoder.done();
}

bool MemberLink::onAsked(Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto from = decoder.number<std::int32_t>();
  const auto number = decoder.number<std::uint64_t>();
  const std::string_view question = decoder.text();
  if (!decoder.done()) return false;
  const std::string text = subscriptions_.answer(key, from, question);
  channel_->send(frame(Frame::kAnswer, from, number, text).take());
  return true;
}

bool MemberLink::onAnswered(Decoder& decoder) {
  const auto number = decoder.number<std::uint64_t>();
  const auto rank = decoder.number<std::int32_t>();
  const std::string_view text = decoder.text();
  if (!decoder.done()) return false;
  const auto asked = questions_.byNumber.find(number);
  if (asked == questions_.byNumber.end() || asked->second.rank != rank) return true;  // that rank was not asked
  const std::shared_ptr<PendingAnswer> answer = asked->second.answer.lock();
  questions_.byNumber.erase(asked);
  if (answer == nullptr) return true;
  answer->text = text;
  answer->over.finish({});
  return true;
}

bool MemberLink::onWithdrawn(Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  if (!decoder.done() || hub_.withdrawn.erase({key, sequence}) == 0) return false;
  if (const auto anew = exchanges_.find({key, sequence}); anew != exchanges_.end()) request(anew->first, anew->second);
  return true;
}

// A rank that cannot read the billboard says nothing, and is told everything over its connection.
bool MemberLink::onBillboard(Decoder& decoder) {
  if (hub_.billboard.open(decoder))
    (void)insist([this] { channel_->send(frame(Frame::kReadsBillboard).raw(hub_.billboard.nonce()).take()); });
  return decoder.ok();
}

// One that has no memory for it says nothing, and its host is sent everything.
bool MemberLink::onKeepBillboard(Decoder& decoder) {
  const auto room = decoder.number<std::uint64_t>();
  if (!decoder.done()) return false;
  (void)insist([&] {
    hub_.kept = BillboardFile::make(room);
    if (hub_.kept != nullptr) channel_->send(frame(Frame::kKeepsBillboard).raw(hub_.kept->invitation()).take());
  });
  return true;
}

bool MemberLink::onPost(Decoder& decoder) {
  if (hub_.kept == nullptr) return false;
  std::uint64_t number = 0;
  const bool isThere = hub_.kept->add(decoder.rest(), number);
  (void)insist([&] { channel_->send(frame(Frame::kPosted, number, static_cast<std::uint8_t>(isThere)).take()); });
  return true;
}

// Of one that leaves the hub may use the room again, for it has closed the connection.
bool MemberLink::onOnBillboard(Decoder& decoder) {
  std::uint64_t number = 0;
  std::string plain;
  if (!hub_.billboard.read(decoder, number, plain)) return leaving_;
  (void)insist([&] { channel_->send(frame(Frame::kRead, number).take()); });
  return static_cast<Frame>(plain.front()) != Frame::kOnBillboard && onFrame(plain);
}

// The end of the hub's process is often the consequence of a failure that a rank in it knew of.
std::string MemberLink::afterWhat() const {
  if (!hub_.knows.empty() && Clock::now() - hub_.knowsAt < kConsequenceTime) return ", after " + hub_.knows;
  const bool isAfterDeath =
      hub_.ranks.empty() && !memory_.lastDeath.empty() && Clock::now() - memory_.lastDeathAt < kConsequenceTime;
  return isAfterDeath ? ", after " + memory_.lastDeath : std::string();
}

// The ranks of the hub's process die with it; if all of them had left, or there was none, only the control plane is
// gone.
Status MemberLink::lossOfHub(std::string_view why) const {
  if (!welcomed_) {
    return error(koloRemoteError,
                 "the process that made the unique id (that of rank 0 if a launcher started the ranks) went away while "
                 "ranks were joining: {}",
                 why);
  }
  if (!search_.cutOff.empty()) return error(koloRemoteError, "rank {} is cut off: {}", rank_, search_.cutOff);
  if (search_.isGivenUp) {
    return error(koloRemoteError, "rank {} has lost its connection to the process {} ({}), which {}: {}", rank_,
                 hub_.is, hub_.name, place_.isPastSilence ? "does not answer" : "lives", why);
  }
  if (hub_.ranks.empty()) {
    return error(koloRemoteError, "the process {} ({}) has exited{}, so ranks cannot exchange messages any more: {}",
                 hub_.is, hub_.name, afterWhat(), why);
  }
  return error(koloRemoteError, "rank {} ({}), in the process {}, died: {}{}", hub_.ranks.front(), hub_.name, hub_.is,
               why, afterWhat());
}

void MemberLink::onClosed(std::string_view why) {
  if (canReturn() && (unusable_.ok() || (leaving_ && !hasFarewell_))) return lose(why);
  loseForGood(why);
}

void MemberLink::loseForGood(std::string_view why) {
  left_.finish({});
  if (leaving_) return;
  search_.isGivenUp = !search_.cutOff.empty() || (!search_.why.empty() && !search_.isHubOver);
  unusable_ = lossOfHub(why);
  joined_.finish(unusable_);
  if (welcomed_ && hub_.ranks.empty()) log::debug("rank {}: {}", rank_, unusable_.message());
  endAllWithHub(why);
}

// What waits for an answer of the hub goes on when it is known which ranks have died.
void MemberLink::endAllWithHub(std::string_view why) {
  const Status loss = lossOfHub(why);
  const std::string after = afterWhat();
  if (search_.isGivenUp) {  // as the other ranks are told of this one
    hub_.ranks.clear();
    died(rank_, loss.message());
  }
  for (; !hub_.ranks.empty(); hub_.ranks.pop_back()) {
    const int rank = hub_.ranks.back();
    if (welcomed_ && rank != rank_) died(rank, fmt::format("rank {} ({}) died: {}{}", rank, hub_.name, why, after));
  }
  failExchanges(loss);
}

void MemberLink::died(int rank, std::string why) {
  // Each hub tells of those that died before it.
  bool isKnown = false;
  if (!place_.neighbours.empty()) {
    const auto [at, isNew] = memory_.gone.try_emplace(rank, Gone{false, why, {}});
    isKnown = !isNew && std::exchange(at->second.isTold, true);
  }
  if (!isKnown) {
    memory_.lastDeath = why;
    memory_.lastDeathAt = Clock::now();
  }
  subscriptions_.died({koloRemoteError, rank, std::move(why), true});
}

void MemberLink::failExchanges(const Status& why) {
  for (const auto& [key, exchange] : std::exchange(exchanges_, {})) exchange->over.finish(why);
  for (const auto& [number, asked] : std::exchange(questions_.byNumber, {})) {
    if (const std::shared_ptr<PendingAnswer> answer = asked.answer.lock(); answer != nullptr) answer->over.finish({});
  }
}

void MemberLink::failExchangesOf(std::uint64_t key, const Status& why, std::uint64_t since) {
  for (auto at = exchanges_.lower_bound({key, 0}); at != exchanges_.end() && at->first.first == key;) {
    const ExchangeKey pending = at->first;
    const std::shared_ptr<Exchange> exchange = (at++)->second;
    if (exchange->after < since) continue;
    withdraw(pending);
    exchange->over.finish(why);
  }
}

}  // namespace kolo::bootstrap
