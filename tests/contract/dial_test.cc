// That dialling ends at the very peer or nowhere, whatever listens where, and that a listener serves the ranks of its
// communicators and nobody else, whoever connects.
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../../transports/connect/wire.h"
#include "suite.h"
#include "support/deadline.h"

namespace kolo::contract::dialling {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct Socket {
  int fd;
  explicit Socket(int number) : fd(number) {}
  Socket(Socket&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  ~Socket() {
    if (fd >= 0) ::close(fd);
  }
};

sockaddr_in at(const char* address, std::uint16_t port) {
  sockaddr_storage all;
  network::parseAddress(address).value_or(network::Address()).fill(port, all);  // no assertion: other threads call this
  return reinterpret_cast<const sockaddr_in&>(all);
}

void setPatience(int fd, int seconds) {
  const timeval patience{seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

Socket connectTo(std::uint16_t port, const char* address = "127.0.0.1") {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to = at(address, port);
  REQUIRE(::connect(socket.fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  setPatience(socket.fd, 15);
  return socket;
}

template <class Message>
bool receive(const Socket& socket, Message* message) {
  return TEMP_FAILURE_RETRY(recv(socket.fd, message, sizeof *message, MSG_WAITALL)) == sizeof *message;
}
template <class Message>
void say(const Socket& socket, const Message& message) {
  (void)!send(socket.fd, &message, sizeof message, MSG_NOSIGNAL);
}

connect::Key keyOf(unsigned char secret) {
  unsigned char communicator[32];
  std::memset(communicator, secret, sizeof communicator);
  return connect::deriveKey(communicator, "kolo transport tcp");
}

connect::Address addressOf(const koloTransportBlob& blob) {
  connect::Address address;
  REQUIRE(connect::fromBlob(blob, &address));
  return address;
}

// The same address at another port and other places, as the communicator's ranks could make it.
koloTransportBlob moved(const koloTransportBlob& blob, std::uint16_t port, const std::vector<const char*>& places) {
  connect::Address address = addressOf(blob);
  address.port = port;
  address.flags |= connect::Address::kOrdered;
  std::vector<network::Place> all;
  for (const char* const text : places) {
    const auto address = network::parseAddress(text);
    REQUIRE(address.has_value());
    all.push_back({*address});
  }
  network::packPlaces(all, address.places);
  connect::prove(address, keyOf(1));
  koloTransportBlob made{};
  connect::toBlob(address, &made);
  return made;
}

connect::Hello helloTo(const connect::Address& address) {
  connect::Hello hello{};
  connect::setMagic(hello);
  hello.version = connect::kVersion;
  hello.rails = 1;
  hello.fromRank = 0;
  hello.toRank = address.rank;
  std::memcpy(hello.to, address.device, sizeof hello.to);
  return hello;
}

// Something that listens at a port of a loopback address, and does with each connection what a function says, in a
// thread of its own.
class Trap {
 public:
  using Serve = std::function<void(Socket, const std::atomic<bool>& isOver)>;
  Trap(const char* address, std::uint16_t port, Serve serve) : serve_(std::move(serve)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in own = at(address, port);
    socklen_t bytes = sizeof own;
    REQUIRE(bind(listener_, reinterpret_cast<const sockaddr*>(&own), bytes) == 0);
    REQUIRE(listen(listener_, 16) == 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &bytes);
    port_ = ntohs(own.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Trap() {
    isOver_ = true;
    thread_.join();
    ::close(listener_);
  }
  std::uint16_t port() const { return port_; }

 private:
  void run() {
    std::vector<std::thread> threads;
    for (pollfd one{listener_, POLLIN, 0}; !isOver_;) {
      if (poll(&one, 1, 10) <= 0) continue;
      threads.emplace_back([this, fd = accept(listener_, nullptr, nullptr)] {
        setPatience(fd, 1);
        serve_(Socket(fd), isOver_);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Serve serve_;
  int listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> isOver_{false};
  std::thread thread_;
};

// Passes bytes between a client and a port, until one side closes. Once more than `most` bytes come at a time, nothing
// passes any more in that direction, as on a way whose packets may not be large: what is lost is sent again and again.
void relay(Socket client, std::uint16_t port, std::size_t most, const std::atomic<bool>& isOver) {
  const Socket server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to = at("127.0.0.1", port);
  if (::connect(server.fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) return;
  pollfd both[2] = {{client.fd, POLLIN, 0}, {server.fd, POLLIN, 0}};
  bool isStuck[2] = {false, false};
  while (!isOver) {
    if (poll(both, 2, 10) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (both[i].revents == 0) continue;
      std::vector<unsigned char> bytes(1 << 20);
      const ssize_t got = recv(both[i].fd, bytes.data(), bytes.size(), 0);
      if (got <= 0) return;
      isStuck[i] = isStuck[i] || static_cast<std::size_t>(got) > most;
      if (!isStuck[i]) (void)!send(both[1 - i].fd, bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL);
    }
  }
}

// What the sanitizers look at when code runs for the first time needs file descriptors: everything has run once before
// there are none.
void runOnce(Peer& peer) {
  Rank other;
  REQUIRE_OK(other.open("tcp", {}));
  accepted(peer.open("tcp", {.rank = 1}));
  linked(other, peer.address(), accepted(peer.registerMemory(kPage)).blob);
  const std::uint64_t link = accepted(peer.link(other.address(), other.descriptor(registered(other, kPage)))).value;
  peer.value(Op::kUnlink, link);
  peer.value(Op::kClose);
}

struct Scene : Pair {
  explicit Scene(const HostOptions& options = {}) : Pair("tcp", options) {
    memory = accepted(peer.registerMemory(kBytes)).blob;
    port = addressOf(peer.address()).port;
  }
  Result<std::size_t> link() { return rank.openLink(peer.address(), memory); }
  koloTransportBlob memory;
  std::uint16_t port;
};

}  // namespace

TEST_CASE("whatever listens in the peer's place is not taken for the peer", "[connect]") {
  using Over = std::atomic<bool>;
  constexpr const char* kSilent = "says nothing";
  const std::pair<const char*, Trap::Serve> cases[] = {
      {kSilent,
       [](Socket, const Over& isOver) {
         while (!isOver) std::this_thread::sleep_for(5ms);
       }},
      {"closed by who listens there", [](Socket, const Over&) {}},
      {"is not Kolo",
       [](Socket client, const Over&) { say(client, "220 mail.example ESMTP, and some more text than that"); }},
      {"speaks version 77 of this transport's protocol, this one version 3",
       [](Socket client, const Over&) {
         connect::Hello hello;
         connect::Challenge challenge{};
         connect::setMagic(challenge);
         challenge.version = 77;
         if (receive(client, &hello)) say(client, challenge);
         char rest;
         (void)!TEMP_FAILURE_RETRY(recv(client.fd, &rest, 1, 0));
       }},
      {"another process of Kolo",
       [](Socket client, const Over&) {
         connect::Hello hello;
         connect::Challenge challenge{};
         connect::setMagic(challenge);
         challenge.version = connect::kVersion;
         challenge.status = connect::Status::kUnknown;
         if (receive(client, &hello)) say(client, challenge);
         char rest;
         (void)!TEMP_FAILURE_RETRY(recv(client.fd, &rest, 1, 0));
       }},
      {"not of this communicator",
       [](Socket client, const Over&) {
         connect::Hello hello;
         connect::Challenge challenge{};
         connect::setMagic(challenge);
         challenge.version = connect::kVersion;
         if (!receive(client, &hello)) return;
         say(client, challenge);
         connect::Reply reply{};
         connect::setMagic(reply);
         std::vector<unsigned char> bytes(1 << 16);
         (void)!TEMP_FAILURE_RETRY(recv(client.fd, bytes.data(), bytes.size(), 0));
         say(client, reply);
         (void)!TEMP_FAILURE_RETRY(recv(client.fd, bytes.data(), bytes.size(), MSG_WAITALL));
       }},
  };
  for (const auto& [expected, serve] : cases) {
    DYNAMIC_SECTION(expected) {
      // Only silence is told by the time that passes; the others say something, on a busy machine perhaps late.
      const bool isSilent = expected == kSilent;
      Scene scene({.timeoutMs = isSilent ? 2000 : 20000});
      const Trap trap("127.0.0.1", 0, serve);
      const auto begun = Clock::now();
      const auto alone = scene.rank.openLink(moved(scene.peer.address(), trap.port(), {"127.0.0.1"}), scene.memory);
      INFO(alone.status().message());
      CHECK(alone.status().code() == koloUnreachable);
      CHECK(contains(alone.status().message(), expected));
      CHECK(contains(alone.status().message(), "127.0.0.1"));
      CHECK_WITHIN((isSilent ? 8s : 30s), begun);
      // The same in the first place, and a way to the peer in the second one.
      const Trap good("127.0.0.2", trap.port(), [&](Socket client, const Over& isOver) {
        relay(std::move(client), scene.port, SIZE_MAX, isOver);
      });
      const auto link =
          scene.rank.openLink(moved(scene.peer.address(), trap.port(), {"127.0.0.1", "127.0.0.2"}), scene.memory);
      CHECK(link.status().message() == "");
    }
  }
}

TEST_CASE("a way that large packets do not pass is not taken", "[connect]") {
  Scene scene({.timeoutMs = 3000});
  const auto passing = [&](std::size_t most) {
    return [&scene, most](Socket client, const std::atomic<bool>& isOver) {
      relay(std::move(client), scene.port, most, isOver);
    };
  };
  const Trap narrow("127.0.0.1", 0, passing(1400));
  const auto alone = scene.rank.openLink(moved(scene.peer.address(), narrow.port(), {"127.0.0.1"}), scene.memory);
  CHECK(alone.status().code() == koloUnreachable);
  INFO(alone.status().message());
  CHECK(contains(alone.status().message(), "MTU"));
  const Trap wide("127.0.0.2", narrow.port(), passing(SIZE_MAX));
  const auto link =
      scene.rank.openLink(moved(scene.peer.address(), narrow.port(), {"127.0.0.1", "127.0.0.2"}), scene.memory);
  CHECK(link.status().message() == "");
}

TEST_CASE("all addresses that were tried are in the explanation", "[connect]") {
  Scene scene({.timeoutMs = 2000});
  std::uint16_t port = 0;
  {
    port = Trap("127.0.0.1", 0, [](Socket, const std::atomic<bool>&) {}).port();
  }  // nobody listens there any more
  const auto link =
      scene.rank.openLink(moved(scene.peer.address(), port, {"127.0.0.1", "127.0.0.3", "::1"}), scene.memory);
  CHECK(link.status().code() == koloUnreachable);
  for (const char* const part :
       {"rank 1", "127.0.0.1: Connection refused", "127.0.0.3: Connection refused", "::1: Connection refused"}) {
    INFO(link.status().message());
    CHECK(contains(link.status().message(), part));
  }
}

TEST_CASE("the peer is reached by IPv6 too", "[connect]") {
  Scene scene;
  const auto link = scene.rank.openLink(moved(scene.peer.address(), scene.port, {"::1"}), scene.memory);
  if (contains(link.status().message(), "Cannot assign requested address")) return;  // a machine without IPv6
  CHECK(link.status().message() == "");
}

TEST_CASE("an address blob of another version is refused, naming both", "[connect]") {
  Scene scene;
  connect::Address address = addressOf(scene.peer.address());
  address.version = 9;
  koloTransportBlob blob{};
  connect::toBlob(address, &blob);
  const auto link = scene.rank.openLink(blob, scene.memory);
  CHECK(contains(link.status().message(), "speaks version 9 of this transport's protocol, this one version 3"));
}

TEST_CASE("a client gets no further than it can prove", "[connect]") {
  Scene scene;
  const connect::Address address = addressOf(scene.peer.address());
  const network::KeyExchange right(keyOf(1).bytes), wrong(keyOf(2).bytes);
  connect::Claim claim{};
  const auto tryWith = [&](const network::KeyExchange& exchange, bool isReplay) {
    const Socket socket = connectTo(scene.port);
    connect::Hello hello = helloTo(address);
    hello.share = exchange.share();
    say(socket, hello);
    connect::Challenge challenge;
    REQUIRE(receive(socket, &challenge));
    CHECK(challenge.status == connect::Status::kGoOn);
    const connect::Key key = connect::connectionKey(exchange, challenge.share, hello, challenge);
    if (!isReplay) connect::prove(claim, key);
    say(socket, claim);
    connect::Reply reply;
    return receive(socket, &reply) && connect::isProven(reply, key);
  };
  CHECK(tryWith(right, false));
  CHECK_FALSE(tryWith(right, true));  // what has been heard of the first connection
  CHECK_FALSE(tryWith(wrong, false));
}

// A rank does not dial a peer that is connecting to it. One that has given up must not keep it from that.
TEST_CASE("a caller that goes before its connections are complete is not waited for", "[connect]") {
  for (const bool waits : {true, false}) {
    DYNAMIC_SECTION((waits ? "after" : "before") << " it is told that the first one is taken") {
      Scene scene({.timeoutMs = 8000});
      const connect::Address address = addressOf(scene.peer.address());
      const network::KeyExchange exchange(keyOf(1).bytes);
      {
        const Socket socket = connectTo(scene.port);
        connect::Hello hello = helloTo(address);
        hello.rails = 2;
        std::memcpy(hello.from, addressOf(scene.rank.address()).device, sizeof hello.from);
        hello.share = exchange.share();
        say(socket, hello);
        connect::Challenge challenge;
        REQUIRE(receive(socket, &challenge));
        const connect::Key key = connect::connectionKey(exchange, challenge.share, hello, challenge);
        connect::Claim claim{};
        connect::prove(claim, key);
        say(socket, claim);
        connect::Reply reply;
        REQUIRE(receive(socket, &reply));
        std::vector<unsigned char> filling(reply.filling);
        (void)!TEMP_FAILURE_RETRY(recv(socket.fd, filling.data(), filling.size(), MSG_WAITALL));
        connect::Commit commit{};
        connect::prove(commit, key);
        say(socket, commit);
        connect::Verdict verdict{};
        if (waits) REQUIRE(receive(socket, &verdict));
        CHECK(verdict.decision == connect::Decision::kTaken);
      }
      accepted(scene.peer.link(scene.rank.address(), scene.rank.descriptor(registered(scene.rank, kPage))));
    }
  }
}

TEST_CASE("a listener tells its version, and whom it does not know", "[connect]") {
  Scene scene;
  connect::Hello hello = helloTo(addressOf(scene.peer.address()));
  connect::Challenge challenge;
  hello.version = 5;
  const Socket newer = connectTo(scene.port);
  say(newer, hello);
  REQUIRE(receive(newer, &challenge));
  CHECK(challenge.version == connect::kVersion);
  hello.version = connect::kVersion;
  hello.to[0] ^= 1;
  const Socket other = connectTo(scene.port);
  say(other, hello);
  REQUIRE(receive(other, &challenge));
  CHECK(challenge.status == connect::Status::kUnknown);
  char rest;
  CHECK(TEMP_FAILURE_RETRY(recv(other.fd, &rest, 1, 0)) == 0);
}

TEST_CASE("silent, babbling and numerous clients do not keep a rank from being dialled", "[connect]") {
  Scene scene;
  const std::uint64_t files = scene.peer.value(Op::kOpenFiles);
  std::vector<Socket> strangers;
  const connect::Hello hello = helloTo(addressOf(scene.peer.address()));
  for (std::size_t i = 0; i < 600; ++i) {  // more than it serves at a time
    strangers.push_back(connectTo(scene.port));
    const std::vector<char> garbage(i * 7 % 2000 + 1, static_cast<char>(i));
    if (i % 3 == 1) (void)!send(strangers.back().fd, garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (i % 3 == 2)
      (void)!send(strangers.back().fd, &hello, i % sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT);  // a part of one
  }
  const auto before = Clock::now();
  const auto link = scene.link();
  CHECK(link.status().message() == "");
  CHECK_WITHIN(10s, before);
  strangers.clear();
  while (scene.peer.value(Op::kOpenFiles) > files + 1 && Clock::now() - before < 20s) std::this_thread::sleep_for(20ms);
  CHECK(scene.peer.value(Op::kOpenFiles) == files + 1);
}

TEST_CASE("thousands of idle connections do not keep a rank from being dialled", "[connect]") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit many = before;
  many.rlim_cur = std::min<rlim_t>(6000, before.rlim_max);
  Scene scene({.timeoutMs = 3000});
  REQUIRE(setrlimit(RLIMIT_NOFILE, &many) == 0);
  std::vector<Socket> strangers;
  for (std::size_t i = 0; i < std::min<std::size_t>(4000, many.rlim_cur / 2); ++i) {
    strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const sockaddr_in to = at("127.0.0.1", scene.port);
    (void)::connect(strangers.back().fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  CHECK(scene.link().status().message() == "");
  strangers.clear();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("a process listens at a port of the range that the user gave, and says when there is none left",
          "[connect]") {
  const auto isFree = [](int port) {
    const Socket probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in own = at("127.0.0.1", static_cast<std::uint16_t>(port));
    return bind(probe.fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0;
  };
  // Two neighbours below the range from which the kernel chooses.
  int first = 20000 + getpid() % 10000;
  while (!isFree(first) || !isFree(first + 1)) first += 2;
  HostOptions options;
  const std::string range = std::to_string(first) + "-" + std::to_string(first + 1);
  std::snprintf(options.settings, sizeof options.settings, "KOLO_PORT_RANGE=%s", range.c_str());
  Scene scene(options);
  const std::uint16_t own = addressOf(scene.rank.address()).port;
  CHECK(std::min(own, scene.port) == first);
  CHECK(std::max(own, scene.port) == first + 1);
  CHECK(scene.link().status().message() == "");
  Peer third;
  options.rank = 1;
  const std::string why = third.open("tcp", options).message;
  INFO(why);
  CHECK(contains(why, "all 2 ports of KOLO_PORT_RANGE=" + range));
}

TEST_CASE("dialling a stopped process is an error when the time is over", "[connect]") {
  Scene scene({.timeoutMs = 2000});
  scene.peer.pause();
  const auto before = Clock::now();
  const auto link = scene.link();
  const auto took = Clock::now() - before;
  scene.peer.resume();
  CHECK(link.status().code() == koloUnreachable);
  CHECK(contains(link.status().message(), "is the process stopped?"));
  CHECK(took >= 1950ms);
  CHECK_TOOK(15s, took);
  CHECK(scene.link().status().message() == "");
}

TEST_CASE("a dialler without file descriptors is told the limit, and works when it has some again", "[connect]") {
  Rank rank;
  Peer peer;
  runOnce(peer);
  REQUIRE_OK(rank.open("tcp", {}));
  accepted(peer.open("tcp", {.rank = 1}));
  const std::size_t mine = registered(rank, kPage);
  peer.value(Op::kLimitFiles, 0);
  const Reply reply = peer.link(rank.address(), rank.descriptor(mine));
  CHECK(reply.code == koloSystemError);
  INFO(reply.message);
  CHECK(contains(reply.message, "limit of"));
  CHECK(contains(reply.message, "ulimit -n"));
  peer.value(Op::kLimitFiles, kNoLimit);
  accepted(peer.link(rank.address(), rank.descriptor(mine)));
}

TEST_CASE("a listener without file descriptors says so, and serves when it has some again", "[connect]") {
  Rank rank;
  Peer peer;
  runOnce(peer);
  REQUIRE_OK(rank.open("tcp", {}));
  accepted(peer.open("tcp", {.rank = 1}));
  const koloTransportBlob theirs = accepted(peer.registerMemory(kPage)).blob;
  peer.value(Op::kLimitFiles, 0);
  const auto link = rank.openLink(peer.address(), theirs);
  INFO(link.status().message());
  CHECK_FALSE(link.ok());
  CHECK(contains(link.status().message(), "the peer's process is at its limit of"));
  CHECK(contains(link.status().message(), "ulimit -n"));
  std::thread later([&] {
    std::this_thread::sleep_for(300ms);
    peer.value(Op::kLimitFiles, kNoLimit);
  });
  CHECK(rank.openLink(peer.address(), theirs).status().message() == "");  // it asks again
  later.join();
}

// It may be a rank: several addresses of one rank that are tried at once would push out each other, and none learn why.
TEST_CASE("a client that gives way to another one for want of file descriptors is told so", "[connect]") {
  Scene scene;
  scene.peer.value(Op::kLimitFiles, 1);
  const Socket first = connectTo(scene.port);
  const Socket second = connectTo(scene.port);
  connect::Challenge challenge{};
  REQUIRE(receive(first, &challenge));
  CHECK(challenge.status == connect::Status::kOutOfFiles);
  scene.peer.value(Op::kLimitFiles, kNoLimit);
}

TEST_CASE("no device is opened without file descriptors, and none are lost", "[connect]") {
  Peer peer;
  runOnce(peer);
  const std::uint64_t files = peer.value(Op::kOpenFiles);
  for (const std::uint64_t left : {0, 1, 2, 3}) {
    peer.value(Op::kLimitFiles, left);
    const Reply reply = peer.open("tcp");
    CHECK(reply.code == koloSystemError);
    INFO(reply.message);
    CHECK(contains(reply.message, "limit of"));
    peer.value(Op::kLimitFiles, kNoLimit);
    CHECK(peer.value(Op::kOpenFiles) == files);
  }
  accepted(peer.open("tcp"));
}

TEST_CASE("a device listens where its own settings say, whatever an earlier one of its process does", "[connect]") {
  Rank one, other;
  HostOptions narrow;
  std::snprintf(narrow.settings, sizeof narrow.settings, "KOLO_TCP_INTERFACES=127.0.0.1");
  REQUIRE_OK(one.open("tcp", narrow));
  REQUIRE_OK(other.open("tcp", {}));
  const sockaddr_in elsewhere = at("127.0.0.2", addressOf(one.address()).port);
  const Socket refused(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(::connect(refused.fd, reinterpret_cast<const sockaddr*>(&elsewhere), sizeof elsewhere) != 0);
  (void)connectTo(addressOf(one.address()).port, "127.0.0.1");
  (void)connectTo(addressOf(other.address()).port, "127.0.0.2");
}

TEST_CASE("the listener ends with the last device that needs it", "[connect][threads]") {
  const std::size_t files = openFiles();
  Rank one, other, alone;
  REQUIRE_OK(alone.open("tcp", {.ranks = 1}));
  alone.close();
  CHECK(openFiles() == files);
  REQUIRE_OK(one.open("tcp", {}));
  REQUIRE_OK(other.open("tcp", {}));
  const std::uint16_t port = addressOf(other.address()).port;
  CHECK(addressOf(one.address()).port == port);
  one.close();
  connectTo(port);
  other.close();
  CHECK(openFiles() == files);
}

TEST_CASE("dials that cross make one connection", "[connect][threads]") {
  for (int round = 0; round < 30; ++round) {
    Pair pair("tcp");
    const Reply theirs = accepted(pair.peer.registerMemory(kBytes));
    const std::size_t mine = registered(pair.rank, kBytes);
    const std::size_t files = openFiles();
    Request request{Op::kLink};
    request.address = pair.rank.address();
    request.descriptor = pair.rank.descriptor(mine);
    pair.peer.send(request);
    linked(pair.rank, pair.peer.address(), theirs.blob);
    accepted(pair.peer.receive());
    // The other dial's connection is closed in the listener's own time.
    for (int i = 0; i < 2000 && openFiles() > files + 1; ++i) std::this_thread::sleep_for(5ms);
    CHECK(openFiles() == files + 1);
  }
}

}  // namespace kolo::contract::dialling
