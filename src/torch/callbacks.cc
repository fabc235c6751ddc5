#include "torch/callbacks.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace kolo::pytorch::callbacks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kFewAtOnce = 4, kMostAtOnce = 64;
// If nothing has begun or ended for so long, one more is run at once.
constexpr std::chrono::milliseconds kStall{10};

class Threads {
 public:
  void prepare() {
    const Lock lock(mutex_);
    if (threads_ == 0) start();
  }

  void run(std::function<void()> function) {
    const Lock lock(mutex_);
    waiting_.push_back(std::move(function));
    addThread();
    arrived_.notify_one();
  }

  void enter() {
    const Lock lock(mutex_);
    ++communicators_;
  }

  // In a forked child, a communicator that the parent made was never counted.
  void leave() {
    const Lock lock(mutex_);
    if (communicators_ == 0 || --communicators_ != 0) return;
    atOnce_ = kFewAtOnce;
    arrived_.notify_all();
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Under the lock. A thread for what waits: one that is idle meanwhile sees when nothing goes on.
  void addThread() {
    if (threads_ > busy_ || threads_ > atOnce_) return;
    try {
      start();
    } catch (const std::system_error&) {  // the threads that there are do it, or those that a later call may get
    }
  }

  // Under the lock. Signals are for the program's threads.
  void start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { work(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void work() {
    (void)pthread_setname_np(pthread_self(), "kolo-futures");
    Lock lock(mutex_);
    while (awaitTurn(lock)) {
      {
        const std::function<void()> function = std::move(waiting_.front());
        waiting_.pop_front();
        ++busy_;
        lastMove_ = Clock::now();
        if (!waiting_.empty()) addThread();
        lock.unlock();
        function();
      }
      lock.lock();
      --busy_;
      lastMove_ = Clock::now();
    }
    --threads_;
  }

  // Until there is something to run. False: there is nothing, and no communicator that could give anything.
  bool awaitTurn(Lock& lock) {
    for (;;) {
      if (waiting_.empty()) {
        if (communicators_ == 0) return false;
        arrived_.wait(lock);
      } else if (busy_ < atOnce_) {
        return true;
      } else if (Clock::now() < lastMove_ + kStall) {
        arrived_.wait_until(lock, lastMove_ + kStall);
      } else if (atOnce_ < kMostAtOnce) {
        ++atOnce_;
      } else {
        arrived_.wait(lock);
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> waiting_;
  std::size_t threads_ = 0;
  std::size_t busy_ = 0;  // of these
  std::size_t atOnce_ = kFewAtOnce;
  Clock::time_point lastMove_;  // when something has begun or ended
  std::size_t communicators_ = 0;
};

Threads* threads = nullptr;  // never destroyed: its threads may run until the end of the process

Threads& all() {
  static std::once_flag once;
  std::call_once(once, [] {
    threads = new Threads;
    (void)pthread_atfork(nullptr, nullptr,
                         [] { threads = new Threads; });  // the parent's, and what they hold, are left alone
  });
  return *threads;
}

}  // namespace

void prepare() {
  try {
    all().prepare();
  } catch (const std::system_error& why) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str("kolo: the future of a work needs a thread, and the system gives none (", why.what(),
                             "); raise the limits of threads and memory (ulimit -u, -v, "
                             "TasksMax)"));
  }
}
void run(std::function<void()> function) { all().run(std::move(function)); }
void enter() { all().enter(); }
void leave() { all().leave(); }

}  // namespace kolo::pytorch::callbacks
