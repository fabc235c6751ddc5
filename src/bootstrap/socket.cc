#include "bootstrap/socket.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_set>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/quiet_thread.h"
#include "base/settings.h"
#include "network/silence.h"

namespace kolo::bootstrap {
namespace {

// Fits packets of 1280 bytes, which every way takes. Hosts that believe in larger packets than the way between them
// passes would lose them without a word; what is wrong there is for the transports to find and to tell, and that goes
// through here.
constexpr int kSegmentBytes = 1220;
constexpr auto kFirstLookupPause = std::chrono::milliseconds(50);
constexpr auto kLongestLookupPause = std::chrono::milliseconds(1000);

// All open Sockets of the process. The fork handlers hold the mutex across fork, so the child finds the set intact.
struct Registry {
  std::mutex mutex;
  std::unordered_set<int> open;

  Registry();
};

Registry& registry() {
  static auto* const instance = new Registry;  // never destroyed: the reactor may close sockets during exit
  return *instance;
}

Registry::Registry() {
  pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                 [] {
                   Registry& all = registry();
                   for (const int fd : all.open) ::close(fd);
                   all.open.clear();
                   all.mutex.unlock();
                 });
}

void setOption(int fd, int level, int name, int value) {
  // Failure costs speed or early notice only, never correctness.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

// What a listener is bound to.
struct Bound {
  Socket socket;
  std::uint16_t port = 0;
  int errnum = 0;  // no socket: why
  const char* what = "making a listening socket";
};

// What a filter refuses to this process of what a hub does with its connections; nullptr: nothing, else errno says why.
// It is tried on a socket that is bound and does not listen yet, so it takes nobody's connection and moves no byte:
// each call fails, in a way that is known. Any other answer is a filter's, and would come to each connection.
const char* refusedOf(int fd) {
  if (::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC) < 0 && errno != EINVAL) {
    return "accepting connections";
  }
  char byte = 0;
  const auto isUsual = [] { return errno == ENOTCONN || errno == EPIPE || errno == EINVAL || errno == EAGAIN; };
  if (::send(fd, &byte, sizeof byte, MSG_NOSIGNAL) < 0 && !isUsual()) return "sending to other ranks";
  if (::recv(fd, &byte, sizeof byte, 0) < 0 && !isUsual()) return "receiving from other ranks";
  return nullptr;
}

Bound listenOnAddress(const Address& address, bool any, std::uint16_t port) {
  Bound bound;
  const auto fail = [&bound](const char* what) {
    bound.errnum = errno;
    bound.what = what;
    bound.socket = Socket();
    return std::move(bound);
  };
  bound.socket = Socket(::socket(address.isV6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!bound.socket.valid()) return fail("making a listening socket");
  const int fd = bound.socket.fd();
  setOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.isV6) setOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, any ? 0 : 1);
  sockaddr_storage storage;
  socklen_t size = address.fill(port, storage);
  auto* const name = reinterpret_cast<sockaddr*>(&storage);
  if (::bind(fd, name, size) != 0) return fail("listening");
  if (const char* const refused = refusedOf(fd); refused != nullptr) return fail(refused);
  if (::listen(fd, SOMAXCONN) != 0) return fail("listening");
  size = sizeof storage;
  if (::getsockname(fd, name, &size) != 0) return fail("asking for the port listened on");
  bound.port = ntohs(address.isV6 ? reinterpret_cast<sockaddr_in6*>(name)->sin6_port
                                  : reinterpret_cast<sockaddr_in*>(name)->sin_port);
  return bound;
}

// Both kinds of address where the kernel has IPv6.
Bound listenAt(const LocalAddresses& local, std::uint16_t port) {
  if (!local.any) return listenOnAddress(local.reachable.front(), false, port);
  Bound both = listenOnAddress(Address{.isV6 = true}, true, port);
  if (both.errnum == 0 || both.errnum == EADDRINUSE) return both;
  Bound v4 = listenOnAddress(Address{}, true, port);
  return v4.errnum == 0 ? std::move(v4) : std::move(both);
}

// One question to the resolver, which a thread of its own waits for: the resolver knows no deadline. What comes after
// ours is thrown away.
struct Lookup {
  std::mutex mutex;
  std::condition_variable changed;
  bool isDone = false;
  std::string why;  // of a failure
  std::vector<Address> found;

  void run(const std::string& host) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
    const int errnum = errno;
    const std::lock_guard lock(mutex);
    if (code != 0) why = code == EAI_SYSTEM ? std::strerror(errnum) : ::gai_strerror(code);
    for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
      const auto address = network::addressOf(each->ai_addr);
      if (address.has_value() && !address->isLinkLocalV6()) found.push_back(*address);
    }
    if (list != nullptr) ::freeaddrinfo(list);
    isDone = true;
    changed.notify_all();
  }
};

}  // namespace

Socket::Socket(int fd) : fd_(clearOfStandard(fd)) {
  if (fd_ < 0) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.open.insert(fd_);
}

void Socket::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  // A forked child's copies were closed by the fork, and the numbers may be others' now.
  if (all.open.erase(fd) != 0) ::close(fd);
}

namespace {

// Where they cannot be listed, ranks of this process alone find it.
std::vector<Place> ownPlaces() {
  std::vector<Place> own;
  (void)network::ownPlaces(&own);
  return own;
}

}  // namespace

LocalAddresses allAddresses() {
  std::string none;
  return {.any = true, .reachable = network::choosePlaces(ownPlaces(), "", &none)};
}

Result<LocalAddresses> localAddresses() {
  const std::string wanted = settings::text("KOLO_INTERFACE");
  if (wanted.empty()) return allAddresses();
  std::string problem;
  LocalAddresses result{.any = false, .reachable = network::choosePlaces(ownPlaces(), wanted, &problem)};
  // An address that is not listed may be one all the same: of 127.0.0.0/8, for instance.
  if (const auto literal = network::parseAddress(wanted); literal.has_value() && result.reachable.empty())
    result.reachable.push_back({*literal});
  if (result.reachable.empty()) {
    return error(koloInvalidEnvironment,
                 "environment variable KOLO_INTERFACE is \"{}\", expected an address or the name of an interface that "
                 "is up and has one: {}",
                 wanted, problem);
  }
  result.reachable.resize(1);
  return result;
}

Result<std::vector<Address>> lookUp(const std::string& host, Clock::time_point deadline) {
  if (const auto literal = network::parseAddress(host)) return std::vector<Address>{*literal};
  const auto lookup = std::make_shared<Lookup>();
  try {
    startQuietly([lookup, host] { lookup->run(host); }).detach();
  } catch (const std::system_error&) {
    lookup->run(host);  // no threads for this process: the resolver takes as long as it takes
  }
  std::unique_lock lock(lookup->mutex);
  if (!lookup->changed.wait_until(lock, deadline, [&] { return lookup->isDone; })) {
    return error(koloUnreachable, "the host name \"{}\" does not resolve: the resolver has not answered in time", host);
  }
  if (!lookup->why.empty())
    return error(koloUnreachable, "the host name \"{}\" does not resolve: {}", host, lookup->why);
  if (lookup->found.empty()) return error(koloUnreachable, "the host name \"{}\" has no usable address", host);
  return lookup->found;
}

Result<std::vector<Address>> resolve(const std::string& host, Clock::time_point deadline) {
  Status why;
  for (Clock::duration pause = kFirstLookupPause;; pause = std::min<Clock::duration>(pause * 2, kLongestLookupPause)) {
    Result<std::vector<Address>> found = lookUp(host, deadline);
    if (found.ok()) return found;
    if (why.ok() || Clock::now() < deadline)
      why = found.status();  // the resolver's own word before that it gave none in time
    if (Clock::now() + pause >= deadline) return why;
    if (pause == kFirstLookupPause) log::warn("{}; it is asked for again", why.message());
    std::this_thread::sleep_for(pause);
  }
}

Result<Socket> listenOn(const LocalAddresses& local, std::uint16_t port, std::uint16_t& chosen) {
  const settings::Ports range = port == 0 ? settings::ports("KOLO_PORT_RANGE") : settings::Ports();
  // Where processes start together each begins at another port.
  Bound bound;
  for (int i = 0; i < (range.isAny() ? 1 : range.count()); ++i) {
    const int next = range.isAny() ? port : range.first + (::getpid() + i) % range.count();
    bound = listenAt(local, static_cast<std::uint16_t>(next));
    if (bound.errnum != EADDRINUSE) break;
  }
  if (bound.errnum == EADDRINUSE && !range.isAny()) {
    return error(koloSystemError, "all {} ports of KOLO_PORT_RANGE={} are in use on this host, expected a free one",
                 range.count(), settings::text("KOLO_PORT_RANGE"));
  }
  if (bound.errnum != 0) {
    const Address where = local.any ? Address{.isV6 = true} : local.reachable.front().address();
    return systemError(bound.errnum, fmt::format("{} on {}", bound.what, where.text(port)));
  }
  chosen = bound.port;
  return std::move(bound.socket);
}

Socket connectTo(const Address& address, std::uint16_t port, Clock::time_point deadline, int& errnum) {
  errnum = 0;
  Socket socket(::socket(address.isV6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    errnum = errno;
    return socket;
  }
  tune(socket.fd());
  sockaddr_storage storage;
  const socklen_t size = address.fill(port, storage);
  if (::connect(socket.fd(), reinterpret_cast<sockaddr*>(&storage), size) == 0) return socket;
  if (errno != EINPROGRESS) {
    errnum = errno;
    return Socket();
  }
  pollfd ready{socket.fd(), POLLOUT, 0};
  int count = 0;
  do {
    count = ::poll(&ready, 1, millisecondsUntil(deadline));
  } while (count < 0 && errno == EINTR);
  socklen_t length = sizeof errnum;
  if (count == 0) errnum = ETIMEDOUT;
  if (count < 0) errnum = errno;
  if (count > 0 && ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &errnum, &length) != 0) errnum = errno;
  return errnum == 0 ? std::move(socket) : Socket();
}

void tune(int fd) {
  setOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  network::limitSilence(fd, static_cast<int>(settings::integer("KOLO_SILENCE_MS")));
  setOption(fd, IPPROTO_TCP, TCP_MAXSEG, kSegmentBytes);  // counts before connecting, and then both ways
}

int millisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT32_MAX));
}

}  // namespace kolo::bootstrap
