#include "network/acceptor.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <utility>

namespace kolo::network {
namespace {

constexpr std::size_t kMostPlaces = 256;
constexpr std::size_t kFewestPlaces = 8;
constexpr std::size_t kShareOfPlaces = 8;  // a source that has more than one of so many is a large crowd
constexpr std::size_t kShareOfFiles = 8;   // of this process's descriptors strangers have one of so many
// From connecting on each stranger keeps its place for so long, whoever comes: until it has spoken, and until it has
// proved itself.
constexpr std::chrono::milliseconds kTimeToSpeak{20}, kTimeToProve{200};
constexpr std::chrono::milliseconds kPause{20};  // the backlog keeps the callers
constexpr int kMostAtOnce = 64;
constexpr int kMostAnsweredAtOnce = 16;  // an answer costs a multiplication or two on the curve
constexpr int kMostRefusedAtOnce = 16;

std::size_t mostPlaces() { return std::clamp<std::size_t>(fileLimit() / kShareOfFiles, kFewestPlaces, kMostPlaces); }

Socket acceptFrom(const Socket& listener) {
  return Socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

std::uint64_t numberOf(const unsigned char* bytes, std::size_t count) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < count; ++i) number = number << 8 | bytes[i];
  return number;
}

// Of connections that this process has made itself.
constexpr Source kOwn{AF_UNSPEC, 0};

}  // namespace

Source sourceOf(int fd) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof peer;
  (void)::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes);
  const std::optional<Address> address = addressOf(reinterpret_cast<const sockaddr*>(&peer));
  if (address.has_value()) return {address->isV6 ? AF_INET6 : AF_INET, numberOf(address->bytes, address->isV6 ? 8 : 4)};
  ucred user{};
  bytes = sizeof user;
  (void)::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &bytes);
  return {AF_UNIX, user.uid};
}

int Acceptor::open(Socket listener) {
  listener_ = std::move(listener);
  spare_ = Socket(::eventfd(0, EFD_CLOEXEC));
  return spare_.valid() ? 0 : errno;
}

void Acceptor::close() {
  for (auto place = places_.begin(); place != places_.end();) place = drop(place);
  if (listener_.valid()) owner_.forget(listener_.fd());
  listener_.close();
  spare_.close();
  pausedUntil_ = {};
  isRefusing_ = false;
}

void Acceptor::addTo(std::vector<pollfd>& polls) const {
  polls.push_back({isPaused() ? -1 : listener_.fd(), POLLIN, 0});
  for (const Place& place : places_) polls.push_back({place.who->fd(), place.who->awaits(), 0});
}

Clock::time_point Acceptor::next() const {
  const Clock::time_point paused = isPaused() ? pausedUntil_ : Clock::time_point::max();
  return places_.empty() ? paused : std::min(paused, places_.front().until);
}

void Acceptor::serve() {
  if (Clock::now() >= pausedUntil_) pausedUntil_ = {};
  answered_ = 0;
  const bool hasCallers = advanceAll();
  while (!places_.empty() && places_.front().until <= Clock::now()) drop(places_.begin());
  if (hasCallers && !accept()) pausedUntil_ = Clock::now() + kPause;
  while (!proven_.empty()) {  // one by one: where there is no memory for one, the others are left
    const std::unique_ptr<Stranger> proven = std::move(proven_.front());
    proven_.erase(proven_.begin());
    proven->enter();
  }
}

// Those for whom something has come, as long as few of them are answered: the others have their turn at the next call.
// Whether there are callers. Where poll(2) is refused, all look for themselves.
bool Acceptor::advanceAll() {
  std::vector<pollfd> polls;
  addTo(polls);
  if (::poll(polls.data(), polls.size(), 0) < 0) {
    for (pollfd& each : polls) each.revents = POLLIN;
  }
  std::size_t at = 1;
  for (auto place = places_.begin(); place != places_.end();)
    place = polls[at++].revents != 0 && answered_ < kMostAnsweredAtOnce ? advance(place) : std::next(place);
  return isOpen() && !isPaused() && polls[0].revents != 0;
}

// A stranger for whom there is no memory has to come again: what it has said is lost.
Stranger::Outcome Acceptor::outcomeOf(Stranger& who) {
  try {
    proven_.reserve(proven_.size() + 1);
    return who.advance();
  } catch (const std::bad_alloc&) {
    return Stranger::Outcome::kOver;
  }
}

// Returns the one after it.
Acceptor::Places::iterator Acceptor::advance(Places::iterator place) {
  const bool wasExpected = place->who->isExpected();
  const Stranger::Outcome outcome = outcomeOf(*place->who);
  if (outcome != Stranger::Outcome::kGoesOn || place->who->isExpected() != wasExpected) ++answered_;
  if (outcome == Stranger::Outcome::kGoesOn) return std::next(place);
  if (outcome == Stranger::Outcome::kOver) return drop(place);
  owner_.forget(place->who->fd());
  proven_.push_back(std::move(place->who));
  return places_.erase(place);
}

Acceptor::Places::iterator Acceptor::drop(Places::iterator place) {
  owner_.forget(place->who->fd());
  return places_.erase(place);
}

// accept(2) fails for want of a descriptor even if nobody has come.
bool Acceptor::hasCaller() const {
  pollfd caller{listener_.fd(), POLLIN, 0};
  return ::poll(&caller, 1, 0) != 0;
}

// False if nobody can be accepted for now.
bool Acceptor::accept() {
  bool isShort = false;
  for (int accepted = 0; accepted < kMostAtOnce && answered_ < kMostAnsweredAtOnce; ++accepted) {
    const std::optional<Crowd> crowd = crowdIfFull();
    if (mustWait(crowd)) return false;
    Socket socket = acceptFrom(listener_);
    const int errnum = errno;
    if (socket.valid()) {
      const Source source = sourceOf(socket.fd());
      if (makeRoom(crowd, source)) admit(std::move(socket), source);
    } else if (errnum == EAGAIN || errnum == EWOULDBLOCK || (isOutOfFiles(errnum) && !hasCaller())) {
      isRefusing_ = isRefusing_ && isShort;
      return true;
    } else if (errnum != EINTR && errnum != ECONNABORTED) {
      isShort = true;
      if (!std::exchange(isRefusing_, true)) owner_.hasRefused(errnum);
      if (!isOutOfFiles(errnum)) return false;
      if (dropUnexpected(errnum)) continue;
      refuse(errnum);
      return false;
    }
  }
  return true;
}

// Of all that are taken, if all places are: the source that has most of them, and of several the one that was here
// first.
std::optional<Acceptor::Crowd> Acceptor::crowdIfFull() const {
  std::map<Source, std::size_t> counts;
  std::size_t taken = 0;
  for (const Place& place : places_) taken += place.source != kOwn ? 1 : 0;
  if (taken < mostPlaces()) return std::nullopt;
  for (const Place& place : places_) ++counts[place.source];
  Crowd crowd{};
  for (const Place& place : places_) {
    if (place.source != kOwn && counts[place.source] > crowd.places) crowd = {place.source, counts[place.source]};
  }
  return crowd;
}

// The first of the crowd whose time is over, or the end.
Acceptor::Places::iterator Acceptor::whoseTimeIsOver(const Crowd& crowd) {
  const auto now = Clock::now();
  const auto oldest = [&](bool isExpected) {
    const auto protectedFor = isExpected ? kTimeToProve : kTimeToSpeak;
    return std::find_if(places_.begin(), places_.end(), [&](const Place& each) {
      const auto since = each.until - time_;
      return each.source == crowd.source && each.who->isExpected() == isExpected && now >= since + protectedFor;
    });
  };
  const auto silent = oldest(false);
  return silent != places_.end() ? silent : oldest(true);
}

// Nobody is accepted while all places are taken by many sources, and are new.
bool Acceptor::mustWait(const std::optional<Crowd>& crowd) {
  return crowd.has_value() && crowd->places <= mostPlaces() / kShareOfPlaces &&
         whoseTimeIsOver(*crowd) == places_.end();
}

// False: the newcomer is one of a large crowd, and all others of it are new.
bool Acceptor::makeRoom(const std::optional<Crowd>& crowd, const Source& newcomer) {
  if (!crowd.has_value()) return true;
  auto place = whoseTimeIsOver(*crowd);
  if (place == places_.end() && crowd->source == newcomer) return false;
  if (place == places_.end())
    place =
        std::find_if(places_.begin(), places_.end(), [&](const Place& each) { return each.source == crowd->source; });
  drop(place);
  return true;
}

Acceptor::Places::iterator Acceptor::oldestUnexpected() {
  return std::find_if(places_.begin(), places_.end(),
                      [](const Place& place) { return place.source != kOwn && !place.who->isExpected(); });
}

void Acceptor::add(Socket socket) { admit(std::move(socket), kOwn); }

// Where memory is short, as if the caller had not come: the thread has nobody to tell.
void Acceptor::admit(Socket socket, const Source& source) {
  const int fd = socket.fd();
  try {
    std::unique_ptr<Stranger> who = owner_.welcome(std::move(socket));
    if (who == nullptr) return;
    places_.push_back({std::move(who), Clock::now() + time_, source});
  } catch (const std::bad_alloc&) {
    return;
  }
  const auto place = std::prev(places_.end());
  if (!owner_.watch(fd)) {
    drop(place);
  } else {
    advance(place);  // a peer has mostly spoken by now
  }
}

bool Acceptor::dropUnexpected(int errnum) {
  const auto place = oldestUnexpected();
  if (place == places_.end()) return false;
  tell(place->who->fd(), errnum);
  drop(place);
  return true;
}

void Acceptor::tell(int fd, int errnum) {
  const std::string words = owner_.refusal(errnum);
  (void)::send(fd, words.data(), words.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  (void)::shutdown(fd, SHUT_WR);
}

// By the descriptor that is kept for this.
void Acceptor::refuse(int errnum) {
  const std::unique_lock lock = lockDescriptors();
  for (int i = 0; i < kMostRefusedAtOnce; ++i) {
    spare_.close();
    const Socket client = acceptFrom(listener_);
    if (!client.valid()) break;
    tell(client.fd(), errnum);
  }
  if (!spare_.valid()) spare_ = Socket(::eventfd(0, EFD_CLOEXEC));
}

}  // namespace kolo::network
