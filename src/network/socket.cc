#include "network/socket.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/descriptor.h"

namespace kolo::network {
namespace {

// All that are open, by their number. Both locks are held over fork, so that the child finds everything intact.
struct Registry {
  std::mutex descriptors;  // lockDescriptors(); for some calls that do not block
  std::mutex mutex;        // innermost of all
  std::vector<bool> open;
};

Registry& registry() {
  static auto* const instance = [] {
    static auto* const made = new Registry;  // never destroyed: threads may run while the process exits
    const auto before = [] {
      made->descriptors.lock();
      made->mutex.lock();
    };
    const auto after = [] {
      made->mutex.unlock();
      made->descriptors.unlock();
    };
    const auto inChild = [] {
      for (std::size_t fd = 0; fd < made->open.size(); ++fd) {
        if (made->open[fd]) ::close(static_cast<int>(fd));
      }
      made->open.clear();
      made->mutex.unlock();
      made->descriptors.unlock();
    };
    (void)pthread_atfork(before, after, inChild);
    return made;
  }();
  return *instance;
}

Listening listenAtPort(const Address& address, bool isOne, std::uint16_t port) {
  Listening made;
  const auto fail = [&made](const char* what) {
    made.errnum = errno;
    made.what = what;
    made.socket.close();
    return std::move(made);
  };
  made.socket = Socket(::socket(address.isV6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made.socket.valid()) return fail(made.what);
  const int fd = made.socket.fd();
  const int yes = 1, isV6Only = isOne ? 1 : 0;
  // A port that the user chose may have connections that were closed a moment ago.
  if (port != 0) (void)::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.isV6) (void)::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &isV6Only, sizeof isV6Only);
  sockaddr_storage storage;
  socklen_t bytes = address.fill(port, storage);
  auto* const name = reinterpret_cast<sockaddr*>(&storage);
  if (::bind(fd, name, bytes) != 0 || ::listen(fd, SOMAXCONN) != 0) return fail("listening");
  bytes = sizeof storage;
  if (::getsockname(fd, name, &bytes) != 0) return fail("asking for the port listened on");
  made.port = ntohs(reinterpret_cast<const sockaddr_in*>(name)->sin_port);  // both kinds have it at the same place
  return made;
}

}  // namespace

Socket::Socket(int fd) : fd_(clearOfStandard(fd)), generation_(forkGeneration()) {
  if (fd_ < 0) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto at = static_cast<std::size_t>(fd_);
  if (all.open.size() <= at) all.open.resize(at + 64);
  all.open[at] = true;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

void Socket::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0 || generation_ != forkGeneration()) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.open[static_cast<std::size_t>(fd)] = false;
  ::close(fd);
}

std::unique_lock<std::mutex> lockDescriptors() { return std::unique_lock(registry().descriptors); }

Socket socketForDial(int family, int type) {
  const std::unique_lock lock = lockDescriptors();
  return Socket(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int startConnecting(const Socket& socket, const Address& to, std::uint16_t port) {
  sockaddr_storage address;
  const socklen_t bytes = to.fill(port, address);
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return 0;
  return errno == EINPROGRESS || errno == EINTR ? 0 : errno;
}

int connected(const Socket& socket) {
  int errnum = 0;
  socklen_t bytes = sizeof errnum;
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &errnum, &bytes) == 0 ? errnum : errno;
}

bool hasEnded(int fd) {
  char byte;
  const ssize_t got = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

bool isOutOfFiles(int errnum) { return errnum == EMFILE || errnum == ENFILE; }

std::uint64_t fileLimit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

void raiseFileLimit(int ranks) {
  constexpr rlim_t kPerRank = 4;  // the hub's connection, a peer's file of memory, and connections of a transport
  rlimit limit{};
  const rlim_t needed = kPerRank * static_cast<rlim_t>(ranks);
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  (void)::setrlimit(RLIMIT_NOFILE, &limit);  // without it, what then runs out says so
}

int millisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT32_MAX));
}

bool await(int fd, short events, Clock::time_point deadline) {
  pollfd ready{fd, events, 0};
  int count = 0;
  do {
    count = ::poll(&ready, 1, millisecondsUntil(deadline));
  } while (count < 0 && errno == EINTR);
  return count > 0;
}

socklen_t fill(std::string_view name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;  // a first byte of zero makes the rest a name, and no path
  const std::size_t bytes = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
}

Listening listenAt(const Address* only, const settings::Ports& ports) {
  Listening made;
  // Where processes start together each begins at another port.
  for (int i = 0; i < ports.count(); ++i) {
    const auto port = static_cast<std::uint16_t>(ports.first + (::getpid() + i) % ports.count());
    made = listenAtPort(only != nullptr ? *only : Address{.isV6 = true}, only != nullptr, port);
    if (only == nullptr && made.errnum != 0 && made.errnum != EADDRINUSE && !isOutOfFiles(made.errnum)) {
      Listening v4 = listenAtPort(Address{}, false, port);
      if (v4.errnum == 0) made = std::move(v4);
    }
    if (made.errnum != EADDRINUSE) break;
  }
  return made;
}

}  // namespace kolo::network
