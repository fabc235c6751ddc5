#include "greeting.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "network/silence.h"

namespace kolo::ib {
namespace {

using std::chrono::milliseconds;

// A write that is not acknowledged ends by itself after the NIC's retries, which may be set to take long.
constexpr milliseconds kTrialTime{5000};
constexpr milliseconds kWholeTime{20000};

bool has(std::uint8_t mask, std::size_t lane) { return (mask >> lane & 1) != 0; }
std::uint8_t bit(std::size_t lane) { return static_cast<std::uint8_t>(1u << lane); }

}  // namespace

Greeting::Greeting(Home& home, connect::Caller peer, network::Socket socket, bool isDialler)
    : home_(home), peer_(peer), talk_(std::move(socket)), isDialler_(isDialler),
      stage_(isDialler ? Stage::kAnswer : Stage::kOffer), since_(Clock::now()) {
  randombytes_buf(&nonce_, sizeof nonce_);
  network::limitSilence(talk_.fd(), home_.settings.silenceMs);
  if (!isDialler_) return;
  Message offer{};
  offer.kind = Kind::kOffer;
  introduce(&offer);
  say(&offer);
}

short Greeting::awaits() const { return talk_.isSaying() ? POLLOUT : POLLIN; }

bool Greeting::isOld(Clock::time_point now) const { return now > since_ + kWholeTime; }

// Each stage returns whether the next one may begin.
Greeting::Outcome Greeting::advance() {
  for (bool goesOn = true; goesOn;) {
    if (!talk_.flush()) {
      if (talk_.failed() != 0) fail("the connection ended");
      break;
    }
    switch (stage_) {
      case Stage::kOffer: goesOn = hearOffer(); break;
      case Stage::kAnswer: goesOn = hearAnswer(); break;
      case Stage::kStart: goesOn = hearStart(); break;
      case Stage::kTheirTrial: goesOn = hearTheirTrial(); break;
      case Stage::kTrial: goesOn = advanceTrial(); break;
      case Stage::kLast: goesOn = hearLast(); break;
      case Stage::kDone:
      case Stage::kFailed: goesOn = false;
    }
  }
  return stage_ == Stage::kDone ? Outcome::kDone : stage_ == Stage::kFailed ? Outcome::kFailed : Outcome::kGoesOn;
}

bool Greeting::fail(const std::string& story) {
  stage_ = Stage::kFailed;
  story_ += (story_.empty() ? "" : "; ") + story;
  return false;
}

bool Greeting::hear(Kind kind, Message* message) {
  if (!talk_.hear(sizeof *message))
    return talk_.failed() != 0 && fail("the peer ended the connection before the ways were proven");
  talk_.copyHeard(message);
  talk_.forget();
  bool isSensible = message->ports <= kMostPorts && message->lanes <= kMostLanes;
  for (const PortAddress& port : message->port) isSensible = isSensible && port.nic < kMostNics;
  if (isProven(*message, peer_.key) && message->kind == kind && isSensible) return true;
  return fail("an answer that means nothing");
}

void Greeting::say(Message* message) {
  prove(*message, peer_.key);
  talk_.say(*message);
}

void Greeting::introduce(Message* message) const {
  const auto& ports = home_.nics.ports();
  message->ports = static_cast<std::uint8_t>(ports.size());
  for (std::size_t i = 0; i < ports.size(); ++i) message->port[i] = ports[i]->address;
  message->rails = static_cast<std::uint8_t>(home_.settings.rails);
  message->probe = home_.probesTarget;
  message->probe.address += kProbeBytes * peer_.rank;
  message->nonce = nonce_;
}

bool Greeting::hearOffer() {
  if (!hear(Kind::kOffer, &theirs_)) return false;
  Message answer{};
  answer.kind = Kind::kAnswer;
  introduce(&answer);
  // In the dialler's order, so that it need not be said whose is first.
  pairs_ =
      pairPorts({theirs_.port, theirs_.ports}, {answer.port, answer.ports}, railsGiven(theirs_.rails, answer.rails));
  for (PortPair& pair : pairs_) std::swap(pair.mine, pair.theirs);
  if (!openLanes(theirs_, pairs_)) fail("no lane can be made");  // said all the same: with none
  answer.lanes = static_cast<std::uint8_t>(pairs_.size());
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    if (lanes_[i] != nullptr) answer.pair[i] = lanes_[i]->address();
    answer.pair[i].port = pairs_[i].mine;
    answer.pair[i].peerPort = pairs_[i].theirs;
  }
  say(&answer);
  if (stage_ == Stage::kFailed) return talk_.flush() && false;
  stage_ = Stage::kStart;
  return true;
}

bool Greeting::hearAnswer() {
  if (!hear(Kind::kAnswer, &theirs_)) return false;
  const std::size_t ports = home_.nics.ports().size();
  for (std::size_t i = 0; i < theirs_.lanes; ++i) {
    const PairAddress& pair = theirs_.pair[i];
    if (pair.peerPort >= ports || pair.port >= theirs_.ports) return fail("an answer that means nothing");
    pairs_.push_back({pair.peerPort, pair.port});
  }
  if (pairs_.empty()) {
    std::string mine, other;
    for (const auto& port : home_.nics.ports())
      mine += fmt::format("{}{} {}", mine.empty() ? "" : ", ", port->name, toText(port->address));
    for (std::size_t i = 0; i < theirs_.ports; ++i) other += (i == 0 ? "" : ", ") + toText(theirs_.port[i]);
    return fail(fmt::format("none of this rank's ports ({}) is of the kind and network of one of the peer's ({})", mine,
                            other));
  }
  if (!openLanes(theirs_, pairs_)) return fail("no lane can be made");
  connectLanes(theirs_);
  Message start{};
  start.kind = Kind::kStart;
  start.lanes = theirs_.lanes;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    if (lanes_[i] != nullptr) start.pair[i] = lanes_[i]->address();
  }
  say(&start);
  stage_ = Stage::kTheirTrial;
  return true;
}

bool Greeting::hearStart() {
  Message start;
  if (!hear(Kind::kStart, &start)) return false;
  if (start.lanes != pairs_.size()) return fail("an answer that means nothing");
  connectLanes(start);
  startTrial(0xf);
  return true;
}

bool Greeting::hearTheirTrial() {
  Message proven;
  if (!hear(Kind::kProven, &proven)) return false;
  const std::uint8_t arrived = checkProbes(proven.mask);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i] == nullptr || has(arrived, i)) continue;
    story_ +=
        fmt::format("{}from {} to {} {}: no trial write has passed", story_.empty() ? "" : "; ",
                    toText(theirs_.port[pairs_[i].theirs]), lanes_[i]->port().name, toText(lanes_[i]->port().address));
  }
  startTrial(arrived);
  return true;
}

bool Greeting::hearLast() {
  Message proven;
  if (!hear(Kind::kProven, &proven)) return false;
  return conclude(checkProbes(proven.mask) & proven_);
}

// True if there is one at least.
bool Greeting::openLanes(const Message& ports, const std::vector<PortPair>& pairs) {
  bool hasOne = false;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    char text[512] = {};
    auto lane = std::make_unique<Lane>(home_.nics, *home_.nics.ports()[pairs[i].mine]);
    const bool wasRefused = isDialler_ && ports.pair[i].number == 0;
    const bool isGood = !wasRefused && lane->open({text, sizeof text}) == KOLO_TRANSPORT_OK;
    hasOne = hasOne || isGood;
    if (!isGood)
      story_ +=
          fmt::format("{}{}", story_.empty() ? "" : "; ", wasRefused ? "the peer could not make a queue pair" : text);
    lanes_.push_back(isGood ? std::move(lane) : nullptr);
  }
  return hasOne;
}

void Greeting::connectLanes(const Message& theirs) {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i] == nullptr) continue;
    char text[512] = "the peer could not make a queue pair";
    const bool isGood =
        theirs.pair[i].number != 0 && lanes_[i]->connect(theirs.pair[i], theirs_.port[pairs_[i].theirs], home_.settings,
                                                         {text, sizeof text}) == KOLO_TRANSPORT_OK;
    if (isGood) continue;
    story_ += fmt::format("{}{}", story_.empty() ? "" : "; ", text);
    lanes_[i] = nullptr;
  }
}

// ---- trial writes

void Greeting::startTrial(std::uint8_t mask) {
  stage_ = Stage::kTrial;
  trialSince_ = Clock::now();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i] == nullptr || !has(mask, i)) continue;
    Target word = theirs_.probe;
    word.address += 8 * i;
    if (lanes_[i]->sendWord(word, theirs_.nonce + i)) trying_ |= bit(i);
  }
}

// The first write of a lane is always told when it is complete.
bool Greeting::advanceTrial() {
  const bool isOver = Clock::now() > trialSince_ + kTrialTime;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (!has(trying_, i)) continue;
    const Lane::Polled polled = lanes_[i]->poll([](const Request&) {});
    if (!polled.hasMoved && polled.status == IBV_WC_SUCCESS && !isOver) continue;
    trying_ &= static_cast<std::uint8_t>(~bit(i));
    const bool isGood = polled.hasMoved && polled.status == IBV_WC_SUCCESS;
    if (isGood) proven_ |= bit(i);
    if (isGood) continue;
    story_ += fmt::format(
        "{}from {} {} to {}: {}", story_.empty() ? "" : "; ", lanes_[i]->port().name, toText(lanes_[i]->port().address),
        toText(theirs_.port[pairs_[i].theirs]),
        polled.status != IBV_WC_SUCCESS ? home_.nics.verbs().statusText(polled.status) : "no acknowledgement");
  }
  if (trying_ != 0) return false;
  sayProven();
  if (isDialler_) return conclude(proven_);
  stage_ = Stage::kLast;
  return true;
}

void Greeting::sayProven() {
  Message proven{};
  proven.kind = Kind::kProven;
  proven.mask = proven_;
  say(&proven);
}

// The lanes of `mask` by which the peer's trial value has come.
std::uint8_t Greeting::checkProbes(std::uint8_t mask) const {
  auto* const words = reinterpret_cast<std::uint64_t*>(home_.probes + kProbeBytes * peer_.rank);
  std::uint8_t found = 0;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (has(mask, i) && __atomic_load_n(&words[i], __ATOMIC_ACQUIRE) == nonce_ + i) found |= bit(i);
  }
  return found;
}

// Both sides come here with the same mask.
bool Greeting::conclude(std::uint8_t mask) {
  if (!talk_.flush() && talk_.failed() != 0) return fail("the connection ended");
  if (mask == 0) return fail("no lane is left");
  way_ = std::make_unique<Way>(peer_, std::move(talk_), home_.regions);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (has(mask, i)) way_->lanes.push_back(std::move(lanes_[i]));
  }
  lanes_.clear();
  way_->rails = railsFor(static_cast<std::uint8_t>(home_.settings.rails), theirs_.rails, way_->lanes.size());
  way_->marker = theirs_.probe;
  way_->marker.address += kMarkerAt;
  way_->closedThere = theirs_.probe;
  way_->closedThere.address += kClosedAt;
  const unsigned char* const here = home_.probes + kProbeBytes * peer_.rank;
  way_->closedHere = reinterpret_cast<const std::uint64_t*>(here + kClosedAt);
  for (std::size_t i = 0; i < way_->lanes.size(); ++i) {
    Target credit = theirs_.probe;
    credit.address += kCreditsAt + 8 * i;
    way_->lanes[i]->exchangeCredit(reinterpret_cast<const std::uint64_t*>(here + kCreditsAt + 8 * i), nonce_, credit,
                                   theirs_.nonce);
  }
  way_->theirNonce = theirs_.nonce;
  way_->ownNonce = nonce_;
  way_->log = home_.log;
  tell();
  stage_ = Stage::kDone;
  return false;
}

void Greeting::tell() const {
  if (home_.log == nullptr) return;
  std::string lanes;
  for (const auto& lane : way_->lanes)
    lanes += fmt::format("{}{} {}", lanes.empty() ? "" : ", ", lane->port().name, toText(lane->port().address));
  home_.log(2, fmt::format("transport ib: rank {} by {} of {}{}{}", peer_.rank,
                           way_->rails == 1 ? "1 rail" : fmt::format("{} rails", way_->rails), lanes,
                           story_.empty() ? "" : "; not by others: ", story_)
                   .c_str());
}

}  // namespace kolo::ib
