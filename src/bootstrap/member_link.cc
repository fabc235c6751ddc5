#include "bootstrap/member_link.h"

#include <algorithm>

#include "base/log.h"
#include "bootstrap/hub.h"

namespace kolo::bootstrap {

void MemberLink::start(Socket socket, const Session& session) {
  channel_ = std::make_shared<Channel>(reactor_, std::move(socket), session);
  const Status started =
      channel_->start({.onFrame = [self = shared_from_this()](std::string_view bytes) { return self->onFrame(bytes); },
                       .onClosed = [self = shared_from_this()](std::string_view why) { self->onClosed(why); }});
  if (started.ok()) return;
  unusable_ = started;
  joined_.finish(started);
}

void MemberLink::gather(const ExchangeKey& key, const std::shared_ptr<Exchange>& exchange, const SharedFrame& request) {
  if (!unusable_.ok()) return exchange->over.finish(unusable_);
  if (!exchanges_.emplace(key, exchange).second) {
    return exchange->over.finish(
        error(koloInvalidUsage, "an exchange with this key and sequence is in flight already"));
  }
  const Status sent = withoutExceptions([&] {
    channel_->send(request);
    return Status();
  });
  if (sent.ok()) return;
  exchanges_.erase(key);
  exchange->over.finish(sent);
}

void MemberLink::withdraw(const ExchangeKey& key) {
  const auto found = exchanges_.find(key);
  if (found == exchanges_.end()) return;
  if (unusable_.ok()) {
    const SharedFrame news = shared(frame(Frame::kWithdraw, key.first, key.second, found->second->index));
    int& pending = withdrawn_[key];
    channel_->send(news);
    ++pending;
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
    channel_->send(frame(Frame::kReport, key, family, static_cast<std::int32_t>(failure.why.code()),
                         static_cast<std::int32_t>(failure.rank),
                         std::string_view(failure.why.message()).substr(0, kMaxReportBytes))
                       .take());
    channel_->push();
  }
  Failure mine = failure;
  mine.reporter = rank_;
  subscriptions_.reported(key, mine, families_.count(family) != 0);  // else the hub tells it with the others
  failExchangesOf(key, failure.why);
}

void MemberLink::ask(std::uint64_t key, int rank, const std::string& question,
                     const std::shared_ptr<PendingAnswer>& answer) {
  if (!unusable_.ok()) return answer->over.finish({});
  std::erase_if(questions_, [](const auto& each) { return each.second.answer.expired(); });
  questions_[++lastQuestion_] = {rank, answer};
  channel_->send(frame(Frame::kAsk, key, lastQuestion_, std::int32_t{rank}, question).take());
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
  subscriptions_.clear();
  if (unusable_.ok()) unusable_ = error(koloInvalidUsage, "the control connection of rank {} was closed", rank_);
  failExchanges(unusable_);
  if (channel_ != nullptr) channel_->close();
}

std::string MemberLink::hubOwner() const {
  if (hubRanks_.empty()) return fmt::format("the process which made the unique id ({})", hubProcess_);
  return fmt::format("the process of rank {} ({})", hubRanks_.front(), hubProcess_);
}

bool MemberLink::onFrame(std::string_view bytes) {
  Decoder decoder(bytes);
  switch (static_cast<Frame>(decoder.number<std::uint8_t>())) {
    case Frame::kWelcome: return onWelcome(decoder);
    case Frame::kGathered: return onGathered(decoder);
    case Frame::kGatherFailed: return onGatherFailed(decoder);
    case Frame::kDeaths: return onDeaths(decoder);
    case Frame::kReported: return onReported(decoder);
    case Frame::kHostLeft: return onHostLeft(decoder);
    case Frame::kHostKnows: return onHostKnows(decoder);
    case Frame::kAsked: return onAsked(decoder);
    case Frame::kAnswered: return onAnswered(decoder);
    case Frame::kWithdrawn: return onWithdrawn(decoder);
    case Frame::kFarewell: left_.finish({}); return true;
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
  hubProcess_ = fmt::format("pid {} on {}", pid, host);
  const std::string_view key = decoder.raw(jobKey_.size());
  hubRanks_ = decoder.ranks(kMaxFrameBytes);
  if (!decoder.done() || welcomed_) return false;
  std::copy(key.begin(), key.end(), jobKey_.begin());
  welcomed_ = true;
  joined_.finish({});
  return true;
}

bool MemberLink::onGathered(Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  const auto first = decoder.number<std::uint32_t>();
  const auto count = decoder.number<std::uint32_t>();
  const auto found = exchanges_.find({key, sequence});
  if (found == exchanges_.end() || isOfWithdrawn(found->first)) return true;  // given up on here, as it completed there
  Exchange& exchange = *found->second;
  if (count > exchange.blobs.size() || first > exchange.blobs.size() - count) return false;
  for (std::uint32_t i = first; i < first + count; ++i) exchange.blobs[i] = decoder.text();
  if (!decoder.done()) return false;
  exchange.have += count;
  if (exchange.have < exchange.blobs.size()) return true;
  const std::shared_ptr<Exchange> complete = found->second;
  exchanges_.erase(found);
  complete->over.finish({});
  return true;
}

bool MemberLink::onGatherFailed(Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  const auto code = decoder.number<std::int32_t>();
  const std::string message(decoder.text());
  if (!decoder.done() || code <= koloSuccess || code >= koloNumResults) return false;
  if (isOfWithdrawn({key, sequence})) return true;
  const auto node = exchanges_.extract(ExchangeKey(key, sequence));
  if (!node.empty()) node.mapped()->over.finish(Status(failureCode(code), message));
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
  const auto key = decoder.number<std::uint64_t>();
  const auto code = decoder.number<std::int32_t>();
  const auto rank = decoder.number<std::int32_t>();
  const auto reporter = decoder.number<std::int32_t>();
  const std::string_view message = decoder.text();
  if (!decoder.done() || code <= koloSuccess || code >= koloNumResults) return false;
  if (reporter < 0 || reporter >= kMaxRanks) return false;
  Failure failure(error(failureCode(code), "{}", message), rank);
  failure.reporter = reporter;
  subscriptions_.reported(key, failure, true);
  // The hub has failed those it knew of; one that is still on its way there must not wait for ranks that gave up.
  failExchangesOf(key, failure.why);
  return true;
}

bool MemberLink::onHostLeft(Decoder& decoder) {
  const auto rank = decoder.number<std::int32_t>();
  hubRanks_.erase(std::remove(hubRanks_.begin(), hubRanks_.end(), rank), hubRanks_.end());
  return decoder.done();
}

bool MemberLink::onHostKnows(Decoder& decoder) {
  hostKnows_ = decoder.text();
  hostKnowsAt_ = Clock::now();
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
  const auto asked = questions_.find(number);
  if (asked == questions_.end() || asked->second.rank != rank) return true;  // that rank was not asked
  const std::shared_ptr<PendingAnswer> answer = asked->second.answer.lock();
  questions_.erase(asked);
  if (answer == nullptr) return true;
  answer->text = text;
  answer->over.finish({});
  return true;
}

bool MemberLink::isOfWithdrawn(const ExchangeKey& key) const {
  const auto pending = withdrawn_.find(key);
  return pending != withdrawn_.end() && pending->second != 0;
}

bool MemberLink::onWithdrawn(Decoder& decoder) {
  const auto key = decoder.number<std::uint64_t>();
  const auto sequence = decoder.number<std::uint64_t>();
  const auto pending = withdrawn_.find({key, sequence});
  if (!decoder.done() || pending == withdrawn_.end()) return false;
  if (--pending->second <= 0) withdrawn_.erase(pending);
  return true;
}

// The end of the hub's process is often the consequence of a failure that a rank in it knew of.
std::string MemberLink::afterWhat() const {
  if (!hostKnows_.empty() && Clock::now() - hostKnowsAt_ < kConsequenceTime) return ", after " + hostKnows_;
  return hubRanks_.empty() && !lastDeath_.empty() ? ", after " + lastDeath_ : std::string();
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
  if (hubRanks_.empty()) {
    return error(
        koloRemoteError,
        "the process which made the unique id ({}) has exited{}, so ranks cannot exchange messages any more: {}",
        hubProcess_, afterWhat(), why);
  }
  return error(koloRemoteError, "rank {} ({}), in the process which made the unique id, died: {}{}", hubRanks_.front(),
               hubProcess_, why, afterWhat());
}

void MemberLink::onClosed(std::string_view why) {
  left_.finish({});
  if (leaving_) return;
  unusable_ = lossOfHub(why);
  joined_.finish(unusable_);
  if (welcomed_ && hubRanks_.empty()) log::debug("rank {}: {}", rank_, unusable_.message());
  const std::string after = afterWhat();
  // Before what waits for an answer of the hub goes on: it then knows which ranks have died.
  for (; !hubRanks_.empty(); hubRanks_.pop_back()) {
    const int rank = hubRanks_.back();
    if (welcomed_ && rank != rank_) died(rank, fmt::format("rank {} ({}) died: {}{}", rank, hubProcess_, why, after));
  }
  failExchanges(unusable_);
}

void MemberLink::died(int rank, std::string why) {
  lastDeath_ = why;
  subscriptions_.died({koloRemoteError, rank, std::move(why), true});
}

void MemberLink::failExchanges(const Status& why) {
  for (const auto& [key, exchange] : std::exchange(exchanges_, {})) exchange->over.finish(why);
  for (const auto& [number, asked] : std::exchange(questions_, {})) {
    if (const std::shared_ptr<PendingAnswer> answer = asked.answer.lock(); answer != nullptr) answer->over.finish({});
  }
}

void MemberLink::failExchangesOf(std::uint64_t key, const Status& why) {
  for (auto at = exchanges_.lower_bound({key, 0}); at != exchanges_.end() && at->first.first == key;) {
    const ExchangeKey pending = at->first;
    const std::shared_ptr<Exchange> exchange = (at++)->second;
    withdraw(pending);
    exchange->over.finish(why);
  }
}

}  // namespace kolo::bootstrap
