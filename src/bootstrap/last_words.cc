#include "bootstrap/last_words.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <thread>
#include <vector>

#include "bootstrap/greeting.h"

namespace kolo::bootstrap {
namespace {

constexpr std::size_t kMaxClients = 64;
constexpr auto kPause = std::chrono::milliseconds(20);  // out of descriptors

// A connection, of a rank or of a stranger.
class Client {
 public:
  Client(Socket socket, const Secret& secret)
      : socket_(std::move(socket)),
        greeting_([&secret](const Tag& tag) { return tag == tagOf(secret) ? &secret : nullptr; }) {}

  int fd() const { return socket_.fd(); }
  bool isTold() const { return greeting_.stage() == Greeting::Stage::kProven; }
  // False: it is to be closed.
  bool advance(std::string_view words);

 private:
  Socket socket_;
  Greeting greeting_;
};

// A client that has been told is kept until it closes: a socket that is closed with bytes unread takes back what is on
// its way.
bool Client::advance(std::string_view words) {
  if (!isTold()) {
    if (greeting_.advance(socket_) == Greeting::Stage::kOver) return false;
    if (!isTold()) return true;
    std::string sealed;
    greeting_.session().seal(words, sealed);
    (void)::send(socket_.fd(), sealed.data(), sealed.size(), MSG_NOSIGNAL);
    (void)::shutdown(socket_.fd(), SHUT_WR);
  }
  for (char rest[256];;) {
    const ssize_t got = ::recv(socket_.fd(), rest, sizeof rest, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return false;
    if (got < 0 && errno != EINTR) return true;
  }
}

// The newest may be a rank; one that has said nothing for longer than so many others is none.
void accept(const Socket& listener, const Secret& secret, std::list<Client>& clients) {
  for (;;) {
    Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      clients.emplace_back(std::move(socket), secret);
      if (clients.size() > kMaxClients) clients.pop_front();
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (clients.empty()) return std::this_thread::sleep_for(kPause);
    clients.pop_front();
  }
}

}  // namespace

Result<LastWords> LastWords::listen(const Secret& secret, std::uint16_t port) {
  // A wrong KOLO_INTERFACE may be what there is to tell.
  const Result<LocalAddresses> wanted = localAddresses();
  const LocalAddresses local = wanted.ok() ? wanted.value() : allAddresses();
  IdContents id = contentsOfId(secret, local, port != 0);
  KOLO_ASSIGN(Socket socket, listenOn(local, port, id.port));
  return LastWords(std::move(socket), std::move(id));
}

void LastWords::tell(const Status& why, int ranks, Clock::time_point deadline) {
  const std::string words =
      frame(Frame::kRefused).number(static_cast<std::int32_t>(why.code())).text(why.message()).take();
  std::list<Client> clients;
  for (int told = 0; told < ranks && Clock::now() < deadline;) {
    std::vector<pollfd> polls{{socket_.fd(), POLLIN, 0}};
    for (const Client& client : clients) polls.push_back({client.fd(), POLLIN, 0});
    if (::poll(polls.data(), polls.size(), millisecondsUntil(deadline)) <= 0) continue;
    std::size_t at = 1;
    for (auto client = clients.begin(); client != clients.end();) {
      if (polls[at++].revents == 0 || client->advance(words)) {
        ++client;
        continue;
      }
      told += client->isTold() ? 1 : 0;
      client = clients.erase(client);
    }
    if (polls[0].revents != 0) accept(socket_, id_.secret, clients);
  }
}

}  // namespace kolo::bootstrap
