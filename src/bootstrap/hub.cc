#include "bootstrap/hub.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "base/insist.h"
#include "base/log.h"
#include "bootstrap/listener.h"

namespace kolo::bootstrap {
namespace {

constexpr auto kFailedJobKept = std::chrono::seconds(60);  // so that late ranks are told why

}  // namespace

void Hub::admit(Socket&& socket, const Session& session, bool returns) {
  std::set<MemberPtr> admitted{std::make_shared<Member>()};
  const MemberPtr member = *admitted.begin();
  member->pid = static_cast<std::uint32_t>(processAt(socket.fd()).pid);  // as the kernel says, where it does
  member->door.own = ownAddressOf(socket.fd());
  member->door.peer = peerAddressOf(socket.fd());
  member->channel = std::make_shared<Channel>(reactor_, std::move(socket), session);
  unjoined_.merge(admitted);  // from here on nothing throws
  const Status started = withoutExceptions([&, self = shared_from_this()] {
    return member->channel->start({.onFrame =
                                       [self, member, returns](std::string_view bytes) {
                                         return returns && !self->isSuccessor_ ? self->onReturnToFirst(bytes)
                                                                               : self->onFrame(member, bytes);
                                       },
                                   .onClosed = [self, member](std::string_view why) { self->onClosed(member, why); }});
  });
  if (started.ok()) return;
  unjoined_.erase(member);
  member->channel->close();
  (void)insist([&] {
    log::warn("a rank was turned away: {}", started.message());
    failJob(
        error(koloRemoteError, "pid {} on {} cannot serve all ranks: {}", ::getpid(), hostName(), started.message()));
  });
}

void Hub::hasRefused(const std::string& where) {
  const std::string said = fmt::format(
      "somebody at {} has named this job, and has not proved to hold its secret: a stranger, or a rank whose "
      "KOLO_SECRET is not set or is another one",
      where);
  if (hint_.empty()) log::warn("{}", said);
  hint_ = "; " + said;
}

bool Hub::onFrame(const MemberPtr& member, std::string_view bytes) {
  Decoder decoder(bytes);
  const auto kind = static_cast<Frame>(decoder.number<std::uint8_t>());
  if (member->rank < 0 && isSuccessor_) return kind == Frame::kReturn && onReturn(member, decoder);
  if (isMute_) return hold(member, bytes);
  if (kind == Frame::kDecline) return onDecline(member, decoder);
  if (member->rank < 0) return kind == Frame::kJoin && onJoin(member, decoder);
  if (kind == Frame::kRead) return onRead(member, decoder);
  if (member->stay == Stay::kLeaves) return true;
  if (kind == Frame::kLeave) {
    onLeave(member);
    return true;
  }
  if (kind == Frame::kReadsBillboard) return onReadsBillboard(member, decoder);
  if (kind == Frame::kKeepsBillboard) return onKeepsBillboard(member, decoder);
  if (!complete_) return false;
  switch (kind) {
    case Frame::kGather: return onGather(member, decoder);
    case Frame::kWithdraw: return onWithdraw(member, decoder);
    case Frame::kSubscribe: return onSubscribe(member, decoder);
    case Frame::kUnsubscribe: return onUnsubscribe(member, decoder);
    case Frame::kReport: return onReport(member, decoder);
    case Frame::kAsk: return onAsk(member, decoder);
    case Frame::kAnswer: return onAnswer(member, decoder);
    case Frame::kFinished: return onFinished(member, decoder);
    case Frame::kResult: return onResult(member, decoder);
    case Frame::kVoted: return onVoted(member, decoder);
    case Frame::kPosted: return onPosted(member, decoder);
    default: return false;
  }
}

bool Hub::onJoin(const MemberPtr& member, Decoder& decoder) {
  const auto rank = decoder.number<std::int32_t>();
  const auto ranks = decoder.number<std::int32_t>();
  const auto version = decoder.number<std::uint32_t>();
  member->pid = decoder.number<std::uint32_t>();
  const auto leftMs = decoder.number<std::uint32_t>();
  const auto timeoutMs = decoder.number<std::uint32_t>();
  const std::string_view process = decoder.raw(member->process.size());
  member->place = decoder.number<std::uint64_t>();
  const bool isDoor = member->door.read(decoder);
  member->host = decoder.text().substr(0, kMostKnownBytes);
  if (!decoder.done() || !isDoor || ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) return false;
  std::copy(process.begin(), process.end(), member->process.begin());
  member->rank = rank;
  unjoined_.erase(member);
  if (failed()) {
    turnAway(member);
    return true;
  }
  if (version != KOLO_VERSION_CODE) {
    const Status why =
        error(koloMismatch, "{} runs Kolo {}, pid {} on {} (which made the unique id) runs Kolo {}", describe(*member),
              describeVersion(version), ::getpid(), hostName(), describeVersion(KOLO_VERSION_CODE));
    refuse(member, why);
    if (!complete_) fail(rank, ranks, why);
    return true;
  }
  claim(member, ranks, leftMs, timeoutMs);
  return true;
}

// The rank closes the connection itself. One that has joined says so as long as others have not; it leaves the job
// otherwise.
bool Hub::onDecline(const MemberPtr& member, Decoder& decoder) {
  Member rank;
  rank.rank = decoder.number<std::int32_t>();
  const auto ranks = decoder.number<std::int32_t>();
  rank.pid = decoder.number<std::uint32_t>();
  rank.host = decoder.text();
  const std::string why(decoder.text());
  if (!decoder.done() || ranks < 1 || ranks > kMaxRanks || rank.rank < 0 || rank.rank >= ranks) return false;
  if (member->rank >= 0 && (complete_ || member->rank != rank.rank)) return complete_;
  fail(rank.rank, ranks, error(koloRemoteError, "{} cannot take part: {}", describe(rank), why));
  return true;
}

void Hub::fail(int rank, int ranks, const Status& why) {
  if (slots_.empty()) expected_ = ranks;
  failJob(why);
  markTold(rank);
}

void Hub::claim(const MemberPtr& member, int ranks, std::uint32_t leftMs, std::uint32_t timeoutMs) {
  if (slots_.empty()) {
    slots_.resize(static_cast<std::size_t>(ranks));
    expected_ = ranks;
    network::raiseFileLimit(ranks);
    firstClaim_ = describe(*member);
  }
  const auto known = static_cast<int>(slots_.size());
  if (ranks != known) {
    const Status why = error(koloInvalidRankCount, "the ranks disagree on their number: {} says {}, {} says {}",
                             firstClaim_, known, describe(*member), ranks);
    refuse(member, why);
    if (!complete_) fail(member->rank, known, why);
    return;
  }
  Slot& slot = slots_[static_cast<std::size_t>(member->rank)];
  if (slot.state != State::kAbsent) {
    const std::string first = slot.member != nullptr ? describe(*slot.member) : slot.words();
    refuse(member, error(koloDuplicateRank, "rank {} was claimed twice: first {}, then pid {} on {}", member->rank,
                         first, member->pid, member->host));
    return;
  }
  slot.state = State::kJoined;
  slot.member = member;
  offerBillboard(*member);
  if (++alive_ == known) return welcomeAll();
  const auto deadline = Clock::now() + std::chrono::milliseconds(leftMs);
  member->joinTimer = reactor_.at(deadline, [self = shared_from_this(), timeoutMs] {
    const std::vector<int> absent = self->absentRanks();
    self->failJob(error(koloTimeout, "{} {} of {} {} not joined within {} ms (KOLO_INIT_TIMEOUT_MS){}",
                        absent.size() == 1 ? "rank" : "ranks", describeRanks(absent), self->slots_.size(),
                        absent.size() == 1 ? "has" : "have", timeoutMs, self->hint_));
  });
}

void Hub::refuse(const MemberPtr& member, const Status& why) {
  member->channel->send(frame(Frame::kRefused, static_cast<std::int32_t>(why.code()), why.message()).take());
  member->channel->closeWhenSent();
  member->channel->push();  // before this process's own ranks know, whose program may end it
}

// The job has failed, and the rank is told so. Where there is no memory, its connection ends without a word.
void Hub::turnAway(const MemberPtr& member) {
  reactor_.cancel(member->joinTimer);
  if (!insist([&] { refuse(member, failed_); })) member->channel->close();
  (void)insist([&] { markTold(member->rank); });
}

// Where there is no memory, nothing has happened; or all is done.
void Hub::failJob(Status why) {
  if (failed() || complete_) return;
  reactor_.at(Clock::now() + kFailedJobKept, [self = shared_from_this()] { self->finish(); });
  failed_ = std::move(why);
  // A rank that comes after the time to join is not waited for.
  if (failed_.code() != koloTimeout) awaitedUntil_ = Clock::now() + kLastWordsTime;
  for (Slot& slot : slots_) {
    if (slot.member != nullptr) turnAway(slot.member);
    slot = Slot();
  }
  alive_ = 0;
}

void Hub::markTold(int rank) {
  told_.insert(rank);
  if (allTold()) runToldTasks();
}

void Hub::whenTold(std::function<void()> task) {
  toldTasks_.push_back(std::move(task));
  if (!failed() || allTold()) runToldTasks();
}

void Hub::runToldTasks() {
  while (!toldTasks_.empty()) {
    const std::function<void()> task = std::move(toldTasks_.back());
    toldTasks_.pop_back();
    (void)insist(task);
  }
}

// Where there is no memory, the job is not complete, and fails with the rank that has come last.
void Hub::welcomeAll() {
  std::vector<int> housemates;
  for (const Slot& slot : slots_) {
    reactor_.cancel(slot.member->joinTimer);
    if (slot.member->process == processIdentity()) housemates.push_back(slot.member->rank);
  }
  Encoder welcome = frame(Frame::kWelcome);
  Secret key;
  randombytes_buf(key.data(), key.size());
  welcome.number(static_cast<std::uint32_t>(::getpid())).text(hostName());
  welcome.raw({reinterpret_cast<const char*>(key.data()), key.size()}).ranks(housemates);
  tellNeighbours();
  (void)insist([&] {
    if (standby_ != nullptr) standby_->leadTo(standbySecret(key, standby_->name()), shared_from_this());
  });
  sodium_memzero(key.data(), key.size());
  broadcast(shared(welcome), false);
  complete_ = true;
}

void Hub::finishWithoutRanks() {
  // What was kept of contributions holds this object through its timers.
  for (const auto& [key, gather] : gathers_) {
    for (const Contribution& part : gather.parts) reactor_.cancel(part.timer);
  }
  gathers_.clear();
  finish();
}

void Hub::end() {
  const auto sent = [](Frame kind) { return Channel::sent()[static_cast<std::size_t>(kind)]; };
  const auto here = hosts_.find(placeIdentity());
  log::debug(
      "the control plane of this process, with the hub of {} ranks, has sent {} bytes: {} of results, {} of "
      "neighbours, {} of those that left, {} for billboards of other hosts; {} more bytes lay on its billboard",
      expected_, std::accumulate(Channel::sent().begin(), Channel::sent().end(), std::uint64_t{0}),
      sent(Frame::kGathered), sent(Frame::kNeighbours), sent(Frame::kLeft), sent(Frame::kPost),
      here != hosts_.end() && here->second.billboard != nullptr ? here->second.billboard->written() : 0);
  runToldTasks();
}

void Hub::finish() {
  reactor_.cancel(lookTimer_);
  for (Slot& slot : slots_) endKnock(slot.look);
  standby_.reset();
  for (const MemberPtr& late : unjoined_) late->channel->close();
  unjoined_.clear();
  end();
  over_(this);
}

// Before the member is told of a failure, and of those that were before it. The first one stays: those that follow soon
// are mostly its consequences. They are added as far as there is room, for they need not be: a job may have gone on
// without the rank that died first.
void Hub::note(Member& member, const std::string& failure, const std::string& before) {
  const Clock::time_point now = Clock::now();
  if (now - member.knownAt >= kConsequenceTime) member.known.clear();
  member.knownAt = now;
  if (member.known.empty()) member.known = before;
  const std::string news = failure.substr(0, kMostKnownBytes);
  const bool fits = member.known.size() + news.size() <= kMostKnownBytes;
  if (member.known.empty()) {
    member.known = news;
  } else if (fits && member.known.find(news) == std::string::npos) {
    member.known += "; " + news;
  }
  tellOutsiders(member);
}

// What a rank in this process is about to know.
void Hub::tellOutsiders(const Member& member) {
  if (!complete_ || member.process != processIdentity() || hostKnows_ == member.known) return;
  Encoder news = frame(Frame::kHostKnows);
  news.text(member.known);
  broadcast(shared(news), true);
  pushToOutsiders();
  hostKnows_ = member.known;
}

void Hub::pushToOutsiders() {
  hurryBillboards();
  for (const Slot& slot : slots_) {
    if (slot.member != nullptr && slot.member->process != processIdentity()) slot.member->channel->push();
  }
}

bool Hub::readHere(int rank) {
  const Member* const member = joined(rank);
  if (member == nullptr) return false;
  const std::shared_ptr<Channel> channel = member->channel;  // what it reads may end the member
  channel->onReadable();
  pushToOutsiders();
  return true;
}

std::vector<int> Hub::absentRanks() const {
  std::vector<int> absent;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == State::kAbsent) absent.push_back(static_cast<int>(i));
  }
  return absent;
}

std::string Hub::describe(const Member& member) {
  return fmt::format("rank {} (pid {} on {})", member.rank, member.pid, member.host);
}

}  // namespace kolo::bootstrap
