#include "bootstrap/listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"

namespace kolo::bootstrap {
namespace {

constexpr auto kHandshakeLimit = std::chrono::seconds(5);
constexpr std::size_t kMaxStrangers = 256;
constexpr auto kStrangerGrace = std::chrono::seconds(1);       // younger ones are not pushed out by newcomers
constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // out of descriptors: the backlog keeps the callers
constexpr int kAcceptsPerEvent = 64;

// What a listener is shared by: the port asked for and what it is bound to.
using ListenerKey = std::pair<std::uint16_t, std::string>;

// Reactor thread only.
std::map<ListenerKey, std::shared_ptr<Listener>>& listeners() {
  static auto* const all = new std::map<ListenerKey, std::shared_ptr<Listener>>;
  return *all;
}

Result<std::shared_ptr<Listener>> listenerFor(Reactor& reactor, std::uint16_t port) {
  KOLO_ASSIGN(const LocalAddresses local, localAddresses(kMaxAddresses));
  const ListenerKey key(port, local.any ? std::string() : local.reachable.front().text());
  if (const auto found = listeners().find(key); found != listeners().end()) return found->second;
  std::uint16_t chosen = 0;
  KOLO_ASSIGN(Socket socket, listenOn(local, port, chosen));
  const int fd = socket.fd();
  auto listener = std::make_shared<Listener>(reactor, std::move(socket), chosen, local);
  KOLO_TRY(reactor.add(fd, listener));
  listeners().emplace(key, listener);
  return listener;
}

void closeIfEmpty(const Listener* listener) {
  for (auto each = listeners().begin(); each != listeners().end(); ++each) {
    if (each->second.get() != listener || !listener->empty()) continue;
    const std::shared_ptr<Listener> keep = each->second;
    listeners().erase(each);
    keep->close();
    return;
  }
}

Result<IdContents> startHubOnReactor(Reactor& reactor, const Secret& secret, std::uint16_t port) {
  KOLO_ASSIGN(const std::shared_ptr<Listener> listener, listenerFor(reactor, port));
  const Status added = listener->addHub(secret);
  if (!added.ok()) {
    closeIfEmpty(listener.get());
    return added;
  }
  IdContents id;
  id.explicitRoot = port != 0;
  id.boundToOne = !listener->local().any;
  id.port = listener->port();
  id.makerPid = static_cast<std::uint32_t>(::getpid());
  id.host = hostIdentity();
  id.addresses = listener->local().reachable;
  id.secret = secret;
  return id;
}

}  // namespace

Result<IdContents> startHub(const Secret& secret, std::uint16_t port) {
  KOLO_ASSIGN(Reactor* const reactor, Reactor::get());
  Result<IdContents> result = error(koloInvalidUsage, "the process is exiting");
  (void)reactor->call([&] { result = startHubOnReactor(*reactor, secret, port); });
  return result;
}

Status Listener::addHub(const Secret& secret) {
  const Tag tag = tagOf(secret);
  const auto found = hubs_.find(tag);
  if (found != hubs_.end() && !found->second->failed()) {
    return error(koloInvalidUsage, "this process already listens for this very job on port {}", port_);
  }
  const auto over = [weak = weak_from_this(), tag](const Hub* hub) {
    if (const std::shared_ptr<Listener> self = weak.lock()) self->dropHub(tag, hub);
  };
  hubs_[tag] = std::make_shared<Hub>(reactor_, secret, over);
  return {};
}

void Listener::dropHub(const Tag& tag, const Hub* hub) {
  const auto found = hubs_.find(tag);
  if (found == hubs_.end() || found->second.get() != hub) return;
  hubs_.erase(found);
  closeIfEmpty(this);
}

void Listener::close() {
  reactor_.remove(socket_.fd());
  socket_.close();
  while (!strangers_.empty()) strangers_.front()->drop();
}

void Listener::pause() {
  reactor_.watch(socket_.fd(), false, false);
  reactor_.at(Clock::now() + kAcceptPause, [weak = weak_from_this()] {
    const std::shared_ptr<Listener> self = weak.lock();
    if (self != nullptr && self->socket_.valid()) self->reactor_.watch(self->socket_.fd(), true, false);
  });
}

bool Listener::makeRoom() {
  if (strangers_.size() < kMaxStrangers) return true;
  if (Clock::now() - strangers_.front()->since() < kStrangerGrace) return false;
  strangers_.front()->drop();
  return true;
}

void Listener::onReadable() {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    if (!makeRoom()) return pause();
    Socket socket(::accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (!std::exchange(exhausted_, true)) {
        log::warn("accepting ranks on port {} has to wait: {}", port_,
                  systemError(errno, "accept").message());
      }
      return pause();
    }
    exhausted_ = false;
    tune(socket.fd());
    const auto stranger = std::make_shared<Stranger>(*this, std::move(socket));
    strangers_.push_back(stranger);
    if (!stranger->start().ok()) stranger->drop();
  }
}

void Listener::forget(const Stranger* stranger) {
  strangers_.remove_if([stranger](const std::shared_ptr<Stranger>& each) { return each.get() == stranger; });
}

Status Stranger::start() {
  KOLO_TRY(listener_->reactor_.add(socket_.fd(), shared_from_this()));
  timer_ = listener_->reactor_.at(Clock::now() + kHandshakeLimit, [weak = weak_from_this()] {
    if (const std::shared_ptr<Stranger> self = weak.lock()) self->drop();
  });
  return {};
}

void Stranger::drop() {
  const std::shared_ptr<Stranger> keep = shared_from_this();
  listener_->reactor_.cancel(timer_);
  if (socket_.valid()) listener_->reactor_.remove(socket_.fd());
  socket_.close();
  listener_->forget(this);
}

void Stranger::onReadable() {
  while (socket_.valid()) {
    // Never past the handshake: the bytes behind it belong to the session.
    const std::size_t expected = hello_.empty() ? ClientHello::kBytes : Session::kProofBytes;
    char buffer[128];
    const std::size_t most = std::min(sizeof buffer, expected - input_.size());
    const ssize_t got = ::recv(socket_.fd(), buffer, most, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return drop();
    input_.append(buffer, static_cast<std::size_t>(got));
    if (input_.size() < expected) continue;
    if (!hello_.empty()) return answerProof();
    if (!answerHello()) return drop();
    input_.clear();
  }
}

bool Stranger::reply(std::string_view bytes) {
  // A few dozen bytes into an empty socket buffer: what does not fit at once never will.
  return ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

bool Stranger::answerHello() {
  ClientHello hello;
  if (!ClientHello::decode(input_, hello)) return false;
  hello_ = input_;
  ServerHello answer;
  const auto found = listener_->hubs_.find(hello.tag);
  if (found == listener_->hubs_.end()) answer.reply = Reply::kUnknownJob;
  randombytes_buf(answer.nonce.data(), answer.nonce.size());
  const std::string bytes = answer.encode();
  // With another protocol nothing more can be said; the client finds both versions in the hellos.
  if (!reply(bytes) || answer.reply != Reply::kOk || hello.protocol != kProtocol) return false;
  hub_ = found->second;
  session_ = std::make_unique<Session>(Session::Side::kHub, hub_->secret(), hello_, bytes);
  return true;
}

void Stranger::answerProof() {
  if (session_->check(input_) != Reply::kOk) {
    (void)reply(Session::refusal());
    return drop();
  }
  if (!reply(session_->prove())) return drop();
  Reactor& reactor = listener_->reactor_;
  reactor.cancel(timer_);
  reactor.remove(socket_.fd());
  const std::shared_ptr<Stranger> keep = shared_from_this();
  listener_->forget(this);
  hub_->admit(std::move(socket_), *session_);
}

}  // namespace kolo::bootstrap
