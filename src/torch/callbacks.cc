#include "torch/callbacks.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace kolo::pytorch {
namespace {

class Threads {
 public:
  void run(std::function<void()> function) {
    bool more = false;
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(function));
      more = waiting_.size() > idle_;
      if (more) ++idle_;  // the thread that is about to begin
    }
    if (more) {
      std::thread([this] { work(); }).detach();
    } else {
      arrived_.notify_one();
    }
  }

 private:
  [[noreturn]] void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      arrived_.wait(lock, [this] { return !waiting_.empty(); });
      const std::function<void()> function = std::move(waiting_.front());
      waiting_.pop_front();
      --idle_;
      lock.unlock();
      function();
      lock.lock();
      ++idle_;
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> waiting_;
  std::size_t idle_ = 0;  // threads that wait for work, or are on their way to it
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

void runSoon(std::function<void()> function) { all().run(std::move(function)); }

}  // namespace kolo::pytorch
