#include "service.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/quiet_thread.h"

namespace kolo::ib {
namespace {

// Between looks whether the core works by itself.
constexpr int kTickMs = 50;
// Between looks while the core has nothing under way: a peer may say by a write that a lane is closed.
constexpr int kSlowTickMs = 500;

}  // namespace

int Service::start() {
  wake_ = network::Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return errno;
  return startQuietly(thread_, "kolo-ib", [this] { serve(); });
}

void Service::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(inbox_);
    isEnding_ = true;
  }
  wake();
  thread_.join();
  greetings_.clear();
}

void Service::wake() {
  const std::uint64_t one = 1;
  while (write(wake_.fd(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Service::answer(const connect::Caller& peer, network::Socket socket) {
  {
    const std::lock_guard lock(inbox_);
    guests_.push_back({peer, std::move(socket)});
  }
  wake();
}

void Service::watch(Way* way) {
  {
    const std::lock_guard lock(inbox_);
    newWays_.push_back(way);
  }
  wake();
}

void Service::takeInbox() {
  std::uint64_t count;
  (void)!read(wake_.fd(), &count, sizeof count);
  const std::lock_guard lock(inbox_);
  for (Guest& guest : guests_) greetings_.emplace_back(home_, guest.peer, std::move(guest.socket), false);
  guests_.clear();
  ways_.insert(ways_.end(), newWays_.begin(), newWays_.end());
  hasWays_ = hasWays_ || !ways_.empty();
  newWays_.clear();
}

// Milliseconds to sleep at most; -1: until woken.
int Service::patience() {
  // Completions of trials are looked for.
  for (const Greeting& greeting : greetings_) {
    if (greeting.isTrying()) return 1;
  }
  // [asleep] Either the core, which makes work with the lock held, sees this, or this thread, which asks with the lock
  // held, sees the work.
  isAsleep_.store(true, std::memory_order_relaxed);
  if (owner_.hasWork()) {
    isAsleep_.store(false, std::memory_order_relaxed);
    return kTickMs;
  }
  return hasWays_ || !greetings_.empty() ? kSlowTickMs : -1;  // greetings get old
}

void Service::serve() {
  std::vector<pollfd> polls;
  for (;;) {
    polls.assign({{wake_.fd(), POLLIN, 0}});
    for (const Nic& nic : home_.nics.all()) polls.push_back({nic.context->async_fd, POLLIN, 0});
    for (const Way* const way : ways_) polls.push_back({way->fd(), POLLIN, 0});
    for (const Greeting& greeting : greetings_) polls.push_back({greeting.fd(), greeting.awaits(), 0});
    const int patienceMs = patience();
    const bool isTick = poll(polls.data(), polls.size(), patienceMs) == 0 && patienceMs >= kTickMs;
    isAsleep_.store(false, std::memory_order_relaxed);
    {
      const std::lock_guard lock(inbox_);
      if (isEnding_) return;
    }
    takeInbox();
    takeEvents();
    hearWays();
    advanceGreetings();
    if (isTick) owner_.workInstead();
  }
}

void Service::advanceGreetings() {
  const Clock::time_point now = Clock::now();
  for (auto at = greetings_.begin(); at != greetings_.end();) {
    Greeting::Outcome outcome = at->advance();
    if (outcome == Greeting::Outcome::kGoesOn && at->isOld(now)) outcome = Greeting::Outcome::kFailed;
    if (outcome == Greeting::Outcome::kGoesOn) {
      ++at;
      continue;
    }
    auto way = at->takeWay();
    if (way == nullptr && home_.log != nullptr) {
      home_.log(2, fmt::format("transport ib: rank {} found no way to here: {}", at->peer().rank, at->story()).c_str());
    }
    if (way != nullptr) ways_.push_back(way.get());
    hasWays_ = hasWays_ || !ways_.empty();
    owner_.greeted(at->peer(), std::move(way));
    at = greetings_.erase(at);
  }
}

void Service::hearWays() {
  for (Way*& way : ways_) {
    pollfd one{way->fd(), POLLIN, 0};
    if (poll(&one, 1, 0) <= 0) continue;
    const Way::Heard heard = way->hear();
    if (heard == Way::Heard::kSilent) way->isSilent.store(true, std::memory_order_release);  // [ended]
    if (heard == Way::Heard::kEnded) way->hasEnded.store(true, std::memory_order_release);   // [ended]
    if (heard != Way::Heard::kGoesOn) way = nullptr;
    owner_.hasNews();
  }
  std::erase(ways_, nullptr);
}

void Service::takeEvents() {
  const Verbs& verbs = home_.nics.verbs();
  for (std::size_t i = 0; i < home_.nics.all().size(); ++i) {
    const Nic& nic = home_.nics.all()[i];
    ibv_async_event event;
    pollfd one{nic.context->async_fd, POLLIN, 0};
    while (poll(&one, 1, 0) > 0 && verbs.getAsyncEvent(nic.context, &event) == 0) {
      const bool isOfAll = event.event_type == IBV_EVENT_DEVICE_FATAL;
      const bool isDown = isOfAll || event.event_type == IBV_EVENT_PORT_ERR;
      const bool isUp = event.event_type == IBV_EVENT_PORT_ACTIVE;
      for (const auto& port : home_.nics.ports()) {
        if (port->nic != i || (!isOfAll && event.element.port_num != port->number)) continue;
        if (isDown || isUp) port->isDown.store(isDown, std::memory_order_relaxed);
        if (isDown && home_.log != nullptr) home_.log(1, fmt::format("transport ib: {} is down", port->name).c_str());
      }
      verbs.ackAsyncEvent(&event);
      owner_.hasNews();
    }
  }
}

}  // namespace kolo::ib
