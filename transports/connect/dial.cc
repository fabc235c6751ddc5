#include "dial.h"

#include <poll.h>

#include <algorithm>
#include <list>
#include <thread>

#include "listener.h"

namespace kolo::connect {
namespace {

using std::chrono::milliseconds;

// After which the next place is tried beside those that have not answered; and while one is connected, which will
// probably do.
constexpr milliseconds kStagger{50};
constexpr milliseconds kStaggerConnected{500};
// A listener that was too busy is asked again, and one without files for so long.
constexpr milliseconds kRepeat{20};
constexpr milliseconds kRepeatFor{2000};

// All places at once, staggered.
class Race {
 public:
  Race(const Party& self, const Address& peer, const Id& set, std::size_t rails, Clock::time_point deadline)
      : self_(self), peer_(peer), set_(set), rails_(rails), deadline_(deadline) {}

  // The first attempt that is decided; null: none can be.
  Attempt* run(std::vector<Place> places);
  std::string story() const;
  int ownErrno() const;
  bool isSilent() const;

 private:
  void start(Clock::time_point now);
  Clock::time_point nextStart() const;
  void repeat(Clock::time_point now);
  void wait(Clock::time_point now);
  Attempt* look();

  const Party& self_;
  const Address& peer_;
  const Id& set_;
  const std::size_t rails_;
  const Clock::time_point deadline_;
  std::vector<Place> places_;
  std::size_t started_ = 0;
  Clock::time_point last_{};  // when the last place was started
  Clock::time_point repeatAt_{};
  std::list<Attempt> attempts_;
  Attempt* committed_ = nullptr;
};

bool isRunning(const Attempt& attempt) {
  return attempt.stage() != Attempt::Stage::kFailed && attempt.stage() != Attempt::Stage::kDecided;
}

Attempt* Race::run(std::vector<Place> places) {
  places_ = std::move(places);
  const Clock::time_point begun = Clock::now();
  for (Clock::time_point now = begun; now < deadline_; now = Clock::now()) {
    const bool mayRepeat = now < begun + kRepeatFor;
    start(now);
    if (Attempt* const decided = look(); decided != nullptr) return decided;
    if (mayRepeat) repeat(now);
    const bool hasHope = std::any_of(attempts_.begin(), attempts_.end(), [&](const Attempt& attempt) {
      return isRunning(attempt) || (mayRepeat && attempt.isWorthRepeating());
    });
    if (!hasHope && started_ == places_.size()) return nullptr;
    wait(Clock::now());
  }
  return nullptr;
}

// The next place, if its time has come.
void Race::start(Clock::time_point now) {
  if (started_ == places_.size() || committed_ != nullptr || now < nextStart()) return;
  attempts_.emplace_back(self_, peer_, places_[started_++], set_, 0, rails_);
  last_ = now;
}

Clock::time_point Race::nextStart() const {
  bool isIdle = true, isConnected = false;
  for (const Attempt& attempt : attempts_) {
    isIdle = isIdle && !isRunning(attempt);
    isConnected = isConnected || (isRunning(attempt) && attempt.isConnected());
  }
  return isIdle ? last_ : last_ + (isConnected ? kStaggerConnected : kStagger);
}

// Attempts that failed for a reason that passes are made anew.
void Race::repeat(Clock::time_point now) {
  if (now < repeatAt_) return;
  repeatAt_ = now + kRepeat;
  for (auto at = attempts_.begin(); at != attempts_.end(); ++at) {
    if (isRunning(*at) || !at->isWorthRepeating()) continue;
    if (&*at == committed_) committed_ = nullptr;
    const Place place = at->place();
    at = attempts_.erase(at);
    at = attempts_.emplace(at, self_, peer_, place, set_, 0, rails_);
  }
}

void Race::wait(Clock::time_point now) {
  std::vector<pollfd> polls;
  Clock::time_point until = deadline_;
  for (const Attempt& attempt : attempts_) {
    if (isRunning(attempt)) polls.push_back({attempt.fd(), attempt.awaits(), 0});
    if (attempt.isWorthRepeating()) until = std::min(until, repeatAt_);
  }
  if (started_ < places_.size() && committed_ == nullptr) until = std::min(until, nextStart());
  const auto left = std::chrono::ceil<milliseconds>(until - now).count();
  (void)poll(polls.data(), polls.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
}

Attempt* Race::look() {
  for (Attempt& attempt : attempts_) {
    if (!isRunning(attempt)) continue;
    attempt.advance();
    if (attempt.stage() == Attempt::Stage::kProven && committed_ == nullptr) {
      committed_ = &attempt;
      attempt.commit();
      attempt.advance();
    }
    if (attempt.stage() == Attempt::Stage::kDecided) return &attempt;
    if (attempt.stage() == Attempt::Stage::kFailed && committed_ == &attempt) committed_ = nullptr;
  }
  return nullptr;
}

std::string Race::story() const {
  std::string text;
  for (const Attempt& attempt : attempts_) text += (text.empty() ? "" : "; ") + attempt.story();
  for (std::size_t i = started_; i < places_.size(); ++i) text += "; " + places_[i].text() + ": not tried";
  return text;
}

bool Race::isSilent() const {
  return std::any_of(attempts_.begin(), attempts_.end(), [](const Attempt& attempt) { return attempt.isSilent(); });
}

int Race::ownErrno() const {
  for (const Attempt& attempt : attempts_) {
    if (attempt.ownErrno() != 0) return attempt.ownErrno();
  }
  return 0;
}

// The connections after the first, all at once, to the place where that one led.
int dialOthers(const Party& self, const Address& peer, const Place& place, const Id& set, Clock::time_point deadline,
               const Why& why, std::vector<Socket>* rails) {
  std::list<Attempt> attempts;
  for (std::size_t rail = 1; rail < rails->size(); ++rail)
    attempts.emplace_back(self, peer, place, set, rail, rails->size());
  for (;;) {
    std::vector<pollfd> polls;
    for (Attempt& attempt : attempts) {
      attempt.advance();
      if (attempt.stage() == Attempt::Stage::kProven) {
        attempt.commit();
        attempt.advance();
      }
      if (attempt.stage() == Attempt::Stage::kFailed) {
        return why.fail(attempt.ownErrno() != 0 ? KOLO_TRANSPORT_ERROR : KOLO_TRANSPORT_UNREACHABLE,
                        "rank %u was reached, but not by %zu connections at once: %s", peer.rank, rails->size(),
                        attempt.story().c_str());
      }
      if (isRunning(attempt)) polls.push_back({attempt.fd(), attempt.awaits(), 0});
    }
    if (polls.empty()) break;
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    if (left <= 0)
      return why.fail(KOLO_TRANSPORT_UNREACHABLE, "rank %u was reached, but further connections take too long",
                      peer.rank);
    (void)poll(polls.data(), polls.size(), static_cast<int>(left));
  }
  std::size_t rail = 1;
  for (Attempt& attempt : attempts) {
    if (attempt.decision() != Decision::kTaken)
      return why.fail(KOLO_TRANSPORT_UNREACHABLE, "rank %u gave up", peer.rank);
    (*rails)[rail++] = attempt.takeSocket();
  }
  return KOLO_TRANSPORT_OK;
}

const char* moreOf(const Address& peer) {
  return (peer.flags & Address::kHasMore) == 0
             ? ""
             : "; its host has more addresses than are told: KOLO_TCP_INTERFACES there says which are";
}

int explain(const Address& peer, const Race& race, const Why& why) {
  if (race.ownErrno() != 0) {
    return why.fail(KOLO_TRANSPORT_ERROR, "connecting to rank %u: %s", peer.rank, ErrorText(race.ownErrno()).text);
  }
  return why.fail(
      KOLO_TRANSPORT_UNREACHABLE, "rank %u (process %u, port %u) cannot be reached: %s%s%s", peer.rank, peer.pid,
      peer.port, race.story().c_str(), moreOf(peer),
      race.isSilent() ? "; if a firewall keeps that port shut, KOLO_PORT_RANGE says which ports may be used" : "");
}

}  // namespace

int dial(const Party& self, const Address& peer, Clock::time_point deadline, const Why& why, Dialled* dialled) {
  std::vector<Place> theirs;
  if (!network::unpackPlaces(peer.places, &theirs))
    return why.fail(KOLO_TRANSPORT_ERROR, "an address blob with half an address");
  const bool isSameStack = same(self.address.network, peer.network);
  std::vector<Place> places =
      network::orderPlaces(theirs, self.own, isSameStack, (peer.flags & Address::kOrdered) != 0);
  if (places.empty()) {
    return why.fail(KOLO_TRANSPORT_UNREACHABLE, "rank %u (process %u) %s%s", peer.rank, peer.pid,
                    network::whyNone(theirs).c_str(), moreOf(peer));
  }
  Id set;
  randombytes_buf(set, sizeof set);
  Race race(self, peer, set, railsBetween(self.address, peer), deadline);
  Attempt* const decided = race.run(std::move(places));
  if (decided == nullptr) return explain(peer, race, why);
  dialled->decision = decided->decision();
  dialled->place = decided->place();
  if (dialled->decision != Decision::kTaken) return KOLO_TRANSPORT_OK;
  dialled->rails.resize(railsBetween(self.address, peer));
  dialled->rails[0] = decided->takeSocket();
  dialled->key = decided->key();
  return dialOthers(self, peer, dialled->place, set, deadline, why, &dialled->rails);
}

int failUncalled(const Party& self, const Why& why, std::uint32_t peer) {
  const int errnum = self.listener->refusedFor();
  return why.fail(KOLO_TRANSPORT_ERROR, "rank %u says that it makes the connection, and does not%s%s", peer,
                  errnum != 0 ? "; connections to this rank were refused: " : "",
                  errnum != 0 ? ErrorText(errnum).text : "");
}

}  // namespace kolo::connect
