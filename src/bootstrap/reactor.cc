#include "bootstrap/reactor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <functional>
#include <utility>

#include "base/fork.h"
#include "base/insist.h"
#include "base/log.h"
#include "base/quiet_thread.h"

namespace kolo::bootstrap {
namespace {

constexpr int kMaxEvents = 128;
constexpr std::size_t kUsuallyPosted = 256;
constexpr auto kLinger = std::chrono::seconds(2);  // for output that is unsent when the process exits
constexpr int kLingerPollMs = 5;
constexpr auto kBlindPause = std::chrono::milliseconds(5);  // where the kernel does not say what has happened

// The reactor is never destroyed: threads that outlive main may still ask it.
struct Started {
  std::mutex mutex;
  Reactor* reactor = nullptr;
};

constexpr auto kUntilNextTry = std::chrono::seconds(1);

// A task for which there is no memory is begun again. What has not been done in the end is not: those who wait for it
// have deadlines.
bool attempt(const Reactor::Task& task) {
  if (insist(task)) return true;
  log::message(log::Level::kError, "a task of the control plane was not done");
  return false;
}

// What other threads wait for: on their stack, so that it needs no memory. What it throws is theirs.
struct Call {
  const Reactor::Task& task;
  std::mutex& mutex;
  std::condition_variable& ran;
  bool isDone = false;
  std::exception_ptr thrown;

  void operator()() {
    try {
      task();
    } catch (...) {
      thrown = std::current_exception();
    }
    // Notified under the lock: the caller's stack, and this with it, may vanish as soon as the lock is free.
    const std::lock_guard lock(mutex);
    isDone = true;
    ran.notify_all();
  }
};

}  // namespace

// Global objects may own communicators to their end. A library ends after its users; what is given to atexit() runs
// before all that was made in or before main().
void Reactor::end() {
  if (Reactor* const reactor = running(); reactor != nullptr) reactor->stop();
}

Reactor* Reactor::running() {
  if (isForkedInUse()) return nullptr;
  auto& started = ofThisProcess<Started>();
  const std::lock_guard lock(started.mutex);
  return started.reactor;
}

Result<Reactor*> Reactor::get() {
  KOLO_TRY(refuseIfForkedInUse());
  auto& started = ofThisProcess<Started>();
  const std::lock_guard lock(started.mutex);
  if (started.reactor == nullptr) {
    auto made = std::unique_ptr<Reactor>(new Reactor);
    made->posted_.reserve(kUsuallyPosted);
    made->running_.reserve(kUsuallyPosted);
    KOLO_TRY(made->start());
    started.reactor = made.release();
  }
  return started.reactor;
}

Status Reactor::start() {
  epoll_ = Socket(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return systemError(errno, "making the control plane's epoll");
  wakeUp_ = Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeUp_.valid()) return systemError(errno, "making the control plane's eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = wakeUp_.fd();
  if (::epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, wakeUp_.fd(), &event) != 0) {
    return systemError(errno, "watching the control plane's eventfd");
  }
  if (epoll_event ignored{}; ::epoll_wait(epoll_.fd(), &ignored, 1, 0) < 0 && errno != EINTR) {
    return systemError(errno, "waiting on the control plane's epoll");
  }
  const int errnum = startQuietly(thread_, "kolo-control", [this] { run(); });
  return errnum == 0 ? Status() : systemError(errnum, "starting the control plane's thread");
}

void Reactor::stop() {
  if (onReactorThread()) return;  // exit() called from a callback: the thread cannot wait for itself
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stopBy_ = Clock::now() + kLinger;
  }
  wake();
  thread_.join();
}

void Reactor::wake() const {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the thread is awake anyway.
  [[maybe_unused]] const ssize_t written = ::write(wakeUp_.fd(), &one, sizeof one);
}

bool Reactor::post(Task task) {
  if (isForkedInUse()) return false;
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    first = posted_.empty();
    posted_.push_back(std::move(task));
  }
  if (first) wake();
  return true;
}

bool Reactor::call(const Task& task) {
  if (isForkedInUse()) return false;
  if (onReactorThread()) {
    task();
    return true;
  }
  Call call{task, mutex_, ran_};
  if (!post(std::ref(call))) return false;
  std::unique_lock lock(mutex_);
  ran_.wait(lock, [&] { return call.isDone; });
  if (call.thrown != nullptr) std::rethrow_exception(call.thrown);
  return true;
}

Status Reactor::add(int fd, std::shared_ptr<Source> source) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  sources_[fd] = std::move(source);  // first: what is watched and has no source would come for ever
  if (::epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  Status why = systemError(errno, "watching a control socket");
  sources_.erase(fd);
  return why;
}

void Reactor::watch(int fd, bool readable, bool writable) {
  epoll_event event{};
  event.events = (readable ? EPOLLIN : 0u) | (writable ? EPOLLOUT : 0u);
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, fd, &event) != 0) {
    log::warn("changing what is watched on a control socket failed: errno {}", errno);
  }
}

void Reactor::remove(int fd) {
  if (sources_.erase(fd) != 0) (void)::epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, fd, nullptr);
}

Reactor::TimerId Reactor::at(Clock::time_point when, Task task) {
  const TimerId id = ++lastTimer_;
  decltype(timers_) made;  // so that it is known to both, or, without memory, to none
  made.emplace(std::pair(when, id), std::move(task));
  timerTimes_.emplace(id, when);
  timers_.merge(made);
  return id;
}

void Reactor::cancel(TimerId timer) {
  const auto found = timerTimes_.find(timer);
  if (found == timerTimes_.end()) return;
  timers_.erase({found->second, timer});
  timerTimes_.erase(found);
}

void Reactor::runPosted() {
  {
    const std::lock_guard lock(mutex_);
    running_.swap(posted_);
  }
  for (const Task& task : running_) (void)attempt(task);
  running_.clear();
}

void Reactor::runLater() {
  while (!later_.empty()) {
    for (const Task& task : std::exchange(later_, {})) (void)attempt(task);
  }
}

// A timer whose task was not done comes again: others wait for it, and nothing else would begin it.
void Reactor::runTimers() {
  const Clock::time_point now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto timer = timers_.extract(timers_.begin());
    auto time = timerTimes_.extract(timer.key().second);
    if (attempt(timer.mapped())) continue;
    timer.key().first = time.mapped() = Clock::now() + kUntilNextTry;
    timers_.insert(std::move(timer));
    timerTimes_.insert(std::move(time));  // there is room, where it was
  }
}

int Reactor::waitMs() const { return timers_.empty() ? -1 : millisecondsUntil(timers_.begin()->first.first); }

bool Reactor::mayStop() {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) return false;
    if (!posted_.empty() && Clock::now() < stopBy_) return false;
  }
  // A source that is awaited decides for how long.
  const bool mayLinger = Clock::now() < stopBy_;
  return std::none_of(sources_.begin(), sources_.end(), [&](const auto& each) {
    return each.second->isAwaited() || (mayLinger && each.second->hasOutput());
  });
}

void Reactor::dispatch(int fd, unsigned events) {
  // Looked up for each event, since an earlier one may have removed or replaced the source.
  if ((events & EPOLLOUT) != 0) {
    if (const auto found = sources_.find(fd); found != sources_.end()) {
      const std::shared_ptr<Source> source = found->second;
      source->onWritable();
    }
  }
  if ((events & ~static_cast<unsigned>(EPOLLOUT)) != 0) {
    if (const auto found = sources_.find(fd); found != sources_.end()) {
      const std::shared_ptr<Source> source = found->second;
      source->onReadable();
    }
  }
}

// A source that finds no memory is asked again.
void Reactor::serve(int fd, unsigned events) {
  if (insist([&] { dispatch(fd, events); })) return;
  log::message(log::Level::kError, "there is no memory to serve a socket of the control plane");
  const auto found = sources_.find(fd);
  if (found == sources_.end()) return;
  const std::shared_ptr<Source> source = found->second;
  source->giveUp();
}

// A filter that the process has got since start() refuses epoll_wait. Events are hints, so all sources look for
// themselves.
void Reactor::lookEverywhere(int errnum) {
  if (!std::exchange(isBlind_, true)) {
    log::warn("{}; the control plane looks after all its sockets every {} ms instead",
              systemError(errnum, "waiting on the control plane's epoll").message(), kBlindPause.count());
  }
  std::this_thread::sleep_for(kBlindPause);
  std::vector<int> all;
  (void)insist([&] {
    all.clear();
    for (const auto& [fd, source] : sources_) all.push_back(fd);
  });
  for (const int fd : all) serve(fd, EPOLLIN | EPOLLOUT);
}

void Reactor::run() {
  std::array<epoll_event, kMaxEvents> events;
  bool stopping = false;
  while (!mayStop()) {
    {
      const std::lock_guard lock(mutex_);
      stopping = stopping_;
    }
    const int count = ::epoll_wait(epoll_.fd(), events.data(), kMaxEvents, stopping ? kLingerPollMs : waitMs());
    if (count < 0 && errno != EINTR) lookEverywhere(errno);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.fd != wakeUp_.fd()) {
        serve(event.data.fd, event.events);
        continue;
      }
      std::uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t got = ::read(wakeUp_.fd(), &ignored, sizeof ignored);
    }
    runPosted();
    runTimers();
    runLater();
  }
  (void)attempt([this] {
    for (const auto& [fd, source] : std::unordered_map<int, std::shared_ptr<Source>>(sources_)) source->onEnd();
  });
}

}  // namespace kolo::bootstrap
