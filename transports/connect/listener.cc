#include "listener.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>

namespace kolo::connect {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMostClients = 256;
constexpr std::size_t kFewestClients = 8;
constexpr std::size_t kShareOfFiles = 8;  // of this process's descriptors clients have one of so many
// From connecting to the verdict. A dialler answers at once, if its process runs.
constexpr milliseconds kClientTime{10000};
// From connecting to the verdict, while all places are taken and others wait.
constexpr milliseconds kPressedTime{500};
// How long nobody is accepted after the process ran out of file descriptors: polling the listener would spin.
constexpr milliseconds kPause{20};
constexpr int kMostRefusedAtOnce = 16;

std::size_t mostClients() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return kFewestClients;
  return std::clamp<std::size_t>(static_cast<std::size_t>(files.rlim_cur) / kShareOfFiles, kFewestClients,
                                 kMostClients);
}

// The caller that dials is told which limit was reached.
void tellOfLimit(int client, int errnum) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Challenge challenge{};
  setMagic(challenge);
  challenge.version = kVersion;
  challenge.status = Status::kOutOfFiles;
  challenge.detail = errnum == EMFILE ? limit.rlim_cur : 0;
  (void)send(client, &challenge, sizeof challenge, MSG_DONTWAIT | MSG_NOSIGNAL);
  (void)shutdown(client, SHUT_WR);
}

// For both kinds of address; a kernel without IPv6 has the other one. 0, or an errno.
int listenAt(std::uint16_t port, Socket* listener) {
  int errnum = 0;
  for (const bool isV6 : {true, false}) {
    const network::Address any{.isV6 = isV6};
    *listener = Socket(socket(isV6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int no = 0, yes = 1;
    sockaddr_storage address;
    const socklen_t bytes = any.fill(port, address);
    const bool isReady = *listener &&
                         (!isV6 || setsockopt(listener->fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0) &&
                         // A port that the user chose may have connections that were closed a moment ago.
                         (port == 0 || setsockopt(listener->fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0) &&
                         bind(listener->fd(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0 &&
                         listen(listener->fd(), SOMAXCONN) == 0;
    if (isReady) return 0;
    errnum = errno;
    if (isOutOfFiles(errnum) || errnum == EADDRINUSE) break;
  }
  listener->close();
  return errnum;
}

}  // namespace

Ports parsePorts(std::string_view text) {
  const std::string all(text);
  Ports ports;
  unsigned first = 0, last = 0;
  const int count = std::sscanf(all.c_str(), "%u-%u", &first, &last);
  if (count < 1) return ports;
  ports.first = static_cast<std::uint16_t>(first);
  ports.last = static_cast<std::uint16_t>(count == 2 ? last : first);
  return ports;
}

IdKey keyOf(const Id& id) {
  IdKey key;
  std::copy(std::begin(id), std::end(id), key.begin());
  return key;
}

Listener& Listener::instance() {
  static auto* const listener = new Listener;
  return *listener;
}

Listener::Listener() {
  (void)forkGeneration();  // whose lock is inside ours: its handler must have been registered first
  // A fork while another thread is inside would copy a locked mutex and a half-made table to the child.
  const auto before = [] {
    instance().lifecycle_.lock();
    instance().state_.lock();
    instance().spareUse_.lock();
  };
  const auto inParent = [] {
    instance().spareUse_.unlock();
    instance().state_.unlock();
    instance().lifecycle_.unlock();
  };
  const auto inChild = [] {
    instance().members_.clear();
    instance().closeSockets();
    instance().spareUse_.unlock();
    instance().state_.unlock();
    instance().lifecycle_.unlock();
  };
  (void)pthread_atfork(before, inParent, inChild);
}

int Listener::add(const Id& device, const Key& key, std::uint32_t rank, const Ports& ports, Callee* callee) {
  const std::lock_guard lock(lifecycle_);
  bool isFirst;
  {
    const std::lock_guard stateLock(state_);
    isFirst = members_.empty();
    members_[keyOf(device)] = {{key, rank}, callee};
  }
  const int errnum = isFirst ? start(ports) : 0;
  if (errnum != 0) {
    const std::lock_guard stateLock(state_);
    members_.clear();
  }
  return errnum;
}

void Listener::remove(const Id& device) {
  const std::lock_guard lock(lifecycle_);
  {
    const std::lock_guard stateLock(state_);
    // Not there in a child that was forked in between.
    if (members_.erase(keyOf(device)) == 0) return;
    std::erase_if(sets_, [&](const auto& set) { return set.second.to == keyOf(device); });
    if (!members_.empty()) return;
  }
  const std::uint64_t one = 1;
  while (write(wake_.fd(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  pthread_join(thread_, nullptr);
  const std::lock_guard stateLock(state_);
  closeSockets();
}

std::uint16_t Listener::port() {
  const std::lock_guard lock(state_);
  return port_;
}

int Listener::refusedFor() {
  const std::lock_guard lock(state_);
  return refusedFor_;
}

// REQUIRES: lifecycle_ held
int Listener::start(const Ports& ports) {
  const std::lock_guard lock(state_);
  int errnum = openSockets(ports);
  if (errnum == 0) {
    // The application's signals are not for this thread.
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const auto body = [](void* self) -> void* {
      static_cast<Listener*>(self)->serve();
      return nullptr;
    };
    errnum = pthread_create(&thread_, nullptr, body, this);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  }
  if (errnum == 0) {
    (void)pthread_setname_np(thread_, "kolo-net");
  } else {
    closeSockets();
  }
  return errnum;
}

// REQUIRES: state_ held
int Listener::openSockets(const Ports& ports) {
  wake_ = Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return errno;
  spare_ = Socket(eventfd(0, EFD_CLOEXEC));
  if (!spare_) return errno;
  int errnum = EADDRINUSE;
  // Where processes start together each begins at another port.
  for (int i = 0; i < ports.count() && errnum == EADDRINUSE; ++i) {
    const int next = ports.first + (getpid() + i) % ports.count();
    errnum = listenAt(static_cast<std::uint16_t>(next), &listener_);
  }
  if (errnum != 0) return errnum;
  sockaddr_storage address;
  socklen_t bytes = sizeof address;
  if (getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return errno;
  // Both kinds of address have the port at the same place.
  port_ = ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  return 0;
}

// REQUIRES: state_ held, thread not running
void Listener::closeSockets() {
  clients_.clear();
  sets_.clear();
  listener_.close();
  wake_.close();
  spare_.close();
  port_ = 0;
  refusedFor_ = 0;
  pausedUntil_ = {};
}

void Listener::serve() {
  std::vector<pollfd> polls;
  for (;;) {
    int timeout;
    {
      const std::lock_guard lock(state_);
      const Clock::time_point now = Clock::now();
      polls.assign({{wake_.fd(), POLLIN, 0}, {now < pausedUntil_ ? -1 : listener_.fd(), POLLIN, 0}});
      for (const Answer& client : clients_) polls.push_back({client.fd(), client.awaits(), 0});
      timeout = pollTimeout(now);
    }
    if (poll(polls.data(), polls.size(), timeout) < 0) continue;  // EINTR cannot be, signals are blocked; ENOMEM passes
    if (polls[0].revents != 0) return;
    const std::lock_guard lock(state_);
    std::size_t at = 2;
    for (auto client = clients_.begin(); client != clients_.end();) {
      const Answer::Outcome outcome = polls[at++].revents != 0 ? client->advance(*this) : Answer::Outcome::kGoesOn;
      if (outcome == Answer::Outcome::kTaken) take(*client);
      client = outcome == Answer::Outcome::kGoesOn ? std::next(client) : clients_.erase(client);
    }
    const Clock::time_point now = Clock::now();
    dropOld(now);
    if (polls[1].revents != 0 && !acceptClients(now)) pausedUntil_ = now + kPause;
  }
}

// Milliseconds until a time is over; -1: none runs. REQUIRES: state_ held
int Listener::pollTimeout(Clock::time_point now) const {
  std::optional<Clock::time_point> first;
  const auto consider = [&](Clock::time_point when) {
    if (!first || when < *first) first = when;
  };
  if (!clients_.empty()) consider(clients_.front().since() + kClientTime);
  for (const auto& [id, set] : sets_) consider(set.since + kClientTime);
  if (now < pausedUntil_) consider(pausedUntil_);
  if (!first) return -1;
  const auto left = std::chrono::ceil<milliseconds>(*first - now).count();
  return static_cast<int>(std::max<std::int64_t>(left, 0));
}

// REQUIRES: state_ held
void Listener::dropOld(Clock::time_point now) {
  while (!clients_.empty() && now >= clients_.front().since() + kClientTime) clients_.pop_front();
  std::erase_if(sets_, [&](const auto& entry) {
    const Set& set = entry.second;
    if (now < set.since + kClientTime) return false;
    members_.at(set.to).callee->giveUp(set.from);
    return true;
  });
}

// Takes the place of the oldest client that has not said anything sensible; a rank that dials speaks at once. It may be
// a rank all the same, which is told why, where the limit of open files is the reason (errnum; 0: there is no place).
// REQUIRES: state_ held
bool Listener::dropStranger(int errnum) {
  const auto stranger =
      std::find_if(clients_.begin(), clients_.end(), [](const Answer& client) { return !client.isExpected(); });
  if (stranger == clients_.end()) return false;
  if (errnum != 0) {
    tellOfLimit(stranger->fd(), errnum);
    noteRefusal(errnum);
  }
  clients_.erase(stranger);
  return true;
}

// False: pause, for there is no place, or no file descriptor. Callers that wait stay in the kernel's queue. REQUIRES:
// state_ held
bool Listener::acceptClients(Clock::time_point now) {
  const std::size_t places = mostClients();
  for (std::size_t accepted = 0; accepted < places; ++accepted) {
    if (clients_.size() >= places && !dropStranger(0)) {
      if (now < clients_.front().since() + kPressedTime) return false;
      clients_.pop_front();
    }
    const int fd = accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      clients_.emplace_back(Socket(fd), now);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (isOutOfFiles(errno)) {
      const int errnum = errno;
      if (dropStranger(errnum)) continue;
      refuseForFiles(errnum);
      return false;
    } else if (errno == ENOBUFS || errno == ENOMEM) {
      return false;
    }  // anything else is of that connection: the next one
  }
  return true;
}

// By the file descriptor that is kept for this. REQUIRES: state_ held
void Listener::refuseForFiles(int errnum) {
  {
    const std::lock_guard lock(spareUse_);
    for (int i = 0; i < kMostRefusedAtOnce; ++i) {
      spare_.close();
      const Socket client(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!client) break;
      tellOfLimit(client.fd(), errnum);
    }
    if (!spare_) spare_ = Socket(eventfd(0, EFD_CLOEXEC));
  }
  noteRefusal(errnum);
}

Socket Listener::socketForDial(int family) {
  const std::lock_guard lock(spareUse_);
  return Socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// REQUIRES: state_ held
void Listener::noteRefusal(int errnum) {
  if (std::exchange(refusedFor_, errnum) != 0) return;
  char line[256];
  std::snprintf(line, sizeof line, "a rank's connection was refused: %s", ErrorText(errnum).text);
  warn(line);
}

// REQUIRES: state_ held
void Listener::warn(const char* line) {
  if (!members_.empty()) members_.begin()->second.callee->log(1, line);
}

// REQUIRES: state_ held
void Listener::take(Answer& client) {
  const Hello& hello = client.hello();
  const auto member = members_.find(keyOf(hello.to));
  if (member == members_.end()) return;
  const auto at = sets_.find(keyOf(hello.set));
  if (at == sets_.end()) return;
  Set& set = at->second;
  set.rails[hello.rail] = client.takeSocket();
  if (!std::all_of(set.rails.begin(), set.rails.end(), [](const Socket& rail) { return static_cast<bool>(rail); }))
    return;
  member->second.callee->arrive(set.from, std::move(set.rails));
  sets_.erase(at);
}

const Directory::Entry* Listener::find(const Id& device) const {
  const auto at = members_.find(keyOf(device));
  return at != members_.end() ? &at->second.entry : nullptr;
}

// The first connection of a set is decided upon by the device; the others follow it. REQUIRES: state_ held
Decision Listener::decide(const Hello& hello) {
  const auto member = members_.find(keyOf(hello.to));
  const auto at = sets_.find(keyOf(hello.set));
  const Caller caller{keyOf(hello.from), hello.fromRank};
  if (member == members_.end()) return Decision::kHave;
  if (hello.rail != 0) {
    const bool isExpected = at != sets_.end() && at->second.from.device == caller.device &&
                            at->second.to == keyOf(hello.to) && at->second.rails.size() == hello.rails;
    return isExpected && !at->second.rails[hello.rail] ? Decision::kTaken : Decision::kHave;
  }
  if (at != sets_.end()) return Decision::kHave;
  const Decision decision = member->second.callee->decide(caller);
  if (decision != Decision::kTaken) return decision;
  Set set{keyOf(hello.to), caller, {}, Clock::now()};
  set.rails.resize(hello.rails);
  sets_.emplace(keyOf(hello.set), std::move(set));
  return decision;
}

}  // namespace kolo::connect
