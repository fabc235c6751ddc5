#include "bootstrap/socket.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

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

void setOption(int fd, int level, int name, int value) {
  // Failure costs speed or early notice only, never correctness.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

// What a filter refuses to this process of what a hub does with its connections; nullptr: nothing, else errno says why.
// It is tried on a socket that nothing is done with, so it takes nobody's connection and moves no byte: each call
// fails, in a way that is known. Any other answer is a filter's, and would come to each connection.
const char* refused() {
  const Socket trial(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!trial.valid()) return nullptr;  // said where it is needed
  if (::accept4(trial.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC) < 0 && errno != EINVAL) {
    return "accepting connections";
  }
  char byte = 0;
  const auto isUsual = [] { return errno == ENOTCONN || errno == EPIPE || errno == EINVAL || errno == EAGAIN; };
  if (::send(trial.fd(), &byte, sizeof byte, MSG_NOSIGNAL) < 0 && !isUsual()) return "sending to other ranks";
  if (::recv(trial.fd(), &byte, sizeof byte, 0) < 0 && !isUsual()) return "receiving from other ranks";
  return nullptr;
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

// end: getsockname or getpeername.
std::optional<Address> addressAt(int fd, int (*end)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  (void)end(fd, reinterpret_cast<sockaddr*>(&storage), &bytes);
  return network::addressOf(reinterpret_cast<const sockaddr*>(&storage));
}

std::optional<Address> unlessLoopback(std::optional<Address> address) {
  return address.has_value() && !address->isLoopback() ? address : std::nullopt;
}

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

LocalAddresses onlyAt(const Address& address) {
  LocalAddresses result{.any = false, .reachable = {}};
  result.reachable.push_back({address});
  return result;
}

std::optional<Address> loopbackHere() {
  const std::vector<Place> own = ownPlaces();
  const auto found = std::find_if(own.begin(), own.end(), [](const Place& place) { return place.isLoopback(); });
  return found != own.end() ? std::optional<Address>(found->address()) : std::nullopt;
}

Result<LocalAddresses> localAddresses(const std::optional<Address>& only) {
  const std::string wanted = settings::text("KOLO_INTERFACE");
  if (wanted.empty() && only.has_value()) return onlyAt(*only);
  if (wanted.empty() || wanted == "any") return allAddresses();
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
  const settings::Ports ports =
      port == 0 ? settings::ports("KOLO_PORT_RANGE") : settings::Ports{.first = port, .last = port};
  const Address where = local.any ? Address{.isV6 = true} : local.reachable.front().address();
  const char* const what = refused();
  const int errnum = errno;
  if (what != nullptr) return systemError(errnum, fmt::format("{} on {}", what, where.text(port)));
  network::Listening made = network::listenAt(local.any ? nullptr : &where, ports);
  if (made.errnum == EADDRINUSE && port == 0 && !ports.isAny()) {
    return error(koloSystemError, "all {} ports of KOLO_PORT_RANGE={} are in use on this host, expected a free one",
                 ports.count(), settings::text("KOLO_PORT_RANGE"));
  }
  if (made.errnum != 0) return systemError(made.errnum, fmt::format("{} on {}", made.what, where.text(port)));
  chosen = made.port;
  return std::move(made.socket);
}

Socket connectTo(const Address& address, std::uint16_t port, Clock::time_point deadline, int& errnum) {
  errnum = 0;
  Socket socket = network::socketForDial(address.isV6 ? AF_INET6 : AF_INET);
  if (!socket.valid()) {
    errnum = errno;
    return socket;
  }
  tune(socket.fd());
  errnum = network::startConnecting(socket, address, port);
  if (errnum == 0) errnum = network::await(socket.fd(), POLLOUT, deadline) ? network::connected(socket) : ETIMEDOUT;
  return errnum == 0 ? std::move(socket) : Socket();
}

std::string peerOf(int fd) {
  const std::optional<Address> address = addressAt(fd, ::getpeername);
  return address.has_value() ? address->text() : "this host";
}

std::optional<Address> ownAddressOf(int fd) { return unlessLoopback(addressAt(fd, ::getsockname)); }
std::optional<Address> peerAddressOf(int fd) { return unlessLoopback(addressAt(fd, ::getpeername)); }

void tune(int fd) {
  setOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  network::limitSilence(fd, static_cast<int>(settings::integer("KOLO_SILENCE_MS")));
  setOption(fd, IPPROTO_TCP, TCP_MAXSEG, kSegmentBytes);  // counts before connecting, and then both ways
}

}  // namespace kolo::bootstrap
