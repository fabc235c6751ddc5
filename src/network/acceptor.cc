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
constexpr std::size_t kShareOfFiles = 8;  // of this process's descriptors strangers have one of so many
// From connecting on one that is expected keeps its place for so long, while others of its source come.
constexpr std::chrono::milliseconds kPressedTime{200};
constexpr std::chrono::milliseconds kPause{20};  // the backlog keeps the callers
constexpr int kMostAtOnce = 64;
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
  const bool hasCallers = advanceAll();
  while (!places_.empty() && places_.front().until <= Clock::now()) drop(places_.begin());
  if (hasCallers && !accept()) pausedUntil_ = Clock::now() + kPause;
  for (const auto& proven : std::exchange(proven_, {})) proven->enter();
}

// Those for whom something has come; whether there are callers. Where poll(2) is refused, all look for themselves.
bool Acceptor::advanceAll() {
  std::vector<pollfd> polls;
  addTo(polls);
  if (::poll(polls.data(), polls.size(), 0) < 0) {
    for (pollfd& each : polls) each.revents = POLLIN;
  }
  std::size_t at = 1;
  for (auto place = places_.begin(); place != places_.end();)
    place = polls[at++].revents != 0 ? advance(place) : std::next(place);
  return isOpen() && !isPaused() && polls[0].revents != 0;
}

// Returns the one after it.
Acceptor::Places::iterator Acceptor::advance(Places::iterator place) {
  const Stranger::Outcome outcome = place->who->advance();
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

// False if nobody can be accepted for now.
bool Acceptor::accept() {
  bool isShort = false;
  for (int accepted = 0; accepted < kMostAtOnce; ++accepted) {
    Socket socket = acceptFrom(listener_);
    const int errnum = errno;
    if (socket.valid()) {
      add(std::move(socket));
    } else if (errnum == EAGAIN || errnum == EWOULDBLOCK) {
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

// The source that has most places if the newcomer has one; of several the one that was here first. REQUIRES: a place is
// taken
Source Acceptor::mostCrowded(const Source& newcomer) const {
  std::map<Source, std::size_t> counts{{newcomer, 1}};
  for (const Place& place : places_) ++counts[place.source];
  Source crowd = places_.front().source;
  for (const Place& place : places_) {
    if (counts[place.source] > counts[crowd]) crowd = place.source;
  }
  return crowd;
}

// False: the newcomer is one of a crowd, of which all others have their places for too short a time.
bool Acceptor::makeRoom(const Source& newcomer) {
  if (places_.size() < mostPlaces()) return true;
  const Source crowd = mostCrowded(newcomer);
  const auto find = [&](bool isUnexpected) {
    return std::find_if(places_.begin(), places_.end(), [&](const Place& place) {
      return place.source == crowd && !(isUnexpected && place.who->isExpected());
    });
  };
  auto place = find(true);
  if (place == places_.end()) {
    place = find(false);
    const bool isNew = Clock::now() < place->until - time_ + kPressedTime;
    if (isNew && crowd == newcomer) return false;
  }
  drop(place);
  return true;
}

Acceptor::Places::iterator Acceptor::oldestUnexpected() {
  return std::find_if(places_.begin(), places_.end(), [](const Place& place) { return !place.who->isExpected(); });
}

// Where memory is short, as if the caller had not come: the thread has nobody to tell.
void Acceptor::add(Socket socket) {
  const int fd = socket.fd();
  try {
    const Source source = sourceOf(fd);
    if (!makeRoom(source)) return;
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
  const std::unique_lock lock = withoutDials();
  for (int i = 0; i < kMostRefusedAtOnce; ++i) {
    spare_.close();
    const Socket client = acceptFrom(listener_);
    if (!client.valid()) break;
    tell(client.fd(), errnum);
  }
  if (!spare_.valid()) spare_ = Socket(::eventfd(0, EFD_CLOEXEC));
}

}  // namespace kolo::network
