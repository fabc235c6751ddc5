#include "bootstrap/listener.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/fork.h"
#include "base/log.h"

namespace kolo::bootstrap {
namespace {

constexpr auto kHandshakeLimit = std::chrono::seconds(5);
constexpr std::size_t kMaxSilent = 256;
constexpr std::size_t kMinSilent = 4;
constexpr std::size_t kShareOfFiles = 8;  // of this process's descriptors silent strangers have one of so many
constexpr std::size_t kMaxGreeted = 256;
constexpr auto kGreetedGrace = std::chrono::seconds(1);        // younger ones are not pushed out by newcomers
constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // out of descriptors: the backlog keeps the callers
constexpr int kAcceptsPerEvent = 64;
constexpr int kMostRefusedAtOnce = 16;

// What a listener is shared by: the port asked for and what it is bound to.
using ListenerKey = std::pair<std::uint16_t, std::string>;

// Reactor thread only.
using Listeners = std::map<ListenerKey, std::shared_ptr<Listener>>;
constinit Listeners* made = nullptr;
[[maybe_unused]] const int forgetsListeners = beginAnewBy([] { made = nullptr; });

Listeners& listeners() {
  if (made == nullptr) made = new Listeners;
  return *made;
}

bool isOutOfFiles(int errnum) { return errnum == EMFILE || errnum == ENFILE; }

// How many strangers that say nothing have a place.
std::size_t mostSilent() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return kMinSilent;
  return std::clamp<std::size_t>(static_cast<std::size_t>(files.rlim_cur) / kShareOfFiles, kMinSilent, kMaxSilent);
}

Result<std::shared_ptr<Listener>> listenerFor(Reactor& reactor, std::uint16_t port) {
  KOLO_ASSIGN(const LocalAddresses local, localAddresses());
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

// What a job's hub listens by; null: it is not in this process.
std::shared_ptr<Listener> listenerHere(const Tag& tag) {
  for (const auto& [key, listener] : listeners()) {
    if (listener->hubOf(tag) != nullptr) return listener;
  }
  return nullptr;
}

std::shared_ptr<Hub> hubHere(const Tag& tag) {
  const std::shared_ptr<Listener> listener = listenerHere(tag);
  return listener != nullptr ? listener->hubOf(tag) : nullptr;
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
  IdContents id = contentsOfId(secret, listener->local(), port != 0);
  id.port = listener->port();
  return id;
}

}  // namespace

Result<IdContents> startHub(const Secret& secret, std::uint16_t port) {
  (void)processIdentity();  // made here, not by the reactor's thread while another one forks
  KOLO_ASSIGN(Reactor* const reactor, Reactor::get());
  Result<IdContents> result = error(koloInvalidUsage, "the process is exiting");
  (void)reactor->call([&] { result = startHubOnReactor(*reactor, secret, port); });
  return result;
}

Socket connectToHubHere(const Secret& secret, int& errnum) {
  Socket rank;
  errnum = ECONNREFUSED;
  const auto connect = [&] {
    const Tag tag = tagOf(secret);
    const std::shared_ptr<Listener> listener = listenerHere(tag);
    if (listener != nullptr && !listener->hubOf(tag)->isEnding()) errnum = listener->connectHere(rank) ? 0 : errno;
  };
  if (Reactor* const reactor = Reactor::running(); reactor != nullptr) (void)reactor->call(connect);
  return rank;
}

bool failHub(const Secret& secret, int rank, int ranks, const Status& why) {
  bool isHere = false;
  const auto fail = [&] {
    const std::shared_ptr<Hub> hub = hubHere(tagOf(secret));
    isHere = hub != nullptr;
    if (isHere) hub->fail(rank, ranks, why);
  };
  if (Reactor* const reactor = Reactor::running(); reactor != nullptr) (void)reactor->call(fail);
  return isHere;
}

void tellHubHere(const Secret& secret, int rank, const std::string& failure) {
  if (const std::shared_ptr<Hub> hub = hubHere(tagOf(secret)); hub != nullptr) hub->hostReports(rank, failure);
}

void whenTold(const Secret& secret, const std::function<void()>& task) {
  bool isHere = false;
  const auto hand = [&] {
    const std::shared_ptr<Hub> hub = hubHere(tagOf(secret));
    isHere = hub != nullptr;
    if (isHere) hub->whenTold(task);
  };
  if (Reactor* const reactor = Reactor::running(); reactor != nullptr) (void)reactor->call(hand);
  if (!isHere) task();
}

Listener::Listener(Reactor& reactor, Socket socket, std::uint16_t port, LocalAddresses local)
    : reactor_(reactor), socket_(std::move(socket)), spare_(::eventfd(0, EFD_CLOEXEC)), port_(port),
      local_(std::move(local)) {}

bool Listener::isAwaited() const {
  return std::any_of(hubs_.begin(), hubs_.end(), [](const auto& each) { return each.second->isAwaited(); });
}

void Listener::onEnd() {
  for (const auto& [tag, hub] : hubs_) hub->end();
}

std::shared_ptr<Hub> Listener::hubOf(const Tag& tag) const {
  const auto found = hubs_.find(tag);
  return found != hubs_.end() ? found->second : nullptr;
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
  spare_.close();
  for (Strangers* const strangers : {&silent_, &greeted_}) {
    while (!strangers->empty()) strangers->front()->drop();
  }
}

void Listener::pause() {
  reactor_.watch(socket_.fd(), false, false);
  reactor_.at(Clock::now() + kAcceptPause, [weak = weak_from_this()] {
    const std::shared_ptr<Listener> self = weak.lock();
    if (self != nullptr && self->socket_.valid()) self->reactor_.watch(self->socket_.fd(), true, false);
  });
}

// Ranks that wait to be accepted are told why they are not, by the descriptor that is kept for this. Another thread may
// take it meanwhile: then they hear nothing until there is one again.
void Listener::refuseForFiles() {
  ServerHello words;
  words.reply = Reply::kOutOfFiles;
  const std::string bytes = words.encode();
  for (int i = 0; i < kMostRefusedAtOnce && spare_.valid(); ++i) {
    spare_.close();
    Socket client(::accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const bool isThere = client.valid();
    if (isThere) (void)::send(client.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    client.close();
    spare_ = Socket(::eventfd(0, EFD_CLOEXEC));
    if (!isThere) break;
  }
  if (!spare_.valid()) spare_ = Socket(::eventfd(0, EFD_CLOEXEC));
}

// Makes room for a stranger that greets. Strangers that have greeted are ranks, which soon need the place no longer.
bool Listener::makeRoom() {
  if (greeted_.size() < kMaxGreeted) return true;
  if (Clock::now() - greeted_.front()->since() < kGreetedGrace) return false;
  greeted_.front()->drop();
  return true;
}

void Listener::onReadable() {
  for (int i = 0; i < kAcceptsPerEvent && socket_.valid(); ++i) {
    if (!makeRoom()) return pause();
    Socket socket(::accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      welcome(std::move(socket));
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (errno == EINTR || errno == ECONNABORTED) continue;
    const bool isForFiles = isOutOfFiles(errno);
    const Status why = systemError(errno, "accept");
    if (dropSilent()) continue;
    if (!std::exchange(exhausted_, true)) log::warn("accepting ranks on port {} has to wait: {}", port_, why.message());
    if (isForFiles) refuseForFiles();
    return pause();
  }
}

// The next connection, which may be a rank's, gets the descriptor of a stranger that has said nothing.
bool Listener::dropSilent() {
  if (silent_.empty()) return false;
  silent_.front()->drop();
  return true;
}

bool Listener::connectHere(Socket& rank) {
  int ends[2];
  while (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    if (!isOutOfFiles(errno) || !dropSilent()) return false;
  }
  rank = Socket(ends[0]);
  welcome(Socket(ends[1]));
  return true;
}

void Listener::welcome(Socket socket) {
  exhausted_ = false;
  tune(socket.fd());
  const auto stranger = std::make_shared<Stranger>(*this, std::move(socket));
  silent_.push_back(stranger);
  if (!stranger->start().ok()) return stranger->drop();
  stranger->onReadable();  // a rank has mostly spoken by now
  if (silent_.size() > mostSilent()) silent_.front()->drop();
}

void Listener::hasGreeted(const Stranger* stranger) {
  const auto found =
      std::find_if(silent_.begin(), silent_.end(), [&](const auto& each) { return each.get() == stranger; });
  if (found != silent_.end()) greeted_.splice(greeted_.end(), silent_, found);
}

void Listener::forget(const Stranger* stranger) {
  for (Strangers* const strangers : {&silent_, &greeted_}) {
    strangers->remove_if([stranger](const std::shared_ptr<Stranger>& each) { return each.get() == stranger; });
  }
}

Stranger::Stranger(Listener& listener, Socket socket)
    : listener_(&listener), socket_(std::move(socket)), greeting_([&listener](const Tag& tag) {
        const std::shared_ptr<Hub> hub = listener.hubOf(tag);
        return hub != nullptr && !hub->isEnding() ? &hub->secret() : nullptr;
      }) {}

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
  if (!socket_.valid()) return;
  const Greeting::Stage before = greeting_.stage();
  const Greeting::Stage now = greeting_.advance(socket_);
  if (now == Greeting::Stage::kOver) return drop();
  if (now == Greeting::Stage::kProven) return becomeMember();
  if (now != before) listener_->hasGreeted(this);
}

void Stranger::becomeMember() {
  const std::shared_ptr<Stranger> keep = shared_from_this();
  const std::shared_ptr<Hub> hub = listener_->hubOf(greeting_.tag());
  if (hub == nullptr) return drop();  // its time is over since the greeting
  Reactor& reactor = listener_->reactor_;
  reactor.cancel(timer_);
  reactor.remove(socket_.fd());
  listener_->forget(this);
  hub->admit(std::move(socket_), greeting_.session());
}

}  // namespace kolo::bootstrap
