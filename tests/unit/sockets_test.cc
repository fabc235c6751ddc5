// Sockets of this process alone, and strangers at a listening one.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "network/acceptor.h"
#include "network/talk.h"

using kolo::ofThisProcess;
using namespace kolo::network;
using namespace std::chrono_literals;

namespace {

std::pair<Socket, Socket> connected() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {Socket(ends[0]), Socket(ends[1])};
}

bool isOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

// What a stranger hears until its connection ends; "open" if it does not.
std::string heardBy(const Socket& stranger) {
  char words[64];
  const ssize_t got = ::recv(stranger.fd(), words, sizeof words, 0);
  if (got < 0) return errno == EAGAIN ? "open" : "failed";
  return {words, static_cast<std::size_t>(got)};
}

// Strangers that name something by their first byte, and are proven by the second.
struct Host : Acceptor::Owner {
  struct Guest : Stranger {
    Guest(Host& at, Socket socket) : host(at), talk(std::move(socket)) {}
    int fd() const override { return talk.fd(); }
    Outcome advance() override {
      ++host.asked;
      if (talk.hear(2)) return Outcome::kProven;
      return talk.failed() != 0 ? Outcome::kOver : Outcome::kGoesOn;
    }
    bool isExpected() const override { return talk.heardText().size() == 1; }
    void enter() override { ++host.entered; }
    Host& host;
    Talk talk;
  };
  std::unique_ptr<Stranger> welcome(Socket socket) override {
    return std::make_unique<Guest>(*this, std::move(socket));
  }
  std::string refusal(int) override { return "no room"; }
  void hasRefused(int) override {}
  Socket come() {
    auto [here, there] = connected();
    acceptor.add(std::move(here));
    return std::move(there);
  }

  // From an address of this host's, by the listening socket.
  Socket comeFrom(unsigned char last) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage name{};
    socklen_t bytes = Address{.bytes = {127, 0, 1, last}}.fill(0, name);
    REQUIRE(::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&name), bytes) == 0);
    bytes = Address{.bytes = {127, 0, 0, 1}}.fill(port, name);
    REQUIRE(::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&name), bytes) == 0);
    REQUIRE(::fcntl(socket.fd(), F_SETFL, O_NONBLOCK) == 0);
    return socket;
  }
  void listen() {
    const Address loopback{.bytes = {127, 0, 0, 1}};
    Listening made = listenAt(&loopback, {});
    REQUIRE(made.errnum == 0);
    port = made.port;
    REQUIRE(acceptor.open(std::move(made.socket)) == 0);
  }

  std::uint16_t port = 0;
  int asked = 0, entered = 0;
  Acceptor acceptor{*this, 10s};
};

}  // namespace

TEST_CASE("a forked child has none of its parent's sockets, and keeps its own of the same number", "[network]") {
  auto [one, other] = connected();
  const int number = one.fd();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool isGone = !isOpen(number) && !isOpen(other.fd());
    Socket own(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, number));
    const bool isSame = own.fd() == number;
    one.close();  // the parent's
    ::_exit(isGone && isSame && isOpen(number) ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(isOpen(number));
}

TEST_CASE("a forked child has its own one of each kind of object", "[network]") {
  struct Kind {
    int value = 1;
  };
  Kind& mine = ofThisProcess<Kind>();
  mine.value = 2;
  CHECK(&ofThisProcess<Kind>() == &mine);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(&ofThisProcess<Kind>() != &mine && ofThisProcess<Kind>().value == 1 ? 0 : 1);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("for want of descriptors the oldest stranger that names nothing gives way, and is told so", "[network]") {
  Host host;
  host.listen();
  const auto come = [&] {
    Socket one = host.comeFrom(1);
    host.acceptor.serve();
    return one;
  };
  const Socket named = come();
  REQUIRE(::send(named.fd(), "x", 1, 0) == 1);
  host.acceptor.serve();
  const Socket silent = come(), second = come();
  CHECK(host.acceptor.dropUnexpected(EMFILE));
  CHECK(heardBy(silent) == "no room");
  CHECK(heardBy(silent).empty());
  CHECK(heardBy(second) == "open");
  CHECK(host.acceptor.dropUnexpected(EMFILE));
  CHECK_FALSE(host.acceptor.dropUnexpected(EMFILE));
  CHECK(heardBy(named) == "open");
}

TEST_CASE("a stranger that has the last descriptor keeps it while nobody else comes", "[network]") {
  Host host;
  host.listen();
  const Socket last = host.comeFrom(1);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int firstFree = ::dup(STDIN_FILENO);
  ::close(firstFree);
  rlimit one = before;
  one.rlim_cur = static_cast<rlim_t>(firstFree) + 1;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &one) == 0);
  for (int i = 0; i < 3; ++i) host.acceptor.serve();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(heardBy(last) == "open");
}

namespace {

void speakAll(const std::vector<Socket>& all) {
  for (const Socket& each : all) REQUIRE(::send(each.fd(), "x", 1, MSG_NOSIGNAL) == 1);
}

// Descriptors for as many as may have places, and some more.
class ManyFiles {
 public:
  ManyFiles() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit wanted = before_;
    wanted.rlim_cur = std::min<rlim_t>(4096, before_.rlim_max);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &wanted) == 0);
    REQUIRE(wanted.rlim_cur >= 2048);
  }
  ~ManyFiles() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};
constexpr std::size_t kPlacesThere = 256;

// 256 strangers of so many sources have named something when 40 more come, which wait or are turned away. False: it
// took longer than the places are theirs.
bool keepTheirPlaces(int sources) {
  Host host;
  host.listen();
  const auto begun = Clock::now();
  std::vector<Socket> strangers, more;
  const auto come = [&](std::vector<Socket>& to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      to.push_back(host.comeFrom(static_cast<unsigned char>(1 + i % static_cast<std::size_t>(sources))));
    speakAll(to);
    for (int i = 0; i < 40; ++i) host.acceptor.serve();
  };
  come(strangers, kPlacesThere);
  come(more, 40);
  const bool wait = host.acceptor.isPaused();
  const bool isOpen =
      std::all_of(strangers.begin(), strangers.end(), [](const auto& s) { return heardBy(s) == "open"; });
  if (Clock::now() - begun > 190ms) return false;
  CHECK(isOpen);
  CHECK(wait == (sources > 1));
  speakAll(strangers);  // who prove themselves make room for those that wait
  if (wait) speakAll(more);
  const int expected = wait ? 296 : 256;
  for (const auto end = Clock::now() + 20s; host.entered < expected && Clock::now() < end;) host.acceptor.serve();
  CHECK(host.entered == expected);
  return true;
}

}  // namespace

TEST_CASE("newcomers displace nobody of many sources, nor of their own, who has had no time to prove itself",
          "[network]") {
  const ManyFiles files;
  const int sources = GENERATE(1, 200);
  const auto begun = Clock::now();
  while (!keepTheirPlaces(sources) && Clock::now() - begun < 60s) {
  }
  CHECK_WITHIN(60s, begun);
}

TEST_CASE("connections of this process itself take no places", "[network]") {
  const ManyFiles files;
  Host host;
  std::vector<Socket> own;
  for (std::size_t i = 0; i < kPlacesThere + 50; ++i) own.push_back(host.come());
  speakAll(own);
  for (int i = 0; i < 40; ++i) host.acceptor.serve();
  for (const Socket& each : own) REQUIRE(heardBy(each) == "open");
  CHECK_FALSE(host.acceptor.dropUnexpected(EMFILE));
}

TEST_CASE("few strangers are answered at a time", "[network]") {
  Host host;
  std::vector<Socket> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(host.come());
  speakAll(strangers);
  host.asked = 0;
  host.acceptor.serve();
  CHECK(host.asked > 0);
  CHECK(host.asked <= 20);
  speakAll(strangers);
  for (int i = 0; i < 20; ++i) host.acceptor.serve();
  CHECK(host.entered == 100);
}

TEST_CASE("strangers enter when they are proven, and are forgotten when they end", "[network]") {
  Host host;
  Socket gone = host.come();
  const Socket proven = host.come();
  gone.close();
  REQUIRE(::send(proven.fd(), "xy", 2, 0) == 2);
  host.acceptor.serve();
  CHECK(host.entered == 1);
  CHECK(host.acceptor.next() == Clock::time_point::max());  // nobody is left
}

TEST_CASE("what is not heard by the deadline is an error of its own", "[network]") {
  auto [here, there] = connected();
  Talk talk(std::move(here));
  REQUIRE(::send(there.fd(), "ab", 2, 0) == 2);
  CHECK_FALSE(talk.hearBy(3, Clock::now() + 20ms));
  CHECK(talk.failed() == ETIMEDOUT);
  CHECK(talk.heardText() == "ab");
}
