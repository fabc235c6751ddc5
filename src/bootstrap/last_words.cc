#include "bootstrap/last_words.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "bootstrap/greeting.h"
#include "network/acceptor.h"

namespace kolo::bootstrap {
namespace {

constexpr auto kClientTime = std::chrono::seconds(15);

// To those who prove that they are of the job.
class Teller final : private network::Acceptor::Owner {
 public:
  Teller(Socket listener, const Secret& secret, std::string words) : secret_(secret), words_(std::move(words)) {
    (void)acceptor_.open(std::move(listener));  // callers for whom there is no descriptor wait
  }
  // Serves until so many have been told, or the deadline.
  void run(int ranks, Clock::time_point deadline);

 private:
  class Client;
  std::unique_ptr<network::Stranger> welcome(Socket socket) override;
  std::string refusal(int) override { return {}; }
  void hasRefused(int) override {}

  const Secret& secret_;
  const std::string words_;
  int told_ = 0;
  network::Acceptor acceptor_{*this, kClientTime};
};

class Teller::Client final : public network::Stranger {
 public:
  Client(Teller& owner, Socket socket)
      : owner_(owner), greeting_(std::move(socket), [&owner](const Tag& tag, Reply&) {
          return tag == tagOf(owner.secret_) ? &owner.secret_ : nullptr;
        }) {}

  int fd() const override { return greeting_.fd(); }
  Outcome advance() override;
  bool isExpected() const override { return greeting_.stage() != Greeting::Stage::kSilent; }

 private:
  bool isTold() const { return greeting_.stage() == Greeting::Stage::kProven; }

  Teller& owner_;
  Greeting greeting_;
};

// A client that has been told is kept until it closes: a socket that is closed with bytes unread takes back what is on
// its way.
network::Stranger::Outcome Teller::Client::advance() {
  if (!isTold()) {
    if (greeting_.advance() == Greeting::Stage::kOver) return Outcome::kOver;
    if (!isTold()) return Outcome::kGoesOn;
    std::string sealed;
    greeting_.session().seal(owner_.words_, sealed);
    (void)::send(fd(), sealed.data(), sealed.size(), MSG_NOSIGNAL);
    (void)::shutdown(fd(), SHUT_WR);
  }
  for (char rest[256];;) {
    const ssize_t got = ::recv(fd(), rest, sizeof rest, 0);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Outcome::kGoesOn;
    ++owner_.told_;
    return Outcome::kOver;
  }
}

std::unique_ptr<network::Stranger> Teller::welcome(Socket socket) {
  return std::make_unique<Client>(*this, std::move(socket));
}

void Teller::run(int ranks, Clock::time_point deadline) {
  while (told_ < ranks && Clock::now() < deadline) {
    std::vector<pollfd> polls;
    acceptor_.addTo(polls);
    (void)::poll(polls.data(), polls.size(), millisecondsUntil(std::min(deadline, acceptor_.next())));
    acceptor_.serve();
  }
}

}  // namespace

Result<LastWords> LastWords::listen(const Secret& secret, std::uint16_t port, const std::optional<Address>& only) {
  // A wrong KOLO_INTERFACE may be what there is to tell.
  const Result<LocalAddresses> wanted = localAddresses(only);
  const LocalAddresses local = wanted.ok() ? wanted.value() : only.has_value() ? onlyAt(*only) : allAddresses();
  IdContents id = contentsOfId(secret, local, port != 0);
  KOLO_ASSIGN(Socket socket, listenOn(local, port, id.port));
  return LastWords(std::move(socket), std::move(id));
}

void LastWords::tell(const Status& why, int ranks, Clock::time_point deadline) {
  const std::string words = frame(Frame::kRefused, static_cast<std::int32_t>(why.code()), why.message()).take();
  Teller(std::move(socket_), id_.secret, words).run(ranks, deadline);
}

}  // namespace kolo::bootstrap
