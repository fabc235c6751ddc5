#include "bootstrap/listener.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/fork.h"
#include "base/insist.h"
#include "base/log.h"
#include "base/settings.h"
#include "bootstrap/greeting.h"

namespace kolo::bootstrap {
namespace {

// What a listener is shared by: the port asked for and what it is bound to.
using ListenerKey = std::pair<std::uint16_t, std::string>;

// Reactor thread only.
using Listeners = std::map<ListenerKey, std::shared_ptr<Listener>>;
Listeners& listeners() { return ofThisProcess<Listeners>(); }

Result<std::shared_ptr<Listener>> listenerFor(Reactor& reactor, std::uint16_t port,
                                              const std::optional<Address>& only) {
  KOLO_ASSIGN(const LocalAddresses local, localAddresses(only));
  const ListenerKey key(port, local.any ? std::string() : local.reachable.front().text());
  if (const auto found = listeners().find(key); found != listeners().end()) return found->second;
  std::uint16_t chosen = 0;
  KOLO_ASSIGN(Socket socket, listenOn(local, port, chosen));
  auto listener = std::make_shared<Listener>(reactor, chosen, local);
  KOLO_TRY(listener->start(std::move(socket)));
  listeners().emplace(key, listener);
  return listener;
}

// What a job's hub listens by, and the hub; null: it is not in this process. Who has a job's tag and another secret is
// none of it.
struct Here {
  std::shared_ptr<Listener> listener;
  std::shared_ptr<Hub> hub;
};
Here hubHere(const Secret& secret) {
  for (const auto& [key, listener] : listeners()) {
    const std::shared_ptr<Hub> hub = listener->hubOf(tagOf(secret));
    if (hub != nullptr && hub->secret() == secret) return {listener, hub};
  }
  return {};
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

// A hub's time is over.
void dropEverywhere(const Hub* hub) {
  std::vector<std::shared_ptr<Listener>> all;
  for (const auto& [key, listener] : listeners()) all.push_back(listener);
  for (const std::shared_ptr<Listener>& each : all) {
    each->dropHub(hub);
    closeIfEmpty(each.get());
  }
}

Result<IdContents> startHubOnReactor(Reactor& reactor, const Secret& secret, std::uint16_t port,
                                     const std::optional<Address>& only) {
  KOLO_ASSIGN(const std::shared_ptr<Listener> listener, listenerFor(reactor, port, only));
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

Result<IdContents> startHub(const Secret& secret, std::uint16_t port, const std::optional<Address>& only) {
  KOLO_ASSIGN(Reactor* const reactor, Reactor::get());
  Result<IdContents> result = error(koloInvalidUsage, "the process is exiting");
  (void)reactor->call([&] { result = startHubOnReactor(*reactor, secret, port, only); });
  return result;
}

Socket connectToHubHere(const Secret& secret, int& errnum) {
  Socket rank;
  errnum = ECONNREFUSED;
  const auto connect = [&] {
    const Here here = hubHere(secret);
    if (here.hub != nullptr && !here.hub->isEnding()) errnum = here.listener->connectHere(rank) ? 0 : errno;
  };
  if (Reactor* const reactor = Reactor::running(); reactor != nullptr) (void)reactor->call(connect);
  return rank;
}

bool failHub(const Secret& secret, int rank, int ranks, const Status& why) {
  bool isHere = false;
  const auto fail = [&] {
    const std::shared_ptr<Hub> hub = hubHere(secret).hub;
    isHere = hub != nullptr;
    if (isHere) hub->fail(rank, ranks, why);
  };
  if (Reactor* const reactor = Reactor::running(); reactor != nullptr) (void)reactor->call(fail);
  return isHere;
}

bool readInHubHere(const Secret& secret, int rank) {
  const std::shared_ptr<Hub> hub = hubHere(secret).hub;
  return hub != nullptr && hub->readHere(rank);
}

void whenTold(const Secret& secret, const std::function<void()>& task) {
  bool isHere = false;
  const auto hand = [&] {
    const std::shared_ptr<Hub> hub = hubHere(secret).hub;
    isHere = hub != nullptr;
    if (isHere) hub->whenTold(task);
  };
  if (Reactor* const reactor = Reactor::running(); reactor != nullptr) (void)reactor->call(hand);
  if (!isHere) task();
}

Standby::Standby(Reactor& reactor, std::string name, const std::shared_ptr<Listener>& listener)
    : reactor_(reactor), name_(std::move(name)), tag_(tagOfStandby(name_)), listener_(listener) {}

Standby::Opened Standby::open(Reactor& reactor, Reach reach) {
  std::string name;
  Socket socket = listenByName(name);
  if (!socket.valid()) return {nullptr, systemError(errno, "listening within the host").message()};
  const auto listener = std::make_shared<Listener>(reactor, std::uint16_t{0}, LocalAddresses());
  auto made = std::make_shared<Standby>(reactor, name, listener);
  listeners().emplace(ListenerKey(0, name), listener);
  listener->addStandby(made->tag_);
  if (const Status started = listener->start(std::move(socket)); !started.ok()) return {nullptr, started.message()};
  return {made, reach != Reach::kHere ? made->openToOthers(reach).message() : std::string()};
}

// A port that others were told of stays taken, for a closed one is a death. So a rank takes none that its data needs:
// the process's first standby holds that one, too, until no rank will take a port for a standby any more.
Status Standby::openToOthers(Reach reach) {
  KOLO_ASSIGN(const std::shared_ptr<Listener> others, listenerFor(reactor_, 0, std::nullopt));
  if (reach == Reach::kEverywhereOfRank && !others->hasStandbys() && !settings::ports("KOLO_PORT_RANGE").isAny()) {
    std::uint16_t ignored = 0;
    Result<Socket> forData = listenOn(others->local(), 0, ignored);
    if (!forData.ok()) {
      closeIfEmpty(others.get());
      return forData.status();
    }
    forData_ = forData.take();
  }
  others->addStandby(tag_);
  others_ = others;
  return {};
}

void Standby::settle(bool isWide) {
  forData_.close();
  if (!isWide) closeToOthers();
}

std::uint16_t Standby::port() const {
  const std::shared_ptr<Listener> others = others_.lock();
  return others != nullptr ? others->port() : std::uint16_t{0};
}

std::string Standby::address() const {
  const std::shared_ptr<Listener> others = others_.lock();
  return others != nullptr && !others->local().any ? others->local().reachable.front().text() : std::string();
}

bool Standby::isAtGivenAddress() const {
  const std::optional<Address> given = network::parseAddress(settings::text("KOLO_INTERFACE"));
  return given.has_value() && !given->isLoopback() && given->text() == address();
}

void Standby::closeToOthers() {
  if (const std::shared_ptr<Listener> others = others_.lock()) {
    others->dropStandby(tag_);
    closeIfEmpty(others.get());
  }
  others_.reset();
}

Standby::~Standby() {
  const auto close = [this] {
    closeToOthers();
    if (const std::shared_ptr<Listener> listener = listener_.lock()) {
      listener->dropStandby(tag_);
      closeIfEmpty(listener.get());
    }
  };
  (void)insist([&] { (void)reactor_.call(close); });
}

Status Standby::succeed(const Secret& secret, const Succession& succession) {
  const std::shared_ptr<Listener> listener = listener_.lock(), others = others_.lock();
  if (listener == nullptr) return error(koloInvalidUsage, "the standby is closed");
  const Tag tag = tagOf(secret);
  if (listener->hubOf(tag) == nullptr) KOLO_TRY(listener->addHub(secret));
  if (others != nullptr) others->addHub(secret, listener->hubOf(tag));
  listener->hubOf(tag)->succeed(succession);
  return {};
}

void Standby::leadTo(const Secret& secret, const std::shared_ptr<Hub>& hub) {
  for (const auto& each : {listener_.lock(), others_.lock()}) {
    if (each != nullptr) each->addHub(secret, hub);
  }
}

// A connection during the handshake. The listener lives longer: it drops its strangers when it closes.
class Listener::Candidate final : public network::Stranger {
 public:
  Candidate(Listener& listener, Socket socket)
      : listener_(listener), greeting_(std::move(socket), [&listener](const Tag& tag, Reply& why) {
          const auto found = listener.hubs_.find(tag);
          const bool isStandby = listener.standbys_.count(tag) != 0;
          if (isStandby) why = Reply::kNoHub;
          const bool isThere = found != listener.hubs_.end() && (isStandby || !found->second.hub->isEnding());
          return isThere ? &found->second.secret : nullptr;
        }) {}

  int fd() const override { return greeting_.fd(); }
  Outcome advance() override {
    const Greeting::Stage stage = greeting_.advance();
    if (greeting_.hasFailed()) {
      if (const std::shared_ptr<Hub> hub = listener_.hubOf(greeting_.tag())) hub->hasRefused(peerOf(fd()));
    }
    return stage == Greeting::Stage::kOver     ? Outcome::kOver
           : stage == Greeting::Stage::kProven ? Outcome::kProven
                                               : Outcome::kGoesOn;
  }
  bool isExpected() const override { return greeting_.stage() != Greeting::Stage::kSilent; }
  // Becomes a member, unless the hub's time is over since the greeting.
  void enter() override {
    const std::shared_ptr<Hub> hub = listener_.hubOf(greeting_.tag());
    if (hub == nullptr) return;
    Socket socket = greeting_.takeSocket();
    const bool returns = listener_.hubs_.at(greeting_.tag()).secret != hub->secret();
    (void)insist([&] { hub->admit(std::move(socket), greeting_.session(), returns); });
  }

 private:
  Listener& listener_;
  Greeting greeting_;
};

Status Listener::start(Socket socket) {
  (void)acceptor_.open(std::move(socket));  // without a descriptor to refuse them by, callers wait
  return reactor_.add(acceptor_.fd(), shared_from_this());
}

bool Listener::isAwaited() const {
  return std::any_of(hubs_.begin(), hubs_.end(), [](const auto& each) { return each.second.hub->isAwaited(); });
}

void Listener::onEnd() {
  for (const auto& [tag, served] : hubs_) {
    if (served.secret == served.hub->secret()) served.hub->end();
  }
}

std::shared_ptr<Hub> Listener::hubOf(const Tag& tag) const {
  const auto found = hubs_.find(tag);
  return found != hubs_.end() ? found->second.hub : nullptr;
}

Status Listener::addHub(const Secret& secret) {
  const Tag tag = tagOf(secret);
  const auto found = hubs_.find(tag);
  if (found != hubs_.end() && !found->second.hub->failed()) {
    return error(koloInvalidUsage, "this process already listens for this very job on port {}", port_);
  }
  hubs_[tag] = {std::make_shared<Hub>(reactor_, secret, [](const Hub* hub) { dropEverywhere(hub); }), secret};
  return {};
}

void Listener::dropHub(const Hub* hub) {
  std::erase_if(hubs_, [hub](const auto& each) { return each.second.hub.get() == hub; });
}

void Listener::close() {
  reactor_.cancel(timer_);
  acceptor_.close();
}

std::unique_ptr<network::Stranger> Listener::welcome(Socket socket) {
  tune(socket.fd());
  return std::make_unique<Candidate>(*this, std::move(socket));
}

std::string Listener::refusal(int) {
  ServerHello words;
  words.reply = Reply::kOutOfFiles;
  return encode(words);
}

void Listener::hasRefused(int errnum) {
  log::warn("accepting ranks on port {} has to wait: {}", port_, systemError(errnum, "accept").message());
}

// Of its own socket, of a stranger's, or because it is time.
void Listener::onReadable() {
  acceptor_.serve();
  if (acceptor_.isOpen()) awaitNext();
}

void Listener::awaitNext() {
  const bool isPaused = acceptor_.isPaused();
  if (std::exchange(wasPaused_, isPaused) != isPaused) reactor_.watch(acceptor_.fd(), !isPaused, false);
  reactor_.cancel(timer_);
  if (acceptor_.next() == Clock::time_point::max()) return;
  timer_ = reactor_.at(acceptor_.next(), [weak = weak_from_this()] {
    if (const std::shared_ptr<Listener> self = weak.lock()) self->onReadable();
  });
}

bool Listener::connectHere(Socket& rank) {
  int ends[2];
  while (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    if (!network::isOutOfFiles(errno) || !acceptor_.dropUnexpected(errno)) return false;
  }
  rank = Socket(ends[0]);
  acceptor_.add(Socket(ends[1]));
  awaitNext();
  return true;
}

}  // namespace kolo::bootstrap
