#include "network/server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/quiet_thread.h"

namespace kolo::network {
namespace {

constexpr std::chrono::milliseconds kWithoutMemory{10};

}  // namespace

int Server::acquire() {
  const std::lock_guard lock(lifecycle_);
  const int errnum = users_ == 0 ? start() : 0;
  if (errnum == 0) ++users_;
  return errnum;
}

void Server::release() {
  const std::lock_guard lock(lifecycle_);
  if (--users_ > 0) return;
  const std::uint64_t one = 1;
  while (::write(wake_.fd(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
  const std::lock_guard stateLock(state_);
  close();
}

int Server::start() {
  const std::lock_guard lock(state_);
  wake_ = Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  int errnum = wake_.valid() ? 0 : errno;
  Socket listener;
  if (errnum == 0) errnum = listen(listener);
  if (errnum == 0) errnum = acceptor_.open(std::move(listener));
  if (errnum == 0) errnum = startQuietly(thread_, name_, [this] { serve(); });
  if (errnum != 0) close();
  return errnum;
}

// REQUIRES: state_ held, thread not running
void Server::close() {
  acceptor_.close();
  wake_.close();
  end();
}

void Server::serve() {
  for (std::vector<pollfd> polls;;) {
    Clock::time_point next;
    try {
      const std::lock_guard lock(state_);
      acceptor_.serve();
      next = std::min(acceptor_.next(), attend(Clock::now()));
      polls.assign({{wake_.fd(), POLLIN, 0}});
      acceptor_.addTo(polls);
    } catch (const std::bad_alloc&) {  // there may be memory later
      polls.clear();
      next = Clock::now() + kWithoutMemory;
    }
    const int timeout = next == Clock::time_point::max() ? -1 : millisecondsUntil(next);
    pollfd alone{wake_.fd(), POLLIN, 0};
    pollfd* const asked = polls.empty() ? &alone : polls.data();
    if (::poll(asked, std::max<std::size_t>(polls.size(), 1), timeout) > 0 && asked[0].revents != 0) return;
  }
}

}  // namespace kolo::network
