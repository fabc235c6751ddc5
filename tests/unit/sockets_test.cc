// Sockets of this process alone, and strangers at a listening one.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

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

  int entered = 0;
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
  const Socket named = host.come();
  REQUIRE(::send(named.fd(), "x", 1, 0) == 1);
  host.acceptor.serve();
  const Socket silent = host.come(), second = host.come();
  CHECK(host.acceptor.dropUnexpected(EMFILE));
  CHECK(heardBy(silent) == "no room");
  CHECK(heardBy(silent).empty());
  CHECK(heardBy(second) == "open");
  CHECK(host.acceptor.dropUnexpected(EMFILE));
  CHECK_FALSE(host.acceptor.dropUnexpected(EMFILE));
  CHECK(heardBy(named) == "open");
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
